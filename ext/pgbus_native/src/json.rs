//! JSON text straight into Ruby objects, as `JSON.parse` would make them.
//!
//! What this reader is not certain to read like Ruby's own (nesting beyond 100, integers beyond 64 bits, lone
//! surrogates, numbers out of range, a key that comes twice) it refuses, and the caller lets Ruby read it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::raw::c_long;

use rb_sys::{
    Qfalse, Qnil, Qtrue, VALUE, rb_ary_entry, rb_ary_new, rb_ary_push, rb_enc_interned_str,
    rb_float_new, rb_hash_bulk_insert, rb_hash_new, rb_hash_size_num, rb_ll2inum, rb_ull2inum,
    rb_utf8_encoding, rb_utf8_str_new,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// `JSON.parse`'s `max_nesting`.
const MAX_NESTING: u32 = 100;

/// Reads the JSON texts of one result, which use the same keys again and again, mostly in the same order.
pub struct Reader {
    /// The keys met so far.
    known: RefCell<Vec<Box<str>>>,
    /// Where in `known` the next key is likely to be.
    next: Cell<usize>,
    /// A Ruby Array of the same keys, which keeps them alive and knows where the GC has moved them.
    interned: VALUE,
}

impl Reader {
    /// A reader without keys yet.
    ///
    /// # Safety
    ///
    /// Called with the GVL and inside `protect`; the reader stays on the stack, where Ruby's GC finds its Array.
    pub unsafe fn new() -> Reader {
        Reader {
            known: RefCell::default(),
            next: Cell::new(0),
            // SAFETY: the caller holds the GVL.
            interned: unsafe { rb_ary_new() },
        }
    }

    /// Reads a whole text, or refuses it.
    ///
    /// # Safety
    ///
    /// Called with the GVL and inside `protect`.
    pub unsafe fn parse(&self, text: &[u8]) -> Option<VALUE> {
        if text == b"{}" {
            // SAFETY: the caller holds the GVL.
            return Some(unsafe { rb_hash_new() });
        }
        let text = std::str::from_utf8(text).ok()?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let any = Any {
            reader: self,
            depth: 0,
        };
        let value = any.deserialize(&mut deserializer).ok()?;
        deserializer.end().ok()?;
        Some(value)
    }

    /// The frozen String for an object's key, shared between all records.
    fn key(&self, key: &str) -> VALUE {
        /// More are looked up by Ruby, each time.
        const MOST_KEYS: usize = 64;
        let mut known = self.known.borrow_mut();
        let expected = self.next.get();
        let place = if known.get(expected).is_some_and(|known| **known == *key) {
            Some(expected)
        } else {
            known.iter().position(|known| **known == *key)
        };
        if let Some(place) = place {
            self.next.set((place + 1) % known.len());
            // SAFETY: as `Any` says.
            return unsafe { rb_ary_entry(self.interned, place as c_long) };
        }
        // SAFETY: as `Any` says.
        let string = unsafe {
            rb_enc_interned_str(key.as_ptr().cast(), key.len() as c_long, rb_utf8_encoding())
        };
        if known.len() < MOST_KEYS {
            // SAFETY: as `Any` says.
            unsafe { rb_ary_push(self.interned, string) };
            known.push(key.into());
        }
        string
    }
}

/// Any JSON value, at a depth. The Ruby objects that are being built live in locals, where Ruby's GC looks.
///
/// Calls on Ruby are sound in it because it only exists within [`Reader::parse`], whose caller holds the GVL and is
/// inside `protect`.
#[derive(Clone, Copy)]
struct Any<'r> {
    reader: &'r Reader,
    depth: u32,
}

impl Any<'_> {
    fn inside<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_NESTING {
            return Err(E::custom("nesting"));
        }
        Ok(Any {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Any<'_> {
    type Value = VALUE;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<VALUE, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any<'_> {
    type Value = VALUE;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<VALUE, E> {
        Ok(Qnil as VALUE)
    }

    fn visit_bool<E>(self, value: bool) -> Result<VALUE, E> {
        Ok(if value {
            Qtrue as VALUE
        } else {
            Qfalse as VALUE
        })
    }

    fn visit_i64<E>(self, value: i64) -> Result<VALUE, E> {
        // SAFETY: as `Any` says.
        Ok(unsafe { rb_ll2inum(value) })
    }

    fn visit_u64<E>(self, value: u64) -> Result<VALUE, E> {
        // SAFETY: as `Any` says.
        Ok(unsafe { rb_ull2inum(value) })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<VALUE, E> {
        // Also how integers beyond 64 bits arrive, and "-0", which Ruby reads as an Integer. Text with a
        // point and a value this large is rare enough to take the same way.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.abs() >= EXACT || (value == 0.0 && value.is_sign_negative()) {
            return Err(E::custom("not certainly a Float"));
        }
        // SAFETY: as `Any` says.
        Ok(unsafe { rb_float_new(value) })
    }

    fn visit_str<E>(self, value: &str) -> Result<VALUE, E> {
        // SAFETY: as `Any` says; pointer and length are a slice's.
        Ok(unsafe { rb_utf8_str_new(value.as_ptr().cast(), value.len() as c_long) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<VALUE, A::Error> {
        let inside = self.inside()?;
        // SAFETY: as `Any` says.
        let array = unsafe { rb_ary_new() };
        while let Some(element) = elements.next_element_seed(inside)? {
            // SAFETY: as `Any` says; `array` is an Array.
            unsafe { rb_ary_push(array, element) };
        }
        Ok(array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<VALUE, A::Error> {
        let inside = self.inside()?;
        // SAFETY: as `Any` says.
        let hash = unsafe { rb_hash_new() };
        let mut pairs = Pairs::new(hash);
        let mut count = 0;
        while let Some(key) = entries.next_key_seed(Key(self.reader))? {
            pairs.push(key, entries.next_value_seed(inside)?);
            count += 1;
        }
        pairs.insert();
        // json 2 takes the last value of a key that comes twice, json 3 refuses the text.
        // SAFETY: as `Any` says; `hash` is a Hash.
        if unsafe { rb_hash_size_num(hash) } != count {
            return Err(A::Error::custom("a key twice"));
        }
        Ok(hash)
    }
}

/// Keys and values on their way into a Hash, on the stack, where Ruby's GC looks. A few at once go in faster.
pub struct Pairs {
    hash: VALUE,
    values: [VALUE; 16],
    length: usize,
}

impl Pairs {
    /// None yet.
    pub fn new(hash: VALUE) -> Pairs {
        Pairs {
            hash,
            values: [Qnil as VALUE; 16],
            length: 0,
        }
    }

    /// Adds a pair; the key is a frozen String.
    pub fn push(&mut self, key: VALUE, value: VALUE) {
        if self.length == self.values.len() {
            self.insert();
        }
        self.values[self.length] = key;
        self.values[self.length + 1] = value;
        self.length += 2;
    }

    /// Puts the pairs into the Hash.
    pub fn insert(&mut self) {
        // SAFETY: pairs are made where `Any` and records are, with the GVL inside `protect`; the pointer is this array's,
        // of which `length` values are set.
        unsafe { rb_hash_bulk_insert(self.length as c_long, self.values.as_ptr(), self.hash) };
        self.length = 0;
    }
}

/// An object's key.
#[derive(Clone, Copy)]
struct Key<'r>(&'r Reader);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = VALUE;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<VALUE, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = VALUE;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<VALUE, E> {
        Ok(self.0.key(key))
    }
}

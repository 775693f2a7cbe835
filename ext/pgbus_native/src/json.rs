//! JSON text straight into Ruby objects, as `JSON.parse` would make them.
//!
//! What this reader is not certain to read like Ruby's own (nesting beyond 100, integers beyond 64 bits, lone
//! surrogates, numbers out of range) it refuses, and the caller lets Ruby read it.

use std::fmt;
use std::os::raw::c_long;

use rb_sys::{
    Qfalse, Qnil, Qtrue, VALUE, rb_ary_new, rb_ary_push, rb_enc_interned_str, rb_float_new,
    rb_hash_aset, rb_hash_new, rb_ll2inum, rb_ull2inum, rb_utf8_encoding, rb_utf8_str_new,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// `JSON.parse`'s `max_nesting`.
const MAX_NESTING: u32 = 100;

/// Reads a whole text, or refuses it.
///
/// # Safety
///
/// Called with the GVL and inside `protect`.
pub unsafe fn parse(text: &[u8]) -> Option<VALUE> {
    if text == b"{}" {
        // SAFETY: the caller holds the GVL.
        return Some(unsafe { rb_hash_new() });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Any { depth: 0 }.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Any JSON value, at a depth. The Ruby objects that are being built live in locals, where Ruby's GC looks.
#[derive(Clone, Copy)]
struct Any {
    depth: u32,
}

impl Any {
    fn inside<E: Error>(self) -> Result<Any, E> {
        if self.depth == MAX_NESTING {
            return Err(E::custom("nesting"));
        }
        Ok(Any {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Any {
    type Value = VALUE;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<VALUE, D::Error> {
        deserializer.deserialize_any(self)
    }
}

// SAFETY of the calls below: `parse` is called with the GVL; pointers and lengths come from Rust slices.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<'de> Visitor<'de> for Any {
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
        Ok(unsafe { rb_ll2inum(value) })
    }

    fn visit_u64<E>(self, value: u64) -> Result<VALUE, E> {
        Ok(unsafe { rb_ull2inum(value) })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<VALUE, E> {
        // Also how integers beyond 64 bits arrive, and "-0", which Ruby reads as an Integer. Text with a
        // point and a value this large is rare enough to take the same way.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.abs() >= EXACT || (value == 0.0 && value.is_sign_negative()) {
            return Err(E::custom("not certainly a Float"));
        }
        Ok(unsafe { rb_float_new(value) })
    }

    fn visit_str<E>(self, value: &str) -> Result<VALUE, E> {
        Ok(unsafe { rb_utf8_str_new(value.as_ptr().cast(), value.len() as c_long) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<VALUE, A::Error> {
        let inside = self.inside()?;
        let array = unsafe { rb_ary_new() };
        while let Some(element) = elements.next_element_seed(inside)? {
            unsafe { rb_ary_push(array, element) };
        }
        Ok(array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<VALUE, A::Error> {
        let inside = self.inside()?;
        let hash = unsafe { rb_hash_new() };
        while let Some(key) = entries.next_key_seed(Key)? {
            let value = entries.next_value_seed(inside)?;
            unsafe { rb_hash_aset(hash, key, value) };
        }
        Ok(hash)
    }
}

/// An object's key: a frozen String, shared between all records.
#[derive(Clone, Copy)]
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = VALUE;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<VALUE, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = VALUE;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<VALUE, E> {
        // SAFETY: as for `Any`.
        Ok(unsafe {
            rb_enc_interned_str(key.as_ptr().cast(), key.len() as c_long, rb_utf8_encoding())
        })
    }
}

//! `Pgbus::Native::Hub`, `Pgbus::Native::Broadcast` and `Pgbus::Native::SeatWork`

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use magnus::value::ReprValue;
use magnus::{
    Class, Error, IntoValue, Module, Object, RArray, RHash, RModule, RString, Ruby, TryConvert,
    TypedData, Value, function, method,
};
use pgbus_native_core::hub::{
    Arrival, Broadcast as CoreBroadcast, Change, Closed, Event, Hub as CoreHub, Level, Member,
    Outcome, Question, Settings, Wire, Work,
};
use pgbus_native_core::{Interrupt, Param, Request};

use crate::database::{Database, seconds, text};
use crate::error;
use crate::gvl::without_gvl;
use crate::statement::Statement;

/// The connections of a streamer.
#[derive(TypedData)]
#[magnus(class = "Pgbus::Native::Hub", free_immediately)]
pub struct Hub(CoreHub);

impl magnus::DataTypeFunctions for Hub {}

/// A frame for all connections of a stream.
#[derive(TypedData)]
#[magnus(class = "Pgbus::Native::Broadcast", free_immediately)]
pub struct Broadcast(CoreBroadcast);

impl magnus::DataTypeFunctions for Broadcast {}

/// A statement's worth of work for seats.
#[derive(TypedData)]
#[magnus(class = "Pgbus::Native::SeatWork", free_immediately)]
pub struct SeatWork(RefCell<Option<Work>>);

impl magnus::DataTypeFunctions for SeatWork {}

impl Hub {
    /// `Hub.new(settings)`: a Hash with `:heartbeat`, `:write_deadline` and `:idle_timeout` (seconds),
    /// `:heartbeat_frame` and `:shutdown_frame`.
    fn new(ruby: &Ruby, settings: RHash) -> Result<Hub, Error> {
        let settings = Settings {
            heartbeat: seconds(ruby, settings, "heartbeat")?,
            write_deadline: seconds(ruby, settings, "write_deadline")?,
            idle_timeout: seconds(ruby, settings, "idle_timeout")?,
            heartbeat_frame: bytes(settings.fetch(ruby.to_symbol("heartbeat_frame"))?).into(),
            shutdown_frame: bytes(settings.fetch(ruby.to_symbol("shutdown_frame"))?).into(),
        };
        CoreHub::start(settings)
            .map(Hub)
            .map_err(|error| no_thread(ruby, &error))
    }

    /// `keep_seats(database)`: on its native connections, by a thread of the core.
    fn keep_seats(ruby: &Ruby, this: &Hub, database: &Database) -> Result<(), Error> {
        let started = this.0.keep_seats(database.core());
        started.map_err(|error| no_thread(ruby, &error))
    }

    /// `listen(database)`: hears what other processes broadcast.
    fn listen(ruby: &Ruby, this: &Hub, database: &Database) -> Result<(), Error> {
        let started = this.0.listen(&database.core());
        started.map_err(|error| no_thread(ruby, &error))
    }

    /// `register(id, stream, member, greeting, socket)`: `member` nil or `[id, metadata as JSON, seat or nil]`;
    /// `socket` nil or `[descriptor, plain]`: an Integer, of which a copy is made, and whether it is the core that
    /// writes on it. False if the hub is shut down.
    fn register(
        ruby: &Ruby,
        this: &Hub,
        id: Value,
        stream: Value,
        member: Option<RArray>,
        greeting: RString,
        socket: Option<(RawFd, bool)>,
    ) -> Result<bool, Error> {
        let member = match member {
            Some(member) => Some(Member {
                id: string(ruby, member.entry(0)?)?,
                metadata: string(ruby, member.entry(1)?)?,
                seat: match member.entry::<Value>(2)? {
                    seat if seat.is_nil() => None,
                    seat => Some(string(ruby, seat)?),
                },
            }),
            None => None,
        };
        let arrival = Arrival {
            id: string(ruby, id)?,
            stream: string(ruby, stream)?,
            member,
            greeting: bytes(greeting),
            wire: match socket {
                Some((descriptor, true)) => Wire::Plain(copy(ruby, descriptor)?),
                Some((descriptor, false)) => Wire::Watched(copy(ruby, descriptor)?),
                None => Wire::Elsewhere,
            },
        };
        Ok(this.0.register(arrival) != Err(Closed))
    }

    /// `closed?`: whether it is shut down, or that of a parent process.
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    /// `open?(id)`: whether it has arrived, and not gone.
    fn is_open(ruby: &Ruby, this: &Hub, id: Value) -> Result<bool, Error> {
        Ok(this.0.is_open(&string(ruby, id)?))
    }

    /// `open_ids(stream)`: an Array; of all streams for nil.
    fn open_ids(ruby: &Ruby, this: &Hub, stream: Value) -> Result<RArray, Error> {
        let stream = match stream.is_nil() {
            true => None,
            false => Some(string(ruby, stream)?),
        };
        let ids = this.0.open_ids(stream.as_deref());
        Ok(ruby.ary_from_iter(ids.iter().map(|id| ruby.str_new(id))))
    }

    /// `broadcast(broadcast)`: to this process's connections. False if the hub is shut down.
    fn broadcast(&self, broadcast: &Broadcast) -> bool {
        self.0.broadcast(broadcast.0.clone()) != Err(Closed)
    }

    /// `message(broadcast)`: the payloads for other processes, an Array of Strings.
    fn message(ruby: &Ruby, this: &Hub, broadcast: &Broadcast) -> RArray {
        ruby.ary_from_vec(this.0.message(&broadcast.0))
    }

    /// `answer(question, ids)`: who may see what was asked about.
    fn answer(ruby: &Ruby, this: &Hub, question: u64, ids: RArray) -> Result<(), Error> {
        this.0.answer(question, strings(ruby, ids)?);
        Ok(())
    }

    /// `write(id, frame)`: false if there is no such connection.
    fn write(ruby: &Ruby, this: &Hub, id: Value, frame: RString) -> Result<bool, Error> {
        Ok(this.0.send(&string(ruby, id)?, bytes(frame)))
    }

    /// `close(id)`: false if there is no such connection.
    fn close(ruby: &Ruby, this: &Hub, id: Value) -> Result<bool, Error> {
        Ok(this.0.close(&string(ruby, id)?))
    }

    /// `next_events`: waits until there are some; an Array of Arrays, nil after the end. For one thread.
    fn next_events(ruby: &Ruby, this: &Hub) -> Result<Option<RArray>, Error> {
        next(ruby, |interrupt| this.0.next_events(interrupt), event)
    }

    /// `next_changes`: likewise.
    fn next_changes(ruby: &Ruby, this: &Hub) -> Result<Option<RArray>, Error> {
        next(ruby, |interrupt| this.0.next_changes(interrupt), change)
    }

    /// `next_questions`: likewise.
    fn next_questions(ruby: &Ruby, this: &Hub) -> Result<Option<RArray>, Error> {
        next(ruby, |interrupt| this.0.next_questions(interrupt), question)
    }

    /// `take_seats`: the number for `next_work`; who had taken them before has them no more.
    fn take_seats(&self) -> u64 {
        self.0.take_seats()
    }

    /// `next_work(number)`: waits for it; nil if there will be none. For one thread.
    fn next_work(ruby: &Ruby, this: &Hub, number: u64) -> Result<Option<SeatWork>, Error> {
        loop {
            match wait(ruby, |interrupt| this.0.next_work(number, interrupt))? {
                Some(None) => return Ok(None),
                Some(Some(Some(work))) => return Ok(Some(SeatWork(RefCell::new(Some(work))))),
                _ => {}
            }
        }
    }

    /// `work_done(work, outcomes)`: for each seat true (it was there), false (it was not), a String (why that is not
    /// known), or an Array with a String (why the server does not take it).
    fn work_done(ruby: &Ruby, this: &Hub, work: &SeatWork, outcomes: RArray) -> Result<(), Error> {
        let outcomes = outcomes
            .into_iter()
            .map(outcome)
            .collect::<Result<Vec<_>, Error>>()?;
        let work = work.0.take().ok_or_else(|| over(ruby))?;
        if outcomes.len() != work.len() {
            return Err(error::new(
                ruby.exception_arg_error(),
                "an outcome for each seat",
            ));
        }
        this.0.work_done(work, outcomes);
        Ok(())
    }

    /// `shut_down(seconds)`: waits until it is done.
    fn shut_down(ruby: &Ruby, this: &Hub, patience: f64) -> Result<(), Error> {
        let patience = std::time::Duration::try_from_secs_f64(patience).unwrap_or_default();
        loop {
            let done = wait(ruby, |interrupt| this.0.shut_down(patience, interrupt))?;
            if done == Some(true) {
                return Ok(());
            }
        }
    }
}

impl Broadcast {
    /// `Broadcast.new(stream, frame, exclude, visible_to)`: `exclude` an Array of ids, `visible_to` a String or nil.
    fn new(
        ruby: &Ruby,
        stream: Value,
        frame: RString,
        exclude: RArray,
        visible_to: Value,
    ) -> Result<Broadcast, Error> {
        Ok(Broadcast(CoreBroadcast {
            stream: string(ruby, stream)?,
            frame: bytes(frame).into(),
            exclude: strings(ruby, exclude)?,
            visible_to: match visible_to.is_nil() {
                true => None,
                false => Some(string(ruby, visible_to)?),
            },
        }))
    }
}

impl SeatWork {
    /// `ids`: an Array, one for each seat.
    fn ids(ruby: &Ruby, this: &SeatWork) -> Result<RArray, Error> {
        this.with(ruby, |work| {
            Ok(ruby.ary_from_iter(work.ids().map(|id| ruby.str_new(id))))
        })
    }

    /// `batch`: `[statement, params]` for all of them.
    fn batch(ruby: &Ruby, this: &SeatWork) -> Result<Option<(Statement, RArray)>, Error> {
        this.with(ruby, |work| match work.request() {
            Some(request) => self::request(ruby, &request).map(Some),
            None => Ok(None),
        })
    }

    /// `each`: an Array of `[statement, params]`, one for each seat.
    fn each(ruby: &Ruby, this: &SeatWork) -> Result<RArray, Error> {
        this.with(ruby, |work| {
            let all = ruby.ary_new_capa(work.len());
            for request in work.requests() {
                all.push(self::request(ruby, &request)?)?;
            }
            Ok(all)
        })
    }

    fn with<T>(
        &self,
        ruby: &Ruby,
        read: impl FnOnce(&Work) -> Result<T, Error>,
    ) -> Result<T, Error> {
        read(self.0.borrow().as_ref().ok_or_else(|| over(ruby))?)
    }
}

/// Defines the classes.
pub fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let hub = native.define_class("Hub", ruby.class_object())?;
    hub.undef_default_alloc_func();
    hub.define_singleton_method("new", function!(Hub::new, 1))?;
    hub.define_method("keep_seats", method!(Hub::keep_seats, 1))?;
    hub.define_method("listen", method!(Hub::listen, 1))?;
    hub.define_method("register", method!(Hub::register, 5))?;
    hub.define_method("closed?", method!(Hub::is_closed, 0))?;
    hub.define_method("size", method!(Hub::size, 0))?;
    hub.define_method("open?", method!(Hub::is_open, 1))?;
    hub.define_method("open_ids", method!(Hub::open_ids, 1))?;
    hub.define_method("broadcast", method!(Hub::broadcast, 1))?;
    hub.define_method("message", method!(Hub::message, 1))?;
    hub.define_method("answer", method!(Hub::answer, 2))?;
    hub.define_method("write", method!(Hub::write, 2))?;
    hub.define_method("close", method!(Hub::close, 1))?;
    hub.define_method("next_events", method!(Hub::next_events, 0))?;
    hub.define_method("next_changes", method!(Hub::next_changes, 0))?;
    hub.define_method("next_questions", method!(Hub::next_questions, 0))?;
    hub.define_method("take_seats", method!(Hub::take_seats, 0))?;
    hub.define_method("next_work", method!(Hub::next_work, 1))?;
    hub.define_method("work_done", method!(Hub::work_done, 2))?;
    hub.define_method("shut_down", method!(Hub::shut_down, 1))?;

    let broadcast = native.define_class("Broadcast", ruby.class_object())?;
    broadcast.undef_default_alloc_func();
    broadcast.define_singleton_method("new", function!(Broadcast::new, 4))?;

    let work = native.define_class("SeatWork", ruby.class_object())?;
    work.undef_default_alloc_func();
    work.define_method("ids", method!(SeatWork::ids, 0))?;
    work.define_method("batch", method!(SeatWork::batch, 0))?;
    work.define_method("each", method!(SeatWork::each, 0))
}

/// Waits without the GVL; `None` if an interrupt came before.
fn wait<T: Send>(
    ruby: &Ruby,
    work: impl FnOnce(&Interrupt) -> T + Send,
) -> Result<Option<T>, Error> {
    ruby.thread_check_ints()?;
    let interrupt = Interrupt::new();
    let done = without_gvl(ruby, &interrupt, || work(&interrupt))?;
    Ok(done.map(|done| done.result))
}

/// Waits until there is something, and makes an Array of it.
fn next<T: Send>(
    ruby: &Ruby,
    read: impl Fn(&Interrupt) -> Option<Vec<T>> + Send + Sync,
    make: impl Fn(&Ruby, T) -> Result<RArray, Error>,
) -> Result<Option<RArray>, Error> {
    loop {
        match wait(ruby, &read)? {
            Some(None) => return Ok(None),
            Some(Some(items)) if !items.is_empty() => {
                let all = ruby.ary_new_capa(items.len());
                for item in items {
                    all.push(make(ruby, item)?)?;
                }
                return Ok(Some(all));
            }
            _ => {}
        }
    }
}

fn outcome(outcome: Value) -> Result<Outcome, Error> {
    // What a system says of a server is in its own language and encoding.
    let text = |reason| String::from_utf8_lossy(&bytes(reason)).into_owned();
    if let Some(reason) = RString::from_value(outcome) {
        return Ok(Outcome::Failed(text(reason)));
    }
    match RArray::from_value(outcome) {
        Some(reason) => Ok(Outcome::Refused(text(reason.entry(0)?))),
        None if outcome.to_bool() => Ok(Outcome::Found),
        None => Ok(Outcome::Missing),
    }
}

fn event(ruby: &Ruby, event: Event) -> Result<RArray, Error> {
    let named = |name: &str| ruby.to_symbol(name);
    Ok(match event {
        Event::Gone(id) => {
            ruby.ary_new_from_values(&[named("gone").as_value(), ruby.str_new(&id).as_value()])
        }
        Event::Write(id, frame) => ruby.ary_new_from_values(&[
            named("write").as_value(),
            ruby.str_new(&id).as_value(),
            ruby.enc_str_new(&frame, ruby.utf8_encoding()).as_value(),
        ]),
        Event::TakeSeats => ruby.ary_new_from_values(&[named("take_seats")]),
        Event::Log(level, line) => {
            let level = match level {
                Level::Info => "info",
                Level::Warn => "warn",
            };
            ruby.ary_new_from_values(&[
                named("log").as_value(),
                named(level).as_value(),
                ruby.str_new(&line).as_value(),
            ])
        }
    })
}

fn change(ruby: &Ruby, change: Change) -> Result<RArray, Error> {
    let (name, connection) = match &change {
        Change::Joined(connection) => ("join", connection),
        Change::Left(connection) => ("leave", connection),
        Change::Expire => return Ok(ruby.ary_new_from_values(&[ruby.to_symbol("expire")])),
    };
    let text = |text: &str| ruby.str_new(text).as_value();
    let member = connection.member.as_ref();
    Ok(ruby.ary_new_from_values(&[
        ruby.to_symbol(name).as_value(),
        text(&connection.stream),
        text(&connection.id),
        member.map(|member| text(&member.id)).into_value_with(ruby),
        member
            .and_then(|member| member.seat.as_deref())
            .map(text)
            .into_value_with(ruby),
    ]))
}

fn question(ruby: &Ruby, question: Question) -> Result<RArray, Error> {
    let ids = question.connections.iter().map(|id| ruby.str_new(id));
    Ok(ruby.ary_new_from_values(&[
        question.number.into_value_with(ruby),
        ruby.str_new(&question.filter).as_value(),
        ruby.ary_from_iter(ids).as_value(),
    ]))
}

fn request(ruby: &Ruby, request: &Request) -> Result<(Statement, RArray), Error> {
    let params = ruby.ary_new_capa(request.params.len());
    let text = |bytes: &[u8]| ruby.enc_str_new(bytes, ruby.utf8_encoding());
    for param in &request.params {
        match param {
            Param::Null => params.push(())?,
            Param::Text(bytes) => params.push(text(bytes))?,
            Param::Array(elements) => {
                let elements = elements.iter().map(|element| element.as_deref().map(text));
                params.push(ruby.ary_from_iter(elements))?;
            }
        }
    }
    Ok((Statement(request.statement), params))
}

/// A descriptor of our own for the same socket.
fn copy(ruby: &Ruby, descriptor: RawFd) -> Result<OwnedFd, Error> {
    // SAFETY: the caller has an open IO with this descriptor, and nobody closes it while this thread has the GVL.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map_err(|error| {
        error::new(
            ruby.exception_io_error(),
            &format!("the socket cannot be taken over: {error}"),
        )
    })
}

fn bytes(string: RString) -> Vec<u8> {
    // SAFETY: they are copied before Ruby runs again.
    unsafe { string.as_slice() }.to_vec()
}

/// Text in UTF-8; what comes in another encoding is transcoded.
fn string(ruby: &Ruby, value: Value) -> Result<String, Error> {
    String::from_utf8(text(ruby, value)?).map_err(|_| {
        error::new(
            ruby.exception_arg_error(),
            "a name is text that is valid in its encoding",
        )
    })
}

fn strings(ruby: &Ruby, array: RArray) -> Result<Vec<String>, Error> {
    array
        .into_iter()
        .map(|value| string(ruby, Value::try_convert(value)?))
        .collect()
}

fn over(ruby: &Ruby) -> Error {
    error::new(ruby.exception_runtime_error(), "this work is done")
}

fn no_thread(ruby: &Ruby, error: &std::io::Error) -> Error {
    error::new(
        ruby.exception_runtime_error(),
        &format!("pgbus_native could not start a thread: {error}"),
    )
}

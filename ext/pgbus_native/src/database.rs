//! `Pgbus::Native::Database`

use std::sync::Arc;
use std::time::Duration;

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::ReprValue;
use magnus::{
    Class, Error, Module, Object, RArray, RHash, RModule, RString, Ruby, TypedData, Value,
    function, kwargs, method,
};
use pgbus_native_core::workers::Job;
use pgbus_native_core::{
    Call, Config, Database as CoreDatabase, Error as CoreError, Interrupt, Manner, News, Param,
    Progress, Request, Returns, Rows, Setting, SettingValue, database,
};
use rb_sys::{rb_fiber_scheduler_current, rb_str_export_to_enc, rb_utf8_encoding};

use crate::error::{self, exception};
use crate::grace::Grace;
use crate::gvl::without_gvl;
use crate::record::{self, Records};
use crate::statement::Statement;
use crate::time::Zone;

/// A database with its native connections.
#[derive(TypedData)]
#[magnus(class = "Pgbus::Native::Database", free_immediately)]
pub struct Database {
    core: Arc<CoreDatabase>,
    zone: Zone,
    grace: Grace,
}

impl magnus::DataTypeFunctions for Database {}

impl Database {
    /// The core's database, to be used by threads of the core.
    pub fn core(&self) -> Arc<CoreDatabase> {
        Arc::clone(&self.core)
    }

    /// `Database.new(keywords, session, options)`: `keywords` a Hash of libpq's connection keywords, all
    /// Strings; `session` an Array of `[name, :literal | :list | :default, value]`; `options` a Hash with
    /// `:prepared_statements`, `:pool_size`, `:checkout_timeout` and `:gvl_grace` (seconds) and
    /// `:local_times`.
    fn new(
        ruby: &Ruby,
        keywords: RHash,
        session: RArray,
        options: RHash,
    ) -> Result<Database, Error> {
        let mut pairs: Vec<(String, String)> = Vec::with_capacity(keywords.len());
        keywords.foreach(|keyword: String, value: String| {
            pairs.push((keyword, value));
            Ok(magnus::r_hash::ForEach::Continue)
        })?;
        let mut config = Config::from_keywords(pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .map_err(|error| exception(ruby, &error))?;
        config.session = session
            .into_iter()
            .map(|entry| setting(ruby, entry))
            .collect::<Result<_, _>>()?;
        config.prepared_statements = options.fetch(ruby.to_symbol("prepared_statements"))?;
        config.pool_size = options.fetch(ruby.to_symbol("pool_size"))?;
        config.checkout_timeout = seconds(ruby, options, "checkout_timeout")?;
        let local: bool = options.fetch(ruby.to_symbol("local_times"))?;
        Ok(Database {
            core: Arc::new(CoreDatabase::new(config)),
            grace: Grace::new(seconds(ruby, options, "gvl_grace")?),
            zone: if local { Zone::Local } else { Zone::Utc },
        })
    }

    /// `run(statement, params)`: `params` an Array of Strings, nils and Arrays of those. Answers with an
    /// Array of records, an Array of Strings or an Integer, as the statement says.
    fn run(
        ruby: &Ruby,
        this: &Database,
        statement: &Statement,
        params: RArray,
    ) -> Result<Value, Error> {
        this.perform(ruby, statement, params)
            .map(|(value, _)| value)
    }

    /// `run_with_details(statement, params, details)`: as `run`, and puts `:batch_size` into the Hash `details` and
    /// adds to its `:retries`.
    fn run_with_details(
        ruby: &Ruby,
        this: &Database,
        statement: &Statement,
        params: RArray,
        details: RHash,
    ) -> Result<Value, Error> {
        let (value, manner) = this.perform(ruby, statement, params)?;
        let retries = ruby.to_symbol("retries");
        let before: u32 = details.lookup2(retries, 0)?;
        details.aset(retries, before.saturating_add(manner.retries))?;
        details.aset(ruby.to_symbol("batch_size"), manner.batch_size)?;
        Ok(value)
    }

    fn perform(
        &self,
        ruby: &Ruby,
        statement: &Statement,
        params: RArray,
    ) -> Result<(Value, Manner), Error> {
        let request = Request {
            statement: statement.0,
            params: params
                .into_iter()
                .map(|value| param(ruby, value))
                .collect::<Result<_, _>>()?,
        };
        let call = self.core.call(request);
        let returns = statement.0.returns;
        // SAFETY: the GVL is held.
        let in_fiber = !unsafe { Value::from_raw(rb_fiber_scheduler_current()) }.is_nil();
        match returns {
            Returns::Members | Returns::Seats | Returns::StreamSeats => {
                let mut records = Records::new(ruby, returns, self.zone);
                let manner = if in_fiber {
                    let rows = answer(ruby, perform_for_fiber(ruby, call)?)?;
                    records.add(ruby, &rows.rows)?;
                    rows.manner
                } else {
                    perform_streaming(ruby, call, &self.grace, &mut records)?
                };
                Ok((records.finish(), manner))
            }
            Returns::Texts | Returns::Number | Returns::Changes => {
                let done = if in_fiber {
                    perform_for_fiber(ruby, call)?
                } else {
                    perform(ruby, call, &self.grace)?
                };
                let rows = answer(ruby, done)?;
                Ok((record::build(ruby, returns, &rows)?, rows.manner))
            }
        }
    }

    /// `news?`: whether there is something for the log.
    fn has_news(&self) -> bool {
        self.core.has_news()
    }

    /// `news`: takes what there is for the log, an Array of `[:lost, String]` (the reason) and `[:back, Float]` (the
    /// seconds that it took).
    fn news(ruby: &Ruby, this: &Database) -> Result<RArray, Error> {
        let all = ruby.ary_new();
        for news in this.core.take_news() {
            match news {
                News::Lost(reason) => all.push((ruby.to_symbol("lost"), reason))?,
                News::Back(after) => all.push((ruby.to_symbol("back"), after.as_secs_f64()))?,
            }
        }
        Ok(all)
    }

    /// `stats`: a Hash of Integers, of this process.
    fn stats(ruby: &Ruby, this: &Database) -> Result<RHash, Error> {
        let stats = this.core.stats();
        let hash = ruby.hash_new();
        hash.aset(ruby.to_symbol("busy"), stats.busy)?;
        hash.aset(ruby.to_symbol("connections"), stats.connections)?;
        hash.aset(ruby.to_symbol("waiting"), stats.waiting)?;
        hash.aset(ruby.to_symbol("calls"), stats.calls)?;
        hash.aset(ruby.to_symbol("retries"), stats.retries)?;
        hash.aset(ruby.to_symbol("connects"), stats.connects)?;
        hash.aset(ruby.to_symbol("batched"), stats.batched)?;
        Ok(hash)
    }

    /// `close_idle`: closes this process's unused connections.
    fn close_idle(&self) {
        self.core.close_idle();
    }
}

/// Defines the class.
pub fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Database", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("new", function!(Database::new, 3))?;
    class.define_method("run", method!(Database::run, 2))?;
    class.define_method("run_with_details", method!(Database::run_with_details, 3))?;
    class.define_method("news?", method!(Database::has_news, 0))?;
    class.define_method("news", method!(Database::news, 0))?;
    class.define_method("stats", method!(Database::stats, 0))?;
    class.define_method("close_idle", method!(Database::close_idle, 0))
}

/// `Pgbus::Native.finish_cancelling(seconds)`: waits for cancel requests under way, before the process ends.
pub fn finish_cancelling(ruby: &Ruby, seconds: f64) -> Result<(), Error> {
    let patience = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    without_gvl(ruby, &Interrupt::new(), || {
        database::finish_cancelling(patience);
    })
    .map(|_| ())
}

/// An option in seconds.
pub fn seconds(ruby: &Ruby, options: RHash, name: &str) -> Result<Duration, Error> {
    let seconds: f64 = options.fetch(ruby.to_symbol(name))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|reason| error::new(ruby.exception_arg_error(), &format!("{name}: {reason}")))
}

fn answer(ruby: &Ruby, answer: Result<Rows, CoreError>) -> Result<Rows, Error> {
    answer.map_err(|error| exception(ruby, &error))
}

/// Runs a call on this thread, without the GVL. An exception that arrives meanwhile drops the call.
fn perform(ruby: &Ruby, mut call: Call, grace: &Grace) -> Result<Result<Rows, CoreError>, Error> {
    loop {
        if let Progress::Answered(answer) = advance(ruby, &mut call, grace, usize::MAX)? {
            return Ok(answer);
        }
    }
}

/// Runs a call on this thread and makes its records. While the first rows are on their way it is without the
/// GVL; from then on it keeps it as long as rows keep coming, which the server and the network produce while the
/// records of earlier ones are made.
fn perform_streaming(
    ruby: &Ruby,
    call: Call,
    grace: &Grace,
    records: &mut Records,
) -> Result<Manner, Error> {
    /// Rows that are worth having the GVL for.
    const ENOUGH: usize = 200;

    let mut call = call.streaming();
    let mut progress = advance(ruby, &mut call, grace, ENOUGH)?;
    loop {
        progress = match progress {
            Progress::Answered(done) => {
                let answer = answer(ruby, done)?;
                records.add_arrived(ruby, &call.take_rows())?;
                // A call that was run with others has its rows here.
                records.add(ruby, &answer.rows)?;
                return Ok(answer.manner);
            }
            Progress::Rows => {
                records.add_arrived(ruby, &call.take_rows())?;
                ruby.thread_check_ints()?;
                call.advance_briefly(grace.pause(), ENOUGH)
            }
            Progress::Paused => advance(ruby, &mut call, grace, ENOUGH)?,
        }
    }
}

/// Runs a call further, without the GVL, or with it for the time that `grace` allows.
fn advance(ruby: &Ruby, call: &mut Call, grace: &Grace, enough: usize) -> Result<Progress, Error> {
    // Leaving the GVL looks at a flag alone, which is down while interrupts that were put off are in the queue.
    // A signal's handler may return; then the call goes on.
    ruby.thread_check_ints()?;
    if let Some(patience) = grace.patience() {
        match call.advance_briefly(patience, enough) {
            Progress::Paused => grace.was_in_vain(),
            progress => {
                grace.was_worth_it();
                return Ok(progress);
            }
        }
    }
    let interrupt = Interrupt::new();
    let outside = grace.outside();
    let done = without_gvl(ruby, &interrupt, || call.advance(&interrupt, enough))?;
    drop(outside);
    Ok(match done {
        Some(done) => {
            grace.got_back_after(done.waited);
            done.result
        }
        None => Progress::Paused,
    })
}

/// Runs a call on a worker thread while the fiber's scheduler runs other fibers.
fn perform_for_fiber(ruby: &Ruby, call: Call) -> Result<Result<Rows, CoreError>, Error> {
    let job = Job::start(call).map_err(|error| {
        error::new(
            ruby.exception_runtime_error(),
            &format!("pgbus_native could not start a worker thread: {error}"),
        )
    })?;
    let waited = wait_readable(ruby, &job);
    if let Err(error) = waited {
        job.abandon();
        return Err(error);
    }
    job.answer().ok_or_else(|| {
        error::new(
            ruby.exception_runtime_error(),
            "pgbus_native panicked, which is a bug to be reported; its message is on standard error",
        )
    })
}

fn wait_readable(ruby: &Ruby, job: &Job) -> Result<(), Error> {
    // The job owns the descriptor.
    let io: Value = ruby.class_io().funcall(
        "for_fd",
        (job.descriptor(), kwargs!(ruby, "autoclose" => false)),
    )?;
    while !job.is_over() {
        io.funcall::<_, _, Value>("wait_readable", ())?;
    }
    Ok(())
}

fn setting(ruby: &Ruby, entry: Value) -> Result<Setting, Error> {
    let entry = RArray::from_value(entry)
        .ok_or_else(|| error::new(ruby.exception_type_error(), "a setting is an Array"))?;
    let name: String = entry.entry(0)?;
    let kind: String = entry.entry::<magnus::Symbol>(1)?.name()?.into_owned();
    let value = match kind.as_str() {
        "default" => SettingValue::Default,
        "list" => SettingValue::List(entry.entry(2)?),
        _ => SettingValue::Literal(entry.entry(2)?),
    };
    Ok(Setting { name, value })
}

fn param(ruby: &Ruby, value: Value) -> Result<Param, Error> {
    if value.is_nil() {
        return Ok(Param::Null);
    }
    if let Some(array) = RArray::from_value(value) {
        let elements = array.into_iter().map(|element| match element.is_nil() {
            true => Ok(None),
            false => text(ruby, element).map(Some),
        });
        return elements.collect::<Result<_, Error>>().map(Param::Array);
    }
    text(ruby, value).map(Param::Text)
}

/// A String's bytes in UTF-8, transcoded as the pg gem does: what cannot be transcoded is left to the server.
pub fn text(ruby: &Ruby, value: Value) -> Result<Vec<u8>, Error> {
    let string = RString::from_value(value).ok_or_else(|| {
        error::new(
            ruby.exception_type_error(),
            &format!("wrong argument type {} (expected String)", value.class()),
        )
    })?;
    let exported = protect(|| {
        // SAFETY: the GVL is held; what transcoding raises ends at `protect`.
        unsafe { rb_str_export_to_enc(string.as_raw(), rb_utf8_encoding()) }
    })?;
    // SAFETY: `rb_str_export_to_enc` returns a String.
    let exported = unsafe { Value::from_raw(exported) };
    let Some(exported) = RString::from_value(exported) else {
        return Err(error::new(ruby.exception_type_error(), "not a String"));
    };
    // SAFETY: the bytes are copied before Ruby runs again.
    let bytes = unsafe { exported.as_slice() }.to_vec();
    if bytes.contains(&0) {
        return Err(error::new(
            ruby.exception_arg_error(),
            "string contains null byte",
        ));
    }
    Ok(bytes)
}

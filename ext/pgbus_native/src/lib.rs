//! The Ruby binding of `pgbus_native_core`: Ruby values in, calls on the core, Ruby values out.

// The one public function is magnus's `Init_pgbus_native`, which it makes without documentation.
#![allow(missing_docs)]

use magnus::{Error, Module, Object, Ruby, function};

mod database;
mod error;
mod grace;
mod gvl;
mod hub;
mod json;
mod record;
mod statement;
mod time;

/// Defines the classes below `Pgbus::Native`.
#[magnus::init]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let native = ruby.define_module("Pgbus")?.define_module("Native")?;
    record::init(ruby)?;
    statement::define(ruby, native)?;
    database::define(ruby, native)?;
    hub::define(ruby, native)?;
    native.define_singleton_method(
        "finish_cancelling",
        function!(database::finish_cancelling, 1),
    )
}

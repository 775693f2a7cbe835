//! The exceptions that callers already rescue.

use magnus::{Class, Error, ExceptionClass, Module, RHash, RModule, Ruby};
use pgbus_native_core::Error as CoreError;

/// The SQLSTATE of "database does not exist", for which ActiveRecord has a class of its own.
const INVALID_CATALOG_NAME: &str = "3D000";

/// Turns an error of the core into the exception that ActiveRecord or the pg gem raises for it.
pub fn exception(ruby: &Ruby, error: &CoreError) -> Error {
    let class = match error {
        CoreError::Connect { code, .. } if code.as_deref() == Some(INVALID_CATALOG_NAME) => {
            class(ruby, "ActiveRecord", "NoDatabaseError")
        }
        CoreError::Connect { .. } => class(ruby, "ActiveRecord", "ConnectionNotEstablished"),
        CoreError::PoolTimeout(_) => class(ruby, "ActiveRecord", "ConnectionTimeoutError"),
        CoreError::Broken(_) => class(ruby, "PG", "ConnectionBad"),
        CoreError::Server(server) => sqlstate_class(ruby, &server.code),
        CoreError::Unsupported(_) => ruby
            .class_object()
            .const_get::<_, RModule>("Pgbus")
            .and_then(|pgbus| pgbus.const_get::<_, RModule>("Native"))
            .and_then(|native| native.const_get("UnsupportedError")),
        CoreError::Protocol(_) => class(ruby, "PG", "Error"),
    };
    match class {
        Ok(class) => new(class, &error.to_string()),
        Err(missing) => missing,
    }
}

/// An exception, made here and now: making it runs Ruby code, where a `Thread#kill` may arrive, which magnus does
/// not expect while it raises.
pub fn new(class: ExceptionClass, message: &str) -> Error {
    match class.new_instance((message,)) {
        Ok(exception) => Error::from(exception),
        Err(jump) => jump,
    }
}

fn class(ruby: &Ruby, module: &str, name: &str) -> Result<ExceptionClass, Error> {
    ruby.class_object()
        .const_get::<_, RModule>(module)?
        .const_get(name)
}

/// The pg gem's class for a SQLSTATE: its own, else that of its class (the first two characters).
fn sqlstate_class(ruby: &Ruby, code: &str) -> Result<ExceptionClass, Error> {
    let pg: RModule = ruby.class_object().const_get("PG")?;
    let classes: RHash = pg.const_get("ERROR_CLASSES")?;
    for key in [code, code.get(..2).unwrap_or(code)] {
        if let Some(class) = classes.get(key) {
            if let Some(class) = ExceptionClass::from_value(class) {
                return Ok(class);
            }
        }
    }
    pg.const_get("ServerError")
}

//! Presence for pgbus on PostgreSQL, in plain Rust.
//!
//! A call takes one way through this crate: a [`Request`] (a statement and its parameters) becomes a
//! [`Call`] on a [`Database`]; the call takes a connection from the database's pool, runs the statement on
//! the thread that drives it and answers with [`Rows`], from which [`record`] reads typed columns.
//!
//! Nothing here knows Ruby. A caller that must not block forever passes an [`Interrupt`] and raises it from
//! another thread.

pub mod config;
pub mod database;
pub mod error;
pub mod fork;
pub mod hub;
pub mod interrupt;
pub mod record;
pub mod request;
pub mod statements;
pub mod workers;

mod backend;
mod connect;
mod outage;
mod pool;
mod session;
mod tls;

pub use config::{Config, Setting, SettingValue};
pub use database::{Call, Database, Progress, Stats};
pub use error::{Error, ServerError};
pub use hub::Hub;
pub use interrupt::Interrupt;
pub use outage::News;
pub use request::{Param, Request};
pub use session::{Arrived, Manner, Rows};
pub use statements::{Returns, Statement};
/// A row as it came from the server; see [`record`].
pub use tokio_postgres::Row;

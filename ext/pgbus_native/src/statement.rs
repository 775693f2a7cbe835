//! `Pgbus::Native::Statement`

use magnus::{Class, Error, Module, RModule, Ruby, Symbol, TypedData, method};
use pgbus_native_core::{Returns, Statement as CoreStatement, statements};

/// A statement of the core. The constants of `Pgbus::Native::Statements` are all there are.
#[derive(TypedData)]
#[magnus(class = "Pgbus::Native::Statement", free_immediately)]
pub struct Statement(pub &'static CoreStatement);

impl magnus::DataTypeFunctions for Statement {}

impl Statement {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn sql(&self) -> &'static str {
        self.0.sql
    }

    fn returns(ruby: &Ruby, this: &Statement) -> Symbol {
        ruby.to_symbol(match this.0.returns {
            Returns::Members | Returns::Seats | Returns::StreamSeats => "records",
            Returns::Texts => "texts",
            Returns::Number => "number",
            Returns::Changes => "changes",
        })
    }
}

/// Defines the class and its instances.
pub fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Statement", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_method("name", method!(Statement::name, 0))?;
    class.define_method("sql", method!(Statement::sql, 0))?;
    class.define_method("returns", method!(Statement::returns, 0))?;

    let all = native.define_module("Statements")?;
    for statement in statements::ALL {
        all.const_set(statement.name, ruby.obj_wrap(Statement(statement)))?;
    }
    Ok(())
}

//! Leaving the GVL while PostgreSQL works.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use magnus::{Error, Ruby};
use pgbus_native_core::Interrupt;
use rb_sys::rb_thread_call_without_gvl2;

struct Work<F, T> {
    work: Option<F>,
    result: Option<Result<T, Box<dyn Any + Send>>>,
    ended: Option<Instant>,
}

/// What came of work done without the GVL.
pub struct Done<T> {
    /// Its result.
    pub result: T,
    /// How long it took to get the GVL back.
    pub waited: Duration,
}

/// Runs `work` without the GVL; it must not touch Ruby. `None` if Ruby has an interrupt pending (a signal, a
/// `Thread#raise`) and would not let it begin. While it runs, such an interrupt raises `interrupt`.
///
/// # Errors
///
/// A RuntimeError if `work` panics.
pub fn without_gvl<F, T>(
    ruby: &Ruby,
    interrupt: &Interrupt,
    work: F,
) -> Result<Option<Done<T>>, Error>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let mut work = Work {
        work: Some(work),
        result: None,
        ended: None,
    };
    // SAFETY: both pointers outlive the call, which returns only after `carry_out` has. Ruby unregisters
    // `wake` before it returns. This variant never raises, so no Rust frame is jumped over.
    unsafe {
        rb_thread_call_without_gvl2(
            Some(carry_out::<F, T>),
            (&raw mut work).cast::<c_void>(),
            Some(wake),
            (&raw const *interrupt).cast_mut().cast::<c_void>(),
        );
    }
    match work.result {
        None => Ok(None),
        Some(Ok(result)) => Ok(Some(Done {
            result,
            waited: work.ended.map(|ended| ended.elapsed()).unwrap_or_default(),
        })),
        Some(Err(panic)) => Err(panicked(ruby, panic.as_ref())),
    }
}

/// The exception for a panic of the core.
pub fn panicked(ruby: &Ruby, panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    crate::error::new(
        ruby.exception_runtime_error(),
        &format!("pgbus_native panicked, which is a bug to be reported: {text}"),
    )
}

/// Does the work.
///
/// # Safety
///
/// `data` points to a `Work<F, T>` that outlives the call and that nobody else touches during it.
unsafe extern "C" fn carry_out<F, T>(data: *mut c_void) -> *mut c_void
where
    F: FnOnce() -> T,
{
    // SAFETY: `data` is the `Work` of `without_gvl`, which nobody else touches during the call.
    let work = unsafe { &mut *data.cast::<Work<F, T>>() };
    if let Some(run) = work.work.take() {
        // A panic must not unwind into Ruby's frames.
        work.result = Some(catch_unwind(AssertUnwindSafe(run)));
        work.ended = Some(Instant::now());
    }
    std::ptr::null_mut()
}

/// What Ruby calls on another thread to interrupt the work.
///
/// # Safety
///
/// `data` points to an `Interrupt` that outlives the call.
unsafe extern "C" fn wake(data: *mut c_void) {
    // SAFETY: `data` is the `Interrupt` of `without_gvl`, which is shared and outlives the call.
    unsafe { &*data.cast::<Interrupt>() }.raise();
}

//! What a call returns that may have to wait.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The result of a call, or a future of it. A call that is finished at once allocates nothing. Stacks are built at run
/// time, so the future of any other is boxed.
#[must_use = "a call does nothing more unless it is awaited"]
pub struct Reply<'a, R>(State<'a, R>);

enum State<'a, R> {
    /// `None` after it was taken.
    Done(Option<R>),
    Waits(Pin<Box<dyn Future<Output = R> + Send + 'a>>),
}

impl<'a, R> Reply<'a, R> {
    /// Of a call that is finished.
    pub fn done(result: R) -> Self {
        Self(State::Done(Some(result)))
    }

    /// Of a call that is finished when the future is.
    pub fn new(future: impl Future<Output = R> + Send + 'a) -> Self {
        Self(State::Waits(Box::pin(future)))
    }

    /// The result of a call that is finished.
    ///
    /// # Errors
    /// The reply itself, if it has to be awaited.
    pub fn now(self) -> Result<R, Self> {
        match self.0 {
            State::Done(Some(result)) => Ok(result),
            other => Err(Self(other)),
        }
    }
}

// The result is moved out of it, and nobody gets a pin on it.
impl<R> Unpin for Reply<'_, R> {}

impl<R> Future for Reply<'_, R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        match &mut self.0 {
            State::Done(result) => Poll::Ready(result.take().expect("polled after its end")),
            State::Waits(future) => future.as_mut().poll(context),
        }
    }
}

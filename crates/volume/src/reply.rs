//! The return type of calls that may have to wait.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// The result of a call, or a boxed future of the result. A call that finishes at once needs no allocation for its
/// reply.
#[must_use = "a call does nothing more unless it is awaited"]
pub struct Reply<'a, R>(ReplyState<'a, R>);

enum ReplyState<'a, R> {
    /// The result of the call; `None` after the caller has taken it.
    Done(Option<R>),
    Waits(Pin<Box<dyn Future<Output = R> + Send + 'a>>),
}

impl<'a, R> Reply<'a, R> {
    /// Makes the reply of a call that has finished.
    pub fn done(result: R) -> Self {
        Self(ReplyState::Done(Some(result)))
    }

    /// Makes the reply of a call that finishes with `future`.
    pub fn new(future: impl Future<Output = R> + Send + 'a) -> Self {
        Self(ReplyState::Waits(Box::pin(future)))
    }

    /// Returns the result if the call has finished.
    ///
    /// # Errors
    /// The reply itself, which has to be awaited.
    pub fn now(self) -> Result<R, Self> {
        match self.0 {
            ReplyState::Done(Some(result)) => Ok(result),
            other => Err(Self(other)),
        }
    }
}

// Sound, because `poll` never pins the result: it moves the result out of the reply.
impl<R> Unpin for Reply<'_, R> {}

impl<R> Future for Reply<'_, R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        match &mut self.0 {
            ReplyState::Done(result) => Poll::Ready(result.take().expect("polled after its end")),
            ReplyState::Waits(future) => future.as_mut().poll(context),
        }
    }
}

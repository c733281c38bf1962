//! Helpers for the unit tests of small layers.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{Error, Io};

/// Polls a call once and returns its result. The call must be ready at that poll.
pub fn now<T>(mut io: Io<'_, T>) -> Result<T, Error> {
    match Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("this call has nothing to wait for"),
    }
}

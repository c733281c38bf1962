//! Two futures with which tests and simulated disks let other tasks run: one yields once, one is
//! never ready.

use std::{future::poll_fn, task::Poll};

/// Returns control to the executor once, so that other tasks can run before this one continues.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            Poll::Ready(())
        } else {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// A future that is never ready.
pub(crate) async fn never<T>() -> T {
    std::future::pending().await
}

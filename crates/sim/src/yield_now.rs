//! Futures that wait for nothing: once, and for ever.

use std::{future::poll_fn, task::Poll};

/// Ready at the second poll, and asks for that poll at once.
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

/// Never ready.
pub(crate) async fn never<T>() -> T {
    std::future::pending().await
}

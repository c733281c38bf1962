//! Task attributes: the order in which tasks start (SAM-5, 8).
//!
//! All nexuses share one task set (TST=0). An ordered task starts when all tasks before it have ended, and
//! all tasks after it start when it has ended.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::TaskAttribute;

/// The order among the tasks of one unit.
///
/// A fair lock keeps the order: simple tasks share it, an ordered task holds it exclusively, and no task
/// overtakes one that waits.
#[derive(Debug, Default)]
pub(crate) struct TaskOrder(RwLock<()>);

/// Permission of a task to run. Tasks that have to wait for this task start when the value is dropped.
#[allow(dead_code, reason = "guards are held, not read")]
pub struct TaskTurn<'a>(OrderLock<'a>);

#[allow(dead_code, reason = "guards are held, not read")]
enum OrderLock<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    /// The turn of a HEAD OF QUEUE task, which never waits and for which no later task waits.
    AtOnce,
    Shared(RwLockReadGuard<'a, ()>),
}

impl TaskOrder {
    /// Returns the turn of a task that need not wait, which is the usual case.
    pub(crate) fn turn_now(&self, attribute: TaskAttribute) -> Option<TaskTurn<'_>> {
        let lock = match attribute {
            TaskAttribute::Untagged | TaskAttribute::Simple | TaskAttribute::Aca => {
                OrderLock::Shared(self.0.try_read().ok()?)
            }
            TaskAttribute::Ordered => OrderLock::Alone(self.0.try_write().ok()?),
            TaskAttribute::HeadOfQueue | TaskAttribute::Nested => OrderLock::AtOnce,
        };
        Some(TaskTurn(lock))
    }

    /// Waits for the turn of a task. The task joins the queue at the first poll.
    pub(crate) async fn turn(&self, attribute: TaskAttribute) -> TaskTurn<'_> {
        let lock = match attribute {
            TaskAttribute::Untagged | TaskAttribute::Simple | TaskAttribute::Aca => {
                OrderLock::Shared(self.0.read().await)
            }
            TaskAttribute::Ordered => OrderLock::Alone(self.0.write().await),
            TaskAttribute::HeadOfQueue | TaskAttribute::Nested => OrderLock::AtOnce,
        };
        TaskTurn(lock)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn an_ordered_task_waits_for_all_earlier_tasks_and_blocks_all_later_ones() {
        let order = TaskOrder::default();
        let mut context = Context::from_waker(Waker::noop());
        let before = order.turn_now(TaskAttribute::Simple).expect("no other task is there");
        assert!(order.turn_now(TaskAttribute::Ordered).is_none());
        let mut ordered = pin!(order.turn(TaskAttribute::Ordered));
        assert!(ordered.as_mut().poll(&mut context).is_pending());
        assert!(order.turn_now(TaskAttribute::Simple).is_none(), "overtakes a waiting task");
        assert!(order.turn_now(TaskAttribute::HeadOfQueue).is_some());
        drop(before);
        let Poll::Ready(turn) = ordered.as_mut().poll(&mut context) else {
            panic!("all before it have ended");
        };
        assert!(order.turn_now(TaskAttribute::Simple).is_none());
        drop(turn);
        assert!(order.turn_now(TaskAttribute::Simple).is_some());
    }

    #[test]
    fn an_ordered_task_that_is_aborted_while_it_waits_blocks_no_other_task() {
        let order = TaskOrder::default();
        let before = order.turn_now(TaskAttribute::Simple).expect("no other task is there");
        {
            let mut ordered = pin!(order.turn(TaskAttribute::Ordered));
            let mut context = Context::from_waker(Waker::noop());
            assert!(ordered.as_mut().poll(&mut context).is_pending());
        }
        assert!(order.turn_now(TaskAttribute::Simple).is_some());
        drop(before);
    }
}

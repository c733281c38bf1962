//! Delays the answer of a command that changes a policy access tag until each command that was checked against the old
//! tag has ended.
//!
//! A command takes a [`WorkPass`] before it reads the tag, and drops it when its effect is complete.
//! A command that changes a tag first completes its effect, drops its own pass, and then waits for
//! all passes that were taken before. Later passes read the new tag.

use std::collections::BTreeMap;

use object::ObjectAddress;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The commands at work on one drive: from before the check of their capability until their effect is complete.
#[derive(Default)]
pub struct WorkGate {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The object of each command at work, by the number of its pass.
    at_work: BTreeMap<u64, ObjectAddress>,
}

/// Held by a command while it is at work. Dropping the pass ends the command for [`WorkGate::drain`].
pub struct WorkPass<'a> {
    gate: &'a WorkGate,
    number: u64,
}

impl WorkGate {
    /// Notes that a command on this object is at work, until its pass is dropped.
    pub fn begin(&self, object: ObjectAddress) -> WorkPass<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.at_work.insert(number, object);
        WorkPass { gate: self, number }
    }

    /// Waits until all commands at work on `object` have ended: for a partition, those on any object in it; for the
    /// root, all commands. Does not wait for commands that begin later.
    pub async fn drain(&self, object: ObjectAddress) {
        let end = self.state.lock().next;
        loop {
            // Register before the check, so that no command can end unnoticed between check and wait.
            let ended = self.ended.notified();
            let is_at_work = {
                let state = self.state.lock();
                state.at_work.range(..end).any(|(_, other)| covers(object, *other))
            };
            if !is_at_work {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for WorkPass<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().at_work.remove(&self.number);
        self.gate.ended.notify_waiters();
    }
}

/// Returns true if `object` is `other` or contains it.
const fn covers(object: ObjectAddress, other: ObjectAddress) -> bool {
    object.partition == 0
        || object.partition == other.partition
            && (object.object == 0 || object.object == other.object)
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    const A: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);
    const B: ObjectAddress = ObjectAddress::new(0x10000, 0x10002);
    const OTHER: ObjectAddress = ObjectAddress::new(0x10001, 0x10001);

    #[test]
    fn a_drain_waits_for_the_commands_before_it_and_not_for_later_ones() {
        let gate = WorkGate::default();
        let mut context = Context::from_waker(Waker::noop());
        let before = gate.begin(A);
        let mut drain = pin!(gate.drain(A));
        assert!(drain.as_mut().poll(&mut context).is_pending());
        let later = gate.begin(A);
        assert!(drain.as_mut().poll(&mut context).is_pending());
        drop(before);
        assert!(drain.as_mut().poll(&mut context).is_ready());
        drop(later);
    }

    #[test]
    fn a_drain_waits_for_commands_within_its_object_only() {
        let mut context = Context::from_waker(Waker::noop());
        let cases = [
            (A, A, true),
            (A, B, false),
            (A, ObjectAddress::partition(A.partition), false),
            (ObjectAddress::partition(A.partition), B, true),
            (ObjectAddress::partition(A.partition), OTHER, false),
            (ObjectAddress::ROOT, OTHER, true),
        ];
        for (drained, at_work, waits) in cases {
            let gate = WorkGate::default();
            let _pass = gate.begin(at_work);
            let drain = pin!(gate.drain(drained));
            assert_eq!(drain.poll(&mut context).is_pending(), waits, "{drained} and {at_work}");
        }
    }
}

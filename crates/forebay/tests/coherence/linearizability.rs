//! Checks whether the history of registers is linearizable (M. Herlihy and J. Wing, "Linearizability", 1990). Each
//! write of a register has a unique value, so that checking pairs of values suffices (P. Gibbons and E. Korach,
//! "Testing Shared Memories", 1997).

use std::collections::BTreeMap;

/// A read or a write of a register.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub writes: bool,
    /// Value written or read; 0 is the initial value.
    pub value: u64,
    pub begun: u64,
    /// `None` if there was no answer: the call may have taken effect at any time, or not at all.
    pub ended: Option<u64>,
}

/// For one value of the register, the times that bound all calls with this value.
// The field `value` is only printed in messages.
#[allow(dead_code)]
#[derive(Clone, Copy, Debug)]
struct Value {
    value: u64,
    /// Time at which the write of this value began; `None` if no call has written it.
    written: Option<u64>,
    /// The earliest end of a call that wrote or read this value, and the latest begin of such a call.
    first_end: u64,
    last_begin: u64,
}

/// Returns the first violation of linearizability, if any. The calls may be in any order.
pub fn fault(calls: &[Call]) -> Option<String> {
    let mut values: BTreeMap<u64, Value> = BTreeMap::new();
    let initial = Value { value: 0, written: Some(0), first_end: 0, last_begin: 0 };
    values.insert(0, initial);
    for call in calls {
        // Skip a failed read, which has returned no value.
        let Some(ended) = call.ended.or(call.writes.then_some(u64::MAX)) else { continue };
        let fresh = Value { value: call.value, written: None, first_end: u64::MAX, last_begin: 0 };
        let value = values.entry(call.value).or_insert(fresh);
        if call.writes {
            assert!(value.written.replace(call.begun).is_none(), "a value is written once");
        }
        value.first_end = value.first_end.min(ended);
        value.last_begin = value.last_begin.max(call.begun);
    }
    for call in calls.iter().filter(|call| !call.writes) {
        let Some(ended) = call.ended else { continue };
        match values[&call.value].written {
            None => return Some(format!("{call:?} saw a value that no call wrote")),
            Some(written) if ended < written => {
                return Some(format!("{call:?} saw what was written at {written}"));
            }
            Some(_) => {}
        }
    }
    // If not all calls of a value overlap, the register certainly held it from the first end to the last begin.
    let certain = |value: &&Value| value.first_end < value.last_begin;
    let mut held: Vec<&Value> = values.values().filter(certain).collect();
    held.sort_by_key(|value| value.first_end);
    for pair in held.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Some(format!("{:?} and {:?} at once", pair[0], pair[1]));
        }
    }
    // A value whose calls all overlap must have been held at some time. All of these calls must not lie within a time
    // in which the register certainly held another value.
    for value in values.values().filter(|value| !certain(value) && value.first_end != u64::MAX) {
        let within =
            |held: &&&Value| held.first_end < value.last_begin && value.first_end < held.last_begin;
        if let Some(held) = held.iter().find(within) {
            return Some(format!("{value:?} while it was {held:?}"));
        }
    }
    None
}

fn write(value: u64, begun: u64, ended: u64) -> Call {
    Call { writes: true, value, begun, ended: Some(ended) }
}

fn read(value: u64, begun: u64, ended: u64) -> Call {
    Call { writes: false, value, begun, ended: Some(ended) }
}

#[test]
fn a_linearizable_history_has_no_fault() {
    assert_eq!(
        fault(&[write(1, 10, 20), read(1, 30, 40), write(2, 50, 60), read(2, 70, 80)]),
        None
    );
    // Reads during a write may return the old value first and the new value later.
    assert_eq!(fault(&[write(1, 10, 50), read(0, 15, 20), read(1, 30, 40)]), None);
    // Two concurrent writes may take effect in either order.
    assert_eq!(fault(&[write(1, 10, 50), write(2, 10, 50), read(1, 60, 70)]), None);
    // A write without an answer may take effect late.
    let lost = Call { ended: None, ..write(1, 10, 0) };
    assert_eq!(fault(&[lost, read(0, 20, 30), read(1, 40, 50)]), None);
    assert_eq!(fault(&[lost, read(0, 20, 30)]), None);
}

#[test]
fn a_history_that_is_not_linearizable_has_a_fault() {
    let stale = [write(1, 10, 20), read(0, 30, 40)];
    let back = [write(1, 10, 50), read(1, 15, 20), read(0, 30, 40)];
    let lost = [write(1, 10, 20), write(2, 30, 40), read(1, 50, 60)];
    let early = [read(1, 1, 5), write(1, 10, 20)];
    let unwritten = [read(7, 1, 5)];
    let twice = [
        Call { ended: None, ..write(1, 10, 0) },
        read(1, 20, 30),
        write(2, 40, 50),
        read(2, 60, 70),
        read(1, 80, 90),
    ];
    for calls in [&stale[..], &back, &lost, &early, &unwritten, &twice] {
        assert!(fault(calls).is_some(), "{calls:?}");
    }
}

//! Records which acknowledged changes are not flushed, and whether a restart of the drive may have lost some of them.

use std::collections::HashMap;

use object::{Command, FlushScope, ObjectAddress};

/// The acknowledged changes of one initiator that are not flushed. An epoch is the time between two starts of the
/// drive; a later epoch has a higher number.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    epoch: u64,
    /// For each object, the number of its last change.
    changed: HashMap<ObjectAddress, u64>,
    /// The number of the last change of an object for which `changed` has no room. Only a flush of the whole drive
    /// covers it.
    others: Option<u64>,
    /// Number of changes that were noted so far.
    count: u64,
    /// True if a restart may have lost changes, and no flush has reported that yet.
    lost: bool,
}

/// Maximum number of objects whose changes are recorded one by one.
const OBJECTS: usize = 4096;

impl Unflushed {
    /// Notes a change that the drive acknowledged in this epoch (between two starts of the drive).
    pub(crate) fn note_change(&mut self, object: ObjectAddress, epoch: u64) {
        self.advance(epoch);
        if epoch < self.epoch {
            self.lost = true;
            return;
        }
        self.count += 1;
        if self.changed.len() < OBJECTS || self.changed.contains_key(&object) {
            self.changed.insert(object, self.count);
        } else {
            self.others = Some(self.count);
        }
    }

    /// Returns true if a restart may have lost changes. Reports each loss once.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Begins a flush. Returns the number of changes before it, to pass to [`Self::end_flush`].
    pub(crate) fn begin_flush(&self) -> u64 {
        self.count
    }

    /// Ends a flush that the drive has answered in this epoch. Returns false if a restart may have lost changes before
    /// the flush; each loss is reported once.
    pub(crate) fn end_flush(&mut self, command: &Command, begun: u64, epoch: u64) -> bool {
        self.advance(epoch);
        if self.take_lost() {
            return false;
        }
        if epoch == self.epoch {
            self.changed.retain(|&object, &mut last| last > begun || !covers(command, object));
            let covers_all = covers(command, ObjectAddress::new(u64::MAX, u64::MAX));
            self.others = self.others.filter(|&last| last > begun || !covers_all);
        }
        true
    }

    fn advance(&mut self, epoch: u64) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.lost |= !self.changed.is_empty() || self.others.is_some();
            self.changed.clear();
            self.others = None;
        }
    }
}

/// Returns true if the flush `command` makes all changes of `object` stable.
fn covers(command: &Command, object: ObjectAddress) -> bool {
    match *command {
        Command::FlushOsd { scope: FlushScope::RangeOrEverything } => true,
        Command::FlushPartition { partition, scope: FlushScope::RangeOrEverything } => {
            object.partition == partition
        }
        Command::Flush { object: flushed, scope: FlushScope::ContentOrList, .. } => {
            object == flushed
        }
        _ => false,
    }
}

/// Returns true for a command whose effect may be lost in a restart of the drive until it is flushed.
pub(crate) const fn leaves_unflushed(command: &Command, fua: bool) -> bool {
    match command {
        // The drive answers these only when their effect is stable.
        Command::FormatOsd { .. }
        | Command::SetKey(_)
        | Command::SetMasterKey { .. }
        | Command::RemovePartition { .. } => false,
        // These change no object.
        command if command.only_reads() => false,
        Command::PerformTaskManagementFunction { .. }
        | Command::Flush { .. }
        | Command::FlushCollection { .. }
        | Command::FlushPartition { .. }
        | Command::FlushOsd { .. } => false,
        _ => !fua,
    }
}

pub(crate) const fn is_flush(command: &Command) -> bool {
    matches!(
        command,
        Command::Flush { .. }
            | Command::FlushCollection { .. }
            | Command::FlushPartition { .. }
            | Command::FlushOsd { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);
    const OTHER: ObjectAddress = ObjectAddress::new(0x10000, 0x10002);
    const FLUSH: Command =
        Command::Flush { object: OBJECT, scope: FlushScope::ContentOrList, length: 0, start: 0 };
    const EVERYTHING: Command = Command::FlushOsd { scope: FlushScope::RangeOrEverything };

    #[test]
    fn one_flush_after_a_restart_reports_the_loss() {
        let mut changes = Unflushed::default();
        changes.note_change(OTHER, 1);
        let begun = changes.begin_flush();
        assert!(changes.end_flush(&FLUSH, begun, 1), "no restart");
        let begun = changes.begin_flush();
        assert!(!changes.end_flush(&FLUSH, begun, 2), "the flush of one object covers no other");
        let begun = changes.begin_flush();
        assert!(changes.end_flush(&EVERYTHING, begun, 2), "reported once");
    }

    #[test]
    fn flushed_changes_survive_a_restart() {
        for flush in [FLUSH, EVERYTHING] {
            let mut changes = Unflushed::default();
            changes.note_change(OBJECT, 1);
            let begun = changes.begin_flush();
            assert!(changes.end_flush(&flush, begun, 1));
            assert!(changes.end_flush(&flush, begun, 2), "{flush:?}");
        }
    }

    #[test]
    fn a_flush_of_less_than_everything_covers_no_change_of_data() {
        let list = FlushScope::ContentOrList;
        let partition = OBJECT.partition;
        let attributes = FlushScope::AttributesOnly;
        for flush in [
            Command::FlushOsd { scope: list },
            Command::FlushOsd { scope: attributes },
            Command::FlushPartition { partition, scope: list },
            Command::FlushPartition {
                partition: partition + 1,
                scope: FlushScope::RangeOrEverything,
            },
            Command::Flush { object: OBJECT, scope: attributes, length: 0, start: 0 },
        ] {
            let mut changes = Unflushed::default();
            changes.note_change(OBJECT, 1);
            assert!(changes.end_flush(&flush, changes.begin_flush(), 1), "no restart");
            assert!(!changes.end_flush(&EVERYTHING, changes.begin_flush(), 2), "{flush:?}");
        }
    }

    #[test]
    fn a_change_during_a_flush_belongs_to_the_next_one() {
        let mut changes = Unflushed::default();
        let begun = changes.begin_flush();
        changes.note_change(OBJECT, 1);
        assert!(changes.end_flush(&FLUSH, begun, 1));
        assert!(!changes.end_flush(&FLUSH, begun, 2));
    }

    #[test]
    fn a_change_acknowledged_before_the_restart_counts_as_lost_when_noted_late() {
        let mut changes = Unflushed::default();
        changes.note_change(OBJECT, 2);
        changes.note_change(OTHER, 1);
        assert!(changes.take_lost());
        assert!(!changes.take_lost());
    }

    #[test]
    fn more_objects_than_are_recorded_lose_no_loss() {
        let mut changes = Unflushed::default();
        let object = |id| ObjectAddress::new(0x10000, id);
        (0..=OBJECTS as u64).for_each(|id| changes.note_change(object(id), 1));
        assert_eq!(changes.changed.len(), OBJECTS);
        (0..OBJECTS as u64).for_each(|id| {
            let flush = Command::Flush {
                object: object(id),
                scope: FlushScope::ContentOrList,
                length: 0,
                start: 0,
            };
            assert!(changes.end_flush(&flush, changes.begin_flush(), 1));
        });
        assert!(changes.changed.is_empty());
        assert!(!changes.end_flush(&EVERYTHING, changes.begin_flush(), 2));
    }
}

//! The commands on members of collections that are at work now.
//!
//! This list is in memory only. A record of an active command that is not in the list is the record of a command that
//! was aborted, or interrupted by a restart.

use std::collections::BTreeMap;

use object::ObjectAddress;

/// How far a command on several objects is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Progress {
    /// Objects when the command began.
    pub(crate) total: u64,
    pub(crate) processed: u64,
    /// Members whose identifier was given to a new object since they joined the collection.
    pub(crate) newer: u64,
    /// Members that were removed since they joined the collection.
    pub(crate) missing: u64,
    /// The first identifier that was not looked at.
    pub(crate) next: u64,
    /// QUERY has removed the members that the collection of matches had before.
    pub(crate) is_emptied: bool,
}

/// One command at work. The number tells it from an earlier command on the same collection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WorkId {
    pub(crate) collection: ObjectAddress,
    number: u64,
}

#[derive(Debug)]
struct Work {
    number: u64,
    /// The object whose user objects the command looks at.
    source: ObjectAddress,
    is_background: bool,
    is_aborted: bool,
    progress: Progress,
}

/// All commands at work by the collection that tracks them.
#[derive(Debug, Default)]
pub(crate) struct Works {
    entries: BTreeMap<ObjectAddress, Work>,
    last: u64,
}

impl Works {
    pub(crate) fn is_active(&self, collection: ObjectAddress) -> bool {
        self.entries.contains_key(&collection)
    }

    /// Returns the number of commands that were answered and are still at work.
    pub(crate) fn background(&self) -> usize {
        self.entries.values().filter(|work| work.is_background).count()
    }

    /// Adds a command. The caller has checked that its collection has none.
    pub(crate) fn begin(
        &mut self,
        collection: ObjectAddress,
        source: ObjectAddress,
        is_background: bool,
        progress: Progress,
    ) -> WorkId {
        self.last += 1;
        let number = self.last;
        let work = Work { number, source, is_background, is_aborted: false, progress };
        self.entries.insert(collection, work);
        WorkId { collection, number }
    }

    pub(crate) fn end(&mut self, id: WorkId) {
        if self.find(id).is_some() {
            self.entries.remove(&id.collection);
        }
    }

    /// Makes the command of a collection end before its next step.
    pub(crate) fn abort(&mut self, collection: ObjectAddress) {
        if let Some(work) = self.entries.get_mut(&collection) {
            work.is_aborted = true;
        }
    }

    /// Makes all commands end that were answered and whose source or collection is `object`, or in `object` if it is
    /// a partition. Returns their collections.
    pub(crate) fn abort_background(&mut self, object: ObjectAddress) -> Vec<ObjectAddress> {
        let is_in = |one: ObjectAddress| {
            one == object || object.object == 0 && one.partition == object.partition
        };
        let mut aborted = Vec::new();
        for (collection, work) in &mut self.entries {
            if work.is_background && (is_in(*collection) || is_in(work.source)) {
                work.is_aborted = true;
                aborted.push(*collection);
            }
        }
        aborted
    }

    /// Returns true if the command must end before its next step, or is no longer in the list.
    pub(crate) fn is_aborted(&self, id: WorkId) -> bool {
        self.find(id).is_none_or(|work| work.is_aborted)
    }

    pub(crate) fn progress(&self, collection: ObjectAddress) -> Option<Progress> {
        self.entries.get(&collection).map(|work| work.progress)
    }

    pub(crate) fn note(&mut self, id: WorkId, progress: Progress) {
        if let Some(work) = self.entries.get_mut(&id.collection)
            && work.number == id.number
        {
            work.progress = progress;
        }
    }

    fn find(&self, id: WorkId) -> Option<&Work> {
        self.entries.get(&id.collection).filter(|work| work.number == id.number)
    }
}

//! Another node as it is known: what it told last, when it lived, and whether there are two of it.

use std::time::Instant;

use crate::node_record::{NodeRecord, NodeRecordStamp};

/// Processes of a node that are remembered beside the present one: a twin is the one before it, or with
/// more copies of one node one of a few before.
const MOST_FORMER: usize = 8;

/// What is known of it.
#[derive(Debug)]
pub(crate) struct PeerNode {
    /// What it told last.
    pub record: NodeRecord,
    /// When it gave its last sign of life, as far as we know.
    pub heard: Instant,
    /// When two processes with its number were last known to live, both.
    pub twins: Option<Instant>,
    /// The process that told.
    life: Life,
    /// Those that told before it, the last at the end.
    former: Vec<Life>,
}

/// A process of a node, between the first and the last of its signs of life that we know of.
#[derive(Clone, Copy, Debug)]
struct Life {
    instance: u64,
    first: Instant,
    last: Instant,
}

impl PeerNode {
    /// Its first record.
    pub fn new(record: NodeRecord, heard: Instant) -> Self {
        let life = Life { instance: record.instance, first: heard, last: heard };
        Self { record, heard, twins: None, life, former: Vec::new() }
    }

    /// Takes notice of a sign of life, if it is one.
    pub fn heed(&mut self, stamp: NodeRecordStamp, now: Instant) {
        let own = &mut self.record.stamp;
        if stamp.version == own.version && stamp.beat > own.beat {
            own.beat = stamp.beat;
            (self.heard, self.life.last) = (now, now);
        }
    }

    /// Takes a newer record. Another process is a restart, as long as the former ones are silent: each
    /// counts on from where the former ended. A former one that goes on counting while the other lives
    /// is a twin, and no restart explains it.
    pub fn renew(&mut self, record: NodeRecord, heard: Instant) {
        if record.instance != self.life.instance {
            let before = self.former.iter().position(|life| life.instance == record.instance);
            let before = before.map(|at| self.former.remove(at));
            let first = before.map_or(heard, |life| life.first);
            let life = Life { instance: record.instance, first, last: heard };
            if before.is_some() && life.overlaps(self.life) {
                self.twins = Some(life.last.min(self.life.last));
            }
            if self.former.len() == MOST_FORMER {
                self.former.remove(0);
            }
            self.former.push(self.life);
            self.life = life;
        }
        self.life.last = self.life.last.max(heard);
        self.heard = self.heard.max(heard);
        self.record = record;
    }

    /// Somebody else has found two of it, which both lived then.
    pub fn hear_of_twins(&mut self, at: Instant) {
        self.twins = self.twins.max(Some(at));
    }
}

impl Life {
    fn overlaps(&self, other: Self) -> bool {
        self.last > other.first && other.last > self.first
    }
}

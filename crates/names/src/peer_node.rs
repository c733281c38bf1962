//! Another node: its record, its signs of life, and the detection of two processes with its number.

use std::time::Instant;

use crate::node_record::{NodeRecord, NodeRecordStamp};

/// Maximum number of earlier processes of one node that are remembered. If two processes use one number (GLN), the
/// second one is usually the process before the present one. Even if several copies of the node were started, it is one
/// of the last few.
const MOST_FORMER: usize = 8;

#[derive(Debug)]
pub(crate) struct PeerNode {
    pub record: NodeRecord,
    /// The time of the last known sign of life.
    pub heard: Instant,
    /// The time when two processes with this GLN were last known to be alive together.
    pub twins: Option<Instant>,
    life: Life,
    /// Earlier processes of this node that have sent records, the most recent one last.
    former: Vec<Life>,
}

/// A process of a node, from its first to its last known sign of life.
#[derive(Clone, Copy, Debug)]
struct Life {
    instance: u64,
    first: Instant,
    last: Instant,
}

impl PeerNode {
    pub fn new(record: NodeRecord, heard: Instant) -> Self {
        let life = Life { instance: record.instance, first: heard, last: heard };
        Self { record, heard, twins: None, life, former: Vec::new() }
    }

    /// Handles a stamp of this node's record. A higher beat of the same version is a sign of life.
    pub fn heed(&mut self, stamp: NodeRecordStamp, now: Instant) {
        let own = &mut self.record.stamp;
        if stamp.version == own.version && stamp.beat > own.beat {
            own.beat = stamp.beat;
            (self.heard, self.life.last) = (now, now);
        }
    }

    /// Accepts a newer record. A record of another process normally means that the node was restarted: each process
    /// continues the counters of the one before and replaces it. But if a former process sends records again while its
    /// successor is alive, two processes use the node's number at the same time: no restart can explain that.
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

    /// Notes that another node has found two processes with this GLN, which were both alive at this time.
    pub fn hear_of_twins(&mut self, at: Instant) {
        self.twins = self.twins.max(Some(at));
    }
}

impl Life {
    fn overlaps(&self, other: Self) -> bool {
        self.last > other.first && other.last > self.first
    }
}

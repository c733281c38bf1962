//! The table of one node: its own record, and the newest record of each other node.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    gln::Gln,
    naming_problem::NamingProblem,
    node_record::{
        MOST_COUNT, NodeRecord, NodeRecordRefusal, NodeRecordStamp, NodeVolumeEntry, VolumeName,
    },
    peer_node::PeerNode,
    volume_location::{self, ListedNode, Unresolved, VolumeLocation},
};

const MOST_NODES: usize = 256;
/// Maximum number of volumes of all other nodes together. If every field has its maximum length, the table takes 22
/// MB.
const MOST_VOLUMES_IN_ALL: usize = 8192;
/// Another node may have a stamp of our own record with a higher version than ours, after our state was restored from
/// an older copy. A stamp that is ahead by more than this number is refused. The number allows for one change per
/// millisecond during seven weeks since the copy was made.
const MOST_FORGOTTEN: u64 = 1 << 32;
/// Highest version to which stamps from other nodes can raise our own record. The other half of the version numbers
/// remains for our own changes.
const MOST_BELIEVED: u64 = MOST_COUNT / 2;

#[derive(Debug)]
pub struct NamesTable {
    own: NodeRecord,
    /// True once our own record is complete. Before that, the record is not sent to other nodes, because they would
    /// conclude that this node has no volumes.
    has_told: bool,
    others: BTreeMap<Gln, PeerNode>,
    times: NodeExpiryTimes,
    /// Number of times since the start that another node had a newer version of our record than we had.
    outbids: u64,
    /// The time when each problem was last seen.
    troubles: BTreeMap<NamingProblem, Instant>,
}

#[derive(Clone, Copy, Debug)]
pub struct NodeExpiryTimes {
    /// The volumes of a node without signs of life are shown as stale after this time.
    pub stale_after: Duration,
    /// The record of a node is removed if the node gives no sign of life for this time.
    pub forget_after: Duration,
}

impl NamesTable {
    /// Makes a table with our own record only. The record is not sent to other nodes before [`Self::tell`] is
    /// called.
    #[must_use]
    pub fn new(own: NodeRecord, times: NodeExpiryTimes) -> Self {
        Self {
            own,
            has_told: false,
            others: BTreeMap::new(),
            times,
            outbids: 0,
            troubles: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn own(&self) -> &NodeRecord {
        &self.own
    }

    /// Sets the content of our record, which may be sent to other nodes after the first call. Returns true if the
    /// record has changed.
    pub fn tell(&mut self, addresses: Vec<String>, volumes: Vec<NodeVolumeEntry>) -> bool {
        let is_the_same = (&self.own.addresses, &self.own.volumes) == (&addresses, &volumes);
        if self.has_told && is_the_same {
            return false;
        }
        self.has_told = true;
        (self.own.addresses, self.own.volumes) = (addresses, volumes);
        self.outbid(self.own.stamp);
        true
    }

    /// Increases the counter in this node's own record that shows other nodes that it is alive.
    pub fn beat(&mut self) {
        self.own.stamp.beat += 1;
    }

    /// Makes this node's own record newer than the record with the stamp `other`.
    fn outbid(&mut self, other: NodeRecordStamp) {
        self.own.stamp.version = other.version + 1;
        self.own.stamp.beat = 0;
    }

    #[must_use]
    pub fn stamps(&self) -> Vec<NodeRecordStamp> {
        let own = self.has_told.then_some(self.own.stamp);
        own.into_iter().chain(self.others.values().map(|other| other.record.stamp)).collect()
    }

    /// Handles the stamps that another node has sent. A higher beat is a sign of life of the node that owns the
    /// record.
    pub fn heed(
        &mut self,
        stamps: &[NodeRecordStamp],
        now: Instant,
    ) -> Result<(), NodeRecordRefusal> {
        if stamps.len() > MOST_NODES + 1 {
            return Err(NodeRecordRefusal::TooMany { what: "nodes", most: MOST_NODES + 1 });
        }
        stamps.iter().try_for_each(NodeRecordStamp::check)?;
        let of_us = stamps.iter().filter(|stamp| stamp.gln == self.own.stamp.gln).max();
        if let Some(newer) = of_us.filter(|stamp| **stamp > self.own.stamp) {
            self.answer(*newer, now);
        }
        for stamp in stamps {
            if let Some(other) = self.others.get_mut(&stamp.gln) {
                other.heed(*stamp, now);
            }
        }
        Ok(())
    }

    /// Handles a newer stamp of our own record that another node has. The first time, the reason is that our state was
    /// restored from an older copy; our record then gets a higher version than the lost one. If it happens again, a
    /// second process uses our number (GLN). The version is bounded, so that no node can use up all numbers.
    fn answer(&mut self, newer: NodeRecordStamp, now: Instant) {
        if newer.version > MOST_BELIEVED.min(self.own.stamp.version + MOST_FORGOTTEN) {
            self.troubles.insert(NamingProblem::Forged, now);
            return;
        }
        self.outbid(newer);
        self.outbids += 1;
        if self.outbids > 1 {
            self.meet_twin(now);
        }
    }

    /// Records that another process uses the number (GLN) of this node.
    pub fn meet_twin(&mut self, now: Instant) {
        self.troubles.insert(NamingProblem::Twin, now);
    }

    /// Notes that another node has found two processes with this GLN, which were both alive `age` ago.
    pub fn hear_of_twins(&mut self, gln: Gln, age: Duration, now: Instant) {
        if let (Some(other), Some(at)) = (self.others.get_mut(&gln), now.checked_sub(age)) {
            other.hear_of_twins(at);
        }
    }

    pub fn troubles(&self, now: Instant) -> impl Iterator<Item = NamingProblem> {
        self.troubles
            .iter()
            .filter(move |(_, at)| self.lately(**at, now).is_some())
            .map(|(t, _)| *t)
    }

    /// Returns the time since the sign of life at `at`; `None` if that was so long ago that it does not count any more.
    fn lately(&self, at: Instant, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(at)).filter(|age| *age < self.times.stale_after)
    }

    /// Returns the records that are newer than `theirs`, our own first: as many as fit into `most_bytes` of
    /// JSON, but at least one. The remaining ones are sent with the next exchange.
    #[must_use]
    pub fn news_for(
        &self,
        theirs: &[NodeRecordStamp],
        most_bytes: usize,
        now: Instant,
    ) -> Vec<ListedNode<'_>> {
        let has = |stamp: NodeRecordStamp| {
            theirs.iter().any(|their| their.gln == stamp.gln && their.version >= stamp.version)
        };
        let untold = usize::from(!self.has_told);
        let mut bytes = 0;
        let fits = |one: &ListedNode<'_>| {
            let is_first = bytes == 0;
            bytes += serde_json::to_vec(one.record).map_or(0, |text| text.len());
            is_first || bytes <= most_bytes
        };
        self.nodes(now).skip(untold).filter(|one| !has(one.record.stamp)).take_while(fits).collect()
    }

    /// Accepts a record whose owner gave its last sign of life `age` ago, if the record is newer than the one in the
    /// table and there is room for it.
    pub fn take(
        &mut self,
        record: NodeRecord,
        age: Duration,
        now: Instant,
    ) -> Result<(), NodeRecordRefusal> {
        record.check()?;
        self.forget(now);
        let gln = record.stamp.gln;
        if gln == self.own.stamp.gln {
            return self.heed(&[record.stamp], now);
        }
        if age >= self.times.forget_after {
            return Ok(());
        }
        let before = self.others.get(&gln);
        if before.is_some_and(|other| other.record.stamp >= record.stamp) {
            return Ok(());
        }
        if let Err(full) = self.has_room(before, &record) {
            self.troubles.insert(NamingProblem::Full, now);
            return Err(full);
        }
        let heard = now.checked_sub(age).unwrap_or(now);
        match self.others.get_mut(&gln) {
            Some(other) => other.renew(record, heard),
            None => _ = self.others.insert(gln, PeerNode::new(record, heard)),
        }
        Ok(())
    }

    /// Checks that the table has room for this record if it replaces the former record of the same node.
    fn has_room(
        &self,
        before: Option<&PeerNode>,
        record: &NodeRecord,
    ) -> Result<(), NodeRecordRefusal> {
        if before.is_none() && self.others.len() >= MOST_NODES {
            return Err(NodeRecordRefusal::Full { what: "nodes", most: MOST_NODES });
        }
        let volumes = |record: &NodeRecord| record.volumes.len();
        let in_all: usize = self.others.values().map(|other| volumes(&other.record)).sum();
        let replaced = before.map_or(0, |other| volumes(&other.record));
        match in_all - replaced + volumes(record) > MOST_VOLUMES_IN_ALL {
            true => {
                Err(NodeRecordRefusal::Full { what: "volumes in all", most: MOST_VOLUMES_IN_ALL })
            }
            false => Ok(()),
        }
    }

    /// Removes nodes that have given no sign of life for too long.
    fn forget(&mut self, now: Instant) {
        let times = self.times;
        let age = |other: &PeerNode| now.saturating_duration_since(other.heard);
        self.others.retain(|_, other| age(other) < times.forget_after);
    }

    pub fn nodes(&self, now: Instant) -> impl Iterator<Item = ListedNode<'_>> {
        let met = self.troubles.get(&NamingProblem::Twin);
        let twins = met.and_then(|at| self.lately(*at, now));
        let own = ListedNode { record: &self.own, age: Duration::ZERO, is_stale: false, twins };
        let others = self.others.values().map(move |other| {
            let age = now.saturating_duration_since(other.heard);
            let twins = other.twins.and_then(|at| self.lately(at, now));
            ListedNode {
                record: &other.record,
                age,
                is_stale: age >= self.times.stale_after,
                twins,
            }
        });
        let times = self.times;
        std::iter::once(own).chain(others.filter(move |one| one.age < times.forget_after))
    }

    /// If another node announces one of our units (the same name, target and LUN) with a higher generation than ours,
    /// our copy of the volume is outdated. Returns that node's location of the volume and its generation.
    #[must_use]
    pub fn moved_on(&self, ours: &NodeVolumeEntry, now: Instant) -> Option<(u64, VolumeLocation)> {
        volume_location::newer(self.nodes(now).skip(1), ours)
    }

    /// Returns the location of a volume: the node with the highest generation. If several nodes have this generation,
    /// prefers one with signs of life, since the volume may have been started again at another node. If several nodes
    /// remain, or two processes have the node's number, the result is ambiguous.
    pub fn resolve(&self, volume: &VolumeName, now: Instant) -> Result<VolumeLocation, Unresolved> {
        volume_location::resolve(self.nodes(now), volume)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node_record::tests::record;

    pub(crate) const TIMES: NodeExpiryTimes = NodeExpiryTimes {
        stale_after: Duration::from_secs(30),
        forget_after: Duration::from_secs(3600),
    };

    pub(crate) fn table(number: u8, volumes: &[&str]) -> NamesTable {
        let NodeRecord { addresses, volumes, .. } = record(number, 1, volumes);
        let mut table =
            NamesTable::new(NodeRecord { addresses: Vec::new(), ..record(number, 1, &[]) }, TIMES);
        table.tell(addresses, volumes);
        table
    }

    fn name(text: &str) -> VolumeName {
        text.parse().unwrap()
    }

    fn node_of(table: &NamesTable, volume: &str, now: Instant) -> Result<String, Unresolved> {
        table.resolve(&name(volume), now).map(|place| place.node.to_string())
    }

    #[test]
    fn a_volume_is_where_its_node_says() {
        let (mut table, now) = (table(1, &["own"]), Instant::now());
        assert_eq!(node_of(&table, "a", now), Err(Unresolved::Unknown(name("a"))));
        table.take(record(2, 1, &["a"]), Duration::ZERO, now).unwrap();
        assert_eq!(node_of(&table, "a", now).unwrap(), "node-2");
        assert_eq!(node_of(&table, "own", now).unwrap(), "node-1");
        // The volume has moved. The order in which the records arrive does not matter.
        table.take(record(3, 1, &["a"]), Duration::ZERO, now).unwrap();
        let both = node_of(&table, "a", now).unwrap_err().to_string();
        assert!(both.contains("node-2") && both.contains("node-3"), "{both}");
        table.take(record(2, 2, &[]), Duration::ZERO, now).unwrap();
        assert_eq!(node_of(&table, "a", now).unwrap(), "node-3");
        // Older records are not accepted any more.
        table.take(record(2, 1, &["a"]), Duration::ZERO, now).unwrap();
        assert_eq!(node_of(&table, "a", now).unwrap(), "node-3");
    }

    /// After a move, the old node may still announce the volume: it may have been restored from a copy, or its newer
    /// record has not arrived yet.
    #[test]
    fn a_volume_is_at_its_last_destination_even_if_that_node_is_silent() {
        let (mut table, start) = (table(1, &[]), Instant::now());
        table.take(record(2, 1, &["a"]), Duration::ZERO, start).unwrap();
        let mut moved = record(3, 1, &["a"]);
        moved.volumes[0].generation = 1;
        table.take(moved, Duration::ZERO, start).unwrap();
        assert_eq!(node_of(&table, "a", start).unwrap(), "node-3");
        let later = start + Duration::from_secs(60);
        table.take(record(2, 2, &["a"]), Duration::ZERO, later).unwrap();
        assert_eq!(node_of(&table, "a", later).unwrap(), "node-3");
        let back = record(2, 3, &["a"])
            .volumes
            .into_iter()
            .map(|entry| NodeVolumeEntry { generation: 2, ..entry });
        let back = NodeRecord { volumes: back.collect(), ..record(2, 3, &[]) };
        table.take(back, Duration::ZERO, later).unwrap();
        assert_eq!(node_of(&table, "a", later).unwrap(), "node-2");
    }

    /// A node that was restored from a copy does not know that its volume has moved.
    #[test]
    fn a_node_with_an_older_copy_of_a_volume_learns_where_the_newer_one_is() {
        let (mut table, now) = (table(1, &["a"]), Instant::now());
        let ours = table.own().volumes[0].clone();
        let told = |number, generation| {
            let mut told = record(number, 1, &["a"]);
            let entry = &mut told.volumes[0];
            (entry.target, entry.generation) = (ours.target.clone(), generation);
            told
        };
        let newer = |table: &NamesTable, now| table.moved_on(&ours, now).map(|(g, p)| (g, p.node));
        let mut other = told(2, 5);
        other.volumes[0].target.push('x');
        for record in [other, told(3, 0)] {
            table.take(record, Duration::ZERO, now).unwrap();
            assert_eq!(newer(&table, now), None);
        }
        table.take(told(4, 1), Duration::ZERO, now).unwrap();
        table.take(told(5, 2), Duration::ZERO, now).unwrap();
        let right = Some((2, "node-5".parse().unwrap()));
        assert_eq!(newer(&table, now), right);
        assert_eq!(newer(&table, now + TIMES.stale_after * 2), right, "even if the node is silent");
        let raised = NodeVolumeEntry { generation: 3, ..ours.clone() };
        assert!(table.moved_on(&raised, now).is_none());
    }

    #[test]
    fn a_node_without_signs_of_life_becomes_stale_and_is_later_forgotten() {
        let (mut table, start) = (table(1, &[]), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        table.take(record(2, 1, &["a"]), Duration::ZERO, start).unwrap();
        let is_stale =
            |table: &NamesTable, seconds| table.nodes(at(seconds)).last().unwrap().is_stale;
        assert!(!is_stale(&table, 29) && is_stale(&table, 30));
        // A sign of life counts even if this node learns of it only through a third node.
        let stamp = NodeRecordStamp { beat: 5, ..record(2, 1, &[]).stamp };
        table.heed(&[stamp], at(40)).unwrap();
        assert!(!is_stale(&table, 69) && is_stale(&table, 70));
        // A repetition of the same sign of life must not count.
        table.heed(&[stamp], at(90)).unwrap();
        assert!(is_stale(&table, 90));
        assert_eq!(
            node_of(&table, "a", at(100)).unwrap(),
            "node-2",
            "a stale node is better than none"
        );
        table.take(record(3, 1, &["a"]), Duration::ZERO, at(100)).unwrap();
        assert_eq!(
            node_of(&table, "a", at(100)).unwrap(),
            "node-3",
            "a node with signs of life is preferred"
        );
        assert!(
            node_of(&table, "a", at(200)).is_err(),
            "between two stale nodes there is no choice"
        );
        assert_eq!(table.nodes(at(3641)).count(), 2);
        assert_eq!(table.nodes(at(8000)).count(), 1);
    }

    /// A regression test: two nodes kept sending each other the record of a dead node.
    #[test]
    fn a_record_that_is_sent_again_keeps_its_age() {
        let (mut a, mut b, start) = (table(1, &[]), table(2, &[]), Instant::now());
        a.take(record(3, 1, &["dead"]), Duration::ZERO, start).unwrap();
        let later = start + Duration::from_secs(3000);
        for ListedNode { record, age, .. } in a.news_for(&b.stamps(), 1 << 20, later) {
            b.take(record.clone(), age, later).unwrap();
        }
        assert!(node_of(&b, "dead", later).is_ok());
        let end = start + Duration::from_secs(3600);
        assert!(node_of(&b, "dead", end).is_err());
        for ListedNode { record, age, .. } in b.news_for(&[], 1 << 20, end) {
            a.take(record.clone(), age, end).unwrap();
        }
        assert!(node_of(&a, "dead", end).is_err());
    }

    #[test]
    fn a_node_restored_from_an_older_copy_continues_with_a_higher_version() {
        let (mut table, now) = (table(1, &["a"]), Instant::now());
        let mut newer = record(1, 9, &["gone"]);
        newer.stamp.beat = 3;
        table.take(newer.clone(), Duration::ZERO, now).unwrap();
        assert_eq!(table.own().stamp.version, 10);
        assert_eq!(node_of(&table, "a", now).unwrap(), "node-1");
        assert!(node_of(&table, "gone", now).is_err());
        table.heed(&[newer.stamp], now).unwrap();
        assert_eq!(table.own().stamp.version, 10);
    }

    #[test]
    fn a_restart_is_no_twin() {
        let (mut table, start) = (table(1, &[]), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let told = |instance, version| NodeRecord { instance, ..record(2, version, &["a"]) };
        let mut take = |instance, version, age, seconds| {
            let age = Duration::from_secs(age);
            table.take(told(instance, version), age, at(seconds)).unwrap();
            assert_eq!(node_of(&table, "a", at(seconds)).unwrap(), "node-2");
        };
        for (instance, version) in [(1, 1), (2, 2), (3, 3), (1, 1), (4, 4)] {
            take(instance, version, 0, version);
        }
        // This node was restored from an older copy. Another node still has the newer record from before, since it has
        // not received the restored record yet.
        take(5, 11, 0, 100);
        take(4, 50, 60, 101);
        take(5, 51, 0, 102);
    }

    /// A version that is far above the owner's is refused. Otherwise no numbers would be left for our own changes, or
    /// the node could not read the file of its record any more.
    #[test]
    fn a_forged_version_of_our_record_cannot_use_up_all_version_numbers() {
        let (mut table, now) = (table(1, &["a"]), Instant::now());
        let own = table.own().stamp;
        let of_us = |table: &mut NamesTable, version| {
            let before = table.own().stamp.version;
            table.heed(&[NodeRecordStamp { version, ..own }], now).unwrap();
            table.own().stamp.version - before
        };
        assert_eq!(of_us(&mut table, MOST_COUNT - 1), 0);
        assert_eq!(of_us(&mut table, own.version + MOST_FORGOTTEN + 1), 0);
        assert_eq!(table.troubles(now).collect::<Vec<_>>(), [NamingProblem::Forged]);
        assert!(table.heed(&[NodeRecordStamp { version: MOST_COUNT, ..own }], now).is_err());
        let mut steps = 0;
        loop {
            let next = table.own().stamp.version + MOST_FORGOTTEN;
            if of_us(&mut table, next) == 0 {
                break;
            }
            steps += 1;
        }
        assert!(steps < 1 << 20 && table.own().stamp.version <= MOST_BELIEVED + 1);
        assert!(table.tell(Vec::new(), Vec::new()), "our own changes can still be counted");
        table.own().check().unwrap();
    }

    #[test]
    fn the_number_of_known_records_and_volumes_is_bounded() {
        let (mut table, now) = (table(0, &[]), Instant::now());
        let node = |number: u16, volumes: usize| {
            let mut node = record(1, 1, &[]);
            let [high, low] = number.to_be_bytes();
            let mut bytes = [0xee; 16];
            (bytes[0], bytes[1]) = (high, low);
            node.stamp.gln = Gln::new(bytes);
            let entry = record(1, 1, &["a"]).volumes[0].clone();
            let named = |at| NodeVolumeEntry { volume: name(&format!("v{at}")), ..entry.clone() };
            node.volumes = (0..volumes).map(named).collect();
            node
        };
        for number in 0..MOST_NODES as u16 {
            table.take(node(number, 0), Duration::ZERO, now).unwrap();
        }
        assert!(table.take(node(999, 0), Duration::ZERO, now).is_err());
        let large = MOST_VOLUMES_IN_ALL / crate::MOST_VOLUMES;
        for number in 0..=large as u16 {
            let mut node = node(number, crate::MOST_VOLUMES);
            node.stamp.version = 2;
            let taken = table.take(node, Duration::ZERO, now);
            assert_eq!(taken.is_ok(), usize::from(number) < large);
        }
        let later = now + TIMES.forget_after;
        table
            .take(node(999, 0), Duration::ZERO, later)
            .expect("there is room, since other nodes are forgotten");
        assert!(table.heed(&vec![table.own().stamp; MOST_NODES + 2], now).is_err());
    }

    #[test]
    fn new_records_are_sent_in_portions() {
        let (mut a, mut b, now) = (table(1, &["x"]), table(2, &[]), Instant::now());
        for number in 3..40 {
            a.take(record(number, 1, &["a", "b"]), Duration::ZERO, now).unwrap();
        }
        let mut rounds = 0;
        while b.stamps().len() < 39 {
            let news = a.news_for(&b.stamps(), 1000, now);
            assert!(!news.is_empty() && news.len() < 10);
            for ListedNode { record, age, .. } in news {
                b.take(record.clone(), age, now).unwrap();
            }
            rounds += 1;
        }
        assert!(rounds > 4 && a.news_for(&b.stamps(), 1000, now).is_empty());
    }
}

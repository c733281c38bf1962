//! A model of the volume: which contents each sector may have after the writes, acknowledgments and flushes so far.
//!
//! Every sector carries its number and a version. Versions grow with the order in which writes are
//! sent, over all sectors, so that each version of a sector names one write.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Result, ensure};
use rawclient::ClientScsiCommand;
use rawclient::stamp::{self, BlockStampState};

use crate::powercut::Chance;

/// Sectors of 512 bytes that the load writes: 2 MiB. A log of 8 MiB holds more, so that writes also overwrite
/// blocks that are still dirty.
pub const SECTORS: u64 = 4096;
pub const SECTOR: u32 = 512;

/// Sectors of the longest write: 16 KiB, four slots of the cache.
pub const LONGEST: u64 = 32;

/// The promise of a mode: which writes the volume holds after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurabilityPromise {
    /// Every acknowledged write is on the volume.
    Acknowledged,
    /// Every flushed write is on the volume. The other writes on the volume are a consistent prefix: if the volume
    /// holds a write, it also holds every write that was acknowledged before that one was sent.
    FlushedPrefix,
}

/// Records for each sector which versions of its data a volume may return after a failure.
pub struct Model {
    sectors: Vec<Sector>,
    under_way: BTreeMap<u64, ModelWriteRange>,
    /// Acknowledged writes that no flush has made stable yet, oldest acknowledgment first.
    unflushed: VecDeque<(u64, ModelWriteRange)>,
    flushes: BTreeMap<u64, u64>,
    /// A logical clock that advances with every event. The model uses it to decide if a write was sent before or after
    /// another one was acknowledged.
    clock: u64,
    version: u64,
    pub acknowledged: u64,
    pub verified: u64,
}

#[derive(Clone, Copy, Debug)]
struct ModelWriteRange {
    first: u64,
    count: u64,
    /// True if the write has FUA, so that it is stable when it is acknowledged.
    fua: bool,
}

#[derive(Default)]
struct Sector {
    /// The oldest version that the sector may hold. If a read finds an older version, data was lost.
    floor: u64,
    /// Writes to this sector in the order of their versions, without those that were lost in an
    /// earlier failure.
    writes: Vec<Write>,
    is_under_way: bool,
}

#[derive(Clone, Copy)]
struct Write {
    version: u64,
    sent: u64,
    acknowledged: Option<u64>,
}

/// This bit marks the number of a flush. The number of a write is its version, which never has the
/// bit.
const FLUSH: u64 = 1 << 63;

impl Model {
    pub fn new() -> Model {
        Model {
            sectors: (0..SECTORS).map(|_| Sector::default()).collect(),
            under_way: BTreeMap::new(),
            unflushed: VecDeque::new(),
            flushes: BTreeMap::new(),
            clock: 0,
            version: 0,
            acknowledged: 0,
            verified: 0,
        }
    }

    /// Draws a write to sectors that no unanswered write covers. Puts its data into `payload`, and returns the request
    /// and its number.
    pub fn write(&mut self, chance: &mut Chance, payload: &mut [u8]) -> (ClientScsiCommand, u64) {
        let range = loop {
            let count = [1, 8, 8, 1 + chance.below(LONGEST)][chance.below(4) as usize];
            // 30 % of the writes go to a small area, so that its sectors are overwritten again and again.
            let area = if chance.percent(30) { SECTORS / 32 } else { SECTORS };
            let fua = chance.percent(5);
            let range = ModelWriteRange { first: chance.below(area - count + 1), count, fua };
            if self.of(range).iter().all(|sector| !sector.is_under_way) {
                break range;
            }
        };
        self.version += 1;
        self.clock += 1;
        let (version, sent) = (self.version, self.clock);
        for (at, sector) in self.of(range).iter_mut().enumerate() {
            sector.is_under_way = true;
            sector.writes.push(Write { version, sent, acknowledged: None });
            let bytes = &mut payload[at * SECTOR as usize..][..SECTOR as usize];
            stamp::fill(bytes, range.first + at as u64, version);
        }
        self.under_way.insert(version, range);
        let (first, count) = (range.first as u32, range.count as u16);
        let request = ClientScsiCommand::write(first, count, SECTOR, range.fua);
        (request, version)
    }

    /// Creates a flush command. Returns the command and its number in the model.
    pub fn flush(&mut self) -> (ClientScsiCommand, u64) {
        self.clock += 1;
        let number = FLUSH | self.clock;
        self.flushes.insert(number, self.clock);
        (ClientScsiCommand::flush(), number)
    }

    /// Records that a write or flush ended with status GOOD.
    pub fn good(&mut self, number: u64, promise: DurabilityPromise) {
        self.clock += 1;
        let now = self.clock;
        if let Some(sent) = self.flushes.remove(&number) {
            self.flushed(sent);
            return;
        }
        let Some(range) = self.under_way.remove(&number) else { return };
        self.acknowledged += 1;
        for sector in self.of(range) {
            sector.is_under_way = false;
            let write = sector.writes.iter_mut().rfind(|write| write.version == number);
            write.expect("it was sent").acknowledged = Some(now);
            if promise == DurabilityPromise::Acknowledged || range.fua {
                sector.floor = number;
            }
        }
        if promise != DurabilityPromise::Acknowledged {
            self.unflushed.push_back((number, range));
        }
    }

    /// Records that a command was not carried out: if a later read finds the data of such a write, that is a fault.
    pub fn not_done(&mut self, number: u64) {
        self.flushes.remove(&number);
        if let Some(range) = self.under_way.remove(&number) {
            for sector in self.of(range) {
                sector.is_under_way = false;
                sector.writes.retain(|write| write.version != number);
            }
        }
    }

    /// Records that a command ended with an error: a later read may or may not find the write's
    /// data.
    pub fn refused(&mut self, number: u64) {
        self.flushes.remove(&number);
        if let Some(range) = self.under_way.remove(&number) {
            self.of(range).iter_mut().for_each(|sector| sector.is_under_way = false);
        }
    }

    /// Records that the session has ended or the power has failed. Every unanswered write may or may not have been
    /// carried out.
    pub fn lost_contact(&mut self) {
        let numbers: Vec<u64> = self.under_way.keys().chain(self.flushes.keys()).copied().collect();
        numbers.into_iter().for_each(|number| self.refused(number));
    }

    /// Checks the content of a whole volume against the promises. This content then becomes the model's state: data
    /// that was read once may not be lost in a later failure.
    pub fn verify(&mut self, found: &[BlockStampState]) -> Result<()> {
        let found = self.versions(found)?;
        let lost = |(sector, found): &(usize, &u64)| **found < self.sectors[*sector].floor;
        let lost: Vec<_> = found.iter().enumerate().filter(lost).collect();
        if let Some((sector, version)) = lost.first() {
            let floor = self.sectors[*sector].floor;
            anyhow::bail!(
                "{} of {SECTORS} sectors have lost what was promised: sector {sector} holds version \
                 {version}, promised was {floor}",
                lost.len()
            );
        }
        self.check_prefix(&found)?;
        self.clock += 1;
        let now = self.clock;
        for (sector, version) in self.sectors.iter_mut().zip(&found) {
            sector.floor = *version;
            sector.writes.retain(|write| write.version <= *version);
            for write in &mut sector.writes {
                write.acknowledged.get_or_insert(now);
            }
        }
        self.unflushed.clear();
        self.verified += SECTORS;
        Ok(())
    }

    /// Checks only that the content is a consistent prefix of all writes. Use it for a far volume that is read without
    /// its gateway: the newest acknowledged writes may still be in the gateway's log.
    pub fn verify_behind(&self, found: &[BlockStampState]) -> Result<()> {
        self.check_prefix(&self.versions(found)?)
    }

    /// Returns the version in each sector. Fails if a sector holds a version that was never sent there, or was lost
    /// before.
    fn versions(&self, found: &[BlockStampState]) -> Result<Vec<u64>> {
        ensure!(found.len() == SECTORS as usize, "{} sectors were read", found.len());
        let version = |(sector, content): (usize, &BlockStampState)| {
            let version = match content {
                BlockStampState::Empty => 0,
                BlockStampState::Version(version) => *version,
                BlockStampState::Damaged => anyhow::bail!("sector {sector} is torn or not its own"),
            };
            let sent = self.sectors[sector].writes.iter().any(|write| write.version == version);
            ensure!(
                version == 0 || sent,
                "sector {sector} holds version {version}, which was never sent or was lost before"
            );
            Ok(version)
        };
        found.iter().enumerate().map(version).collect()
    }

    /// Checks that the content is a consistent prefix: if the volume holds a write, it must also hold every write that
    /// was acknowledged before the first one was sent.
    fn check_prefix(&self, found: &[u64]) -> Result<()> {
        let there = |(sector, version): (&Sector, &u64)| {
            let write = sector.writes.iter().rfind(|write| write.version == *version)?;
            Some((write.sent, write.version))
        };
        let newest = self.sectors.iter().zip(found).filter_map(there).max();
        let Some((sent, version)) = newest else { return Ok(()) };
        for (at, (sector, found)) in self.sectors.iter().zip(found).enumerate() {
            let newer = sector.writes.iter().filter(|write| write.version > *found);
            let gap =
                newer.into_iter().find(|write| write.acknowledged.is_some_and(|at| at < sent));
            if let Some(gap) = gap {
                anyhow::bail!(
                    "no consistent prefix: version {version} is there, and sector {at} holds {found}, \
                     although {} was acknowledged before {version} was sent",
                    gap.version
                );
            }
        }
        Ok(())
    }

    /// A flush that was sent at time `sent` has succeeded: every write that was acknowledged before that time is stable
    /// now. Raises the floors (oldest permitted versions) of all sectors accordingly.
    fn flushed(&mut self, sent: u64) {
        while let Some((version, range)) = self.unflushed.front().copied() {
            let first = &self.sectors[range.first as usize];
            let write = first.writes.iter().rfind(|write| write.version == version);
            if write.is_none_or(|write| write.acknowledged.is_none_or(|at| at > sent)) {
                break;
            }
            self.unflushed.pop_front();
            for sector in self.of(range) {
                sector.floor = sector.floor.max(version);
            }
        }
    }

    fn of(&mut self, range: ModelWriteRange) -> &mut [Sector] {
        &mut self.sectors[range.first as usize..(range.first + range.count) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the content of a volume that holds, in each sector, its newest version of at most `upto`.
    fn volume(model: &Model, upto: u64) -> Vec<BlockStampState> {
        let content = |sector: &Sector| {
            let newest = sector.writes.iter().rfind(|write| write.version <= upto);
            newest.map_or(BlockStampState::Empty, |write| BlockStampState::Version(write.version))
        };
        model.sectors.iter().map(content).collect()
    }

    /// Returns a model with `count` writes, sent one after the other; the last is not acknowledged.
    fn written(count: u64, promise: DurabilityPromise) -> Model {
        let (mut model, mut chance) = (Model::new(), Chance::new(1));
        let mut payload = vec![0; (LONGEST * u64::from(SECTOR)) as usize];
        for _ in 1..count {
            let (_, number) = model.write(&mut chance, &mut payload);
            model.good(number, promise);
        }
        model.write(&mut chance, &mut payload);
        model
    }

    #[test]
    fn a_lost_acknowledged_write_is_found_and_an_unacknowledged_one_may_be_lost() {
        for upto in [20, 19] {
            let mut model = written(20, DurabilityPromise::Acknowledged);
            let found = volume(&model, upto);
            model.lost_contact();
            model.verify(&found).unwrap();
        }
        let mut model = written(20, DurabilityPromise::Acknowledged);
        let found = volume(&model, 18);
        let error = model.verify(&found).unwrap_err().to_string();
        assert!(error.contains("have lost what was promised"), "{error}");
    }

    #[test]
    fn flushed_writes_must_exist_and_the_rest_must_be_a_prefix() {
        let (mut model, mut chance) = (Model::new(), Chance::new(2));
        let mut payload = vec![0; (LONGEST * u64::from(SECTOR)) as usize];
        let promise = DurabilityPromise::FlushedPrefix;
        for number in 1..=30 {
            let (_, write) = model.write(&mut chance, &mut payload);
            model.good(write, promise);
            if number == 10 {
                let (_, flush) = model.flush();
                model.good(flush, promise);
            }
        }
        let flushed: Vec<_> = [30, 25, 10].map(|upto| volume(&model, upto)).into();
        for found in &flushed {
            model.verify_behind(found).unwrap();
        }
        let early = volume(&model, 9);
        assert!(model.verify(&early).unwrap_err().to_string().contains("promised"));
        let mut mixed = volume(&model, 12);
        for (content, newest) in mixed.iter_mut().zip(volume(&model, 30)) {
            if newest == BlockStampState::Version(30) {
                *content = newest;
            }
        }
        let error = model.verify(&mixed).unwrap_err().to_string();
        assert!(error.contains("no consistent prefix"), "{error}");
    }

    #[test]
    fn a_write_that_was_answered_with_busy_must_not_be_there() {
        let (mut model, mut chance) =
            (written(20, DurabilityPromise::Acknowledged), Chance::new(3));
        let mut payload = vec![0; (LONGEST * u64::from(SECTOR)) as usize];
        let (_, number) = model.write(&mut chance, &mut payload);
        let done = volume(&model, number);
        model.not_done(number);
        let not_done = volume(&model, number);
        assert!(model.verify(&done).unwrap_err().to_string().contains("never sent"));
        model.lost_contact();
        model.verify(&not_done).unwrap();
    }

    #[test]
    fn a_write_that_a_power_cut_lost_must_not_reappear() {
        let mut model = written(20, DurabilityPromise::FlushedPrefix);
        let (early, late) = (volume(&model, 15), volume(&model, 20));
        model.lost_contact();
        model.verify(&early).unwrap();
        assert!(model.verify(&late).unwrap_err().to_string().contains("never sent or was lost"));
    }
}

//! A model of the time that a disk needs: arms that serve one access at a time, and a write-back cache that the arms
//! empty. The model has no clock and no data: the caller passes the time, and each method returns the time at which
//! the call is complete.
//!
//! ```text
//! write ──room?──▶ dirty runs ──elevator──▶ an arm: positioning, platter ──▶ room
//! read  ──hit?───▶ bus
//!       ──miss──▶ an arm ──▶ bus          a sequential reader: the idle arm reads ahead
//! ```
//!
//! The model returns the time of a waiting call at once, and thereby settles the work of the arms up to that time.
//! Calls that arrive in the meantime are served after it: the disk serves calls in the order of arrival, except that
//! it writes dirty runs in the order of their addresses.

use std::{collections::BTreeMap, time::Duration};

use super::Profile;

/// The simulated state of a disk. Times are measured from its creation and never decrease.
#[derive(Debug)]
pub(super) struct Mechanics {
    profile: Profile,
    arms: Vec<Arm>,
    /// The runs that wait for an arm: start and end in bytes. Two runs touch only if together they would exceed
    /// [`LONGEST_RUN`].
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
    /// The runs on their way to the platter: the time of their arrival, and their bytes.
    flying: Vec<(Duration, u64)>,
    /// The data in the cache that was read or written last; the newest is last.
    segments: Vec<DiskCacheSegment>,
    /// The time at which the last write was admitted to the cache. Writes are admitted in the order of their arrival,
    /// so the next write is admitted no earlier.
    admitted: Duration,
    dice: u64,
}

#[derive(Clone, Copy, Debug)]
struct Arm {
    /// The time at which the arm becomes idle.
    free: Duration,
    /// The position of the arm at the time `free`: the byte after the last one that it accessed.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
struct DiskCacheSegment {
    start: u64,
    end: u64,
    /// Byte address at which the last read from this cache segment ended.
    read: u64,
    /// True if a reader reads sequentially through this segment, so that an idle arm reads ahead for it.
    sequential: bool,
}

/// Maximum bytes that one access writes, so that it holds an arm no longer than one track takes. The following run is
/// contiguous and needs no positioning.
const LONGEST_RUN: u64 = 256 << 10;

impl Mechanics {
    pub(super) fn new(profile: Profile) -> Self {
        let arm = Arm { free: Duration::ZERO, at: 0 };
        Self {
            arms: vec![arm; profile.arms.max(1)],
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            flying: Vec::new(),
            segments: Vec::new(),
            admitted: Duration::ZERO,
            dice: profile.seed,
            profile,
        }
    }

    /// Returns the time at which a read of the bytes `start..end` that arrives at `now` is answered.
    pub(super) fn read(&mut self, now: Duration, (start, end): (u64, u64)) -> Duration {
        self.advance(now);
        let hit = self.profile.read_hit(end - start);
        if self.is_dirty(start, end) {
            return now + hit;
        }
        let found = self.segments.iter().rposition(|it| it.start <= start && start <= it.end);
        // A read that starts where the last read of a segment ended makes the segment sequential.
        let Some(index) = found.filter(|_| self.profile.cache > 0) else {
            return self.miss(now, start, end) + hit;
        };
        let mut segment = self.segments.remove(index);
        segment.sequential |= start == segment.read;
        let ready = if end <= segment.end {
            now
        } else {
            let arm = self.arm_at(segment.end);
            let ready = self.access(now, arm, segment.end, end, self.profile.read_position);
            segment.end = end;
            ready
        };
        segment.read = end;
        segment.start = segment.start.max(segment.end.saturating_sub(self.profile.segment()));
        self.segments.push(segment);
        ready + hit
    }

    /// Returns the time at which a write of the bytes `start..end` that arrives at `now` is acknowledged.
    pub(super) fn write(
        &mut self,
        now: Duration,
        (start, end): (u64, u64),
        stable: bool,
    ) -> Duration {
        self.advance(now);
        let hit = self.profile.write_hit(end - start);
        if self.profile.cache == 0 || (stable && !self.profile.cache_protected) {
            let arm = self.first_free();
            let position = self.profile.write_position;
            return self.access(now + hit, arm, start, end, position);
        }
        if self.is_dirty(start, end) {
            return now + hit;
        }
        let taken = self.room(now.max(self.admitted), start, end);
        self.admitted = taken;
        self.put(start, end);
        self.advance(taken);
        taken + hit
    }

    /// Returns the time at which all acknowledged data is stable.
    pub(super) fn flush(&mut self, now: Duration) -> Duration {
        self.advance(now);
        let command = now + self.profile.write_command;
        if self.profile.cache_protected {
            return command;
        }
        while !self.dirty.is_empty() {
            let arm = self.first_free();
            self.write_a_run(arm, now.max(self.arms[arm].free));
        }
        self.flying.iter().map(|(done, _)| *done).fold(command, Duration::max)
    }

    /// Returns the time at which a command without data transfer is answered.
    pub(super) fn discard(&mut self, now: Duration) -> Duration {
        self.advance(now);
        now + self.profile.write_command
    }

    /// Starts all queued accesses that the arms can begin until `now`.
    fn advance(&mut self, now: Duration) {
        loop {
            let arm = self.first_free();
            let free = self.arms[arm].free;
            if free > now || self.dirty.is_empty() {
                break;
            }
            // The arm begins as soon as it is idle and the run is in the cache. Each write calls `advance`, so a run
            // that is dirty now was there when the arm became idle, or has come with the last admitted write.
            self.write_a_run(arm, free.max(self.admitted.min(now)));
        }
        self.flying.retain(|(done, _)| *done > now);
        if self.dirty.is_empty() {
            self.read_ahead(now);
        }
    }

    /// Lets idle arms read ahead for sequential readers.
    fn read_ahead(&mut self, now: Duration) {
        let (limit, rate) = (self.profile.segment(), self.profile.media_rate);
        for segment in self.segments.iter_mut().filter(|it| it.sequential) {
            let behind = |arm: &&mut Arm| arm.at == segment.end && arm.free < now;
            let Some(arm) = self.arms.iter_mut().find(behind) else { continue };
            let idle = now - arm.free;
            let passed = match rate {
                0 => limit,
                rate => (idle.as_secs_f64() * rate as f64) as u64,
            };
            let wanted = segment.read.saturating_add(limit).saturating_sub(segment.end);
            segment.end += passed.min(wanted);
            (arm.at, arm.free) = (segment.end, now);
        }
    }

    /// Returns the time at which an arm has read `start..end`, which is not in the cache.
    fn miss(&mut self, now: Duration, start: u64, end: u64) -> Duration {
        let arm = self.first_free();
        let ready = self.access(now, arm, start, end, self.profile.read_position);
        self.keep(DiskCacheSegment { start, end, read: end, sequential: false });
        ready
    }

    /// Moves an arm to a place on the disk and transfers the data. Returns the time at which that ends.
    fn access(
        &mut self,
        now: Duration,
        arm: usize,
        start: u64,
        end: u64,
        position: Duration,
    ) -> Duration {
        let position =
            if self.arms[arm].at == start { Duration::ZERO } else { self.varied(position) };
        let transfer = self.profile.transfer(end - start);
        let arm = &mut self.arms[arm];
        arm.free = arm.free.max(now) + position + transfer;
        arm.at = end;
        arm.free
    }

    /// Lets an arm write the next dirty run upwards of its position, or else the lowest one.
    fn write_a_run(&mut self, arm: usize, now: Duration) {
        let at = self.arms[arm].at;
        let next = self.dirty.range(at..).next().or_else(|| self.dirty.iter().next());
        let Some((&start, &end)) = next else { return };
        self.dirty.remove(&start);
        self.dirty_bytes -= end - start;
        let done = self.access(now, arm, start, end, self.profile.write_position);
        self.flying.push((done, end - start));
        self.keep(DiskCacheSegment { start, end, read: end, sequential: false });
    }

    /// Returns the time at which the cache has room for a write that has waited since `now`. The arms empty the cache
    /// in the meantime.
    fn room(&mut self, mut now: Duration, start: u64, end: u64) -> Duration {
        let bytes = end - start;
        loop {
            self.flying.retain(|(done, _)| *done > now);
            let held: u64 = self.dirty_bytes + self.flying.iter().map(|it| it.1).sum::<u64>();
            let runs = self.dirty.len() + self.flying.len();
            let joins = self.run_before(start, end).is_some();
            // Admit a write that is larger than the cache once the cache is empty.
            let fits = held == 0 || held + bytes <= self.profile.cache;
            if fits && (joins || runs < self.profile.runs) {
                return now;
            }
            // Let idle arms begin to write dirty runs. The cache is not empty, so at least one arm will finish a run
            // and make room.
            while !self.dirty.is_empty() {
                let arm = self.first_free();
                if self.arms[arm].free > now {
                    break;
                }
                self.write_a_run(arm, now);
            }
            let done = self.flying.iter().map(|it| it.0);
            let free = self.arms.iter().map(|it| it.free).filter(|free| *free > now);
            let Some(next) = done.chain(free).min() else { return now };
            now = next;
        }
    }

    /// Adds the range `start .. end` to the ranges of cached writes, or extends the adjacent range before it.
    fn put(&mut self, start: u64, end: u64) {
        match self.run_before(start, end) {
            Some((first, before)) => {
                self.dirty_bytes += end.max(before) - before;
                self.dirty.insert(first, end.max(before));
            }
            None => {
                let former = self.dirty.insert(start, end).unwrap_or(start);
                self.dirty_bytes += end - start;
                self.dirty_bytes -= former - start;
            }
        }
    }

    /// Returns the dirty run that ends at or after `start` and can be extended to `end` within the maximum length.
    fn run_before(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (&first, &before) = self.dirty.range(..start).next_back()?;
        (before >= start && end.max(before) - first <= LONGEST_RUN).then_some((first, before))
    }

    fn is_dirty(&self, start: u64, end: u64) -> bool {
        self.dirty.range(..=start).next_back().is_some_and(|(_, &to)| to >= end)
    }

    fn keep(&mut self, segment: DiskCacheSegment) {
        if self.segments.len() >= Profile::SEGMENTS {
            self.segments.remove(0);
        }
        self.segments.push(segment);
    }

    fn first_free(&self) -> usize {
        let arms = self.arms.iter().enumerate();
        arms.min_by_key(|(_, arm)| arm.free).expect("there is one").0
    }

    /// Returns the arm whose position is `at`, or else the first that becomes idle.
    fn arm_at(&self, at: u64) -> usize {
        self.arms.iter().position(|arm| arm.at == at).unwrap_or_else(|| self.first_free())
    }

    /// Varies the time of a positioning at random (splitmix64).
    fn varied(&mut self, position: Duration) -> Duration {
        if self.profile.spread == 0.0 {
            return position;
        }
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let even = (z >> 11) as f64 / (1_u64 << 53) as f64;
        position.mul_f64((1.0 + self.profile.spread * (2.0 * even - 1.0)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const RECORD: u64 = 8 * KIB;
    /// Outsourcing paper: the time that the protocol adds to each access.
    const PROTOCOL: Duration = Duration::from_micros(408);

    /// Simulates one thread that reads or writes records of 8 KiB in an area of four times the cache, with
    /// `round_trip` between host and disk. Returns the mean time between two answers in milliseconds, after the cache
    /// has filled.
    fn measure(name: &str, access: &str, round_trip: Duration) -> f64 {
        measure_of(Profile::named(name).expect("known"), access, round_trip)
    }

    fn measure_of(profile: Profile, access: &str, round_trip: Duration) -> f64 {
        let records = (4 * profile.cache / RECORD).max(1024);
        let mut disk = Mechanics::new(profile);
        let (is_write, is_random) = (access.ends_with("write"), access.starts_with("random"));
        let mut x = 1_u64;
        // Access twice as many records as fill the cache. The first half fills the cache and is not measured.
        let count = 2 * records;
        let (mut now, mut begun) = (Duration::ZERO, Duration::ZERO);
        for index in 0..count {
            if index == count / 2 {
                begun = now;
            }
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let record = if is_random { (x >> 20) % records } else { index % records };
            let at = (record * RECORD, (record + 1) * RECORD);
            let came = now + round_trip / 2;
            let done = if is_write { disk.write(came, at, false) } else { disk.read(came, at) };
            let overhead = if round_trip.is_zero() { Duration::ZERO } else { PROTOCOL };
            now = done + round_trip / 2 + overhead;
        }
        (now - begun).as_secs_f64() * 1e3 / (count - count / 2) as f64
    }

    /// Row "local" of Table 1 of the outsourcing paper, for each of its disks.
    #[test]
    fn access_times_of_the_disks_match_table_1() {
        let accesses = ["random read", "random write", "sequential read", "sequential write"];
        for (name, paper) in [
            ("ibm-dnes", [10.38, 11.44, 0.57, 0.40]),
            ("ibm-ddys", [7.50, 5.10, 0.24, 0.27]),
            ("array", [7.89, 2.37, 0.41, 0.47]),
        ] {
            for (access, paper) in accesses.into_iter().zip(paper) {
                let ours = measure(name, access, Duration::ZERO);
                println!("{name} {access}: {ours:.3} ms, the paper {paper}");
                assert!((ours / paper - 1.0).abs() < 0.1, "{name} {access}: {ours}, not {paper}");
            }
        }
        assert_eq!(measure("null", "random write", Duration::ZERO), 0.0);
    }

    /// A cache that a short run can fill, a quarter of the working set as in Table 1. (A cache of 16 records would be
    /// too small: while eight arms are busy it has no room for new writes, even sequential ones.)
    #[test]
    fn an_array_with_a_smaller_cache_matches_table_1() {
        let with = |cache: u64, access: &str| {
            let profile = Profile { cache, ..Profile::named("array").expect("known") };
            measure_of(profile, access, Duration::ZERO)
        };
        let (random, sequential) =
            (with(4096 * KIB, "random write"), with(4096 * KIB, "sequential write"));
        assert!((random / 2.37 - 1.0).abs() < 0.15, "{random} ms");
        assert!((sequential / 0.47 - 1.0).abs() < 0.1, "{sequential} ms");
        let starved = with(128 * KIB, "sequential write");
        assert!(starved > 2.0, "{starved} ms");
    }

    /// Figure 3 of the outsourcing paper: a full cache hides a round trip that is shorter than an access.
    #[test]
    fn random_writes_mask_a_delay_up_to_the_access_time_of_the_disk() {
        for (name, access, ack) in [("ibm-dnes", 11.44, 0.40), ("ibm-ddys", 5.10, 0.27)] {
            for round_trip_ms in [0.0, 1.0, 2.0, 4.0, 8.0, 16.0] {
                let ours = measure(
                    name,
                    "random write",
                    Duration::from_micros((round_trip_ms * 1e3) as u64),
                );
                let alone = if round_trip_ms > 0.0 { round_trip_ms + 0.408 + ack } else { 0.0 };
                let masked = f64::max(access, alone);
                println!("{name} {round_trip_ms} ms: {ours:.2}, masked {masked:.2}");
                assert!(
                    (ours / masked - 1.0).abs() < 0.05,
                    "{round_trip_ms} ms: {ours}, not {masked}"
                );
            }
        }
    }

    #[test]
    fn repeated_accesses_to_one_block_are_served_from_the_disk_cache() {
        for (name, read, write) in [("ibm-dnes", 0.57, 0.40), ("ibm-ddys", 0.24, 0.27)] {
            let mut disk = Mechanics::new(Profile::named(name).expect("known"));
            let mut now = Duration::ZERO;
            for index in 0..100 {
                let came = now;
                now = disk.write(came, (0, RECORD), false);
                let took = (now - came).as_secs_f64() * 1e3;
                assert!((took / write - 1.0).abs() < 0.1, "{name}: write {index} took {took} ms");
            }
            for _ in 0..100 {
                let came = now;
                now = disk.read(came, (0, RECORD));
                let took = (now - came).as_secs_f64() * 1e3;
                assert!((took / read - 1.0).abs() < 0.1, "{name}: a read took {took} ms");
            }
        }
    }

    #[test]
    fn a_flush_waits_for_the_platter_unless_the_cache_is_protected() {
        let profile = Profile::named("ibm-dnes").expect("known");
        let four = |mut disk: Mechanics| {
            for index in 0..4 {
                disk.write(
                    Duration::ZERO,
                    (index * 100 * RECORD, index * 100 * RECORD + RECORD),
                    false,
                );
            }
            disk.flush(Duration::ZERO)
        };
        let exposed = four(Mechanics::new(profile.clone()));
        assert!(exposed > Duration::from_millis(3 * 11), "{exposed:?}");
        let protected = Profile { cache_protected: true, ..profile.clone() };
        assert_eq!(four(Mechanics::new(protected)), profile.write_command);
        // A stable write does not use the volatile cache either: it ends when the data is on the platter.
        let stable = Mechanics::new(profile).write(Duration::ZERO, (RECORD, 2 * RECORD), true);
        assert!(stable > Duration::from_millis(11), "{stable:?}");
    }

    #[test]
    fn eight_arms_read_eight_blocks_in_parallel() {
        let mut array = Mechanics::new(Profile::named("array").expect("known"));
        let mut read = |at: u64| {
            let at = at * 1000 * RECORD;
            array.read(Duration::ZERO, (at, at + RECORD))
        };
        let last = (1..=8).map(&mut read).max().expect("there are some");
        assert!(last < Duration::from_millis(9), "{last:?}");
        assert!(read(9) > Duration::from_millis(14));
    }

    #[test]
    fn random_access_times_follow_the_seed_and_have_the_given_mean() {
        let profile = Profile { spread: 0.5, ..Profile::named("ibm-ddys").expect("known") };
        let times = |profile: &Profile| {
            let mut disk = Mechanics::new(profile.clone());
            let mut now = Duration::ZERO;
            let mut step = |at: u64| {
                let came = now;
                now = disk.read(came, (at * RECORD, (at + 1) * RECORD));
                (now - came).as_secs_f64() * 1e3
            };
            (1..=1000).map(|index| step(index * 7919)).collect::<Vec<f64>>()
        };
        let first = times(&profile);
        assert_eq!(first, times(&profile));
        assert_ne!(first, times(&Profile { seed: 2, ..profile.clone() }));
        let mean = first.iter().sum::<f64>() / 1000.0;
        assert!((mean / 7.5 - 1.0).abs() < 0.02, "{mean}");
        assert!(first.iter().all(|took| (3.9..11.1).contains(took)));
    }
}

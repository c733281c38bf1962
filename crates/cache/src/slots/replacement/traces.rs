//! Hit ratios of the page cache on traces, compared with LRU and with the clock algorithm (second chance) on
//! the same traces.

use std::collections::{BTreeMap, HashMap};

use sim::Rng;

use super::Replacement;

/// A cache of numbered pages under some replacement policy.
trait Policy {
    /// Reads a page, which is in the cache afterwards. Returns true if it was there before.
    fn read(&mut self, key: u64) -> bool;
}

struct S3Fifo {
    pages: Replacement<u64>,
    numbers: HashMap<u64, u32>,
    capacity: usize,
}

impl Policy for S3Fifo {
    fn read(&mut self, key: u64) -> bool {
        if let Some(&number) = self.numbers.get(&key) {
            self.pages.touch(number);
            return true;
        }
        if self.pages.len() == self.capacity {
            let gone = self.pages.evict(|key| Some(*key)).expect("nothing is needed");
            self.numbers.remove(&gone.value);
        }
        self.numbers.insert(key, self.pages.insert(key, key, false));
        false
    }
}

struct Lru {
    times: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    capacity: usize,
}

impl Policy for Lru {
    fn read(&mut self, key: u64) -> bool {
        self.clock += 1;
        let before = self.times.insert(key, self.clock);
        self.order.insert(self.clock, key);
        match before {
            Some(before) => _ = self.order.remove(&before),
            None if self.times.len() > self.capacity => {
                let (_, oldest) = self.order.pop_first().expect("it is full");
                self.times.remove(&oldest);
            }
            None => {}
        }
        before.is_some()
    }
}

struct ClockReplacement {
    places: HashMap<u64, usize>,
    pages: Vec<(u64, bool)>,
    hand: usize,
    capacity: usize,
}

impl Policy for ClockReplacement {
    fn read(&mut self, key: u64) -> bool {
        if let Some(&place) = self.places.get(&key) {
            self.pages[place].1 = true;
            return true;
        }
        if self.pages.len() < self.capacity {
            self.places.insert(key, self.pages.len());
            self.pages.push((key, true));
            return false;
        }
        while std::mem::take(&mut self.pages[self.hand].1) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.places.remove(&self.pages[self.hand].0);
        self.pages[self.hand] = (key, true);
        self.places.insert(key, self.hand);
        self.hand = (self.hand + 1) % self.capacity;
        false
    }
}

/// Returns a random number below `count`, of which the small ones are most frequent (Zipf, by the inverse of
/// its integral).
fn zipf(rng: &mut Rng, count: u64, exponent: f64) -> u64 {
    let part = rng.share();
    let power = 1.0 - exponent;
    let most = (count as f64 + 1.0).powf(power) - 1.0;
    ((part * most + 1.0).powf(1.0 / power) - 1.0) as u64
}

/// Maps numbers below `count` to others, so that neighbours end up far from each other.
fn scatter(key: u64, count: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count
}

/// Alternates random reads of a hot set with the reads of a scan.
fn scan() -> Vec<u64> {
    let mut rng = Rng::new(1);
    (0..400_000).flat_map(|at| [rng.below(8000), 1_000_000 + at]).collect()
}

fn popular(exponent: f64) -> Vec<u64> {
    let mut rng = Rng::new(2);
    (0..1_000_000).map(|_| zipf(&mut rng, 200_000, exponent)).collect()
}

/// A trace that reads popular slots, interrupted by backups that read every slot.
fn backup() -> Vec<u64> {
    let mut rng = Rng::new(3);
    let mut trace = Vec::new();
    for _ in 0..4 {
        trace.extend((0..200_000).map(|_| scatter(zipf(&mut rng, 200_000, 0.9), 200_000)));
        trace.extend(0..200_000);
    }
    trace
}

/// Imitates the published description of the trace EMC-tel: 230,370 requests of 2 KiB over 900 MB, 89 %
/// writes. The description does not give the distribution of addresses. Here 50 % of the requests go to
/// popular addresses, and the others continue where the previous one ended.
fn telephone() -> Vec<u64> {
    let mut rng = Rng::new(4);
    let halves = 900_000_000 / 2048;
    let mut here = 0;
    (0..230_370)
        .map(|_| {
            here = if rng.chance(50) {
                (here + 1) % halves
            } else {
                scatter(zipf(&mut rng, halves, 0.9), halves)
            };
            here / 2
        })
        .collect()
}

/// Imitates PostMark: 20,000 files of 0.5 to 10 KiB are read, appended to, created or deleted with equal
/// probability, together with their directories and inodes.
fn postmark() -> Vec<u64> {
    let mut rng = Rng::new(5);
    let mut trace = Vec::new();
    let mut free: Vec<u64> = (0..200_000).rev().collect();
    let make = |rng: &mut Rng, free: &mut Vec<u64>| -> Vec<u64> {
        let slots = rng.within(512..10_240).div_ceil(4096);
        (0..slots).filter_map(|_| free.pop()).collect()
    };
    let mut files: Vec<Vec<u64>> = (0..20_000).map(|_| make(&mut rng, &mut free)).collect();
    for _ in 0..100_000 {
        let at = rng.below(files.len() as u64) as usize;
        trace.extend(&files[at]);
        trace.extend([1_000_000 + at as u64 / 16, 2_000_000 + at as u64 / 64]);
        if rng.chance(50) {
            let at = rng.below(files.len() as u64) as usize;
            free.extend(std::mem::take(&mut files[at]));
            files[at] = make(&mut rng, &mut free);
            trace.extend(&files[at]);
            trace.push(2_000_000 + at as u64 / 64);
        }
    }
    trace
}

fn ratio(mut policy: impl Policy, trace: &[u64]) -> f64 {
    let hits = trace.iter().filter(|key| policy.read(**key)).count();
    hits as f64 / trace.len() as f64
}

#[test]
fn hit_ratios() {
    println!("| trace | pages | S3-FIFO | LRU | clock |");
    println!("|---|---|---|---|---|");
    // Columns: trace, numbers of pages, and by how much S3-FIFO may be worse than the better of the others. A
    // negative number means that it must be better by so much.
    for (name, trace, capacities, most_worse) in [
        ("hot set of 8,000 with a scan", scan(), [9_000, 12_000], -0.05),
        ("Zipf 0.7 over 200,000", popular(0.7), [2_000, 20_000], -0.01),
        ("Zipf 1.1 over 200,000", popular(1.1), [2_000, 20_000], -0.005),
        ("Zipf 0.9 with four backups", backup(), [2_000, 20_000], -0.02),
        ("EMC-tel-like", telephone(), [4_000, 40_000], 0.005),
        ("PostMark-like", postmark(), [4_000, 16_000], 0.005),
    ] {
        for capacity in capacities {
            let pages = Replacement::new(capacity);
            let ours = ratio(S3Fifo { pages, numbers: HashMap::new(), capacity }, &trace);
            let (times, order) = (HashMap::new(), BTreeMap::new());
            let lru = ratio(Lru { times, order, clock: 0, capacity }, &trace);
            let (places, pages) = (HashMap::new(), Vec::new());
            let clock = ratio(ClockReplacement { places, pages, hand: 0, capacity }, &trace);
            let [a, b, c] = [ours, lru, clock].map(|ratio| ratio * 100.0);
            println!("| {name} | {capacity} | {a:.1} % | {b:.1} % | {c:.1} % |");
            assert!(ours >= lru.max(clock) - most_worse, "{name}, {capacity} pages");
        }
    }
}

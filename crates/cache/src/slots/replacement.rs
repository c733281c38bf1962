//! The order in which pages leave memory: S3-FIFO (J. Yang et al., "FIFO queues are all you need for
//! cache eviction", SOSP 2023). What is new passes through a small queue and is promoted only if it
//! is used there; so a scan goes by without touching what is hot. A hit moves nothing.
//!
//! Two things are ours. Uses that follow each other closely count once: eight reads of 512 bytes are
//! one use of a page. And the first use of a page that was read ahead is the one it was read for.

use std::hash::{BuildHasher, BuildHasherDefault};

use crate::slots::hash::SlotHasher;

/// Pages, each with a number as long as it is in here, in their two queues.
pub(crate) struct Replacement<T> {
    nodes: Vec<ReplacementNode<T>>,
    free: Vec<u32>,
    small: ReplacementQueue,
    main: ReplacementQueue,
    ghosts: Ghosts,
    /// Pages that came or were used, but those used again at once; modulo 2^32.
    clock: u32,
    /// The page used last.
    last: u32,
    /// Uses of a page count once until so many others came or were used.
    together: u32,
    ahead: Ahead,
}

/// What became of the pages that were read ahead.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ahead {
    /// Are here and were not used yet.
    pub unused: u32,
    /// Were used.
    pub used: u64,
    /// Went unused.
    pub wasted: u64,
}

struct ReplacementNode<T> {
    /// `None`: this number is free.
    value: Option<T>,
    newer: u32,
    older: u32,
    /// The clock at the last use that counted.
    counted: u32,
    /// Uses that counted, up to [`MOST_USES`].
    uses: u8,
    is_main: bool,
    /// Was read ahead and not used yet.
    is_ahead: bool,
    /// Was read ahead, and has not been used twice.
    is_passing: bool,
}

/// A page that was taken out for others.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct EvictedPage<T> {
    pub value: T,
    /// It was read ahead and used for that, if at all: nothing says that it is wanted again.
    pub is_passing: bool,
}

/// A list through the nodes.
struct ReplacementQueue {
    newest: u32,
    oldest: u32,
    length: u32,
}

impl<T> Replacement<T> {
    /// For `capacity` pages at most. Remembers as many that have gone, in 8 bytes each.
    pub fn new(capacity: usize) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            small: ReplacementQueue::new(),
            main: ReplacementQueue::new(),
            ghosts: Ghosts::new(capacity),
            clock: 0,
            last: NONE,
            together: (capacity / 128).min(MOST_TOGETHER) as u32,
            ahead: Ahead::default(),
        }
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        (self.small.length + self.main.length) as usize
    }

    /// What became of what was read ahead.
    pub fn ahead(&self) -> Ahead {
        self.ahead
    }

    /// Takes a page in. `key` is what it is known by when it has gone.
    pub fn insert(&mut self, key: u64, value: T, is_ahead: bool) -> u32 {
        self.clock = self.clock.wrapping_add(1);
        self.ahead.unused += u32::from(is_ahead);
        let node = ReplacementNode {
            value: Some(value),
            newer: NONE,
            older: NONE,
            counted: self.clock,
            uses: 0,
            is_main: self.ghosts.take(key),
            is_ahead,
            is_passing: is_ahead,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.link(number);
        number
    }

    pub fn get(&self, number: u32) -> &T {
        self.nodes[number as usize].value.as_ref().expect("it is in here")
    }

    pub fn get_mut(&mut self, number: u32) -> &mut T {
        self.nodes[number as usize].value.as_mut().expect("it is in here")
    }

    /// Returns true if the page was read ahead and is not used yet.
    pub fn is_ahead(&self, number: u32) -> bool {
        self.nodes[number as usize].is_ahead
    }

    /// The page, which counts as used.
    pub fn touch(&mut self, number: u32) -> &T {
        self.clock = self.clock.wrapping_add(u32::from(self.last != number));
        self.last = number;
        let node = &mut self.nodes[number as usize];
        if self.clock.wrapping_sub(node.counted) >= self.together {
            node.counted = self.clock;
            node.uses = (node.uses + 1).min(MOST_USES);
        }
        if node.is_ahead {
            node.is_ahead = false;
            (node.uses, node.counted) = (0, self.clock);
            self.ahead.unused -= 1;
            self.ahead.used += 1;
        } else if node.uses > 0 {
            node.is_passing = false;
        }
        node.value.as_ref().expect("it is in here")
    }

    /// Takes a page out because its content is not wanted any more.
    pub fn remove(&mut self, number: u32) -> T {
        self.unlink(number);
        let node = &mut self.nodes[number as usize];
        self.ahead.unused -= u32::from(node.is_ahead);
        self.free.push(number);
        node.value.take().expect("it is in here")
    }

    /// Takes one page out for others. `key` tells what a page is known by, and `None` if it is needed
    /// where it is.
    pub fn evict(&mut self, key: impl Fn(&T) -> Option<u64>) -> Option<EvictedPage<T>> {
        let mut spared = 0;
        // Needed pages go round; when a queue has gone round it is left alone.
        let mut rest = [self.small.length, self.main.length];
        loop {
            let is_small = self.small.length as usize * SMALL_SHARE >= self.len();
            let is_main = match (rest, is_small) {
                ([0, 0], _) => return None,
                ([0, _], _) => true,
                ([_, 0], _) => false,
                (_, is_small) => !is_small,
            };
            let number = if is_main { self.main.oldest } else { self.small.oldest };
            if number == NONE {
                rest[usize::from(is_main)] = 0;
                continue;
            }
            let node = &mut self.nodes[number as usize];
            let Some(key) = key(node.value.as_ref().expect("it is in a queue")) else {
                rest[usize::from(is_main)] -= 1;
                self.unlink(number);
                self.link(number);
                continue;
            };
            if spared < MOST_SPARED && node.uses >= if is_main { 1 } else { PROMOTED_USES } {
                spared += 1;
                node.uses = if is_main { node.uses - 1 } else { 0 };
                self.unlink(number);
                self.nodes[number as usize].is_main = true;
                self.link(number);
                rest[1] += 1;
                continue;
            }
            if node.is_ahead {
                self.ahead.wasted += 1;
            } else if !is_main {
                self.ghosts.put(key);
            }
            let is_passing = node.is_passing && !is_main;
            return Some(EvictedPage { value: self.remove(number), is_passing });
        }
    }

    fn queue(&mut self, is_main: bool) -> &mut ReplacementQueue {
        if is_main { &mut self.main } else { &mut self.small }
    }

    /// Puts a node at the newest end of its queue.
    fn link(&mut self, number: u32) {
        let is_main = self.nodes[number as usize].is_main;
        let queue = self.queue(is_main);
        queue.length += 1;
        let older = std::mem::replace(&mut queue.newest, number);
        if older == NONE {
            queue.oldest = number;
        } else {
            self.nodes[older as usize].newer = number;
        }
        let node = &mut self.nodes[number as usize];
        (node.older, node.newer) = (older, NONE);
    }

    fn unlink(&mut self, number: u32) {
        let ReplacementNode { older, newer, is_main, .. } = self.nodes[number as usize];
        if older != NONE {
            self.nodes[older as usize].newer = newer;
        }
        if newer != NONE {
            self.nodes[newer as usize].older = older;
        }
        let queue = self.queue(is_main);
        queue.length -= 1;
        if older == NONE {
            queue.oldest = newer;
        }
        if newer == NONE {
            queue.newest = older;
        }
    }
}

impl ReplacementQueue {
    fn new() -> Self {
        Self { newest: NONE, oldest: NONE, length: 0 }
    }
}

/// Fingerprints of pages that went from the small queue, so that those that come back soon are not
/// new. Some are forgotten too early, where many fall together; one in a thousand million is taken for
/// another.
struct Ghosts {
    /// The fingerprint and when it came; zeros where there is none.
    buckets: Vec<[(u32, u32); 4]>,
    clock: u32,
    /// How many may come until one is too old.
    reach: u32,
}

impl Ghosts {
    fn new(capacity: usize) -> Self {
        let buckets = (capacity / 4).next_power_of_two();
        // As many as the main queue has pages.
        let reach = (capacity - capacity / SMALL_SHARE).clamp(1, 1 << 31) as u32;
        Self { buckets: vec![[(0, 0); 4]; buckets], clock: 0, reach }
    }

    fn put(&mut self, key: u64) {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let (bucket, fingerprint) = self.place(key);
        let age =
            |cell: &(u32, u32)| if cell.0 == 0 { u32::MAX } else { clock.wrapping_sub(cell.1) };
        let oldest = self.buckets[bucket].iter_mut().max_by_key(|cell| age(cell));
        *oldest.expect("a bucket has four") = (fingerprint, clock);
    }

    /// Whether a page went lately; it is forgotten.
    fn take(&mut self, key: u64) -> bool {
        let (bucket, fingerprint) = self.place(key);
        let (clock, reach) = (self.clock, self.reach);
        let found = self.buckets[bucket].iter_mut().find(|cell| cell.0 == fingerprint);
        found.is_some_and(|cell| clock.wrapping_sub(std::mem::take(cell).1) < reach)
    }

    fn place(&self, key: u64) -> (usize, u32) {
        let hash = BuildHasherDefault::<SlotHasher>::default().hash_one(key);
        ((hash >> 32) as usize & (self.buckets.len() - 1), hash as u32 | 1)
    }
}

const NONE: u32 = u32::MAX;
/// The small queue has at least one page in so many before pages leave the main one (the paper's
/// 10 %).
const SMALL_SHARE: usize = 10;
/// Uses in the small queue by which a page is promoted: more than one, as in the paper.
const PROMOTED_USES: u8 = 2;
/// Uses that are counted, as in the paper: how often the main queue spares a page.
const MOST_USES: u8 = 3;
/// Pages that one eviction spares because they were used: bounds the time under the lock.
const MOST_SPARED: u32 = 64;
/// Of `capacity / 128` at most so many pages: what a reader in small steps reads ahead meanwhile.
const MOST_TOGETHER: usize = 256;

#[cfg(test)]
mod traces;

#[cfg(test)]
mod tests {
    use super::*;

    /// `capacity` pages, known by numbers.
    struct Cache {
        pages: Replacement<u64>,
        numbers: std::collections::HashMap<u64, u32>,
        capacity: usize,
    }

    impl Cache {
        fn new(capacity: usize) -> Self {
            Self { pages: Replacement::new(capacity), numbers: Default::default(), capacity }
        }

        /// Whether it was there.
        fn read(&mut self, key: u64) -> bool {
            if let Some(&number) = self.numbers.get(&key) {
                return *self.pages.touch(number) == key;
            }
            self.come(key, false);
            false
        }

        fn come(&mut self, key: u64, is_ahead: bool) {
            if self.pages.len() == self.capacity {
                let gone = self.pages.evict(|key| Some(*key)).expect("nothing is needed");
                self.numbers.remove(&gone.value);
            }
            self.numbers.insert(key, self.pages.insert(key, key, is_ahead));
        }
    }

    #[test]
    fn a_scan_goes_by_without_touching_what_is_hot() {
        let mut cache = Cache::new(100);
        for _ in 0..4 {
            (0..60).for_each(|key| _ = cache.read(key));
        }
        (1000..10_000).for_each(|key| _ = cache.read(key));
        let found = (0..60).filter(|key| cache.numbers.contains_key(key)).count();
        assert_eq!(found, 60);
    }

    #[test]
    fn what_comes_back_soon_after_it_went_is_not_new() {
        let mut cache = Cache::new(100);
        // A hot set fills the main queue, so that the small one has its tenth and no more.
        for _ in 0..4 {
            (0..100).for_each(|key| _ = cache.read(key));
        }
        cache.read(500);
        (1000..1050).for_each(|key| _ = cache.read(key));
        assert!(!cache.numbers.contains_key(&500));
        cache.read(500);
        (2000..2050).for_each(|key| _ = cache.read(key));
        assert!(cache.numbers.contains_key(&500), "it is in the main queue now");
    }

    #[test]
    fn uses_close_to_each_other_are_one() {
        let mut cache = Cache::new(12_800);
        (0..12_800).for_each(|key| _ = cache.read(key));
        for _ in 0..8 {
            cache.read(0);
        }
        for key in 20_000..21_300 {
            cache.read(key);
        }
        assert!(!cache.numbers.contains_key(&0), "eight uses, and one");
    }

    #[test]
    fn what_was_read_ahead_is_counted_and_is_new_at_its_first_use() {
        let mut cache = Cache::new(10);
        (0..10).for_each(|key| cache.come(key, true));
        assert_eq!(cache.pages.ahead(), Ahead { unused: 10, used: 0, wasted: 0 });
        cache.read(0);
        cache.read(0);
        assert_eq!(cache.pages.ahead(), Ahead { unused: 9, used: 1, wasted: 0 });
        cache.read(100);
        cache.read(101);
        assert!(!cache.numbers.contains_key(&0), "used for what it came for, and once more");
        assert_eq!(cache.pages.ahead(), Ahead { unused: 8, used: 1, wasted: 1 });
    }

    #[test]
    fn what_is_needed_is_never_taken() {
        let mut pages = Replacement::new(10);
        for key in 0..10 {
            let number = pages.insert(key, key, false);
            if key > 6 {
                (0..4).for_each(|_| _ = pages.touch(number));
            }
        }
        let odd = |key: &u64| (key % 2 == 1).then_some(*key);
        let mut gone: Vec<_> =
            std::iter::from_fn(|| pages.evict(odd)).map(|gone| gone.value).collect();
        gone.sort_unstable();
        assert_eq!(gone, [1, 3, 5, 7, 9]);
        assert_eq!((pages.evict(odd), pages.len()), (None, 5));
        assert_eq!(
            pages.evict(|key| Some(*key)),
            Some(EvictedPage { value: 0, is_passing: false })
        );
    }

    #[test]
    fn what_was_read_ahead_only_passes_until_it_is_used_again() {
        let mut pages = Replacement::new(1000);
        let numbers: Vec<u32> = (0..4).map(|key| pages.insert(key, key, key > 0)).collect();
        pages.touch(numbers[1]);
        pages.touch(numbers[2]);
        // Others in between: the next use is another one.
        (10..30).for_each(|key| _ = pages.insert(key, key, false));
        pages.touch(numbers[2]);
        let gone = std::iter::from_fn(|| pages.evict(|key| (*key < 4).then_some(*key)));
        let mut passing: Vec<_> = gone.map(|gone| (gone.value, gone.is_passing)).collect();
        passing.sort_unstable();
        assert_eq!(passing, [(0, false), (1, true), (2, false), (3, true)]);
    }

    #[test]
    fn a_page_costs_64_bytes_at_most_here() {
        assert!(size_of::<ReplacementNode<(bytes::Bytes, u32)>>() <= 56);
        assert_eq!(size_of::<[(u32, u32); 4]>() / 4, 8, "and 8 to remember one that has gone");
    }
}

//! The order in which pages leave memory: S3-FIFO (J. Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023). A new page passes through a small queue, and is promoted to the main queue only if
//! it is used meanwhile. A scan therefore does not displace hot pages. A hit moves no page.
//!
//! We differ from the paper in two points. Uses in close succession count as one, since eight reads of 512
//! bytes are one use of a page. And the first use of a page that was read ahead does not count, since the
//! page was read for this use.

use std::hash::{BuildHasher, BuildHasherDefault};

use crate::slots::hash::SlotHasher;

/// The pages of a cache, in two queues. Each page has a number while it is in a queue.
pub(crate) struct Replacement<T> {
    nodes: Vec<ReplacementNode<T>>,
    free: Vec<u32>,
    small: ReplacementQueue,
    main: ReplacementQueue,
    ghosts: Ghosts,
    /// Counts insertions and uses of pages, modulo 2^32. Several uses of one page in a row count as one.
    clock: u32,
    last: u32,
    /// A use of a page counts only if the clock has advanced by this much since its last use that counted.
    together: u32,
    ahead: Ahead,
}

/// Counts what happened to the pages that were read ahead.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ahead {
    /// Number of read-ahead pages in memory that no host has read yet.
    pub unused: u32,
    /// The number of read-ahead pages that were used.
    pub used: u64,
    /// The number of read-ahead pages that were evicted unused.
    pub wasted: u64,
}

struct ReplacementNode<T> {
    /// The content of the page; `None` if this node is free.
    value: Option<T>,
    newer: u32,
    older: u32,
    counted: u32,
    /// Number of uses of the page that counted, at most [`MOST_USES`].
    uses: u8,
    is_main: bool,
    /// True if the page was read ahead, and no host has read it yet.
    is_ahead: bool,
    /// True if the page was read ahead, and was not used again after the first use, for which it was read.
    is_passing: bool,
}

/// A page that [`Replacement::evict`] has removed.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct EvictedPage<T> {
    pub value: T,
    /// True if the page was read ahead and used at most once: nothing indicates that it will be read again.
    pub is_passing: bool,
}

/// The small or the main queue: a doubly linked list of nodes.
struct ReplacementQueue {
    newest: u32,
    oldest: u32,
    length: u32,
}

impl<T> Replacement<T> {
    /// Creates queues for at most `capacity` pages. The keys of about as many evicted pages are remembered,
    /// in 8 bytes each.
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

    pub fn len(&self) -> usize {
        (self.small.length + self.main.length) as usize
    }

    /// Returns what happened to the pages that were read ahead.
    pub fn ahead(&self) -> Ahead {
        self.ahead
    }

    /// Adds a page and returns the number of its node. After its eviction, `key` still identifies the page.
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

    /// Returns true if the page was read ahead and no host has read it yet.
    pub fn is_ahead(&self, number: u32) -> bool {
        self.nodes[number as usize].is_ahead
    }

    /// Returns a page, and counts the call as a use of the page.
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

    /// Removes a page whose content is not needed any more.
    pub fn remove(&mut self, number: u32) -> T {
        self.unlink(number);
        let node = &mut self.nodes[number as usize];
        self.ahead.unused -= u32::from(node.is_ahead);
        self.free.push(number);
        node.value.take().expect("it is in here")
    }

    /// Evicts one page. `key` returns the key of a page, or `None` if the page is pinned. Returns `None` if
    /// all pages are pinned.
    pub fn evict(&mut self, key: impl Fn(&T) -> Option<u64>) -> Option<EvictedPage<T>> {
        let mut spared = 0;
        // A pinned page moves to the back of its queue. Stop scanning a queue after one full pass over it.
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

    /// Links a node into its queue, at the newest end.
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

/// Fingerprints of the pages that were evicted from the small queue. If such a page is inserted again soon,
/// it goes into the main queue. A bucket with more than four fingerprints loses the oldest too early. One
/// fingerprint in about 10^9 is mistaken for another.
struct Ghosts {
    /// Fingerprints with the time of eviction; zeros in unused cells.
    buckets: Vec<[(u32, u32); 4]>,
    clock: u32,
    /// The number of later evictions after which a fingerprint is too old.
    reach: u32,
}

impl Ghosts {
    fn new(capacity: usize) -> Self {
        let buckets = (capacity / 4).next_power_of_two();
        // Remember as many pages as the main queue holds.
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

    /// Returns true if the page was evicted recently. Removes the fingerprint.
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
/// Pages leave the small queue, not the main queue, while it holds at least 1/10 of all pages (10 % in the
/// paper).
const SMALL_SHARE: usize = 10;
/// A page with this many uses in the small queue is promoted: more than one, as in the paper.
const PROMOTED_USES: u8 = 2;
/// Maximum number of uses that are counted for a page, as in the paper. The main queue spares a page once for each.
const MOST_USES: u8 = 3;
/// Maximum number of pages that one eviction spares because they were used. This limits the time for which the lock is
/// held.
const MOST_SPARED: u32 = 64;
/// Upper limit of `Replacement::together`, which is `capacity / 128` in smaller caches. The limit covers what
/// is read ahead while a reader with small requests passes over a page.
const MOST_TOGETHER: usize = 256;

#[cfg(test)]
mod traces;

#[cfg(test)]
mod tests {
    use super::*;

    /// A page cache with `capacity` pages that have numbers as content.
    struct Cache {
        pages: Replacement<u64>,
        numbers: std::collections::HashMap<u64, u32>,
        capacity: usize,
    }

    impl Cache {
        fn new(capacity: usize) -> Self {
            Self { pages: Replacement::new(capacity), numbers: Default::default(), capacity }
        }

        /// Reads a page. Returns true if the page was in the cache before.
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
    fn a_scan_does_not_evict_hot_pages() {
        let mut cache = Cache::new(100);
        for _ in 0..4 {
            (0..60).for_each(|key| _ = cache.read(key));
        }
        (1000..10_000).for_each(|key| _ = cache.read(key));
        let found = (0..60).filter(|key| cache.numbers.contains_key(key)).count();
        assert_eq!(found, 60);
    }

    #[test]
    fn a_page_that_returns_soon_after_eviction_enters_the_main_queue() {
        let mut cache = Cache::new(100);
        // A hot set fills the main queue, so that the small queue gets its tenth and no more.
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
    fn uses_within_a_short_time_count_as_one() {
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
    fn read_ahead_pages_are_counted_and_their_first_use_makes_them_new() {
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
    fn pinned_pages_are_never_evicted() {
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
    fn a_read_ahead_page_counts_as_passing_until_its_second_use() {
        let mut pages = Replacement::new(1000);
        let numbers: Vec<u32> = (0..4).map(|key| pages.insert(key, key, key > 0)).collect();
        pages.touch(numbers[1]);
        pages.touch(numbers[2]);
        // Insert other pages between the two uses: uses in quick succession count as one.
        (10..30).for_each(|key| _ = pages.insert(key, key, false));
        pages.touch(numbers[2]);
        let gone = std::iter::from_fn(|| pages.evict(|key| (*key < 4).then_some(*key)));
        let mut passing: Vec<_> = gone.map(|gone| (gone.value, gone.is_passing)).collect();
        passing.sort_unstable();
        assert_eq!(passing, [(0, false), (1, true), (2, false), (3, true)]);
    }

    #[test]
    fn replacement_takes_at_most_64_bytes_per_page() {
        assert!(size_of::<ReplacementNode<(bytes::Bytes, u32)>>() <= 56);
        assert_eq!(size_of::<[(u32, u32); 4]>() / 4, 8, "and 8 to remember one that has gone");
    }
}

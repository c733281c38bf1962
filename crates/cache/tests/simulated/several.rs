//! Tests of several volumes in one log: how the log identifies them, and what happens to the others
//! while one of them is unreachable, claimed by another gateway, or larger than before.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::support::{
    claimed::Claimed,
    gateway::{filled, first_bytes},
    memory::Memory,
};
use cache::{
    Cache, CacheOpenError, CommonMember, DestageOrder, MemberRecord, Settings, StableMemory,
    WriteMode, dirty_of, give_up, inspect, take_in,
};
use tokio::time::timeout;
use volume::{
    Durability, Error, Extent, Geometry, Holding, Lba, MemVolume, SliceVolume, Stack, Volume,
};

/// A gateway's log and NVRAM, and two far volumes.
struct Site {
    settings: Settings,
    memory: Memory,
    log: Stack,
    a: Arc<Claimed>,
    b: Arc<Claimed>,
}

type Opened = Result<(Arc<Cache>, Vec<Stack>), CacheOpenError>;

impl Site {
    fn new() -> Self {
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(2048) };
        Self {
            settings: Self::settings(),
            memory: Memory::new(16),
            log: Arc::new(MemVolume::new(log)),
            a: Claimed::new(8005),
            b: Claimed::new(4000),
        }
    }

    /// A site with immediate report from the NVRAM.
    fn immediate() -> Self {
        let settings = Settings { report: WriteMode::Immediate, ..Self::settings() };
        Self { settings, ..Self::new() }
    }

    fn settings() -> Settings {
        Settings {
            dram_bytes: 4 << 20,
            nvram_bytes: 1 << 20,
            read_ahead_bytes: 1 << 20,
            idle_ms: 1,
            ..Settings::default()
        }
    }

    async fn open(&self, members: &[(&str, &Arc<Claimed>)]) -> Opened {
        let stacks = members.iter().map(|(name, volume)| (*name, Arc::clone(*volume) as Stack));
        self.open_stacks(stacks.collect()).await
    }

    async fn open_stacks(&self, members: Vec<(&str, Stack)>) -> Opened {
        let members = members.into_iter().map(|(name, lower)| CommonMember {
            name: name.to_owned(),
            key: name.len() as u64,
            lower,
        });
        let (settings, log) = (self.settings.clone(), Arc::clone(&self.log));
        let nvram = (settings.report == WriteMode::Immediate).then(|| self.nvram());
        Cache::open_common(settings, members.collect(), log, nvram).await
    }

    fn nvram(&self) -> Box<dyn StableMemory> {
        Box::new(self.memory.clone())
    }

    async fn record(&self, name: &str) -> MemberRecord {
        let mut known = inspect(&self.log).await.expect("a log").members.into_iter();
        known.find(|member| member.name == name && member.counts()).expect("it is known")
    }

    /// Discards the log's dirty data of a volume and removes the volume. Returns the number of
    /// discarded slots.
    async fn give_up(&self, name: &str) -> u64 {
        let member = self.record(name).await;
        let nvram = (self.settings.report == WriteMode::Immediate).then(|| self.nvram());
        let slots = dirty_of(&self.log, nvram, &member, false).await.expect("it can be looked at");
        give_up(&self.log, &member, slots).await.expect("it is given up");
        slots
    }

    async fn start(&self) -> (Arc<Cache>, Vec<Stack>) {
        let opened = self.open(&[("a", &self.a), ("b", &self.b)]).await.expect("it can be opened");
        tokio::spawn(opened.0.run());
        opened
    }
}

async fn write(volume: &Stack, lba: u64, byte: u8) {
    let written = volume.write(Lba(lba), filled(byte, 8), Durability::Volatile).await;
    written.expect("the log takes it");
}

async fn read(volume: &Stack, lba: u64) -> Result<u8, Error> {
    let data = volume.read(Extent { lba: Lba(lba), blocks: 1 }).await?;
    Ok(first_bytes(&data.into_bytes())[0])
}

async fn drained(cache: &Cache) {
    timeout(Duration::from_secs(60), cache.drain()).await.expect("it ends").expect("drained");
}

fn refusal(opened: Opened) -> String {
    opened.err().expect("it is refused").to_string()
}

#[tokio::test(start_paused = true)]
async fn each_volume_gets_its_own_data() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    assert_eq!([above[0].geometry().blocks, above[1].geometry().blocks], [8005, 4000]);
    write(&above[0], 16, 1).await;
    write(&above[1], 16, 2).await;
    // The first volume ends inside of a slot. Write its last blocks.
    let last = above[0].write(Lba(8000), filled(3, 5), Durability::Volatile).await;
    last.expect("the log takes it");
    above[1].discard(Extent { lba: Lba(3990), blocks: 10 }).await.expect("discarded");
    drained(&cache).await;
    let far = [site.a.far.peek(16, 1).await[0], site.b.far.peek(16, 1).await[0]];
    assert_eq!((far, site.a.far.peek(8004, 1).await[0]), ([1, 2], 3));
    for lba in [4000, 3999] {
        let beyond = above[1].write(Lba(lba), filled(1, 2), Durability::Volatile).await;
        assert!(matches!(beyond, Err(Error::OutOfRange(extent)) if extent.lba == Lba(lba)));
    }
    // Read up to the end of the volume sequentially: read-ahead must not go beyond the end.
    site.a.far.take_calls();
    let whole = Extent { lba: Lba(7000), blocks: 1005 };
    for at in 0..4 {
        let data = above[0].read(Extent { lba: Lba(7000 + at * 250), blocks: 250 }).await;
        assert_eq!(data.expect("read").len(), 250 * 512);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let beyond = |&(_, lba, blocks): &(&str, u64, u64)| lba + blocks > whole.end().0;
    assert_eq!(site.a.far.take_calls().iter().find(|call| beyond(call)), None);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_recognized_by_name_in_any_order() {
    let site = Site::new();
    let (cache, above) = site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
    write(&above[0], 0, 1).await;
    write(&above[1], 0, 2).await;
    drop((cache, above));
    let (cache, above) = site.open(&[("b", &site.b), ("a", &site.a)]).await.expect("opened");
    assert_eq!([read(&above[0], 0).await, read(&above[1], 0).await].map(Result::unwrap), [2, 1]);
    tokio::spawn(cache.run());
    drained(&cache).await;
    assert_eq!([site.a.far.peek(0, 1).await[0], site.b.far.peek(0, 1).await[0]], [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_added_at_any_time_and_removed_when_the_log_has_none_of_its_data() {
    let site = Site::new();
    let c = Claimed::new(64);
    let (cache, above) = site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
    write(&above[1], 0, 2).await;
    drop((cache, above));
    // The log has dirty data of volume b, so b must not be left out.
    let refused = refusal(site.open(&[("a", &site.a), ("c", &c)]).await);
    assert!(refused.contains("holds 1 blocks of 4096 bytes of volume \"b\""), "{refused}");
    // A third volume can be added while data is dirty.
    let all = [("a", &site.a), ("b", &site.b), ("c", &c)];
    let (cache, above) = site.open(&all).await.expect("opened");
    assert_eq!(read(&above[1], 0).await.expect("read"), 2);
    write(&above[2], 0, 3).await;
    tokio::spawn(cache.run());
    drained(&cache).await;
    cache.stop().await.expect("stopped");
    drop((cache, above));
    let (cache, above) = site.open(&[("c", &c), ("a", &site.a)]).await.expect("opened");
    assert_eq!(read(&above[0], 0).await.expect("read"), 3);
    let known = inspect(&site.log).await.expect("a log").members;
    let known: Vec<_> = known.iter().map(|member| (&*member.name, member.place)).collect();
    assert_eq!(known, [("c", 2), ("a", 0)]);
    drop(cache);
}

#[tokio::test(start_paused = true)]
async fn a_region_is_not_reused_while_the_log_has_data_of_its_volume() {
    let site = Site::new();
    let names: Vec<_> = (0..=16).map(|number| format!("volume {number}")).collect();
    let volumes: Vec<_> = names.iter().map(|_| Claimed::new(64)).collect();
    let all: Vec<_> = names.iter().map(|name| &**name).zip(&volumes).collect();
    // Open 16 volumes, so that all regions of the log are in use.
    let (cache, above) = site.open(&all[..16]).await.expect("opened");
    write(&above[0], 0, 1).await;
    drop((cache, above));
    let refused = refusal(site.open(&all[1..]).await);
    assert!(refused.contains("holds 1 blocks of 4096 bytes of volume \"volume 0\""), "{refused}");
    let (cache, above) = site.open(&all[..16]).await.expect("opened");
    tokio::spawn(cache.run());
    drained(&cache).await;
    cache.stop().await.expect("stopped");
    drop((cache, above));
    let (cache, above) = site.open(&all[1..]).await.expect("opened");
    assert_eq!(read(&above[15], 0).await.expect("read"), 0);
    drop(cache);
}

#[tokio::test(start_paused = true)]
async fn a_volume_listed_twice_and_a_replaced_volume_are_refused() {
    let site = Site::new();
    let twice = refusal(site.open(&[("a", &site.a), ("a", &site.b)]).await);
    assert!(twice.contains("\"a\" is listed twice"), "{twice}");
    drop(site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened"));
    // Open the log with another volume under the name of the first one.
    let small = refusal(site.open(&[("a", &site.b), ("b", &site.b)]).await);
    assert!(small.contains("8005 blocks of 512 bytes, the volume now has 4000"), "{small}");
    let relaxed = Settings { order: DestageOrder::Relaxed, ..Site::settings() };
    let member = CommonMember { name: "a".into(), key: 0, lower: Arc::clone(&site.a) as Stack };
    let refused =
        refusal(Cache::open_common(relaxed, vec![member], Arc::clone(&site.log), None).await);
    assert!(refused.contains("strict order"), "{refused}");
    // A log that several volumes share cannot be opened for one volume alone.
    let identity = cache::LogVolumeIdentity { name: "a".into(), geometry: site.a.geometry() };
    let lower = Arc::clone(&site.a) as Stack;
    let parts = cache::Parts { lower, log: Arc::clone(&site.log), nvram: None };
    let other = Cache::open(Site::settings(), parts, identity).await.err().expect("refused");
    assert!(matches!(other, CacheOpenError::OtherVolume { .. }), "{other}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_volume_delays_only_rounds_from_its_dirty_data_on() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    site.b.far.poke(800, vec![9; 512]).await;
    site.b.far.set_away(true);
    // Rounds without data of the unreachable volume continue.
    write(&above[0], 0, 1).await;
    drained(&cache).await;
    assert_eq!(site.a.far.peek(0, 1).await[0], 1);
    write(&above[1], 0, 2).await;
    write(&above[0], 8, 3).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    write(&above[0], 16, 4).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    // Data that came after the data of volume b waits for it. Writes are still accepted, and reads
    // still served.
    assert_eq!(site.a.far.peek(16, 1).await[0], 0);
    assert_eq!([read(&above[0], 16).await, read(&above[1], 0).await].map(Result::unwrap), [4, 2]);
    site.a.far.poke(1600, vec![7; 512]).await;
    assert_eq!(read(&above[0], 1600).await.expect("that one is there"), 7);
    assert!(read(&above[1], 800).await.is_err());
    let told = cache.statistics().lower.error.expect("it is away");
    assert!(told.contains("b: the link is down"), "{told}");
    site.b.far.set_away(false);
    drained(&cache).await;
    assert_eq!([site.b.far.peek(0, 1).await[0], site.a.far.peek(16, 1).await[0]], [2, 4]);
    assert_eq!(read(&above[1], 800).await.expect("it is back"), 9);
}

#[tokio::test(start_paused = true)]
async fn a_round_is_flushed_at_every_volume_before_its_log_space_is_freed() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    drained(&cache).await;
    site.b.far.fail_next_flush();
    write(&above[0], 0, 1).await;
    write(&above[1], 0, 2).await;
    site.b.far.take_calls();
    drained(&cache).await;
    let calls = site.b.far.take_calls();
    let count = |name| calls.iter().filter(|call| call.0 == name).count();
    // The volume that has reported a loss must have received the lost data again.
    assert!(count("write") >= 2 && count("flush") >= 2, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn each_volume_can_grow_within_its_region() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    site.a.far.set_blocks(9000);
    above[0].extensions().refresh();
    timeout(Duration::from_secs(60), async {
        while above[0].geometry().blocks != 9000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it is noticed");
    assert_eq!(above[1].geometry().blocks, 4000);
    write(&above[0], 8990, 5).await;
    write(&above[1], 0, 6).await;
    drained(&cache).await;
    assert_eq!(site.a.far.peek(8990, 1).await[0], 5);
    drop((cache, above));
    site.a.far.set_blocks(8500);
    let smaller = refusal(site.open(&[("a", &site.a), ("b", &site.b)]).await);
    assert!(smaller.contains("9000 blocks"), "{smaller}");
}

#[tokio::test(start_paused = true)]
async fn no_volume_grows_beyond_its_region() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    let place = (1 << 56) / 512;
    site.a.far.set_blocks(place + 8);
    above[0].extensions().refresh();
    write(&above[0], 0, 1).await;
    drained(&cache).await;
    assert_eq!(above[0].geometry().blocks, 8005);
    let beyond = above[0].write(Lba(place), filled(9, 8), Durability::Volatile).await;
    assert!(matches!(beyond, Err(Error::OutOfRange(_))), "{beyond:?}");
    cache.stop().await.expect("stopped");
    drop((cache, above));
    // Open the log again: its record of the volumes must be valid although one of them was too
    // large.
    site.a.far.set_blocks(8005);
    site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
}

#[tokio::test(start_paused = true)]
async fn a_growing_slice_keeps_its_region_and_its_start() {
    let site = Site::new();
    let (far, place) = (Claimed::new(9000), (1 << 56) / 512);
    let slice = Arc::new(SliceVolume::new(Arc::clone(&far) as Stack, Lba(1003), 4000).unwrap());
    let members = || {
        let stack = Arc::clone(&site.a) as Stack;
        vec![("slice", Arc::clone(&slice) as Stack), ("a", stack)]
    };
    let (cache, above) = site.open_stacks(members()).await.expect("opened");
    tokio::spawn(cache.run());
    write(&above[0], 3992, 1).await;
    write(&above[1], 5900, 2).await;
    slice.grow(Some(6002)).expect("there is so much");
    let grown = async {
        while above[0].geometry().blocks != 6002 {
            above[0].extensions().refresh();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), grown).await.expect("it is noticed");
    write(&above[0], 5994, 3).await;
    above[0].discard(Extent { lba: Lba(4000), blocks: 900 }).await.expect("discarded");
    // The volume under the slice grows beyond its region: the cache keeps the size of the region.
    far.far.set_blocks(place + 5000);
    slice.grow(None).expect("as it says");
    above[0].extensions().refresh();
    drained(&cache).await;
    assert_eq!(above[0].geometry().blocks, 6002);
    for (lba, blocks) in [(6000, 8), (6002, 1), (place - 1, 2), (place, 1), (place + 5, 8)] {
        let extent = Extent { lba: Lba(lba), blocks };
        let refused = |e: &Error| matches!(e, Error::OutOfRange(found) if *found == extent);
        assert!(above[0].read(extent).await.is_err_and(|e| refused(&e)), "{lba}");
        assert!(above[0].discard(extent).await.is_err_and(|e| refused(&e)), "{lba}");
        let written =
            above[0].write(extent.lba, filled(9, blocks as usize), Durability::Volatile).await;
        assert!(written.is_err_and(|e| refused(&e)), "{lba}");
    }
    let found = [far.far.peek(1003 + 3992, 1).await[0], far.far.peek(1003 + 5994, 1).await[0]];
    assert_eq!((found, site.a.far.peek(5900, 1).await[0]), ([1, 3], 2));
    let outside = |&(_, lba, blocks): &(&str, u64, u64)| {
        blocks > 0 && (lba < 1003 || lba + blocks > 1003 + 6002)
    };
    assert_eq!(far.far.take_calls().iter().find(|call| outside(call)), None);
    let places = || async {
        let known = inspect(&site.log).await.expect("a log").members;
        known.iter().map(|member| (member.place, member.geometry.blocks)).collect::<Vec<_>>()
    };
    assert_eq!(places().await, [(0, 6002), (1, 8005)]);
    drop((cache, above));
    let refused = refusal(site.open_stacks(members()).await);
    assert!(refused.contains("slice has more than 72057594037927936 bytes"), "{refused}");
    far.far.set_blocks(9000);
    let slice = SliceVolume::new(Arc::clone(&far) as Stack, Lba(1003), 7000).unwrap();
    let mut members = members();
    members[0].1 = Arc::new(slice);
    let (_cache, above) = site.open_stacks(members).await.expect("opened");
    assert_eq!(read(&above[0], 5994).await.expect("read"), 3);
    assert_eq!(places().await, [(0, 7000), (1, 8005)]);
}

#[tokio::test(start_paused = true)]
async fn each_volume_is_claimed_with_the_generation_that_it_granted() {
    let site = Site::new();
    let members = [("a", &site.a), ("b", &site.b)];
    let (cache, above) = site.open(&members).await.expect("opened");
    let first = site.a.asked();
    assert_eq!((first.granted, site.b.asked().granted, first.is_dirty.get()), (0, 0, false));
    assert_eq!(cache.holding(), Holding::Held);
    write(&above[0], 0, 1).await;
    assert_eq!((site.a.asked().is_dirty.get(), site.b.asked().is_dirty.get()), (true, false));
    drop((cache, above));
    // Volume b refuses the claim. The claim on volume a stays, because the log has dirty data of
    // that volume.
    site.b.refuses.store(true, Ordering::SeqCst);
    let refused = refusal(site.open(&members).await);
    assert!(refused.contains("b: somebody has it"), "{refused}");
    let second = site.a.asked();
    assert_eq!(second.granted, first.generation);
    assert!(second.predecessors.contains(&first.opening));
    assert_eq!(site.a.extensions().holding(), Holding::Held);
    // The next claim on volume a names the second opening as predecessor, and that on volume b
    // names the first one.
    site.b.refuses.store(false, Ordering::SeqCst);
    let (cache, _above) = site.open(&members).await.expect("opened");
    let third = site.a.asked();
    assert_eq!(third.granted, second.generation);
    assert!(third.predecessors.contains(&second.opening));
    assert!(third.is_dirty.get() && !site.b.asked().is_dirty.get());
    assert_eq!(site.b.asked().granted, first.generation);
    assert!(site.b.asked().predecessors.contains(&first.opening));
    tokio::spawn(cache.run());
    drained(&cache).await;
    cache.stop().await.expect("stopped");
    assert_eq!(
        [site.a.extensions().holding(), site.b.extensions().holding()],
        [Holding::Nothing, Holding::Nothing]
    );
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_clean_volume_is_returned_when_another_volume_refuses() {
    let site = Site::new();
    site.b.refuses.store(true, Ordering::SeqCst);
    refusal(site.open(&[("a", &site.a), ("b", &site.b)]).await);
    assert_eq!(site.a.extensions().holding(), Holding::Nothing);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_claim_stops_all_volumes() {
    let site = Site::new();
    let (cache, above) = site.start().await;
    *site.b.holding.lock() = Holding::Refused("another log".into());
    assert!(matches!(cache.holding(), Holding::Refused(why) if why.contains("b: another log")));
    let written = above[0].write(Lba(0), filled(1, 8), Durability::Volatile).await;
    assert!(matches!(written, Err(Error::Fenced(_))), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_volume_can_be_removed_and_the_other_volumes_lose_nothing() {
    let site = Site::new();
    let (both, alone) = ([("a", &site.a), ("b", &site.b)], [("a", &site.a)]);
    let (cache, above) = site.start().await;
    drained(&cache).await;
    site.b.far.set_away(true);
    for version in 0..20 {
        write(&above[0], version * 8, 1).await;
        write(&above[1], version % 5 * 8, version as u8).await;
        write(&above[0], 800, version as u8).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    drop((cache, above));
    let refused = refusal(site.open(&alone).await);
    assert!(refused.contains("holds 5 blocks of 4096 bytes of volume \"b\""), "{refused}");
    let info = inspect(&site.log).await.expect("a log");
    assert_eq!(info.dirty_of_members, [21, 5]);
    let first = site.b.asked().opening;
    assert_eq!(site.give_up("b").await, 5);
    assert_eq!(inspect(&site.log).await.expect("a log").dirty_slots, 21);

    // Volume b must not be opened as if no data were lost.
    let refused = refusal(site.open(&both).await);
    assert!(refused.contains("\"b\" was removed from the log with 5 dirty blocks"), "{refused}");
    // Open the log several times, before and after the data of volume a is destaged.
    for drains in [false, false, true, false] {
        let (cache, above) = site.open(&alone).await.expect("opened");
        assert_eq!(cache.given_up().await, [("b".to_owned(), 5 * 4096)]);
        assert_eq!(read(&above[0], 800).await.expect("read"), 19);
        if drains {
            tokio::spawn(cache.run());
            drained(&cache).await;
            assert_eq!(site.a.far.peek(800, 1).await[0], 19);
            assert_eq!(site.a.far.peek(19 * 8, 1).await[0], 1);
            cache.stop().await.expect("stopped");
        }
    }
    site.b.far.set_away(false);
    assert!(site.open(&both).await.is_err());

    // Add volume b again: its content is that of the far volume, and it gets another region in the
    // log.
    take_in(&site.log, "b").await.expect("it was given up");
    let (cache, above) = site.open(&both).await.expect("opened");
    let asked = site.b.asked();
    assert!(asked.granted == 0 && asked.predecessors.contains(&first) && !asked.is_dirty.get());
    assert_eq!([read(&above[1], 0).await, read(&above[0], 800).await].map(Result::unwrap), [0, 19]);
    assert_eq!(cache.given_up().await, []);
    write(&above[1], 8, 77).await;
    tokio::spawn(cache.run());
    drained(&cache).await;
    assert_eq!(site.b.far.peek(8, 1).await[0], 77);
    assert!(take_in(&site.log, "a").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn data_of_a_removed_volume_does_not_return_while_the_log_still_has_it() {
    let site = Site::new();
    let c = Claimed::new(64);
    let (cache, above) = site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
    write(&above[0], 0, 1).await;
    write(&above[1], 0, 2).await;
    drop((cache, above));
    site.give_up("a").await;
    take_in(&site.log, "a").await.expect("it was given up");
    // The log still has the discarded content of volume a, which must not be used, besides the new
    // content.
    let all = [("b", &site.b), ("c", &c), ("a", &site.a)];
    for _ in 0..2 {
        let (_cache, above) = site.open(&all).await.expect("opened");
        let found = [read(&above[2], 0).await, read(&above[0], 0).await];
        assert_eq!(found.map(Result::unwrap), [0, 2]);
    }
    let (cache, above) = site.open(&all).await.expect("opened");
    write(&above[2], 0, 5).await;
    write(&above[1], 0, 6).await;
    drop((cache, above));
    // Remove volume a for the second time, now from another region.
    assert_eq!(site.give_up("a").await, 1);
    let refused = refusal(site.open(&all).await);
    assert!(refused.contains("volume \"a\""), "{refused}");
    let (cache, above) = site.open(&all[..2]).await.expect("opened");
    assert_eq!([read(&above[0], 0).await, read(&above[1], 0).await].map(Result::unwrap), [2, 6]);
    assert_eq!(inspect(&site.log).await.expect("a log").dirty_slots, 2);
    tokio::spawn(cache.run());
    drained(&cache).await;
    let far = [&site.a, &site.b, &c].map(|volume| &volume.far);
    assert_eq!([far[0].peek(0, 1).await[0], far[1].peek(0, 1).await[0]], [0, 2]);
    assert_eq!(far[2].peek(0, 1).await[0], 6);
}

#[tokio::test(start_paused = true)]
async fn data_of_a_removed_volume_that_is_only_in_the_nvram_is_discarded_too() {
    let site = Site::immediate();
    let (cache, above) = site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
    // Write without waiting for the log: the data is only in the NVRAM.
    for volume in &above {
        let written = volume.write(Lba(0), filled(9, 8), Durability::Volatile);
        assert!(futures_util::FutureExt::now_or_never(written).is_some_and(|w| w.is_ok()));
    }
    drop((cache, above));
    let free = |site: &Site| site.memory.0.lock().clone();
    let before = free(&site);
    assert_eq!(site.give_up("b").await, 1);
    let (cache, above) = site.open(&[("a", &site.a)]).await.expect("opened");
    assert_eq!(read(&above[0], 0).await.expect("read"), 9);
    assert_ne!(free(&site), before);
    tokio::spawn(cache.run());
    drained(&cache).await;
    cache.stop().await.expect("stopped");
    assert_eq!(site.a.far.peek(0, 1).await[0], 9);
    drop((cache, above));
    take_in(&site.log, "b").await.expect("it was given up");
    let (_cache, above) = site.open(&[("a", &site.a), ("b", &site.b)]).await.expect("opened");
    assert_eq!(read(&above[1], 0).await.expect("read"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_region_of_a_removed_volume_is_reused_when_the_log_has_none_of_its_data() {
    let site = Site::new();
    let names: Vec<_> = (0..=16).map(|number| format!("volume {number}")).collect();
    let volumes: Vec<_> = names.iter().map(|_| Claimed::new(64)).collect();
    let all: Vec<_> = names.iter().map(|name| &**name).zip(&volumes).collect();
    let (cache, above) = site.open(&all[..16]).await.expect("opened");
    write(&above[0], 0, 1).await;
    write(&above[1], 0, 2).await;
    drop((cache, above));
    site.give_up("volume 0").await;
    let refused = refusal(site.open(&all[1..]).await);
    assert!(refused.contains("too many volumes while the log has data"), "{refused}");
    let (cache, above) = site.open(&all[1..16]).await.expect("opened");
    tokio::spawn(cache.run());
    drained(&cache).await;
    cache.stop().await.expect("stopped");
    drop((cache, above));
    let (cache, above) = site.open(&all[1..]).await.expect("opened");
    assert_eq!([read(&above[15], 0).await, read(&above[0], 0).await].map(Result::unwrap), [0, 2]);
    assert_eq!(cache.given_up().await, []);
}

//! Tests with several writers and a node that loses writes that were not flushed.

use std::{cell::Cell, sync::Arc};

use sim::{AbilityProbe, Restarting, Rng, yield_now};
use volume::{FaultCallKind, FaultRule, FaultVolume, Faults, MemVolume, ObserveVolume, Symptom};

use super::*;

const BLOCKS: u64 = 16;
const WRITERS: u64 = 3;

/// A writer that writes, discards, reads and flushes in a part of the volume of its own.
struct Writer<'a> {
    volume: &'a dyn Volume,
    far: &'a Restarting,
    rng: Rng,
    first: u64,
    /// The byte that fills each block which this writer owns.
    model: Vec<u8>,
    busy: &'a Cell<u64>,
}

impl Writer<'_> {
    async fn work(mut self) -> Result<(), String> {
        for step in 0..40 {
            self.step()
                .await
                .map_err(|fault| format!("writer at {}, step {step}: {fault}", self.first))?;
        }
        self.busy.set(self.busy.get().saturating_sub(1));
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let start = self.rng.below(BLOCKS);
        let blocks = 1 + self.rng.below((BLOCKS - start).min(6));
        let mine = start as usize..(start + blocks) as usize;
        let extent = Extent { lba: Lba(self.first + start), blocks: blocks as u32 };
        let byte = self.rng.next_u64() as u8;
        let failed = |error: Error| format!("{error}");
        match self.rng.below(10) {
            kind @ 0..=4 => {
                let durability = if kind == 0 { Durability::Stable } else { Durability::Volatile };
                let data = vec![byte; blocks as usize * 512].into();
                self.volume.write(extent.lba, data, durability).await.map_err(failed)?;
                self.model[mine].fill(byte);
            }
            5 => {
                self.volume.discard(extent).await.map_err(failed)?;
                self.model[mine].fill(0);
            }
            6 | 7 => {
                let data = self.volume.read(extent).await.map_err(failed)?.into_bytes();
                let read: Vec<u8> = data.chunks(512).map(|block| block[0]).collect();
                if read != self.model[mine.clone()] {
                    return Err(format!("{read:?} is read of {:?}", &self.model[mine]));
                }
            }
            _ => {
                match self.volume.flush().await {
                    Ok(()) => {}
                    // The node restarted during every attempt. This flush has guaranteed nothing; the next one covers
                    // all writes.
                    Err(Error::Device(_)) => return Ok(()),
                    Err(error) => return Err(failed(error)),
                }
                let size = BLOCKS * 512;
                let start = self.first * 512;
                let left = self.far.left().read(start..start + size);
                let left: Vec<u8> = left.chunks(512).map(|block| block[0]).collect();
                if left != self.model {
                    return Err(format!("{left:?} is left of {:?}", self.model));
                }
            }
        }
        Ok(())
    }
}

/// Runs several writers while the node restarts from time to time.
async fn run(volume: &dyn Volume, far: &Restarting, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let busy = Cell::new(WRITERS);
    let writers = (0..WRITERS).map(|n| {
        let model = vec![0; BLOCKS as usize];
        Writer { volume, far, rng: rng.fork(), first: n * BLOCKS, model, busy: &busy }.work()
    });
    let mut all = stream::iter(writers).buffer_unordered(WRITERS as usize);
    let restarts = async {
        let mut rng = Rng::new(seed ^ 0xbeef);
        while busy.get() > 0 {
            for _ in 0..20 + rng.below(60) {
                yield_now().await;
            }
            far.restart();
        }
    };
    let written = async {
        let mut result = Ok(());
        while let Some(done) = all.next().await {
            if result.is_ok() && done.is_err() {
                busy.set(0);
                result = done;
            }
        }
        result
    };
    tokio::join!(written, restarts).0
}

fn far(seed: u64) -> Arc<Restarting> {
    Arc::new(Restarting::new(Geometry::with_blocks(WRITERS * BLOCKS), seed))
}

#[tokio::test]
async fn flushed_data_survives_any_number_of_restarts_of_the_far_volume() {
    let mut losses = 0;
    for seed in 0..400 {
        let far = far(seed);
        let volume = Resend::with_limit(far.clone(), 8 * 512 * (1 + seed % 7));
        let outcome = run(&volume, &far, seed).await;
        assert_eq!(outcome, Ok(()), "seed {seed}");
        losses += volume.state.lock().losses;
    }
    assert!(losses > 400, "the far volume lost data {losses} times");
}

#[tokio::test]
async fn without_this_layer_the_test_notices_losses() {
    let mut seen = 0;
    for seed in 0..20 {
        let far = far(seed);
        seen += u32::from(run(&*far, &far, seed).await.is_err());
    }
    assert!(seen >= 5, "{seen} of 20");
}

fn observed(limit: u64) -> (Resend, Arc<Faults>, Arc<volume::VolumeCallCounters>) {
    let fault = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(1 << 16))));
    let faults = fault.faults().clone();
    let observe = ObserveVolume::new(Arc::new(fault));
    let counters = observe.counters().clone();
    (Resend::with_limit(Arc::new(observe), limit), faults, counters)
}

fn restarts(times: u64) -> FaultRule {
    FaultRule::always(FaultCallKind::Flush, Symptom::Fails(Error::Device("it restarted".into())))
        .times(times)
}

async fn write(volume: &Resend, lba: u64) -> Result<(), Error> {
    volume.write(Lba(lba), vec![7; 4096].into(), Durability::Volatile).await
}

#[tokio::test]
async fn no_more_is_kept_than_the_limit_and_one_write() {
    let limit = 10 * 4096;
    let (volume, faults, counters) = observed(limit);
    for n in 0..200 {
        write(&volume, n * 8).await.unwrap();
        assert!(volume.state.lock().kept() <= limit + 4096 + ENTRY_BYTES);
    }
    let flushes = counters.counts().flushes;
    assert!((18..=20).contains(&flushes), "{flushes}");
    // Discards are kept like writes and count towards the limit.
    for n in 0..500 {
        volume.discard(Extent { lba: Lba(n * 8), blocks: 8 }).await.unwrap();
        assert!(volume.state.lock().kept() <= limit + 4096 + ENTRY_BYTES);
    }
    // While flushes fail, a write that exceeds the limit is refused; the writes that are kept are not dropped.
    volume.flush().await.unwrap();
    let away = Symptom::Fails(Error::Unreachable("away".into()));
    faults.add(FaultRule::always(FaultCallKind::Flush, away).times(3));
    let before = counters.counts().writes;
    let mut refused = 0;
    for n in 0..12 {
        refused += u64::from(write(&volume, n * 8).await.is_err());
    }
    assert_eq!((refused, counters.counts().writes - before), (2, 10));
    assert_eq!(volume.state.lock().unflushed.within(Extent { lba: Lba(0), blocks: 800 }).len(), 10);
    assert!(volume.flush().await.is_err());
    volume.flush().await.unwrap();
    assert!(volume.state.lock().kept() == 0);
}

#[tokio::test]
async fn writes_that_could_not_be_resent_are_sent_by_the_next_flush() {
    let (volume, faults, counters) = observed(1 << 20);
    write(&volume, 0).await.unwrap();
    write(&volume, 8).await.unwrap();
    faults.add(restarts(1));
    let busy = Symptom::Fails(Error::Busy("the log is full"));
    faults.add(FaultRule::always(FaultCallKind::Write, busy).times(1));
    assert!(matches!(volume.flush().await, Err(Error::Busy(_))));
    volume.flush().await.unwrap();
    assert_eq!(counters.counts().writes, 4);
    // The node restarts during each attempt, or fails in another way that it reports like a restart.
    write(&volume, 0).await.unwrap();
    faults.add(restarts(u64::from(ATTEMPTS)));
    assert!(matches!(volume.flush().await, Err(Error::Device(_))));
    let sent = counters.counts().writes;
    volume.flush().await.unwrap();
    assert_eq!(counters.counts().writes, sent + 1);
}

#[tokio::test]
async fn a_write_that_failed_is_undone_by_the_next_flush() {
    let (volume, faults, counters) = observed(1 << 20);
    write(&volume, 0).await.unwrap();
    let away = Symptom::Fails(Error::Unreachable("away".into()));
    faults.add(FaultRule::always(FaultCallKind::Write, away).times(1));
    let other = volume.write(Lba(4), vec![9; 4096].into(), Durability::Volatile);
    assert!(other.await.is_err());
    let sent = counters.counts().writes;
    volume.flush().await.unwrap();
    assert_eq!(counters.counts().writes, sent + 1);
}

#[tokio::test]
async fn a_flush_without_new_writes_does_not_reach_the_lower_volume() {
    let (volume, _, counters) = observed(1 << 20);
    // The first flush reaches the volume although this layer has written nothing: an earlier process may have left
    // unflushed writes.
    volume.flush().await.unwrap();
    assert_eq!(counters.counts().flushes, 1);
    volume.flush().await.unwrap();
    write(&volume, 0).await.unwrap();
    let (one, other) = tokio::join!(volume.flush(), volume.flush());
    one.and(other).unwrap();
    assert_eq!(counters.counts().flushes, 2);
}

#[tokio::test]
async fn calls_about_space_and_size_reach_the_lower_volume() {
    let lower = Arc::new(AbilityProbe::new(Geometry::with_blocks(64)));
    let volume = Resend::new(lower.clone());
    let expected =
        ["flush_ahead -> flush", "allocation", "usage", "admit", "examine -> read", "refresh"];
    assert_eq!(lower.calls_through(&volume).await, expected);
}

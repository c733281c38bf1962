//! The read path. Content comes from the nearest of these sources: memory, log disk, read tier, lower volume.
//!
//! 1. [`CacheCore::begin_read`] answers a read from memory without waiting, if all of it is there. The same call
//!    starts read-ahead.
//! 2. Otherwise [`CacheCore::read`] makes a plan under the lock: the source of each slot (`plan`).
//! 3. The plan is executed without the lock: blocks of the log (`log_blocks`), and fetches from the tier or the
//!    lower volume, which readers of the same slots share (`fetching`).
//! 4. If content has moved meanwhile, for example because destage has freed a block of the log, the read makes a
//!    new plan.
//! 5. If the data includes writes that are not acknowledged yet, the read waits until the log has them.
//!
//! `flushed` reads the volume as of the last flush, for initiators other than the owner of the claim.

mod log_blocks;
mod fetching;
mod plan;
pub(crate) mod flushed;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use volume::{Data, Error};

pub(crate) use self::plan::{bytes_of, cut};
use self::{
    fetching::MOST_FETCHED,
    plan::{NewerSectors, ReadPlan, SlotReadSource},
};
use crate::{
    core::CacheCore,
    fetch::{FetchResult, Origin},
    lower::flow::ReadPurpose,
    slots::{
        sectors::{SECTOR_BYTES, SLOT_BYTES, copy_sectors, mask},
        table::LogAddress,
    },
    state::CacheState,
};

impl CacheCore {
    /// Begins a read of `sectors` sectors. Returns their content if memory has all of it and it may be returned
    /// to a host now. Also returns the purpose of the read. Starts read-ahead if the read continues a sequential
    /// stream.
    pub fn begin_read(self: &Arc<Self>, sector: u64, sectors: u64) -> (Option<Data>, ReadPurpose) {
        let (hit, (purpose, ahead)) = {
            let mut state = self.state.lock();
            let hit = self.read_memory(&mut state, sector, sectors);
            let waits = hit.is_none();
            (hit, self.note_read(&mut state, sector, sectors, waits))
        };
        for fetch in ahead {
            let shared = Arc::clone(self);
            self.counters.hits.read_ahead_bytes.add(u64::from(fetch.count) * SLOT_BYTES as u64);
            tokio::spawn(async move { shared.run_fetch(&fetch, ReadPurpose::Ahead).await });
        }
        (hit, purpose)
    }

    fn read_memory(&self, state: &mut CacheState, sector: u64, sectors: u64) -> Option<Data> {
        if sectors > LONGEST_STEP {
            return None;
        }
        let mut data = Data::new();
        let (mut pending, mut slots) = (0, 0);
        let visibility = self.visibility(state);
        for (slot, first, count) in cut(sector, sectors) {
            let index = state.table.find(slot)?;
            let entry = state.table.entry(index);
            if !visibility.shows(entry) {
                return None;
            }
            let wanted = mask(first, count);
            pending += u64::from(entry.pending());
            slots += 1;
            if entry.zero {
                data.append(Data::zeros(count as usize * SECTOR_BYTES));
            } else if entry.valid & wanted == wanted {
                let page = state.table.touch(index)?;
                data.push(page.slice(bytes_of(first, count)));
            } else {
                return None;
            }
        }
        let answered = if pending > 0 {
            &self.counters.hits.reads_nvram
        } else {
            &self.counters.hits.reads_dram
        };
        answered.add(1);
        self.counters.hits.hits_nvram.add(pending);
        self.counters.hits.hits_dram.add(slots - pending);
        Some(data)
    }

    /// Reads `sectors` sectors from `sector` on, from memory, log, read tier or lower volume.
    pub async fn read(
        self: &Arc<Self>,
        sector: u64,
        sectors: u64,
        purpose: ReadPurpose,
    ) -> Result<Data, Error> {
        let (data, origin) = self.read_from_anywhere(sector, sectors, purpose).await?;
        let answered = match origin {
            Origin::Memory => &self.counters.hits.reads_dram,
            Origin::Log => &self.counters.hits.reads_log,
            Origin::Tier => &self.counters.hits.reads_tier,
            Origin::Lower => &self.counters.hits.reads_lower,
        };
        answered.add(1);
        Ok(data)
    }

    async fn read_from_anywhere(
        self: &Arc<Self>,
        sector: u64,
        sectors: u64,
        purpose: ReadPurpose,
    ) -> Result<(Data, Origin), Error> {
        if sectors <= LONGEST_STEP {
            return self.read_step(sector, sectors, purpose).await;
        }
        let steps = (sector..sector + sectors).step_by(LONGEST_STEP as usize);
        let all =
            join_all(steps.map(|step| {
                self.read_step(step, LONGEST_STEP.min(sector + sectors - step), purpose)
            }));
        let (mut data, mut farthest) = (Data::new(), Origin::Memory);
        for step in all.await {
            let (step, origin) = step?;
            data.append(step);
            farthest = farthest.max(origin);
        }
        Ok((data, farthest))
    }

    /// Performs one step of a read. The sources of all its sectors are looked up while the lock is held once.
    ///
    /// A reader relies on the data that it has read, as the writer relies on its acknowledgement: both get their answer
    /// only when the data is stable. If the log disk fails, the reader does not wait: the writers get the error.
    async fn read_step(
        self: &Arc<Self>,
        sector: u64,
        sectors: u64,
        purpose: ReadPurpose,
    ) -> Result<(Data, Origin), Error> {
        let mut farthest = Origin::Memory;
        loop {
            let longest = match purpose {
                ReadPurpose::Stream => self.longest_of_stream(),
                _ => MOST_FETCHED,
            };
            let plan = self.plan(&mut self.state.lock(), sector, sectors, longest);
            farthest = farthest.max(plan.origin());
            let unlogged = plan.unlogged;
            if let Some((data, origin)) = self.carry_out(plan, purpose).await? {
                if unlogged > 0
                    && let Err(error) = self.committed(unlogged).await
                    && self.pair.is_some()
                {
                    // Do not return the data: the partner may have taken over, and may not have the writes that
                    // this read has seen.
                    return Err(error);
                }
                return Ok((data, farthest.max(origin)));
            }
        }
    }

    /// Executes a plan. Returns the data and its farthest source. Returns `None` if content has moved
    /// meanwhile: then the caller makes a new plan.
    async fn carry_out(
        self: &Arc<Self>,
        plan: ReadPlan,
        purpose: ReadPurpose,
    ) -> Result<Option<(Data, Origin)>, Error> {
        let mut farthest = plan.origin();
        self.hasten_joined(&plan);
        let own = join_all(plan.own.iter().map(|fetch| self.run_fetch(fetch, purpose)));
        let (_, logged) = tokio::join!(own, self.read_logged(&plan));
        let Some(mut logged) = logged? else { return Ok(None) };
        logged.reverse();
        let mut data = Data::new();
        let mut fetched: Option<(u32, Origin, Data)> = None;
        let mut joined: Vec<u64> = Vec::new();
        for piece in plan.pieces {
            let bytes = bytes_of(piece.first, piece.count);
            match piece.source {
                SlotReadSource::Zeros => data.append(Data::zeros(bytes.len())),
                SlotReadSource::Page(page) => data.push(page.slice(bytes)),
                SlotReadSource::Log(_) => {
                    let block = logged.pop().expect("one block for each place in the plan");
                    data.append(block.slice(bytes.start, bytes.len()));
                }
                SlotReadSource::Lower { fetch, newer } => {
                    if fetched.as_ref().is_none_or(|(id, ..)| *id != fetch.id) {
                        match fetch.wait().await {
                            FetchResult::Done(origin, result) => {
                                fetched = Some((fetch.id, origin, result?));
                            }
                            FetchResult::Running | FetchResult::Abandoned => return Ok(None),
                        }
                    }
                    if !plan.own.iter().any(|own| own.id == fetch.id) {
                        joined.push(piece.slot);
                    }
                    let (_, origin, all) = fetched.as_ref().expect("it is this one now");
                    let is_here = *origin == Origin::Tier;
                    let found = if is_here {
                        &self.counters.hits.hits_tier
                    } else {
                        &self.counters.hits.misses
                    };
                    found.add(1);
                    farthest = farthest.max(*origin);
                    let at = (piece.slot - fetch.first) as usize * SLOT_BYTES;
                    let lower = |at: usize, length| all.slice(at, length);
                    match newer {
                        // A write that bypassed the log, and overtook this read, may not be stable in the
                        // lower volume. Read again.
                        NewerSectors::None if self.is_newer(piece.slot) => return Ok(None),
                        NewerSectors::None => data.append(lower(at + bytes.start, bytes.len())),
                        NewerSectors::Page { page, valid } => {
                            let merged = overlay(all, at, &page, valid);
                            data.push(merged.slice(bytes));
                        }
                        NewerSectors::Log(place) => {
                            let block = logged.pop().expect("one block for each place in the plan");
                            let merged = overlay(all, at, &block.into_bytes(), place.mask);
                            data.push(merged.slice(bytes));
                        }
                    }
                }
            }
        }
        self.use_joined(&joined);
        Ok(Some((data, farthest)))
    }

    /// Moves read-ahead in progress that this read needs to the end of the queue of the hosts' reads.
    fn hasten_joined(&self, plan: &ReadPlan) {
        let mut last = None;
        for piece in &plan.pieces {
            if let SlotReadSource::Lower { fetch, .. } = &piece.source
                && last != Some(fetch.id)
                && plan.own.iter().all(|own| own.id != fetch.id)
            {
                last = Some(fetch.id);
                self.lower.link.reads.hasten(fetch.id);
            }
        }
    }

    /// Counts a use of each page that a read took from a fetch which another call had begun. Otherwise pages
    /// that were read ahead would count as unused, and too many unused pages stop the read-ahead.
    fn use_joined(&self, slots: &[u64]) {
        if slots.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for slot in slots {
            if let Some(index) = state.table.find(*slot) {
                state.table.use_ahead(index);
            }
        }
    }

    /// Returns true if the lower volume does not have the newest content of a slot.
    fn is_newer(&self, slot: u64) -> bool {
        let state = self.state.lock();
        let found = state.table.find(slot).map(|index| state.table.entry(index));
        found.is_some_and(|entry| entry.place.is_some() || entry.pending())
    }

    /// Reads the log blocks that a plan needs, in the order of the plan. Returns `None` if one of the places
    /// no longer has the newest content of its slot.
    async fn read_logged(&self, plan: &ReadPlan) -> Result<Option<Vec<Data>>, Error> {
        let wanted: Vec<(u64, LogAddress)> = plan
            .pieces
            .iter()
            .filter_map(|piece| match &piece.source {
                SlotReadSource::Log(place)
                | SlotReadSource::Lower { newer: NewerSectors::Log(place), .. } => {
                    Some((piece.slot, *place))
                }
                _ => None,
            })
            .collect();
        if wanted.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let blocks = self.read_log_blocks(&wanted).await;
        let mut state = self.state.lock();
        let unmoved = wanted.iter().all(|&(slot, place)| {
            state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place))
        });
        // Before the read had ended, the log may have freed and overwritten one of these blocks: plan the read again.
        if !unmoved {
            return Ok(None);
        }
        let blocks = blocks?;
        for (&(slot, place), block) in wanted.iter().zip(&blocks) {
            self.keep_logged(&mut state, slot, place, block);
        }
        Ok(Some(blocks))
    }
}

/// Returns a slot of fetched data, overwritten with the newer sectors.
fn overlay(fetched: &Data, at: usize, newer: &[u8], valid: u8) -> Bytes {
    let mut merged = vec![0; SLOT_BYTES];
    let length = SLOT_BYTES.min(fetched.len() - at);
    fetched.slice(at, length).copy_to_slice(&mut merged[..length]);
    copy_sectors(newer, &mut merged, valid);
    merged.into()
}

/// The maximum number of sectors that are looked up under one lock: 1 MiB, some ten microseconds.
const LONGEST_STEP: u64 = 2048;

//! The read path: memory, then the log disk, then the read tier, then the lower volume.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use volume::{Data, Error, Extent, Lba, Volume};

use crate::{
    checksum::crc32c,
    core::CacheCore,
    fetch::{FetchResult, Origin, SlotFetch},
    flow::ReadPurpose,
    mutant::Mutant,
    slot::{
        Came, LogAddress, NONE, SECTOR_BYTES, SECTORS, SLOT_BYTES, SlotEntry, WHOLE, copy_sectors,
        mask,
    },
    state::{CacheState, Fetches},
    tier,
};

/// Where one slot of a read comes from.
enum SlotReadSource {
    Zeros,
    /// The page has all the sectors wanted.
    Page(Bytes),
    /// The log has all the sectors wanted.
    Log(LogAddress),
    /// The fetch brings them, but for the sectors that are newer in the cache.
    Lower {
        fetch: Arc<SlotFetch>,
        newer: NewerSectors,
    },
}

/// Sectors of a slot that the lower volume does not have yet.
#[derive(Clone)]
enum NewerSectors {
    None,
    Page { page: Bytes, valid: u8 },
    Log(LogAddress),
}

/// What of the cache's content readers are told before it is in the log: what writers are.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Telling {
    Everything,
    /// What is in the NVRAM, which is stable. Discards are not.
    Held,
    Nothing,
}

impl Telling {
    fn tells(self, entry: &SlotEntry) -> bool {
        let is_held = || entry.nvram != NONE && !entry.zero;
        !entry.pending() || self == Self::Everything || (self == Self::Held && is_held())
    }
}

/// Part of a read that lies in one slot.
struct SlotReadPiece {
    slot: u64,
    first: u32,
    count: u32,
    source: SlotReadSource,
}

/// Everything a read needs, as of one moment.
struct ReadPlan {
    pieces: Vec<SlotReadPiece>,
    /// Fetches that this read has to run.
    own: Vec<Arc<SlotFetch>>,
    /// The serial up to which all must be in the log before anybody is told what was found.
    untold: u64,
}

impl ReadPlan {
    /// Where it looks, before what it fetches has come.
    fn origin(&self) -> Origin {
        let is_log = |piece: &SlotReadPiece| {
            matches!(
                piece.source,
                SlotReadSource::Log(_) | SlotReadSource::Lower { newer: NewerSectors::Log(_), .. }
            )
        };
        if self.pieces.iter().any(is_log) { Origin::Log } else { Origin::Memory }
    }
}

impl CacheCore {
    /// Begins a read of `sectors` sectors. Returns their content if all of it is in memory and may be returned to a host now,
    /// and the purpose of the read. Starts read-ahead if the read continues a sequential stream.
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
        let telling = self.telling(state);
        for (slot, first, count) in cut(sector, sectors) {
            let index = state.table.find(slot)?;
            let entry = state.table.entry(index);
            if !telling.tells(entry) {
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

    /// The sectors from `sector` on, wherever they are.
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

    fn telling(&self, state: &CacheState) -> Telling {
        match self.acknowledges_early(state) {
            _ if self.mutation.is(Mutant::ReadTellsEarly) => Telling::Everything,
            true if self.rules.nvram_is_stable => Telling::Held,
            true => Telling::Everything,
            false => Telling::Nothing,
        }
    }

    /// A part of a read that is looked up in one go.
    ///
    /// Whoever reads what was written takes it for kept, as the writer does: neither is told before it is
    /// stable. Of a log disk that fails nothing is awaited: its writers were told so.
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
            let untold = plan.untold;
            if let Some((data, origin)) = self.carry_out(plan, purpose).await? {
                if untold > 0
                    && let Err(error) = self.committed(untold).await
                    && self.pair.is_some()
                {
                    // The partner may have taken over without it.
                    return Err(error);
                }
                return Ok((data, farthest.max(origin)));
            }
        }
    }

    /// Decides for each slot where it comes from, and begins the fetches that are needed, each of at most `longest`
    /// slots.
    fn plan(&self, state: &mut CacheState, sector: u64, sectors: u64, longest: usize) -> ReadPlan {
        let mut plan = ReadPlan { pieces: Vec::new(), own: Vec::new(), untold: 0 };
        let telling = self.telling(state);
        // Slots from here on that have no fetch yet; joined into one when the run ends.
        let mut missing: Vec<usize> = Vec::new();
        for (slot, first, count) in cut(sector, sectors) {
            let wanted = mask(first, count);
            if telling != Telling::Everything
                && let Some(index) = state.table.find(slot)
            {
                let entry = state.table.entry(index);
                let untold = if telling.tells(entry) { 0 } else { entry.version };
                plan.untold = plan.untold.max(untold);
            }
            let found = self.find(state, slot, wanted);
            let source = match found {
                Ok(source) => source,
                Err((Some(fetch), newer)) => SlotReadSource::Lower { fetch, newer },
                Err((None, newer)) => {
                    missing.push(plan.pieces.len());
                    // Replaced when the run is known.
                    plan.pieces.push(SlotReadPiece {
                        slot,
                        first,
                        count,
                        source: match newer {
                            NewerSectors::None => SlotReadSource::Zeros,
                            NewerSectors::Page { page, .. } => SlotReadSource::Page(page),
                            NewerSectors::Log(place) => SlotReadSource::Log(place),
                        },
                    });
                    if missing.len() == longest {
                        self.begin(state, &mut plan, &mut missing);
                    }
                    continue;
                }
            };
            self.begin(state, &mut plan, &mut missing);
            plan.pieces.push(SlotReadPiece { slot, first, count, source });
        }
        self.begin(state, &mut plan, &mut missing);
        plan
    }

    /// Where a slot comes from; or what must be fetched for it, by whom, and what is newer.
    fn find(
        &self,
        state: &mut CacheState,
        slot: u64,
        wanted: u8,
    ) -> Result<SlotReadSource, (Option<Arc<SlotFetch>>, NewerSectors)> {
        let Some(index) = state.table.find(slot) else {
            return Err((None, NewerSectors::None));
        };
        let entry = state.table.entry(index);
        let fetch = entry.fetch;
        let (valid, place, zero, pending) = (entry.valid, entry.place, entry.zero, entry.pending());
        if zero {
            self.counters.hits.hits_dram.add(1);
            return Ok(SlotReadSource::Zeros);
        }
        let newer = match (state.table.touch(index), place) {
            (Some(page), _) if valid & wanted == wanted => {
                let hits = if pending {
                    &self.counters.hits.hits_nvram
                } else {
                    &self.counters.hits.hits_dram
                };
                hits.add(1);
                return Ok(SlotReadSource::Page(page.clone()));
            }
            (Some(page), _) => NewerSectors::Page { page: page.clone(), valid },
            (None, Some(place)) if place.mask & wanted == wanted => {
                self.counters.hits.hits_log.add(1);
                return Ok(SlotReadSource::Log(place));
            }
            (None, Some(place)) => NewerSectors::Log(place),
            (None, None) => NewerSectors::None,
        };
        Err((state.fetches.running.get(&fetch).cloned(), newer))
    }

    /// Makes fetches of a run of slots, one if all are in one place, and tells their entries.
    fn begin(&self, state: &mut CacheState, plan: &mut ReadPlan, missing: &mut Vec<usize>) {
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return };
        let (first, last) = (plan.pieces[first].slot, plan.pieces[last].slot);
        for run in runs_to_fetch(state, first, (last - first + 1) as u32) {
            let fetch = state.fetches.begin(run);
            for at in missing.drain(..fetch.count as usize) {
                let piece = &mut plan.pieces[at];
                let index = state.table.find_or_insert(piece.slot);
                state.table.entry_mut(index).fetch = fetch.id;
                let valid = state.table.entry(index).valid;
                let newer = match std::mem::replace(&mut piece.source, SlotReadSource::Zeros) {
                    SlotReadSource::Page(page) => NewerSectors::Page { page, valid },
                    SlotReadSource::Log(place) => NewerSectors::Log(place),
                    SlotReadSource::Zeros | SlotReadSource::Lower { .. } => NewerSectors::None,
                };
                piece.source = SlotReadSource::Lower { fetch: Arc::clone(&fetch), newer };
            }
            plan.own.push(fetch);
        }
    }

    /// Does what a plan says, and tells how far it had to go. None if something moved meanwhile: plan
    /// again.
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
                        // What came to the lower volume past the log, and past this, may not be there for good.
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

    /// Moves read-ahead that this read of a host waits for to the hosts' queue.
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

    /// Counts pages as used whose content a read took from a fetch that somebody else had begun. Pages that were
    /// read ahead would otherwise count as unused, and too many of those stop the reading ahead.
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

    /// Whether the lower volume does not have the newest content of a slot.
    fn is_newer(&self, slot: u64) -> bool {
        let state = self.state.lock();
        let found = state.table.find(slot).map(|index| state.table.entry(index));
        found.is_some_and(|entry| entry.place.is_some() || entry.pending())
    }

    /// The log blocks that a plan needs, in its order; none if one of them is no longer what it
    /// was.
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
        // What was read before its place was given up and written over may be anything.
        if !unmoved {
            return Ok(None);
        }
        let blocks = blocks?;
        for (&(slot, place), block) in wanted.iter().zip(&blocks) {
            self.keep_logged(&mut state, slot, place, block);
        }
        Ok(Some(blocks))
    }

    /// Keeps a block of the log in memory, if there is room for it.
    fn keep_logged(&self, state: &mut CacheState, slot: u64, place: LogAddress, block: &Data) {
        let Some(index) = state.table.find(slot) else { return };
        if state.table.page(index).is_some() || state.table.entry(index).pending() {
            return;
        }
        let Some(mut page) = self.take_page(state) else { return };
        block.copy_to_slice(&mut page);
        state.table.set_page(index, page.freeze(), place.mask, Came::Wanted);
    }

    /// Reads the logged content of a slot. None if it is no longer its newest.
    pub async fn load(&self, slot: u64, place: LogAddress) -> Result<Option<Data>, Error> {
        let read = self.read_log(slot, &place).await;
        let state = self.state.lock();
        let current =
            state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place));
        if current { read.map(Some) } else { Ok(None) }
    }

    /// The data block of a place, whole.
    async fn read_log(&self, slot: u64, place: &LogAddress) -> Result<Data, Error> {
        let mut blocks = self.read_log_blocks(&[(slot, *place)]).await?;
        Ok(blocks.pop().expect("one was asked for"))
    }

    /// The data blocks of places, each checked; neighbours are read together.
    pub async fn read_log_blocks(&self, places: &[(u64, LogAddress)]) -> Result<Vec<Data>, Error> {
        let mut blocks = Vec::with_capacity(places.len());
        let mut at = 0;
        while at < places.len() {
            let first = places[at].1.block;
            let run = places[at..]
                .iter()
                .zip(0..MOST_LOGGED)
                .take_while(|((_, place), i)| place.block == first + i)
                .count();
            let extent = Extent { lba: Lba(u64::from(first)), blocks: run as u32 };
            let data = self.log.volume.read(extent).await;
            let data = data.ok().filter(|data| data.len() == run * SLOT_BYTES);
            for (i, &(slot, place)) in places[at..at + run].iter().enumerate() {
                let block = data.as_ref().map(|data| data.slice(i * SLOT_BYTES, SLOT_BYTES));
                let block = block.map(Data::into_bytes).filter(|b| crc32c(b) == place.checksum);
                let block = match block {
                    Some(block) => block.into(),
                    None => self.mend_log(slot, &place).await?,
                };
                blocks.push(self.open_logged(slot, &place, block)?);
            }
            at += run;
        }
        Ok(blocks)
    }

    /// The content of a data block of the log.
    fn open_logged(&self, slot: u64, place: &LogAddress, block: Data) -> Result<Data, Error> {
        let Some(seals) = &self.log.seals else { return Ok(block) };
        match seals.open(slot, place, &block.into_bytes()) {
            Some(opened) => Ok(Bytes::from(opened as Box<[u8]>).into()),
            None => {
                let error = Error::Device("its key does not open what is on it".into());
                Err(self.log_error(slot, error))
            }
        }
    }

    /// The data block of a place that could not be read, or was not what it should be: from another
    /// copy, if there is one, which mends the bad one.
    async fn mend_log(&self, slot: u64, place: &LogAddress) -> Result<Data, Error> {
        match self.log.examine(place).await {
            Ok(Some(block)) => {
                self.counters.log.mended.add(1);
                Ok(block)
            }
            Ok(None) => {
                let error = Error::Device("the data has changed on the log disk".into());
                Err(self.log_error(slot, error))
            }
            Err(error) => Err(self.log_error(slot, error)),
        }
    }

    /// An error of the log disk in terms of this volume.
    fn log_error(&self, slot: u64, error: Error) -> Error {
        let blocks = (u64::from(SECTORS) / self.lower.sectors_per_block()) as u32;
        Error::Medium {
            extent: Extent { lba: self.lower.lba(slot * u64::from(SECTORS)), blocks },
            reason: format!("log disk: {error}").into(),
        }
    }

    /// Reads what a fetch is for and gives it to the cache and to all who wait.
    async fn run_fetch(self: &Arc<Self>, fetch: &Arc<SlotFetch>, purpose: ReadPurpose) {
        let host = purpose.is_of_host();
        let guard = FetchGuard { shared: self, fetch, host };
        if host {
            self.lower.link.host_fetches.fetch_add(1, Ordering::Relaxed);
        }
        let found = self.read_tier(fetch).await;
        let (origin, result) = match found {
            Some(data) => (Origin::Tier, Ok(data)),
            None => (Origin::Lower, self.read_lower(fetch, purpose).await),
        };
        if let Ok(data) = &result {
            self.keep_fetched(fetch, data, host);
        }
        fetch.finish(FetchResult::Done(origin, result));
        drop(guard);
    }

    /// Reads what a fetch is for from the lower volume.
    async fn read_lower(&self, fetch: &SlotFetch, purpose: ReadPurpose) -> Result<Data, Error> {
        let sectors = self.lower.end_of(fetch.first);
        let first = fetch.first * u64::from(SECTORS);
        let count = (u64::from(fetch.count) * u64::from(SECTORS)).min(sectors - first);
        let blocks = (count / self.lower.sectors_per_block()) as u32;
        let result = match self.make_lower_stable().await {
            Ok(()) => {
                let extent = Extent { lba: self.lower.lba(first), blocks };
                let bytes = count * SECTOR_BYTES as u64;
                self.read_when_admitted(fetch.id, purpose, extent, bytes).await
            }
            Err(error) => Err(error),
        };
        self.note_lower(&result);
        result
    }

    /// Waits for admission to the link, then reads `extent`, which has `bytes` bytes, from the lower volume.
    async fn read_when_admitted(
        &self,
        fetch: u32,
        purpose: ReadPurpose,
        extent: Extent,
        bytes: u64,
    ) -> Result<Data, Error> {
        if purpose == ReadPurpose::Random {
            self.lower.link.writes.lock().note_short(Instant::now());
        }
        let passage = self.lower.link.reads.admit(purpose, fetch, bytes).await;
        let begun = Instant::now();
        let data = self.lower.volume.read(extent).await?;
        if data.len() as u64 != bytes {
            return Err(Error::Device("the lower volume returned fewer bytes".into()));
        }
        passage.answered();
        self.counters.hits.fetched_bytes.add(bytes);
        let most_piece = self.lower.link.reads.longest_burst() / SLOT_BYTES as u64;
        self.state.lock().fetches.streams.fetched_in(begun.elapsed(), most_piece);
        Ok(data)
    }

    /// Puts fetched content into the table where nothing newer has come.
    fn keep_fetched(&self, fetch: &SlotFetch, data: &Data, host: bool) {
        let came = if host { Came::Wanted } else { Came::Ahead };
        let mut slot = fetch.first;
        let end = fetch.first + u64::from(fetch.count);
        while slot < end {
            // Pages first, then copies without the lock, then all into the table.
            let mut pages = Vec::new();
            {
                let mut state = self.state.lock();
                let wanted = (end - slot).min(COPIED_AT_ONCE) as usize;
                while pages.len() < wanted
                    && let Some(page) = self.take_page(&mut state)
                {
                    pages.push(page);
                }
            }
            if pages.is_empty() {
                return;
            }
            let start = slot;
            for page in &mut pages {
                let at = (slot - fetch.first) as usize * SLOT_BYTES;
                let length = SLOT_BYTES.min(data.len() - at);
                data.slice(at, length).copy_to_slice(&mut page[..length]);
                page[length..].fill(0);
                slot += 1;
            }
            // The last one may be cut short by the end of the volume, which may grow.
            let last = data.len().div_ceil(SLOT_BYTES) as u64 + fetch.first - 1;
            let short = mask(0, (data.len() % SLOT_BYTES / SECTOR_BYTES) as u32);
            let mut state = self.state.lock();
            for (slot, mut page) in (start..).zip(pages) {
                let Some(index) = state.table.find(slot) else { continue };
                let entry = state.table.entry(index);
                // Changed since: what was fetched is old, at least in part.
                if entry.fetch != fetch.id || entry.pending() {
                    continue;
                }
                let valid = entry.valid;
                match state.table.page(index) {
                    Some(newer) => copy_sectors(newer, &mut page, valid),
                    // The newer sectors are in the log only; the next read merges them again.
                    None if entry.place.is_some() => continue,
                    None => {}
                }
                let fetched = if slot == last && short != 0 { short } else { WHOLE };
                state.table.set_page(index, page.freeze(), fetched | valid, came);
            }
        }
    }

    /// Records a read among the sequential streams. Returns its purpose, and the read-ahead to be started.
    fn note_read(
        &self,
        state: &mut CacheState,
        sector: u64,
        sectors: u64,
        waits: bool,
    ) -> (ReadPurpose, Vec<Arc<SlotFetch>>) {
        let pages = self.settings.dram_bytes / SLOT_BYTES as u64 / AHEAD_SHARE;
        let most = (u64::from(self.settings.read_ahead_bytes) / SLOT_BYTES as u64).min(pages);
        if most == 0 {
            return (ReadPurpose::Random, Vec::new());
        }
        let CacheState { fetches: Fetches { running, streams, .. }, table, lower, .. } =
            &mut *state;
        // Read nothing ahead while the far side cannot be read, while many fetches are under way, or while much of the
        // earlier read-ahead has not been used yet.
        let is_vain = lower.error.is_some()
            || running.len() >= MOST_FETCHES
            || u64::from(table.ahead().unused) >= pages;
        let most = if is_vain { 0 } else { most };
        let noted = streams.note(sector..sector + sectors, waits, most, || table.ahead());
        let purpose = if noted.continues { ReadPurpose::Stream } else { ReadPurpose::Random };
        let Some(range) = noted.ahead else { return (purpose, Vec::new()) };
        let end = self.lower.end_of(sector / u64::from(SECTORS)).div_ceil(u64::from(SECTORS));
        let longest = self.longest_of_stream() as u64;
        (purpose, missing_runs(state, range.start, range.end.min(end), longest))
    }

    /// Returns the most slots of one fetch of a sequential reader.
    fn longest_of_stream(&self) -> usize {
        let slots = self.lower.link.reads.longest_request() / SLOT_BYTES as u64;
        (slots as usize).clamp(1, MOST_FETCHED)
    }
}

/// Takes the fetch out of the books, also if whoever runs it is dropped in the middle.
struct FetchGuard<'a> {
    shared: &'a CacheCore,
    fetch: &'a SlotFetch,
    host: bool,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        let fetch = self.fetch;
        let mut state = self.shared.state.lock();
        state.fetches.running.remove(&fetch.id);
        for slot in fetch.first..fetch.first + u64::from(fetch.count) {
            let Some(index) = state.table.find(slot) else { continue };
            let entry = state.table.entry_mut(index);
            if entry.fetch == fetch.id {
                entry.fetch = 0;
                state.table.remove_if_empty(index);
            }
        }
        drop(state);
        if self.host {
            self.shared.lower.link.host_fetches.fetch_sub(1, Ordering::Relaxed);
        }
        fetch.finish(FetchResult::Abandoned);
        // Pages of its slots can be taken now.
        self.shared.signals.changed.notify_waiters();
    }
}

/// Cuts a run of slots by where they are to be fetched from.
fn runs_to_fetch(state: &CacheState, first: u64, count: u32) -> Vec<tier::TierPiece> {
    let slots = first..first + u64::from(count);
    // What is written past the log leaves memory before it leaves the tier: in between, what the tier has
    // would come back into memory and stay there.
    if state.slot_locks.overlap(slots.start, slots.end) {
        return vec![tier::TierPiece::missing(slots)];
    }
    state.tier.cut(first, count)
}

/// Fetches for the slots of `first .. end` of which nothing is known, each of at most `longest` slots.
fn missing_runs(state: &mut CacheState, first: u64, end: u64, longest: u64) -> Vec<Arc<SlotFetch>> {
    let mut fetches = Vec::new();
    let mut slot = first;
    while slot < end {
        let start = slot;
        while slot < end && slot - start < longest && state.table.find(slot).is_none() {
            slot += 1;
        }
        if slot > start {
            for run in runs_to_fetch(state, start, (slot - start) as u32) {
                let fetch = state.fetches.begin(run);
                for slot in fetch.first..fetch.first + u64::from(fetch.count) {
                    let index = state.table.find_or_insert(slot);
                    state.table.entry_mut(index).fetch = fetch.id;
                }
                fetches.push(fetch);
            }
        } else {
            slot += 1;
        }
    }
    fetches
}

/// Cuts sectors at slots: slot, first sector in it, how many.
pub(crate) fn cut(sector: u64, sectors: u64) -> impl Iterator<Item = (u64, u32, u32)> {
    let end = sector + sectors;
    let mut here = sector;
    std::iter::from_fn(move || {
        (here < end).then(|| {
            let first = (here % u64::from(SECTORS)) as u32;
            let count = u64::from(SECTORS - first).min(end - here) as u32;
            let piece = (here / u64::from(SECTORS), first, count);
            here += u64::from(count);
            piece
        })
    })
}

pub(crate) fn bytes_of(first: u32, count: u32) -> std::ops::Range<usize> {
    first as usize * SECTOR_BYTES..(first + count) as usize * SECTOR_BYTES
}

/// A slot of fetched data with the newer sectors in it.
fn overlay(fetched: &Data, at: usize, newer: &[u8], valid: u8) -> Bytes {
    let mut merged = vec![0; SLOT_BYTES];
    let length = SLOT_BYTES.min(fetched.len() - at);
    fetched.slice(at, length).copy_to_slice(&mut merged[..length]);
    copy_sectors(newer, &mut merged, valid);
    merged.into()
}

/// Sectors looked up under one lock: 1 MiB, some ten microseconds.
const LONGEST_STEP: u64 = 2048;
/// Most slots in one fetch, 256 KiB: a long run comes in pieces, side by side, and who waits for one
/// of them does not wait for the others.
const MOST_FETCHED: usize = 64;
/// Most slots in one read of the log: 1 MiB.
const MOST_LOGGED: u32 = 256;
/// Pages that were read ahead and not used yet are at most one in so many.
const AHEAD_SHARE: u64 = 8;
/// The cache starts no read-ahead while so many fetches are in flight or wait. Their bookkeeping takes less than 1 MiB.
const MOST_FETCHES: usize = 1024;
/// Slots copied between two looks at the table: some ten microseconds.
const COPIED_AT_ONCE: u64 = 32;

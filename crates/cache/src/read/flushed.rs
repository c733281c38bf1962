//! Reads the volume as of the last flush, for caches in which only a flush ends an epoch.
//!
//! Initiators other than the owner of the claim read like this: the owner is in the middle of an epoch most
//! of the time, and a part of an epoch is no consistent prefix of its hosts' writes. The content that a slot
//! had at the last flush is in the log, at the address that the slot has in the newest sealed epoch, or else
//! in the lower volume.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use journal::segment::LogRecordKind;
use volume::{Data, Error, Extent, Volume};

use crate::{
    core::CacheCore,
    read::{bytes_of, cut},
    slots::{
        sectors::{SECTOR_BYTES, SECTORS, WHOLE, mask, runs},
        table::LogAddress,
    },
    state::CacheState,
};

/// The part of a read that lies within one slot of 4 KiB.
struct FlushedReadPiece {
    slot: u64,
    first: u32,
    count: u32,
    /// The sectors of the slot that the lower volume lacks as of the last flush.
    newer: UnflushedSectors,
}

enum UnflushedSectors {
    None,
    Zeros,
    Page { page: Bytes, valid: u8 },
    Log(LogAddress),
}

impl FlushedReadPiece {
    /// Returns the wanted sectors that must be read from the lower volume.
    fn below(&self) -> u8 {
        let newer = match &self.newer {
            UnflushedSectors::None => 0,
            UnflushedSectors::Zeros => WHOLE,
            UnflushedSectors::Page { valid, .. } => *valid,
            UnflushedSectors::Log(place) => place.mask,
        };
        mask(self.first, self.count) & !newer
    }
}

impl CacheState {
    /// Returns the content of a slot as of the end of the newest sealed epoch.
    fn flushed(&self, slot: u64) -> UnflushedSectors {
        let Some(index) = self.table.find(slot) else { return UnflushedSectors::None };
        let entry = self.table.entry(index);
        let is_open = |place: &LogAddress| place.segment > self.epochs.end();
        let place = if entry.place.as_ref().is_some_and(is_open) {
            self.epochs.replaced(index)
        } else {
            entry.place
        };
        let is_newest = !entry.pending() && place == entry.place;
        match (self.table.page(index), place) {
            _ if is_newest && entry.zero => UnflushedSectors::Zeros,
            (Some(page), _) if is_newest => {
                UnflushedSectors::Page { page: page.clone(), valid: entry.valid }
            }
            (_, Some(place)) if place.kind == LogRecordKind::Zero => UnflushedSectors::Zeros,
            (_, Some(place)) => UnflushedSectors::Log(place),
            (_, None) => UnflushedSectors::None,
        }
    }
}

impl CacheCore {
    /// Reads the sectors that begin at `sector`, as of the end of one epoch: the newest one that was sealed at
    /// some moment during the call.
    ///
    /// # Errors
    /// Epochs do not end with a flush in this cache; or the log disk or the lower volume fails.
    pub async fn read_flushed(&self, sector: u64, sectors: u64) -> Result<Data, Error> {
        if !self.rules.epochs_end_by_flush {
            return Err(Error::Device("writes of this cache take effect without a flush".into()));
        }
        self.make_lower_stable().await?;
        // Keep a round from beginning: it would overwrite content in the lower volume that this read is about to
        // fetch with content of a later epoch.
        let _no_round_begins = self.lower.flushed_reads.read().await;
        // At most two tries are needed. The first try may fail because the round that was running has freed a
        // part of the log. No other round begins during this call.
        loop {
            if let Some(data) = self.try_read_flushed(sector, sectors).await? {
                return Ok(data);
            }
        }
    }

    /// Tries the read once. Returns `None` if the running round has ended meanwhile and has freed a log block
    /// that this read needs.
    async fn try_read_flushed(&self, sector: u64, sectors: u64) -> Result<Option<Data>, Error> {
        let pieces: Vec<FlushedReadPiece> = {
            let state = self.state.lock();
            cut(sector, sectors)
                .map(|(slot, first, count)| {
                    let newer = state.flushed(slot);
                    FlushedReadPiece { slot, first, count, newer }
                })
                .collect()
        };
        let places: Vec<_> = pieces
            .iter()
            .filter_map(|piece| match piece.newer {
                UnflushedSectors::Log(place) => Some((piece.slot, place)),
                _ => None,
            })
            .collect();
        let runs = runs_below(&pieces);
        let is_here = runs.is_empty();
        let below = stream::iter(runs).map(|run| self.read_run(run)).buffered(MOST_AT_ONCE);
        let (logged, below) =
            tokio::join!(self.read_log_blocks(&places), below.try_collect::<Vec<_>>());
        let is_live = {
            let state = self.state.lock();
            places.iter().all(|(_, place)| state.log.ring.reaches_back_to(place.segment))
        };
        if !is_live {
            return Ok(None);
        }
        let data = join(&pieces, &logged?, &below?);
        let counters = &self.counters;
        let answered = match (is_here, places.is_empty()) {
            (false, _) => &counters.hits.reads_lower,
            (true, false) => &counters.hits.reads_log,
            (true, true) => &counters.hits.reads_dram,
        };
        answered.add(1);
        Ok(Some(data))
    }

    /// Reads a run of sectors from the lower volume.
    async fn read_run(&self, run: FlushedReadRun) -> Result<(u64, Data), Error> {
        let blocks = ((run.end - run.start) / self.lower.sectors_per_block()) as u32;
        let read = self.lower.volume.read(Extent { lba: self.lower.lba(run.start), blocks }).await;
        self.note_lower(&read);
        let data = read?;
        if data.len() as u64 != (run.end - run.start) * SECTOR_BYTES as u64 {
            return Err(Error::Device("the far volume returned fewer bytes".into()));
        }
        self.counters.hits.fetched_bytes.add(data.len() as u64);
        Ok((run.start, data))
    }
}

/// Adjacent sectors that are read from the lower volume with one call.
struct FlushedReadRun {
    start: u64,
    end: u64,
}

fn runs_below(pieces: &[FlushedReadPiece]) -> Vec<FlushedReadRun> {
    let mut all: Vec<FlushedReadRun> = Vec::new();
    for piece in pieces {
        for (first, count) in runs(piece.below()) {
            let start = piece.slot * u64::from(SECTORS) + u64::from(first);
            let end = start + u64::from(count);
            match all.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => all.push(FlushedReadRun { start, end }),
            }
        }
    }
    all
}

/// Assembles the data of a read. `logged` has one log block for each piece that is in the log; `below` has the
/// runs from the lower volume, each with its first sector.
fn join(pieces: &[FlushedReadPiece], logged: &[Data], below: &[(u64, Data)]) -> Data {
    let (mut logged, mut below) = (logged.iter(), below.iter());
    let mut run: Option<&(u64, Data)> = None;
    let mut data = Data::new();
    for piece in pieces {
        let block = matches!(piece.newer, UnflushedSectors::Log(_))
            .then(|| logged.next().expect("one block for each place"));
        let wanted = mask(piece.first, piece.count);
        let from_below = piece.below();
        // Go through the sectors in order. Each run of sectors comes wholly from one source.
        let mut sector = piece.first;
        while sector < piece.first + piece.count {
            let is_below = from_below & (1 << sector) != 0;
            let kind = if is_below { from_below } else { wanted & !from_below };
            let count = ((kind >> sector).trailing_ones()).min(piece.first + piece.count - sector);
            let bytes = bytes_of(sector, count);
            if is_below {
                let at = piece.slot * u64::from(SECTORS) + u64::from(sector);
                let ends_before = |(start, content): &(u64, Data)| {
                    start + (content.len() / SECTOR_BYTES) as u64 <= at
                };
                if run.is_none_or(ends_before) {
                    run = below.next();
                }
                let (start, content) = run.expect("each sector from below is in a run");
                data.append(content.slice((at - start) as usize * SECTOR_BYTES, bytes.len()));
            } else {
                match (&piece.newer, block) {
                    (UnflushedSectors::Page { page, .. }, _) => data.push(page.slice(bytes)),
                    (_, Some(block)) => data.append(block.slice(bytes.start, bytes.len())),
                    _ => data.append(Data::zeros(bytes.len())),
                }
            }
            sector += count;
        }
    }
    data
}

/// The maximum number of reads of the lower volume that one call has in flight.
const MOST_AT_ONCE: usize = 16;

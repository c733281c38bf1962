//! Sends the slots of a destage round to the lower volume. Adjacent sectors are joined into runs, and several
//! runs are in flight at once.

use std::{
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use journal::segment::LogRecordKind;
use tokio::time::{Instant, sleep};
use volume::{Data, Durability, Error, Extent, Lba, Volume};

use crate::{
    core::CacheCore,
    destage::pace::DestagePace,
    epoch::Item,
    lower::window::WindowTicket,
    mutant::Mutant,
    slots::{
        sectors::{SECTOR_BYTES, SECTORS, SLOT_BYTES, WHOLE, runs},
        table::LogAddress,
    },
};

/// Sends these slots to the lower volume. Leaves out slots that a bypassing write is changing now, and returns
/// them.
pub(crate) async fn send_all(
    shared: &Arc<CacheCore>,
    pace: &mut DestagePace,
    items: &[Item],
) -> Result<Vec<Item>, Error> {
    let mut cursor = DestageCursor { items, at: 0, sector: 0, claimed: Vec::new() };
    let mut under_way = FuturesUnordered::new();
    // The bytes of the runs in flight; a short run counts for `least_weight`.
    let mut weight = 0;
    let mut failure = None;
    // The round fails if the log disk cannot be read, but only after all other slots have been sent.
    let mut unreadable = None;
    loop {
        let stop = failure.is_some() || shared.ends_round(&shared.state.lock());
        let more = !stop && cursor.at < items.len();
        if !more && under_way.is_empty() {
            break;
        }
        let has_room = more && (under_way.is_empty() || has_room(shared, under_way.len(), weight));
        tokio::select! {
            biased;
            Some((counted, ticket, result)) = under_way.next(), if !under_way.is_empty() => {
                weight -= counted;
                note_trip(shared, ticket, &result);
                // Let other tasks run: if the lower volume answers at once every time, this loop would keep
                // its thread for the whole round.
                tokio::task::yield_now().await;
                match result {
                Ok(()) => {}
                Err(SendStop::Lower(error)) => failure = failure.or(Some(error)),
                Err(SendStop::Log(error)) => {
                    shared.counters.log.errors.add(1);
                    unreadable = unreadable.or(Some(error));
                }
                }
            },
            // Wake at intervals: a late run stops counting as in flight without an answer that would wake this
            // task.
            () = sleep(LOOK), if more && !has_room => {}
            () = pace.give_way(shared), if has_room => {
                if !shared.ends_round(&shared.state.lock())
                    && let Some(run) = cursor.next_run(shared, longest_run(shared))
                {
                    pace.spend(shared, run.data_bytes());
                    shared.counters.destage.joined_slots.add(run.parts.len() as u64 - 1);
                    let counted = run.data_bytes().max(least_weight(shared));
                    weight += counted;
                    // The window measures the rate at which data travels, so discards, which have no data, are not
                    // reported to it.
                    let ticket = (run.kind == LogRecordKind::Data)
                        .then(|| shared.lower.link.writes.lock().sent(run.data_bytes(), Instant::now()));
                    under_way.push(async move { (counted, ticket, send(shared, run).await) });
                }
            }
        }
    }
    // If the log is lost, reading it again is useless: continue with the other pieces of the round.
    let unreadable = unreadable.filter(|_| shared.state.lock().log.lost.is_none());
    match failure.or(unreadable) {
        Some(error) => Err(error),
        None => Ok(cursor.claimed),
    }
}

/// Returns true if another run may be sent while `runs` runs of `weight` bytes in all are in flight.
fn has_room(shared: &CacheCore, runs: usize, weight: u64) -> bool {
    runs < most_runs(shared)
        && weight < may_be_in_flight(shared)
        && shared.lower.link.writes.lock().has_room(Instant::now())
}

/// Returns the maximum number of runs that may be in flight: three quarters of the calls that the lower volume performs
/// at once. The rest is left to the requests of hosts.
fn most_runs(shared: &CacheCore) -> usize {
    (shared.lower.volume.extensions().most_calls.unwrap_or(USUAL_CALLS) * 3 / 4).max(1)
}

/// Reports the end of a run to the window. The measured time includes the reading of the log, so the window
/// is large enough to cover that time, too.
fn note_trip(shared: &CacheCore, ticket: Option<WindowTicket>, result: &Result<(), SendStop>) {
    let Some(ticket) = ticket else { return };
    let mut window = shared.lower.link.writes.lock();
    match result {
        Ok(()) => window.answered(ticket, Instant::now()),
        Err(_) => window.failed(ticket),
    }
}

/// Returns the maximum number of bytes in flight that the settings allow.
fn most_in_flight(shared: &CacheCore) -> u64 {
    shared.settings.destage_in_flight as u64 * u64::from(shared.settings.destage_run_bytes)
}

/// Returns the maximum number of bytes that may be in flight now. While a host waits for a read of the lower volume,
/// destage leaves the link to that read. Destage leaves less of the link the fuller the log is, because hosts would
/// soon wait for room in the log.
fn may_be_in_flight(shared: &CacheCore) -> u64 {
    let most = most_in_flight(shared);
    if shared.lower.link.host_fetches.load(Ordering::Relaxed) == 0 {
        return most;
    }
    let window = shared.lower.link.writes.lock().estimate().window;
    let state = shared.state.lock();
    if state.destage.is_starving {
        return most;
    }
    let filled = f64::from(state.log.ring.used()) / f64::from(state.log.ring.blocks());
    let threshold = shared.settings.destage_threshold;
    let pressure = ((filled - threshold) / (1.0 - threshold)).clamp(0.0, 1.0);
    ((most.min(window) as f64 * pressure) as u64).max(1)
}

/// Returns the maximum number of bytes of data in a run. Runs are shorter while hosts send random reads, since such a
/// read has to wait until the link has transmitted the runs before it. Runs are longer than `destage_run_bytes` if the
/// link holds more than [`RUNS_IN_LINK`] of that length, because the lower volume performs a limited number of calls at
/// once.
fn longest_run(shared: &CacheCore) -> u64 {
    let far_writes = shared.lower.link.writes.lock();
    let needed = far_writes.estimate().window / RUNS_IN_LINK;
    let longest = far_writes.longest_request(Instant::now());
    longest.min(needed.max(u64::from(shared.settings.destage_run_bytes)))
}

/// Returns the least number of bytes that a run counts for in the limit of bytes in flight: a quarter of the
/// longest run. If the settings allow one run at a time, every run counts as one of the longest.
fn least_weight(shared: &CacheCore) -> u64 {
    let longest = u64::from(shared.settings.destage_run_bytes);
    if shared.settings.destage_in_flight == 1 { longest } else { longest / 4 }
}

/// The reason why a run was not sent.
enum SendStop {
    /// The lower volume has failed the call. The round sends no more.
    Lower(Error),
    /// The log disk could not be read.
    Log(Error),
}

/// Adjacent dirty sectors that destage sends with one write.
struct DestageRun {
    /// The first sector of the run.
    start: u64,
    end: u64,
    kind: LogRecordKind,
    parts: Vec<DestageRunPart>,
    /// The slots of the run, as listed in `DestageRound::in_flight`.
    slots: (u64, u64),
}

impl DestageRun {
    /// Returns the number of data bytes that are sent. Zeros are sent as a discard, without data.
    fn data_bytes(&self) -> u64 {
        if self.kind == LogRecordKind::Data {
            (self.end - self.start) * SECTOR_BYTES as u64
        } else {
            0
        }
    }
}

/// The sectors of one slot in a [`DestageRun`].
struct DestageRunPart {
    slot: u64,
    place: LogAddress,
    first: u32,
    count: u32,
    /// The page of the slot, if it is in memory and has the version of `place`.
    page: Option<Bytes>,
}

/// The position in a list of slots that are being sent.
struct DestageCursor<'a> {
    items: &'a [Item],
    at: usize,
    /// The first sector of the current slot that has not been sent.
    sector: u32,
    claimed: Vec<Item>,
}

impl DestageCursor<'_> {
    /// Makes the next run, of at most `longest` bytes of data, and lists it in `DestageRound::in_flight`.
    fn next_run(&mut self, shared: &CacheCore, longest: u64) -> Option<DestageRun> {
        let mut state = shared.state.lock();
        let state = &mut *state;
        let mut run: Option<DestageRun> = None;
        for _ in 0..STEP {
            let Some(&item) = self.items.get(self.at) else { break };
            // Skip a slot for which a bypassing write has put newer content into the lower volume. Check this
            // for every run, because such a write may come between two runs of one slot.
            if !state.table.is_alive(item.index, item.incarnation) {
                self.at += 1;
                self.sector = 0;
                continue;
            }
            // A bypassing write is changing this slot. If that write fails, the whole slot is sent later.
            if state.slot_locks.overlap(item.slot, item.slot + 1)
                && !shared.mutation.is(Mutant::RoundIgnoresClaims)
            {
                self.claimed.push(item);
                self.at += 1;
                self.sector = 0;
                continue;
            }
            let undone = (u32::from(WHOLE) << self.sector) as u8;
            let mask = item.place.mask & shared.lower.whole(item.slot) & undone;
            let Some((first, count)) = runs(mask).next() else {
                self.at += 1;
                self.sector = 0;
                continue;
            };
            let start = item.slot * u64::from(SECTORS) + u64::from(first);
            let end = start + u64::from(count);
            let kind = item.place.kind;
            let run = run.get_or_insert_with(|| DestageRun {
                start,
                end: start,
                kind,
                parts: Vec::new(),
                slots: (item.slot, item.slot),
            });
            let long = (end - run.start) * SECTOR_BYTES as u64 > longest;
            if run.end != start || run.kind != kind || (long && kind == LogRecordKind::Data) {
                break;
            }
            run.end = end;
            run.slots.1 = item.slot + 1;
            let entry = state.table.entry(item.index);
            // A page that is newer than the round's last segment must not be sent: the lower volume would
            // then hold a mix of old and new writes that no host has seen.
            let same = entry.place == Some(item.place) && !entry.pending();
            let same = same || shared.mutation.is(Mutant::DestageUnlogged);
            let page = if same { state.table.page(item.index).cloned() } else { None };
            run.parts.push(DestageRunPart {
                slot: item.slot,
                place: item.place,
                first,
                count,
                page,
            });
            self.sector = first + count;
        }
        if let Some(run) = &run {
            let round = state.destage.round.as_mut().expect("it lasts until its runs are done");
            round.in_flight.push(run.slots);
        }
        run
    }
}

/// Sends the adjacent sectors of `run` to the lower volume, and removes them from `DestageRound::in_flight`.
async fn send(shared: &CacheCore, run: DestageRun) -> Result<(), SendStop> {
    let result = send_run(shared, &run).await;
    {
        let mut state = shared.state.lock();
        if let Some(round) = &mut state.destage.round
            && let Some(at) = round.in_flight.iter().position(|slots| *slots == run.slots)
        {
            round.in_flight.swap_remove(at);
            if result.is_ok() {
                round.sent_bytes += (run.slots.1 - run.slots.0) * SLOT_BYTES as u64;
            }
        }
    }
    shared.signals.changed.notify_waiters();
    result
}

async fn send_run(shared: &CacheCore, run: &DestageRun) -> Result<(), SendStop> {
    let blocks = ((run.end - run.start) / shared.lower.sectors_per_block()) as u32;
    let extent = Extent { lba: shared.lower.lba(run.start), blocks };
    if run.kind != LogRecordKind::Data {
        return note_sent(shared, shared.lower.volume.discard(extent).await);
    }
    match content(shared, &run.parts).await {
        Ok(data) => write_down(shared, extent.lba, data).await,
        Err(_) => send_parts(shared, run).await,
    }
}

/// Sends the slots of a run one by one, so that a slot that cannot be read from the log does not hold up the
/// others.
async fn send_parts(shared: &CacheCore, run: &DestageRun) -> Result<(), SendStop> {
    let mut unreadable = Ok(());
    for part in &run.parts {
        let sector = part.slot * u64::from(SECTORS) + u64::from(part.first);
        match content(shared, slice::from_ref(part)).await {
            Ok(data) => write_down(shared, shared.lower.lba(sector), data).await?,
            Err(error) => {
                if let Some(round) = &mut shared.state.lock().destage.round {
                    round.corrupt.push((part.slot, part.place));
                }
                unreadable = unreadable.and(Err(SendStop::Log(error)));
            }
        }
    }
    unreadable
}

async fn write_down(shared: &CacheCore, lba: Lba, data: Data) -> Result<(), SendStop> {
    shared.counters.destage.destaged_bytes.add(data.len() as u64);
    note_sent(shared, shared.lower.volume.write(lba, data, Durability::Volatile).await)
}

fn note_sent(shared: &CacheCore, sent: Result<(), Error>) -> Result<(), SendStop> {
    shared.note_round(&sent);
    shared.counters.destage.destaged_runs.add(u64::from(sent.is_ok()));
    sent.map_err(SendStop::Lower)
}

/// Returns the data of these slots: from memory if the page is there, otherwise from the log. The log does
/// not overwrite these blocks before the round ends.
async fn content(shared: &CacheCore, parts: &[DestageRunPart]) -> Result<Data, Error> {
    let logged: Vec<_> = parts
        .iter()
        .filter(|part| part.page.is_none())
        .map(|part| (part.slot, part.place))
        .collect();
    let mut blocks = shared.read_log_blocks(&logged).await?.into_iter();
    let mut data = Data::new();
    for part in parts {
        let (at, length) = (part.first as usize * SECTOR_BYTES, part.count as usize * SECTOR_BYTES);
        match &part.page {
            Some(page) => data.push(page.slice(at..at + length)),
            None => {
                let block = blocks.next().expect("one block for each part without a page");
                data.append(block.slice(at, length));
            }
        }
    }
    Ok(data)
}

/// The maximum number of slots that are looked at without releasing the lock: some tens of
/// microseconds.
const STEP: usize = 1024;
/// The assumed limit of concurrent calls of a lower volume that reports none: the default queue depth of a remote
/// volume.
const USUAL_CALLS: usize = 128;
/// The maximum number of runs of the usual length in the link. If the link holds more, runs are
/// longer.
const RUNS_IN_LINK: u64 = 64;
/// How often a round looks for late runs. No run is late before this time.
const LOOK: Duration = Duration::from_millis(100);

const _: () = assert!(SLOT_BYTES == SECTORS as usize * SECTOR_BYTES);

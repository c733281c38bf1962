//! Level 2 destage: sends dirty data from the log to the lower volume, in rounds.
//!
//! A round sends one epoch: the content that each of its slots had at the last segment of the epoch, the
//! *cut*. Overwritten blocks are sent once. When a round is complete, the lower volume is what the cached
//! volume was at the cut, apart from writes that bypassed the log. Then the tail of the log moves behind the
//! cut. `pace` decides when destage continues, and how fast.
//!
//! If the lower volume keeps the order of a flush and the writes after it (`volume::OrderedFlush`), the
//! writes of the next round are sent while the flush of a round is in progress: decision 0009 has the proof.

pub(crate) mod pace;
pub(crate) mod failed_round;
pub(crate) mod sending;
pub(crate) mod drain;

mod clean;

use std::{
    collections::HashMap,
    future::pending,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use tokio::{
    sync::{Mutex, OwnedRwLockWriteGuard, oneshot},
    time::{Instant, sleep},
};
use volume::{ConditionChange, Error, Volume};

use self::clean::{STEP, clean};
use crate::{
    core::CacheCore,
    destage::{
        failed_round::{FailedRounds, RoundFailure, tell},
        pace::{DestagePace, refresh_superblock},
        sending::send_all,
    },
    epoch::{Item, limit},
    slots::{sectors::SLOT_BYTES, table::LogAddress},
    state::{CacheState, DestageRound, SPLIT_QUIET},
};

/// Destages until the cache is stopped.
pub(crate) async fn run(shared: Arc<CacheCore>) {
    let pace = Mutex::new(DestagePace::new());
    let mut trouble = FailedRounds::default();
    let mut chain = Chain::default();
    while chain.next.is_some() || wait_for_work(&shared).await {
        if chain.next.is_none() {
            pace.lock().await.give_way(&shared).await;
        }
        match round(&shared, &pace, &mut chain).await {
            Ok(()) => {
                if trouble.end() {
                    tracing::info!("destage continues");
                }
                shared.tell_when_sent();
            }
            Err(RoundFailure { error: Error::Fenced(reason), .. }) => {
                tracing::warn!(
                    %reason,
                    remedy = "keep the log; `forebay claim show` at the node names the owner of the \
                     volume; see docs/reference/claims.md#refused-logs",
                    "destage has ended: this gateway is fenced"
                );
                refresh_superblock(&shared).await;
                give_up_round(&shared);
                shared.wait_until(|state| state.destage.is_stopping.then_some(())).await;
            }
            Err(failed) => {
                let is_sent = failed.is_sent;
                let delay = tell(&shared, &mut trouble, failed);
                // Do this before abandoning the round: export() reads "no round" as "log is idle".
                refresh_superblock(&shared).await;
                let last = shared.state.lock().destage.round.as_ref().map(|round| round.cut);
                let corrupt = give_up_round(&shared);
                if let Some(cut) = last.filter(|_| is_sent)
                    && has_sent_rest(&shared, cut)
                {
                    shared.rest_without(cut, &corrupt).await;
                    continue;
                }
                let unnamed = trouble.unnamed(&corrupt);
                if !unnamed.is_empty() && shared.state.lock().log.lost.is_none() {
                    shared.name_unreadable(&unnamed).await;
                }
                end_lower_epoch(&shared, !corrupt.is_empty()).await;
                pause(&shared, delay).await;
            }
        }
    }
}

/// Waits until there is dirty data, or the log holds records that only a round can free. Returns false if the
/// cache is stopping.
async fn wait_for_work(shared: &CacheCore) -> bool {
    loop {
        let mut wake = std::pin::pin!(shared.signals.wake_destage.notified());
        wake.as_mut().enable();
        shared.follow_growth().await;
        {
            let state = shared.state.lock();
            if state.destage.is_stopping {
                return false;
            }
            let work = if shared.rules.epochs_end_by_flush {
                state.epochs.oldest().is_some()
            } else {
                state.table.dirty() > 0 || state.log.ring.segments() > 0
            };
            if work {
                return true;
            }
        }
        wake.await;
    }
}

/// Sleeps, but ends early if the cache is being stopped.
async fn pause(shared: &CacheCore, time: Duration) {
    let stopping = shared.wait_until(|state| state.destage.is_stopping.then_some(()));
    tokio::select! {
        () = sleep(time) => {}
        () = stopping => {}
    }
}

/// A sequence of rounds in which each round begins while the flush of the previous round is running.
#[derive(Default)]
struct Chain<'a> {
    /// The lock on `LowerVolume::epoch_turn`: calls that bypass the log wait until the sequence has ended.
    turn: Option<OwnedRwLockWriteGuard<()>>,
    /// The round that was begun while the current flush is running.
    next: Option<Sending<'a>>,
}

/// The sending of the next round, or its result while the flush of the current round is still running.
type Sending<'a> = MaybeDone<BoxFuture<'a, Result<Option<SentRound>, RoundFailure>>>;

struct BegunRound {
    /// The number of the round's last segment.
    cut: u64,
    /// The last segment of the previous round, if this round begins while the flush of that one is running.
    after: Option<u64>,
    started: Instant,
    /// The maximum number of slots that the lower volume makes stable together (as one epoch); 0 if it has no epochs.
    most: u64,
}

/// A destage round whose writes the lower volume has answered. The flush at its end is still to be sent.
struct SentRound {
    opened: BegunRound,
    /// The value of [`LowerVolume::known_losses`] before the first write that the next flush has to make
    /// stable.
    losses: u64,
    /// The number of parts in which the round was sent.
    pieces: u64,
}

/// Completes one round: sends its writes (or continues a round that was begun during the previous flush),
/// flushes the lower volume and moves the tail of the log. If the next round was begun meanwhile, it is in
/// `chain` afterwards.
async fn round<'a>(
    shared: &'a Arc<CacheCore>,
    pace: &'a Mutex<DestagePace>,
    chain: &mut Chain<'a>,
) -> Result<(), RoundFailure> {
    let ended = try_round(shared, pace, chain).await;
    if ended.is_err()
        && let Some(next) = &mut chain.next
    {
        if let Some(round) = &mut shared.state.lock().destage.round {
            round.is_void = true;
        }
        shared.signals.changed.notify_waiters();
        shared.signals.wake_destage.notify_one();
        // Wait for the answers to the writes of the next round before the rollback: a write that is performed
        // after the rollback would become stable with the next flush.
        next.await;
        chain.next = None;
        let mut state = shared.state.lock();
        state.destage.round = state.destage.flushing.take().map(DestageRound::new);
    }
    if chain.next.is_none() {
        chain.turn = None;
    }
    ended
}

async fn try_round<'a>(
    shared: &'a Arc<CacheCore>,
    pace: &'a Mutex<DestagePace>,
    chain: &mut Chain<'a>,
) -> Result<(), RoundFailure> {
    let sent = match chain.next.take() {
        Some(mut next) => {
            (&mut next).await;
            Pin::new(&mut next).take_output().expect("it is taken once")
        }
        None => {
            let opened = begin(shared, chain).await?;
            send_round(shared, pace, opened).await
        }
    };
    let Some(sent) = sent? else {
        give_up_round(shared);
        return Ok(());
    };
    let (begun, mut is_begun) = oneshot::channel();
    let mut completing = pin!(complete(shared, &sent, begun));
    let mut is_answered = false;
    loop {
        tokio::select! {
            biased;
            completed = &mut completing => return completed,
            begun = &mut is_begun, if !is_answered => {
                is_answered = true;
                if begun.is_ok() && let Some(opened) = follow(shared, sent.opened.cut) {
                    let sending: BoxFuture<'a, _> = Box::pin(send_round(shared, pace, opened));
                    chain.next = Some(maybe_done(sending));
                }
            }
            () = advance(&mut chain.next) => {}
        }
    }
}

/// Sends the writes of the next round, and returns when all are answered. If no next round has begun, or all
/// of its writes are answered already, the future stays pending.
async fn advance(next: &mut Option<Sending<'_>>) {
    match next {
        Some(next @ MaybeDone::Future(_)) => next.await,
        _ => pending().await,
    }
}

/// Sends the writes of a round; all of them are answered when this returns. Returns `None` if the round must
/// not continue.
async fn send_round(
    shared: &Arc<CacheCore>,
    pace: &Mutex<DestagePace>,
    opened: BegunRound,
) -> Result<Option<SentRound>, RoundFailure> {
    let mut pace = pace.lock().await;
    // First write the segments of this round to the log disks. If the NVRAMs were lost after the lower volume
    // got newer writes, the next destage would send older content from the log disks over them.
    shared.log_on_disk().await?;
    let items = collect(shared, &opened).await;
    let mut rest = &items[..];
    let mut pieces = 0;
    loop {
        let (piece, later) = rest.split_at(fitting(rest, opened.most));
        let losses = shared.lower.known_losses();
        if !send_piece(shared, &mut pace, piece).await? {
            return Ok(None);
        }
        pieces += 1;
        rest = later;
        if rest.is_empty() {
            return Ok(Some(SentRound { opened, losses, pieces }));
        }
        // Wait for the flush of the previous round. If that failed, a flush of this piece would make writes
        // of this round stable without those of the previous round.
        shared
            .wait_until(|state| {
                (state.destage.flushing.is_none() || shared.ends_round(state)).then_some(())
            })
            .await;
        if shared.ends_round(&shared.state.lock()) {
            return Ok(None);
        }
        flush(shared, losses, None).await?;
    }
}

/// Makes the writes of a round stable in the lower volume. `losses` is the number of known losses before
/// these writes. `begun` gets a message as soon as writes of the next round are sure to be performed after
/// the flush.
async fn flush(
    shared: &CacheCore,
    losses: u64,
    begun: Option<oneshot::Sender<()>>,
) -> Result<(), RoundFailure> {
    let flushed = match begun {
        None => shared.flush_lower(losses).await,
        Some(begun) => {
            // If the cache is being dropped, the receiver may not exist any more.
            let begun = Box::new(move || _ = begun.send(()));
            shared.flush_lower_ahead(losses, begun).await
        }
    };
    // `tell` decides whether a device error counts as a refusal: a far volume that was reset reports one to
    // the next flush although it works.
    if !matches!(flushed, Err(Error::Device(_))) {
        shared.note_round(&flushed);
    }
    flushed.map_err(|error| RoundFailure { error, at_flush: true, is_sent: false })
}

/// Flushes a round whose writes were answered, and frees the log up to the end of the round.
async fn complete(
    shared: &Arc<CacheCore>,
    sent: &SentRound,
    begun: oneshot::Sender<()>,
) -> Result<(), RoundFailure> {
    let SentRound { opened: BegunRound { cut, started, most, .. }, losses, pieces } = *sent;
    // This order loses no data. First all data of the round is stable in the lower volume. Then the
    // superblock frees the log's copy. When that is stable, the slots count as clean, and from then on a
    // write may bypass the log without voiding their records. Only then may the log overwrite their blocks.
    flush(shared, losses, may_be_followed(shared).then_some(begun)).await?;
    {
        let mut state = shared.state.lock();
        // If a slot of this round was unreadable, the round has failed. If the next round was begun already,
        // `destage.round` is the next round, and its unreadable slots do not concern this one.
        let is_followed = state.destage.flushing.is_some();
        let is_corrupt =
            state.destage.round.as_ref().is_some_and(|round| !round.corrupt.is_empty());
        if is_corrupt && !is_followed {
            let error = Error::Device("a part of the epoch cannot be read from the log".into());
            return Err(RoundFailure { error, at_flush: false, is_sent: true });
        }
        state.lower.is_unflushed = is_followed;
    }
    shared.counters.order.split_rounds.add(u64::from(pieces > 1));
    let change = shared.state.lock().destage.rounds_split.turn_after(pieces > 1, SPLIT_QUIET);
    match change {
        Some(ConditionChange::Begins) => {
            tracing::warn!(
                pieces,
                most,
                remedy = "nothing has to be done, unless the far volume must always hold a consistent \
                 prefix: then make the log at the node larger, with `forebay gateway log-resize` there",
                "a round was too large for one epoch of the lower volume"
            );
        }
        Some(ConditionChange::Ends(lasted)) => tracing::info!(
            lasted_s = lasted.as_secs(),
            "every round fits into one epoch of the lower volume again"
        ),
        None => {}
    }
    let tail_block = shared.state.lock().log.ring.start(cut + 1);
    shared
        .write_superblock(|superblock| {
            superblock.tail = cut + 1;
            superblock.tail_block = tail_block;
        })
        .await?;
    clean(shared, cut, started).await;
    shared.counters.destage.rounds.add(1);
    shared.state.lock().lower.refuses = None;
    Ok(())
}

/// Returns true if the settings permit that the next round begins during the flush of the previous one. A
/// common log does not permit it, since each of its volumes would have to keep the order. Nor does a node's
/// own cache, which answers reads as of its latest flush.
fn may_be_followed(shared: &CacheCore) -> bool {
    shared.is_atomic_below() && !shared.rules.epochs_end_by_flush && shared.lower.joined.is_none()
}

/// Returns the size of an epoch of the lower volume in slots; 0 if it has no epochs. Also sets the limit of
/// new epochs of the log: a share of the log, so that the tail of the log moves often and the link is seldom
/// idle.
fn learn_limit(shared: &CacheCore) -> u64 {
    let slots = shared.lower.volume.geometry().epoch_blocks / shared.lower.blocks_per_slot();
    shared.lower.epoch_slots.store(slots, Ordering::Relaxed);
    if shared.is_strict() && !shared.rules.epochs_end_by_flush {
        let link = shared.lower.link.writes.lock().estimate().held() / SLOT_BYTES as u64;
        let mut state = shared.state.lock();
        let limit = limit(state.log.ring.blocks(), slots, link);
        state.epochs.set_limit(limit);
    }
    slots
}

/// Joins epochs for the next destage round, because short rounds leave the link idle: the link carries no writes
/// between two rounds, and epochs that were sealed before the speed of the link was known are short. The oldest epoch
/// that ends after segment `after` is joined with the epochs that follow it, as long as the joint epoch needs no more
/// destage writes than one epoch may need at the measured speed. Does nothing while a host waits for room in the log,
/// because a short round frees room sooner.
fn join_short(shared: &CacheCore, state: &mut CacheState, after: u64) {
    if state.destage.is_starving {
        return;
    }
    let link = shared.lower.link.writes.lock().estimate().held() / SLOT_BYTES as u64;
    let most =
        limit(state.log.ring.blocks(), shared.lower.epoch_slots.load(Ordering::Relaxed), link);
    let CacheState { epochs, table, .. } = state;
    epochs.join_up_to(after, table, most);
}

/// Flushes the lower volume after a failed round, if that helps the next attempt:
///
/// - In relaxed order, an epoch of the lower volume need not hold exactly one round. The flush makes the data
///   that was sent before the failure stable, and frees room for the next attempt.
/// - In strict order over a volume without atomic epochs, if some slots in the log are corrupt: the flush
///   makes the other slots stable. With atomic epochs it would end an incomplete epoch.
async fn end_lower_epoch(shared: &CacheCore, is_corrupt: bool) {
    let has_epochs = shared.lower.epoch_slots.load(Ordering::Relaxed) > 0;
    let is_wanted = if has_epochs { !shared.is_strict() } else { is_corrupt };
    if is_wanted {
        let flushed = shared.flush_lower(shared.lower.known_losses()).await;
        shared.note_lower(&flushed);
    }
}

/// Returns how many of the items fit into one epoch of the lower volume; at least one, unless `items` is
/// empty.
fn fitting(items: &[Item], most: u64) -> usize {
    if most == 0 {
        return items.len();
    }
    let mut weight = 0;
    let fit = items.iter().take_while(|item| {
        weight += item.weight();
        weight <= most
    });
    fit.count().max(1).min(items.len())
}

/// Sends one piece of a round to the lower volume. Returns false if the round must not continue.
async fn send_piece(
    shared: &Arc<CacheCore>,
    pace: &mut DestagePace,
    items: &[Item],
) -> Result<bool, Error> {
    let mut claimed;
    let mut items = items;
    while !items.is_empty() {
        claimed = send_all(shared, pace, items).await?;
        if shared.ends_round(&shared.state.lock()) {
            return Ok(false);
        }
        // Wait for bypassing calls that hold locks on these slots. Such a call voids the slots, or fails and
        // leaves them to this round. The tail must not move before that.
        let overlaps =
            |item: &Item, state: &CacheState| state.slot_locks.overlap(item.slot, item.slot + 1);
        shared
            .wait_until(|state| (!claimed.iter().any(|item| overlaps(item, state))).then_some(()))
            .await;
        items = &claimed;
    }
    Ok(true)
}

/// Begins the round of the oldest epoch. If no epoch has ended, the open one ends now.
async fn begin(shared: &CacheCore, chain: &mut Chain<'_>) -> Result<BegunRound, RoundFailure> {
    let started = Instant::now();
    let most = learn_limit(shared);
    if shared.is_atomic_below() {
        chain.turn = Some(Arc::clone(&shared.lower.epoch_turn).write_owned().await);
        shared.roll_back_lower().await?;
    }
    let _no_reads = shared.lower.flushed_reads.write().await;
    let mut state = shared.state.lock();
    if state.epochs.oldest().is_none() {
        let newest = state.log.ring.next() - 1;
        assert!(!shared.rules.epochs_end_by_flush, "a round waits for the end of an epoch");
        state.epochs.seal(newest);
    }
    join_short(shared, &mut state, 0);
    let cut = state.epochs.oldest().expect("one was sealed");
    state.table.rewind();
    state.lower.is_unflushed = true;
    state.destage.round = Some(DestageRound::new(cut));
    Ok(BegunRound { cut, after: None, started, most })
}

/// Begins the round that follows the flush of the round with this `cut`. Returns `None` if this round must
/// wait until that flush has ended.
fn follow(shared: &CacheCore, cut: u64) -> Option<BegunRound> {
    let started = Instant::now();
    let most = learn_limit(shared);
    let mut state = shared.state.lock();
    let is_held = state.destage.is_stopping || state.destage.orders.hold().is_some();
    // While the log disk fails, calls of hosts bypass the log, and wait until no round is running.
    let has_bypassing_calls =
        !state.slot_locks.is_empty() || shared.lower.waits_for_turn.load(Ordering::SeqCst) > 0;
    let is_whole = state.destage.round.as_ref().is_some_and(|round| round.corrupt.is_empty());
    if most == 0 || is_held || has_bypassing_calls || !is_whole || state.log_error().is_some() {
        return None;
    }
    join_short(shared, &mut state, cut);
    let next = state.epochs.following(cut)?;
    state.table.rewind();
    state.lower.is_unflushed = true;
    state.destage.flushing = Some(cut);
    state.destage.round = Some(DestageRound::new(next));
    Some(BegunRound { cut: next, after: Some(cut), started, most })
}

/// Returns true if the log is lost and the round with this `cut` has sent everything that could be read
/// from it.
fn has_sent_rest(shared: &CacheCore, cut: u64) -> bool {
    let state = shared.state.lock();
    state.log.lost.is_some() && state.queue.is_settled() && shared.newest_to_send(&state) == cut
}

/// Abandons a round that was not completed. The epoch remains the oldest one. Returns the slots of it that
/// could not be read from the log.
fn give_up_round(shared: &CacheCore) -> Vec<(u64, LogAddress)> {
    let corrupt =
        shared.state.lock().destage.round.take().map_or_else(Vec::new, |round| round.corrupt);
    shared.signals.changed.notify_waiters();
    if !corrupt.is_empty() {
        join_corrupt(shared, &corrupt);
    }
    corrupt
}

/// Joins an epoch that cannot be destaged with later epochs, which may hold newer content of the corrupt
/// slots. If the lower volume has atomic epochs, joins no more of them than necessary. Otherwise, and when
/// the log is lost, joins all, so that as much as possible is destaged.
fn join_corrupt(shared: &CacheCore, corrupt: &[(u64, LogAddress)]) {
    let has_epochs = shared.is_strict() && shared.lower.epoch_slots.load(Ordering::Relaxed) > 0;
    let mut state = shared.state.lock();
    let state = &mut *state;
    let has_epochs = has_epochs && state.log.lost.is_none();
    let newest = (!shared.rules.epochs_end_by_flush).then(|| state.log.ring.next() - 1);
    let corrupt: HashMap<u64, LogAddress> = corrupt.iter().copied().collect();
    let is_replaced = |item: &Item| corrupt.get(&item.slot) == Some(&item.place);
    while (!has_epochs || state.epochs.older(0).iter().any(is_replaced))
        && state.epochs.join_oldest(&state.table, newest)
    {}
}

/// Returns the slots that a round sends, sorted by address. The list is made in short steps.
async fn collect(shared: &CacheCore, opened: &BegunRound) -> Vec<Item> {
    let mut items = Vec::new();
    while collect_newest(shared, opened, &mut items) {
        tokio::task::yield_now().await;
    }
    // A slot that is overwritten during the first loop moves from the table to the epoch's list of older
    // versions.
    let mut taken = 0;
    while collect_older(shared, opened, &mut items, &mut taken) {
        tokio::task::yield_now().await;
    }
    let length = items.len();
    let sort = move || {
        items.sort_unstable_by_key(|item| (item.slot, item.incarnation));
        // A slot that was overwritten while the list was made is in the list twice.
        items.dedup_by_key(|item| (item.slot, item.incarnation));
        items
    };
    if length <= SORTED_INLINE {
        return sort();
    }
    tokio::task::spawn_blocking(sort).await.expect("sorting numbers does not panic")
}

/// Lists some slots whose newest place is in the epoch. Returns false when there are no more.
fn collect_newest(shared: &CacheCore, opened: &BegunRound, items: &mut Vec<Item>) -> bool {
    let mut state = shared.state.lock();
    let state = &mut *state;
    for _ in 0..STEP {
        let next = state.table.next_dirty().and_then(|index| {
            let place = state.table.entry(index).place;
            place.filter(|place| place.segment <= opened.cut).map(|place| (index, place))
        });
        let Some((index, place)) = next else { return false };
        // The previous round has sent this slot, and marks it clean when its flush is answered.
        if opened.after.is_some_and(|after| place.segment <= after) {
            continue;
        }
        let entry = state.table.entry(index);
        let (slot, incarnation) = (entry.slot, entry.incarnation);
        items.push(Item { slot, index, incarnation, place });
    }
    true
}

/// Lists some slots that were overwritten after the epoch. Returns false when there are no more.
fn collect_older(
    shared: &CacheCore,
    opened: &BegunRound,
    items: &mut Vec<Item>,
    taken: &mut usize,
) -> bool {
    let state = shared.state.lock();
    let older = state.epochs.older_of(opened.cut, *taken);
    let some = &older[..older.len().min(STEP)];
    items.extend_from_slice(some);
    *taken += some.len();
    !some.is_empty()
}

/// Longer lists are sorted on another thread. Sorting this many items takes about a millisecond.
const SORTED_INLINE: usize = 16384;

#[cfg(test)]
mod tests;

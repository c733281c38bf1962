//! A cache of a volume that other gateways write, too. Each call first obtains the coherence tokens of the
//! ranges that it touches (crate `coherence`, decision 0016). Before a token is given back, the dirty data of
//! its range is destaged, and clean data that may become stale is dropped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coherence::{
    Begin, Cleaning, CoherenceRange, CoherenceReply, CoherenceRequest, CoherenceTicket,
    CoherenceToken, Holder, Millis, read_answers, write_requests,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use volume::{
    Allocation, ConditionChange, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba,
    OngoingCondition, Provisioning, Stack, ThinSpaceUsage, Volume,
};

use crate::cache::Cache;

/// A cache whose lower volume is shared. Users call this layer, and never the cache directly.
pub struct Coherent {
    cache: Arc<Cache>,
    shared: Arc<CoherentCore>,
}

/// The state of the coherence tokens that a gateway holds for a shared volume.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenStatistics {
    /// True if the node has registered this gateway.
    pub joined: bool,
    /// True if the lease is valid: ranges that are held for reading may be used.
    pub leased: bool,
    pub shared: usize,
    pub exclusive: usize,
    /// Size of a range in bytes.
    pub grain_bytes: u64,
    /// Number of ranges whose tokens the node has recalled for other gateways.
    pub given_back: u64,
    /// Number of calls that have waited for a token.
    pub waited: u64,
    /// The reason why the volume cannot be used any more, if that is so.
    pub lost: Option<String>,
}

struct CoherentCore {
    lower: Stack,
    started: Instant,
    state: Mutex<CoherentState>,
    /// Signalled when there are token requests to send to the node.
    asks: Notify,
    /// Signalled when ranges have to be cleaned before their tokens are returned: without destage (0), with destage
    /// (1).
    cleans: [Notify; 2],
    /// Signalled when the node has answered for the first time, or when the volume cannot be used any more.
    known: Notify,
}

#[derive(Default)]
struct CoherentState {
    /// The token state machine; `None` until the node has reported the size of a range.
    holder: Option<Holder>,
    /// Size of a token's range in blocks; 0 until the node has reported it.
    grain: u32,
    lease: Millis,
    waiting: HashMap<CoherenceTicket, oneshot::Sender<()>>,
    requests: Vec<CoherenceRequest>,
    /// Ranges to clean: without destage (0), and with destage (1).
    cleaning: [Vec<Cleaning>; 2],
    given_back: u64,
    waited: u64,
    failed: Option<Error>,
}

/// A read or write that uses the token of a range. Dropping this ends the use, so the token may be returned.
struct CoherentRangeUse<'a> {
    shared: &'a CoherentCore,
    range: CoherenceRange,
}

/// A read or write that waits for the token of a range. Dropping this cancels the token request.
struct WaitingRangeUse<'a> {
    shared: &'a CoherentCore,
    range: CoherenceRange,
    ticket: Option<CoherenceTicket>,
}

impl Coherent {
    /// Wraps the cache of `lower`, which was opened with [`crate::Settings::shares`].
    #[must_use]
    pub fn new(cache: Arc<Cache>, lower: Stack) -> Arc<Self> {
        let shared = CoherentCore {
            lower,
            started: Instant::now(),
            state: Mutex::default(),
            asks: Notify::new(),
            cleans: [Notify::new(), Notify::new()],
            known: Notify::new(),
        };
        Arc::new(Self { cache, shared: Arc::new(shared) })
    }

    /// Exchanges messages with the node, and gives ranges back. Spawn it once, next to [`Cache::run`].
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let (shared, cache) = (Arc::clone(&self.shared), Arc::clone(&self.cache));
        async move {
            tokio::join!(
                hear(&shared, &cache),
                ask(&shared),
                clean(&shared, &cache, true),
                clean(&shared, &cache, false),
            );
        }
    }

    #[must_use]
    pub fn tokens(&self) -> TokenStatistics {
        let now = self.shared.now();
        let state = self.shared.state.lock();
        let holder = state.holder.as_ref();
        let (shared, exclusive) = holder.map_or((0, 0), Holder::count);
        let block_size = u64::from(self.cache.geometry().block_size);
        TokenStatistics {
            joined: holder.is_some_and(Holder::is_joined),
            leased: holder.is_some_and(|holder| holder.is_leased(now)),
            shared,
            exclusive,
            grain_bytes: u64::from(state.grain) * block_size,
            given_back: state.given_back,
            waited: state.waited,
            lost: state.failed.as_ref().map(ToString::to_string),
        }
    }

    /// Begins to use the ranges of an extent. They are taken in ascending order, which excludes deadlocks
    /// between calls.
    async fn enter(
        &self,
        extent: Extent,
        token: CoherenceToken,
    ) -> Result<Vec<CoherentRangeUse<'_>>, Error> {
        self.cache.geometry().check_extent(extent)?;
        let until = Instant::now() + PATIENCE;
        let grain = u64::from(self.shared.grain(until).await?);
        let ranges = extent.lba.0 / grain..=(extent.end().0 - 1) / grain;
        let mut uses = Vec::new();
        for range in ranges {
            // The node numbers ranges with 32 bits.
            let range = u32::try_from(range).map_err(|_| Error::OutOfRange(extent))?;
            uses.push(self.shared.enter(CoherenceRange(range), token, until).await?);
        }
        Ok(uses)
    }
}

impl Volume for Coherent {
    fn geometry(&self) -> Geometry {
        // A write to several ranges needs several tokens, so other gateways may see a part of it.
        Geometry { atomic_blocks: 0, ..self.cache.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let _uses = self.enter(extent, CoherenceToken::SharedRead).await?;
            self.cache.read(extent).await
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let extent = self.cache.geometry().check_write(lba, data.len())?;
            let _uses = self.enter(extent, CoherenceToken::ExclusiveWrite).await?;
            self.cache.write(lba, data, durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.cache.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            let _uses = self.enter(extent, CoherenceToken::ExclusiveWrite).await?;
            self.cache.discard(extent).await
        })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.cache.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { provisioning: Some(self), ..self.cache.extensions() }
    }
}

impl Provisioning for Coherent {
    /// Reports all blocks as mapped. A block that is unmapped at the node may have dirty data at another
    /// gateway, and a caller that skips unmapped blocks would miss that data.
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        let checked = self.cache.geometry().check_extent(extent);
        Io::done(checked.map(|()| Allocation::mapped(extent.blocks)))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.cache.extensions().usage()
    }
}

impl CoherentCore {
    /// Returns the time since the start, by a monotonic clock.
    fn now(&self) -> Millis {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Runs one step of the state machine, and then passes its outputs on: requests, uses that begin, and
    /// ranges to clean.
    fn step<T>(&self, step: impl FnOnce(&mut Holder, Millis) -> T) -> Option<T> {
        let now = self.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let holder = state.holder.as_mut()?;
        let value = step(holder, now);
        let before = state.requests.len();
        while let Some(request) = holder.poll_request() {
            state.requests.push(request);
        }
        while let Some(ticket) = holder.poll_begun() {
            // If a call was dropped while it waited for a token, it has cancelled its request and is not in `waiting`
            // any more.
            if let Some(waiting) = state.waiting.remove(&ticket) {
                let _ = waiting.send(());
            }
        }
        while let Some(cleaning) = holder.poll_cleaning() {
            let which = usize::from(cleaning.writes_back);
            state.cleaning[which].push(cleaning);
            self.cleans[which].notify_one();
        }
        if let Some(range) = holder.lost()
            && state.failed.is_none()
        {
            let reason = format!(
                "the node has no record any more of writes of this gateway: block {} and others; \
                 its operator has discarded them, or the node was restored from a backup",
                u64::from(range.0) * u64::from(state.grain)
            );
            tracing::error!(
                reason,
                remedy = "unmount the volume at all hosts and check its file systems; see \
                 docs/guide/share.md#what-can-go-wrong",
                "dirty data of a shared volume is lost"
            );
            state.fail(Error::Fenced(reason.into()));
        }
        if state.requests.len() > before {
            self.asks.notify_one();
        }
        Some(value)
    }

    /// Waits until the node has reported the size of a range, and returns it in blocks.
    async fn grain(&self, until: Instant) -> Result<u32, Error> {
        loop {
            let mut known = std::pin::pin!(self.known.notified());
            known.as_mut().enable();
            {
                let state = self.state.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.holder.is_some() {
                    return Ok(state.grain);
                }
            }
            if timeout_at(until, known).await.is_err() {
                return Err(Error::Away(
                    "the node of the shared volume has not answered yet".into(),
                ));
            }
        }
    }

    async fn enter(
        &self,
        range: CoherenceRange,
        token: CoherenceToken,
        until: Instant,
    ) -> Result<CoherentRangeUse<'_>, Error> {
        let begun = self.step(|holder, now| holder.begin(range, token, now));
        let ticket = match begun {
            Some(Begin::Now) => return Ok(CoherentRangeUse { shared: self, range }),
            Some(Begin::Waits(ticket)) => ticket,
            None => return Err(Error::Busy("the node of the shared volume is not known")),
        };
        let mut waiting = WaitingRangeUse { shared: self, range, ticket: Some(ticket) };
        let (sender, begun) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state.waited += 1;
            state.waiting.insert(ticket, sender);
        }
        // The state machine may have begun this use of the range before `sender` was stored in `waiting`, and then has
        // signalled nothing. Run an empty step of the state machine, which sends the signal.
        self.step(|_, _| ());
        match timeout_at(until, begun).await {
            Ok(Ok(())) => {
                waiting.ticket = None;
                Ok(CoherentRangeUse { shared: self, range })
            }
            Ok(Err(_)) => {
                let failed = self.state.lock().failed.clone();
                Err(failed.unwrap_or(Error::Busy("the token of a shared volume was not granted")))
            }
            Err(_) => Err(Error::Busy("another gateway has not released the blocks")),
        }
    }

    /// Reports to the token state machine that the session has reconnected: messages in flight may be lost.
    fn reconnect(&self) {
        self.state.lock().requests.clear();
        self.step(Holder::handle_reconnected);
    }

    fn take_requests(&self) -> Vec<CoherenceRequest> {
        std::mem::take(&mut self.state.lock().requests)
    }

    fn fail(&self, error: Error) {
        self.state.lock().fail(error);
        self.known.notify_waiters();
    }

    fn has_failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }
}

impl CoherentState {
    /// Fails all later calls with `error`, and ends the waiting calls.
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        self.waiting.clear();
    }
}

impl Drop for CoherentRangeUse<'_> {
    fn drop(&mut self) {
        self.shared.step(|holder, now| holder.end(self.range, now));
    }
}

impl Drop for WaitingRangeUse<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.state.lock().waiting.remove(&ticket);
            self.shared.step(|holder, now| holder.cancel(self.range, ticket, now));
        }
    }
}

/// Receives answers of the node. Each list of answers also has the size of a range.
async fn hear(shared: &CoherentCore, cache: &Cache) {
    // Do not wait the first time: no range can be used, and no lease renewed, before the size of a range is
    // known.
    let mut wait = Duration::ZERO;
    let mut invalid = OngoingCondition::default();
    while !shared.has_failed() {
        let list = match shared.lower.extensions().receive_answers(wait).await {
            Ok(list) => list,
            Err(Error::Fenced(reason)) => return shared.fail(Error::Fenced(reason)),
            Err(error) => {
                tracing::debug!(%error, "cannot receive token messages from the node");
                sleep(PAUSE).await;
                shared.reconnect();
                continue;
            }
        };
        let read = read_answers(&list);
        match (invalid.turn(read.is_err()), &read) {
            (Some(ConditionChange::Begins), Err(error)) => {
                tracing::warn!(
                    %error,
                    remedy = "use the same version of Forebay at both ends (forebay --version)",
                    "the node sends invalid token messages"
                );
            }
            (Some(ConditionChange::Ends(lasted)), _) => {
                tracing::info!(
                    lasted_s = lasted.as_secs(),
                    "the node sends valid token messages again"
                );
            }
            _ => {}
        }
        let Ok((terms, grain, answers)) = read else {
            sleep(PAUSE).await;
            continue;
        };
        if let Err(error) = begin(shared, cache, terms.lease, grain) {
            return shared.fail(error);
        }
        wait = LISTEN;
        for answer in answers {
            if let CoherenceReply::Recall { .. } = answer {
                shared.state.lock().given_back += 1;
            }
            shared.step(|holder, now| holder.handle(answer, now));
        }
        shared.step(Holder::handle_timeout);
    }
}

/// Starts the state machine when the size of a range is known. The size must not change later.
fn begin(shared: &CoherentCore, cache: &Cache, lease: Millis, grain: u32) -> Result<(), Error> {
    let mut state = shared.state.lock();
    if state.holder.is_some() {
        if (state.lease, state.grain) != (lease, grain) {
            let reason = "the node uses another range size or another lease than before: restart \
                          this gateway";
            return Err(Error::Device(reason.into()));
        }
        return Ok(());
    }
    let block_size = cache.geometry().block_size;
    if u64::from(grain) * u64::from(block_size) % SLOT != 0 {
        return Err(Error::Device(
            "the range size of the shared volume is not a multiple of 4096 bytes".into(),
        ));
    }
    let dirty = cache.dirty_parts(u64::from(grain) * u64::from(block_size));
    if dirty.len() > coherence::MOST_TOKENS * 2 {
        let reason = "the log has data of more ranges than a gateway may hold: drain it before the volume is shared";
        return Err(Error::Device(reason.into()));
    }
    let dirty = dirty.into_iter().filter_map(|part| u32::try_from(part).ok()).map(CoherenceRange);
    (state.lease, state.grain) = (lease, grain);
    state.holder = Some(Holder::new(lease, dirty, shared.now()));
    drop(state);
    shared.step(|_, _| ());
    shared.known.notify_waiters();
    Ok(())
}

/// Sends token requests to the node, and runs the timers of the token state machine.
async fn ask(shared: &CoherentCore) {
    while !shared.has_failed() {
        let next = shared.step(|holder, _| holder.poll_timeout());
        let now = shared.now();
        let left = next.map_or(LISTEN, |next| Duration::from_millis(next.saturating_sub(now)));
        let _ = timeout(left, shared.asks.notified()).await;
        shared.step(Holder::handle_timeout);
        let requests = shared.take_requests();
        let mut rest = &requests[..];
        while !rest.is_empty() {
            let (list, count) = write_requests(rest);
            match shared.lower.extensions().send_requests(Bytes::from(list)).await {
                // Remove at least one request: even the longest one, Join, fits into a message.
                Ok(()) => rest = &rest[count.max(1)..],
                Err(Error::Fenced(reason)) => return shared.fail(Error::Fenced(reason)),
                Err(error) => {
                    tracing::debug!(%error, "cannot send token requests to the node");
                    sleep(PAUSE).await;
                    shared.reconnect();
                    break;
                }
            }
        }
    }
}

/// Prepares ranges so that their tokens can be given back. With `writes_back`, prepares the ranges that may
/// have dirty data, and destages this data; otherwise prepares the clean ranges. Each kind of range has a
/// task of its own: a drain may have to wait until the node has registered this gateway, and before that the
/// node may wait for clean ranges.
async fn clean(shared: &CoherentCore, cache: &Cache, writes_back: bool) {
    let which = usize::from(writes_back);
    loop {
        let cleaning = std::mem::take(&mut shared.state.lock().cleaning[which]);
        if cleaning.is_empty() {
            if shared.has_failed() {
                return;
            }
            shared.cleans[which].notified().await;
            continue;
        }
        if writes_back {
            while let Err(error) = cache.drain().await {
                if shared.has_failed() {
                    return;
                }
                tracing::debug!(
                    %error,
                    "dirty data that another gateway has requested cannot be destaged yet"
                );
                sleep(PAUSE).await;
            }
        }
        for Cleaning { range, keeps, .. } in cleaning {
            if !keeps {
                let grain = shared.state.lock().grain;
                let block_size = u64::from(cache.geometry().block_size);
                let part = u64::from(grain) * block_size;
                while !cache.forget(u64::from(range.0) * part, part) {
                    // A slot of the range is dirty: it was written after the drain had begun.
                    let _ = cache.drain().await;
                    sleep(PAUSE).await;
                }
            }
            shared.step(|holder, now| holder.cleaned(range, now));
        }
    }
}

/// How long a call waits for its tokens: half of the 30 s after which hosts abort a command.
const PATIENCE: Duration = Duration::from_secs(15);
/// Maximum time that the node may hold a request for answers (long poll) before it answers.
const LISTEN: Duration = Duration::from_secs(2);
/// The pause before a failed call to the node is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a slot. A slot must not belong to two ranges.
const SLOT: u64 = crate::slots::sectors::SLOT_BYTES as u64;

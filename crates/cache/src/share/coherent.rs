//! A cache of a volume that other gateways write, too: each call first has the tokens of the ranges that it
//! touches (crate `coherence`, decision 0016). Before a range is given back, what is dirty goes down and what
//! may not be kept is dropped.

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
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Provisioning,
    Stack, ThinSpaceUsage, Volume,
};

use crate::cache::Cache;

/// A cache whose lower volume is shared. Its users call this, and never the cache.
pub struct Coherent {
    cache: Arc<Cache>,
    shared: Arc<CoherentCore>,
}

/// How its tokens stand.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenStatistics {
    /// The node knows this gateway.
    pub joined: bool,
    /// What is held for reading may be used.
    pub leased: bool,
    /// Ranges held for reading.
    pub shared: usize,
    /// Ranges held for writing.
    pub exclusive: usize,
    /// Bytes of a range.
    pub grain_bytes: u64,
    /// Ranges given back because others wanted them, or after they were not used.
    pub given_back: u64,
    /// Calls that waited for a token.
    pub waited: u64,
    /// Why nothing may be used any more.
    pub lost: Option<String>,
}

struct CoherentCore {
    lower: Stack,
    started: Instant,
    state: Mutex<CoherentState>,
    /// There are requests to send.
    asks: Notify,
    /// There is something to clean, after it has gone down or without.
    cleans: [Notify; 2],
    /// The node has answered for the first time, or nothing may be used any more.
    known: Notify,
}

#[derive(Default)]
struct CoherentState {
    /// `None`: the node has not said yet how large a range is.
    holder: Option<Holder>,
    /// Blocks of a range.
    grain: u32,
    lease: Millis,
    waiting: HashMap<CoherenceTicket, oneshot::Sender<()>>,
    requests: Vec<CoherenceRequest>,
    /// What has to go down first, and what has not.
    cleaning: [Vec<Cleaning>; 2],
    given_back: u64,
    waited: u64,
    failed: Option<Error>,
}

/// A use of a range, until it is dropped.
struct CoherentRangeUse<'a> {
    shared: &'a CoherentCore,
    range: CoherenceRange,
}

/// A use that waits. Dropped, it is not wanted any more.
struct WaitingRangeUse<'a> {
    shared: &'a CoherentCore,
    range: CoherenceRange,
    ticket: Option<CoherenceTicket>,
}

impl Coherent {
    /// The cache of a volume `lower`, which was opened with [`crate::Settings::shares`].
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

    /// Speaks with the node and gives ranges back. To be spawned once, beside [`Cache::run`].
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

    /// How its tokens stand.
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

    /// Uses the ranges of an extent, in ascending order: nobody waits in a circle.
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
            // As many as the node has numbered.
            let range = u32::try_from(range).map_err(|_| Error::OutOfRange(extent))?;
            uses.push(self.shared.enter(CoherenceRange(range), token, until).await?);
        }
        Ok(uses)
    }
}

impl Volume for Coherent {
    fn geometry(&self) -> Geometry {
        // What a write of several ranges does is not one step for others.
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
    /// What is unmapped at the node may be written at another gateway: whoever skips what is unmapped would
    /// miss that.
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        let checked = self.cache.geometry().check_extent(extent);
        Io::done(checked.map(|()| Allocation::mapped(extent.blocks)))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.cache.extensions().usage()
    }
}

impl CoherentCore {
    /// By a clock that only goes forward.
    fn now(&self) -> Millis {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A step of the machine, and what follows from it.
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
            // Who is not there any more has cancelled it.
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
                "the node knows nothing any more of what this gateway had written: block {} and others; its \
                 operator has given that up, or the node was put back from a backup",
                u64::from(range.0) * u64::from(state.grain)
            );
            tracing::error!(reason, "dirty data of a shared volume is lost");
            state.fail(Error::Fenced(reason.into()));
        }
        if state.requests.len() > before {
            self.asks.notify_one();
        }
        Some(value)
    }

    /// Blocks of a range, once the node has told.
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
        // It may have begun before there was somebody to tell.
        self.step(|_, _| ());
        match timeout_at(until, begun).await {
            Ok(Ok(())) => {
                waiting.ticket = None;
                Ok(CoherentRangeUse { shared: self, range })
            }
            Ok(Err(_)) => {
                let failed = self.state.lock().failed.clone();
                Err(failed.unwrap_or(Error::Busy("the tokens of a shared volume")))
            }
            Err(_) => Err(Error::Busy("another gateway has not given the blocks back")),
        }
    }

    /// What was on its way to the node may be lost.
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
    /// Nothing may be used any more: what is asked for is refused, and those who wait are told.
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

/// Listens to the node. What it says first says how large ranges are.
async fn hear(shared: &CoherentCore, cache: &Cache) {
    // How large ranges are is told at once: nothing is used, nor renewed, before that.
    let mut wait = Duration::ZERO;
    while !shared.has_failed() {
        let list = match shared.lower.extensions().receive_answers(wait).await {
            Ok(list) => list,
            Err(Error::Fenced(reason)) => return shared.fail(Error::Fenced(reason)),
            Err(error) => {
                tracing::debug!(%error, "the node does not tell of tokens");
                sleep(PAUSE).await;
                shared.reconnect();
                continue;
            }
        };
        let (terms, grain, answers) = match read_answers(&list) {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "the node says of tokens what makes no sense");
                sleep(PAUSE).await;
                continue;
            }
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

/// The machine begins when the size of a range is known; that does not change while it runs.
fn begin(shared: &CoherentCore, cache: &Cache, lease: Millis, grain: u32) -> Result<(), Error> {
    let mut state = shared.state.lock();
    if state.holder.is_some() {
        if (state.lease, state.grain) != (lease, grain) {
            let reason = "the node shares the volume in other ranges, or with another lease, than before: start this gateway anew";
            return Err(Error::Device(reason.into()));
        }
        return Ok(());
    }
    let block_size = cache.geometry().block_size;
    if u64::from(grain) * u64::from(block_size) % SLOT != 0 {
        return Err(Error::Device(
            "the ranges of the shared volume are no whole 4096 bytes".into(),
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

/// Sends what there is to ask, and looks at the clock.
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
                // Each fits alone, the longest Join too.
                Ok(()) => rest = &rest[count.max(1)..],
                Err(Error::Fenced(reason)) => return shared.fail(Error::Fenced(reason)),
                Err(error) => {
                    tracing::debug!(%error, "the node is not asked for tokens");
                    sleep(PAUSE).await;
                    shared.reconnect();
                    break;
                }
            }
        }
    }
}

/// Makes ranges ready to be given back, as long as it takes: those that may have dirty data, or the
/// others. What is dirty goes down only when the node knows us, and it may wait for the others for that.
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
                tracing::debug!(%error, "what others want does not go down yet");
                sleep(PAUSE).await;
            }
        }
        for Cleaning { range, keeps, .. } in cleaning {
            if !keeps {
                let grain = shared.state.lock().grain;
                let block_size = u64::from(cache.geometry().block_size);
                let part = u64::from(grain) * block_size;
                while !cache.forget(u64::from(range.0) * part, part) {
                    // Something of it is in the log still: it has come after the drain began.
                    let _ = cache.drain().await;
                    sleep(PAUSE).await;
                }
            }
            shared.step(|holder, now| holder.cleaned(range, now));
        }
    }
}

/// How long a call waits for its tokens: half of the half minute after which hosts abort.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the node is listened to at a time.
const LISTEN: Duration = Duration::from_secs(2);
/// Before something that failed is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a slot: no slot may be of two ranges.
const SLOT: u64 = crate::slots::sectors::SLOT_BYTES as u64;

//! A session that heals itself: the handle that callers hold.

use std::{sync::Arc, time::Duration};

use iscsi::session::initiator::DataPhase;
use parking_lot::Mutex;
use scsi::Cdb;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::timeout,
};
use transport::CongestionStatistics;
use volume::Geometry;

use crate::{
    CommandError, Error, InitiatorConnectionStats, InitiatorStatistics, LinkState,
    PerformedCommand, Settings, UnitDescription, capacity_refresh,
    claim::Claimed,
    clock::now,
    driver::{InitiatorDriver, Message},
    pending_commands::Job,
    session_state::RemoteSessionState,
    verified_session::{ExpectedUnit, VerifiedSession, connect},
};

/// A session with one unit. Clones are handles on the same one; when the last is gone it logs out.
///
/// A driver, a tokio task, keeps it alive: a connection that is lost is made again, with pauses,
/// and what was not answered is sent again, in order. Until `give_up_after` of the settings calls
/// wait for that; from then on they fail at once, until there is a connection again.
#[derive(Clone)]
pub struct RemoteSession {
    messages: mpsc::Sender<Message>,
    shared: Arc<RemoteSessionState>,
    driver: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// The reason of calls that fail after the end of the session.
const CLOSED: &str = "the session was closed";

/// How long a polite end may take: ABORT TASK's and logout's time-outs are as long.
const CLOSE_TIME_OUT: Duration = Duration::from_secs(5);

impl RemoteSession {
    /// Logs in and asks the unit what it is. Fails at once if that cannot be done; from then on
    /// the session expects that very unit.
    pub async fn open(mut settings: Settings) -> Result<Self, Error> {
        settings.queue_depth = settings.queue_depth.max(1);
        let live = connect(&settings).await?;
        let expected = ExpectedUnit::new(live.facts.identity.clone(), &live.facts.geometry);
        let session = Self::start(settings, expected, Some(live));
        // the driver says the same, but only when it runs
        let mut state = session.watch();
        let _ = state.wait_for(|state| matches!(state, LinkState::Up)).await;
        Ok(session)
    }

    /// Returns at once and connects in the background, for as long as it takes. Any other unit
    /// than the one with this identity and this size, or a larger one, is refused.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn open_lazy(settings: Settings, identity: String, geometry: &Geometry) -> Self {
        Self::start(settings, ExpectedUnit::new(identity, geometry), None)
    }

    fn start(
        mut settings: Settings,
        expected: ExpectedUnit,
        live: Option<VerifiedSession>,
    ) -> Self {
        settings.queue_depth = settings.queue_depth.max(1);
        let shared = Arc::new(RemoteSessionState::new(now()));
        // the table of the driver holds as many again
        let (messages, receiver) = mpsc::channel(settings.queue_depth);
        tokio::spawn(capacity_refresh::follow(messages.downgrade(), Arc::clone(&shared)));
        let driver = InitiatorDriver::new(Arc::new(settings), receiver, shared.clone(), expected);
        let driver = tokio::spawn(driver.run(live));
        Self { messages, shared, driver: Arc::new(Mutex::new(Some(driver))) }
    }

    /// Performs a command, with all the retries that may help. The answer is a GOOD status.
    /// Only commands that may be performed twice: reads, writes, and the like.
    pub async fn execute(
        &self,
        cdb: Cdb,
        transfer: DataPhase,
    ) -> Result<PerformedCommand, CommandError> {
        let (reply, answer) = oneshot::channel();
        let job = Message::Job(Job { cdb, transfer, reply, only_in: None });
        let sent = self.messages.send(job).await;
        sent.map_err(|_| CommandError::Away(CLOSED.into()))?;
        answer.await.map_err(|_| CommandError::Unreachable(CLOSED.into()))?
    }

    /// Performs a command at most once, and only in the session of this generation. Calls `queued` when the command is in
    /// the queue: commands that are executed from then on are sent after it.
    pub(crate) async fn execute_once(
        &self,
        cdb: Cdb,
        generation: u64,
        queued: impl FnOnce(),
    ) -> Result<PerformedCommand, CommandError> {
        let (reply, answer) = oneshot::channel();
        let transfer = DataPhase::None;
        let job = Message::Job(Job { cdb, transfer, reply, only_in: Some(generation) });
        let sent = self.messages.send(job).await;
        sent.map_err(|_| CommandError::Away(CLOSED.into()))?;
        queued();
        answer.await.map_err(|_| CommandError::Unreachable(CLOSED.into()))?
    }

    /// What the unit said of itself at the last login; `None` if there was none.
    #[must_use]
    pub fn facts(&self) -> Option<Arc<UnitDescription>> {
        self.shared.facts.lock().clone()
    }

    /// `host:port` where it is logged in, or was last; redirections were followed.
    #[must_use]
    pub fn portal(&self) -> Option<Arc<str>> {
        self.shared.portal.lock().clone()
    }

    /// Returns the most commands that are in flight at once.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.messages.max_capacity()
    }

    /// How many blocks the unit has, if that is known. More from one moment to the next, if it grows.
    #[must_use]
    pub fn blocks(&self) -> Option<u64> {
        self.shared.blocks()
    }

    /// Looks in the background whether the unit has grown.
    pub fn look_at_size(&self) {
        self.shared.look_at_size.notify_one();
    }

    /// The claim that is presented after every login.
    pub(crate) fn claimed(&self) -> &Claimed {
        &self.shared.claimed
    }

    /// The state of the link.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.shared.state.borrow().clone()
    }

    /// Returns for how long nothing has come from the far side, and why: there is no session, or pings are not
    /// answered. `None` while it answers. A command that takes long does not count.
    #[must_use]
    pub fn away(&self) -> Option<(Duration, Arc<str>)> {
        match &*self.shared.state.borrow() {
            LinkState::Down { since, reason, .. } => {
                return Some((now().saturating_duration_since(*since), Arc::clone(reason)));
            }
            LinkState::Up => {}
            LinkState::Changed(_) | LinkState::Fenced(_) | LinkState::Closed => return None,
        }
        let since = (*self.shared.silent_since.lock())?;
        Some((now().saturating_duration_since(since), "pings are not answered".into()))
    }

    /// The state of the link, to be waited for.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// Counts what may have cost the target its volatile cache: logins, unit attentions that
    /// tell of a reset, and deferred errors. What was written, but not flushed, under an earlier number may be lost.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// What each connection that there is now carries.
    #[must_use]
    pub fn connections(&self) -> Vec<InitiatorConnectionStats> {
        self.shared.connections.lock().clone()
    }

    /// The congestion control of its connections, and what they share; `None` without a session.
    #[must_use]
    pub fn congestion(&self) -> Option<CongestionStatistics> {
        self.shared.congestion.lock().as_ref().map(|it| it.statistics())
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> InitiatorStatistics {
        *self.shared.statistics.lock()
    }

    /// Commands that the unit answered so far, by operation code; those of logins are not counted.
    #[must_use]
    pub fn answered(&self) -> Vec<(u8, u64)> {
        self.shared.answered.counted().collect()
    }

    /// Answers what is under way, logs out and ends the driver; at most 5 s. Later calls fail.
    pub async fn close(&self) {
        let _ = timeout(CLOSE_TIME_OUT, self.messages.send(Message::Close)).await;
        let driver = self.driver.lock().take();
        if let Some(mut driver) = driver
            && timeout(CLOSE_TIME_OUT, &mut driver).await.is_err()
        {
            driver.abort();
        }
    }
}

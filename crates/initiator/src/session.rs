//! A session that reconnects by itself: the handle for callers.

use std::{sync::Arc, time::Duration};

use iscsi::session::initiator::DataPhase;
use parking_lot::Mutex;
use scsi::{Cdb, CommandCode};
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
    pending_commands::{CommandRepetition, CommandSource, Job},
    session_state::RemoteSessionState,
    unit_description::UnitKind,
    verified_session::{ExpectedUnit, VerifiedSession, connect},
};

/// A session with one unit. Clones are handles of the same session. When the last handle is dropped, the session logs
/// out.
///
/// A driver (a tokio task) keeps the session up: it replaces a lost connection, with pauses between its attempts, and
/// sends unanswered commands again in order. Calls wait for that until `give_up_after` of the settings; then they
/// fail at once until there is a connection again.
#[derive(Clone)]
pub struct RemoteSession {
    messages: mpsc::Sender<Message>,
    shared: Arc<RemoteSessionState>,
    driver: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// The reason of the error that calls return after the session was closed.
const CLOSED: &str = "the session was closed";

/// The time limit of `close`, as long as the time-outs of ABORT TASK and logout.
const CLOSE_TIME_OUT: Duration = Duration::from_secs(5);

impl RemoteSession {
    /// Logs in and reads the disk's description. Returns an error at once if one of them fails. Later logins accept
    /// only this unit.
    pub async fn open(settings: Settings) -> Result<Self, Error> {
        Self::open_kind(settings, UnitKind::Disk).await
    }

    /// Logs in to a unit, which must be of the kind `wanted`. See [`Self::open`].
    pub(crate) async fn open_kind(mut settings: Settings, wanted: UnitKind) -> Result<Self, Error> {
        settings.queue_depth = settings.queue_depth.max(1);
        let live = connect(&settings).await?;
        live.facts.check_kind(wanted)?;
        let expected = ExpectedUnit::of(&live.facts);
        let session = Self::start(settings, expected, Some(live));
        // Wait for the driver to set the state to `Up`, which happens only when its task runs.
        let mut state = session.watch();
        let _ = state.wait_for(|state| matches!(state, LinkState::Up)).await;
        Ok(session)
    }

    /// Returns a session that connects in the background, for as long as necessary. It accepts only the unit with this
    /// identity, and with the size in `geometry` or a larger one.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
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
        // The message queue and the driver's table of commands hold `queue_depth` commands each.
        let (messages, receiver) = mpsc::channel(settings.queue_depth);
        tokio::spawn(capacity_refresh::follow(messages.downgrade(), Arc::clone(&shared)));
        let driver = InitiatorDriver::new(Arc::new(settings), receiver, shared.clone(), expected);
        let driver = tokio::spawn(driver.run(live));
        Self { messages, shared, driver: Arc::new(Mutex::new(Some(driver))) }
    }

    /// Performs a command and waits until it ends. Sends it again as long as that may help. Use this only for commands
    /// that may be performed twice, such as reads and writes.
    pub async fn execute(
        &self,
        cdb: Cdb,
        transfer: DataPhase,
    ) -> Result<PerformedCommand, CommandError> {
        let (reply, answer) = oneshot::channel();
        let job = Message::Job(Job::new(cdb, transfer, reply, CommandRepetition::Allowed));
        let sent = self.messages.send(job).await;
        sent.map_err(|_| CommandError::Away(CLOSED.into()))?;
        answer.await.map_err(|_| CommandError::Unreachable(CLOSED.into()))?
    }

    /// Performs a command that `source` makes, and that is made again whenever it is sent again. Returns the status with
    /// which the target ended it, whatever it is.
    pub(crate) async fn execute_made(
        &self,
        source: Arc<dyn CommandSource>,
        repetition: CommandRepetition,
    ) -> Result<PerformedCommand, CommandError> {
        let (reply, answer) = oneshot::channel();
        let (cdb, transfer) = source.make();
        let job = Job { source: Some(source), ..Job::new(cdb, transfer, reply, repetition) };
        let sent = self.messages.send(Message::Job(job)).await;
        sent.map_err(|_| CommandError::Away(CLOSED.into()))?;
        answer.await.map_err(|_| CommandError::Unreachable(CLOSED.into()))?
    }

    /// Performs a command at most once, and only while the session has this generation. Calls `queued` when the command
    /// is in the queue; a command that is executed afterwards is sent after this one.
    pub(crate) async fn execute_once(
        &self,
        cdb: Cdb,
        generation: u64,
        queued: impl FnOnce(),
    ) -> Result<PerformedCommand, CommandError> {
        let (reply, answer) = oneshot::channel();
        let transfer = DataPhase::None;
        let job =
            Message::Job(Job::new(cdb, transfer, reply, CommandRepetition::OnlyIn(generation)));
        let sent = self.messages.send(job).await;
        sent.map_err(|_| CommandError::Away(CLOSED.into()))?;
        queued();
        answer.await.map_err(|_| CommandError::Unreachable(CLOSED.into()))?
    }

    /// Returns the unit's description as of the last login; `None` before the first.
    #[must_use]
    pub fn facts(&self) -> Option<Arc<UnitDescription>> {
        self.shared.facts.lock().clone()
    }

    /// Returns the address of the current or the last session, `host:port`, after redirects.
    #[must_use]
    pub fn portal(&self) -> Option<Arc<str>> {
        self.shared.portal.lock().clone()
    }

    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.messages.max_capacity()
    }

    /// Returns the number of blocks of the unit; `None` if it is not known. The number increases if the unit grows
    /// during a session.
    #[must_use]
    pub fn blocks(&self) -> Option<u64> {
        self.shared.blocks()
    }

    /// Requests a check in the background of whether the unit has grown.
    pub fn look_at_size(&self) {
        self.shared.look_at_size.notify_one();
    }

    pub(crate) fn shared(&self) -> Arc<RemoteSessionState> {
        Arc::clone(&self.shared)
    }

    /// Returns the claim that each new session presents to the unit after its login.
    pub(crate) fn claimed(&self) -> &Claimed {
        &self.shared.claimed
    }

    #[must_use]
    pub fn state(&self) -> LinkState {
        self.shared.state.borrow().clone()
    }

    /// Returns for how long the target has not answered, and why: there is no session, or pings are unanswered. Returns
    /// `None` while the target answers. A long-running command does not count as silence.
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

    /// Returns a receiver of the link state, which is notified of each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    /// Returns the generation: the number of events so far after which the target may have lost the content of its
    /// volatile cache. Such events are logins, unit attentions about a reset, and deferred errors. Writes of an earlier
    /// generation that were not flushed may be lost.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// Returns the load and the counters of each open connection.
    #[must_use]
    pub fn connections(&self) -> Vec<InitiatorConnectionStats> {
        self.shared.connections.lock().clone()
    }

    /// Returns the congestion control of the session's connections and their shared state; `None` without a session.
    #[must_use]
    pub fn congestion(&self) -> Option<CongestionStatistics> {
        self.shared.congestion.lock().as_ref().map(|it| it.statistics())
    }

    /// Returns the counters since the session was opened.
    #[must_use]
    pub fn statistics(&self) -> InitiatorStatistics {
        *self.shared.statistics.lock()
    }

    /// Returns the number of answered commands by operation code or service action. Commands during logins are not
    /// counted.
    #[must_use]
    pub fn answered(&self) -> Vec<(CommandCode, u64)> {
        self.shared.answered.counted().collect()
    }

    /// Completes the commands in progress, logs out and ends the driver, within 5 s. Later calls fail.
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

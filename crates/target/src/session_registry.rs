//! The list of a server's sessions, and the channels to the drivers that run them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use iscsi::{
    Isid, Tsih,
    login::EstablishedLogin,
    pdu::LoginStatus,
    session::target::{LoginPhase, NotJoined, TargetPduCounters},
};
use parking_lot::Mutex;
use scsi::{Lun, OpcodeTally};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    command_times::CommandTimes,
    connection_io::Socket,
    counted_limit::CountedLimit,
    statistics::{
        ServerEventCounters, SessionSnapshot, SessionStatistics, TargetStatistics, count,
    },
};

/// A message to the driver of a session, from the server or from another driver.
pub(crate) enum DriverMessage {
    /// Close the session at once, for this reason.
    Close(&'static str),
    /// Announce to the initiator that the session is dropped, and close it, for this reason.
    Stop(&'static str),
    /// Add a connection to the session.
    Join(Box<JoiningConnection>),
    /// Request that the initiator logs out within this number of seconds.
    AskForLogout(u16),
    /// Another session has cleared or reset a unit, or all units: abort the commands in progress there. The driver
    /// drops `done` when it has finished.
    Clear { lun: Option<Lun>, done: mpsc::Sender<()> },
    /// Check which units the target has now. The driver drops `done` when it has finished.
    LookAtUnits { done: mpsc::Sender<()> },
    /// The initiator logs in with another session: check which connections of this session are closed. The driver
    /// drops `done` when it has finished.
    LookAtConnections { done: mpsc::Sender<()> },
}

/// A connection that has logged in and asks to join an existing session.
pub(crate) struct JoiningConnection {
    pub(crate) socket: Socket,
    pub(crate) phase: LoginPhase,
    /// Channel for the answer: `None` if the connection has joined, otherwise the connection that was refused.
    pub(crate) reply: oneshot::Sender<Option<RefusedJoin>>,
}

/// A connection that a session has refused to add.
pub(crate) struct RefusedJoin {
    pub(crate) socket: Socket,
    pub(crate) refused: Box<NotJoined>,
}

/// Capacity of a driver's message queue. Messages come from task management functions and from the server when it
/// stops; a sender waits while the queue is full.
const ORDERS: usize = 16;

/// The sessions of a server. Lock order: while holding the registry's lock, take no other lock except that of
/// a session's published counters.
#[derive(Default)]
pub(crate) struct SessionRegistry {
    inner: Mutex<RegistryState>,
    pub(crate) events: ServerEventCounters,
    /// Open connections, logged in or not.
    pub(crate) connections: Arc<CountedLimit>,
    /// Number of open connections that belong to normal sessions.
    pub(crate) members: Arc<CountedLimit>,
    times: Arc<CommandTimes>,
}

#[derive(Default)]
struct RegistryState {
    sessions: HashMap<u64, SessionEntry>,
    tsihs: HashSet<Tsih>,
    /// Sessions that wait for their initiators to reconnect, the longest waiting one first.
    waiting: VecDeque<u64>,
    last_number: u64,
    last_tsih: u16,
    /// Sums of the counters of closed sessions.
    past: TargetPduCounters,
    /// The sums of `past` for each target name. A target gets an entry with the first login to it, so the number of
    /// entries is bounded by the targets in the settings and the volumes that were moved here.
    past_of: HashMap<String, TargetPduCounters>,
    /// The commands of closed sessions by operation code.
    past_commands: OpcodeTally,
}

struct SessionEntry {
    initiator_name: String,
    isid: Isid,
    target_name: Option<String>,
    user: Option<String>,
    tpgt: Option<u16>,
    tsih: Tsih,
    address: SocketAddr,
    orders: mpsc::Sender<DriverMessage>,
    published: Arc<Mutex<SessionSnapshot>>,
    tally: Arc<OpcodeTally>,
    /// Closed when the driver has ended and no command of the session is in progress.
    gone: watch::Receiver<()>,
}

/// A session's entry in the registry. Dropping it removes the entry and adds the session's counters to the sums.
pub(crate) struct SessionRegistration {
    registry: Arc<SessionRegistry>,
    /// Unique during the lifetime of the process.
    pub(crate) number: u64,
    pub(crate) tsih: Tsih,
    /// The CHAP user as which the initiator has authenticated.
    pub(crate) user: Option<String>,
    /// The tag of the portal group through which the initiator logged in; `None` for a discovery session.
    pub(crate) tpgt: Option<u16>,
    pub(crate) orders: mpsc::Receiver<DriverMessage>,
    /// The statistics of this session, which its driver publishes for `TargetStatistics`.
    pub(crate) published: Arc<Mutex<SessionSnapshot>>,
    /// Number of commands of this session for each operation code, counted by its driver.
    pub(crate) tally: Arc<OpcodeTally>,
    /// The times of commands, which all sessions of the server share.
    pub(crate) times: Arc<CommandTimes>,
    _alive: watch::Sender<()>,
}

/// An older session with the same name, which has to be closed before the new one begins.
pub(crate) struct Predecessor {
    orders: mpsc::Sender<DriverMessage>,
    gone: watch::Receiver<()>,
}

impl SessionRegistry {
    /// Returns the session that a new one of the same name replaces (RFC 7143, 6.3.5).
    ///
    /// # Errors
    /// [`LoginStatus::AuthenticationFailure`] if it is a normal session of another CHAP user that still
    /// exists according to `is_user`. The new user may be allowed on the target as well, but must not end
    /// that session by giving its initiator's name.
    pub(crate) fn predecessor(
        &self,
        login: &EstablishedLogin,
        is_user: impl Fn(&str) -> bool,
    ) -> Result<Option<Predecessor>, LoginStatus> {
        let inner = self.inner.lock();
        let Some(entry) = inner.sessions.values().find(|entry| entry.is_named_like(login)) else {
            return Ok(None);
        };
        // A session without a user may be replaced by a user's session: it may have begun before the target required
        // authentication.
        let is_others = |user: &String| login.user.as_ref() != Some(user) && is_user(user);
        if entry.target_name.is_some() && entry.user.as_ref().is_some_and(is_others) {
            return Err(LoginStatus::AuthenticationFailure);
        }
        Ok(Some(Predecessor { orders: entry.orders.clone(), gone: entry.gone.clone() }))
    }

    /// Waits until the other sessions of this initiator at this target have noticed which of their connections are
    /// closed. Without this wait, the commands of the new session could be refused because of a reservation, or a
    /// locked medium, of a session that has ended but is not processed yet.
    pub(crate) async fn settle(&self, login: &EstablishedLogin) {
        let drivers: Vec<_> = {
            let inner = self.inner.lock();
            let others = inner.sessions.values().filter(|entry| {
                entry.initiator_name == login.initiator_name
                    && entry.target_name == login.target_name
            });
            others.map(|entry| entry.orders.clone()).collect()
        };
        let (done, mut all_done) = mpsc::channel(1);
        for driver in drivers {
            // Ignore a failed send: a driver that accepts no more messages has ended its session.
            let _ = driver.send(DriverMessage::LookAtConnections { done: done.clone() }).await;
        }
        drop(done);
        while all_done.recv().await.is_some() {}
    }

    /// Returns the driver of the session with this TSIH, if it is between the same initiator port and target port. A
    /// login as another user than the session's is refused (RFC 7143, 9.2).
    pub(crate) fn find(
        &self,
        login: &EstablishedLogin,
    ) -> Result<mpsc::Sender<DriverMessage>, LoginStatus> {
        let inner = self.inner.lock();
        let mut sessions = inner.sessions.values();
        let is_meant =
            |entry: &&SessionEntry| entry.tsih == login.tsih && entry.is_named_like(login);
        match sessions.find(is_meant) {
            None => Err(LoginStatus::SessionDoesNotExist),
            Some(entry) if entry.user != login.user => Err(LoginStatus::AuthenticationFailure),
            Some(entry) => Ok(entry.orders.clone()),
        }
    }

    /// Registers a new session. Returns `None` if all 65,535 TSIHs are in use, or if another login has registered a
    /// session with this name first.
    pub(crate) fn enter(
        self: &Arc<Self>,
        login: &EstablishedLogin,
        address: SocketAddr,
    ) -> Option<SessionRegistration> {
        let mut inner = self.inner.lock();
        if inner.sessions.values().any(|entry| entry.is_named_like(login)) {
            return None;
        }
        let tsih = inner.free_tsih()?;
        inner.last_number += 1;
        let number = inner.last_number;
        let (sender, orders) = mpsc::channel(ORDERS);
        let (alive, gone) = watch::channel(());
        let published = Arc::<Mutex<SessionSnapshot>>::default();
        let tally = Arc::<OpcodeTally>::default();
        inner.sessions.insert(
            number,
            SessionEntry {
                initiator_name: login.initiator_name.clone(),
                isid: login.isid,
                target_name: login.target_name.clone(),
                user: login.user.clone(),
                tpgt: login.tpgt,
                tsih,
                address,
                orders: sender,
                published: published.clone(),
                tally: tally.clone(),
                gone,
            },
        );
        drop(inner);
        count(&self.events.opened_sessions);
        let (registry, user, tpgt) = (self.clone(), login.user.clone(), login.tpgt);
        let times = self.times.clone();
        Some(SessionRegistration {
            registry,
            number,
            tsih,
            user,
            tpgt,
            orders,
            published,
            tally,
            times,
            _alive: alive,
        })
    }

    /// Returns the drivers of all sessions of a target, or of all sessions if `target` is `None`, except session
    /// number `but`.
    pub(crate) fn drivers(
        &self,
        target: Option<&str>,
        but: u64,
    ) -> Vec<mpsc::Sender<DriverMessage>> {
        let inner = self.inner.lock();
        let is_meant = |(number, entry): &(&u64, &SessionEntry)| {
            **number != but && (target.is_none() || entry.target_name.as_deref() == target)
        };
        inner.sessions.iter().filter(is_meant).map(|(_, entry)| entry.orders.clone()).collect()
    }

    /// Waits until no session of this target is open, or no session at all if `target` is `None`.
    pub(crate) async fn empty(&self, target: Option<&str>) {
        loop {
            let open = {
                let inner = self.inner.lock();
                let mut entries = inner.sessions.values();
                let is_meant =
                    |e: &&SessionEntry| target.is_none() || e.target_name.as_deref() == target;
                let open = entries.find(is_meant);
                open.map(|entry| entry.gone.clone())
            };
            let Some(mut gone) = open else { return };
            while gone.changed().await.is_ok() {}
        }
    }

    pub(crate) fn statistics(&self) -> TargetStatistics {
        let inner = self.inner.lock();
        let mut total = inner.past;
        let mut by_target = inner.past_of.clone();
        let commands = OpcodeTally::default();
        commands.add(&inner.past_commands);
        inner.sessions.values().for_each(|entry| commands.add(&entry.tally));
        let mut sessions: Vec<_> = inner
            .sessions
            .iter()
            .map(|(number, entry)| {
                let published = entry.published.lock();
                total += published.counters;
                if let Some(target) = &entry.target_name {
                    *by_target.entry(target.clone()).or_default() += published.counters;
                }
                let session = SessionStatistics {
                    initiator_name: entry.initiator_name.clone(),
                    address: entry.address,
                    target_name: entry.target_name.clone(),
                    portal_group: entry.tpgt,
                    tsih: entry.tsih.0,
                    counters: published.counters,
                    congestion: published.congestion.as_ref().map(|it| it.statistics()),
                    connections: published.connections.clone(),
                };
                (*number, session)
            })
            .collect();
        sessions.sort_by_key(|(number, _)| *number);
        TargetStatistics {
            sessions: sessions.into_iter().map(|(_, session)| session).collect(),
            connections: self.connections.get(),
            displaced_connections: self.events.displaced_connections.load(Ordering::Relaxed),
            refused_connections: self.events.refused_connections.load(Ordering::Relaxed),
            failed_logins: self.events.failed_logins.load(Ordering::Relaxed),
            opened_sessions: self.events.opened_sessions.load(Ordering::Relaxed),
            total,
            by_target,
            commands: commands.counted().collect(),
            times: self.times.taken(),
            ..TargetStatistics::default()
        }
    }
}

impl RegistryState {
    fn free_tsih(&mut self) -> Option<Tsih> {
        (0..u16::MAX).find_map(|_| {
            self.last_tsih = self.last_tsih.wrapping_add(1).max(1);
            let tsih = Tsih(self.last_tsih);
            self.tsihs.insert(tsih).then_some(tsih)
        })
    }
}

impl SessionEntry {
    /// Returns true if the login is between the same initiator port and target port (portal group of a target) as this
    /// session. Two such ports have one session at most (RFC 7143, 4.4.2).
    fn is_named_like(&self, login: &EstablishedLogin) -> bool {
        self.isid == login.isid
            && self.initiator_name == login.initiator_name
            && self.target_name == login.target_name
            && self.tpgt == login.tpgt
    }
}

impl Predecessor {
    /// Closes the session, and waits until none of its commands is in progress.
    pub(crate) async fn close(mut self) {
        // Ignore a failed send: if the queue is full, the driver will make room, and if it is closed, the driver has
        // ended.
        let _ = self
            .orders
            .send(DriverMessage::Close("replaced by a new session with the same name"))
            .await;
        while self.gone.changed().await.is_ok() {}
    }
}

impl SessionRegistration {
    /// Notes that the session has lost its last connection and waits for its initiator. If more than `limit` sessions
    /// wait, those that have waited longest are closed.
    pub(crate) fn begin_to_wait(&self, limit: usize) {
        let mut inner = self.registry.inner.lock();
        inner.waiting.push_back(self.number);
        while inner.waiting.len() > limit {
            let Some(oldest) = inner.waiting.pop_front() else { return };
            let entry = inner.sessions.get(&oldest);
            let order = DriverMessage::Close("too many sessions wait for their initiators");
            if entry.is_some_and(|entry| entry.orders.try_send(order).is_err()) {
                // The message queue of the session is full. Close the session at the next call, if it still waits then.
                inner.waiting.push_front(oldest);
                return;
            }
        }
    }

    /// Records that the initiator of this session has reconnected.
    pub(crate) fn end_to_wait(&self) {
        self.registry.inner.lock().waiting.retain(|number| *number != self.number);
    }
}

impl Drop for SessionRegistration {
    fn drop(&mut self) {
        let mut inner = self.registry.inner.lock();
        let counted = self.published.lock().counters;
        let ended = inner.sessions.remove(&self.number);
        if let Some(target) = ended.and_then(|entry| entry.target_name) {
            *inner.past_of.entry(target).or_default() += counted;
        }
        inner.tsihs.remove(&self.tsih);
        inner.waiting.retain(|number| *number != self.number);
        inner.past += counted;
        inner.past_commands.add(&self.tally);
    }
}

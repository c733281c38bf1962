//! The server, which opens and closes its targets and portals.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tracing::{info, warn};
use transport::ReportLimiter;
use volume::{ConditionChange, OngoingCondition};

use crate::{
    chap_delay::ChapFailureDelay,
    counted_limit::Permit,
    login_access::{LoginAccess, Security},
    login_io,
    portal::{Listener, Portal},
    repeated_refusals::RepeatedRefusals,
    server_context::ServerContext,
    session_registry::DriverMessage,
    settings::Settings,
    statistics::{TargetStatistics, count},
    target_table::{ServedTargetEntry, Target, TargetError},
    write_data_pool::WriteDataPool,
};

/// Serves targets on any number of portals. Has to be used within a tokio runtime.
pub struct TargetServer {
    context: Arc<ServerContext>,
}

/// Pause before the next `accept` after one has failed, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time without an error of `accept` after which an event reports that connections are accepted again. A single
/// accepted connection does not show that: when descriptors are freed one by one, each of them is taken at once.
const ACCEPT_QUIET: Duration = Duration::from_secs(60);
/// Time in which sessions must end after they are asked to close. They close at once unless a unit blocks a
/// thread.
const CLOSING: Duration = Duration::from_secs(2);

/// The most events about failed logins of one address in ten seconds: enough while an operator sets up an initiator.
const LOGIN_REPORTS: u32 = 10;
/// The most events about failed logins of all addresses in ten seconds: enough while an operator sets up many
/// initiators at once, but too few to fill a disk (4 kB/s).
const LOGIN_REPORTS_IN_ALL: u32 = 200;
/// The most events about discovery sessions of one address in ten seconds. A host that repeats its discovery has
/// nothing new to report.
const DISCOVERY_REPORTS: u32 = 1;
/// The most events about discovery sessions of all addresses in ten seconds.
const DISCOVERY_REPORTS_IN_ALL: u32 = 50;
/// The most events about normal sessions of one address in ten seconds. A host that opens and closes 50 sessions at
/// once is reported in full.
const SESSION_REPORTS: u32 = 100;
/// The most events about normal sessions of all addresses in ten seconds, so that no number of sessions can fill a disk
/// (12 kB/s).
const SESSION_REPORTS_IN_ALL: u32 = 500;

impl TargetServer {
    /// Creates a server that serves these targets and has no portals yet.
    pub fn new(mut settings: Settings, targets: Vec<Target>) -> Result<Self, TargetError> {
        // Limit a transfer to the size of the pool: a longer write could never get enough memory.
        let most = u32::try_from(settings.borrowed_bytes()).unwrap_or(u32::MAX);
        settings.session.max_transfer_bytes = settings.session.max_transfer_bytes.min(most);
        settings.session.excused_time = settings.slow_reader;
        let pool = Arc::new(WriteDataPool::new(settings.borrowed_bytes()));
        let security = RwLock::new(Arc::new(settings.security.clone()));
        let context = Arc::new(ServerContext {
            settings,
            security,
            logins: Arc::default(),
            discoveries: Arc::default(),
            pool,
            pollers: Arc::default(),
            chap_delay: ChapFailureDelay::default(),
            login_reports: ReportLimiter::new(LOGIN_REPORTS, LOGIN_REPORTS_IN_ALL),
            repeated_refusals: RepeatedRefusals::default(),
            discovery_reports: ReportLimiter::new(DISCOVERY_REPORTS, DISCOVERY_REPORTS_IN_ALL),
            session_reports: ReportLimiter::new(SESSION_REPORTS, SESSION_REPORTS_IN_ALL),
            names: Arc::default(),
            registry: Arc::default(),
            portals: Arc::default(),
            stopping: watch::Sender::new(false),
        });
        let server = Self { context };
        targets.into_iter().try_for_each(|target| server.add(target))?;
        Ok(server)
    }

    /// Adds a target.
    ///
    /// # Errors
    /// If the target is invalid or a target with its name is served.
    pub fn add(&self, target: Target) -> Result<(), TargetError> {
        self.context.names.add(target)
    }

    /// Changes the access rules of a target for later logins. Open sessions are not affected. Returns false
    /// if there is no such target.
    pub fn change_access(&self, name: &str, access: LoginAccess) -> bool {
        let device = self.context.names.find(name);
        device.map(|device| device.change_access(access)).is_some()
    }

    /// Changes the CHAP users and discovery rules for later connections. Open sessions are not affected.
    pub fn change_security(&self, security: Security) {
        *self.context.security.write() = Arc::new(security);
    }

    /// Replaces the target with the same name. Sessions stay open: commands at removed units end with LOGICAL UNIT
    /// NOT SUPPORTED, and the initiators learn about added units by the unit attention REPORTED LUNS DATA HAS
    /// CHANGED. On return, no session uses a removed unit, except for a session whose driver did not respond within
    /// two seconds. Returns false if no target of this name is served.
    ///
    /// # Errors
    /// If the target is invalid.
    pub async fn change(&self, target: Target) -> Result<bool, TargetError> {
        let new = Arc::new(ServedTargetEntry::new(target)?);
        let ServerContext { names, registry, .. } = &*self.context;
        if !names.replace(Arc::clone(&new)) {
            return Ok(false);
        }
        let (done, mut all_done) = mpsc::channel(1);
        let drivers = registry.drivers(Some(&new.name), 0);
        let messages = async move {
            send_to_all(&drivers, || DriverMessage::LookAtUnits { done: done.clone() }).await;
            drop(done);
            while all_done.recv().await.is_some() {}
        };
        if tokio::time::timeout(CLOSING, messages).await.is_err() {
            warn!(target = new.name, "a session still uses units that were removed");
        }
        Ok(true)
    }

    /// Removes a target: refuses further logins, asks initiators to log out, and after `deadline` closes the
    /// remaining sessions. Returns when no session to it is open, at most two seconds after `deadline`.
    pub async fn remove(&self, name: &str, deadline: Duration) {
        self.context.names.remove(name);
        self.close_sessions(Some(name), deadline, "the target is no longer served").await;
    }

    /// Replaces the target with the same name, and ends its sessions without completing their commands, so that
    /// initiators log in again and learn the new location. Returns true if all of them have ended within two
    /// seconds. Returns false if some have not, or if no target of this name is served.
    ///
    /// # Errors
    /// If the target is invalid.
    pub async fn turn_away(&self, target: Target) -> Result<bool, TargetError> {
        let new = Arc::new(ServedTargetEntry::new(target)?);
        let ServerContext { names, registry, .. } = &*self.context;
        if !names.replace(Arc::clone(&new)) {
            return Ok(false);
        }
        self.close_sessions(Some(&new.name), Duration::ZERO, "the target is served elsewhere")
            .await;
        Ok(registry.drivers(Some(&new.name), 0).is_empty())
    }

    /// Opens a portal of the default group; port 0 takes any free port. Returns its address.
    ///
    /// # Errors
    /// Those of the system calls.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.open_portal(address.into()).await
    }

    /// Opens a portal and returns its address.
    ///
    /// # Errors
    /// Those of the system calls.
    pub async fn open_portal(&self, portal: Portal) -> io::Result<SocketAddr> {
        Ok(self.accept(self.bind(portal)?))
    }

    /// Binds a portal's address with this server's socket options, for [`TargetServer::accept`].
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn bind(&self, portal: Portal) -> io::Result<Listener> {
        let settings = &self.context.settings;
        Listener::bind(portal, &settings.socket, &settings.congestion)
    }

    /// Starts to accept connections at a portal that is bound already. Returns its address.
    pub fn accept(&self, listener: Listener) -> SocketAddr {
        let Listener { portal, socket } = listener;
        let bound = portal.address;
        let accepting = accept(self.context.clone(), socket);
        self.context.portals.add(portal, || tokio::spawn(accepting));
        bound
    }

    /// Replaces the settings of the portal with the same address, for later logins. Returns false if it is not open.
    pub fn change_portal(&self, portal: Portal) -> bool {
        self.context.portals.replace(portal)
    }

    /// Closes a portal: on return, its address is not listened on. Connections that it has accepted stay open.
    pub async fn close_portal(&self, address: SocketAddr) {
        self.context.portals.close(|portal| portal.address == address).await;
    }

    #[must_use]
    pub fn portals(&self) -> Vec<Portal> {
        self.context.portals.all()
    }

    /// Returns the present state and the counters of the server.
    #[must_use]
    pub fn statistics(&self) -> TargetStatistics {
        TargetStatistics {
            logins_in_progress: self.context.logins.taken(),
            discovery_sessions: self.context.discoveries.taken(),
            ..self.context.registry.statistics()
        }
    }

    /// Returns the number of connections of normal sessions that have ended since the start.
    #[must_use]
    pub fn ended_connections(&self) -> u64 {
        self.context.registry.members.given_back()
    }

    /// Closes the portals, asks initiators to log out, and after `deadline` closes the remaining sessions. Returns
    /// when nothing is open, at most two seconds after `deadline`.
    pub async fn shutdown(&self, deadline: Duration) {
        self.context.stopping.send_replace(true);
        self.context.portals.close(|_| true).await;
        self.close_sessions(None, deadline, "the server is stopping").await;
    }

    /// Asks the initiators of one target, or of all, to log out. Waits until `deadline`, then closes the remaining
    /// sessions.
    async fn close_sessions(&self, target: Option<&str>, deadline: Duration, why: &'static str) {
        let registry = &self.context.registry;
        let gone = || async {
            // Wait for sessions and for connections: a session may be without a connection for a while, and a
            // connection that logs in has no session yet.
            registry.empty(target).await;
            if target.is_none() {
                registry.connections.empty().await;
            }
        };
        let end = Instant::now() + deadline;
        let seconds = deadline.as_secs().clamp(1, u64::from(u16::MAX)) as u16;
        let drivers = registry.drivers(target, 0);
        let _ =
            timeout_at(end, send_to_all(&drivers, || DriverMessage::AskForLogout(seconds))).await;
        if timeout_at(end, gone()).await.is_ok() {
            return;
        }
        let end = Instant::now() + CLOSING;
        let drivers = registry.drivers(target, 0);
        let _ = timeout_at(end, send_to_all(&drivers, || DriverMessage::Stop(why))).await;
        if timeout_at(end, gone()).await.is_err() {
            warn!(target, open = registry.connections.get(), "connections did not close in time");
        }
    }
}

async fn send_to_all(drivers: &[mpsc::Sender<DriverMessage>], order: impl Fn() -> DriverMessage) {
    for driver in drivers {
        // Ignore a failed send: the driver has ended, so it needs no order.
        let _ = driver.send(order()).await;
    }
}

/// Accepts connections at one portal. Closing the portal drops this future between two connections.
async fn accept(context: Arc<ServerContext>, listener: TcpListener) {
    let mut failing = OngoingCondition::default();
    loop {
        let accepted = listener.accept().await;
        match failing.turn_after(accepted.is_err(), ACCEPT_QUIET) {
            Some(ConditionChange::Begins) => {
                let error = accepted.as_ref().err().map(ToString::to_string);
                warn!(
                    error,
                    remedy = "nothing has to be done unless it lasts: if files run out, raise LimitNOFILE= of \
                     systemd or `ulimit -n`, or lower `max_connections`",
                    "no connection can be accepted: trying again until one is"
                );
            }
            Some(ConditionChange::Ends(lasted)) => {
                info!(lasted_s = lasted.as_secs(), "connections are accepted again");
            }
            None => {}
        }
        match accepted {
            Ok((stream, address)) => admit(&context, stream, address),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Starts to serve a connection, or closes it if a limit of the server is reached.
fn admit(context: &Arc<ServerContext>, stream: TcpStream, address: SocketAddr) {
    let ServerContext { settings, registry, logins, login_reports, .. } = &**context;
    let connection = Permit::take(&registry.connections, settings.open_connections());
    let place = connection.and_then(|connection| {
        let (limit, own) = (settings.max_logins, settings.max_logins_per_address);
        Some((connection, logins.enter(address.ip(), limit, own)?))
    });
    let Some((connection, place)) = place else {
        count(&registry.events.refused_connections);
        if let Some(unreported) = login_reports.report(address.ip(), std::time::Instant::now()) {
            warn!(%address, unreported, "connection refused: too many connections are logging in");
        }
        return;
    };
    let context = context.clone();
    tokio::spawn(async move {
        login_io::serve(&context, stream, address, place, connection).await;
    });
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use transport::{CongestionControl, SocketOptions};

    use super::*;

    /// Regression: the socket options were set on accepted sockets, which is too late for the TCP window scale.
    #[tokio::test]
    async fn a_portal_listens_with_the_servers_socket_options_and_congestion_control() {
        let socket = SocketOptions::buffers(Some(65_536));
        let congestion = CongestionControl::named("reno");
        let settings = Settings { socket, congestion, ..Settings::default() };
        let server = TargetServer::new(settings, vec![]).unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = server.bind(address.into()).unwrap();
        let socket = SockRef::from(&listener.socket);
        // The kernel reports twice the size, because it adds as much for its own records.
        assert_eq!(socket.recv_buffer_size().unwrap(), 2 * 65_536);
        assert_eq!(socket.send_buffer_size().unwrap(), 2 * 65_536);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.tcp_congestion().unwrap().starts_with(b"reno\0"));
    }
}

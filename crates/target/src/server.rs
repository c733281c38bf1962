//! A server: its portals, and its end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tracing::warn;
use transport::ReportLimiter;

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

/// Serves targets on any number of portals. Needs a tokio runtime around it.
pub struct TargetServer {
    surroundings: Arc<ServerContext>,
}

/// After an error of `accept` (out of file descriptors, say) the next try waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long sessions may take to end once they are told to; they do at once unless a unit holds
/// a thread.
const CLOSING: Duration = Duration::from_secs(2);

/// Events about failed logins in ten seconds, of one address and of all addresses: enough for a person who sets
/// up one initiator or many at once; too few to fill a disk (4 kB/s).
const LOGIN_REPORTS: u32 = 10;
const LOGIN_REPORTS_IN_ALL: u32 = 200;
/// Events about discovery sessions in ten seconds, of one address and of all addresses. A host that repeats its
/// discovery has nothing new to report.
const DISCOVERY_REPORTS: u32 = 1;
const DISCOVERY_REPORTS_IN_ALL: u32 = 50;
/// Events about normal sessions in ten seconds, of one address and of all addresses. A host that opens and
/// closes 50 sessions at once is reported in full; no number of sessions can fill a disk (12 kB/s in all).
const SESSION_REPORTS: u32 = 100;
const SESSION_REPORTS_IN_ALL: u32 = 500;

impl TargetServer {
    /// A server that listens nowhere yet.
    pub fn new(mut settings: Settings, targets: Vec<Target>) -> Result<Self, TargetError> {
        // A longer write would wait for more room than the pool can ever have.
        let most = u32::try_from(settings.borrowed_bytes()).unwrap_or(u32::MAX);
        settings.session.max_transfer_bytes = settings.session.max_transfer_bytes.min(most);
        settings.session.excused_time = settings.slow_reader;
        let pool = Arc::new(WriteDataPool::new(settings.borrowed_bytes()));
        let security = RwLock::new(Arc::new(settings.security.clone()));
        let surroundings = Arc::new(ServerContext {
            settings,
            security,
            logins: Arc::default(),
            discoveries: Arc::default(),
            pool,
            pollers: Arc::default(),
            guard: ChapFailureDelay::default(),
            login_reports: ReportLimiter::new(LOGIN_REPORTS, LOGIN_REPORTS_IN_ALL),
            repeats: RepeatedRefusals::default(),
            discovery_reports: ReportLimiter::new(DISCOVERY_REPORTS, DISCOVERY_REPORTS_IN_ALL),
            session_reports: ReportLimiter::new(SESSION_REPORTS, SESSION_REPORTS_IN_ALL),
            names: Arc::default(),
            registry: Arc::default(),
            portals: Arc::default(),
            stopping: watch::Sender::new(false),
        });
        let server = Self { surroundings };
        targets.into_iter().try_for_each(|target| server.add(target))?;
        Ok(server)
    }

    /// Serves one more target.
    ///
    /// # Errors
    /// If it cannot be served beside the others.
    pub fn add(&self, target: Target) -> Result<(), TargetError> {
        self.surroundings.names.add(target)
    }

    /// Who may log in to this target, from the next login on; sessions that are open stay. False
    /// if there is no such target.
    pub fn change_access(&self, name: &str, access: LoginAccess) -> bool {
        let device = self.surroundings.names.find(name);
        device.map(|device| device.change_access(access)).is_some()
    }

    /// Who proves what, from the next connection on; sessions that are open stay.
    pub fn change_security(&self, security: Security) {
        *self.surroundings.security.write() = Arc::new(security);
    }

    /// Another target of the same name takes the place of the one that is served. Sessions stay:
    /// where a unit is gone, their commands end with LOGICAL UNIT NOT SUPPORTED, and they are told
    /// of other units with REPORTED LUNS DATA HAS CHANGED. When this returns, no session uses a
    /// unit that is gone; at most two seconds later if one does not come to it. False if no target
    /// of this name is served.
    ///
    /// # Errors
    /// If it cannot be served.
    pub async fn change(&self, target: Target) -> Result<bool, TargetError> {
        let new = Arc::new(ServedTargetEntry::new(target)?);
        let ServerContext { names, registry, .. } = &*self.surroundings;
        if !names.replace(Arc::clone(&new)) {
            return Ok(false);
        }
        let (done, mut all_done) = mpsc::channel(1);
        let drivers = registry.drivers(Some(&new.name), 0);
        let told = async move {
            tell(&drivers, || DriverMessage::LookAtUnits { done: done.clone() }).await;
            drop(done);
            while all_done.recv().await.is_some() {}
        };
        if tokio::time::timeout(CLOSING, told).await.is_err() {
            warn!(target = new.name, "a session has not let go of units that are gone");
        }
        Ok(true)
    }

    /// Lets nobody log in to this target any more, asks those who are to log out, closes what is
    /// left after `deadline`, and returns when no session to it is open, at most two seconds after
    /// that.
    pub async fn remove(&self, name: &str, deadline: Duration) {
        self.surroundings.names.remove(name);
        self.close_sessions(Some(name), deadline, "the target is no longer served").await;
    }

    /// Another target of the same name takes the place of the one that is served, and its sessions end without
    /// another answer, so that initiators log in again and learn where to. True if none is left, which they
    /// have two seconds for; false also if no target of this name is served.
    ///
    /// # Errors
    /// If it cannot be served.
    pub async fn turn_away(&self, target: Target) -> Result<bool, TargetError> {
        let new = Arc::new(ServedTargetEntry::new(target)?);
        let ServerContext { names, registry, .. } = &*self.surroundings;
        if !names.replace(Arc::clone(&new)) {
            return Ok(false);
        }
        self.close_sessions(Some(&new.name), Duration::ZERO, "the target is served elsewhere")
            .await;
        Ok(registry.drivers(Some(&new.name), 0).is_empty())
    }

    /// Opens a portal of the default group; port 0 takes any that is free. Returns where it
    /// listens.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.open_portal(address.into()).await
    }

    /// Opens a portal. Returns where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn open_portal(&self, portal: Portal) -> io::Result<SocketAddr> {
        Ok(self.accept(self.bind(portal)?))
    }

    /// Takes a portal's address with this server's socket options, for [`TargetServer::accept`].
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(&self, portal: Portal) -> io::Result<Listener> {
        Listener::bind(portal, &self.surroundings.settings.socket)
    }

    /// Opens a portal that is bound already. Returns where it listens.
    pub fn accept(&self, listener: Listener) -> SocketAddr {
        let Listener { portal, socket } = listener;
        let bound = portal.address;
        let accepting = accept(self.surroundings.clone(), socket);
        self.surroundings.portals.add(portal, || tokio::spawn(accepting));
        bound
    }

    /// Says something else of the portal with this address, from the next login on. False if it
    /// is not open.
    pub fn change_portal(&self, portal: Portal) -> bool {
        self.surroundings.portals.replace(portal)
    }

    /// Closes a portal: nobody is listening there any more when this returns. Connections that
    /// have come in by it stay.
    pub async fn close_portal(&self, address: SocketAddr) {
        self.surroundings.portals.close(|portal| portal.address == address).await;
    }

    /// The portals that are open.
    #[must_use]
    pub fn portals(&self) -> Vec<Portal> {
        self.surroundings.portals.all()
    }

    /// What it has seen.
    #[must_use]
    pub fn statistics(&self) -> TargetStatistics {
        TargetStatistics {
            logins_in_progress: self.surroundings.logins.taken(),
            discovery_sessions: self.surroundings.discoveries.taken(),
            ..self.surroundings.registry.statistics()
        }
    }

    /// Returns the number of connections of normal sessions that have ended since the start.
    #[must_use]
    pub fn ended_connections(&self) -> u64 {
        self.surroundings.registry.members.given_back()
    }

    /// Closes the portals, asks initiators to log out, closes what is left after `deadline`, and
    /// returns when nothing is open, at most two seconds after that.
    pub async fn shutdown(&self, deadline: Duration) {
        self.surroundings.stopping.send_replace(true);
        self.surroundings.portals.close(|_| true).await;
        self.close_sessions(None, deadline, "the server stops").await;
    }

    /// Asks for logout and waits for it, then closes; of one target, or everything.
    async fn close_sessions(&self, target: Option<&str>, deadline: Duration, why: &'static str) {
        let registry = &self.surroundings.registry;
        let gone = || async {
            // A session may be there without a connection for a while, and a connection without
            // a session.
            registry.empty(target).await;
            if target.is_none() {
                registry.connections.empty().await;
            }
        };
        let end = Instant::now() + deadline;
        let seconds = deadline.as_secs().clamp(1, u64::from(u16::MAX)) as u16;
        let drivers = registry.drivers(target, 0);
        let _ = timeout_at(end, tell(&drivers, || DriverMessage::AskForLogout(seconds))).await;
        if timeout_at(end, gone()).await.is_ok() {
            return;
        }
        let end = Instant::now() + CLOSING;
        let drivers = registry.drivers(target, 0);
        let _ = timeout_at(end, tell(&drivers, || DriverMessage::Stop(why))).await;
        if timeout_at(end, gone()).await.is_err() {
            warn!(target, open = registry.connections.get(), "connections did not close");
        }
    }
}

async fn tell(drivers: &[mpsc::Sender<DriverMessage>], order: impl Fn() -> DriverMessage) {
    for driver in drivers {
        // A driver that has gone needs no telling.
        let _ = driver.send(order()).await;
    }
}

/// Until the portal is closed: then dropped between two connections.
async fn accept(surroundings: Arc<ServerContext>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => admit(&surroundings, stream, address),
            Err(error) => {
                warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts to serve a connection. Closes it if no other connection gives way to it.
fn admit(surroundings: &Arc<ServerContext>, stream: TcpStream, address: SocketAddr) {
    let ServerContext { settings, registry, logins, login_reports, .. } = &**surroundings;
    let connection = Permit::take(&registry.connections, settings.open_connections());
    let place = connection.and_then(|connection| {
        let (limit, own) = (settings.max_logins, settings.max_logins_per_address);
        Some((connection, logins.enter(address.ip(), limit, own)?))
    });
    let Some((connection, place)) = place else {
        count(&registry.events.refused_connections);
        if let Some(unreported) = login_reports.report(address.ip(), std::time::Instant::now()) {
            warn!(%address, unreported, "connection refused: too many connections log in");
        }
        return;
    };
    let surroundings = surroundings.clone();
    tokio::spawn(async move {
        login_io::serve(&surroundings, stream, address, place, connection).await;
    });
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use transport::SocketOptions;

    use super::*;

    /// They were set on what came in, too late for the scale of its window.
    #[tokio::test]
    async fn a_portal_listens_with_the_servers_socket_options() {
        let socket = SocketOptions::buffers(Some(65_536));
        let server = TargetServer::new(Settings { socket, ..Settings::default() }, vec![]).unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = server.bind(address.into()).unwrap();
        let socket = SockRef::from(&listener.socket);
        // The kernel takes as much again for its own records.
        assert_eq!(socket.recv_buffer_size().unwrap(), 2 * 65_536);
        assert_eq!(socket.send_buffer_size().unwrap(), 2 * 65_536);
        assert!(socket.tcp_nodelay().unwrap());
    }
}

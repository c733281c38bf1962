//! A server: its portals, and its end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::RwLock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tracing::{debug, warn};

use crate::{
    entrance,
    names::{Names, Target, TargetError},
    registry::{Order, Permit, Registry},
    settings::Settings,
    statistics::{Statistics, count},
    surroundings::Surroundings,
};

/// Serves targets on any number of portals. Needs a tokio runtime around it.
pub struct Server {
    surroundings: Arc<Surroundings>,
}

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 256;
/// After an error of `accept` (out of file descriptors, say) the next try waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long sessions may take to end once they are told to; they do at once unless a unit holds
/// a thread.
const CLOSING: Duration = Duration::from_secs(2);

impl Server {
    /// A server that listens nowhere yet.
    pub fn new(settings: Settings, targets: Vec<Target>) -> Result<Self, TargetError> {
        let names = Arc::new(Names::new(targets)?);
        let surroundings = Arc::new(Surroundings {
            settings,
            names,
            registry: Arc::new(Registry::default()),
            portals: RwLock::default(),
            stopping: watch::Sender::new(false),
        });
        Ok(Self { surroundings })
    }

    /// Opens a portal; port 0 takes any that is free. Returns where it listens.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restarted node takes its port back though old connections linger in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from_std(socket.into())?;
        let bound = listener.local_addr()?;
        self.surroundings.portals.write().push(bound);
        tokio::spawn(accept(self.surroundings.clone(), listener));
        Ok(bound)
    }

    /// Where it listens.
    #[must_use]
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.surroundings.portals.read().clone()
    }

    /// What it has seen.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.surroundings.registry.statistics()
    }

    /// Closes the portals, asks initiators to log out, closes what is left after `deadline`, and
    /// returns when no connection is open, at most two seconds after that.
    pub async fn shutdown(&self, deadline: Duration) {
        let registry = &self.surroundings.registry;
        self.surroundings.stopping.send_replace(true);
        let end = Instant::now() + deadline;
        let seconds = deadline.as_secs().clamp(1, u64::from(u16::MAX)) as u16;
        let drivers = registry.drivers(None, 0);
        let _ = timeout_at(end, tell(&drivers, || Order::AskForLogout(seconds))).await;
        if timeout_at(end, registry.connections.empty()).await.is_ok() {
            return;
        }
        let end = Instant::now() + CLOSING;
        let drivers = registry.drivers(None, 0);
        let _ = timeout_at(end, tell(&drivers, || Order::Close("the server stops"))).await;
        if timeout_at(end, registry.connections.empty()).await.is_err() {
            let open = registry.connections.get();
            warn!(open, "connections did not close");
        }
    }
}

async fn tell(drivers: &[mpsc::Sender<Order>], order: impl Fn() -> Order) {
    for driver in drivers {
        // A driver that has gone needs no telling.
        let _ = driver.send(order()).await;
    }
}

async fn accept(surroundings: Arc<Surroundings>, listener: TcpListener) {
    let mut stopping = surroundings.stopping.subscribe();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        match accepted {
            Ok((stream, address)) => admit(&surroundings, stream, address),
            Err(error) => {
                warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts a connection, or closes it if there are too many.
fn admit(surroundings: &Arc<Surroundings>, stream: TcpStream, address: SocketAddr) {
    let Surroundings { settings, registry, .. } = &**surroundings;
    let connection = Permit::take(&registry.connections, settings.max_connections);
    let login = Permit::take(&registry.logins, settings.max_logins);
    let (Some(connection), Some(login)) = (connection, login) else {
        count(&registry.events.refused_connections);
        debug!(%address, "too many connections");
        return;
    };
    let surroundings = surroundings.clone();
    tokio::spawn(async move {
        entrance::serve(&surroundings, stream, address, login).await;
        drop(connection);
    });
}

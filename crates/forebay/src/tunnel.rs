//! `forebay tunnel`: relays connections through TLS for initiators and targets that do not support it. The relay does
//! not examine the data.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use config::certificates;
use control::Failure;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls::pki_types::ServerName, server::TlsStream};
use tracing::{debug, info, warn};
use transport::{ConnectionQuota, ReportLimiter, SocketOptions};
use volume::{ConditionChange, OngoingCondition};

use crate::{
    cli::{Relay, Tunnel, TunnelEnd},
    output::print_line,
};

/// Maximum number of received bytes that the relay holds for one direction of a connection. It reads no more until
/// these are written.
const BUFFER: usize = 64 * 1024;

/// Time limit of the TLS handshake and, separately, of connecting to the other end of the tunnel.
const SET_UP: Duration = Duration::from_secs(10);

/// Pause before the next `accept` after one has failed, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time without an error of `accept` after which the tunnel counts as accepting connections again.
const ACCEPT_QUIET: Duration = Duration::from_secs(60);

/// Maximum number of concurrent handshakes, in total (`HANDSHAKES`) and from one address (`HANDSHAKES_PER_ADDRESS`):
/// the limits of targets for logins. Beyond it, the address with the most handshakes loses the oldest one.
const HANDSHAKES: usize = 128;
const HANDSHAKES_PER_ADDRESS: usize = 64;

/// Maximum number of events about connections in ten seconds: for one address (`REPORTS`) and in total
/// (`REPORTS_IN_ALL`).
const REPORTS: u32 = 10;
const REPORTS_IN_ALL: u32 = 200;

/// Tells which side of the relay uses TLS, and holds the TLS configuration of that side.
enum TunnelTlsSide {
    Near(TlsAcceptor),
    Far(TlsConnector, ServerName<'static>),
}

struct TunnelEndpoint {
    side: TunnelTlsSide,
    to: String,
    /// Permits for relayed connections, limited by `--max-connections`.
    places: Arc<Semaphore>,
    /// Permits for connections whose handshake is in progress.
    handshakes: Arc<ConnectionQuota>,
    reports: ReportLimiter,
}

/// Relays connections until SIGTERM or SIGINT.
pub async fn run(args: Tunnel) -> Result<(), Failure> {
    let (relay, side) = match args.end {
        TunnelEnd::Accept { relay, client_ca } => {
            let server = certificates::server(&relay.certificate, &relay.key, &client_ca)?;
            (relay, TunnelTlsSide::Near(server.config().into()))
        }
        TunnelEnd::Connect { relay, ca, server_name } => {
            let own = Some((&*relay.certificate, &*relay.key));
            let client = certificates::client(own, &ca, server_name.as_deref())?;
            let name = client.name(host(&relay.to)).map_err(Failure::settings)?;
            (relay, TunnelTlsSide::Far(client.config().into(), name))
        }
    };
    let Relay { listen, to, max_connections, .. } = relay;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|error| {
        Failure::new(format!("cannot listen on {listen}: {error}"))
            .remedy("name another address with --listen; `ss -ltnp` shows the addresses in use")
    })?;
    print_line(format_args!("ready {}", listener.local_addr().map_err(Failure::new)?))?;
    let places = Arc::new(Semaphore::new(max_connections.into()));
    let reports = ReportLimiter::new(REPORTS, REPORTS_IN_ALL);
    let end = Arc::new(TunnelEndpoint { side, to, places, handshakes: Arc::default(), reports });
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::new)?;
    tokio::select! {
        () = accept(listener, end) => {}
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}

/// Returns the host of `host:port`, an IPv6 address without brackets.
fn host(to: &str) -> &str {
    to.rsplit_once(':').map_or(to, |(host, _)| host).trim_matches(['[', ']'])
}

async fn accept(listener: TcpListener, end: Arc<TunnelEndpoint>) {
    let mut failing = OngoingCondition::default();
    loop {
        let accepted = listener.accept().await;
        match failing.turn_after(accepted.is_err(), ACCEPT_QUIET) {
            Some(ConditionChange::Begins) => {
                let error = accepted.as_ref().err().map(ToString::to_string);
                warn!(
                    error,
                    remedy = "nothing has to be done unless it lasts: if files run out, raise LimitNOFILE= of \
                     systemd or `ulimit -n`, or lower --max-connections",
                    "no connection can be accepted: trying again until one is"
                );
            }
            Some(ConditionChange::Ends(lasted)) => {
                info!(lasted_s = lasted.as_secs(), "connections are accepted again");
            }
            None => {}
        }
        match accepted {
            Ok((stream, address)) => drop(tokio::spawn(one(end.clone(), stream, address))),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn one(end: Arc<TunnelEndpoint>, near: TcpStream, address: SocketAddr) {
    match end.relay(near, address.ip()).await {
        Ok((there, back)) => debug!(%address, there, back, "connection closed"),
        Err(error) => match end.reports.report(address.ip(), Instant::now()) {
            Some(unreported) => {
                warn!(%address, to = end.to, %error, unreported, "connection broken");
            }
            None => debug!(%address, to = end.to, %error, "connection broken"),
        },
    }
}

impl TunnelEndpoint {
    /// Relays one connection until it ends. Returns the number of bytes relayed in each direction.
    async fn relay(&self, near: TcpStream, from: IpAddr) -> io::Result<(u64, u64)> {
        let options = SocketOptions::default();
        options.apply(&near)?;
        match &self.side {
            // Before its handshake is complete, a peer neither causes a connection to the other end nor counts for
            // `--max-connections`.
            TunnelTlsSide::Near(acceptor) => {
                let near = self.shake_hands(acceptor, near, from).await?;
                let _place = self.place()?;
                copy(near, self.connect(&options).await?).await
            }
            TunnelTlsSide::Far(connector, name) => {
                let _place = self.place()?;
                let far = self.connect(&options).await?;
                let far = in_time(connector.connect(name.clone(), far)).await?;
                copy(near, far).await
            }
        }
    }

    /// Performs the TLS handshake. Fails if a newer connection takes the permit of this one.
    async fn shake_hands(
        &self,
        acceptor: &TlsAcceptor,
        near: TcpStream,
        from: IpAddr,
    ) -> io::Result<TlsStream<TcpStream>> {
        let place = self.handshakes.enter(from, HANDSHAKES, HANDSHAKES_PER_ADDRESS);
        let displaced =
            || io::Error::other("closed in the handshake to make room for newer connections");
        let place = place.ok_or_else(displaced)?;
        tokio::select! {
            done = in_time(acceptor.accept(near)) => done,
            () = place.lost() => Err(displaced()),
        }
    }

    /// Takes one of the permits that limit the number of connections (`--max-connections`).
    fn place(&self) -> io::Result<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| io::Error::other("there are too many connections (--max-connections)"))
    }

    async fn connect(&self, options: &SocketOptions) -> io::Result<TcpStream> {
        let far = in_time(TcpStream::connect(&self.to)).await?;
        options.apply(&far)?;
        Ok(far)
    }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(SET_UP, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Relays both directions until both ends have closed: after one has closed, the other may continue to send.
async fn copy(
    mut near: impl AsyncRead + AsyncWrite + Unpin,
    mut far: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<(u64, u64)> {
    copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_text_before_the_port() {
        for (to, expected) in [("a.example:1", "a.example"), ("[::1]:1", "::1"), ("a", "a")] {
            assert_eq!(host(to), expected);
        }
    }
}

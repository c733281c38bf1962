//! Portals: the addresses on which a server listens, their groups, and the addresses that discovery reports.

use std::{
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

use parking_lot::RwLock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, task::JoinHandle};
use transport::{CongestionControl, SocketOptions, TlsServer};

/// An address at which the server accepts connections, and the settings for these connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portal {
    /// IP address and port. Port 0 takes any free port. An IPv6 portal accepts IPv6 only.
    pub address: SocketAddr,
    /// The portal group. Initiators reach the targets of this group through this portal.
    pub group: PortalGroup,
    /// `host[:port]` that discovery reports instead of the address, for initiators behind address translation (NAT).
    pub advertise: Option<String>,
    /// If set, the server redirects every login at this portal to this address.
    pub redirect: Option<Redirect>,
    /// If set, a connection starts with a TLS handshake. The handshake does not prove the initiator's iSCSI name:
    /// [`LoginAccess`](crate::LoginAccess) decides who may log in, with and without TLS.
    pub tls: Option<TlsServer>,
}

impl From<SocketAddr> for Portal {
    /// A portal of the default group without TLS, whose own address discovery reports.
    fn from(address: SocketAddr) -> Self {
        Self { address, group: PortalGroup::default(), advertise: None, redirect: None, tls: None }
    }
}

/// A group of portals that lead to the same target ports (RFC 7143, 4.4.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PortalGroup {
    /// The number of the group in this server. Tags are unique within one target only.
    pub number: u32,
    /// The target portal group tag (TPGT) that initiators see.
    pub tag: u16,
}

impl Default for PortalGroup {
    fn default() -> Self {
        Self { number: 0, tag: 1 }
    }
}

/// A redirect of logins (RFC 7143, 11.13.5).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Redirect {
    pub address: String,
    /// True if the target has moved permanently: the initiator should use the new address from now on.
    pub permanent: bool,
}

#[derive(Default)]
pub(crate) struct Portals {
    open: RwLock<Vec<OpenPortal>>,
}

struct OpenPortal {
    portal: Portal,
    /// The task that owns the listening socket and accepts connections.
    accepting: JoinHandle<()>,
}

/// Maximum number of connections that the kernel queues until the server accepts them.
const BACKLOG: i32 = 256;

/// A portal whose socket is bound: the kernel queues connections until a server accepts them.
pub struct Listener {
    pub(crate) portal: Portal,
    pub(crate) socket: TcpListener,
}

impl Listener {
    /// Binds the address; port 0 takes any free port. Accepted connections have the socket options and the congestion
    /// control from their first packet on. Call this within a tokio runtime.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn bind(
        mut portal: Portal,
        options: &SocketOptions,
        congestion: &CongestionControl,
    ) -> io::Result<Self> {
        let address = portal.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Allow a restarted node to bind its port while connections of the former process are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // Let an IPv6 portal accept IPv6 only, so that `[::]` and `0.0.0.0` can be bound at the same time.
            socket.set_only_v6(true)?;
        }
        options.apply(&socket)?;
        congestion.prepare(&socket);
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        portal.address = socket.local_addr()?;
        Ok(Self { portal, socket })
    }
}

impl Portals {
    /// Adds the portal and then calls `accept`. The list is locked meanwhile, so each accepted connection finds its
    /// portal.
    pub(crate) fn add(&self, portal: Portal, accept: impl FnOnce() -> JoinHandle<()>) {
        let mut open = self.open.write();
        open.push(OpenPortal { portal, accepting: accept() });
    }

    /// Replaces the portal that has the address of `portal`. Returns false if there is none.
    pub(crate) fn replace(&self, portal: Portal) -> bool {
        let mut open = self.open.write();
        let found = open.iter_mut().find(|open| open.portal.address == portal.address);
        found.map(|open| open.portal = portal).is_some()
    }

    /// Closes the portals for which `is_meant` returns true. Their sockets are closed when this returns.
    pub(crate) async fn close(&self, is_meant: impl Fn(&Portal) -> bool) {
        let closing: Vec<OpenPortal> =
            self.open.write().extract_if(.., |o| is_meant(&o.portal)).collect();
        for open in closing {
            open.accepting.abort();
            // Wait for the task: it ends between two calls of accept, and closes the socket.
            let _ = open.accepting.await;
        }
    }

    pub(crate) fn all(&self) -> Vec<Portal> {
        self.open.read().iter().map(|open| open.portal.clone()).collect()
    }

    /// Returns the portal whose address a connection has as its local address.
    pub(crate) fn entered(&self, local: SocketAddr) -> Option<Portal> {
        let open = self.open.read();
        let is_it = |portal: &Portal| {
            let (ours, its) = (portal.address.ip(), local.ip());
            portal.address.port() == local.port()
                && (ours == its || ours.is_unspecified() && ours.is_ipv4() == its.is_ipv4())
        };
        open.iter().map(|open| &open.portal).find(|portal| is_it(portal)).cloned()
    }

    /// Returns the TargetAddress values for a connection that was accepted at `local`: the portals of `group`
    /// with its tag, the portal of this connection first.
    ///
    /// A connection without TLS gets only the portals of the group without TLS, and one with TLS only those
    /// with TLS. An initiator regards every address as a path to the target: without this rule, one without
    /// TLS would keep trying portals with TLS.
    pub(crate) fn addresses(&self, group: PortalGroup, local: SocketAddr) -> Vec<String> {
        let entered = self.entered(local);
        let has_tls = entered.as_ref().is_some_and(|portal| portal.tls.is_some());
        let open = self.open.read();
        let others = open
            .iter()
            .map(|open| &open.portal)
            .filter(|portal| portal.group == group && portal.tls.is_some() == has_tls);
        let mut addresses: Vec<String> = Vec::new();
        for portal in entered.iter().filter(|portal| portal.group == group).chain(others) {
            let Some(address) = listed_address(portal, local) else { continue };
            let address = format!("{address},{}", group.tag);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }
}

/// Returns the address at which an initiator can reach the portal, given the local address of its connection; `None`
/// if it probably cannot.
fn listed_address(portal: &Portal, local: SocketAddr) -> Option<String> {
    if let Some(address) = &portal.advertise {
        return Some(address.clone());
    }
    let (ours, its) = (portal.address, local.ip());
    // Leave out an address that the initiator probably cannot use: a loopback address if it is on another machine, and
    // an address of the other IP family.
    if ours.is_ipv4() != its.is_ipv4() || ours.ip().is_loopback() && !its.is_loopback() {
        return None;
    }
    let ip = if ours.ip().is_unspecified() { its } else { ours.ip() };
    Some(plain(ip, ours.port()).to_string())
}

/// Removes the scope id of an IPv6 address, which has a meaning on this machine only.
fn plain(ip: IpAddr, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, 0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the addresses that discovery reports for portals of one group to an initiator that is
    /// connected to `local`.
    fn addresses(portals: &[(&str, Option<&str>)], local: &str) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let open = Portals::default();
        for (address, advertise) in portals {
            let address: SocketAddr = address.parse().unwrap();
            let advertise = advertise.map(str::to_owned);
            let portal = Portal { advertise, ..Portal::from(address) };
            open.add(portal, || tokio::spawn(std::future::pending()));
        }
        open.addresses(PortalGroup::default(), local.parse().unwrap())
    }

    #[test]
    fn discovery_lists_the_portal_in_use_first() {
        let portals = [("10.0.0.1:3260", None), ("10.0.1.1:3260", None)];
        assert_eq!(addresses(&portals, "10.0.1.1:3260"), ["10.0.1.1:3260,1", "10.0.0.1:3260,1"]);
    }

    #[test]
    fn a_portal_on_all_addresses_is_listed_with_the_address_in_use() {
        let portals = [("0.0.0.0:3260", None), ("[::]:3260", None), ("[fe80::1]:3261", None)];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["10.0.0.1:3260,1"]);
        assert_eq!(
            addresses(&portals, "[fe80::7%3]:3260"),
            ["[fe80::7]:3260,1", "[fe80::1]:3261,1"]
        );
    }

    #[test]
    fn loopback_portals_are_listed_on_loopback_only() {
        let portals = [("127.0.0.1:3260", None), ("10.0.0.1:3260", None)];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["10.0.0.1:3260,1"]);
        assert_eq!(addresses(&portals, "127.0.0.1:3260").len(), 2);
    }

    #[test]
    fn an_advertised_address_is_listed_instead_of_the_own_address() {
        let portals = [("10.0.0.1:3260", Some("storage.example:3261"))];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["storage.example:3261,1"]);
        assert_eq!(addresses(&portals, "[::1]:3260"), ["storage.example:3261,1"]);
    }
}

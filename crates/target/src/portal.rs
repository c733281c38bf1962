//! Portals: where a server listens, in which groups, and what it says of them.

use std::{
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

use parking_lot::RwLock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, task::JoinHandle};
use transport::{SocketOptions, TlsServer};

/// An address to listen on, and what it is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portal {
    /// IP address and port; port 0 takes any that is free. An IPv6 portal takes IPv6 only.
    pub address: SocketAddr,
    /// Its group: targets of this group are reached through it.
    pub group: PortalGroup,
    /// `host[:port]` that discovery tells in place of the address: what initiators on the other
    /// side of an address translation connect to.
    pub advertise: Option<String>,
    /// Everybody who logs in here is sent there.
    pub redirect: Option<Redirect>,
    /// Whoever connects does a TLS handshake first. It proves no initiator's name: who may log in
    /// is for [`Access`](crate::LoginAccess) to say, as everywhere.
    pub tls: Option<TlsServer>,
}

impl From<SocketAddr> for Portal {
    /// A portal of the default group that says of itself what it is.
    fn from(address: SocketAddr) -> Self {
        Self { address, group: PortalGroup::default(), advertise: None, redirect: None, tls: None }
    }
}

/// Portals that lead to the same target ports (RFC 7143, 4.4.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PortalGroup {
    /// Which of the server's groups: tags are unique within a target only.
    pub number: u32,
    /// The tag that initiators are told.
    pub tag: u16,
}

impl Default for PortalGroup {
    fn default() -> Self {
        Self { number: 0, tag: 1 }
    }
}

/// Where logins are sent (RFC 7143, 11.13.5).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Redirect {
    /// `host[:port]`.
    pub address: String,
    /// Whether initiators need not come here again.
    pub permanent: bool,
}

/// The portals that are open.
#[derive(Default)]
pub(crate) struct Portals {
    open: RwLock<Vec<OpenPortal>>,
}

struct OpenPortal {
    portal: Portal,
    /// Owns the listening socket.
    accepting: JoinHandle<()>,
}

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 256;

/// A portal that is bound: connections wait in the kernel until a server accepts them.
pub struct Listener {
    pub(crate) portal: Portal,
    pub(crate) socket: TcpListener,
}

impl Listener {
    /// Takes the address; port 0 takes any that is free. Connections that come in have these options from their
    /// first packet on. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(mut portal: Portal, options: &SocketOptions) -> io::Result<Self> {
        let address = portal.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restarted node takes its port back though old connections linger in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // So `[::]` and `0.0.0.0` can be portals side by side.
            socket.set_only_v6(true)?;
        }
        options.apply(&socket)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        portal.address = socket.local_addr()?;
        Ok(Self { portal, socket })
    }
}

impl Portals {
    /// Starts to accept: who comes in finds the portal here.
    pub(crate) fn add(&self, portal: Portal, accept: impl FnOnce() -> JoinHandle<()>) {
        let mut open = self.open.write();
        open.push(OpenPortal { portal, accepting: accept() });
    }

    /// Another portal with the same address takes its place. False if there is none.
    pub(crate) fn replace(&self, portal: Portal) -> bool {
        let mut open = self.open.write();
        let found = open.iter_mut().find(|open| open.portal.address == portal.address);
        found.map(|open| open.portal = portal).is_some()
    }

    /// Closes those that are meant; their sockets are closed when this returns.
    pub(crate) async fn close(&self, is_meant: impl Fn(&Portal) -> bool) {
        let closing: Vec<OpenPortal> =
            self.open.write().extract_if(.., |o| is_meant(&o.portal)).collect();
        for open in closing {
            open.accepting.abort();
            // It ends between two connections, and takes the socket with it.
            let _ = open.accepting.await;
        }
    }

    pub(crate) fn all(&self) -> Vec<Portal> {
        self.open.read().iter().map(|open| open.portal.clone()).collect()
    }

    /// The portal that a connection with this address at our end came in by.
    pub(crate) fn entered(&self, local: SocketAddr) -> Option<Portal> {
        let open = self.open.read();
        let is_it = |portal: &Portal| {
            let (ours, its) = (portal.address.ip(), local.ip());
            portal.address.port() == local.port()
                && (ours == its || ours.is_unspecified() && ours.is_ipv4() == its.is_ipv4())
        };
        open.iter().map(|open| &open.portal).find(|portal| is_it(portal)).cloned()
    }

    /// Returns the TargetAddress values for a connection that came in at `local`: the portals of `group` with its
    /// tag, the portal of this connection first.
    ///
    /// A plain connection gets the plain portals of the group, and one with TLS gets those with TLS. An initiator
    /// takes every address for a path to the target: one without TLS would try portals with TLS for ever.
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
            let Some(address) = told(portal, local) else { continue };
            let address = format!("{address},{}", group.tag);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }
}

/// How an initiator that came in at `local` reaches a portal; `None` if it hardly can.
fn told(portal: &Portal, local: SocketAddr) -> Option<String> {
    if let Some(address) = &portal.advertise {
        return Some(address.clone());
    }
    let (ours, its) = (portal.address, local.ip());
    // Nobody outside comes in by loopback, and who speaks one family may not speak the other.
    if ours.is_ipv4() != its.is_ipv4() || ours.ip().is_loopback() && !its.is_loopback() {
        return None;
    }
    let ip = if ours.ip().is_unspecified() { its } else { ours.ip() };
    Some(plain(ip, ours.port()).to_string())
}

/// Without an IPv6 scope: that is a matter of this machine.
fn plain(ip: IpAddr, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, 0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one who came in at `local` is told of these portals of one group.
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
    fn the_portal_in_use_comes_first() {
        let portals = [("10.0.0.1:3260", None), ("10.0.1.1:3260", None)];
        assert_eq!(addresses(&portals, "10.0.1.1:3260"), ["10.0.1.1:3260,1", "10.0.0.1:3260,1"]);
    }

    #[test]
    fn a_portal_on_all_addresses_is_told_as_the_one_in_use() {
        let portals = [("0.0.0.0:3260", None), ("[::]:3260", None), ("[fe80::1]:3261", None)];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["10.0.0.1:3260,1"]);
        assert_eq!(
            addresses(&portals, "[fe80::7%3]:3260"),
            ["[fe80::7]:3260,1", "[fe80::1]:3261,1"]
        );
    }

    #[test]
    fn loopback_is_told_to_loopback_only() {
        let portals = [("127.0.0.1:3260", None), ("10.0.0.1:3260", None)];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["10.0.0.1:3260,1"]);
        assert_eq!(addresses(&portals, "127.0.0.1:3260").len(), 2);
    }

    #[test]
    fn an_advertised_address_is_told_in_place_of_the_own() {
        let portals = [("10.0.0.1:3260", Some("storage.example:3261"))];
        assert_eq!(addresses(&portals, "10.0.0.1:3260"), ["storage.example:3261,1"]);
        assert_eq!(addresses(&portals, "[::1]:3260"), ["storage.example:3261,1"]);
    }
}

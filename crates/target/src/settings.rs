//! Limits, times and sizes of a server.

use std::time::Duration;

use iscsi::{keys::NegotiationOffer, session::target};
use transport::{CongestionControl, SocketOptions};

use crate::login_access::Security;

/// Part of `waiting_bytes` that is not divided into shares: twice `session.max_transfer_bytes`, the longest
/// write whose data is requested with R2Ts, so that such a write can always be done.
pub(crate) const BORROWED_BYTES: usize = 64 << 20;

/// The limits, times and sizes with which a [`Server`](crate::TargetServer) serves its initiators.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The parameters that are negotiated at login.
    pub offer: NegotiationOffer,
    /// Command window and other limits of a session, its keepalive, and its login times.
    pub session: target::Settings,
    /// The socket options of every connection.
    pub socket: SocketOptions,
    /// The congestion control of the connections of normal sessions, from the end of the login on. Discovery sessions
    /// keep the kernel's default. Default: the kernel's default for all connections.
    pub congestion: CongestionControl,
    /// Maximum number of connections of normal sessions. A login beyond it is refused with status 0302 (out
    /// of resources). Where CHAP users are configured, a quarter of the places is kept for initiators that
    /// have proved to be one of them or have connected through TLS, so that strangers cannot exclude users.
    /// At recovery level 2, a quarter as many sessions without a connection may wait for their initiators;
    /// beyond that, those that have waited longest end. Default 1024.
    pub max_connections: usize,
    /// Maximum number of connections that have not logged in. Beyond it, the address with the most such
    /// connections loses its oldest one. Each holds at most 64 KiB. Default 128.
    pub max_logins: usize,
    /// Maximum number of connections of one address (one /64 network of IPv6) that have not logged in. Beyond
    /// it, the oldest one of that address is closed. Default 64.
    pub max_logins_per_address: usize,
    /// Maximum number of discovery sessions. Beyond it, the address with the most sessions loses its oldest
    /// one. Default 64: a discovery takes a few round trips, so that some 100 initiators a second find a
    /// place even with a round trip of 200 ms.
    pub max_discovery_sessions: usize,
    /// Maximum number of discovery sessions of one address (one /64 network of IPv6). Beyond it, the oldest one
    /// of that address is closed. Default 16: the hosts behind one NAT router share one address.
    pub max_discovery_sessions_per_address: usize,
    /// Maximum time between the text requests of a discovery session; then the session is closed. Default 10 s:
    /// initiators send a request at once, and some log in to targets before they close the session.
    pub discovery_idle: Duration,
    /// The CHAP users, algorithms and discovery rules of the server when it starts.
    /// [`Server::change_security`](crate::TargetServer::change_security) replaces them.
    pub security: Security,
    /// Number of commands whose responses leave with one write, unless the input is used up before: the initiator can
    /// then work on one batch while the target prepares the next. Each write may have to wake the initiator, which
    /// costs as much as some ten commands. Measured at queue depth 32 with batches of 8, 16, 32 and 64: 16 and 32
    /// needed least CPU (two thirds of what 8 needed) and gave the highest rate. Range 1 to 1024; default 16.
    pub batch_commands: u32,
    /// How long a connection polls the kernel for input after its last input, instead of sleeping. Polling occupies a
    /// processor while connections are busy and no other thread wants it. Default zero: no polling.
    pub busy_poll: Duration,
    /// Memory for the Data-Out of commands in progress, of all connections together, in bytes. Each connection may
    /// hold an equal share, and at least one command; above that its socket is not read until a command completes.
    /// The same share bounds the data that a connection has requested with R2Ts. Default 24 MiB: six times what 32
    /// writes of 128 KiB hold, so that 64 sessions of a gateway stay within 64 MiB.
    pub held_bytes: usize,
    /// Data of waiting writes, of all sessions together, in bytes. A write waits for commands before it, for
    /// the rest of its data, or for data requested with R2Ts. Each of `max_connections` connections has its
    /// own share, one first burst if that fits next to [`BORROWED_BYTES`]. The rest is divided among the
    /// sessions that need more. A session that has used up its part gets no further command numbers, and the
    /// data of its further writes is requested later, or dropped and the write answered with BUSY. Default
    /// 384 MiB: first bursts of 256 KiB for 1,024 connections, and 128 MiB, which is 8 MiB for each of 16
    /// gateways with 32 outstanding writes and their first bursts.
    pub waiting_bytes: usize,
    /// Data that commands in progress may return, in bytes, divided among the connections like `held_bytes`. Default
    /// 256 MiB: the data that far storage sends in 200 ms at 10 Gbit/s.
    pub returned_bytes: usize,
    /// Limit of queued output of one connection, in bytes: above it, no further PDU of this connection is processed.
    /// Default 4 MiB.
    pub output_bytes: usize,
    /// A connection is closed if its initiator takes none of its output for this time. Default 60 s.
    pub slow_reader: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            offer: NegotiationOffer::target(),
            session: target::Settings::default(),
            socket: SocketOptions::default(),
            congestion: CongestionControl::default(),
            max_connections: 1024,
            max_logins: 128,
            max_logins_per_address: 64,
            max_discovery_sessions: 64,
            max_discovery_sessions_per_address: 16,
            discovery_idle: Duration::from_secs(10),
            security: Security::default(),
            batch_commands: 16,
            busy_poll: Duration::ZERO,
            held_bytes: 24 << 20,
            waiting_bytes: 384 << 20,
            returned_bytes: 256 << 20,
            output_bytes: 4 << 20,
            slow_reader: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// Returns the bytes of `waiting_bytes` that are reserved for each connection, whatever other connections hold.
    pub(crate) fn kept_share(&self) -> usize {
        let shares = self.waiting_bytes.saturating_sub(BORROWED_BYTES);
        let even = shares / self.max_connections.max(1);
        even.min(self.offer.first_burst_length as usize)
    }

    /// Returns the bytes of `waiting_bytes` that are left after the shares of the connections.
    pub(crate) fn borrowed_bytes(&self) -> usize {
        self.waiting_bytes - self.kept_share() * self.max_connections
    }

    /// Maximum number of sockets that are open at once. A connection that was displaced takes a moment to
    /// close, so twice the places of logins and discovery sessions are counted.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        let passing = self.max_logins.saturating_add(self.max_discovery_sessions);
        self.max_connections.saturating_add(passing.saturating_mul(2))
    }

    /// Maximum number of connections of normal sessions whose initiators have proved nothing although CHAP
    /// users are configured.
    pub(crate) fn unproved_connections(&self) -> usize {
        self.max_connections - self.max_connections / 4
    }

    /// Returns how many sessions without a connection may wait for their initiators: a quarter of `max_connections`.
    /// Such a session holds tasks and responses for up to two hours, and few initiators in the field support recovery
    /// level 2. An initiator that returns too late logs in again and repeats its commands.
    pub(crate) fn waiting_sessions(&self) -> usize {
        (self.max_connections / 4).max(1)
    }
}

//! Limits, times and sizes of a server.

use std::time::Duration;

use iscsi::{keys::Offer, session::target};
use transport::{Congestion, SocketOptions};

use crate::access::Security;

/// How a [`Server`](crate::Server) treats its initiators.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is negotiated at login.
    pub offer: Offer,
    /// The command window and the other limits of one session, keepalive and login times.
    pub session: target::Settings,
    /// Socket options of every connection.
    pub socket: SocketOptions,
    /// The congestion control of a session's connections, from the end of their login on; discovery
    /// sessions have the kernel's. Default: the kernel's for all.
    pub congestion: Congestion,
    /// Connections in all, whatever they do; more are closed at once. At recovery level 2 a quarter
    /// as many sessions without a connection may wait for their initiators; with more, those that
    /// have waited longest end. Default 1024.
    pub max_connections: usize,
    /// Connections that have not logged in; more are closed at once. Each holds at most 64 KiB.
    /// Default 128.
    pub max_logins: usize,
    /// Of these, as many may come from one address (one /64 network of IPv6): others find a
    /// place, too. Default 64.
    pub max_logins_per_address: usize,
    /// Who proves what to be let in, at the start.
    pub security: Security,
    /// Commands whose answers leave with one write, unless the input is drained before: so the
    /// initiator works on one batch while we make the next. Each write may have to wake the
    /// initiator, which costs as much as some ten commands: of 8, 16, 32 and 64, at depth 32,
    /// 16 and 32 needed least CPU (two thirds of what 8 did) and served most. 1 to 1024;
    /// default 16.
    pub batch_commands: u32,
    /// How long a connection asks the kernel for input again and again after its last one instead
    /// of sleeping; takes a processor while connections are busy. Default zero: off.
    pub busy_poll: Duration,
    /// Data-Out of commands that are not done, of all connections together, in bytes: each may hold
    /// an equal share and at least one command; then its socket is not read until one is done. The
    /// same share is what a connection may have asked for with R2Ts. Default 24 MiB: six times what
    /// 32 writes of 128 KiB hold, so that 64 sessions of a gateway stay within 64 MiB.
    pub held_bytes: usize,
    /// The same of what commands in progress may return, in bytes. Default 256 MiB: what ten
    /// gigabits a second bring in 200 ms from far storage.
    pub returned_bytes: usize,
    /// Output that waits for the initiator to read it, in bytes: above that no further PDU is
    /// looked at. Default 4 MiB.
    pub output_bytes: usize,
    /// After so long without taking any of its output an initiator counts as gone. Default 60 s.
    pub slow_reader: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            offer: Offer::target(),
            session: target::Settings::default(),
            socket: SocketOptions::default(),
            congestion: Congestion::default(),
            max_connections: 1024,
            max_logins: 128,
            max_logins_per_address: 64,
            security: Security::default(),
            batch_commands: 16,
            busy_poll: Duration::ZERO,
            held_bytes: 24 << 20,
            returned_bytes: 256 << 20,
            output_bytes: 4 << 20,
            slow_reader: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// Sessions without a connection that may wait for their initiators: a quarter of what there
    /// is room for. They hold tasks and answers for up to two hours, and few initiators of the
    /// field know level 2; one that comes back too late logs in anew and repeats its commands.
    pub(crate) fn waiting_sessions(&self) -> usize {
        (self.max_connections / 4).max(1)
    }
}

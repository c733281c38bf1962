//! Reads and writes the socket of one connection in full feature phase.

use std::{
    net::SocketAddr,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use iscsi::{
    Cid,
    codec::{Decoder, PduOutput},
    session::target::Connection,
};
use transport::{
    ConnectionStream, LinkBytes, Received, SendProgress, SessionCongestion, poll_receive,
    poll_send, receive_now,
};

use crate::{counted_limit::Permit, end_reason::ConnectionEndReason};

/// The socket of one connection, its decoder, and the I/O state that the driver needs. The protocol state of the
/// connection is in the session, under the same CID.
pub(crate) struct TargetConnectionIo {
    pub(crate) cid: Cid,
    stream: ConnectionStream,
    pub(crate) decoder: Decoder,
    pub(crate) address: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The time since which the socket has accepted no output; `None` if it is not blocked.
    pub(crate) blocked_since: Option<Instant>,
    /// True if the socket accepted no output when the driver last handled this connection. Once the socket accepts
    /// output again, the driver does not count the time of the initiator's silence against it.
    pub(crate) is_held_up: bool,
    /// True while the socket is not read, because too much output or too much data waits.
    pub(crate) is_unread: bool,
    /// The length of the queued output, in bytes, at the moment when it exceeded the limit.
    pub(crate) held_at: Option<usize>,
    pub(crate) last_input: Instant,
    _permit: Permit,
    _membership: Option<Permit>,
}

/// The socket of a connection that has logged in, until its driver has taken it over.
pub(crate) struct Socket {
    pub(crate) stream: ConnectionStream,
    /// The decoder may hold bytes that arrived together with the last login request.
    pub(crate) decoder: Decoder,
    pub(crate) address: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Permit that counts this connection against the limit of all open connections of the server.
    pub(crate) permit: Permit,
    /// The permit that counts this connection among those of normal sessions; `None` before the end of the login,
    /// and in a discovery session.
    pub(crate) membership: Option<Permit>,
}

/// Size of a connection's receive buffer for small PDUs in full feature phase. 64 KiB measured best for writes of 4
/// KiB, because both ends then work at the same time; with 256 KiB they take turns.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// A connection without input for this time releases its buffers when the driver's timer next expires.
const REST: Duration = Duration::from_secs(10);

impl TargetConnectionIo {
    pub(crate) fn new(socket: Socket, connection: &Connection) -> Self {
        let Socket { mut stream, mut decoder, address, local, permit, membership } = socket;
        let limit = connection.max_recv_data_segment_length();
        if let Some(method) = connection.compression() {
            stream = stream.compress(method, decoder.take_rest(), connection.login_bytes());
        }
        decoder.configure(RECEIVE_BUFFER, limit, connection.digests());
        stream.set_read_bytes(RECEIVE_BUFFER);
        Self {
            cid: connection.cid(),
            stream,
            decoder,
            address,
            local,
            blocked_since: None,
            is_held_up: false,
            is_unread: false,
            held_at: None,
            last_input: Instant::now(),
            _permit: permit,
            _membership: membership,
        }
    }

    /// Applies the congestion control of the session to the socket of this connection.
    pub(crate) fn take_into(&self, congestion: &SessionCongestion) {
        if let Some(reason) = congestion.take_in(&self.stream) {
            tracing::warn!(%reason, "using the kernel's default congestion control instead");
        }
    }

    /// Reads once. Returns false if no input was available.
    pub(crate) fn receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Result<bool, ConnectionEndReason> {
        match poll_receive(&mut self.stream, &mut self.decoder, context) {
            Poll::Ready(Ok(Received::Bytes(_))) => Ok(true),
            Poll::Ready(Ok(Received::Closed)) => Err(ConnectionEndReason::ClosedByPeer),
            Poll::Ready(Ok(Received::Nothing)) | Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Reads the socket directly, without waiting for the runtime to report input. Returns true if input was read.
    pub(crate) fn look(&mut self) -> Result<bool, ConnectionEndReason> {
        match receive_now(&mut self.stream, &mut self.decoder)? {
            Received::Bytes(_) => Ok(true),
            Received::Closed => Err(ConnectionEndReason::ClosedByPeer),
            Received::Nothing => Ok(false),
        }
    }

    /// Writes as much as the socket accepts. If the socket accepts nothing, records the time since when it is blocked.
    pub(crate) fn send(
        &mut self,
        output: &mut PduOutput,
        context: &mut Context<'_>,
    ) -> Result<(), ConnectionEndReason> {
        let before = output.len();
        if before == 0 {
            return Ok(());
        }
        match poll_send(&mut self.stream, output, context)? {
            SendProgress::All => self.blocked_since = None,
            SendProgress::Blocked if output.len() < before => {
                self.blocked_since = Some(Instant::now())
            }
            SendProgress::Blocked => {
                self.blocked_since.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// Returns the byte counts of compression; `None` if the connection is not compressed.
    pub(crate) fn link_bytes(&self) -> Option<LinkBytes> {
        self.stream.link_bytes()
    }

    /// Frees the buffers of a connection that has received no input for the time [`REST`].
    pub(crate) fn rest(&mut self, now: Instant) {
        if now.duration_since(self.last_input) >= REST {
            self.decoder.rest();
            self.stream.rest();
        }
    }
}

//! The socket of one connection in full feature phase, with what its driver knows of it.

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

/// A socket and its decoder. Its machine is in the session, under the same CID.
pub(crate) struct TargetConnectionIo {
    pub(crate) cid: Cid,
    stream: ConnectionStream,
    pub(crate) decoder: Decoder,
    /// Where the initiator comes from.
    pub(crate) address: SocketAddr,
    /// Where it came to.
    pub(crate) local: SocketAddr,
    /// The socket takes no output since then.
    pub(crate) blocked_since: Option<Instant>,
    /// Output was blocked at the last look at this connection. When it no longer is, the silence is excused.
    pub(crate) is_held_up: bool,
    /// Input is not read now, because too much output or too much data waits.
    pub(crate) is_unread: bool,
    /// How much output there was when it became too much, in bytes.
    pub(crate) held_at: Option<usize>,
    pub(crate) last_input: Instant,
    _permit: Permit,
    _membership: Option<Permit>,
}

/// A connection that has been let in, before its CID is known to the driver.
pub(crate) struct Socket {
    pub(crate) stream: ConnectionStream,
    /// May hold bytes that came with the login.
    pub(crate) decoder: Decoder,
    pub(crate) address: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The permit that counts this connection among all open connections of the server.
    pub(crate) permit: Permit,
    /// The permit that counts this connection among those of normal sessions; `None` before the end of the login,
    /// and in a discovery session.
    pub(crate) membership: Option<Permit>,
}

/// What a full feature phase connection keeps for small PDUs: measured best for 4 KiB writes, as
/// both ends work at once; 256 KiB make them take turns.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// A connection without input for so long gives its buffers back when the timer runs out next.
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

    /// Gives it the congestion control of its session.
    pub(crate) fn take_into(&self, congestion: &SessionCongestion) {
        if let Some(reason) = congestion.take_in(&self.stream) {
            tracing::warn!(%reason, "going on with the kernel's own congestion control");
        }
    }

    /// Reads once. False if there was nothing.
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

    /// Looks past the runtime whether something has come.
    pub(crate) fn look(&mut self) -> Result<bool, ConnectionEndReason> {
        match receive_now(&mut self.stream, &mut self.decoder)? {
            Received::Bytes(_) => Ok(true),
            Received::Closed => Err(ConnectionEndReason::ClosedByPeer),
            Received::Nothing => Ok(false),
        }
    }

    /// Writes what the socket takes, and notes since when it takes nothing.
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

    /// What has passed compressed; `None` if it does not.
    pub(crate) fn link_bytes(&self) -> Option<LinkBytes> {
        self.stream.link_bytes()
    }

    /// Gives buffers back if nothing has come for long.
    pub(crate) fn rest(&mut self, now: Instant) {
        if now.duration_since(self.last_input) >= REST {
            self.decoder.rest();
            self.stream.rest();
        }
    }
}

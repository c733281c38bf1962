//! A TCP connection of a session: its socket, and the decoder of received PDUs.

use std::{
    ops::AddAssign,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use iscsi::{
    Cid,
    codec::{Decoder, PduOutput},
    keys::Compression,
    login::EstablishedLogin,
    session::initiator::InitiatorSession,
};
use transport::{ConnectionStream, Received, SendProgress, SessionCongestion, poll_receive, send};

use crate::{
    Error,
    clock::now,
    ping_progress::{ConnectionProgress, PingProgress},
};

/// The socket of a connection in full feature phase. The protocol state of the connection is part of the
/// [`InitiatorSession`].
pub(crate) struct InitiatorConnectionIo {
    stream: ConnectionStream,
    decoder: Decoder,
    pub(crate) cid: Cid,
    bytes_in: u64,
    bytes_out: u64,
    progress: PingProgress,
}

/// The bytes that a connection has carried since its login: counted as PDUs, and counted as sent on the link, where
/// they may be compressed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ConnectionTraffic {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) link_in: u64,
    pub(crate) link_out: u64,
}

impl AddAssign for ConnectionTraffic {
    fn add_assign(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.link_in += other.link_in;
        self.link_out += other.link_out;
    }
}

/// The size of the receive buffer for small PDUs in full feature phase, as the decoder recommends.
const BUFFER_BYTES: usize = 64 * 1024;

/// The maximum number of reads from one socket before the driver does other work. Otherwise a fast target could delay
/// timers and other connections.
const READS_PER_TURN: usize = 16;

/// While more bytes of output than this are queued, the connection is not read. A target that sends pings and does not
/// read our answers could otherwise fill our memory with them. Without pings, the state machine queues less than this.
const OUTPUT_STUCK: usize = 4 << 20;

impl InitiatorConnectionIo {
    /// Takes over a connection after its login. `decoder` may hold bytes that arrived with the last login response.
    pub(crate) fn new(
        mut stream: ConnectionStream,
        mut decoder: Decoder,
        login: &EstablishedLogin,
    ) -> Self {
        let parameters = &login.parameters;
        let limit = parameters.max_recv_data_segment_length;
        if let Some(method) = parameters.compression {
            stream = stream.compress(method, decoder.take_rest(), 0);
        }
        decoder.configure(BUFFER_BYTES, limit, parameters.digests);
        stream.set_read_bytes(BUFFER_BYTES);
        let progress = PingProgress::new(now());
        Self { stream, decoder, cid: login.cid, bytes_in: 0, bytes_out: 0, progress }
    }

    /// Applies the congestion control of the session to the socket of this connection.
    pub(crate) fn take_into(&self, congestion: &SessionCongestion) {
        if let Some(reason) = congestion.take_in(&self.stream) {
            tracing::warn!(%reason, "using the kernel's default congestion control instead");
        }
    }

    /// Limits the bytes that wait in the kernel's send queue and are not sent yet.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        // Ignore an error. Commands may then wait longer; if the socket is broken, its next write reports that.
        let _ = self.stream.limit_unsent(bytes);
    }

    pub(crate) fn compression(&self) -> Option<Compression> {
        self.stream.link_bytes().map(|bytes| bytes.method)
    }

    pub(crate) fn traffic(&self) -> ConnectionTraffic {
        let (bytes_in, bytes_out) = (self.bytes_in, self.bytes_out);
        let (link_in, link_out) = match self.stream.link_bytes() {
            Some(bytes) => (bytes.in_packed, bytes.out_packed),
            None => (bytes_in, bytes_out),
        };
        ConnectionTraffic { bytes_in, bytes_out, link_in, link_out }
    }

    /// Checks the progress of the connection while a ping is unanswered. `asked` is the offset in the output at which
    /// the ping ends. If bytes got through since the last check, returns the earliest time at which this may have
    /// happened.
    pub(crate) fn look(&mut self, asked: u64, now: Instant, every: Duration) -> Option<Instant> {
        // Ignore an error: if the socket is broken, its next read or write reports that.
        let acknowledged = self.stream.acknowledged().unwrap_or(0);
        let passed = ConnectionProgress { read: self.stream.arrived().unwrap_or(0), acknowledged };
        self.progress.look(asked, passed, now, every)
    }

    /// Returns when [`Self::look`] must be called next.
    pub(crate) fn next_look(&self, every: Duration) -> Instant {
        self.progress.next_look(every)
    }

    /// Notes that `output` bytes of the output are written to the socket. `asked` is the offset at which an unanswered
    /// ping ends.
    pub(crate) fn note_written(&mut self, asked: Option<u64>, output: u64) {
        self.progress.note_written(asked, output, self.stream.written());
    }

    /// Writes as much as the socket accepts. Returns true if all output was written.
    pub(crate) fn send(&mut self, output: &mut PduOutput) -> Result<bool, Error> {
        let before = output.len();
        let sent = send(&mut self.stream, output)?;
        self.bytes_out += (before - output.len()) as u64;
        Ok(sent == SendProgress::All)
    }

    /// Reads from the socket and passes every complete PDU to the session. Returns true if bytes have arrived, or if
    /// output waits and the socket is writable. Otherwise the task of `context` is woken when one of these becomes
    /// true. Even after an error, the events of earlier PDUs are valid.
    pub(crate) fn poll_exchange(
        &mut self,
        session: &mut InitiatorSession,
        context: &mut Context<'_>,
    ) -> Result<bool, Error> {
        let has_unsent = session.output(self.cid).is_some_and(|output| !output.is_empty());
        let mut has_news = has_unsent && self.stream.poll_write_ready(context).is_ready();
        for _ in 0..READS_PER_TURN {
            if session.output(self.cid).is_none_or(|output| output.len() >= OUTPUT_STUCK) {
                break;
            }
            match poll_receive(&mut self.stream, &mut self.decoder, context) {
                Poll::Ready(received) => match received? {
                    Received::Bytes(count) => self.bytes_in += count as u64,
                    Received::Nothing => break,
                    Received::Closed => return Err(Error::Closed),
                },
                Poll::Pending => break,
            }
            has_news = true;
            let now = now();
            while let Some(frame) = self.decoder.next()? {
                session.handle_frame(self.cid, frame, now)?;
            }
        }
        Ok(has_news)
    }
}

//! Socket options of an iSCSI connection.

use std::{io, time::Duration};

use rustix::net::sockopt;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// What is set on every connection. TCP_NODELAY always is: a PDU must not wait for the
/// acknowledgment of the one before it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SocketOptions {
    /// SO_SNDBUF in bytes; `None` leaves it to the kernel's autotuning, which is usually better. The
    /// kernel takes as much again for its own records. Above net.core.wmem_max only with CAP_NET_ADMIN;
    /// without, it is that much.
    pub send_buffer_bytes: Option<usize>,
    /// SO_RCVBUF in bytes; as above, with net.core.rmem_max.
    pub receive_buffer_bytes: Option<usize>,
}

/// A peer whose host vanished is noticed by the kernel after this idle time, even where iSCSI's
/// own pings are off.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Probes go out this far apart, so that with the kernel's nine a dead peer costs two minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

impl SocketOptions {
    /// Buffers of so many bytes in both directions.
    #[must_use]
    pub fn buffers(bytes: Option<usize>) -> Self {
        Self { send_buffer_bytes: bytes, receive_buffer_bytes: bytes }
    }

    /// Applies the options to a connected socket.
    pub fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_keepalive(&keepalive)?;
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size_force(stream, bytes)
                .or_else(|_| sockopt::set_socket_send_buffer_size(stream, bytes))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size_force(stream, bytes)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(stream, bytes))?;
        }
        Ok(())
    }
}

//! The byte stream of a connection: TCP, TLS over TCP, or either with compression.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
};

use bytes::BytesMut;
use iscsi::keys::Compression;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::{
    compressed_stream::{Compressed, LinkBytes, Lower},
    tcp::Tcp,
    tls_stream::Secured,
};

/// The stream of one connection. Compared with a bare socket, the enum costs plain TCP one branch more per call.
#[derive(Debug)]
pub enum ConnectionStream {
    Plain(Tcp),
    /// TLS over TCP, after the handshake.
    Tls(Box<Secured>),
    /// A compressed TCP or TLS stream.
    Compressed(Box<Compressed>),
}

impl From<TcpStream> for ConnectionStream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream.into())
    }
}

impl ConnectionStream {
    pub(crate) fn tcp(&self) -> &TcpStream {
        self.counted().stream()
    }

    fn counted(&self) -> &Tcp {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(stream) => stream.tcp(),
            Self::Compressed(stream) => stream.tcp(),
        }
    }

    /// Returns true if the stream uses TLS and is not compressed. It is then encrypted, and both ends have shown
    /// certificates.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns the local address of the connection.
    ///
    /// # Errors
    /// The errors of the system calls.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    /// Returns the number of bytes that the kernel has accepted since the connection was made, counted as they cross
    /// the link. Bytes that still have to be encrypted, compressed or written do not count.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.counted().written()
    }

    /// Returns how many of the bytes that [`ConnectionStream::written`] counts the peer's host has acknowledged. The
    /// peer's process may not have read them.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn acknowledged(&self) -> io::Result<u64> {
        self.counted().acknowledged()
    }

    /// Returns the number of bytes that have arrived from the peer, including those that the kernel
    /// still holds.
    ///
    /// # Errors
    /// The error of the ioctl that asks the kernel.
    pub fn arrived(&self) -> io::Result<u64> {
        self.counted().arrived()
    }

    /// Limits the bytes in the kernel's send queue that are not sent yet (TCP_NOTSENT_LOWAT). One write may exceed the
    /// limit. Bytes that were sent and are not acknowledged do not count; the size of the send buffer limits them.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        SockRef::from(self.tcp()).set_tcp_notsent_lowat(bytes)
    }

    /// Waits until there is input, or until the peer has ended its output.
    ///
    /// # Errors
    /// The errors of the socket.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) if stream.has_input() => Ok(()),
            Self::Compressed(stream) if stream.has_input() => Ok(()),
            _ => self.tcp().readable().await,
        }
    }

    /// Waits until the socket accepts output.
    ///
    /// # Errors
    /// The errors of the socket.
    pub async fn writable(&self) -> io::Result<()> {
        self.tcp().writable().await
    }

    /// Polls for what [`ConnectionStream::readable`] waits for.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => tcp.stream().poll_read_ready(context),
            Self::Tls(stream) => stream.poll_read_ready(context),
            Self::Compressed(stream) => stream.poll_read_ready(context),
        }
    }

    /// Polls for what [`ConnectionStream::writable`] waits for.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_write_ready(context)
    }

    /// Sets the number of bytes that one read of a TLS or compressed stream requests. Call this after the login; until
    /// then a TLS stream requests 4 KiB. It has no effect on plain TCP, where the space in the decoder decides.
    pub fn set_read_bytes(&mut self, bytes: usize) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(stream) => stream.set_read_bytes(bytes),
            Self::Compressed(stream) => stream.set_read_bytes(bytes),
        }
    }

    /// Releases the memory that an idle connection does not need.
    pub fn rest(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(stream) => stream.rest(),
            Self::Compressed(stream) => stream.rest(),
        }
    }

    /// Makes both directions of the stream compressed from the end of the login on. `rest` holds bytes that arrived
    /// after the last login PDU. The next `login_bytes` bytes of output belong to the login and are not compressed.
    ///
    /// # Panics
    /// If the stream is compressed already.
    #[must_use]
    pub fn compress(self, method: Compression, rest: BytesMut, login_bytes: usize) -> Self {
        let lower = match self {
            Self::Plain(tcp) => Lower::Tcp(tcp),
            Self::Tls(stream) => Lower::Tls(stream),
            Self::Compressed(_) => panic!("a stream is compressed once"),
        };
        Self::Compressed(Box::new(Compressed::new(lower, method, rest, login_bytes)))
    }

    /// Returns the byte counts before and after compression; `None` if the stream is not compressed.
    #[must_use]
    pub fn link_bytes(&self) -> Option<LinkBytes> {
        match self {
            Self::Compressed(stream) => Some(stream.bytes()),
            Self::Plain(_) | Self::Tls(_) => None,
        }
    }
}

//! A connection's bytes: TCP as it is, TLS over it, or either compressed.

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

/// One connection. Plain TCP costs one branch more than a bare socket.
#[derive(Debug)]
pub enum ConnectionStream {
    /// TCP.
    Plain(Tcp),
    /// TLS over TCP, the handshake done.
    Tls(Box<Secured>),
    /// One of these, and what passes is compressed.
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

    /// Returns true for an uncompressed TLS stream: it is encrypted, and both ends have shown certificates.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// The address at our end.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    /// Bytes that the kernel was given of ours, since the connection was made and as they cross the link: what waits
    /// here to be encrypted or compressed, or is and was not taken yet, does not count.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.counted().written()
    }

    /// Of these, how many the peer's host has acknowledged. Whether its process has read them it does not say.
    ///
    /// # Errors
    /// What the socket says.
    pub fn acknowledged(&self) -> io::Result<u64> {
        self.counted().acknowledged()
    }

    /// Returns the number of bytes that have arrived from the peer, including those that still wait in the kernel.
    ///
    /// # Errors
    /// The error of the ioctl that asks the kernel.
    pub fn arrived(&self) -> io::Result<u64> {
        self.counted().arrived()
    }

    /// From now on the kernel takes no more output while it holds so many bytes that it has not sent yet
    /// (TCP_NOTSENT_LOWAT; what it takes in one write may exceed it). What is sent and not acknowledged
    /// does not count: the send buffer bounds it.
    ///
    /// # Errors
    /// What the socket says.
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        SockRef::from(self.tcp()).set_tcp_notsent_lowat(bytes)
    }

    /// Waits until there is input, or nothing more will come.
    ///
    /// # Errors
    /// What the socket says.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) if stream.has_input() => Ok(()),
            Self::Compressed(stream) if stream.has_input() => Ok(()),
            _ => self.tcp().readable().await,
        }
    }

    /// Waits until the socket takes output.
    ///
    /// # Errors
    /// What the socket says.
    pub async fn writable(&self) -> io::Result<()> {
        self.tcp().writable().await
    }

    /// As [`ConnectionStream::readable`].
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => tcp.stream().poll_read_ready(context),
            Self::Tls(stream) => stream.poll_read_ready(context),
            Self::Compressed(stream) => stream.poll_read_ready(context),
        }
    }

    /// As [`ConnectionStream::writable`].
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_write_ready(context)
    }

    /// After login: so many bytes are asked for in one read where the decoder's room does not say.
    /// Before that it is 4 KiB.
    pub fn set_read_bytes(&mut self, bytes: usize) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(stream) => stream.set_read_bytes(bytes),
            Self::Compressed(stream) => stream.set_read_bytes(bytes),
        }
    }

    /// Gives memory back that a connection does not need while nothing comes.
    pub fn rest(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(stream) => stream.rest(),
            Self::Compressed(stream) => stream.rest(),
        }
    }

    /// After login: from here on what passes is compressed, both ways. `rest` came after the last PDU
    /// of the login; the next `login_bytes` of output are its end, and still go as they are.
    ///
    /// # Panics
    /// If it is compressed already.
    #[must_use]
    pub fn compress(self, method: Compression, rest: BytesMut, login_bytes: usize) -> Self {
        let lower = match self {
            Self::Plain(tcp) => Lower::Tcp(tcp),
            Self::Tls(stream) => Lower::Tls(stream),
            Self::Compressed(_) => panic!("a stream is compressed once"),
        };
        Self::Compressed(Box::new(Compressed::new(lower, method, rest, login_bytes)))
    }

    /// What has passed compressed; `None` if it does not.
    #[must_use]
    pub fn link_bytes(&self) -> Option<LinkBytes> {
        match self {
            Self::Compressed(stream) => Some(stream.bytes()),
            Self::Plain(_) | Self::Tls(_) => None,
        }
    }
}

//! A connection's bytes: TCP as it is, or TLS over it.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
};

use tokio::net::TcpStream;

use crate::secured::Secured;

/// One connection. Plain TCP costs one branch more than a bare socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP, the handshake done.
    Tls(Box<Secured>),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.tcp(),
        }
    }

    /// The address at our end.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    /// Waits until there is input, or nothing more will come.
    ///
    /// # Errors
    /// What the socket says.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tls(stream) if stream.has_input() => Ok(()),
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

    /// As [`Stream::readable`].
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(context),
            Self::Tls(stream) => stream.poll_read_ready(context),
        }
    }

    /// As [`Stream::writable`].
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_write_ready(context)
    }

    /// After login: so many bytes are asked for in one read where the decoder's room does not say.
    /// Before that it is 4 KiB.
    pub fn set_read_bytes(&mut self, bytes: usize) {
        if let Self::Tls(stream) = self {
            stream.set_read_bytes(bytes);
        }
    }

    /// Gives memory back that a connection does not need while nothing comes.
    pub fn rest(&mut self) {
        if let Self::Tls(stream) = self {
            stream.rest();
        }
    }
}

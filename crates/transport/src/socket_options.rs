//! Socket options of an iSCSI connection.

use std::{
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use rustix::net::sockopt;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

/// The options of every connection. TCP_NODELAY is always set: a PDU must not wait until the peer has acknowledged the
/// PDU before it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SocketOptions {
    /// SO_SNDBUF in bytes. `None` leaves the size to the kernel's autotuning, which is usually better. The kernel
    /// allocates twice as much, for its own records. A value above net.core.wmem_max needs CAP_NET_ADMIN; without it,
    /// the kernel uses net.core.wmem_max.
    pub send_buffer_bytes: Option<usize>,
    /// SO_RCVBUF in bytes. The kernel limits it to net.core.rmem_max, as it limits SO_SNDBUF to net.core.wmem_max.
    pub receive_buffer_bytes: Option<usize>,
}

/// TCP keepalive: after this idle time, the kernel probes the peer, whose host may have vanished. It does so even if
/// iSCSI pings (NOP-In and NOP-Out) are off.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// The time between two keepalive probes. With the kernel's nine probes, a dead peer is detected after two minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

impl SocketOptions {
    /// Returns options with send and receive buffers of `bytes` bytes each.
    #[must_use]
    pub fn buffers(bytes: Option<usize>) -> Self {
        Self { send_buffer_bytes: bytes, receive_buffer_bytes: bytes }
    }

    /// Applies the options to a socket. Call this before it connects or listens: the window scale depends on the
    /// receive buffer and is fixed by the first packet (RFC 7323, 2.2). Accepted sockets inherit the options of the
    /// listening socket.
    ///
    /// # Errors
    /// The errors of the system calls.
    pub fn apply(&self, to: impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(&to);
        socket.set_tcp_nodelay(true)?;
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_keepalive(&keepalive)?;
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size_force(&to, bytes)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&to, bytes))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size_force(&to, bytes)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(&to, bytes))?;
        }
        Ok(())
    }

    /// Connects to the first address of a host that accepts. `host` is a name or an address. This has no time limit, so
    /// the caller must set one. Calls `prepare` with each socket before it connects.
    ///
    /// # Errors
    /// The error of the system; with several addresses, that of the last one.
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        prepare: impl Fn(&TcpSocket),
    ) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host((host, port)).await? {
            let socket = self.socket_for(address)?;
            prepare(&socket);
            match socket.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn socket_for(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        self.apply(&socket)?;
        Ok(socket)
    }
}

/// Returns the shortest recent round trip time of a connection (TCP_INFO).
pub(crate) fn least_round_trip(socket: &TcpStream) -> io::Result<Duration> {
    Ok(Duration::from_micros(tcp_info(socket)?.tcpi_min_rtt.into()))
}

/// Returns the number of bytes that were sent again, where each retransmission counts as a full segment (TCP_INFO).
pub(crate) fn bytes_sent_again(socket: &TcpStream) -> io::Result<u64> {
    let info = tcp_info(socket)?;
    Ok(u64::from(info.tcpi_total_retrans) * u64::from(info.tcpi_snd_mss))
}

fn tcp_info(socket: &TcpStream) -> io::Result<libc::tcp_info> {
    // SAFETY: the struct has only integers, for which zero bytes are valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and the struct has only integers.
    let result = unsafe {
        let at = (&raw mut info).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut length)
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// The state of the congestion control BBR on one connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BbrInfo {
    /// The delivery rate that BBR has measured: the highest recent one, in bytes per second.
    pub rate: u64,
    /// The shortest recent round trip time.
    pub least_round_trip: Duration,
    /// The rate at which BBR sends, as a multiple of `rate`.
    pub pacing_gain: f64,
}

/// Returns the state of BBR for a connection (TCP_CC_INFO); `None` if the connection uses another
/// congestion control.
pub(crate) fn bbr_info(socket: &TcpStream) -> io::Result<Option<BbrInfo>> {
    // `struct tcp_bbr_info` of linux/inet_diag.h: rate (low, high), least round trip time, pacing gain, window gain.
    let mut info = [0u32; 5];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    let result = unsafe {
        let at = info.as_mut_ptr().cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CC_INFO,
            at,
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel returns another length: the connection uses another congestion control, whose struct is shorter or
    // missing.
    if length as usize != size_of_val(&info) {
        return Ok(None);
    }
    let [low, high, trip_us, gain, _] = info;
    Ok(Some(BbrInfo {
        rate: u64::from(high) << 32 | u64::from(low),
        least_round_trip: Duration::from_micros(trip_us.into()),
        pacing_gain: f64::from(gain) / 256.0,
    }))
}

/// Limits the rate at which the kernel sends on a connection to `rate` bytes per second, and turns pacing on.
pub(crate) fn set_max_pacing_rate(socket: &TcpStream, rate: libc::c_uint) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

pub(crate) fn set(
    socket: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_uint,
) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
pub(crate) fn get(
    socket: &TcpStream,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_uint> {
    let mut value: libc::c_uint = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`.
    let result = unsafe {
        let at = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, at, &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the window scales of our end and of the peer. The seventh byte of tcp_info(7) holds the peer's scale in
    /// the lower four bits and ours in the upper four bits.
    fn shifts(stream: &TcpStream) -> (u8, u8) {
        let mut info = [0u8; 8];
        let mut length = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to the buffer, whose length this is.
        let answer = unsafe {
            let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
            libc::getsockopt(
                stream.as_raw_fd(),
                level,
                name,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!((answer, length), (0, 8));
        if cfg!(target_endian = "little") {
            (info[6] >> 4, info[6] & 15)
        } else {
            (info[6] & 15, info[6] >> 4)
        }
    }

    fn listen(options: &SocketOptions) -> tokio::net::TcpListener {
        let socket = TcpSocket::new_v4().unwrap();
        options.apply(&socket).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.listen(8).unwrap()
    }

    /// Makes a connection and returns its two ends. `near` are the options of the connecting end, `far` those of the
    /// listening end.
    async fn pair(near: &SocketOptions, far: &SocketOptions) -> [TcpStream; 2] {
        let listener = listen(far);
        let port = listener.local_addr().unwrap().port();
        let near = near.connect("127.0.0.1", port, |_| ()).await.unwrap();
        [near, listener.accept().await.unwrap().0]
    }

    /// A regression test. The options used to be set after the window scale had been fixed, so that a larger receive
    /// buffer had no effect.
    #[tokio::test]
    async fn the_windows_scale_is_that_of_the_buffer_at_either_end() {
        let default = SocketOptions::default();
        let [near, _far] = pair(&default, &default).await;
        let (usual, _) = shifts(&near);
        for bytes in [64 << 10, 256 << 20] {
            let options = SocketOptions::buffers(Some(bytes));
            let [near, far] = pair(&options, &default).await;
            let has = SockRef::from(&near).recv_buffer_size().unwrap();
            assert_eq!(shifts(&near).0, shifts(&far).1, "what we said is what it knows");
            if has < bytes {
                println!("not all of it: {has} of {bytes} bytes without CAP_NET_ADMIN");
                continue;
            }
            let is_scaled = |shift: u8| if bytes > 1 << 20 { shift > usual } else { shift < usual };
            assert!(is_scaled(shifts(&near).0), "{bytes}: {:?}, usually {usual}", shifts(&near));
            let [near, far] = pair(&default, &options).await;
            assert!(is_scaled(shifts(&far).0), "{bytes}: {:?}, usually {usual}", shifts(&far));
            assert_eq!(shifts(&far).0, shifts(&near).1);
        }
    }

    #[tokio::test]
    async fn accepted_connections_have_the_options_of_the_listener() {
        let [near, far] =
            pair(&SocketOptions::default(), &SocketOptions::buffers(Some(65_536))).await;
        for stream in [&near, &far] {
            let socket = SockRef::from(stream);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        }
        assert_eq!(SockRef::from(&far).recv_buffer_size().unwrap(), 2 * 65_536);
        assert_eq!(SockRef::from(&far).send_buffer_size().unwrap(), 2 * 65_536);
    }

    /// Some kernels have no BBR, and some users may not select it. In these cases the test prints the reason and
    /// passes.
    #[tokio::test]
    async fn the_state_of_bbr_is_read_and_other_congestion_controls_have_none() {
        let [near, far] = pair(&SocketOptions::default(), &SocketOptions::default()).await;
        SockRef::from(&near).set_tcp_congestion(b"reno").unwrap();
        assert_eq!(bbr_info(&near).unwrap(), None);
        if let Err(error) = SockRef::from(&near).set_tcp_congestion(b"bbr") {
            return println!("not run: {error}");
        }
        while near.try_write(&[0; 4096]).is_ok() {}
        let mut arrived = [0; 4096];
        far.readable().await.unwrap();
        assert!(far.try_read(&mut arrived).unwrap() > 0);
        let info = bbr_info(&near).unwrap().unwrap();
        assert!(info.pacing_gain > 2.5 && info.pacing_gain < 3.0, "start-up: {info:?}");
        assert!(info.least_round_trip < Duration::from_secs(1), "loopback: {info:?}");
        assert_eq!(bytes_sent_again(&near).unwrap(), 0);
    }

    #[tokio::test]
    async fn an_address_that_accepts_the_connection_is_found() {
        let options = SocketOptions::default();
        // Bind this port without listening, so that no other process can use it.
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = bound.local_addr().unwrap().port();
        let error = options.connect("127.0.0.1", port, |_| ()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        // The host name may also resolve to ::1, where no socket listens.
        let listener = listen(&options);
        let port = listener.local_addr().unwrap().port();
        assert!(options.connect("localhost", port, |_| ()).await.is_ok());
    }
}

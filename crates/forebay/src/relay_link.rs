//! A long link emulated in this process: a relay between TCP connections that delays every byte, limits the rate and
//! counts the traffic.
//!
//! The relay neither loses nor reorders data, because it could not show the effects: each end has a TCP connection of
//! its own to the relay, and would see a stream that TCP has already repaired.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::{
    fd::OwnedFd,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, unix::AsyncFd},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
    task::JoinSet,
};
use volume::{ConditionChange, OngoingCondition};

/// Delay and rate of an emulated link, equal in both directions.
#[derive(Clone, Copy, Debug)]
pub struct RelayLinkSettings {
    /// One-way propagation delay.
    pub delay: Duration,
    /// Rate in bits per second.
    pub rate: u64,
}

impl RelayLinkSettings {
    /// Returns the time that the link takes to send `bytes` bytes.
    fn occupied_by(&self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / self.rate)
    }

    /// Returns the number of bytes that one direction of a connection may hold: those in flight at full rate, and 256
    /// KiB for the buffer of a router. The relay reads no more than that (backpressure).
    fn room(&self) -> usize {
        let under_way = self.delay.as_nanos() * u128::from(self.rate) / 8 / 1_000_000_000;
        usize::try_from(under_way).unwrap_or(usize::MAX / 2) + (256 << 10)
    }
}

#[derive(Debug, Default)]
pub struct RelayCounters {
    bytes: AtomicU64,
    pdus: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct RelayTraffic {
    /// Bytes of the TCP streams, in both directions together.
    pub bytes: u64,
    /// Number of iSCSI PDUs, in both directions together.
    pub pdus: u64,
}

impl RelayTraffic {
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { bytes: self.bytes - earlier.bytes, pdus: self.pdus - earlier.pdus }
    }
}

/// A running emulated link. Dropping this closes it.
#[derive(Debug)]
pub struct RelayLink {
    address: SocketAddr,
    directions: [Arc<RelayDirection>; 2],
    driver: tokio::task::JoinHandle<()>,
}

/// One direction of the emulated link, whose rate all connections share.
#[derive(Debug)]
struct RelayDirection {
    line: RelayLinkSettings,
    /// Time at which the link will have sent all bytes that it has accepted.
    free_at: Mutex<Instant>,
    passed: RelayCounters,
}

impl RelayLink {
    /// Opens a link: connections to `listen` are relayed to `to`.
    pub async fn open(
        listen: SocketAddr,
        to: SocketAddr,
        line: RelayLinkSettings,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let direction = || {
            let free_at = Mutex::new(Instant::now());
            Arc::new(RelayDirection { line, free_at, passed: RelayCounters::default() })
        };
        let directions = [direction(), direction()];
        let driver = tokio::spawn(accept(listener, to, directions.clone()));
        Ok(Self { address, directions, driver })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn traffic(&self) -> RelayTraffic {
        let sum = |count: fn(&RelayCounters) -> &AtomicU64| {
            self.directions.iter().map(|way| count(&way.passed).load(Relaxed)).sum()
        };
        RelayTraffic { bytes: sum(|passed| &passed.bytes), pdus: sum(|passed| &passed.pdus) }
    }
}

impl Drop for RelayLink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, directions: [Arc<RelayDirection>; 2]) {
    let mut connections = JoinSet::new();
    let mut failing = OngoingCondition::default();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = listener.accept().await;
        match failing.turn_after(accepted.is_err(), Duration::from_secs(60)) {
            Some(ConditionChange::Begins) => {
                let error = accepted.as_ref().err().map(ToString::to_string);
                tracing::warn!(
                    error,
                    remedy = "nothing has to be done unless it lasts: if files run out, raise \
                     LimitNOFILE= of systemd or `ulimit -n`",
                    "the link cannot accept connections: trying again until it can"
                );
            }
            Some(ConditionChange::Ends(lasted)) => {
                tracing::info!(lasted_s = lasted.as_secs(), "the link accepts connections again");
            }
            None => {}
        }
        match accepted {
            Ok((near, _)) => {
                connections.spawn(relay(near, to, directions.clone()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn relay(near: TcpStream, to: SocketAddr, [forth, back]: [Arc<RelayDirection>; 2]) {
    let far = match TcpStream::connect(to).await {
        Ok(far) => far,
        Err(error) => {
            tracing::debug!(%error, %to, "cannot connect to the far end of the link");
            return;
        }
    };
    for stream in [&near, &far] {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot disable Nagle's algorithm on the link");
        }
    }
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    // A reset at one end closes both connections; an orderly end of one direction is relayed like data.
    let result = tokio::try_join!(carry(near_in, far_out, &forth), carry(far_in, near_out, &back));
    if let Err(error) = result {
        tracing::debug!(%error, "a connection over the link broke");
    }
}

/// The bytes of one connection that are in flight in one direction.
struct Pipe {
    queue: Mutex<RelayQueue>,
    changed_in: Notify,
    changed_out: Notify,
}

#[derive(Default)]
struct RelayQueue {
    chunks: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    ended: bool,
}

async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, way: &RelayDirection) -> io::Result<()> {
    let pipe =
        Pipe { queue: Mutex::default(), changed_in: Notify::new(), changed_out: Notify::new() };
    tokio::try_join!(put_in(from, &pipe, way), take_out(to, &pipe, way)).map(|_| ())
}

/// Maximum number of bytes read from the socket at once: about 0.13 ms at 1 Gbit/s, so that the stream is even.
const CHUNK: usize = 16 << 10;

async fn put_in(mut from: OwnedReadHalf, pipe: &Pipe, way: &RelayDirection) -> io::Result<()> {
    let mut framing = Framing::default();
    let mut buffer = BytesMut::new();
    loop {
        while pipe.queue.lock().bytes >= way.line.room() {
            pipe.changed_out.notified().await;
        }
        buffer.reserve(CHUNK);
        let read = (&mut from).take(CHUNK as u64).read_buf(&mut buffer).await?;
        let now = Instant::now();
        let sent = {
            let mut free_at = way.free_at.lock();
            *free_at = (*free_at).max(now) + way.line.occupied_by(read);
            *free_at
        };
        let chunk = buffer.split().freeze();
        way.passed.bytes.fetch_add(read as u64, Relaxed);
        way.passed.pdus.fetch_add(framing.pdus_begun(&chunk), Relaxed);
        {
            let mut queue = pipe.queue.lock();
            queue.bytes += read;
            queue.chunks.push_back((sent + way.line.delay, chunk));
            queue.ended = read == 0;
        }
        pipe.changed_in.notify_one();
        if read == 0 {
            return Ok(());
        }
    }
}

async fn take_out(mut to: OwnedWriteHalf, pipe: &Pipe, way: &RelayDirection) -> io::Result<()> {
    let alarm = Alarm::new()?;
    loop {
        let next = pipe.queue.lock().chunks.pop_front();
        let Some((at, chunk)) = next else {
            if pipe.queue.lock().ended {
                return to.shutdown().await;
            }
            pipe.changed_in.notified().await;
            continue;
        };
        alarm.ring_at(at).await?;
        to.write_all(&chunk).await?;
        pipe.queue.lock().bytes -= chunk.len();
        pipe.changed_out.notify_one();
        debug_assert!(chunk.len() <= way.line.room());
    }
}

/// A timer with an accuracy of tens of microseconds. Tokio's timer has a granularity of milliseconds, too coarse for a
/// link of a few milliseconds.
struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the owned descriptor stays the same open file until it is dropped together with this value.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    async fn ring_at(&self, at: Instant) -> io::Result<()> {
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let value = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
            rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            let mut ready = self.0.readable().await?;
            let mut expirations = [0; 8];
            match rustix::io::read(self.0.get_ref(), &mut expirations) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Counts iSCSI PDUs in a stream (RFC 7143, 11.2): basic header, additional headers, data segment padded to four bytes.
/// Valid only for streams without digests; with digests the count is a guess.
#[derive(Default)]
struct Framing {
    /// The received part of the basic header's first eight bytes.
    header: [u8; 8],
    have: usize,
    /// Bytes to skip before the next header.
    skip: usize,
}

/// The first eight of the basic header's 48 bytes hold the lengths; 40 bytes remain.
const REST_OF_HEADER: usize = 40;

impl Framing {
    fn pdus_begun(&mut self, mut bytes: &[u8]) -> u64 {
        let mut pdus = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (8 - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == 8 {
                let [_, _, _, _, additional, a, b, c] = self.header;
                let data = u32::from_be_bytes([0, a, b, c]) as usize;
                self.skip = REST_OF_HEADER + 4 * usize::from(additional) + data.next_multiple_of(4);
                self.have = 0;
                pdus += 1;
            }
        }
        pdus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    async fn link_to_echo(line: RelayLinkSettings) -> (RelayLink, TcpStream) {
        let echo = TcpListener::bind(LOOPBACK).await.unwrap();
        let to = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = echo.accept().await.unwrap();
            let (mut read, mut write) = stream.into_split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let link = RelayLink::open(LOOPBACK, to, line).await.unwrap();
        let near = TcpStream::connect(link.address()).await.unwrap();
        (link, near)
    }

    #[tokio::test]
    async fn no_byte_comes_before_its_delay() {
        let delay = Duration::from_millis(4);
        let (link, mut near) = link_to_echo(RelayLinkSettings { delay, rate: 1_000_000_000 }).await;
        let start = Instant::now();
        near.write_all(&[0; 48]).await.unwrap();
        near.read_exact(&mut [0; 48]).await.unwrap();
        assert!(start.elapsed() >= 2 * delay);
        assert_eq!(link.traffic(), RelayTraffic { bytes: 96, pdus: 2 });
    }

    #[tokio::test]
    async fn bytes_arrive_no_faster_than_the_rate_complete_and_in_order() {
        // 1 MiB at 80 Mbit/s takes 105 ms on the link.
        let line = RelayLinkSettings { delay: Duration::from_millis(1), rate: 80_000_000 };
        let (_link, near) = link_to_echo(line).await;
        let sent: Vec<u8> = (0..1 << 20).map(|i: u32| (i ^ (i >> 9)) as u8).collect();
        let (mut read, mut write) = near.into_split();
        let start = Instant::now();
        let writer = tokio::spawn({
            let sent = sent.clone();
            async move {
                write.write_all(&sent).await.unwrap();
                write.shutdown().await.unwrap();
            }
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        writer.await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(100));
        assert!(back == sent);
    }

    #[tokio::test]
    async fn a_far_end_that_refuses_the_connection_closes_the_near_connection() {
        let unused = TcpListener::bind(LOOPBACK).await.unwrap().local_addr().unwrap();
        let line = RelayLinkSettings { delay: Duration::ZERO, rate: 1_000_000_000 };
        let link = RelayLink::open(LOOPBACK, unused, line).await.unwrap();
        let mut near = TcpStream::connect(link.address()).await.unwrap();
        assert!(!matches!(near.read(&mut [0; 1]).await, Ok(1..)));
    }

    #[test]
    fn pdus_are_counted_wherever_the_stream_is_cut() {
        let mut stream = Vec::new();
        for (additional, data) in [(0, 0), (1, 5), (2, 4096), (0, 3)] {
            let mut pdu = vec![0; 48 + 4 * additional + usize::next_multiple_of(data, 4)];
            pdu[4] = additional as u8;
            pdu[5..8].copy_from_slice(&(data as u32).to_be_bytes()[1..]);
            stream.extend(pdu);
        }
        for size in [1, 7, 48, 50, stream.len()] {
            let mut framing = Framing::default();
            let pdus: u64 = stream.chunks(size).map(|part| framing.pdus_begun(part)).sum();
            assert_eq!(pdus, 4, "in parts of {size}");
        }
    }
}

//! The bulk TCP stream: a TCP connection whose sender always has data. Its throughput shows how much TCP can send over
//! the link.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rawclient::login;

use crate::far::load::FarLoadResult;
use crate::far::wan::{BenchWan, BenchWanEnd, at};
use crate::far::{LINK, WARM_UP};
use crate::load::histogram;

/// The direction in which the bulk TCP stream sends data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BulkStreamDirection {
    /// From the hosts' end of the link to the node's end, like the data of writes.
    Forth,
    /// From the node's end of the link to the hosts' end, like the data of reads.
    Back,
}

impl BulkStreamDirection {
    /// Returns the name of a stream in this direction, as the report prints it.
    pub fn name(self) -> &'static str {
        match self {
            BulkStreamDirection::Forth => "bulk TCP, to the far end",
            BulkStreamDirection::Back => "bulk TCP, from the far end",
        }
    }
}

/// Measures the throughput for `time`, after [`WARM_UP`]. `wan` has the addresses of the ends.
pub fn measure(
    wan: &BenchWan,
    direction: BulkStreamDirection,
    control: &str,
    time: Duration,
) -> Result<FarLoadResult> {
    stream(wan, direction, control, send, |socket| receive(socket, time))
}

/// Measures how long a new connection takes to carry `bytes` bytes, from its first packet on. This time includes TCP's
/// slow start.
pub fn measure_from_start(
    wan: &BenchWan,
    direction: BulkStreamDirection,
    control: &str,
    bytes: u64,
) -> Result<FarLoadResult> {
    let begun = Instant::now();
    let send = |socket| send_bytes(socket, bytes);
    stream(wan, direction, control, send, |socket| receive_bytes(socket, bytes, begun))
}

/// Connects the two ends of the link by TCP. Runs `send` at the end where `direction` begins, and `receive` at the
/// other end.
fn stream(
    wan: &BenchWan,
    direction: BulkStreamDirection,
    control: &str,
    send: impl FnOnce(TcpStream) + Send,
    receive: impl FnOnce(TcpStream) -> Result<FarLoadResult>,
) -> Result<FarLoadResult> {
    let (sender, receiver) = match direction {
        BulkStreamDirection::Forth => (BenchWanEnd::Near, BenchWanEnd::Far),
        BulkStreamDirection::Back => (BenchWanEnd::Far, BenchWanEnd::Near),
    };
    let listener = at(LINK, receiver, || Ok(TcpListener::bind("0.0.0.0:0")?))?;
    let port = listener.local_addr()?.port();
    let address = SocketAddr::new(wan.address(receiver).parse()?, port);
    let socket = at(LINK, sender, || {
        login::connect(address, Some(control))
            .with_context(|| format!("the bulk stream does not connect with {control}"))
    })?;
    let (taken, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(socket));
        let received = receive(taken);
        match sending.join() {
            Ok(()) => received,
            Err(_) => bail!("the bulk stream's sender panicked"),
        }
    })
}

/// Sends until the receiver closes the connection.
fn send(mut socket: TcpStream) {
    let block = vec![0x5a; 256 << 10];
    while socket.write_all(&block).is_ok() {}
}

/// Sends `bytes` bytes, or fewer if the receiver closes the connection before.
fn send_bytes(mut socket: TcpStream, bytes: u64) {
    let block = vec![0x5a; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(block.len() as u64);
        if socket.write_all(&block[..length as usize]).is_err() {
            return;
        }
        left -= length;
    }
}

fn receive_bytes(mut socket: TcpStream, bytes: u64, begun: Instant) -> Result<FarLoadResult> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut block = vec![0; 256 << 10];
    let mut received = 0;
    while received < bytes {
        match socket.read(&mut block)? {
            0 => bail!("the sender of the bulk stream closed the connection"),
            count => received += count as u64,
        }
    }
    Ok(FarLoadResult { bytes: received, time: begun.elapsed(), latency: histogram() })
}

fn receive(mut socket: TcpStream, time: Duration) -> Result<FarLoadResult> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut block = vec![0; 256 << 10];
    let begun = Instant::now();
    while begun.elapsed() < WARM_UP {
        if socket.read(&mut block)? == 0 {
            bail!("the sender of the bulk stream closed the connection");
        }
    }
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        match socket.read(&mut block)? {
            0 => bail!("the sender of the bulk stream closed the connection"),
            count => bytes += count as u64,
        }
    }
    Ok(FarLoadResult { bytes, time: begun.elapsed(), latency: histogram() })
}

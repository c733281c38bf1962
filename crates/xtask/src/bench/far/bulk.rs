//! The limit: one TCP connection that carries as much as it can.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::set_tcp_congestion;

use crate::bench::far::line::{End, at};
use crate::bench::far::load::Outcome;
use crate::bench::far::{LINK, WARM_UP};
use crate::bench::load::histogram;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// To the far end, as writes.
    Forth,
    /// From it, as reads.
    Back,
}

impl Direction {
    /// The name of the point.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forth => "bulk TCP, to the far end",
            Direction::Back => "bulk TCP, from the far end",
        }
    }
}

/// Carries bytes for so long after a warm-up.
pub fn measure(direction: Direction, control: &str, time: Duration) -> Result<Outcome> {
    let (sender, receiver) = match direction {
        Direction::Forth => (End::Near, End::Far),
        Direction::Back => (End::Far, End::Near),
    };
    let listener = at(LINK, receiver, || Ok(TcpListener::bind("0.0.0.0:0")?))?;
    let port = listener.local_addr()?.port();
    let address = if receiver == End::Near { "10.99.0.1" } else { "10.99.0.2" };
    let socket = at(LINK, sender, || {
        let socket =
            TcpStream::connect((address, port)).context("the bulk stream does not connect")?;
        set_tcp_congestion(&socket, control)
            .with_context(|| format!("the congestion control {control}"))?;
        Ok(socket)
    })?;
    let (taken, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(socket));
        let received = receive(taken, time);
        match sending.join() {
            Ok(()) => received,
            Err(_) => bail!("the bulk stream's sender panicked"),
        }
    })
}

/// Sends until the other end closes.
fn send(mut socket: TcpStream) {
    let block = vec![0x5a; 256 << 10];
    while socket.write_all(&block).is_ok() {}
}

fn receive(mut socket: TcpStream, time: Duration) -> Result<Outcome> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut block = vec![0; 256 << 10];
    let begun = Instant::now();
    while begun.elapsed() < WARM_UP {
        if socket.read(&mut block)? == 0 {
            bail!("the bulk stream ended");
        }
    }
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        match socket.read(&mut block)? {
            0 => bail!("the bulk stream ended"),
            count => bytes += count as u64,
        }
    }
    Ok(Outcome { bytes, time: begun.elapsed(), latency: histogram() })
}

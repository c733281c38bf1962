//! The client of the bare TCP program: a connection with requests in flight.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rawclient::crowd::CrowdConnection;
use rawclient::wire::{ClientReceiveBuffer, ClientSendQueue};

use super::greeting::{Greeting, buffer_bytes};
use crate::load::BenchLoad;

/// The time at which a run ends, and the latencies measured so far.
pub struct RawTcpMeasurement {
    pub deadline: Instant,
    /// Histogram of the times from sending a request to receiving its response, in nanoseconds.
    pub latency: Histogram<u64>,
}

/// A connection at the client of the bare TCP server, with `depth` requests in flight.
pub struct RawTcpClient {
    socket: TcpStream,
    depth: usize,
    request: usize,
    response: usize,
    requests: Vec<u8>,
    output: ClientSendQueue,
    input: ClientReceiveBuffer,
    /// The times at which the requests in flight were sent, oldest first. Responses arrive in the
    /// same order.
    sent: VecDeque<Instant>,
    /// Number of bytes received so far of an incomplete response.
    part: usize,
}

impl RawTcpClient {
    /// Connects to the bare TCP server, and waits until the server is ready.
    pub fn connect(address: SocketAddr, load: &BenchLoad, memory: u32) -> Result<RawTcpClient> {
        let (request, response) = load.wire_bytes();
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        Greeting { request, response, memory: memory as usize }.say(&mut socket)?;
        Ok(RawTcpClient {
            socket,
            depth: load.depth,
            request,
            response,
            requests: vec![0xa5; request * load.depth],
            output: ClientSendQueue::default(),
            input: ClientReceiveBuffer::new(buffer_bytes(request.max(response))),
            sent: VecDeque::with_capacity(load.depth),
            part: 0,
        })
    }

    /// Keeps requests in flight until the deadline.
    pub fn run(&mut self, clock: &mut RawTcpMeasurement) -> Result<()> {
        let mut now = Instant::now();
        while !self.send(clock, now)? {
            self.input.receive(&self.socket, !self.output.is_empty())?;
            now = Instant::now();
            self.take(clock, now)?;
        }
        Ok(())
    }

    fn take(&mut self, clock: &mut RawTcpMeasurement, now: Instant) -> Result<()> {
        self.part += self.input.bytes().len();
        self.input.consume(self.input.bytes().len());
        for _ in 0..self.part / self.response {
            let sent = self.sent.pop_front().context("a response arrived without a request")?;
            clock.latency.saturating_record((now - sent).as_nanos() as u64);
        }
        self.part %= self.response;
        Ok(())
    }
}

impl CrowdConnection<RawTcpMeasurement> for RawTcpClient {
    fn send(&mut self, clock: &mut RawTcpMeasurement, now: Instant) -> Result<bool> {
        let more = self.depth - self.sent.len();
        if more > 0 {
            self.output.payload(0, 0, more * self.request);
            self.sent.extend(std::iter::repeat_n(now, more));
        }
        self.output.send(&self.socket, std::slice::from_ref(&self.requests))?;
        Ok(now >= clock.deadline)
    }

    fn receive(&mut self, clock: &mut RawTcpMeasurement, now: Instant) -> Result<()> {
        self.input.receive_now(&self.socket)?;
        self.take(clock, now)
    }

    fn in_flight(&self) -> usize {
        self.sent.len()
    }

    fn is_sending(&self) -> bool {
        !self.output.is_empty()
    }

    fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

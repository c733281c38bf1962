//! The limit: a bare TCP program that answers requests of one size with answers of another.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use crate::bench::load::{Load, Point, histogram};
use crate::client::crowd::Member;
use crate::client::wire::{Input, Output};
use crate::client::{Crowd, stamp};
use crate::machine::{self, Usage};
use crate::process::Running;

/// Unmeasured time at the start of a point.
const WARM_UP: Duration = Duration::from_millis(150);

/// What client and server receive at once, bytes: as the target does for small commands, more for large ones.
fn buffer_bytes(largest: usize) -> usize {
    if largest > 16384 { 256 << 10 } else { 64 << 10 }
}

/// The server's process.
pub struct Server {
    running: Running,
    address: SocketAddr,
}

impl Server {
    /// Starts ourselves as the server, on the CPU of servers; one thread for all connections if
    /// `together`, one for each if not.
    pub fn start(together: bool) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("raw-server").stdout(Stdio::piped());
        if together {
            command.arg("--together");
        }
        let mut running = Running::start(machine::pinned(&mut command, machine::SERVER_CPU))?;
        let stdout = running.child().stdout.take().context("no pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().context("the server said no address")?;
        Ok(Server { running, address })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Puts the requests of a load on it for a time; `memory` bytes are what it answers from, 0 for
    /// the same few again and again.
    pub fn measure(&self, load: &Load, memory: u32, time: Duration) -> Result<Point> {
        let connect = |_| Client::connect(self.address, load, memory);
        let clients: Vec<Client> = (0..load.sessions).map(connect).collect::<Result<_>>()?;
        let mut crowd = Crowd::new(clients)?;
        let mut run = |time| {
            let mut clock = Clock { deadline: Instant::now() + time, latency: histogram() };
            match crowd.members_mut() {
                [only] => only.run(&mut clock)?,
                _ => crowd.run(&mut clock)?,
            }
            anyhow::Ok(clock.latency)
        };
        run(WARM_UP)?;
        let (before, start) = (Usage::of(self.id())?, Instant::now());
        let latency = run(time)?;
        let (server, time) = (Usage::of(self.id())?.since(before), start.elapsed());
        Ok(Point { operations: latency.len(), time, latency, server })
    }
}

/// The server: prints its address, then serves until it is killed; each connection by a thread of
/// its own, or all by one.
pub fn serve(together: bool) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    if together {
        return serve_together(&listener);
    }
    for socket in listener.incoming() {
        let socket = socket?;
        std::thread::spawn(move || {
            let mut connection = Answering::begin(socket)?;
            while connection.turn()? {}
            anyhow::Ok(())
        });
    }
    Ok(())
}

fn serve_together(listener: &TcpListener) -> Result<()> {
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections: Vec<Option<Answering>> = vec![];
    let newcomer = epoll::EventData::new_u64(u64::MAX);
    epoll::add(&waiting, listener, newcomer, epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        rustix::io::retry_on_intr(|| epoll::wait(&waiting, spare_capacity(&mut events), None))?;
        for event in &events {
            let number = event.data.u64();
            if number == u64::MAX {
                let connection = Answering::begin(listener.accept()?.0)?;
                let data = epoll::EventData::new_u64(connections.len() as u64);
                epoll::add(&waiting, &connection.socket, data, epoll::EventFlags::IN)?;
                connections.push(Some(connection));
                continue;
            }
            let place = &mut connections[number as usize];
            if let Some(connection) = place
                && !connection.turn().unwrap_or(false)
            {
                *place = None;
            }
        }
    }
}

/// One connection at the server.
struct Answering {
    socket: TcpStream,
    request: usize,
    response: usize,
    /// What is answered from, bytes; 0 for the same few again and again.
    memory: usize,
    buffer: Vec<u8>,
    answers: Vec<u8>,
    /// Bytes of requests that were received and not answered.
    received: usize,
    random: u64,
}

impl Answering {
    /// The first twelve bytes are the two sizes and that of the memory.
    fn begin(mut socket: TcpStream) -> Result<Answering> {
        socket.set_nodelay(true)?;
        let mut sizes = [0; 12];
        socket.read_exact(&mut sizes)?;
        let [request, response, memory] = [0, 4, 8].map(|at| {
            u32::from_be_bytes(sizes[at..at + 4].try_into().expect("four bytes")) as usize
        });
        let buffer = vec![0; buffer_bytes(request.max(response))];
        let answers = vec![0x5a; memory.max(response * MOST_AT_ONCE)];
        // What memory costs when it is first touched is not measured.
        socket.write_all(&[READY])?;
        Ok(Answering { socket, request, response, memory, buffer, answers, received: 0, random: 1 })
    }

    /// Receives once and answers what is whole. False at the end of the connection.
    fn turn(&mut self) -> Result<bool> {
        match self.socket.read(&mut self.buffer)? {
            0 => return Ok(false),
            count => self.received += count,
        }
        let mut whole = self.received / self.request;
        self.received %= self.request;
        while whole > 0 {
            let now = if self.memory == 0 {
                let now = whole.min(self.answers.len() / self.response);
                self.socket.write_all(&self.answers[..now * self.response])?;
                now
            } else {
                let now = whole.min(MOST_AT_ONCE);
                self.answer_from_memory(now)?;
                now
            };
            whole -= now;
        }
        Ok(true)
    }

    fn answer_from_memory(&mut self, count: usize) -> Result<()> {
        let pages = self.memory / PAGE - 1;
        let mut pieces: Vec<IoSlice<'_>> = (0..count)
            .map(|_| {
                let page = stamp::next(&mut self.random) as usize % pages;
                IoSlice::new(&self.answers[page * PAGE..][..self.response])
            })
            .collect();
        let mut pieces = &mut pieces[..];
        while !pieces.is_empty() {
            let sent = self.socket.write_vectored(pieces)?;
            IoSlice::advance_slices(&mut pieces, sent);
        }
        Ok(())
    }
}

/// Answers from memory begin at a multiple of this, and are not longer by more than a header.
const PAGE: usize = 4096;
/// Answers in one system call.
const MOST_AT_ONCE: usize = 64;
/// What the server says when it is about to take requests.
const READY: u8 = 1;

/// How long a run goes on, and what it has seen.
struct Clock {
    deadline: Instant,
    latency: hdrhistogram::Histogram<u64>,
}

/// The client: keeps `depth` requests in flight.
struct Client {
    socket: TcpStream,
    depth: usize,
    request: usize,
    response: usize,
    requests: Vec<u8>,
    output: Output,
    input: Input,
    /// When the requests in flight were sent, oldest first; answers come in order.
    sent: std::collections::VecDeque<Instant>,
    /// Bytes of an answer that is not whole yet.
    part: usize,
}

impl Client {
    fn connect(address: SocketAddr, load: &Load, memory: u32) -> Result<Client> {
        let (request, response) = load.wire_bytes();
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        for size in [request as u32, response as u32, memory] {
            socket.write_all(&size.to_be_bytes())?;
        }
        let mut ready = [0];
        socket.read_exact(&mut ready)?;
        Ok(Client {
            socket,
            depth: load.depth,
            request,
            response,
            requests: vec![0xa5; request * load.depth],
            output: Output::default(),
            input: Input::new(buffer_bytes(request.max(response))),
            sent: std::collections::VecDeque::with_capacity(load.depth),
            part: 0,
        })
    }

    fn run(&mut self, clock: &mut Clock) -> Result<()> {
        let mut now = Instant::now();
        while !self.send(clock, now)? {
            self.input.receive(&self.socket, !self.output.is_empty())?;
            now = Instant::now();
            self.take(clock, now)?;
        }
        Ok(())
    }

    fn take(&mut self, clock: &mut Clock, now: Instant) -> Result<()> {
        self.part += self.input.bytes().len();
        self.input.consume(self.input.bytes().len());
        for _ in 0..self.part / self.response {
            let sent = self.sent.pop_front().context("an answer to no request")?;
            clock.latency.saturating_record((now - sent).as_nanos() as u64);
        }
        self.part %= self.response;
        Ok(())
    }
}

impl Member<Clock> for Client {
    fn send(&mut self, clock: &mut Clock, now: Instant) -> Result<bool> {
        let more = self.depth - self.sent.len();
        if more > 0 {
            self.output.payload(0, 0, more * self.request);
            self.sent.extend(std::iter::repeat_n(now, more));
        }
        self.output.send(&self.socket, std::slice::from_ref(&self.requests))?;
        Ok(now >= clock.deadline)
    }

    fn receive(&mut self, clock: &mut Clock, now: Instant) -> Result<()> {
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

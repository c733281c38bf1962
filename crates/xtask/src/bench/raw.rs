//! The limit: a bare TCP program that answers requests of one size with answers of another.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench::load::{Load, Point, histogram};
use crate::client::wire::{Input, Output};
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
    /// Starts ourselves as the server, on the CPU of servers.
    pub fn start() -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("raw-server").stdout(Stdio::piped());
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

    /// Puts the requests of a load on it for a time.
    pub fn measure(&self, load: &Load, time: Duration) -> Result<Point> {
        let mut client = Client::connect(self.address, load)?;
        client.run(WARM_UP)?;
        client.latency.reset();
        let (before, start) = (Usage::of(self.id())?, Instant::now());
        client.run(time)?;
        let (server, time) = (Usage::of(self.id())?.since(before), start.elapsed());
        Ok(Point { operations: client.latency.len(), time, latency: client.latency, server })
    }
}

/// The server: prints its address, then serves until it is killed.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    for socket in listener.incoming() {
        let socket = socket?;
        std::thread::spawn(move || answer(socket));
    }
    Ok(())
}

/// Answers one connection, whose first eight bytes are the two sizes.
fn answer(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut sizes = [0; 8];
    socket.read_exact(&mut sizes)?;
    let size =
        |at: usize| u32::from_be_bytes(sizes[at..at + 4].try_into().expect("four bytes")) as usize;
    let (request, response) = (size(0), size(4));
    let mut buffer = vec![0; buffer_bytes(request.max(response))];
    let answers = vec![0x5a; response * (buffer.len() / request + 1)];
    let mut received = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            count => received += count,
        }
        let mut whole = received / request;
        received %= request;
        while whole > 0 {
            let now = whole.min(answers.len() / response);
            socket.write_all(&answers[..now * response])?;
            whole -= now;
        }
    }
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
    latency: hdrhistogram::Histogram<u64>,
}

impl Client {
    fn connect(address: SocketAddr, load: &Load) -> Result<Client> {
        let (request, response) = load.wire_bytes();
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        socket.write_all(&(request as u32).to_be_bytes())?;
        socket.write_all(&(response as u32).to_be_bytes())?;
        Ok(Client {
            socket,
            depth: load.depth,
            request,
            response,
            requests: vec![0xa5; request * load.depth],
            output: Output::default(),
            input: Input::new(buffer_bytes(request.max(response))),
            sent: std::collections::VecDeque::with_capacity(load.depth),
            latency: histogram(),
        })
    }

    fn run(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        let mut now = Instant::now();
        let mut part = 0;
        while now < deadline {
            let more = self.depth - self.sent.len();
            if more > 0 {
                self.output.payload(0, 0, more * self.request);
                self.sent.extend(std::iter::repeat_n(now, more));
            }
            self.output.send(&self.socket, std::slice::from_ref(&self.requests))?;
            self.input.receive(&self.socket, !self.output.is_empty())?;
            now = Instant::now();
            part += self.input.bytes().len();
            self.input.consume(self.input.bytes().len());
            for _ in 0..part / self.response {
                let sent = self.sent.pop_front().context("an answer to no request")?;
                self.latency.saturating_record((now - sent).as_nanos() as u64);
            }
            part %= self.response;
        }
        Ok(())
    }
}

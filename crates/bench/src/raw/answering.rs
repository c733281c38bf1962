//! The server of the bare TCP program: connections that answer requests, and the threads that serve
//! them.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Result;
use rawclient::stamp;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use super::greeting::{Greeting, buffer_bytes};

/// Alignment of blocks in memory. A response is longer than its block by the length of a header, so its last bytes are
/// from the next block.
const PAGE: usize = 4096;
/// Maximum number of responses that one system call sends.
const MOST_AT_ONCE: usize = 64;

/// Prints the address of the server, then serves until the process is killed. If `together` is
/// true, one thread serves all connections, otherwise one thread each.
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

/// A connection at the bare TCP server.
struct Answering {
    socket: TcpStream,
    sizes: Greeting,
    buffer: Vec<u8>,
    answers: Vec<u8>,
    /// The number of bytes received so far of an incomplete request.
    received: usize,
    /// The offset in `answers` to which the payload of the current request is copied.
    place: usize,
    random: u64,
}

impl Answering {
    /// Receives the sizes from the client and allocates the memory of the connection.
    fn begin(mut socket: TcpStream) -> Result<Answering> {
        socket.set_nodelay(true)?;
        let sizes = Greeting::hear(&mut socket)?;
        let buffer = vec![0; buffer_bytes(sizes.request.max(sizes.response))];
        let answers = vec![0x5a; sizes.memory.max(sizes.response * MOST_AT_ONCE)];
        Greeting::answer(&mut socket)?;
        Ok(Answering { socket, sizes, buffer, answers, received: 0, place: 0, random: 1 })
    }

    /// Receives once from the socket, and answers all requests that are complete. Returns false if the client has
    /// closed the connection.
    fn turn(&mut self) -> Result<bool> {
        let count = match self.socket.read(&mut self.buffer)? {
            0 => return Ok(false),
            count => count,
        };
        if self.writes() {
            self.keep_payload(count);
        }
        self.received += count;
        let mut whole = self.received / self.sizes.request;
        self.received %= self.sizes.request;
        while whole > 0 {
            let now = if self.sizes.memory == 0 || self.writes() {
                let now = whole.min(self.answers.len() / self.sizes.response);
                self.socket.write_all(&self.answers[..now * self.sizes.response])?;
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

    /// Returns true if the requests are writes, whose payload is copied to memory.
    fn writes(&self) -> bool {
        self.sizes.memory > 0 && self.sizes.request > self.sizes.response
    }

    /// Copies the payload of writes among the last `count` received bytes to memory, as a target would. The payload may
    /// begin in one read of the socket and end in another.
    fn keep_payload(&mut self, count: usize) {
        let (header, pages) = (self.sizes.response, self.sizes.memory / PAGE - 1);
        let (mut from, mut at) = (0, self.received);
        while from < count {
            if at == 0 {
                self.place = stamp::next(&mut self.random) as usize % pages * PAGE;
            }
            let length = (self.sizes.request - at).min(count - from);
            let skipped = header.saturating_sub(at).min(length);
            let payload = &self.buffer[from + skipped..from + length];
            let to = self.place + (at + skipped).saturating_sub(header);
            self.answers[to..][..payload.len()].copy_from_slice(payload);
            (from, at) = (from + length, (at + length) % self.sizes.request);
        }
    }

    fn answer_from_memory(&mut self, count: usize) -> Result<()> {
        let pages = self.sizes.memory / PAGE - 1;
        let mut pieces: Vec<IoSlice<'_>> = (0..count)
            .map(|_| {
                let page = stamp::next(&mut self.random) as usize % pages;
                IoSlice::new(&self.answers[page * PAGE..][..self.sizes.response])
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

//! The bytes that a connection sends and receives: a queue of pieces to send and a receive buffer.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::TcpStream;

use anyhow::{Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// While more bytes of headers than this wait to be sent, no new commands are queued.
const MAX_HEADERS: usize = 1 << 20;

/// Maximum number of pieces in one system call. IOV_MAX would permit 1024, but with more pieces than this, throughput
/// did not grow.
const MAX_PIECES: usize = 256;

/// A peer counts as dead if it sends no byte for this number of seconds.
pub(super) const SILENCE: i64 = 30;

/// The bytes that wait to be sent: copies of headers, and references to payload.
#[derive(Default)]
pub struct ClientSendQueue {
    headers: Vec<u8>,
    pieces: VecDeque<ClientSendPiece>,
}

/// A run of bytes to send, either of the copied headers or of the payload of `slot`.
#[derive(Clone, Copy)]
struct ClientSendPiece {
    slot: Option<u16>,
    offset: usize,
    length: usize,
}

impl ClientSendQueue {
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns true if the queue is so long that no new commands should be added.
    pub fn is_full(&self) -> bool {
        self.headers.len() >= MAX_HEADERS
    }

    /// Queues a copy of `bytes` for sending.
    pub fn header(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.headers.len();
        self.headers.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            Some(last) if last.slot.is_none() && last.offset + last.length == offset => {
                last.length += bytes.len();
            }
            _ => self.pieces.push_back(ClientSendPiece { slot: None, offset, length: bytes.len() }),
        }
    }

    /// Queues a part of the payload of a slot for sending, without copying the data.
    pub fn payload(&mut self, slot: u16, offset: usize, length: usize) {
        self.pieces.push_back(ClientSendPiece { slot: Some(slot), offset, length });
    }

    /// Sends as many queued bytes as the socket accepts without waiting.
    pub fn send(&mut self, socket: &TcpStream, payloads: &[Vec<u8>]) -> Result<()> {
        while !self.pieces.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .pieces
                .iter()
                .take(MAX_PIECES)
                .map(|piece| {
                    let whole =
                        piece.slot.map_or(&self.headers, |slot| &payloads[usize::from(slot)]);
                    IoSlice::new(&whole[piece.offset..piece.offset + piece.length])
                })
                .collect();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(socket, &slices, &mut nothing, flags) {
                Ok(sent) => self.advance(sent),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.headers.clear();
        Ok(())
    }

    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            let first = self.pieces.front_mut().expect("only queued bytes are sent");
            let step = first.length.min(sent);
            (first.offset, first.length) = (first.offset + step, first.length - step);
            sent -= step;
            if first.length == 0 {
                self.pieces.pop_front();
            }
        }
    }
}

/// The bytes that were received and have not been processed yet.
pub struct ClientReceiveBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl ClientReceiveBuffer {
    /// Returns an empty buffer with a capacity of `size` bytes.
    pub fn new(size: usize) -> ClientReceiveBuffer {
        ClientReceiveBuffer { buffer: vec![0; size], start: 0, end: 0 }
    }

    /// Returns the bytes that were received and have not been processed yet.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes the first `count` bytes, which the caller has processed.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Waits until more bytes arrive and receives them. If `sending` is true, also returns when the socket accepts more
    /// bytes to send.
    pub fn receive(&mut self, socket: &TcpStream, sending: bool) -> Result<()> {
        if sending && !wait(socket)? {
            return Ok(());
        }
        match self.fill(socket, RecvFlags::empty())? {
            true => Ok(()),
            false => bail!("no answer for {SILENCE} s"),
        }
    }

    /// Receives the bytes that have arrived, but does not wait for any.
    pub fn receive_now(&mut self, socket: &TcpStream) -> Result<()> {
        self.fill(socket, RecvFlags::DONTWAIT).map(|_| ())
    }

    /// Receives bytes into the free space of the buffer. Returns true if there were any.
    fn fill(&mut self, socket: &TcpStream, flags: RecvFlags) -> Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match rustix::net::recv(socket, &mut self.buffer[self.end..], flags) {
                Ok((0, _)) => bail!("the connection was closed"),
                Ok((count, _)) => {
                    self.end += count;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Waits until the socket can be read or written. Returns true if it can be read.
fn wait(socket: &TcpStream) -> Result<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
    let limit = Timespec { tv_sec: SILENCE, tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)))?;
    ensure!(ready > 0, "no answer for {SILENCE} s");
    Ok(polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn pieces_arrive_in_order_even_when_the_socket_is_full() {
        let (near, mut far) = pair();
        let payloads = [vec![1_u8; 3 << 20], vec![2_u8; 3 << 20]];
        let mut output = ClientSendQueue::default();
        output.header(b"ab");
        output.header(b"cd");
        output.payload(0, 0, 3 << 20);
        output.header(b"ef");
        output.payload(1, 1, (3 << 20) - 1);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; (6 << 20) + 5];
            far.read_exact(&mut all).unwrap();
            all
        });
        while !output.is_empty() {
            output.send(&near, &payloads).unwrap();
        }
        let all = reader.join().unwrap();
        assert_eq!(all[..5], *b"abcd\x01");
        assert_eq!(all[4 + (3 << 20)..][..3], *b"ef\x02");
    }

    #[test]
    fn remaining_bytes_move_to_the_front() {
        let (near, mut far) = pair();
        far.write_all(b"abcdef").unwrap();
        let mut input = ClientReceiveBuffer::new(8);
        input.receive(&near, false).unwrap();
        input.consume(4);
        far.write_all(b"ghij").unwrap();
        input.receive(&near, true).unwrap();
        assert!(input.bytes().starts_with(b"efg"));
    }
}

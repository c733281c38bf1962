//! A capture of one TCP connection with iSCSI PDUs, as bytes of a pcap file.

use iscsi::Pdu;
use iscsi::codec::{Digests, PduOutput};

pub const TARGET_PORT: u16 = 3260;
const INITIATOR_PORT: u16 = 49_152;

const ETHERNET: u32 = 1;
const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Bytes of a segment: its length and that of the headers fit into 16 bits.
const MOST_PAYLOAD: usize = 60_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sender {
    Initiator = 0,
    Target = 1,
}

impl Sender {
    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Initiator => INITIATOR_PORT,
            Self::Target => TARGET_PORT,
        }
    }

    const fn address(self) -> [u8; 4] {
        [192, 0, 2, 1 + self as u8]
    }
}

/// A capture file in memory. Each PDU is a frame of its own.
pub struct Capture {
    bytes: Vec<u8>,
    frames: usize,
    /// The next TCP sequence number of initiator and target.
    next: [u32; 2],
}

impl Capture {
    /// Begins a capture with the handshake of a TCP connection.
    pub fn new() -> Self {
        let mut bytes = Vec::new();
        let (magic, snap_length) = (0xa1b2_c3d4u32, 0x4_0000u32);
        bytes.extend(magic.to_be_bytes());
        bytes.extend([0, 2, 0, 4]);
        bytes.extend([0; 8]);
        bytes.extend(snap_length.to_be_bytes());
        bytes.extend(ETHERNET.to_be_bytes());
        let mut capture = Self { bytes, frames: 0, next: [1000, 2000] };
        capture.segment(Sender::Initiator, SYN, &[]);
        capture.segment(Sender::Target, SYN | ACK, &[]);
        capture.segment(Sender::Initiator, ACK, &[]);
        capture
    }

    /// Adds a PDU to the capture. Returns the number of its frame, by which tshark names it.
    pub fn send(&mut self, from: Sender, pdu: Pdu) -> usize {
        let mut output = PduOutput::default();
        output.push(pdu, Digests::default());
        let bytes: Vec<u8> = output.pieces().flatten().copied().collect();
        self.send_bytes(from, &bytes)
    }

    /// Adds bytes of a connection. Returns the number of the last frame with some of them.
    pub fn send_bytes(&mut self, from: Sender, bytes: &[u8]) -> usize {
        bytes.chunks(MOST_PAYLOAD).for_each(|part| self.segment(from, PSH | ACK, part));
        self.frames
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn segment(&mut self, from: Sender, flags: u8, payload: &[u8]) {
        let to = from.other();
        let acknowledged = if flags & ACK == 0 { 0 } else { self.next[to as usize] };
        let mut tcp = Vec::new();
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend(self.next[from as usize].to_be_bytes());
        tcp.extend(acknowledged.to_be_bytes());
        tcp.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let length = tcp.len() as u16;
        let pseudo = [&from.address()[..], &to.address(), &[0, TCP], &length.to_be_bytes()];
        let sum = checksum(&[pseudo.concat(), tcp.clone()].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());

        let mut ip = vec![0x45, 0];
        ip.extend((20 + length).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]);
        ip.extend(from.address());
        ip.extend(to.address());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());

        let ethernet = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], &IPV4].concat();
        let frame = [ethernet, ip, tcp].concat();
        self.bytes.extend((self.frames as u32).to_be_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend((frame.len() as u32).to_be_bytes());
        self.bytes.extend((frame.len() as u32).to_be_bytes());
        self.bytes.extend(frame);
        self.frames += 1;
        let taken = payload.len() as u32 + u32::from(flags & SYN != 0);
        self.next[from as usize] += taken;
    }
}

/// Returns the checksum of IP and TCP (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

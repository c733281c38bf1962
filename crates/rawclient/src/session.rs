//! A session under load. Each command in flight has a slot. The workload provides commands for free
//! slots, and all responses that have arrived are handled together.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::crowd::CrowdConnection;
use crate::login::{ClientLogin, LoadClientConnection, word};
use crate::request::ClientScsiCommand;
use crate::wire::{ClientReceiveBuffer, ClientSendQueue};

/// Chooses the commands that a session sends, and receives their responses.
pub trait ClientWorkload {
    /// Returns the next command for a free slot, and writes the data of the command to `payload`.
    fn next(&mut self, now: Instant, payload: &mut [u8]) -> ClientSlotAction;

    /// Receives the result of a command.
    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>);
}

/// The decision of a workload about a free slot.
pub enum ClientSlotAction {
    /// Send this command. The workload receives the number again, with the response.
    Send(ClientScsiCommand, u64),
    /// Send no command for now, and ask the workload again after the next response.
    Wait,
    /// Return from [`ClientSession::run`] without waiting for the commands in flight.
    Stop,
}

#[derive(Debug)]
pub struct ClientResponse<'a> {
    /// The number that the workload gave to the command.
    pub number: u64,
    pub sent: Instant,
    pub status: u8,
    /// The sense key, ASC and ASCQ; zeroes if the response has no sense data.
    pub sense: [u8; 3],
    /// The data of a read. Empty unless [`ClientSessionOptions::keep`] is set.
    pub data: &'a [u8],
}

/// The number and size of the slots of a session.
#[derive(Clone, Copy, Debug)]
pub struct ClientSessionOptions {
    /// The maximum number of commands in flight.
    pub depth: usize,
    /// The data length in bytes of the largest command.
    pub bytes: usize,
    /// If true, each slot has its own payload, and the data of reads is kept. If false, all slots
    /// share one payload.
    pub keep: bool,
}

struct Slot {
    request: ClientScsiCommand,
    number: u64,
    sent: Instant,
}

/// The part of a PDU that is received next.
enum Reading {
    Header,
    /// A part of a data segment: `left` bytes of data are missing, then `trailer` bytes of padding and digest. The next
    /// byte has the offset `at` in the data of the command.
    Data {
        bhs: [u8; 48],
        left: usize,
        trailer: usize,
        at: usize,
    },
}

/// A session with one connection that has logged in, and with slots for its commands in flight.
pub struct ClientSession {
    connection: LoadClientConnection,
    lun: u8,
    shape: ClientSessionOptions,
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    payloads: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    sense: Vec<u8>,
    output: ClientSendQueue,
    input: ClientReceiveBuffer,
    reading: Reading,
    digest: crc_fast::Digest,
}

impl ClientSession {
    /// Logs in and waits until the unit is ready.
    pub fn open(login: &ClientLogin, shape: ClientSessionOptions) -> Result<ClientSession> {
        let mut session = ClientSession::on(login.establish()?, login, shape);
        session.get_ready()?;
        Ok(session)
    }

    /// Adds a connection to this session. The caller must send and receive on both connections, for example with a
    /// crowd.
    pub fn join(&self, login: &ClientLogin, cid: u16) -> Result<ClientSession> {
        Ok(ClientSession::on(login.join(&self.connection, cid)?, login, self.shape))
    }

    fn on(
        connection: LoadClientConnection,
        login: &ClientLogin,
        shape: ClientSessionOptions,
    ) -> ClientSession {
        let payloads = if shape.keep { shape.depth } else { 1 };
        ClientSession {
            connection,
            lun: login.lun,
            shape,
            slots: (0..shape.depth).map(|_| None).collect(),
            free: (0..shape.depth as u16).rev().collect(),
            payloads: vec![vec![0x5a; shape.bytes]; payloads],
            received: vec![Vec::new(); shape.depth],
            sense: Vec::new(),
            output: ClientSendQueue::default(),
            input: ClientReceiveBuffer::new(if shape.bytes > 16384 { 256 << 10 } else { 64 << 10 }),
            reading: Reading::Header,
            digest: new_digest(),
        }
    }

    /// Returns the number of blocks and the block length, from READ CAPACITY(16).
    pub fn capacity(&mut self) -> Result<(u64, u32)> {
        let (status, data) = self.one(ClientScsiCommand::read_capacity())?;
        ensure!(status == 0 && data.len() >= 12, "READ CAPACITY: status {status:#04x}");
        let last = u64::from_be_bytes(data[..8].try_into()?);
        Ok((last + 1, u32::from_be_bytes(data[8..12].try_into()?)))
    }

    /// Sends the commands of a workload until the workload returns [`ClientSlotAction::Stop`].
    pub fn run(&mut self, workload: &mut impl ClientWorkload) -> Result<()> {
        let mut now = Instant::now();
        loop {
            if self.send(workload, now)? {
                return Ok(());
            }
            if self.free.len() == self.shape.depth && self.output.is_empty() {
                bail!("nothing is in flight, but the window is closed or the workload waits");
            }
            self.input.receive(&self.connection.socket, !self.output.is_empty())?;
            now = Instant::now();
            self.take(workload, now)?;
        }
    }

    fn take(&mut self, workload: &mut impl ClientWorkload, now: Instant) -> Result<()> {
        while self.step(workload, now)? {}
        Ok(())
    }

    /// Waits until all commands in flight are answered, without sending more.
    pub fn drain(&mut self, workload: &mut impl ClientWorkload) -> Result<()> {
        self.run(&mut Drain { workload, left: self.shape.depth - self.free.len() })
    }

    /// Sends one command while no other is in flight, and waits for the response. Returns its
    /// status and data.
    pub fn one(&mut self, request: ClientScsiCommand) -> Result<(u8, Vec<u8>)> {
        let keep = std::mem::replace(&mut self.shape.keep, true);
        let mut one = One { request: Some(request), answer: None };
        let outcome = self.run(&mut one);
        self.shape.keep = keep;
        outcome?;
        one.answer.context("no answer")
    }

    fn get_ready(&mut self) -> Result<()> {
        // Repeat the command until it succeeds. In a new session, a command fails once for each pending unit attention.
        // A gateway whose node was down answers NOT READY or BUSY until it has connected to the node again.
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let status = self.one(ClientScsiCommand::test_unit_ready())?.0;
            if status == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the unit is not ready: status {status:#04x}");
            std::thread::sleep(READY_PAUSE);
        }
    }

    /// Fills free slots as far as the workload and the command window allow. Returns true if the
    /// workload returns [`ClientSlotAction::Stop`].
    fn fill(&mut self, workload: &mut impl ClientWorkload, now: Instant) -> Result<bool> {
        while let Some(&slot) = self.free.last() {
            if self.connection.window.is_closed() || self.output.is_full() {
                break;
            }
            let own = if self.payloads.len() > 1 { usize::from(slot) } else { 0 };
            match workload.next(now, &mut self.payloads[own]) {
                ClientSlotAction::Send(request, number) => {
                    self.free.pop();
                    self.slots[usize::from(slot)] = Some(Slot { request, number, sent: now });
                    self.command(slot, &request);
                }
                ClientSlotAction::Wait => break,
                ClientSlotAction::Stop => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Queues a command PDU with its immediate and unsolicited data (RFC 7143, 11.3 and 11.7).
    fn command(&mut self, slot: u16, request: &ClientScsiCommand) {
        let agreed = &self.connection.negotiated;
        let length = request.out as usize;
        let first = length.min(agreed.first_burst);
        let immediate = if agreed.immediate_data { first.min(agreed.send_limit) } else { 0 };
        let unsolicited = if agreed.initial_r2t { immediate } else { first };
        let mut bhs = [0; 48];
        bhs[0] = 0x01;
        let read = if request.expected > 0 { 0x40 } else { 0 };
        let write = if request.out > 0 { 0x20 } else { 0 };
        let last = if unsolicited == immediate { 0x80 } else { 0 };
        bhs[1] = last | read | write | 0x01;
        bhs[9] = self.lun;
        bhs[16..20].copy_from_slice(&self.tag(slot).to_be_bytes());
        bhs[20..24].copy_from_slice(&request.out.max(request.expected).to_be_bytes());
        bhs[24..28].copy_from_slice(&self.connection.window.take().to_be_bytes());
        bhs[32..48].copy_from_slice(&request.cdb);
        self.pdu(bhs, slot, 0, immediate);
        if unsolicited > immediate {
            self.data_out(slot, u32::MAX, immediate, unsolicited - immediate);
        }
    }

    /// Returns the ITT of the command in a slot. The ITT contains the CID, so that the ITTs of all
    /// connections of a session differ.
    fn tag(&self, slot: u16) -> u32 {
        u32::from(self.connection.cid) << 16 | u32::from(slot)
    }

    /// Queues a sequence of Data-Out PDUs with `length` bytes of a slot's payload from `offset` on.
    fn data_out(&mut self, slot: u16, ttt: u32, offset: usize, length: usize) {
        let limit = self.connection.negotiated.send_limit;
        for (data_sn, start) in (offset..offset + length).step_by(limit).enumerate() {
            let end = (start + limit).min(offset + length);
            let mut bhs = [0; 48];
            bhs[0] = 0x05;
            bhs[1] = if end == offset + length { 0x80 } else { 0 };
            bhs[9] = self.lun;
            bhs[16..20].copy_from_slice(&self.tag(slot).to_be_bytes());
            bhs[20..24].copy_from_slice(&ttt.to_be_bytes());
            bhs[36..40].copy_from_slice(&(data_sn as u32).to_be_bytes());
            bhs[40..44].copy_from_slice(&(start as u32).to_be_bytes());
            self.pdu(bhs, slot, start, end - start);
        }
    }

    /// Queues a PDU with its digests, and with a part of the payload of a slot.
    fn pdu(&mut self, mut bhs: [u8; 48], slot: u16, offset: usize, length: usize) {
        bhs[5..8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        bhs[28..32].copy_from_slice(&self.connection.exp_stat_sn.to_be_bytes());
        self.output.header(&bhs);
        if self.connection.negotiated.header_digest {
            self.output.header(&crc32c(&bhs).to_le_bytes());
        }
        if length == 0 {
            return;
        }
        let own = if self.payloads.len() > 1 { slot } else { 0 };
        self.output.payload(own, offset, length);
        let padding = length.next_multiple_of(4) - length;
        self.output.header(&[0; 3][..padding]);
        if self.connection.negotiated.data_digest {
            let mut digest = new_digest();
            digest.update(&self.payloads[usize::from(own)][offset..offset + length]);
            digest.update(&[0; 3][..padding]);
            self.output.header(&(digest.finalize() as u32).to_le_bytes());
        }
    }

    /// Processes the next part of the received bytes. Returns false if more bytes have to arrive first.
    fn step(&mut self, workload: &mut impl ClientWorkload, now: Instant) -> Result<bool> {
        match &self.reading {
            Reading::Header => self.header(workload, now),
            Reading::Data { .. } => self.data(workload, now),
        }
    }

    fn header(&mut self, workload: &mut impl ClientWorkload, now: Instant) -> Result<bool> {
        let agreed = &self.connection.negotiated;
        let size = if agreed.header_digest { 52 } else { 48 };
        let Some(bytes) = self.input.bytes().get(..size) else { return Ok(false) };
        let bhs: [u8; 48] = bytes[..48].try_into().expect("48 bytes");
        if agreed.header_digest {
            ensure!(bytes[48..52] == crc32c(&bhs).to_le_bytes(), "a header digest does not match");
        }
        self.input.consume(size);
        ensure!(bhs[4] == 0, "a response has additional header segments");
        let left = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        if left == 0 {
            self.complete(&bhs, workload, now)?;
            return Ok(true);
        }
        let digest = if agreed.data_digest { 4 } else { 0 };
        let trailer = left.next_multiple_of(4) - left + digest;
        let at = if bhs[0] & 0x3f == 0x25 { word(&bhs, 40) as usize } else { 0 };
        if agreed.data_digest {
            self.digest = new_digest();
        }
        self.sense.clear();
        self.reading = Reading::Data { bhs, left, trailer, at };
        Ok(true)
    }

    /// Handles received bytes of a data segment: keeps sense data, and the data of reads if the
    /// options say so. Checks the digest at the end of the segment.
    fn data(&mut self, workload: &mut impl ClientWorkload, now: Instant) -> Result<bool> {
        let Reading::Data { bhs, mut left, trailer, mut at } = self.reading else {
            unreachable!("called only for a data segment");
        };
        let digests = self.connection.negotiated.data_digest;
        let count = left.min(self.input.bytes().len());
        let bytes = &self.input.bytes()[..count];
        if digests {
            self.digest.update(bytes);
        }
        if bhs[0] & 0x3f != 0x25 {
            self.sense
                .extend_from_slice(&bytes[..count.min(256_usize.saturating_sub(self.sense.len()))]);
        } else if self.shape.keep {
            let slot = usize::from(slot(&bhs));
            let kept =
                self.received.get_mut(slot).context("data arrived for an unknown command")?;
            ensure!(
                at + count <= self.shape.bytes.max(4096),
                "more data arrived than the command reads"
            );
            kept.resize(kept.len().max(at + count), 0);
            kept[at..at + count].copy_from_slice(bytes);
        }
        self.input.consume(count);
        (left, at) = (left - count, at + count);
        self.reading = Reading::Data { bhs, left, trailer, at };
        if left > 0 || self.input.bytes().len() < trailer {
            return Ok(false);
        }
        if digests {
            let (padding, digest) = self.input.bytes()[..trailer].split_at(trailer - 4);
            self.digest.update(padding);
            let expected = (self.digest.clone().finalize() as u32).to_le_bytes();
            ensure!(digest == expected, "a data digest does not match");
        }
        self.input.consume(trailer);
        self.reading = Reading::Header;
        self.complete(&bhs, workload, now)?;
        Ok(true)
    }

    /// Handles a PDU that has arrived completely.
    fn complete(
        &mut self,
        bhs: &[u8; 48],
        workload: &mut impl ClientWorkload,
        now: Instant,
    ) -> Result<()> {
        let operation = bhs[0] & 0x3f;
        self.connection.window.note(word(bhs, 32));
        match operation {
            0x21 => {
                self.connection.exp_stat_sn = word(bhs, 24).wrapping_add(1);
                ensure!(bhs[2] == 0, "response {:#04x}: not completed at target", bhs[2]);
                self.finish(bhs, workload, now)
            }
            // A Data-In with the S bit set also carries the status of its command.
            0x25 if bhs[1] & 1 != 0 => {
                self.connection.exp_stat_sn = word(bhs, 24).wrapping_add(1);
                self.sense.clear();
                self.finish(bhs, workload, now)
            }
            0x25 => Ok(()),
            0x31 => {
                let slot = slot(bhs);
                let (offset, length) = (word(bhs, 40) as usize, word(bhs, 44) as usize);
                ensure!(
                    offset + length <= self.shape.bytes,
                    "an R2T asks for more data than the command writes"
                );
                self.data_out(slot, word(bhs, 20), offset, length);
                Ok(())
            }
            // This is a NOP-In. If its TTT is not 0xffffffff, the target asks for a NOP-Out.
            0x20 => {
                if word(bhs, 20) != u32::MAX {
                    let mut nop = [0; 48];
                    (nop[0], nop[1]) = (0x40, 0x80);
                    nop[8..16].copy_from_slice(&bhs[8..16]);
                    nop[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
                    nop[20..24].copy_from_slice(&bhs[20..24]);
                    nop[24..28].copy_from_slice(&self.connection.window.next().to_be_bytes());
                    self.pdu(nop, 0, 0, 0);
                }
                Ok(())
            }
            _ => bail!("unexpected PDU: operation code {operation:#04x}, reason {:#04x}", bhs[2]),
        }
    }

    fn finish(
        &mut self,
        bhs: &[u8; 48],
        workload: &mut impl ClientWorkload,
        now: Instant,
    ) -> Result<()> {
        let number = usize::from(slot(bhs));
        let slot = self.slots.get_mut(number).and_then(Option::take);
        let slot = slot.context("a response arrived for an unknown command")?;
        self.free.push(number as u16);
        let has_sense = bhs[0] & 0x3f == 0x21 && bhs[3] != 0 && self.sense.len() >= 16;
        // The sense data is in fixed format after two bytes of length: key at 2, ASC at 12, ASCQ at
        // 13 (SPC-4, 4.5.3).
        let sense =
            if has_sense { [self.sense[4] & 0x0f, self.sense[14], self.sense[15]] } else { [0; 3] };
        let mut data = std::mem::take(&mut self.received[number]);
        if self.shape.keep && bhs[3] == 0 {
            ensure!(data.len() == slot.request.expected as usize, "{} bytes read", data.len());
        }
        let Slot { number: named, sent, .. } = slot;
        workload.answered(
            now,
            &ClientResponse { number: named, sent, status: bhs[3], sense, data: &data },
        );
        data.clear();
        self.received[number] = data;
        Ok(())
    }
}

impl<W: ClientWorkload> CrowdConnection<W> for ClientSession {
    fn send(&mut self, workload: &mut W, now: Instant) -> Result<bool> {
        if self.fill(workload, now)? {
            return Ok(true);
        }
        let ClientSession { output, payloads, connection, .. } = self;
        output.send(&connection.socket, payloads)?;
        Ok(false)
    }

    fn receive(&mut self, workload: &mut W, now: Instant) -> Result<()> {
        self.input.receive_now(&self.connection.socket)?;
        self.take(workload, now)
    }

    fn in_flight(&self) -> usize {
        self.shape.depth - self.free.len()
    }

    fn is_sending(&self) -> bool {
        !self.output.is_empty()
    }

    fn socket(&self) -> &TcpStream {
        &self.connection.socket
    }
}

/// Time limit until a unit is ready. The unit of a gateway is ready when the gateway has connected to its node, which
/// it tries every few seconds.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// The pause between two TEST UNIT READY commands.
const READY_PAUSE: Duration = Duration::from_millis(5);

/// A workload that sends no commands and stops when `left` commands have been answered.
struct Drain<'a, W> {
    workload: &'a mut W,
    left: usize,
}

impl<W: ClientWorkload> ClientWorkload for Drain<'_, W> {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        if self.left == 0 { ClientSlotAction::Stop } else { ClientSlotAction::Wait }
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        self.left -= 1;
        self.workload.answered(now, answer);
    }
}

/// A workload that sends one command and keeps its response.
struct One {
    request: Option<ClientScsiCommand>,
    answer: Option<(u8, Vec<u8>)>,
}

impl ClientWorkload for One {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        match (self.request.take(), &self.answer) {
            (Some(request), _) => ClientSlotAction::Send(request, 0),
            (None, None) => ClientSlotAction::Wait,
            (None, Some(_)) => ClientSlotAction::Stop,
        }
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        self.answer = Some((answer.status, answer.data.to_vec()));
    }
}

/// Returns the slot of the command to which a PDU belongs.
fn slot(bhs: &[u8; 48]) -> u16 {
    word(bhs, 16) as u16
}

fn new_digest() -> crc_fast::Digest {
    crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

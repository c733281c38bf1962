//! One connection in full feature phase: statuses, digests, data transfers, output.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use scsi::{Cdb, Lun};
use smallvec::SmallVec;

use crate::{
    Bhs, Cid, Itt, Pdu, Serial, Ttt,
    codec::{self, Digests, Output},
    keys::Parameters,
    login::Established,
    pdu::{AsyncEvent, AsyncMessage, NopIn, Numbers, ReadyToTransfer, Reject, RejectReason},
    transfer::Gather,
};

use super::{
    event::{Event, Outcome},
    exchange::{Exchange, PendingText},
    session::Session,
    task::Tasks,
};

/// One connection of a session after its login.
///
/// ```text
/// loop { handle_frame() for every frame, handle_timeout() when poll_timeout() is due;
///        poll_event() until None; write output(); close when is_closing() and all is written }
/// ```
///
/// An `Err` of a `handle_*` ends the connection: write what is in the output and close.
pub struct Connection {
    pub(super) cid: Cid,
    stat_sn: Serial,
    pub(super) parameters: Parameters,
    output: Output,
    pub(super) events: VecDeque<Event>,
    /// Writes whose data is not complete, by tag.
    pub(super) gathers: Tasks<Transfer>,
    /// Writes that were admitted and wait for their share of `Settings::solicited_bytes`.
    pub(super) waiting: VecDeque<Itt>,
    /// Data asked for and not worked off, in bytes.
    pub(super) solicited: u64,
    next_ttt: u32,
    pub(super) text: Option<Exchange>,
    pub(super) pending_text: Option<PendingText>,
    last_received: Instant,
    /// When our NOP-In went out; `None` if anything came since.
    ping: Option<Instant>,
    pub(super) closing: bool,
    pub(super) counters: Counters,
}

/// A write on its way in.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) gather: Gather,
    pub(super) cdb: Cdb,
    pub(super) attribute: u8,
    pub(super) admission: AdmissionState,
    /// Refused by the driver; to be sent when no more data is on its way.
    pub(super) refusal: Option<Outcome>,
}

/// Whether the data of a write may be asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AdmissionState {
    /// Nothing has to be asked for, or the driver has not answered.
    Pending,
    /// Waits for its share of `Settings::solicited_bytes`.
    Waiting,
    Granted,
}

/// Why a connection must be dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The byte stream makes no sense.
    #[error(transparent)]
    Codec(#[from] codec::Error),
    /// A header field holds what it must not hold (RFC 7143, 7.7).
    #[error("format error: {0}")]
    Format(&'static str),
    /// A PDU that may not come now.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The data digest of a PDU that cannot be done without.
    #[error("data digest error in a PDU that takes part in command order")]
    DataDigest,
    /// No answer to our NOP-In, and nothing else either.
    #[error("the initiator is silent")]
    Silent,
    /// The login took too long.
    #[error("the login took too long")]
    LoginTimeout,
}

/// What a connection has seen so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// SCSI commands received.
    pub commands: u64,
    /// Bytes of Data-Out given to units.
    pub data_out_bytes: u64,
    /// Bytes of Data-In sent.
    pub data_in_bytes: u64,
    /// PDUs rejected.
    pub rejects: u64,
    /// Header or data digests that did not fit.
    pub digest_errors: u64,
    /// PDUs ignored as the standard asks: outside of the window, data for tasks that are gone.
    pub ignored: u64,
}

impl Connection {
    pub(super) fn new(login: &Established, stat_sn: Serial, output: Output, now: Instant) -> Self {
        Self {
            cid: login.cid,
            stat_sn,
            parameters: login.parameters.clone(),
            output,
            events: VecDeque::new(),
            gathers: Tasks::default(),
            waiting: VecDeque::new(),
            solicited: 0,
            next_ttt: 1,
            text: None,
            pending_text: None,
            last_received: now,
            ping: None,
            closing: false,
            counters: Counters::default(),
        }
    }

    /// The initiator's number for this connection.
    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// Digests in use.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.parameters.digests
    }

    /// The longest data segment that the initiator may send us, in bytes.
    #[must_use]
    pub fn max_recv_data_segment_length(&self) -> u32 {
        self.parameters.max_recv_data_segment_length
    }

    /// What is to be sent.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// What is to be sent, for the driver to take from.
    pub fn output_mut(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Logged out: close when all output is written.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When `handle_timeout` is to be called; changes with every frame.
    #[must_use]
    pub fn poll_timeout(&self, session: &Session) -> Instant {
        match self.ping {
            Some(sent) => sent + session.settings.dead_after,
            None => self.last_received + session.settings.ping_after,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, session: &Session, now: Instant) -> Result<(), Error> {
        if now < self.poll_timeout(session) {
            return Ok(());
        }
        if self.ping.is_some() {
            return Err(Error::Silent);
        }
        let ttt = self.new_ttt();
        self.ping = Some(now);
        self.send_nop(session, ttt);
        Ok(())
    }

    /// Tells how far the command window is open; no answer is wanted.
    pub(super) fn tell_window(&mut self, session: &Session) {
        self.send_nop(session, Ttt::NONE);
    }

    fn send_nop(&mut self, session: &Session, ttt: Ttt) {
        self.send(Pdu::NopIn(NopIn {
            lun: Lun(0),
            itt: Itt::NONE,
            ttt,
            numbers: session.numbers(self.stat_sn),
            data: Bytes::new(),
        }));
    }

    /// Something came, whatever it is: the initiator is alive.
    pub(super) fn note_received(&mut self, now: Instant) {
        self.counters.pdus_in += 1;
        self.last_received = now;
        self.ping = None;
    }

    /// Asks the initiator to log out within `seconds` (RFC 7143, 11.9.1).
    pub fn ask_for_logout(&mut self, session: &Session, seconds: u16) {
        let numbers = self.next_numbers(session);
        let message = AsyncMessage {
            lun: Lun(0),
            event: AsyncEvent::LogoutRequested { time: seconds },
            numbers,
            data: Bytes::new(),
        };
        self.send(Pdu::Async(message));
    }

    /// Numbers for a PDU that carries a status; the StatSN is used up.
    pub(super) fn next_numbers(&mut self, session: &Session) -> Numbers {
        let numbers = session.numbers(self.stat_sn);
        self.stat_sn = self.stat_sn.next();
        numbers
    }

    /// Numbers for a PDU without a status.
    pub(super) fn numbers(&self, session: &Session) -> Numbers {
        session.numbers(self.stat_sn)
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.counters.pdus_out += 1;
        self.output.push(pdu, self.parameters.digests);
    }

    pub(super) fn reject(&mut self, session: &Session, reason: RejectReason, bhs: &Bhs) {
        self.counters.rejects += 1;
        let numbers = self.next_numbers(session);
        let header = Bytes::copy_from_slice(bhs);
        self.send(Pdu::Reject(Reject { reason, numbers, data_sn: 0, header }));
    }

    pub(super) fn new_ttt(&mut self) -> Ttt {
        new_ttt(&mut self.next_ttt)
    }

    /// Asks for the bursts of `itt` that may be open now.
    pub(super) fn solicit(&mut self, session: &mut Session, itt: Itt) {
        let Some(transfer) = self.gathers.get_mut(&itt) else { return };
        let Some(task) = session.tasks.get_mut(&itt) else { return };
        let lun = task.lun;
        let mut bursts = SmallVec::<[_; 4]>::new();
        while let Some(burst) = transfer.gather.next_burst(
            session.parameters.max_outstanding_r2t,
            session.parameters.max_burst_length,
            || new_ttt(&mut self.next_ttt),
        ) {
            bursts.push(burst);
        }
        task.r2t_sn = transfer.gather.r2t_sn();
        for burst in bursts {
            let numbers = self.numbers(session);
            self.send(Pdu::ReadyToTransfer(ReadyToTransfer {
                lun,
                itt,
                ttt: burst.ttt,
                numbers,
                r2t_sn: burst.r2t_sn,
                buffer_offset: burst.offset,
                desired_data_transfer_length: burst.length,
            }));
        }
    }
}

/// Tags count up; only NONE is left out.
fn new_ttt(next: &mut u32) -> Ttt {
    let ttt = Ttt(*next);
    *next = next.wrapping_add(1);
    if Ttt(*next) == Ttt::NONE {
        *next = 0;
    }
    ttt
}

//! A connection in full feature phase at the target: its statuses, digests and output.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use scsi::Lun;

use crate::{
    Bhs, Cid, Itt, Pdu, PduSizes, Serial, Ttt,
    codec::{self, Digests, PduOutput},
    keys::{Compression, Parameters},
    login::EstablishedLogin,
    pdu::{DataIn, DataInStatus, NopIn, Numbers, Reject, RejectReason, ScsiResponse},
};

use super::{
    exchange::{Exchange, PendingText},
    response::{CommandResponse, DataInPart, Pieces},
    retained::{Retained, SentStatus},
    settings::Settings,
    task::Instance,
};

/// One connection of a [`Session`](super::Session) after its login. This type owns its statuses and
/// its output; the session processes its input.
#[derive(Debug)]
pub struct Connection {
    cid: Cid,
    pub(super) instance: Instance,
    pub(super) stat_sn: Serial,
    /// The initiator has acknowledged all responses with a StatSN below this one.
    pub(super) acknowledged: Serial,
    /// Statuses and data that were sent and are not acknowledged. Kept only from error recovery
    /// level 1 on, to be sent again.
    pub(super) retained: Retained,
    /// The most data in bytes that `retained` keeps; `None` at error recovery level 0, where
    /// nothing is kept.
    keeps: Option<usize>,
    pub(super) parameters: Parameters,
    output: PduOutput,
    /// Length in bytes of the last login response, which is at the start of `output`.
    login_bytes: usize,
    pub(super) writes: ConnectionWrites,
    pub(super) text: Option<Exchange>,
    pub(super) pending_text: Option<PendingText>,
    pub(super) liveness: ConnectionLiveness,
    pub(super) closing: bool,
    pub(super) counters: TargetPduCounters,
}

/// The writes of a connection whose data is requested by R2Ts.
#[derive(Debug, Default)]
pub(super) struct ConnectionWrites {
    /// Admitted writes that may not request their data yet, because it would exceed the
    /// connection's share or the memory. Each is in the queue once, is in
    /// `SessionWrites::incoming`, and has the state `AdmissionState::Waiting`.
    pub(super) waiting: VecDeque<Itt>,
    /// Since when there is not enough memory for the data of the first write in `waiting`.
    pub(super) lacks_room_since: Option<Instant>,
    /// Bytes of write data that R2Ts on this connection have requested, or may request at present.
    pub(super) solicited: u64,
}

impl ConnectionWrites {
    /// Returns true if a write of `wanted` bytes must wait for other writes, because their data and
    /// its own would together exceed `share`. A write that is alone never waits.
    pub(super) fn exceeds(&self, wanted: u64, share: u64) -> bool {
        self.solicited > 0 && self.solicited + wanted > share
    }
}

/// The last activity of the initiator on one connection, and the ping that it has not answered.
#[derive(Debug)]
pub(super) struct ConnectionLiveness {
    /// When a PDU was last received.
    last_received: Instant,
    /// When our NOP-In was sent; `None` if a PDU of the initiator has arrived since.
    pub(super) ping: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetSessionError {
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
    /// A header field has an invalid value, which ends the session (RFC 7143, 7.7).
    #[error("format error: {0}")]
    Format(&'static str),
    /// The initiator has sent a PDU that is not allowed in the state of the session.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The data digest of a PDU with a CmdSN is wrong at error recovery level 0, where initiators
    /// do not send it again.
    #[error("data digest error in a PDU that takes part in command order")]
    DataDigest,
    /// The initiator has answered neither the target's ping (NOP-In) nor sent any other PDU in time.
    #[error("no PDU from the initiator since a NOP-In")]
    Silent,
    /// The initiator does not acknowledge statuses.
    #[error("the initiator does not acknowledge statuses")]
    Unacknowledged,
    /// The session holds memory for writes that make no progress: their data, or earlier commands,
    /// do not arrive.
    #[error("waiting writes hold {0} bytes and make no progress")]
    Stalled(usize),
    /// The session holds memory for writes whose data arrives too slowly, while other sessions lack
    /// memory.
    #[error("waiting writes hold {0} bytes for too long while other sessions lack memory")]
    Slow(usize),
    #[error("the login took too long")]
    LoginTimeout,
}

impl TargetSessionError {
    /// Returns true if all connections of the session must be closed. A format error shows that the
    /// two ends do not understand each other (RFC 7143, 7.7).
    #[must_use]
    pub fn ends_session(&self) -> bool {
        match self {
            Self::Codec(error) => *error != codec::CodecError::HeaderDigest,
            Self::Format(_) | Self::Protocol(_) | Self::Stalled(_) | Self::Slow(_) => true,
            Self::DataDigest | Self::Silent | Self::Unacknowledged | Self::LoginTimeout => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TargetPduCounters {
    pub pdus_in: u64,
    pub pdus_out: u64,
    pub sizes_in: PduSizes,
    pub sizes_out: PduSizes,
    pub commands: u64,
    /// Bytes of Data-Out that were passed to units.
    pub data_out_bytes: u64,
    pub data_in_bytes: u64,
    pub rejects: u64,
    pub digest_errors: u64,
    /// PDUs that were ignored as the standard requires: commands outside of the window, data for
    /// tasks that have ended.
    pub ignored: u64,
}

impl std::ops::AddAssign for TargetPduCounters {
    fn add_assign(&mut self, other: Self) {
        self.pdus_in += other.pdus_in;
        self.pdus_out += other.pdus_out;
        self.sizes_in += other.sizes_in;
        self.sizes_out += other.sizes_out;
        self.commands += other.commands;
        self.data_out_bytes += other.data_out_bytes;
        self.data_in_bytes += other.data_in_bytes;
        self.rejects += other.rejects;
        self.digest_errors += other.digest_errors;
        self.ignored += other.ignored;
    }
}

impl Connection {
    pub(super) fn new(
        login: &EstablishedLogin,
        parameters: Parameters,
        settings: &Settings,
        instance: Instance,
        stat_sn: Serial,
        output: PduOutput,
        now: Instant,
    ) -> Self {
        Self {
            cid: login.cid,
            instance,
            stat_sn,
            acknowledged: stat_sn,
            retained: Retained::new(stat_sn),
            keeps: (parameters.error_recovery_level > 0).then_some(settings.retained_bytes),
            parameters,
            login_bytes: output.len(),
            output,
            writes: ConnectionWrites::default(),
            text: None,
            pending_text: None,
            liveness: ConnectionLiveness { last_received: now, ping: None },
            closing: false,
            counters: TargetPduCounters::default(),
        }
    }

    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    #[must_use]
    pub fn digests(&self) -> Digests {
        self.parameters.digests
    }

    /// Returns the compression of this connection since its login, which is used in both directions.
    #[must_use]
    pub fn compression(&self) -> Option<Compression> {
        self.parameters.compression
    }

    /// Returns the length in bytes of the login response at the start of the output, as long as
    /// nothing was written. These bytes must be sent without compression.
    #[must_use]
    pub fn login_bytes(&self) -> usize {
        self.login_bytes
    }

    /// Returns the longest data segment that the initiator may send, in bytes.
    #[must_use]
    pub fn max_recv_data_segment_length(&self) -> u32 {
        self.parameters.max_recv_data_segment_length
    }

    /// Returns the PDUs that are still to be sent on this connection.
    #[must_use]
    pub fn output(&self) -> &PduOutput {
        &self.output
    }

    /// Returns the output, from which the driver removes the bytes that it has written to the socket.
    pub fn output_mut(&mut self) -> &mut PduOutput {
        &mut self.output
    }

    /// Returns true once the connection is logged out. The driver closes the connection when all
    /// output is written.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    #[must_use]
    pub fn counters(&self) -> TargetPduCounters {
        self.counters
    }

    /// Closes this connection, because another one has logged it out or replaced it. Drops its output.
    pub(super) fn close_at_once(&mut self) {
        self.closing = true;
        self.output = PduOutput::default();
    }

    /// Returns when the session must send a NOP-In on this connection or consider its initiator
    /// dead.
    pub(super) fn poll_timeout(&self, settings: &Settings) -> Instant {
        let ConnectionLiveness { last_received, ping } = self.liveness;
        match ping {
            Some(sent) => sent + settings.dead_after,
            None if self.retained.len() > 0 => {
                last_received + settings.acknowledge_after.min(settings.ping_after)
            }
            None => last_received + settings.ping_after,
        }
    }

    /// Records a received PDU of `length` bytes, which shows that the initiator is alive.
    pub(super) fn note_received(&mut self, length: usize, now: Instant) {
        self.counters.pdus_in += 1;
        self.counters.sizes_in.count(length);
        self.excuse_silence(now);
    }

    /// Restarts the measurement of the initiator's silence, because the target could not receive
    /// anything until now.
    pub(super) fn excuse_silence(&mut self, now: Instant) {
        self.liveness = ConnectionLiveness { last_received: now, ping: None };
    }

    /// Records that the initiator has acknowledged all statuses before `exp_stat_sn`. Returns false
    /// if it has done so before, or if `exp_stat_sn` is beyond the statuses sent.
    pub(super) fn note_acknowledged(&mut self, exp_stat_sn: Serial) -> bool {
        let is_new = self.acknowledged.is_before(exp_stat_sn);
        if !is_new || self.stat_sn.is_before(exp_stat_sn) {
            return false;
        }
        self.acknowledged = exp_stat_sn;
        self.retained.acknowledge(exp_stat_sn);
        true
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.counters.pdus_out += 1;
        let length = self.output.push(pdu, self.parameters.digests);
        self.counters.sizes_out.count(length);
    }

    /// Sends a NOP-In. A valid `ttt` requests an answer.
    pub(super) fn send_nop(&mut self, window: Numbers, ttt: Ttt) {
        let numbers = Numbers { stat_sn: self.stat_sn, ..window };
        let (lun, itt) = (Lun(0), Itt::NONE);
        self.send(Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data: Bytes::new() }));
    }

    /// Sends a PDU that consumes a StatSN, and keeps it from error recovery level 1 on.
    pub(super) fn send_status(&mut self, window: Numbers, make: impl FnOnce(Numbers) -> Pdu) {
        let pdu = make(Numbers { stat_sn: self.stat_sn, ..window });
        self.stat_sn = self.stat_sn.next();
        if let Some(limit) = self.keeps {
            self.retained.push(SentStatus::Other(Box::new(pdu.clone())), limit);
        }
        self.send(pdu);
    }

    pub(super) fn reject(
        &mut self,
        window: Numbers,
        reason: RejectReason,
        bhs: &Bhs,
        data_sn: u32,
    ) {
        self.counters.rejects += 1;
        let header = Bytes::copy_from_slice(bhs);
        self.send_status(window, |numbers| {
            Pdu::Reject(Reject { reason, numbers, data_sn, header })
        });
    }

    /// Sends the Data-In and the status of a command, and keeps them from error recovery level 1
    /// on.
    pub(super) fn answer(&mut self, window: Numbers, mut response: CommandResponse) {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        let numbers = Numbers { stat_sn, ..window };
        let acknowledges = self.keeps.is_some();
        let data =
            if acknowledges { response.data.clone() } else { std::mem::take(&mut response.data) };
        self.send_data(numbers, &response, data.into_iter(), acknowledges, |_| true);
        if !response.collapses {
            self.send_response(numbers, &response);
        }
        if let Some(limit) = self.keeps {
            self.retained.push(SentStatus::Response(response), limit);
        }
    }

    /// Divides `data` into PDUs and sends those for which `is_wanted` returns true. The last PDU
    /// also carries the status, unless the status has a PDU of its own.
    pub(super) fn send_data(
        &mut self,
        numbers: Numbers,
        response: &CommandResponse,
        data: impl Iterator<Item = Bytes>,
        acknowledges: bool,
        is_wanted: impl Fn(DataInPart) -> bool,
    ) {
        if response.layout.offset >= response.length {
            return; // all data was acknowledged
        }
        let mut pieces = Pieces::new(data);
        pieces.take(response.layout.offset as usize);
        for part in response.layout.parts(response.length) {
            let data = pieces.take((part.end - part.offset) as usize);
            if !is_wanted(part) {
                continue;
            }
            self.counters.data_in_bytes += u64::from(part.end - part.offset);
            let is_last = part.end == response.length;
            // Request an acknowledgment only at the end of a burst (RFC 7143, 11.7.2), and not for
            // the last burst, since the acknowledgment of the status covers it.
            let acknowledge = acknowledges && part.ends_burst && !is_last;
            let status = (is_last && response.collapses)
                .then_some(DataInStatus { status: response.status, residual: response.residual });
            self.send(Pdu::DataIn(DataIn {
                is_final: part.ends_burst,
                acknowledge,
                status,
                lun: if acknowledge { response.lun } else { Lun(0) },
                itt: response.itt,
                ttt: if acknowledge { response.ttt } else { Ttt::NONE },
                numbers,
                data_sn: part.data_sn,
                buffer_offset: part.offset,
                data,
            }));
        }
    }

    pub(super) fn send_response(&mut self, numbers: Numbers, response: &CommandResponse) {
        self.send(Pdu::ScsiResponse(ScsiResponse {
            itt: response.itt,
            response: 0,
            status: response.status,
            snack_tag: response.snack_tag,
            numbers,
            exp_data_sn: response.exp_data_sn(),
            residual: response.residual,
            bidirectional_read_residual: response.bidirectional_read_residual,
            sense: response.sense.clone(),
        }));
    }
}

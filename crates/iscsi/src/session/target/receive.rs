//! Received frames: parses them, checks them against the state of the session, and processes them
//! in order.

use std::time::Instant;

use crate::{
    Bhs, Cid, Itt, Pdu, Serial,
    codec::{CodecError, PduFrame},
    pdu::{NopIn, NopOut, ParseError, RejectReason},
    transfer::unshared,
    window::CommandTurn,
};

use super::{connection::TargetSessionError, order::Early, session::Session, waiting::Stall};

impl Session {
    /// Processes a PDU that the target has received on connection `cid`.
    pub fn handle_frame(
        &mut self,
        cid: Cid,
        frame: PduFrame,
        now: Instant,
    ) -> Result<(), TargetSessionError> {
        let Some(at) = self.index(cid) else { return Ok(()) };
        self.now = now;
        let connection = &mut self.connections[at];
        connection.note_received(frame.length(), now);
        if connection.closing {
            connection.counters.ignored += 1;
            return Ok(());
        }
        let PduFrame { bhs, ahs, data, is_shared, data_digest_error } = frame;
        self.writes.is_shared = is_shared;
        if bhs[0] & FROM_TARGET != 0 {
            // Only targets send PDUs with this opcode, so reject the PDU.
            self.reject(at, RejectReason::CommandNotSupported, &bhs);
            return Ok(());
        }
        let pdu = match Pdu::parse(&bhs, &ahs, data) {
            Ok(pdu) => pdu,
            Err(ParseError::Opcode(_)) => {
                self.reject(at, RejectReason::CommandNotSupported, &bhs);
                return Ok(());
            }
            Err(ParseError::Field(field)) => {
                self.reject(at, RejectReason::InvalidPduField, &bhs);
                return Err(TargetSessionError::Format(field));
            }
        };
        if data_digest_error {
            return self.handle_digest_error(at, pdu, &bhs);
        }
        self.note_acknowledged(at, exp_stat_sn(&bhs));
        if self.identity.discovery && !is_for_discovery(&pdu) {
            self.reject(at, RejectReason::ProtocolError, &bhs);
            return Err(TargetSessionError::Protocol(
                "a command, a task management function or data in a discovery session",
            ));
        }
        match pdu {
            Pdu::DataOut(data_out) => self.handle_data_out(at, data_out, false, &bhs),
            Pdu::Snack(snack) => self.handle_snack(at, &snack, &bhs),
            // Do nothing: this answers a ping of ours, and `note_received` has already recorded
            // that the initiator is alive.
            Pdu::NopOut(nop) if nop.itt == Itt::NONE => {}
            Pdu::LoginRequest(_) => {
                self.reject(at, RejectReason::ProtocolError, &bhs);
                return Err(TargetSessionError::Protocol("a login request in full feature phase"));
            }
            pdu => self.arrive_in_order(at, pdu, bhs),
        }
        let unacknowledged = self.connections[at].retained.len();
        if unacknowledged > self.settings.unacknowledged_statuses as usize {
            return Err(TargetSessionError::Unacknowledged);
        }
        Ok(())
    }

    /// Processes a PDU with a CmdSN if it is the next in order. Keeps a PDU that is too early until
    /// its turn, and ignores a repeated one.
    fn arrive_in_order(&mut self, at: usize, pdu: Pdu, bhs: Bhs) {
        let (immediate, cmd_sn) =
            order_of(&pdu).expect("all other PDUs of an initiator take part in order");
        if immediate {
            self.take_turn(at, pdu, &bhs);
        } else {
            match self.order.window.arrive(cmd_sn) {
                CommandTurn::Now => self.take_turn(at, pdu, &bhs),
                CommandTurn::Later => self.hold(at, cmd_sn, pdu, bhs),
                CommandTurn::Never => self.connections[at].counters.ignored += 1,
            }
        }
        self.take_held();
    }

    /// Processes an error of the decoder of this connection: counts digest errors. The driver must
    /// close the connection.
    pub fn handle_codec_error(&mut self, cid: Cid, error: CodecError) -> TargetSessionError {
        if error == CodecError::HeaderDigest
            && let Some(at) = self.index(cid)
        {
            self.connections[at].counters.digest_errors += 1;
        }
        TargetSessionError::Codec(error)
    }

    /// Keeps a PDU that arrived before its turn. If there is no memory for its data, a command is
    /// kept without the data, and any other PDU is dropped as if it were lost.
    fn hold(&mut self, at: usize, cmd_sn: Serial, mut pdu: Pdu, bhs: Bhs) {
        let allegiance = self.connections[at].instance;
        let mut charge = self.writes.memory.charge();
        let mut is_shed = false;
        if let Some(data) = data_of(&mut pdu).filter(|data| !data.is_empty()) {
            if self.writes.memory.has_room(data.len()) {
                charge.add(data.len());
                *data = unshared(std::mem::take(data), self.writes.is_shared);
            } else {
                // Assign an empty `Bytes`, which frees the memory; `Bytes::clear` would not.
                *data = bytes::Bytes::new();
                is_shed = true;
            }
        }
        if is_shed && !matches!(pdu, Pdu::ScsiCommand(_)) {
            self.connections[at].counters.ignored += 1;
            return;
        }
        self.order.hole.get_or_insert((self.order.window.exp_cmd_sn(), Stall::new(self.now)));
        self.watch_progress();
        let early = Early {
            pdu,
            bhs,
            allegiance,
            data: Vec::new(),
            data_bytes: 0,
            begun: self.now,
            charge,
            is_shed,
            has_ended: false,
        };
        self.order.window.hold(cmd_sn, early);
    }

    /// Processes the held PDUs whose turn has come, each on the connection on which it arrived.
    /// Then checks the task management functions that waited for them.
    fn take_held(&mut self) {
        while let Some(early) = self.order.window.poll() {
            let Early { pdu, bhs, allegiance, data, charge, is_shed, has_ended, .. } = early;
            self.writes.is_shared = false;
            // If the connection has ended since, discard the PDU.
            let Some(at) = self.position(allegiance) else { continue };
            drop(charge);
            match pdu {
                Pdu::ScsiCommand(command) if is_shed => {
                    self.refuse_command(at, command, has_ended, &bhs);
                }
                pdu => self.take_turn(at, pdu, &bhs),
            }
            for (data_out, bhs) in data {
                self.handle_data_out(at, data_out, false, &bhs);
            }
        }
        let expected = self.order.window.exp_cmd_sn();
        if self.order.hole.is_some_and(|(missing, _)| missing != expected) {
            self.order.hole =
                self.order.window.held().next().map(|_| (expected, Stall::new(self.now)));
        }
        if !self.functions.postponed.is_empty() {
            self.check_postponed();
        }
    }

    /// Processes an immediate PDU, or one for whose CmdSN the session was waiting.
    fn take_turn(&mut self, at: usize, pdu: Pdu, bhs: &Bhs) {
        match pdu {
            Pdu::ScsiCommand(command) => self.handle_command(at, command, bhs),
            Pdu::TaskRequest(request) => self.handle_task_request(at, &request, bhs),
            Pdu::TextRequest(request) => self.handle_text(at, request, bhs),
            Pdu::NopOut(nop) => self.echo(at, nop),
            Pdu::LogoutRequest(request) => self.handle_logout(at, request),
            _ => unreachable!("order_of() names these five"),
        }
    }

    fn echo(&mut self, at: usize, nop: NopOut) {
        let NopOut { lun, itt, mut data, .. } = nop;
        data.truncate(self.connections[at].parameters.max_send_data_segment_length as usize);
        if self.recovers(1) {
            // Copy the data: the answer keeps it until the initiator acknowledges it, and must not
            // keep the whole receive buffer in memory.
            data = bytes::Bytes::copy_from_slice(&data);
        }
        self.send_status(at, |numbers| {
            Pdu::NopIn(NopIn { lun, itt, ttt: crate::Ttt::NONE, numbers, data })
        });
    }

    /// Rejects a PDU with a data digest error (RFC 7143, 7.8). If it is a Data-Out, its write
    /// requests the data again, or at level 0 fails when all of its data has arrived. Any other PDU
    /// with a CmdSN is missing until the initiator sends it again. At level 0 initiators do not, so
    /// the connection must then be closed.
    fn handle_digest_error(
        &mut self,
        at: usize,
        pdu: Pdu,
        bhs: &Bhs,
    ) -> Result<(), TargetSessionError> {
        self.connections[at].counters.digest_errors += 1;
        self.reject(at, RejectReason::DataDigestError, bhs);
        match pdu {
            Pdu::DataOut(data_out) => self.handle_data_out(at, data_out, true, bhs),
            _ if self.recovers(1) => {}
            pdu if order_of(&pdu).is_some_and(|(immediate, _)| immediate) => {}
            _ => return Err(TargetSessionError::DataDigest),
        }
        Ok(())
    }
}

/// Returns true if a discovery session accepts this PDU. RFC 7143, 4.3 b allows only text and
/// logout requests; we answer pings as well. Unauthenticated initiators may open discovery
/// sessions, and a command that waits for its turn would let them occupy memory of the target.
fn is_for_discovery(pdu: &Pdu) -> bool {
    !matches!(pdu, Pdu::ScsiCommand(_) | Pdu::TaskRequest(_) | Pdu::DataOut(_))
}

/// Returns the data of a PDU that takes part in command order.
fn data_of(pdu: &mut Pdu) -> Option<&mut bytes::Bytes> {
    match pdu {
        Pdu::ScsiCommand(pdu) => Some(&mut pdu.data),
        Pdu::NopOut(pdu) => Some(&mut pdu.data),
        Pdu::TextRequest(pdu) => Some(&mut pdu.text),
        _ => None,
    }
}

/// The bit that is set in the opcodes of all PDUs from targets (RFC 7143, 11.2.1.2).
const FROM_TARGET: u8 = 0x20;

/// Returns ExpStatSN, which is at the same offset in all PDUs of an initiator in full feature
/// phase.
fn exp_stat_sn(bhs: &Bhs) -> Serial {
    Serial(u32::from_be_bytes([bhs[28], bhs[29], bhs[30], bhs[31]]))
}

/// Returns the I bit and the CmdSN of a PDU that takes part in command order.
fn order_of(pdu: &Pdu) -> Option<(bool, Serial)> {
    Some(match pdu {
        Pdu::ScsiCommand(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::NopOut(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::TaskRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::TextRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::LogoutRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        _ => return None,
    })
}

//! From frames to what they ask for: what fits the state, in whose turn.

use std::time::Instant;

use crate::{
    Bhs, Itt, Pdu, Serial,
    codec::{Error as CodecError, Frame},
    pdu::{
        LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NopIn, NopOut, ParseError,
        RejectReason,
    },
    window::Turn,
};

use super::{
    connection::{Connection, Error},
    session::{Early, Session},
};

impl Connection {
    /// A PDU has arrived.
    pub fn handle_frame(
        &mut self,
        session: &mut Session,
        frame: Frame,
        now: Instant,
    ) -> Result<(), Error> {
        self.note_received(now);
        if self.closing {
            self.counters.ignored += 1;
            return Ok(());
        }
        let Frame { bhs, ahs, data, data_digest_error } = frame;
        if bhs[0] & FROM_TARGET != 0 {
            // A mirror, not an initiator.
            self.reject(session, RejectReason::CommandNotSupported, &bhs);
            return Ok(());
        }
        let pdu = match Pdu::parse(&bhs, &ahs, data) {
            Ok(pdu) => pdu,
            Err(ParseError::Opcode(_)) => {
                self.reject(session, RejectReason::CommandNotSupported, &bhs);
                return Ok(());
            }
            Err(ParseError::Field(field)) => {
                self.reject(session, RejectReason::InvalidPduField, &bhs);
                return Err(Error::Format(field));
            }
        };
        if data_digest_error {
            return self.handle_digest_error(session, pdu, &bhs);
        }
        match pdu {
            Pdu::DataOut(data_out) => self.handle_data_out(session, data_out, false, &bhs),
            Pdu::Snack(_) => self.reject(session, RejectReason::SnackReject, &bhs),
            // Our ping is answered; that something came is noted already.
            Pdu::NopOut(nop) if nop.itt == Itt::NONE => {}
            Pdu::LoginRequest(_) => {
                self.reject(session, RejectReason::ProtocolError, &bhs);
                return Err(Error::Protocol("a login request in full feature phase"));
            }
            pdu => {
                let (immediate, cmd_sn) =
                    order_of(&pdu).expect("all other PDUs of an initiator take part in order");
                if immediate {
                    return self.take_turn(session, pdu, &bhs);
                }
                match session.window.arrive(cmd_sn) {
                    Turn::Now => self.take_turn(session, pdu, &bhs)?,
                    Turn::Later => {
                        session.window.hold(cmd_sn, Early { pdu, bhs, allegiance: self.cid });
                    }
                    Turn::Never => self.counters.ignored += 1,
                }
                return self.take_held(session);
            }
        }
        Ok(())
    }

    /// The decoder has given up: counts digest errors. The connection is to be dropped.
    pub fn handle_codec_error(&mut self, error: CodecError) -> Error {
        if error == CodecError::HeaderDigest {
            self.counters.digest_errors += 1;
        }
        Error::Codec(error)
    }

    /// Commands that were held and whose turn has come.
    pub(super) fn take_held(&mut self, session: &mut Session) -> Result<(), Error> {
        while !self.closing
            && let Some(early) = session.window.poll()
        {
            // One connection a session so far: nobody else's command can be held here.
            debug_assert_eq!(early.allegiance, self.cid);
            self.take_turn(session, early.pdu, &early.bhs)?;
        }
        Ok(())
    }

    /// A PDU that takes part in command order, and its turn has come (or it is immediate).
    fn take_turn(&mut self, session: &mut Session, pdu: Pdu, bhs: &Bhs) -> Result<(), Error> {
        match pdu {
            Pdu::ScsiCommand(_) | Pdu::TaskRequest(_) if session.discovery => {
                self.reject(session, RejectReason::ProtocolError, bhs);
            }
            Pdu::ScsiCommand(command) => self.handle_command(session, command, bhs),
            Pdu::TaskRequest(request) => self.handle_task_request(session, &request, bhs)?,
            Pdu::TextRequest(request) => self.handle_text(session, request, bhs),
            Pdu::NopOut(nop) => self.echo(session, nop),
            Pdu::LogoutRequest(request) => self.handle_logout(session, request),
            _ => unreachable!("order_of() names these five"),
        }
        Ok(())
    }

    fn echo(&mut self, session: &Session, nop: NopOut) {
        let mut data = nop.data;
        data.truncate(self.parameters.max_send_data_segment_length as usize);
        let numbers = self.next_numbers(session);
        let itt = nop.itt;
        self.send(Pdu::NopIn(NopIn { lun: nop.lun, itt, ttt: crate::Ttt::NONE, numbers, data }));
    }

    /// RFC 7143, 7.8, at recovery level 0. A Data-Out: reject, and its command fails when all of
    /// its data has come. Anything that takes part in command order would leave a hole that no
    /// one fills at this level: the connection is dropped.
    fn handle_digest_error(
        &mut self,
        session: &mut Session,
        pdu: Pdu,
        bhs: &Bhs,
    ) -> Result<(), Error> {
        self.counters.digest_errors += 1;
        self.reject(session, RejectReason::DataDigestError, bhs);
        match pdu {
            Pdu::DataOut(data_out) => {
                self.handle_data_out(session, data_out, true, bhs);
                Ok(())
            }
            pdu if order_of(&pdu).is_some_and(|(immediate, _)| immediate) => Ok(()),
            _ => Err(Error::DataDigest),
        }
    }

    fn handle_logout(&mut self, session: &mut Session, request: LogoutRequest) {
        let result = match request.reason {
            Ok(LogoutReason::CloseSession) => LogoutResult::Closed,
            Ok(LogoutReason::CloseConnection) if request.cid == self.cid => LogoutResult::Closed,
            Ok(LogoutReason::CloseConnection) => LogoutResult::CidNotFound,
            // Recovery level 2 only.
            Ok(LogoutReason::RemoveConnectionForRecovery) | Err(_) => {
                LogoutResult::RecoveryNotSupported
            }
        };
        if result == LogoutResult::Closed {
            // Tasks in progress end here without an answer (RFC 7143, 11.14).
            self.abort_where(session, |_, _| true);
            self.closing = true;
        }
        let numbers = self.next_numbers(session);
        self.send(Pdu::LogoutResponse(LogoutResponse {
            result,
            itt: request.itt,
            numbers,
            time2wait: session.parameters.default_time2wait,
            // Level 0 keeps no tasks, whatever was negotiated.
            time2retain: 0,
        }));
    }
}

/// This bit of an opcode is set in what targets send (RFC 7143, 11.2.1.2).
const FROM_TARGET: u8 = 0x20;

/// The I bit and CmdSN of what takes part in command order.
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

//! Handles SNACK requests: sends PDUs again that the initiator has lost (RFC 7143, 11.16).

use crate::{
    Bhs, Itt, Pdu, Serial, Ttt,
    pdu::{Numbers, RejectReason, Snack, SnackKind},
};

use super::{retained::SentStatus, session::Session, task::TargetTaskStage};

impl Session {
    pub(super) fn handle_snack(&mut self, at: usize, snack: &Snack, bhs: &Bhs) {
        if !self.recovers(1) {
            return self.reject(at, RejectReason::SnackReject, bhs);
        }
        let result = match snack.kind {
            Ok(SnackKind::DataOrR2t) => self.resend_data_or_r2ts(at, snack),
            Ok(SnackKind::Status) => self.resend_statuses(at, snack),
            Ok(SnackKind::DataAck) => self.acknowledge_data(at, snack),
            Ok(SnackKind::RData) => self.resend_in_other_segments(at, snack),
            Err(_) => Err((RejectReason::InvalidPduField, 0)),
        };
        if let Err((reason, data_sn)) = result {
            let window = self.window_numbers();
            self.connections[at].reject(window, reason, bhs, data_sn);
        }
    }

    fn resend_statuses(&mut self, at: usize, snack: &Snack) -> Result<(), (RejectReason, u32)> {
        let window = self.window_numbers();
        let connection = &mut self.connections[at];
        // Move the statuses out of the connection while sending them: `send` borrows the whole
        // connection.
        let empty = super::retained::Retained::new(connection.stat_sn);
        let retained = std::mem::replace(&mut connection.retained, empty);
        let is_all = snack.begin == 0 && snack.run_length == 0;
        let begin = if is_all { retained.first() } else { Serial(snack.begin) };
        let run = retained.run(begin, snack.run_length);
        let found = run.ok_or((RejectReason::ProtocolError, 0)).and_then(|mut run| {
            run.try_for_each(|(stat_sn, sent)| {
                let numbers = Numbers { stat_sn, ..window };
                match sent {
                    // A status that was sent in a Data-In is sent again in the same Data-In.
                    SentStatus::Response(response)
                        if response.collapses && !response.is_forgotten() =>
                    {
                        let data = response.data.iter().cloned();
                        connection.send_data(numbers, response, data, true, |part| {
                            part.end == response.length
                        });
                    }
                    SentStatus::Response(response) => connection.send_response(numbers, response),
                    SentStatus::Other(pdu) => connection.send(with_window(pdu, window)),
                    SentStatus::Forgotten => return Err((RejectReason::SnackReject, 0)),
                }
                Ok(())
            })
        });
        connection.retained = retained;
        found
    }

    fn resend_data_or_r2ts(&mut self, at: usize, snack: &Snack) -> Result<(), (RejectReason, u32)> {
        let Snack { itt, begin, run_length, .. } = *snack;
        let instance = self.connections[at].instance;
        if let Some(task) = self.tasks.by_tag.get(&itt) {
            if task.allegiance != instance {
                return Err((RejectReason::ProtocolError, 0));
            }
            let Some(transfer) = self.writes.incoming.get(&itt) else {
                // No data is being collected, so no R2T was sent yet, or all R2Ts were answered.
                let is_all = run_length == 0 && begin <= task.r2t_sn;
                return if is_all {
                    Ok(())
                } else {
                    Err((RejectReason::ProtocolError, task.r2t_sn))
                };
            };
            let bursts = transfer.gather.open_bursts(begin, run_length);
            let bursts = bursts.ok_or((RejectReason::ProtocolError, transfer.gather.r2t_sn()))?;
            self.ask_for(at, itt, &bursts);
            return Ok(());
        }
        let window = self.window_numbers();
        let connection = &mut self.connections[at];
        let Some((stat_sn, response)) = connection.retained.response(itt) else {
            return Err((RejectReason::ProtocolError, 0));
        };
        let (first, end) = (response.layout.data_sn, response.layout.end(response.length));
        let is_all = begin == 0 && run_length == 0;
        let begin = if is_all { first } else { begin };
        let last = if run_length == 0 { Some(end) } else { begin.checked_add(run_length) };
        let wanted = match last {
            Some(last) if begin >= first && last <= end && (begin < last || is_all) => begin..last,
            _ => return Err((RejectReason::ProtocolError, end)),
        };
        if response.is_forgotten() {
            return Err((RejectReason::SnackReject, 0));
        }
        let copy = response.reference();
        let numbers = Numbers { stat_sn, ..window };
        let data = copy.data.iter().cloned();
        connection.send_data(numbers, &copy, data, true, |part| wanted.contains(&part.data_sn));
        Ok(())
    }

    fn acknowledge_data(&mut self, at: usize, snack: &Snack) -> Result<(), (RejectReason, u32)> {
        let is_known = snack.itt == Itt::NONE
            && snack.ttt != Ttt::NONE
            && self.connections[at].retained.acknowledge_data(snack.ttt, snack.begin);
        if is_known { Ok(()) } else { Err((RejectReason::InvalidDataAck, 0)) }
    }

    /// Handles an R-Data SNACK: sends all data that is not acknowledged again in PDUs of another
    /// length, because the initiator's MaxRecvDataSegmentLength has changed (RFC 7143, 11.16.3).
    fn resend_in_other_segments(
        &mut self,
        at: usize,
        snack: &Snack,
    ) -> Result<(), (RejectReason, u32)> {
        let Snack { itt, ttt: tag, begin, run_length, .. } = *snack;
        if tag == Ttt::NONE || tag.0 == 0 || begin != 0 || run_length != 0 {
            return Err((RejectReason::InvalidPduField, 0));
        }
        let window = self.window_numbers();
        let connection = &mut self.connections[at];
        if let Some(task) = self.tasks.by_tag.get_mut(&itt) {
            if task.stage == TargetTaskStage::Management || task.allegiance != connection.instance {
                return Err((RejectReason::ProtocolError, 0));
            }
            task.snack_tag = tag.0; // no data was sent yet
            return Ok(());
        }
        let segment = connection.parameters.max_send_data_segment_length;
        let Some((stat_sn, response)) = connection.retained.response(itt) else {
            return Err((RejectReason::ProtocolError, 0));
        };
        if response.is_forgotten() {
            return Err((RejectReason::SnackReject, 0));
        }
        response.resegment(segment);
        (response.collapses, response.snack_tag) = (false, tag.0);
        let copy = response.reference();
        let numbers = Numbers { stat_sn, ..window };
        connection.send_data(numbers, &copy, copy.data.iter().cloned(), true, |_| true);
        connection.send_response(numbers, &copy);
        Ok(())
    }
}

/// Returns a copy of `pdu` with the ExpCmdSN and MaxCmdSN of `window`.
fn with_window(pdu: &Pdu, window: Numbers) -> Pdu {
    let mut pdu = pdu.clone();
    let numbers = match &mut pdu {
        Pdu::NopIn(pdu) => &mut pdu.numbers,
        Pdu::TaskResponse(pdu) => &mut pdu.numbers,
        Pdu::TextResponse(pdu) => &mut pdu.numbers,
        Pdu::LogoutResponse(pdu) => &mut pdu.numbers,
        Pdu::Async(pdu) => &mut pdu.numbers,
        Pdu::Reject(pdu) => &mut pdu.numbers,
        _ => return pdu,
    };
    *numbers = Numbers { stat_sn: numbers.stat_sn, ..window };
    pdu
}

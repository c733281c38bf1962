//! Text exchanges in full feature phase: SendTargets, and the few keys that may change (RFC 7143,
//! 11.10, 11.11, 13).

use bytes::Bytes;

use crate::{
    Bhs, Cid, Itt, Pdu, Ttt, keys,
    pdu::{RejectReason, TextRequest, TextResponse},
};

use super::{
    event::{SendTargets, TargetEvent},
    exchange::{Exchange, PendingText},
    session::Session,
};

/// The most text in bytes that an initiator may send in one exchange. The keys that are valid in
/// full feature phase need only a few hundred bytes.
const TEXT: usize = 8192;

impl Session {
    pub(super) fn handle_text(&mut self, at: usize, request: TextRequest, bhs: &Bhs) {
        let is_new = request.ttt == Ttt::NONE;
        let mut exchange = match self.connections[at].text.take() {
            Some(open) if !is_new && open.ttt == request.ttt && open.itt == request.itt => open,
            _ if is_new && request.itt != Itt::NONE => Exchange {
                itt: request.itt,
                ttt: Ttt::NONE,
                question: Vec::new(),
                answer: Bytes::new(),
            },
            _ => return self.reject(at, RejectReason::InvalidPduField, bhs),
        };
        if request.continues && request.is_final
            || exchange.question.len() + request.text.len() > TEXT
            || !exchange.answer.is_empty() && !request.text.is_empty()
        {
            return self.reject(at, RejectReason::ProtocolError, bhs);
        }
        exchange.question.extend_from_slice(&request.text);
        if !exchange.answer.is_empty() {
            // The request is empty and fetches the next part of a long answer.
            self.say(at, exchange, request.is_final);
        } else if request.continues {
            exchange.ttt = self.new_ttt();
            self.respond_to_text(at, &exchange, Bytes::new(), false, false);
            self.connections[at].text = Some(exchange);
        } else {
            self.answer_question(at, exchange, request, bhs);
        }
    }

    fn answer_question(
        &mut self,
        at: usize,
        mut exchange: Exchange,
        request: TextRequest,
        bhs: &Bhs,
    ) {
        let question = std::mem::take(&mut exchange.question);
        let Ok(pairs) = keys::parse(&question) else {
            return self.reject(at, RejectReason::ProtocolError, bhs);
        };
        let mut answers = Vec::new();
        let mut which = None;
        for (key, value) in pairs {
            if key == "SendTargets" {
                which = send_targets(self, value);
                if which.is_none() {
                    keys::push(&mut answers, key, "Reject");
                }
            } else if let Some(answer) =
                keys::receive_in_full_feature(key, value, &mut self.connections[at].parameters)
            {
                keys::push(&mut answers, key, answer);
            }
        }
        match which {
            Some(which) => {
                let connection = &mut self.connections[at];
                connection.pending_text =
                    Some(PendingText { exchange, is_final: request.is_final, answers });
                let cid = connection.cid();
                self.events.push_back(TargetEvent::SendTargets(cid, which));
            }
            None => {
                exchange.answer = answers.into();
                self.say(at, exchange, request.is_final);
            }
        }
    }

    /// Answers `TargetEvent::SendTargets` of this connection. `targets` has for each target its
    /// name and its addresses, as `host:port,portal-group-tag`.
    pub fn answer_send_targets<'a>(
        &mut self,
        cid: Cid,
        targets: impl IntoIterator<Item = (&'a str, &'a [String])>,
    ) {
        let Some(at) = self.index(cid) else { return };
        let pending = self.connections[at].pending_text.take();
        let Some(PendingText { mut exchange, is_final, mut answers }) = pending else { return };
        for (name, addresses) in targets {
            keys::push(&mut answers, "TargetName", name);
            addresses.iter().for_each(|a| keys::push(&mut answers, "TargetAddress", a));
        }
        exchange.answer = answers.into();
        self.say(at, exchange, is_final);
    }

    /// Sends the next part of the answer. Keeps the exchange if more parts follow.
    fn say(&mut self, at: usize, mut exchange: Exchange, is_final: bool) {
        let segment = self.connections[at].parameters.max_send_data_segment_length as usize;
        let part = exchange.answer.split_to(exchange.answer.len().min(segment));
        let continues = !exchange.answer.is_empty();
        let is_final = is_final && !continues;
        exchange.ttt = if is_final { Ttt::NONE } else { self.new_ttt() };
        self.respond_to_text(at, &exchange, part, is_final, continues);
        if !is_final {
            self.connections[at].text = Some(exchange);
        }
    }

    fn respond_to_text(
        &mut self,
        at: usize,
        exchange: &Exchange,
        text: Bytes,
        is_final: bool,
        continues: bool,
    ) {
        let (itt, ttt) = (exchange.itt, exchange.ttt);
        self.send_status(at, |numbers| {
            Pdu::TextResponse(TextResponse {
                is_final,
                continues,
                lun: scsi::Lun(0),
                itt,
                ttt,
                numbers,
                text,
            })
        });
    }
}

/// Parses a value of SendTargets. `None` if it is not allowed in this session: All is for discovery
/// sessions, the empty value for normal ones (RFC 7143, Appendix C).
fn send_targets(session: &Session, value: &str) -> Option<SendTargets> {
    match value {
        "All" => session.is_discovery().then_some(SendTargets::All),
        "" => (!session.is_discovery()).then_some(SendTargets::Own),
        name => Some(SendTargets::Named(name.to_owned())),
    }
}

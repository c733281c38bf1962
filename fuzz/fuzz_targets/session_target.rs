//! Runs the target's state machine in full feature phase against an initiator that sends anything in any order. The
//! session has up to three connections that join and leave, any recovery level, and units that answer at any time.
//! Every command may be answered at most once for each time that it was sent, reassigned or aborted, and all data must
//! be within the negotiated limits.
#![no_main]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fuzz::{Choices, drain, frame};
use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    codec::Digests,
    keys::{self, NegotiationOffer},
    login::{Denial, Directory},
    pdu::{
        DataOut, LoginRequest, LogoutReason, LogoutRequest, NopOut, ScsiCommand, Snack, SnackKind,
        LoginStage, TaskFunction, TaskFunctionResult, TaskRequest, TextRequest,
    },
    session::target::{Connection, TargetEvent, LoginPhase, LoginProgress, TargetCommandOutcome, Session, Settings},
};
use libfuzzer_sys::fuzz_target;
use scsi::{Cdb, Lun, Sense, SenseKey};

const CONNECTIONS: u16 = 3;
const SEGMENT: u32 = 1024;
const BURST: u32 = 4096;

struct Anybody;

impl Directory for Anybody {
    fn admit(&self, _initiator: &str, _target: Option<&str>) -> Result<u16, Denial> {
        Ok(1)
    }
}

struct Scene<'a> {
    choices: Choices<'a>,
    session: Session,
    now: Instant,
    cmd_sn: u32,
    /// The connection that sends the next PDU.
    cid: Cid,
    level: u8,
    /// The tags of the last R2T, and the offset at which the next Data-Out PDU for it begins.
    r2t: (Itt, Ttt, u32),
    /// Task tags of the commands that the units are executing.
    known: BTreeSet<u32>,
    waiting: Vec<TargetEvent>,
    /// For each task tag, the number of responses that the target may still send.
    open: BTreeMap<u32, u32>,
    /// The connection and StatSN of each status that was sent. The target may send a status again only if the initiator
    /// asks for that.
    told: BTreeSet<(u16, u32)>,
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let flags = choices.byte();
    let now = Instant::now();
    let Some(phase) = log_in(flags, Cid(0), Tsih(0), now) else { return };
    let Some(session) = phase.accept(Tsih(1), now) else { return };
    let mut scene = Scene {
        choices,
        session,
        now,
        cmd_sn: 1,
        cid: Cid(0),
        level: (flags >> 6).min(2),
        r2t: (Itt::NONE, Ttt::NONE, 0),
        known: BTreeSet::new(),
        waiting: Vec::new(),
        open: BTreeMap::new(),
        told: BTreeSet::new(),
    };
    scene.forget(Cid(0));
    while !scene.choices.is_empty() {
        scene.turn(flags);
        let pdu = scene.pdu();
        match &pdu {
            Pdu::ScsiCommand(command) => *scene.open.entry(command.itt.0).or_default() += 1,
            // If a connection was lost, the target may send a response again when the initiator reassigns the task, and
            // also when it aborts the task.
            Pdu::TaskRequest(request)
                if matches!(
                    request.function,
                    Ok(TaskFunction::TaskReassign | TaskFunction::AbortTask)
                ) =>
            {
                *scene.open.entry(request.referenced_itt.0).or_default() += 1;
            }
            _ => {}
        }
        let mut frame = frame(pdu);
        frame.data_digest_error = scene.choices.byte() == 0xfe;
        let cid = scene.cid;
        let ended = scene.session.handle_frame(cid, frame, scene.now);
        scene.collect();
        match ended {
            Err(error) if error.ends_session() => return,
            Err(_) => scene.session.drop_connection(cid, scene.now),
            Ok(()) if scene.session.connection(cid).is_some_and(Connection::is_closing) => {
                scene.session.drop_connection(cid, scene.now);
            }
            Ok(()) => {}
        }
        scene.answer();
        if scene.choices.byte() == 0xfd {
            scene.now += Duration::from_secs(20);
            for (cid, error) in scene.session.handle_timeout(scene.now) {
                if error.ends_session() {
                    return;
                }
                scene.session.drop_connection(cid, scene.now);
            }
        }
        assert!(scene.session.tasks() <= 8 + 4, "the window bounds the tasks");
        assert!(scene.session.connections().len() <= usize::from(CONNECTIONS));
        if scene.session.is_over() {
            return;
        }
    }
});

/// Returns a connection that has logged in with parameters that the fuzzer chooses.
fn log_in(flags: u8, cid: Cid, tsih: Tsih, now: Instant) -> Option<LoginPhase> {
    let yes = |bit: u8| if flags & bit != 0 { "Yes" } else { "No" };
    let mut text = Vec::new();
    keys::push(&mut text, "InitiatorName", "i");
    if flags & 4 == 0 {
        keys::push(&mut text, "TargetName", "t");
    } else {
        keys::push(&mut text, "SessionType", "Discovery");
    }
    if tsih == Tsih(0) {
        keys::push(&mut text, "InitialR2T", yes(1));
        keys::push(&mut text, "ImmediateData", yes(2));
        keys::push(&mut text, "MaxBurstLength", &BURST.to_string());
        keys::push(&mut text, "FirstBurstLength", &(BURST / 2).to_string());
        keys::push(&mut text, "MaxOutstandingR2T", &(1 + (flags >> 4 & 3)).to_string());
        keys::push(&mut text, "MaxConnections", &CONNECTIONS.to_string());
        keys::push(&mut text, "ErrorRecoveryLevel", &(flags >> 6).min(2).to_string());
    }
    keys::push(&mut text, "MaxRecvDataSegmentLength", &SEGMENT.to_string());
    let request = LoginRequest {
        transit: true,
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
        cmd_sn: Serial(1),
        isid: Isid([1; 6]),
        tsih,
        cid,
        text: text.into(),
        ..LoginRequest::default()
    };
    let settings = Settings {
        queue_commands: 8,
        immediate_commands: 4,
        max_transfer_bytes: 1 << 16,
        solicited_bytes: 1 << 15,
        ..Settings::default()
    };
    let offer = NegotiationOffer {
        max_recv_data_segment_length: SEGMENT,
        max_connections: CONNECTIONS,
        ..NegotiationOffer::target()
    };
    let mut login = LoginPhase::new(offer, Arc::new(Anybody), settings, now);
    match login.handle_frame(&frame(Pdu::LoginRequest(request))) {
        LoginProgress::Established(_) => Some(login),
        _ => None,
    }
}

impl Scene<'_> {
    /// Selects the connection for the next PDU. For a few choices, a connection begins or ends.
    fn turn(&mut self, flags: u8) {
        let choice = self.choices.byte();
        let cid = Cid(u16::from(choice) % CONNECTIONS);
        if self.session.connection(cid).is_some() {
            self.cid = cid;
        }
        match choice {
            0xf0..=0xf7 => self.session.drop_connection(cid, self.now),
            0xe0..=0xef => {
                let Some(phase) = log_in(flags, cid, Tsih(1), self.now) else { return };
                if phase.join(&mut self.session, self.now).is_ok() {
                    self.cid = cid;
                    self.forget(cid);
                }
            }
            _ => {}
        }
    }

    /// Handles the begin of a connection: forgets the StatSNs of an earlier connection with this CID, and drops the
    /// last login response from the output.
    fn forget(&mut self, cid: Cid) {
        self.told.retain(|&(of, _)| of != cid.0);
        let connection = self.session.connection_mut(cid).expect("just begun");
        drain(connection.output_mut(), Digests::default(), SEGMENT);
    }

    fn cmd_sn(&mut self) -> Serial {
        match self.choices.byte() {
            byte @ 0xe0.. => {
                Serial(self.cmd_sn.wrapping_add(u32::from(byte & 0x1f)).wrapping_sub(8))
            }
            _ => {
                self.cmd_sn = self.cmd_sn.wrapping_add(1);
                Serial(self.cmd_sn.wrapping_sub(1))
            }
        }
    }

    fn itt(&mut self) -> Itt {
        Itt(u32::from(self.choices.byte() & 15))
    }

    fn data(&mut self, limit: u32) -> Bytes {
        vec![7; self.choices.length().min(limit) as usize].into()
    }

    fn pdu(&mut self) -> Pdu {
        let kind = self.choices.byte();
        match kind & 7 {
            0 | 1 => self.command(kind),
            2 | 3 => self.data_out(kind),
            4 => self.function(kind),
            5 => self.text(kind),
            6 => self.nop_out(kind),
            _ if kind & 8 != 0 => self.snack(kind),
            _ => self.logout(kind),
        }
    }

    /// Returns the CmdSN of a PDU. An immediate PDU has the CmdSN of the next command, and does not
    /// advance it.
    fn cmd_sn_of(&mut self, kind: u8) -> Serial {
        if is_immediate(kind) { Serial(self.cmd_sn) } else { self.cmd_sn() }
    }

    fn command(&mut self, kind: u8) -> Pdu {
        let flags = self.choices.byte();
        let itt = self.itt();
        let write = flags & 1 != 0;
        Pdu::ScsiCommand(ScsiCommand {
            immediate: is_immediate(kind),
            is_final: flags & 2 == 0,
            read: flags & 4 != 0,
            write,
            attribute: flags >> 3 & 7,
            lun: Lun(u64::from(flags >> 6) << 48),
            itt,
            expected_data_transfer_length: self.choices.length(),
            bidirectional_read_length: (flags & 7 == 5).then(|| self.choices.length()),
            cmd_sn: self.cmd_sn_of(kind),
            exp_stat_sn: Serial(0),
            cdb: Cdb::new(&[0; 16]),
            data: if write { self.data(SEGMENT) } else { Bytes::new() },
        })
    }

    /// Returns a Data-Out PDU: unsolicited data, or data for the last R2T.
    fn data_out(&mut self, kind: u8) -> Pdu {
        let (itt, ttt, offset) = self.r2t;
        let unsolicited = kind & 8 != 0;
        let data = self.data(SEGMENT);
        self.r2t.2 = offset.wrapping_add(data.len() as u32);
        let itt = if unsolicited { self.itt() } else { itt };
        Pdu::DataOut(DataOut {
            is_final: kind & 16 != 0,
            lun: Lun(0),
            itt,
            ttt: if unsolicited { Ttt::NONE } else { ttt },
            exp_stat_sn: Serial(0),
            data_sn: self.choices.number_near(0),
            buffer_offset: self.choices.number_near(offset),
            data,
        })
    }

    /// Returns a request for a task management function.
    fn function(&mut self, kind: u8) -> Pdu {
        use TaskFunction::*;
        let all = [
            AbortTask,
            AbortTaskSet,
            ClearTaskSet,
            LogicalUnitReset,
            TargetWarmReset,
            TaskReassign,
        ];
        let choice = usize::from(self.choices.byte());
        Pdu::TaskRequest(TaskRequest {
            immediate: is_immediate(kind),
            function: all.get(choice % 7).copied().ok_or(99),
            lun: Lun(0),
            itt: Itt(0x100 + u32::from(self.choices.byte() & 3)),
            referenced_itt: self.itt(),
            cmd_sn: self.cmd_sn_of(kind),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: Serial(self.choices.number_near(self.cmd_sn)),
            exp_data_sn: self.choices.number_near(0),
        })
    }

    fn text(&mut self, kind: u8) -> Pdu {
        let length = usize::from(self.choices.byte() & 31);
        let mut text: Vec<u8> = (0..length).map(|_| self.choices.byte()).collect();
        if kind & 32 != 0 {
            text = b"SendTargets=All\0".to_vec();
        }
        Pdu::TextRequest(TextRequest {
            immediate: is_immediate(kind),
            is_final: kind & 8 != 0,
            continues: kind & 16 != 0,
            lun: Lun(0),
            itt: Itt(0x200),
            ttt: if kind & 64 != 0 { Ttt(self.choices.number_near(0)) } else { Ttt::NONE },
            cmd_sn: self.cmd_sn_of(kind),
            exp_stat_sn: Serial(0),
            text: text.into(),
        })
    }

    /// Returns a NOP-Out of the initiator: a ping, or the answer to a ping.
    fn nop_out(&mut self, kind: u8) -> Pdu {
        Pdu::NopOut(NopOut {
            immediate: is_immediate(kind),
            lun: Lun(0),
            itt: if kind & 8 != 0 { Itt::NONE } else { Itt(0x300) },
            ttt: Ttt(self.choices.number_near(0)),
            cmd_sn: self.cmd_sn_of(kind),
            exp_stat_sn: Serial(0),
            data: self.data(SEGMENT),
        })
    }

    fn snack(&mut self, kind: u8) -> Pdu {
        Pdu::Snack(Snack {
            kind: [
                Ok(SnackKind::Status),
                Ok(SnackKind::DataOrR2t),
                Ok(SnackKind::DataAck),
                Ok(SnackKind::RData),
                Err(9),
            ][usize::from(kind >> 4) % 5],
            lun: Lun(0),
            itt: if kind & 128 != 0 { Itt::NONE } else { self.itt() },
            ttt: Ttt(self.choices.number_near(u32::MAX)),
            exp_stat_sn: Serial(0),
            begin: self.choices.number_near(0),
            run_length: self.choices.number_near(0),
        })
    }

    fn logout(&mut self, kind: u8) -> Pdu {
        Pdu::LogoutRequest(LogoutRequest {
            immediate: is_immediate(kind),
            reason: [Ok(LogoutReason::CloseConnection), Ok(LogoutReason::CloseSession), Err(9)]
                [usize::from(kind >> 4) % 3],
            itt: Itt(0x400),
            cid: Cid(self.choices.short()),
            cmd_sn: self.cmd_sn_of(kind),
            exp_stat_sn: Serial(0),
        })
    }

    /// Lets the units execute and answer some of the commands that they have received.
    fn answer(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match &event {
                TargetEvent::Abort(itt) => {
                    self.known.remove(&itt.0);
                    self.waiting.retain(
                        |event| !matches!(event, TargetEvent::Command(command) if command.itt == *itt),
                    );
                    continue;
                }
                TargetEvent::Command(command) => {
                    assert!(self.known.insert(command.itt.0), "a tag names one command");
                }
                // The session asks the unit whether a command may be executed. Units answer at
                // once.
                TargetEvent::Admission(_) => {
                    let choice = self.choices.byte();
                    self.perform(event, choice);
                    self.collect();
                    continue;
                }
                TargetEvent::Management(_) | TargetEvent::SendTargets(..) => {}
                TargetEvent::Terminated(_) => continue,
            }
            self.waiting.push(event);
        }
        while !self.waiting.is_empty() {
            let choice = self.choices.byte();
            if choice & 1 == 0 {
                break;
            }
            let event = self.waiting.swap_remove(usize::from(choice >> 1) % self.waiting.len());
            self.perform(event, choice);
            self.collect();
        }
    }

    fn perform(&mut self, event: TargetEvent, choice: u8) {
        let session = &mut self.session;
        match event {
            TargetEvent::Command(command) => {
                if !self.known.remove(&command.itt.0) {
                    return;
                }
                let outcome = if choice & 2 == 0 {
                    let length = self.choices.length().min(1 << 14) as usize;
                    TargetCommandOutcome::good([Bytes::from(vec![9; length])].into())
                } else {
                    TargetCommandOutcome::check_condition(Sense::new(SenseKey::MediumError, 0x11, 0))
                };
                session.complete(command.itt, outcome);
            }
            TargetEvent::Admission(admission) if choice & 2 == 0 => session.admit(admission.itt, None),
            TargetEvent::Admission(admission) => {
                let outcome = TargetCommandOutcome::check_condition(Sense::new(SenseKey::DataProtect, 0x27, 0));
                session.complete(admission.itt, outcome);
            }
            TargetEvent::Management(request) => {
                if choice & 2 == 0 {
                    session.abort_for(&request);
                }
                session.answer_management(request.itt, TaskFunctionResult::Complete);
            }
            TargetEvent::SendTargets(cid, _) => {
                let addresses = ["127.0.0.1:3260,1".to_owned()];
                let targets = (0..choice).map(|_| ("t", &addresses[..]));
                session.answer_send_targets(cid, targets);
            }
            TargetEvent::Abort(_) | TargetEvent::Terminated(_) => unreachable!("taken out before"),
        }
    }

    /// Removes the output of the target from all connections, and checks it.
    fn collect(&mut self) {
        for number in 0..CONNECTIONS {
            let Some(connection) = self.session.connection_mut(Cid(number)) else { continue };
            for pdu in drain(connection.output_mut(), Digests::default(), SEGMENT) {
                self.hear(number, pdu);
            }
        }
    }

    fn hear(&mut self, cid: u16, pdu: Pdu) {
        match pdu {
            Pdu::ReadyToTransfer(r2t) => {
                assert!((1..=BURST).contains(&r2t.desired_data_transfer_length));
                self.r2t = (r2t.itt, r2t.ttt, r2t.buffer_offset);
            }
            Pdu::ScsiResponse(response) => self.close(cid, response.numbers.stat_sn, response.itt),
            Pdu::DataIn(data) if data.status.is_some() => {
                self.close(cid, data.numbers.stat_sn, data.itt);
            }
            Pdu::DataIn(data) => {
                let open = self.open.get(&data.itt.0).copied();
                assert!(self.level > 0 || open > Some(0), "data for an unknown command");
            }
            _ => {}
        }
    }

    fn close(&mut self, cid: u16, stat_sn: Serial, itt: Itt) {
        if !self.told.insert((cid, stat_sn.0)) {
            assert!(self.level > 0, "level 0 repeats no status");
            return;
        }
        let open = self.open.get_mut(&itt.0).expect("an answer to a command");
        *open = open.checked_sub(1).expect("one answer to a command");
    }
}

/// Returns true if the PDU is sent as immediate (I bit).
fn is_immediate(kind: u8) -> bool {
    kind & 0x80 != 0
}

//! Tests error recovery level 1, where PDUs that are lost within a connection are sent again (RFC
//! 7143, 7.1.4.1, 7.1.4.2, 7.8, 7.9, 11.16).

use std::time::Duration;

use bytes::Bytes;
use iscsi::{
    DataSegment, Itt, Pdu, Serial, Ttt,
    pdu::{RejectReason, Snack, SnackKind},
    session::target::{Settings, TargetCommandOutcome, TargetSessionError},
};
use scsi::Lun;

use crate::rig::{
    CID, Rig, burst, data_ins, data_out, frame, pattern, r2ts, reject, response, sense,
};

/// The keys of a session with level 1. Bursts have 1024 bytes and PDUs 512, so that small transfers
/// have several of each.
const ONE: &str = "ErrorRecoveryLevel=1\nInitialR2T=No\nFirstBurstLength=1024\n\
                   MaxBurstLength=1024\nMaxRecvDataSegmentLength=512\n";

fn good(length: usize) -> TargetCommandOutcome {
    TargetCommandOutcome::good(
        [pattern(0, length)].into_iter().filter(|data| !data.is_empty()).collect(),
    )
}

fn snack(kind: SnackKind, itt: Itt, ttt: Ttt, begin: u32, run_length: u32) -> Pdu {
    let exp_stat_sn = Serial(0);
    Pdu::Snack(Snack { kind: Ok(kind), lun: Lun(0), itt, ttt, exp_stat_sn, begin, run_length })
}

fn data_snack(itt: u32, begin: u32, run_length: u32) -> Pdu {
    snack(SnackKind::DataOrR2t, Itt(itt), Ttt::NONE, begin, run_length)
}

fn status_snack(begin: u32, run_length: u32) -> Pdu {
    snack(SnackKind::Status, Itt::NONE, Ttt::NONE, begin, run_length)
}

/// Submits a read of `length` bytes, answers it, and returns the PDUs that the target sends.
fn answered_read(rig: &mut Rig, itt: u32, length: u32) -> Vec<Pdu> {
    let command = rig.read(itt, length);
    rig.deliver(command);
    rig.complete(itt, good(length as usize))
}

fn acknowledge(rig: &mut Rig, exp_stat_sn: Serial) {
    let mut pong = rig.ping(u32::MAX, 0);
    pong.exp_stat_sn = exp_stat_sn;
    assert!(rig.send(Pdu::NopOut(pong)).is_empty());
}

#[test]
fn lost_data_is_sent_again_unchanged() {
    let mut rig = Rig::new(ONE);
    let sent = answered_read(&mut rig, 1, 2500);
    assert_eq!(sent.len(), 5);
    assert_eq!(rig.send(data_snack(1, 1, 2)), sent[1..3]);
    assert_eq!(rig.send(data_snack(1, 4, 1)), sent[4..], "with the status that was in it");
    assert_eq!(rig.send(data_snack(1, 3, 0)), sent[3..]);
    assert_eq!(rig.send(data_snack(1, 0, 0)), sent);
}

#[test]
fn a_snack_for_unsent_or_acknowledged_data_is_rejected() {
    let mut rig = Rig::new(ONE);
    let sent = answered_read(&mut rig, 1, 2500);
    for (itt, begin, run) in [(1, 5, 1), (1, 4, 2), (1, u32::MAX, 2), (1, 6, 0), (2, 0, 1)] {
        let pdus = rig.send(data_snack(itt, begin, run));
        assert_eq!(reject(&pdus), RejectReason::ProtocolError, "{begin}+{run}");
    }
    let Pdu::DataIn(last) = &sent[4] else { panic!() };
    acknowledge(&mut rig, last.numbers.stat_sn.next());
    assert_eq!(reject(&rig.send(data_snack(1, 0, 1))), RejectReason::ProtocolError);
    let pdus = rig.send(status_snack(last.numbers.stat_sn.0, 1));
    assert_eq!(reject(&pdus), RejectReason::ProtocolError);
}

#[test]
fn lost_statuses_are_sent_again_with_their_numbers() {
    let mut rig = Rig::new(ONE);
    let read = answered_read(&mut rig, 1, 700);
    let none = answered_read(&mut rig, 2, 0);
    let ping = rig.ping(3, 9);
    let pong = rig.send(Pdu::NopOut(ping));
    // The target repeats the statuses unchanged, except for ExpCmdSN and MaxCmdSN.
    let again = rig.send(status_snack(501, 0));
    assert_eq!(again.len(), 3);
    assert_eq!(again[0], with_window_of(&read[1], &again[0]), "the Data-In that held the status");
    assert_eq!(again[1], with_window_of(&none[0], &again[1]));
    assert_eq!(again[2], pong[0]);
    assert_eq!(rig.send(status_snack(0, 0)), again, "all that is not acknowledged");
    assert_eq!(rig.send(status_snack(502, 1)), again[1..2]);
    assert_eq!(reject(&rig.send(status_snack(504, 1))), RejectReason::ProtocolError);
    assert_eq!(reject(&rig.send(status_snack(500, 1))), RejectReason::ProtocolError);
}

/// Returns a copy of `pdu` with the ExpCmdSN and MaxCmdSN of `other`.
fn with_window_of(pdu: &Pdu, other: &Pdu) -> Pdu {
    let mut pdu = pdu.clone();
    match (&mut pdu, other) {
        (Pdu::DataIn(pdu), Pdu::DataIn(other)) => {
            pdu.numbers.exp_cmd_sn = other.numbers.exp_cmd_sn;
            pdu.numbers.max_cmd_sn = other.numbers.max_cmd_sn;
        }
        (Pdu::ScsiResponse(pdu), Pdu::ScsiResponse(other)) => {
            pdu.numbers.exp_cmd_sn = other.numbers.exp_cmd_sn;
            pdu.numbers.max_cmd_sn = other.numbers.max_cmd_sn;
        }
        (pdu, other) => panic!("{pdu:?} {other:?}"),
    }
    pdu
}

#[test]
fn a_data_acknowledgment_is_requested_at_the_ends_of_bursts_and_checked() {
    let mut rig = Rig::new(ONE);
    let sent = answered_read(&mut rig, 1, 2500);
    let asked: Vec<_> = data_ins(&sent).iter().map(|data_in| data_in.acknowledge).collect();
    assert_eq!(asked, [false, true, false, true, false]);
    let ttt = data_ins(&sent)[1].ttt;
    assert_ne!(ttt, Ttt::NONE);
    assert!(rig.send(snack(SnackKind::DataAck, Itt::NONE, ttt, 2, 0)).is_empty());
    assert_eq!(reject(&rig.send(data_snack(1, 1, 1))), RejectReason::ProtocolError);
    assert_eq!(rig.send(data_snack(1, 2, 1)), sent[2..3]);
    for (ttt, begin) in [(ttt, 9), (Ttt(0xdead), 2), (Ttt::NONE, 2)] {
        let pdus = rig.send(snack(SnackKind::DataAck, Itt::NONE, ttt, begin, 0));
        assert_eq!(reject(&pdus), RejectReason::InvalidDataAck);
    }
}

#[test]
fn data_is_sent_again_in_segments_of_another_size() {
    let mut rig = Rig::new(ONE);
    answered_read(&mut rig, 1, 2000);
    let text = rig.text(9, "MaxRecvDataSegmentLength=1024\n");
    rig.send(Pdu::TextRequest(text));
    let pdus = rig.send(snack(SnackKind::RData, Itt(1), Ttt(77), 0, 0));
    let data_ins = data_ins(&pdus[..2]);
    assert_eq!([data_ins[0].data.concat(), data_ins[1].data.concat()].concat(), pattern(0, 2000));
    assert!(data_ins.iter().all(|data_in| data_in.status.is_none()));
    let answer = response(&pdus[2..]);
    assert_eq!((answer.snack_tag, answer.status, answer.exp_data_sn), (77, 0, 2));
    assert_eq!(answer.numbers.stat_sn, Serial(501), "the number that the status had");
    let again = rig.send(status_snack(501, 1));
    assert_eq!(response(&again).snack_tag, 77);
    for (tag, begin) in [(Ttt(0), 0), (Ttt::NONE, 0), (Ttt(5), 1)] {
        let pdus = rig.send(snack(SnackKind::RData, Itt(1), tag, begin, 0));
        assert_eq!(reject(&pdus), RejectReason::InvalidPduField);
    }
}

#[test]
fn an_r_data_snack_before_the_data_marks_the_answer() {
    let mut rig = Rig::new(ONE);
    let command = rig.read(1, 100);
    rig.deliver(command);
    assert!(rig.send(snack(SnackKind::RData, Itt(1), Ttt(5), 0, 0)).is_empty());
    let pdus = rig.complete(1, good(100));
    assert_eq!(response(&pdus[1..]).snack_tag, 5);
}

#[test]
fn data_beyond_the_bound_is_dropped_and_a_snack_for_it_is_rejected() {
    let settings = Settings { retained_bytes: 4000, ..Settings::default() };
    let mut rig = Rig::with(ONE, settings);
    for itt in 1..4 {
        answered_read(&mut rig, itt, 2000);
    }
    assert_eq!(reject(&rig.send(data_snack(1, 0, 1))), RejectReason::SnackReject);
    assert_eq!(rig.send(data_snack(2, 0, 1)).len(), 1);
    let pdus = rig.send(status_snack(501, 1));
    assert_eq!(response(&pdus).exp_data_sn, 4, "its status is kept and tells what is missing");
}

/// Returns an outcome with Data-In of `length` bytes, and a function that returns true while that
/// data is in memory.
fn observed(length: usize) -> (TargetCommandOutcome, impl Fn() -> bool) {
    struct Owned(std::sync::Arc<Vec<u8>>);
    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let owned = std::sync::Arc::new(vec![7; length]);
    let weak = std::sync::Arc::downgrade(&owned);
    let data = Bytes::from_owner(Owned(owned));
    (TargetCommandOutcome::good([data].into_iter().collect()), move || weak.strong_count() > 0)
}

/// A regression test. A response was charged only for the bytes that were sent, but all its data
/// stayed in memory.
#[test]
fn data_beyond_the_room_of_the_initiator_is_not_kept() {
    let mut rig = Rig::new(ONE);
    for (itt, expected) in [(1, 0), (2, 512)] {
        let command = rig.read(itt, expected);
        rig.deliver(command);
        let (outcome, is_kept) = observed(1 << 20);
        rig.complete(itt, outcome);
        assert!(!is_kept(), "{expected}");
    }
    assert_eq!(rig.send(data_snack(2, 0, 1)).len(), 1, "what was sent can be sent again");
}

#[test]
fn echoed_ping_data_counts_towards_the_retained_bytes() {
    let settings = Settings { retained_bytes: 1000, ..Settings::default() };
    let mut rig = Rig::with(ONE, settings);
    for itt in 0..3 {
        let ping = rig.ping(itt, 400);
        rig.send(Pdu::NopOut(ping));
    }
    assert_eq!(reject(&rig.send(status_snack(501, 1))), RejectReason::SnackReject);
    let pdus = rig.send(status_snack(502, 2));
    assert!(matches!(&pdus[..], [Pdu::NopIn(a), Pdu::NopIn(_)] if a.data == pattern(0, 400)));
    acknowledge(&mut rig, Serial(504));
}

#[test]
fn a_session_that_never_acknowledges_is_ended() {
    let settings = Settings { unacknowledged_statuses: 10, ..Settings::default() };
    let mut rig = Rig::with(ONE, settings);
    for itt in 0..10 {
        answered_read(&mut rig, itt, 0);
    }
    let ping = rig.ping(100, 0);
    assert_eq!(rig.try_frame(frame(Pdu::NopOut(ping))).0, Err(TargetSessionError::Unacknowledged));
}

#[test]
fn an_acknowledgment_of_an_old_status_is_requested_with_a_ping() {
    let mut rig = Rig::new(ONE);
    answered_read(&mut rig, 1, 0);
    rig.pass(Duration::from_secs(3)).unwrap();
    let pdus = rig.output();
    let [Pdu::NopIn(ping)] = &pdus[..] else { panic!("{pdus:?}") };
    assert_eq!(ping.numbers.stat_sn, Serial(502), "so the initiator sees that it has missed one");
    acknowledge(&mut rig, Serial(502));
    rig.pass(Duration::from_secs(14)).unwrap();
    assert!(rig.output().is_empty());
}

#[test]
fn hostile_acknowledgments_change_nothing() {
    let mut rig = Rig::new(ONE);
    let sent = answered_read(&mut rig, 1, 100);
    for exp_stat_sn in [Serial(0), Serial(503), Serial(502 + (1 << 30)), Serial(500)] {
        acknowledge(&mut rig, exp_stat_sn);
    }
    assert_eq!(rig.send(data_snack(1, 0, 0)), sent);
}

/// Begins a write of two bursts of 1024 bytes, which the target requests one after the other.
/// Returns the first R2T.
fn write_of_two_bursts() -> (Rig, iscsi::pdu::ReadyToTransfer) {
    let mut rig = Rig::new(&format!("{ONE}ImmediateData=No\n"));
    let command = rig.write(1, 2048, 0, true);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
    let r2ts = r2ts(&rig.admit(1));
    assert_eq!(r2ts.len(), 1, "one at a time with recovery (RFC 7143, 13.18)");
    (rig, r2ts[0])
}

/// Sends the data that each R2T of the write requests, until all data has arrived.
fn finish_write(rig: &mut Rig, mut r2t: iscsi::pdu::ReadyToTransfer) {
    loop {
        let pdus: Vec<Pdu> = burst(&r2t, 512).into_iter().flat_map(|pdu| rig.send(pdu)).collect();
        match &r2ts(&pdus)[..] {
            [] => break,
            [next] => {
                assert_eq!(next.r2t_sn, r2t.r2t_sn + 1);
                r2t = *next;
            }
            more => panic!("{more:?}"),
        }
    }
    assert_eq!(rig.command().data_out.concat(), pattern(0, 2048));
    assert_eq!(response(&rig.complete(1, good(0))).status, 0);
}

#[test]
fn lost_data_out_is_requested_again() {
    let (mut rig, first) = write_of_two_bursts();
    let pdus = burst(&first, 256);
    assert!(rig.send(pdus[0].clone()).is_empty());
    let mut broken = frame(pdus[1].clone());
    broken.data_digest_error = true;
    let (result, answers) = rig.try_frame(broken);
    assert!(result.is_ok());
    assert_eq!(reject(&answers), RejectReason::DataDigestError);
    assert!(rig.send(pdus[2].clone()).is_empty(), "the rest of the burst is on its way");
    let recovery = r2ts(&rig.send(pdus[3].clone()))[0];
    assert_eq!((recovery.buffer_offset, recovery.desired_data_transfer_length), (256, 768));
    assert_eq!(recovery.r2t_sn, 1);
    assert_ne!(recovery.ttt, first.ttt);
    finish_write(&mut rig, recovery);
}

#[test]
fn a_gap_in_the_data_numbers_is_lost_data() {
    let (mut rig, first) = write_of_two_bursts();
    let pdus = burst(&first, 512);
    let recovery = r2ts(&rig.send(pdus[1].clone()))[0];
    assert_eq!((recovery.buffer_offset, recovery.desired_data_transfer_length), (0, 1024));
    finish_write(&mut rig, recovery);
}

#[test]
fn missing_data_is_requested_once_more_and_then_in_a_new_burst() {
    let (mut rig, first) = write_of_two_bursts();
    rig.pass(Duration::from_secs(9)).unwrap();
    assert_eq!(rig.output().len(), 0);
    rig.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(r2ts(&rig.output()), [first], "it may have been lost");
    // A part of the burst arrives, so the target then requests only the missing part.
    rig.send(burst(&first, 512)[0].clone());
    rig.pass(Duration::from_secs(10)).unwrap();
    let recovery = r2ts(&rig.output())[0];
    assert_eq!((recovery.buffer_offset, recovery.r2t_sn), (512, 1));
    assert!(rig.send(burst(&first, 512)[1].clone()).is_empty(), "too late, and no fault");
    finish_write(&mut rig, recovery);
}

#[test]
fn missing_unsolicited_data_is_requested() {
    let mut rig = Rig::new(ONE);
    let command = rig.write(1, 1024, 256, false);
    rig.send(Pdu::ScsiCommand(command));
    rig.send(data_out(1, Ttt::NONE, 0, 256, 256, false));
    rig.pass(Duration::from_secs(10)).unwrap();
    let recovery = r2ts(&rig.output())[0];
    assert_eq!((recovery.buffer_offset, recovery.desired_data_transfer_length), (512, 512));
    rig.send(burst(&recovery, 512)[0].clone());
    assert_eq!(rig.command().data_out.concat(), pattern(0, 1024));
}

#[test]
fn a_path_that_damages_everything_fails_the_command() {
    let (mut rig, mut r2t) = write_of_two_bursts();
    for _ in 0..8 {
        let mut broken = frame(burst(&r2t, 1024)[0].clone());
        broken.data_digest_error = true;
        let (_, answers) = rig.try_frame(broken);
        assert_eq!(reject(&answers[..1]), RejectReason::DataDigestError);
        r2t = r2ts(&answers[1..])[0];
    }
    let mut broken = frame(burst(&r2t, 1024)[0].clone());
    broken.data_digest_error = true;
    let (_, answers) = rig.try_frame(broken);
    assert_eq!(sense(response(&answers[1..])), (0xb, 0x47, 0x05));
}

#[test]
fn a_lost_r2t_is_sent_again() {
    let (mut rig, first) = write_of_two_bursts();
    assert_eq!(r2ts(&rig.send(data_snack(1, 0, 1))), [first]);
    assert_eq!(r2ts(&rig.send(data_snack(1, 0, 0))), [first]);
    assert_eq!(reject(&rig.send(data_snack(1, 1, 1))), RejectReason::ProtocolError);
    let second = burst(&first, 512).into_iter().flat_map(|pdu| rig.send(pdu)).collect::<Vec<_>>();
    assert_eq!(reject(&rig.send(data_snack(1, 0, 1))), RejectReason::ProtocolError);
    finish_write(&mut rig, r2ts(&second)[0]);
}

#[test]
fn a_damaged_command_leaves_a_gap_that_a_retry_fills() {
    let mut rig = Rig::new(ONE);
    let command = rig.write(1, 512, 512, true);
    let mut broken = frame(Pdu::ScsiCommand(command.clone()));
    broken.data_digest_error = true;
    let (result, pdus) = rig.try_frame(broken);
    assert!(result.is_ok());
    assert_eq!(reject(&pdus), RejectReason::DataDigestError);
    let after = rig.read(2, 0);
    rig.send(Pdu::ScsiCommand(after));
    rig.no_event();
    rig.send(Pdu::ScsiCommand(command));
    assert_eq!((rig.command().itt, rig.command().itt), (Itt(1), Itt(2)));
}

#[test]
fn nothing_is_kept_at_level_zero() {
    let mut rig = Rig::new("");
    let command = rig.read(1, 100);
    rig.deliver(command);
    let data = Bytes::from(vec![7; 100]);
    let outcome = TargetCommandOutcome::good(DataSegment::from_iter([data]));
    rig.session.complete(Itt(1), outcome);
    rig.output();
    let pdus = rig.send(data_snack(1, 0, 0));
    assert_eq!(reject(&pdus), RejectReason::SnackReject);
    assert_eq!(rig.session.connection(CID).unwrap().counters().rejects, 1);
}

//! Tests immediate, unsolicited and solicited data of writes, and their errors.

use bytes::Bytes;
use iscsi::{
    DataSegment, Itt, Pdu, Ttt,
    pdu::{RejectReason, Residual},
    session::target::{Settings, TargetCommandOutcome, TargetEvent},
};
use proptest::prelude::*;
use scsi::ScsiStatus;

use crate::rig::{Rig, burst, data_out, frame, pattern, r2ts, reject, response, sense};

const NO_LIMITS: &str = "InitialR2T=No\nImmediateData=Yes\nMaxOutstandingR2T=1\n";

fn good() -> TargetCommandOutcome {
    TargetCommandOutcome::good(DataSegment::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_way_of_sending_a_write_delivers_the_same_bytes(
        initial_r2t in any::<bool>(),
        immediate_data in any::<bool>(),
        length in 0usize..60_000,
        immediate in 0usize..30_000,
        use_unsolicited in any::<bool>(),
        segment in 512usize..9000,
        first_burst in 512usize..20_000,
        more_burst in 0usize..20_000,
        outstanding in 1u16..5,
    ) {
        let yes = |b: bool| if b { "Yes" } else { "No" };
        let max_burst = first_burst + more_burst;
        let mut rig = Rig::new(&format!(
            "InitialR2T={}\nImmediateData={}\nFirstBurstLength={first_burst}\n\
             MaxBurstLength={max_burst}\nMaxOutstandingR2T={outstanding}\n",
            yes(initial_r2t), yes(immediate_data),
        ));
        let immediate = if immediate_data { immediate.min(length).min(first_burst) } else { 0 };
        let unsolicited = !initial_r2t && use_unsolicited;
        let first = if unsolicited { first_burst.min(length) } else { immediate };
        let command = rig.write(1, length as u32, immediate, !unsolicited);
        let mut queue = rig.send(Pdu::ScsiCommand(command));
        prop_assert!(queue.is_empty());
        if length > first {
            queue = rig.admit(1);
            prop_assert_eq!(queue.is_empty(), unsolicited);
        }
        if unsolicited {
            let (mut at, mut data_sn) = (immediate, 0);
            loop {
                let n = segment.min(first - at);
                let answers = rig.send(data_out(1, Ttt::NONE, data_sn, at, n, at + n == first));
                (at, data_sn) = (at + n, data_sn + 1);
                queue.extend(answers);
                if at == first {
                    break;
                }
            }
        }
        let (mut open, mut next) = (std::collections::VecDeque::new(), first);
        let mut r2t_sn = 0;
        loop {
            for r2t in r2ts(&std::mem::take(&mut queue)) {
                prop_assert_eq!((r2t.buffer_offset as usize, r2t.r2t_sn), (next, r2t_sn));
                let n = r2t.desired_data_transfer_length as usize;
                prop_assert!(n > 0 && n <= max_burst);
                (next, r2t_sn) = (next + n, r2t_sn + 1);
                open.push_back(r2t);
            }
            prop_assert!(open.len() <= usize::from(outstanding));
            let Some(r2t) = open.pop_front() else { break };
            for pdu in burst(&r2t, segment) {
                queue.extend(rig.send(pdu));
            }
        }
        prop_assert_eq!(next, length);
        let command = rig.command();
        prop_assert_eq!(Bytes::from(command.data_out.concat()), pattern(0, length));
        let pdus = rig.complete(1, good());
        let response = response(&pdus);
        prop_assert_eq!((response.status, response.exp_data_sn), (0, r2t_sn));
        prop_assert_eq!(rig.session.tasks(), 0);
    }
}

#[test]
fn immediate_data_needs_no_further_pdu_and_no_copy() {
    let mut rig = Rig::new(NO_LIMITS);
    let command = rig.write(1, 4096, 4096, true);
    let data = command.data.clone();
    let mut frame = frame(Pdu::ScsiCommand(command));
    frame.data = data.clone();
    let (_, answers) = rig.try_frame(frame);
    assert!(answers.is_empty());
    let command = rig.command();
    assert_eq!(command.data_out[0].as_ptr(), data.as_ptr());
}

#[test]
fn a_write_of_zero_bytes_is_delivered_at_once() {
    let mut rig = Rig::new(NO_LIMITS);
    let command = rig.write(1, 0, 0, true);
    assert!(rig.deliver(command).data_out.is_empty());
}

#[test]
fn residuals_of_writes_report_the_bytes_that_the_command_used() {
    for (took, residual) in [
        (Some(4096), Residual::None),
        (Some(512), Residual::Underflow(3584)),
        (Some(8192), Residual::Overflow(4096)),
        (None, Residual::None),
    ] {
        let mut rig = Rig::new(NO_LIMITS);
        let command = rig.write(1, 4096, 4096, true);
        rig.deliver(command);
        let pdus = rig.complete(1, TargetCommandOutcome { data_out_length: took, ..good() });
        assert_eq!(response(&pdus).residual, residual);
    }
}

/// Sends a write that violates a rule, with the rest of its unsolicited data if more was announced.
/// Checks the key, ASC and ASCQ of the sense data.
#[track_caller]
fn check_fails(keys: &str, immediate: usize, length: u32, is_final: bool, expected: (u8, u8, u8)) {
    let mut rig = Rig::new(keys);
    let command = rig.write(1, length, immediate, is_final);
    let mut pdus = rig.send(Pdu::ScsiCommand(command));
    if let Some(event) = rig.session.poll_event() {
        assert!(matches!(event, TargetEvent::Admission(_)), "{event:?}");
    }
    if !is_final {
        assert!(pdus.is_empty(), "the status waits for the data that is on its way");
        pdus = rig.send(data_out(1, Ttt::NONE, 0, immediate, 100, true));
    }
    assert_eq!(sense(response(&pdus)), expected);
    assert_eq!(rig.session.tasks(), 0);
    rig.no_event();
}

#[test]
fn unsolicited_data_against_the_agreement_fails_the_command() {
    let unexpected = (0xb, 0x0c, 0x0c);
    let incorrect = (0xb, 0x0c, 0x0d);
    check_fails("ImmediateData=No\n", 100, 4096, true, unexpected);
    check_fails("InitialR2T=Yes\n", 0, 4096, false, unexpected);
    check_fails("InitialR2T=No\nFirstBurstLength=1024\n", 1025, 4096, true, incorrect);
    check_fails("InitialR2T=No\n", 200, 100, true, incorrect);
    check_fails("InitialR2T=No\nFirstBurstLength=1024\n", 0, 4096, false, incorrect);
}

#[test]
fn write_data_sent_with_a_read_fails_the_command() {
    let mut rig = Rig::new("");
    let mut command = rig.read(1, 512);
    command.data = pattern(0, 100);
    let pdus = rig.send(Pdu::ScsiCommand(command));
    assert_eq!(sense(response(&pdus)), (0xb, 0x0c, 0x0c));
}

#[test]
fn a_command_that_is_neither_final_nor_a_write_is_rejected() {
    let mut rig = Rig::new("");
    let mut command = rig.read(1, 512);
    command.is_final = false;
    assert_eq!(reject(&rig.send(Pdu::ScsiCommand(command))), RejectReason::InvalidPduField);
}

/// Begins a write of two bursts of 1024 bytes. The target has requested both with R2Ts.
fn two_bursts() -> (Rig, Vec<iscsi::pdu::ReadyToTransfer>) {
    let mut rig = Rig::new(
        "InitialR2T=Yes\nImmediateData=No\nMaxOutstandingR2T=2\nFirstBurstLength=512\n\
         MaxBurstLength=1024\n",
    );
    let command = rig.write(1, 2048, 0, true);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
    let r2ts = r2ts(&rig.admit(1));
    assert_eq!(r2ts.len(), 2);
    (rig, r2ts)
}

#[track_caller]
fn check_faulty_burst(faulty: impl Fn(Ttt) -> Pdu, expected: (u8, u8, u8)) {
    let (mut rig, r2ts) = two_bursts();
    let pdus = rig.send(faulty(r2ts[0].ttt));
    assert!(pdus.is_empty(), "the other burst is on its way: {pdus:?}");
    let pdus = burst(&r2ts[1], 1024).into_iter().flat_map(|pdu| rig.send(pdu)).collect::<Vec<_>>();
    assert_eq!(sense(response(&pdus)), expected);
    rig.no_event();
}

#[test]
fn faults_in_solicited_data_fail_the_command_when_the_burst_has_ended() {
    let crc = (0xb, 0x47, 0x05);
    let incorrect = (0xb, 0x0c, 0x0d);
    check_faulty_burst(|ttt| data_out(1, ttt, 1, 0, 1024, true), crc);
    check_faulty_burst(|ttt| data_out(1, ttt, 0, 512, 1024, true), incorrect);
    check_faulty_burst(|ttt| data_out(1, ttt, 0, 0, 1000, true), incorrect);
    check_faulty_burst(|ttt| data_out(1, ttt, 0, 0, 1028, true), incorrect);
}

#[test]
fn a_data_digest_error_is_rejected_and_fails_the_command() {
    let (mut rig, r2ts) = two_bursts();
    let mut broken = frame(burst(&r2ts[0], 1024).remove(0));
    broken.data_digest_error = true;
    let (result, pdus) = rig.try_frame(broken);
    assert!(result.is_ok());
    assert_eq!(reject(&pdus), RejectReason::DataDigestError);
    let pdus = rig.send(burst(&r2ts[1], 1024).remove(0));
    assert_eq!(sense(response(&pdus)), (0xb, 0x47, 0x05));
    assert_eq!(rig.session.counters().digest_errors, 1);
}

#[test]
fn a_data_digest_error_in_a_command_ends_the_connection() {
    let mut rig = Rig::new(NO_LIMITS);
    let mut broken = frame(Pdu::ScsiCommand(rig.write(1, 4096, 4096, true)));
    broken.data_digest_error = true;
    let (result, pdus) = rig.try_frame(broken);
    assert!(result.is_err());
    assert_eq!(reject(&pdus), RejectReason::DataDigestError);
    rig.no_event();
}

#[test]
fn an_unknown_transfer_tag_is_rejected_and_fails_the_command() {
    for stranger in [Ttt(0xdead), Ttt::NONE] {
        let (mut rig, r2ts) = two_bursts();
        let pdus = rig.send(data_out(1, stranger, 0, 0, 1024, true));
        assert_eq!(reject(&pdus), RejectReason::InvalidPduField);
        assert!(rig.send(burst(&r2ts[0], 1024).remove(0)).is_empty());
        let pdus = rig.send(burst(&r2ts[1], 1024).remove(0));
        assert_eq!(response(&pdus).status, 2);
        rig.no_event();
    }
}

#[test]
fn a_tag_is_used_up_when_its_burst_ends() {
    let (mut rig, r2ts) = two_bursts();
    rig.send(burst(&r2ts[0], 1024).remove(0));
    let pdus = rig.send(burst(&r2ts[0], 1024).remove(0));
    assert_eq!(reject(&pdus), RejectReason::InvalidPduField);
}

#[test]
fn a_lun_that_does_not_fit_the_tag_is_rejected() {
    let (mut rig, r2ts) = two_bursts();
    let Pdu::DataOut(mut data) = burst(&r2ts[0], 1024).remove(0) else { unreachable!() };
    data.lun = scsi::Lun(1 << 48);
    assert_eq!(reject(&rig.send(Pdu::DataOut(data))), RejectReason::InvalidPduField);
}

#[test]
fn data_for_an_unknown_task_is_ignored() {
    let mut rig = Rig::new("");
    assert!(rig.send(data_out(77, Ttt(1), 0, 0, 512, true)).is_empty());
    assert!(rig.send(data_out(77, Ttt::NONE, 0, 0, 512, true)).is_empty());
    assert_eq!(rig.session.counters().ignored, 2);
}

#[test]
fn an_empty_data_out_that_is_not_final_changes_nothing() {
    let (mut rig, r2ts) = two_bursts();
    assert!(rig.send(data_out(1, r2ts[0].ttt, 0, 0, 0, false)).is_empty());
    assert!(rig.send(data_out(1, r2ts[0].ttt, 1, 0, 1024, true)).is_empty());
    rig.send(burst(&r2ts[1], 1024).remove(0));
    assert_eq!(rig.command().data_out.concat(), pattern(0, 2048));
}

#[test]
fn a_refused_write_is_answered_when_its_unsolicited_data_has_arrived() {
    let mut rig = Rig::new("InitialR2T=No\nFirstBurstLength=1024\n");
    let command = rig.write(1, 8192, 512, false);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Admission(_))));
    assert!(rig.complete(1, TargetCommandOutcome::status(ScsiStatus::Busy)).is_empty());
    let pdus = rig.send(data_out(1, Ttt::NONE, 0, 512, 512, true));
    assert_eq!(response(&pdus).status, ScsiStatus::Busy as u8);
    rig.no_event();
    assert_eq!(rig.session.tasks(), 0);
}

#[test]
fn a_write_refused_before_any_data_was_requested_is_answered_at_once() {
    let mut rig = Rig::new("InitialR2T=Yes\nImmediateData=Yes\n");
    let command = rig.write(1, 8192, 512, true);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Admission(_))));
    let pdus = rig.complete(1, TargetCommandOutcome::status(ScsiStatus::TaskSetFull));
    assert_eq!(response(&pdus).status, ScsiStatus::TaskSetFull as u8);
}

#[test]
fn data_of_a_write_that_is_too_long_is_never_requested() {
    let mut rig = Rig::new("InitialR2T=Yes\n");
    let command = rig.write(1, u32::MAX, 0, true);
    let pdus = rig.send(Pdu::ScsiCommand(command));
    assert_eq!(sense(response(&pdus)), (5, 0x24, 0));
    rig.no_event();
}

#[test]
fn requested_data_is_bounded_over_all_writes() {
    let settings = Settings { solicited_bytes: 10_000, ..Settings::default() };
    let mut rig =
        Rig::with("InitialR2T=Yes\nMaxBurstLength=8192\nFirstBurstLength=512\n", settings);
    for itt in 1..4 {
        let command = rig.write(itt, 6000, 0, true);
        rig.send(Pdu::ScsiCommand(command));
    }
    let first = r2ts(&rig.admit(1));
    assert_eq!(first.len(), 1);
    assert!(rig.admit(2).is_empty() && rig.admit(3).is_empty(), "these wait");
    rig.send(burst(&first[0], 8192).remove(0));
    rig.command();
    let pdus = rig.complete(1, good());
    assert_eq!(response(&pdus[1..]).itt, Itt(1));
    let second = r2ts(&pdus[..1]);
    assert_eq!(second[0].itt, Itt(2));
    // Write 2, which is the first in the queue, is aborted. Write 3 may then continue.
    let request = rig.task_request(iscsi::pdu::TaskFunction::AbortTask, 50, 2);
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(r2ts(&pdus[..1])[0].itt, Itt(3));
}

#[test]
fn a_single_write_above_the_bound_is_accepted() {
    let settings = Settings { solicited_bytes: 1000, ..Settings::default() };
    let mut rig = Rig::with("InitialR2T=Yes\n", settings);
    let command = rig.write(1, 6000, 0, true);
    rig.send(Pdu::ScsiCommand(command));
    assert_eq!(rig.admit(1).len(), 1);
}

const SOLICITED: &str = "InitialR2T=Yes\nImmediateData=No\nMaxBurstLength=8192\n";

/// Sends and admits writes of 8192 bytes. Returns the tags of those whose data is requested.
fn admitted(rig: &mut Rig, itts: std::ops::Range<u32>) -> Vec<u32> {
    let mut asked = Vec::new();
    for itt in itts {
        let command = rig.write(itt, 8192, 0, true);
        rig.send(Pdu::ScsiCommand(command));
        while let Some(event) = rig.session.poll_event() {
            let TargetEvent::Admission(admission) = event else { panic!("{event:?}") };
            rig.session.admit(admission.itt, None);
        }
        asked.extend(asked_for(&rig.output()));
    }
    asked
}

fn asked_for(pdus: &[Pdu]) -> Vec<u32> {
    let as_r2t = |pdu: &Pdu| match pdu {
        Pdu::ReadyToTransfer(r2t) => Some(r2t.itt.0),
        _ => None,
    };
    pdus.iter().filter_map(as_r2t).collect()
}

/// A regression test. When a waiting write was aborted, its tag stayed in the queue. The next write
/// with this tag was then counted twice, and a part of the connection's share was lost forever.
#[test]
fn the_tag_of_an_aborted_write_may_be_used_again_while_others_wait() {
    let settings = Settings { solicited_bytes: 16_384, ..Settings::default() };
    let mut rig = Rig::with(SOLICITED, settings);
    assert_eq!(admitted(&mut rig, 1..5), [1, 2]);
    for _ in 0..3 {
        let request = rig.task_request(iscsi::pdu::TaskFunction::AbortTask, 50, 4);
        rig.send(Pdu::TaskRequest(request));
        assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Abort(Itt(4)))));
        assert!(admitted(&mut rig, 4..5).is_empty());
    }
    // Write 4 is refused while it waits, and its tag is used for another write.
    assert!(asked_for(&rig.complete(4, TargetCommandOutcome::status(ScsiStatus::Busy))).is_empty());
    assert!(admitted(&mut rig, 4..5).is_empty());
    for (itt, next) in [(1, Some(3)), (2, Some(4)), (3, None), (4, None)] {
        let request = rig.task_request(iscsi::pdu::TaskFunction::AbortTask, 50, itt);
        let asked = asked_for(&rig.send(Pdu::TaskRequest(request)));
        assert_eq!(asked, next.into_iter().collect::<Vec<_>>(), "{itt}");
        assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Abort(_))));
    }
    assert_eq!(admitted(&mut rig, 1..5), [1, 2], "nothing of the share is lost");
}

#[test]
fn writes_that_end_together_do_not_request_data_of_each_other() {
    let settings = Settings { solicited_bytes: 16_384, ..Settings::default() };
    let mut rig = Rig::with(SOLICITED, settings);
    assert_eq!(admitted(&mut rig, 1..40), [1, 2]);
    let mut other = rig.write(40, 8192, 0, true);
    other.lun = scsi::Lun(1 << 48);
    rig.send(Pdu::ScsiCommand(other));
    assert!(rig.admit(40).is_empty());
    rig.session.abort_tasks(Some(scsi::Lun(0)));
    assert_eq!(asked_for(&rig.output()), [40], "only who stays");
}

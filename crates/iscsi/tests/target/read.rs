//! Tests the answers to reads: Data-In PDUs, status and residuals.

use bytes::Bytes;
use iscsi::{
    DataSegment, Itt, Pdu, Serial,
    pdu::{DataInStatus, Residual},
    session::target::TargetCommandOutcome,
};
use proptest::prelude::*;
use scsi::{ScsiStatus, Sense, SenseKey};

use crate::rig::{Rig, data_ins, pattern, response, sense};

fn pieces(length: usize, piece: usize) -> DataSegment {
    let all = pattern(0, length);
    (0..length).step_by(piece.max(1)).map(|at| all.slice(at..length.min(at + piece))).collect()
}

#[test]
fn good_status_is_sent_in_the_last_data_in() {
    let mut rig = Rig::new("MaxRecvDataSegmentLength=65536\n");
    let command = rig.read(1, 4096);
    let command = rig.deliver(command);
    assert_eq!(command.data_in_capacity, 4096);
    let pdus = rig.complete(1, TargetCommandOutcome::good(pieces(4096, 4096)));
    let [data_in] = data_ins(&pdus)[..] else { panic!("{pdus:?}") };
    assert!(data_in.is_final);
    assert_eq!(data_in.status, Some(DataInStatus { status: 0, residual: Residual::None }));
    assert_eq!(data_in.numbers.stat_sn, Serial(501));
    assert_eq!(data_in.numbers.exp_cmd_sn, Serial(101));
    assert_eq!(data_in.numbers.max_cmd_sn, Serial(101 + 127));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn data_in_is_split_by_the_limits_of_the_initiator(
        expected in 0u32..100_000,
        length in 0usize..100_000,
        piece in 1usize..20_000,
        segment in 512u32..20_000,
        burst in 512u32..50_000,
    ) {
        let mut rig = Rig::new(&format!(
            "MaxRecvDataSegmentLength={segment}\nMaxBurstLength={burst}\nFirstBurstLength=512\n"
        ));
        let command = rig.read(9, expected);
        rig.deliver(command);
        let pdus = rig.complete(9, TargetCommandOutcome::good(pieces(length, piece)));
        let sent = length.min(expected as usize);
        let residual = match length as u32 {
            n if n < expected => Residual::Underflow(expected - n),
            n if n > expected => Residual::Overflow(n - expected),
            _ => Residual::None,
        };
        if sent == 0 {
            let response = response(&pdus);
            prop_assert_eq!((response.residual, response.exp_data_sn), (residual, 0));
            return Ok(());
        }
        let pdus = data_ins(&pdus);
        let (mut offset, mut in_burst) = (0, 0);
        for (n, data_in) in pdus.iter().enumerate() {
            let count: usize = data_in.data.iter().map(Bytes::len).sum();
            prop_assert!(count > 0 && count <= segment as usize);
            prop_assert_eq!((data_in.data_sn as usize, data_in.buffer_offset as usize), (n, offset));
            prop_assert_eq!(data_in.data.concat(), pattern(offset, count).to_vec());
            offset += count;
            in_burst += count;
            prop_assert!(in_burst <= burst as usize);
            let is_last = n + 1 == pdus.len();
            prop_assert_eq!(data_in.is_final, is_last || in_burst == burst as usize);
            if data_in.is_final {
                in_burst = 0;
            }
            prop_assert_eq!(data_in.status, is_last.then_some(DataInStatus { status: 0, residual }));
        }
        prop_assert_eq!(offset, sent);
    }
}

#[test]
fn check_condition_follows_the_data_in_a_response_of_its_own() {
    let mut rig = Rig::new("MaxRecvDataSegmentLength=4096\n");
    let command = rig.read(1, 10_000);
    rig.deliver(command);
    let outcome = TargetCommandOutcome {
        data_in: pieces(8192, 8192),
        ..TargetCommandOutcome::check_condition(Sense::new(SenseKey::MediumError, 0x11, 0))
    };
    let pdus = rig.complete(1, outcome);
    assert_eq!(data_ins(&pdus[..2]).len(), 2);
    assert!(data_ins(&pdus[..2]).iter().all(|data_in| data_in.status.is_none()));
    let response = response(&pdus[2..]);
    assert_eq!(sense(response), (3, 0x11, 0));
    assert_eq!(response.exp_data_sn, 2);
    assert_eq!(response.residual, Residual::Underflow(10_000 - 8192));
    assert_eq!(response.numbers.stat_sn, Serial(501));
}

#[test]
fn a_status_without_data_is_a_response() {
    for status in [ScsiStatus::Busy, ScsiStatus::TaskSetFull, ScsiStatus::ReservationConflict] {
        let mut rig = Rig::new("");
        let command = rig.read(1, 0);
        rig.deliver(command);
        let pdus = rig.complete(1, TargetCommandOutcome::status(status));
        let response = response(&pdus);
        assert_eq!((response.status, response.response), (status as u8, 0));
        assert!(response.sense.is_empty());
    }
}

#[test]
fn statuses_are_numbered_in_the_order_they_are_sent() {
    let mut rig = Rig::new("");
    for itt in 0..5 {
        let command = rig.read(itt, 0);
        rig.deliver(command);
    }
    for (n, itt) in [3, 0, 4, 1, 2].into_iter().enumerate() {
        let pdus = rig.complete(itt, TargetCommandOutcome::good(DataSegment::new()));
        let response = response(&pdus);
        assert_eq!((response.itt, response.numbers.stat_sn), (Itt(itt), Serial(501 + n as u32)));
    }
}

#[test]
fn a_bidirectional_command_has_two_residuals() {
    let mut rig = Rig::new("");
    let mut command = rig.write(1, 100, 100, true);
    command.read = true;
    command.bidirectional_read_length = Some(50);
    let delivered = rig.deliver(command);
    assert_eq!(delivered.data_in_capacity, 50);
    let outcome = TargetCommandOutcome {
        data_out_length: Some(80),
        ..TargetCommandOutcome::good(pieces(60, 60))
    };
    let pdus = rig.complete(1, outcome);
    assert_eq!(data_ins(&pdus[..1])[0].data.concat().len(), 50);
    let response = response(&pdus[1..]);
    assert_eq!(response.residual, Residual::Underflow(20));
    assert_eq!(response.bidirectional_read_residual, Residual::Overflow(10));
}

#[test]
fn data_of_a_command_without_a_direction_is_an_overflow_and_is_not_sent() {
    let mut rig = Rig::new("");
    let mut command = rig.read(1, 0);
    command.read = false;
    let delivered = rig.deliver(command);
    assert_eq!(delivered.data_in_capacity, 0);
    let pdus = rig.complete(1, TargetCommandOutcome::good(pieces(36, 36)));
    assert_eq!(response(&pdus).residual, Residual::Overflow(36));
}

#[test]
fn a_command_that_is_completed_twice_is_answered_once() {
    let mut rig = Rig::new("");
    let command = rig.read(1, 0);
    rig.deliver(command);
    assert_eq!(rig.complete(1, TargetCommandOutcome::status(ScsiStatus::Good)).len(), 1);
    assert!(rig.complete(1, TargetCommandOutcome::status(ScsiStatus::Good)).is_empty());
}

#[test]
fn digests_are_used_in_both_directions() {
    let mut rig = Rig::new("HeaderDigest=CRC32C\nDataDigest=CRC32C\n");
    let digests = rig.connection().digests();
    assert!(digests.header && digests.data);
    let command = rig.read(1, 5);
    rig.deliver(command);
    // The decoder of the test fixture checks the digests of these PDUs.
    let pdus = rig.complete(1, TargetCommandOutcome::good(pieces(5, 2)));
    let Pdu::DataIn(data_in) = &pdus[0] else { panic!("{pdus:?}") };
    assert_eq!(data_in.data.concat(), pattern(0, 5));
}

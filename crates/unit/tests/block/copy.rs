//! Tests EXTENDED COPY and RECEIVE COPY RESULTS between the units of one target.

use std::{sync::Arc, time::Duration};

use scsi::{
    Command, PrimaryCommand, ScsiStatus, Sense,
    copy::{CopyList, CopyResults, CopySegment, Cscd},
};
use unit::LogicalUnit;
use volume::{DelayVolume, Geometry, Latency, MemVolume};

use crate::{
    host::{BLOCK, nexus, pattern},
    party::{Member, Party, join, join_over, task},
};

fn copy(list: &CopyList, long: bool) -> (Command, Vec<u8>) {
    let bytes = list.to_bytes(long);
    let parameter_list_length = bytes.len() as u32;
    (Command::Primary(PrimaryCommand::ExtendedCopy { long, parameter_list_length }), bytes)
}

fn list(cscds: &[Cscd], segments: &[CopySegment]) -> CopyList {
    let (cscds, segments) = (cscds.to_vec(), segments.to_vec());
    CopyList { list: 7, identified: true, cscds, segments }
}

fn segment(blocks: u16, source_lba: u64, destination_lba: u64) -> CopySegment {
    CopySegment { source: 0, destination: 1, blocks, source_lba, destination_lba }
}

fn results(results: CopyResults) -> Command {
    Command::Primary(PrimaryCommand::ReceiveCopyResults { results, allocation_length: 1024 })
}

fn two() -> (Arc<Party>, Member, Member) {
    let party = Arc::new(Party::default());
    let a = join(&party, "a", Geometry::with_blocks(1 << 16));
    let b = join(&party, "b", Geometry::with_blocks(1 << 15));
    (party, a, b)
}

#[tokio::test]
async fn blocks_go_from_one_unit_to_another() {
    let (_party, a, b) = two();
    a.good(&Command::write(5, 3000, false), pattern(1, 3000)).await;
    let both = [a.cscd(), b.cscd()];
    for long in [false, true] {
        let (command, data) =
            copy(&list(&both, &[segment(1000, 5, 70), segment(2000, 1005, 1070)]), long);
        // Either unit can perform the copy, so send the command to the first unit in one case and to the second in the
        // other.
        let asked = if long { &a } else { &b };
        asked.good(&command, data).await;
        assert_eq!(b.good(&Command::read(70, 3000), vec![]).await, pattern(1, 3000));
        let zeros = vec![0; 3000 * BLOCK];
        b.good(&Command::write(70, 3000, false), zeros).await;
        let status = asked.good(&results(CopyResults::Status1(7)), vec![]).await;
        assert_eq!(status, [0, 0, 0, 8, 1, 0, 2, 0xf1, 0, 0, 0x0b, 0xb8]);
        let status = asked.good(&results(CopyResults::Status4(7)), vec![]).await;
        assert_eq!((status[4], status[5]), (u8::from(long), 1));
    }
}

#[tokio::test]
async fn an_overlapping_copy_within_a_unit_moves_blocks_before_overwriting_them() {
    let (_party, a, _) = two();
    let blocks = 20_000u16;
    for (from, to) in [(100, 107), (107, 100)] {
        a.good(&Command::write(from, blocks.into(), false), pattern(3, blocks.into())).await;
        let segment = CopySegment { destination: 0, ..segment(blocks, from, to) };
        let (command, data) = copy(&list(&[a.cscd()], &[segment]), false);
        a.good(&command, data).await;
        let read = a.good(&Command::read(to, blocks.into()), vec![]).await;
        assert!(read == pattern(3, blocks.into()), "{from} to {to}");
    }
}

/// CVE-2020-28374 (LIO), CVE-2021-3139 (tcmu-runner): the copy manager found units by their names alone, so
/// that any initiator could read and write the disks of all others.
#[tokio::test]
async fn cve_2020_28374_a_unit_outside_of_the_session_cannot_be_named() {
    let (_party, a, _) = two();
    let others = Arc::new(Party::default());
    let secret = join(&others, "secret", Geometry::with_blocks(4096));
    secret.good(&Command::write(0, 8, false), pattern(9, 8)).await;
    for cscds in [[secret.cscd(), a.cscd()], [a.cscd(), secret.cscd()]] {
        for long in [false, true] {
            let (command, data) = copy(&list(&cscds, &[segment(8, 0, 0)]), long);
            assert_eq!(a.fails(&command, data).await, Sense::UNREACHABLE_COPY_TARGET);
        }
    }
    assert_eq!(a.good(&Command::read(0, 8), vec![]).await, vec![0; 8 * BLOCK]);
    assert_eq!(secret.good(&Command::read(0, 8), vec![]).await, pattern(9, 8));
    // A session without a list of neighbours has access only to the unit itself.
    let stranger = nexus(99);
    let (command, data) = copy(&list(&[a.cscd(), secret.cscd()], &[segment(8, 0, 0)]), false);
    let refused = a.unit.execute(task(&stranger, command.encode(), data)).await;
    assert_eq!(refused.sense, Some(Sense::UNREACHABLE_COPY_TARGET));
}

#[tokio::test]
async fn a_wrong_segment_is_found_before_the_first_block_moves() {
    let (_party, a, b) = two();
    let both = [a.cscd(), b.cscd()];
    a.good(&Command::write(0, 8, false), pattern(1, 8)).await;
    let good = segment(8, 0, 0);
    let wrong = [
        (CopySegment { destination: 2, ..good }, Sense::UNREACHABLE_COPY_TARGET),
        (segment(2, 0, (1 << 15) - 1), Sense::COPY_ABORTED),
        (segment(2, u64::MAX, 0), Sense::COPY_ABORTED),
    ];
    for (segment, sense) in wrong {
        let (command, data) = copy(&list(&both, &[good, segment]), false);
        assert_eq!(a.fails(&command, data).await, sense);
        let failed = a.good(&results(CopyResults::FailedSegment1(7)), vec![]).await;
        assert_eq!(failed[60 + 2] & 0x0f, 0x0a);
    }
    assert_eq!(b.good(&Command::read(0, 8), vec![]).await, vec![0; 8 * BLOCK]);
}

#[tokio::test]
async fn a_write_protected_destination_refuses_the_copy_and_units_of_other_blocks_too() {
    let party = Arc::new(Party::default());
    let a = join(&party, "a", Geometry::with_blocks(4096));
    let protected = Geometry { read_only: true, ..Geometry::with_blocks(4096) };
    let b = join(&party, "b", protected);
    let (command, data) = copy(&list(&[a.cscd(), b.cscd()], &[segment(8, 0, 0)]), false);
    assert_eq!(a.fails(&command, data).await, Sense::THIRD_PARTY_DEVICE_FAILURE);
    let large = Geometry { block_size: 4096, ..Geometry::with_blocks(4096) };
    let c = join(&party, "c", large);
    let (command, data) = copy(&list(&[a.cscd(), c.cscd()], &[segment(8, 0, 0)]), false);
    assert_eq!(a.fails(&command, data).await, Sense::INCORRECT_COPY_TARGET_DEVICE_TYPE);
}

#[tokio::test]
async fn empty_copy_lists_are_accepted_and_results_belong_to_their_nexus() {
    let (party, a, _) = two();
    a.good(&PrimaryCommand::ExtendedCopy { long: false, parameter_list_length: 0 }, vec![]).await;
    let unknown = a.fails(&results(CopyResults::Status1(7)), vec![]).await;
    assert_eq!(unknown, Sense::INVALID_FIELD_IN_CDB);
    let (command, data) = copy(&list(&[], &[]), false);
    a.good(&command, data).await;
    a.good(&results(CopyResults::Status1(7)), vec![]).await;
    let other = a.open(&party, 2);
    let asked = results(CopyResults::Status1(7)).encode();
    let refused = a.unit.execute(task(&other, asked, vec![])).await;
    assert_eq!(refused.status, ScsiStatus::CheckCondition);
    let parameters = a.good(&results(CopyResults::OperatingParameters), vec![]).await;
    assert_eq!(parameters[8..12], [0, 8, 0, 64]);
}

/// The commands of the copy must not take the unit attention condition that is meant for the nexus.
#[tokio::test]
async fn a_copy_does_not_consume_an_attention_condition_of_the_other_unit() {
    let (_party, a, b) = two();
    b.unit.task_management(&b.nexus, unit::TaskManagement::LogicalUnitReset);
    let (command, data) = copy(&list(&[a.cscd(), b.cscd()], &[segment(8, 0, 0)]), false);
    a.good(&command, data).await;
    let told = b.fails(&PrimaryCommand::TestUnitReady, vec![]).await;
    assert_eq!(told, Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_copy_ends_with_a_result_and_other_commands_run_meanwhile() {
    let party = Arc::new(Party::default());
    let lower = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 17)));
    let slow = DelayVolume::new(lower, Latency::uniform(Duration::from_secs(1)));
    let a = join_over(&party, "a", Arc::new(slow));
    let segment = CopySegment { destination: 0, ..segment(60_000, 0, 65_536) };
    let (command, data) = copy(&list(&[a.cscd()], &[segment]), false);
    {
        let mut copying = a.unit.execute(task(&a.nexus, command.encode(), data));
        let read = a.unit.execute(task(&a.nexus, Command::read(0, 1).encode(), vec![]));
        tokio::select! {
            _ = &mut copying => panic!("the copy is long"),
            read = read => assert_eq!(read.status, ScsiStatus::Good),
        }
        let status = a.good(&results(CopyResults::Status1(7)), vec![]).await;
        assert_eq!(status[4], 0, "is still running");
    }
    let status = a.good(&results(CopyResults::Status4(7)), vec![]).await;
    assert_eq!(status[5], 0x60, "terminated");
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_when_one_of_its_units_is_removed_and_does_not_keep_it_alive() {
    let party = Arc::new(Party::default());
    let lower = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 17)));
    let slow = DelayVolume::new(lower, Latency::uniform(Duration::from_secs(1)));
    let a = join_over(&party, "a", Arc::new(slow));
    let b = join(&party, "b", Geometry::with_blocks(1 << 17));
    let (command, data) = copy(&list(&[a.cscd(), b.cscd()], &[segment(60_000, 0, 0)]), false);
    let mut copying = a.unit.execute(task(&a.nexus, command.encode(), data));
    let taken_away = tokio::time::sleep(Duration::from_millis(2500));
    tokio::select! {
        _ = &mut copying => panic!("the copy is long"),
        () = taken_away => {}
    }
    let naa = b.unit.identity().naa;
    party.leave(&naa);
    let gone = Arc::downgrade(&b.unit);
    drop(b);
    assert!(gone.upgrade().is_none());
    assert_eq!(copying.await.sense, Some(Sense::UNREACHABLE_COPY_TARGET));
}

#[tokio::test(start_paused = true)]
async fn a_copy_abort_ends_after_its_copy_and_only_the_nexus_of_the_copy_may_abort_it() {
    let party = Arc::new(Party::default());
    let lower = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 17)));
    let slow = DelayVolume::new(lower, Latency::uniform(Duration::from_secs(1)));
    let a = join_over(&party, "a", Arc::new(slow));
    let other = a.open(&party, 2);
    let abort = Command::Primary(PrimaryCommand::CopyOperationAbort { list: 7 });
    assert_eq!(a.fails(&abort, vec![]).await, Sense::INVALID_FIELD_IN_CDB, "no such copy");
    let segment = CopySegment { destination: 0, ..segment(60_000, 0, 65_536) };
    let (command, data) = copy(&list(&[a.cscd()], &[segment]), true);
    let copying = a.unit.execute(task(&a.nexus, command.encode(), data));
    let aborting = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let foreign = a.unit.execute(task(&other, abort.encode(), vec![])).await;
        assert_eq!(foreign.status, ScsiStatus::CheckCondition);
        let status = a.good(&results(CopyResults::Status4(7)), vec![]).await;
        assert_eq!(status[5], 0x11, "is still running");
        a.good(&abort, vec![]).await;
        let status = a.good(&results(CopyResults::Status4(7)), vec![]).await;
        assert_eq!(status[5], 0x60, "terminated");
    };
    let begun = tokio::time::Instant::now();
    let (copied, ()) = tokio::join!(copying, aborting);
    assert_eq!(copied.sense, Some(Sense::COPY_ABORTED));
    assert!(begun.elapsed() < Duration::from_secs(4), "fifteen pieces of two seconds");
    // An abort of a copy that has ended is no error and does not change its status.
    a.good(&abort, vec![]).await;
}

//! Tests commands that change blocks on a volume that becomes full, or loses its link, while they are executed.

use std::sync::Arc;

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Command, Form, PrimaryCommand, ScsiStatus, Sense,
    UnmapDescriptor,
    copy::{CopyList, CopyResults, CopySegment, PopulateToken, TokenRange, WriteUsingToken},
    unmap_list,
};
use volume::{
    Error, Extent, FaultCallKind as On, FaultRule, FaultVolume, Faults, Geometry, Lba, MemVolume,
    Symptom,
};

use crate::{
    host::{BLOCK, pattern},
    party::{Member, Party, join_over},
};

const BLOCKS: u64 = 1 << 15;

/// Returns a unit, and the faults that the test can inject into the unit's volume.
fn faulty(party: &Arc<Party>, serial: &str) -> (Member, Arc<Faults>) {
    let fault = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS))));
    let faults = Arc::clone(fault.faults());
    (join_over(party, serial, Arc::new(fault)), faults)
}

fn alone() -> (Member, Arc<Faults>) {
    faulty(&Arc::new(Party::default()), "a")
}

fn sixteen(lba: u64, blocks: u32) -> BlockTransfer {
    BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(lba, blocks) }
}

fn full(call: On) -> FaultRule {
    FaultRule::always(call, Symptom::Fails(Error::Busy("the log is full")))
}

/// Commands that are executed in steps, each with its data and the volume call that its steps make.
fn commands() -> Vec<(Command, Vec<u8>, On)> {
    let same = |unmap| {
        Command::Block(BlockCommand::WriteSame {
            transfer: sixteen(0, 5000),
            unmap,
            anchor: false,
            no_data_out: false,
        })
    };
    let extents = [(0, 100), (500, 100), (900, 9)];
    let list = unmap_list(&extents.map(|(lba, blocks)| UnmapDescriptor { lba, blocks }));
    vec![
        (same(false), vec![7; BLOCK], On::Write),
        (Command::Block(BlockCommand::OrWrite(sixteen(0, 5000))), vec![7; 5000 * BLOCK], On::Write),
        (
            Command::Block(BlockCommand::Unmap {
                anchor: false,
                parameter_list_length: list.len() as u16,
            }),
            list,
            On::Discard,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_later_steps_meet_a_full_volume_waits_and_completes() {
    for (command, data, call) in commands() {
        let (member, faults) = alone();
        faults.add(full(call).after(1).times(50));
        member.good(&command, data).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_partly_done_command_never_ends_in_busy_and_reports_how_far_it_came() {
    let firsts = [2048, 2048, 500];
    for ((command, data, call), first) in commands().into_iter().zip(firsts) {
        let (member, faults) = alone();
        faults.add(full(call).after(1));
        let sense = member.fails(&command, data.clone()).await;
        let expected = Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT.with_information(first);
        assert_eq!(sense, expected, "{command:?}");
        faults.clear();
        faults.add(full(call));
        let refused = member.send(&command, data).await;
        assert_eq!(refused.status, ScsiStatus::Busy, "with nothing done: {command:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_waits_for_a_full_destination_and_reports_how_far_it_came() {
    let party = Arc::new(Party::default());
    let (a, _) = faulty(&party, "a");
    let (b, faults) = faulty(&party, "b");
    a.good(&Command::write(0, 20_000, false), pattern(1, 20_000)).await;
    let segment = CopySegment {
        source: 0,
        destination: 1,
        blocks: 20_000,
        source_lba: 0,
        destination_lba: 0,
    };
    let cscds = vec![a.cscd(), b.cscd()];
    let list = CopyList { list: 7, identified: true, cscds, segments: vec![segment] };
    let bytes = list.to_bytes(false);
    let copy =
        PrimaryCommand::ExtendedCopy { long: false, parameter_list_length: bytes.len() as u32 };

    faults.add(full(On::Write).after(1).times(50));
    a.good(&copy, bytes.clone()).await;
    assert_eq!(b.good(&Command::read(0, 20_000), vec![]).await, pattern(1, 20_000));

    faults.clear();
    faults.add(full(On::Write).after(1));
    assert_eq!(a.fails(&copy, bytes).await, Sense::COPY_ABORTED);
    let results = PrimaryCommand::ReceiveCopyResults {
        results: CopyResults::Status1(7),
        allocation_length: 64,
    };
    let status = a.good(&results, vec![]).await;
    assert_eq!(status[8..12], 8192u32.to_be_bytes(), "blocks that were copied");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_written_to_a_full_volume_when_it_has_room_again() {
    let (member, faults) = alone();
    member.good(&Command::write(0, 10_000, false), pattern(1, 10_000)).await;
    let ranges = vec![TokenRange { lba: 0, blocks: 10_000 }];
    let list = PopulateToken { timeout_s: 0, rod_type: None, ranges }.to_bytes();
    let populate =
        BlockCommand::PopulateToken { list: 3, parameter_list_length: list.len() as u32 };
    member.good(&populate, list).await;
    let results = PrimaryCommand::ReceiveCopyResults {
        results: CopyResults::RodTokens(3),
        allocation_length: 1024,
    };
    let told = member.good(&results, vec![]).await;
    let token = told[32 + usize::from(told[13]) + 6..].try_into().expect("512 bytes");
    let ranges = vec![TokenRange { lba: 20_000, blocks: 10_000 }];
    let list = WriteUsingToken { delete: false, offset: 0, token, ranges }.to_bytes();
    let write = BlockCommand::WriteUsingToken { list: 4, parameter_list_length: list.len() as u32 };
    faults.add(full(On::Write).after(1).times(50));
    member.good(&write, list.clone()).await;
    assert_eq!(member.good(&Command::read(20_000, 10_000), vec![]).await, pattern(1, 10_000));
    faults.clear();
    faults.add(full(On::Write).after(1));
    assert_eq!(member.fails(&write, list).await, Sense::COPY_ABORTED);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_done_and_cannot_be_verified_does_not_end_in_busy() {
    let (member, faults) = alone();
    let transfer = BlockTransfer::new(0, 8);
    let command =
        Command::Block(BlockCommand::WriteAndVerify { transfer, byte_check: ByteCheck::Data });
    faults.add(full(On::Read).times(50));
    member.good(&command, pattern(3, 8)).await;
    faults.clear();
    faults.add(full(On::Read));
    let sense = member.fails(&command, pattern(4, 8)).await;
    assert!(sense.is(Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT), "{sense}");
    faults.clear();
    faults.add(full(On::Write));
    assert_eq!(member.send(&command, pattern(5, 8)).await.status, ScsiStatus::Busy);
    faults.clear();
    assert_eq!(member.good(&Command::read(0, 8), vec![]).await, pattern(4, 8), "nothing was done");
}

#[tokio::test(start_paused = true)]
async fn a_compare_and_write_that_may_have_been_done_does_not_end_in_busy() {
    let (member, faults) = alone();
    let command = Command::Block(BlockCommand::CompareAndWrite(sixteen(0, 1)));
    let exchange = |old: u8, new: u8| [vec![old; BLOCK], vec![new; BLOCK]].concat();
    faults.add(full(On::Write));
    assert_eq!(member.send(&command, exchange(0, 1)).await.status, ScsiStatus::Busy);
    faults.clear();
    let extent = Extent { lba: Lba(0), blocks: 1 };
    let lost = || Symptom::FailsAfter(Error::Unreachable("the link is down".into()));
    faults.add(FaultRule::always(On::Write, lost()).at(extent));
    let sense = member.fails(&command, exchange(0, 2)).await;
    assert!(sense.is(Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT), "{sense}");
    faults.clear();
    member.good(&command, exchange(2, 3)).await;
}

/// After BUSY the initiator would assume that the blocks are unchanged.
#[tokio::test(start_paused = true)]
async fn a_write_that_may_have_been_done_waits_and_never_ends_in_busy() {
    let transfer = BlockTransfer::new(0, 8);
    let commands = [
        Command::Block(BlockCommand::Write(transfer)),
        Command::Block(BlockCommand::WriteAndVerify { transfer, byte_check: ByteCheck::Data }),
    ];
    let silent = || Symptom::FailsAfter(Error::Unreachable("the link is down".into()));
    let away = || Symptom::Fails(Error::Away("the link is down".into()));
    for command in commands {
        let (member, faults) = alone();
        // `Away`: the request was never sent, so no block has changed and BUSY is right.
        faults.add(FaultRule::always(On::Write, away()));
        assert_eq!(member.send(&command, pattern(1, 8)).await.status, ScsiStatus::Busy);
        faults.clear();
        assert_eq!(member.good(&Command::read(0, 8), vec![]).await, vec![0; 8 * BLOCK]);
        // The link is cut during the write, and comes back in time for a retry.
        faults.add(FaultRule::always(On::Write, silent()).times(1));
        faults.add(FaultRule::always(On::Write, away()).times(50));
        member.good(&command, pattern(2, 8)).await;
        assert_eq!(member.good(&Command::read(0, 8), vec![]).await, pattern(2, 8));
        // The link stays cut longer than the unit retries.
        faults.add(FaultRule::always(On::Write, silent()).times(1));
        faults.add(FaultRule::always(On::Write, away()));
        let sense = member.fails(&command, pattern(3, 8)).await;
        assert!(sense.is(Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT), "{command:?}: {sense}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_larger_than_the_log_is_an_illegal_request() {
    let (member, faults) = alone();
    let error = Error::TooLong { bytes: 16 << 20, most: 4 << 20 };
    faults.add(FaultRule::always(On::Write, Symptom::Fails(error)));
    let sense = member.fails(&Command::write(0, 8, false), pattern(1, 8)).await;
    assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB);
}

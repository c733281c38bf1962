//! Tests the command SANITIZE: its methods, progress, failures and interruptions.

use std::{sync::Arc, time::Duration};

use scsi::{
    BlockCommand, Command, LbaStatus, Overwrite, PrimaryCommand, Sanitize, SanitizeAction,
    ScsiStatus, Sense, SenseKey,
};
use unit::{LogicalUnit, TaskManagement};
use volume::{
    DelayVolume, EncryptVolume, FaultCallKind as On, FaultRule, FaultVolume, Geometry, Io, Keyring,
    Latency, MemVolume, Renewed, Stack, Symptom, Volume, VolumeKey,
};

use crate::{
    host::{BLOCK, pattern},
    party::{Member, Party, join, join_over, task},
};

const BLOCKS: u64 = 8192;

fn sanitize(action: SanitizeAction, immediate: bool, length: usize) -> Command {
    Command::Block(BlockCommand::Sanitize(Sanitize {
        action,
        immediate,
        unrestricted_exit: false,
        parameter_list_length: length as u16,
    }))
}

fn overwrite(immediate: bool) -> (Command, Vec<u8>) {
    let list = Overwrite { invert: true, passes: 2, pattern: vec![0xa0, 0x05] }.to_bytes();
    (sanitize(SanitizeAction::Overwrite, immediate, list.len()), list)
}

fn slow() -> (Stack, Member) {
    let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS)));
    let latency = Latency { write: Duration::from_secs(1), ..Latency::default() };
    let volume = Arc::new(DelayVolume::new(Arc::clone(&lower), latency));
    (lower, join_over(&Arc::new(Party::default()), "a", volume))
}

#[tokio::test]
async fn overwrite_leaves_the_pattern_of_the_last_pass_everywhere() {
    let a = join(&Arc::new(Party::default()), "a", Geometry::with_blocks(BLOCKS));
    a.good(&Command::write(5, 100, false), pattern(1, 100)).await;
    let (command, list) = overwrite(false);
    a.good(&command, list).await;
    let all = a.good(&Command::read(0, BLOCKS as u32), vec![]).await;
    assert!(all.chunks_exact(2).all(|pair| pair == [0x5f, 0xfa]));
}

#[tokio::test]
async fn block_erase_overwrites_old_data_and_leaves_no_block_mapped() {
    let (lower, observed) = {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS)));
        (Arc::clone(&lower), lower as Stack)
    };
    let a = join_over(&Arc::new(Party::default()), "a", observed);
    a.good(&Command::write(5, 100, false), pattern(1, 100)).await;
    let kept = lower.read(volume::Extent { lba: volume::Lba(8), blocks: 8 }).await.expect("read");
    drop(kept);
    a.good(&sanitize(SanitizeAction::BlockErase, false, 0), vec![]).await;
    assert_eq!(a.good(&Command::read(5, 100), vec![]).await, vec![0; 100 * BLOCK]);
    let asked = BlockCommand::GetLbaStatus { lba: 0, allocation_length: 256 };
    let list = a.good(&asked, vec![]).await;
    let all: Vec<_> = scsi::parse_lba_status_list(&list).collect();
    assert_eq!(all, [LbaStatus { lba: 0, blocks: BLOCKS as u32, mapped: false }]);
    assert_eq!(lower.allocated_bytes(), 0);
}

/// An abort, a reset or the end of the session does not end the SANITIZE. Meanwhile all commands wait except
/// those that report on the unit, and the progress increases.
#[tokio::test(start_paused = true)]
async fn sanitize_continues_after_an_abort_a_reset_or_the_end_of_the_session() {
    let (lower, a) = slow();
    let (command, list) = overwrite(false);
    {
        let mut asked = a.unit.execute(task(&a.nexus, command.encode(), list));
        let waited = tokio::time::timeout(Duration::from_millis(2500), &mut asked).await;
        assert!(waited.is_err(), "eight writes of a second each");
        // The block ends and drops the future of the command, as ABORT TASK does.
    }
    let told = a.fails(&PrimaryCommand::TestUnitReady, vec![]).await;
    assert_eq!((told.key, told.asc, told.ascq), (SenseKey::NotReady, 0x04, 0x1b));
    let first = told.progress.expect("the sense data has the progress");
    for function in [
        TaskManagement::LogicalUnitReset,
        TaskManagement::TargetWarmReset,
        TaskManagement::TargetColdReset,
    ] {
        a.unit.task_management(&a.nexus, function);
        a.fails(&PrimaryCommand::TestUnitReady, vec![]).await;
    }
    a.unit.nexus_closed(&a.nexus);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for refused in [Command::read(0, 1), Command::write(0, 1, false), overwrite(true).0] {
        let sense = a.fails(&refused, vec![0; BLOCK]).await;
        assert!(sense.progress.expect("still going") > first, "{refused:?}");
    }
    a.good(&PrimaryCommand::Inquiry { page: None, allocation_length: 36 }, vec![]).await;
    let asked = PrimaryCommand::RequestSense { descriptor_format: false, allocation_length: 252 };
    let polled = Sense::from_bytes(&a.good(&asked, vec![]).await).expect("sense data");
    assert!(polled.progress.is_some() && polled.ascq == 0x1b);
    while a.send(&Command::Primary(PrimaryCommand::TestUnitReady), vec![]).await.status
        != ScsiStatus::Good
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let all = lower.read(volume::Extent { lba: volume::Lba(0), blocks: BLOCKS as u32 });
    let all = all.await.expect("read").into_bytes();
    assert!(all.chunks_exact(2).all(|pair| pair == [0x5f, 0xfa]));
}

#[tokio::test(start_paused = true)]
async fn with_immed_the_status_is_sent_at_once_but_after_earlier_writes() {
    let (lower, a) = slow();
    let write = Command::write(0, 1, false).encode();
    let mut writing = a.unit.execute(task(&a.nexus, write, pattern(7, 1)));
    let started = tokio::time::timeout(Duration::from_millis(10), &mut writing).await;
    assert!(started.is_err());
    let (command, list) = overwrite(true);
    let start = tokio::time::Instant::now();
    let (written, begun) = tokio::join!(writing, a.send(&command, list));
    assert_eq!((written.status, begun.status), (ScsiStatus::Good, ScsiStatus::Good));
    assert!(start.elapsed() < Duration::from_secs(2));
    while a.send(&Command::Primary(PrimaryCommand::TestUnitReady), vec![]).await.status
        != ScsiStatus::Good
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let first = lower.read(volume::Extent { lba: volume::Lba(0), blocks: 1 }).await;
    assert_eq!(
        first.expect("read").into_bytes()[..2],
        [0x5f, 0xfa],
        "the late write was overwritten"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sanitize_failure_is_reported_until_another_sanitize_succeeds() {
    let fault = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS))));
    let faults = fault.faults().clone();
    let a = join_over(&Arc::new(Party::default()), "a", Arc::new(fault));
    let error = volume::Error::Device("broken".into());
    faults.add(FaultRule::always(On::Write, Symptom::Fails(error)).after(3).times(1));
    let (command, list) = overwrite(false);
    assert_eq!(a.fails(&command, list.clone()).await, Sense::SANITIZE_COMMAND_FAILED);
    let read = a.fails(&Command::read(0, 1), vec![]).await;
    assert_eq!(read, Sense::SANITIZE_COMMAND_FAILED);
    let exit = sanitize(SanitizeAction::ExitFailureMode, false, 0);
    assert_eq!(a.fails(&exit, vec![]).await, Sense::INVALID_FIELD_IN_CDB, "AUSE was not set");
    // The SANITIZE waits for a volume that is unreachable for a while.
    let away = volume::Error::Unreachable("line cut".into());
    faults.add(FaultRule::always(On::Write, Symptom::Fails(away)).times(5));
    a.good(&command, list).await;
    a.good(&Command::read(0, 1), vec![]).await;
    a.good(&exit, vec![]).await;
}

#[tokio::test]
async fn wrong_lists_and_units_that_keep_older_copies_are_refused() {
    let party = Arc::new(Party::default());
    let a = join(&party, "a", Geometry::with_blocks(BLOCKS));
    for length in [0, 1, 4, 517] {
        let command = sanitize(SanitizeAction::Overwrite, false, length);
        assert_eq!(a.fails(&command, vec![1; length]).await, Sense::INVALID_FIELD_IN_CDB);
    }
    let command = sanitize(SanitizeAction::Overwrite, false, 6);
    let sense = a.fails(&command, vec![0, 0, 0, 2, 1, 1]).await;
    assert_eq!(sense, Sense::INVALID_FIELD_IN_PARAMETER_LIST, "no pass");
    let logged = Geometry { in_place: false, ..Geometry::with_blocks(BLOCKS) };
    let b = join(&party, "b", logged);
    let (command, list) = overwrite(false);
    assert_eq!(b.fails(&command, list.clone()).await, Sense::INVALID_COMMAND_OPERATION_CODE);
    let protected = Geometry { read_only: true, ..Geometry::with_blocks(BLOCKS) };
    let c = join(&party, "c", protected);
    assert_eq!(c.fails(&command, list).await, Sense::WRITE_PROTECTED);
    a.good(&Command::read(0, 1), vec![]).await;
}

/// A keyring that returns a different key at each call.
struct Keys(std::sync::atomic::AtomicU8);

impl Keyring for Keys {
    fn renew(&self) -> Io<'_, Renewed> {
        let seed = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let key = VolumeKey::new(&std::array::from_fn(|at| at as u8 ^ seed)).expect("two halves");
        Io::done(Ok(Renewed { key, settled: Ok(()) }))
    }
}

#[tokio::test]
async fn cryptographic_erase_leaves_nothing_that_can_be_read() {
    let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS)));
    let keys = Keys(std::sync::atomic::AtomicU8::new(1));
    let Renewed { key, .. } = keys.renew().await.expect("a key");
    let volume = Arc::new(EncryptVolume::new(lower, &key, keys));
    let a = join_over(&Arc::new(Party::default()), "a", volume);
    a.good(&Command::write(5, 100, false), pattern(1, 100)).await;
    a.good(&sanitize(SanitizeAction::CryptographicErase, false, 0), vec![]).await;
    let found = a.good(&Command::read(5, 100), vec![]).await;
    let before = pattern(1, 100);
    assert!(found.chunks(16).zip(before.chunks(16)).all(|(now, then)| now != then));
    a.good(&Command::write(5, 100, false), pattern(2, 100)).await;
    assert_eq!(a.good(&Command::read(5, 100), vec![]).await, pattern(2, 100));
}

#[tokio::test]
async fn an_unencrypted_volume_has_no_cryptographic_erase() {
    let a = join(&Arc::new(Party::default()), "a", Geometry::with_blocks(BLOCKS));
    let command = sanitize(SanitizeAction::CryptographicErase, false, 0);
    assert_eq!(a.fails(&command, vec![]).await, Sense::INVALID_FIELD_IN_CDB);
    let ask = PrimaryCommand::ReportSupportedOperationCodes {
        reporting: scsi::Reporting::ServiceAction(0x48, 3),
        timeouts: false,
        allocation_length: 64,
    };
    assert_eq!(a.good(&ask, vec![]).await[1] & 7, 1, "not supported");
}

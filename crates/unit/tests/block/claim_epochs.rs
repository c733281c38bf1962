//! Tests claims on a volume with epochs: the owner's writes become visible to other initiators with its next flush.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Duration,
};

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, ClaimAction, ClaimParameters, Command, ModeSelect,
    PrimaryCommand, ScsiStatus, Sense, VendorCommand,
    copy::{PopulateToken, TokenRange},
    mode::{CachingModePage, ControlModePage, ModePage, ModeParameters},
    vpd::ForebayVolume,
};
use unit::{BlockUnit, ClaimedUnit, LogicalUnit, Nexus, NotDropped, Settings, UnitIdentity};
use volume::{DelayVolume, Durability, Geometry, Latency, MemVolume};

use crate::{
    claim::{STOPPING, ask, claim, now, out, write_as},
    host::{Call, Host, MemoryStore, READY, geometry, nexus, pattern, verify},
};

#[test]
fn the_epoch_of_a_claim_begins_with_it_and_no_other_session_ends_it() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    let other = host.other(2);
    let page = PrimaryCommand::Inquiry { page: Some(ForebayVolume::PAGE), allocation_length: 64 };
    let told = ForebayVolume::from_bytes(&host.good(&page, &[]));
    assert_eq!(told, Some(ForebayVolume { epoch_blocks: 800, orders_flushes: true }));
    let calls = |host: &Host| {
        let mut calls = host.asked();
        calls.retain(|call| matches!(call, Call::Flush | Call::RollBack));
        calls
    };
    calls(&host);
    // The first claim flushes the volume, so that earlier writes of other initiators survive a roll-back.
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(calls(&host), [Call::Flush]);
    // A repeated claim in the same session keeps the session's writes: it causes no roll-back.
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[10])), None);
    assert_eq!(calls(&host), []);
    let flush = Command::synchronize_cache().encode();
    assert_eq!(host.send_as(&other, &flush, &[]).status, ScsiStatus::Good);
    assert_eq!(calls(&host), [], "it is the epoch of another nexus");
    let roll_back = VendorCommand::RollBack.encode();
    let protected = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    assert_eq!(host.send_as(&other, &roll_back, &[]).sense, protected);
    host.good(&VendorCommand::RollBack, &[]);
    host.good(&Command::synchronize_cache(), &[]);
    assert_eq!(calls(&host), [Call::RollBack, Call::Flush]);
    // In a new session, the writes that the owner had not flushed are half an epoch, and are rolled back.
    host.unit.nexus_closed(&host.nexus);
    let back = host.other(3);
    assert_eq!(ask(&host, &back, ClaimAction::Claim, &claim(2, 20, &[10])), None);
    assert_eq!(calls(&host), [Call::RollBack]);
    host.unit.nexus_closed(&back);
    now(host.unit.drop_claim()).expect("saved");
    assert_eq!(calls(&host), [Call::RollBack]);
}

#[test]
fn an_epoch_that_could_not_begin_begins_when_its_owner_claims_again() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    host.unit.nexus_closed(&host.nexus);
    let back = host.other(3);
    host.calls.keeps_open_epoch.store(true, Ordering::Relaxed);
    assert!(ask(&host, &back, ClaimAction::Claim, &claim(2, 20, &[10])).is_some());
    host.calls.keeps_open_epoch.store(false, Ordering::Relaxed);
    host.asked();
    assert_eq!(ask(&host, &back, ClaimAction::Claim, &claim(2, 20, &[10])), None);
    assert_eq!(host.asked(), [Call::RollBack]);
    assert_eq!(ask(&host, &back, ClaimAction::Claim, &claim(2, 20, &[10])), None);
    assert_eq!(host.asked(), [], "once is enough");
}

#[test]
fn other_readers_during_a_claim_get_the_last_flushed_epoch_and_do_not_end_one() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    let other = host.other(2);
    let calls = |nexus: &Nexus, command: Command| {
        host.asked();
        let done = host.send_as(nexus, &command.encode(), &[]);
        assert_eq!(done.status, ScsiStatus::Good, "{command:?}: {:?}", done.sense);
        host.asked()
    };
    let forced = || Command::Block(BlockCommand::Read(BlockTransfer::new(3, 2).with_fua(true)));
    let verify = || verify(BlockTransfer::new(3, 2), ByteCheck::Medium);
    assert_eq!(calls(&other, Command::read(3, 2)), [Call::Read(3, 2)], "no nexus owns an epoch");
    assert_eq!(calls(&other, forced()), [Call::Flush, Call::Read(3, 2)]);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(calls(&host.nexus, Command::read(3, 2)), [Call::Read(3, 2)]);
    let flushed = [Call::ReadFlushed(3, 2)];
    // Other initiators read the flushed epoch, with and without a session of the owner. Their FUA flushes nothing,
    // since the flush would end the owner's epoch.
    for is_gone in [false, true] {
        if is_gone {
            host.unit.nexus_closed(&host.nexus);
        }
        assert_eq!(calls(&other, Command::read(3, 2)), flushed);
        assert_eq!(calls(&other, forced()), flushed);
        assert_eq!(calls(&other, verify()), flushed);
        assert_eq!(calls(&other, STOP), []);
        for (page, sense) in [
            (no_write_cache(), Sense::INVALID_FIELD_IN_PARAMETER_LIST),
            (protected(true), Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED),
        ] {
            assert_eq!(select_as(&host, &other, &page), Some(sense));
        }
        assert_eq!(select_as(&host, &other, &with_descriptors()), None, "it is about sense data");
        assert_eq!(select_as(&host, &other, &protected(false)), None, "back");
        assert_eq!(host.asked(), []);
    }
    // The unit makes no token: the owner's next flush would change the data that it represents, without a write that
    // voids it.
    let ranges = vec![TokenRange { lba: 0, blocks: 8 }];
    let list = PopulateToken { timeout_s: 0, rod_type: None, ranges }.to_bytes();
    let length = list.len() as u32;
    let made = BlockCommand::PopulateToken { list: 1, parameter_list_length: length }.encode();
    let refused = host.send_as(&other, &made, &list).sense;
    assert_eq!(refused, Some(Sense::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN));
    now(host.unit.drop_claim()).expect("saved");
    assert_eq!(calls(&other, Command::read(3, 2)), [Call::Read(3, 2)]);
    assert_eq!(calls(&other, STOP), [Call::Flush], "no nexus owns an epoch any more");
}

/// A session that has lost the claim must neither end an epoch of the present owner nor write-protect the unit.
#[test]
fn a_fenced_session_neither_flushes_by_a_stop_nor_changes_mode_parameters() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    let later = host.other(2);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(ask(&host, &later, ClaimAction::Claim, &claim(2, 20, &[10])), None);
    host.asked();
    let fenced = Some(Sense::CLAIM_FENCED);
    assert_eq!(host.send(&STOP.encode(), &[]).sense, fenced);
    assert_eq!(select_as(&host, &host.nexus, &protected(true)), fenced);
    assert_eq!(host.asked(), []);
    // The owner of the claim may stop the unit and write-protect it.
    assert_eq!(host.send_as(&later, &STOP.encode(), &[]).status, ScsiStatus::Good);
    assert_eq!(select_as(&host, &later, &protected(true)), None);
    assert_eq!(host.asked(), [Call::Flush, Call::Flush]);
}

/// A host may have turned the write cache off before the unit got a cache with epochs.
#[test]
fn with_a_saved_wce_of_0_the_writes_of_an_owner_are_no_epochs_of_their_own() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    assert_eq!(select_as(&host, &host.nexus, &no_write_cache()), None);
    drop(host);
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    let wrote = |host: &Host| {
        host.asked();
        assert_eq!(write_as(host, &host.nexus), None);
        host.asked()
    };
    assert_eq!(wrote(&host), [Call::Write(0, 512, Durability::Stable)], "a host may rely on it");
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(wrote(&host), [Call::Write(0, 512, Durability::Volatile)]);
    // A gateway reads the mode page before it claims the unit, to find out whether it has to flush.
    let asked = PrimaryCommand::ModeSense(scsi::ModeSense {
        ten: false,
        long_lba: false,
        no_block_descriptors: true,
        control: scsi::PageControl::Current,
        page: CachingModePage::PAGE,
        subpage: 0,
        allocation_length: 255,
    });
    let told = ModeParameters::from_bytes_6(&host.good(&asked, &[])).expect("mode parameters");
    assert!(CachingModePage::from_page(&told.pages[0]).expect("the page").write_cache);
    let refused = select_as(&host, &host.nexus, &no_write_cache());
    assert_eq!(refused, Some(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    let on = CachingModePage { write_cache: true, read_cache_disabled: false }.to_page();
    assert_eq!(select_as(&host, &host.nexus, &on), None);
    drop(host);
    let host = Host::with_store(geometry(), &store);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(wrote(&host), [Call::Write(0, 512, Durability::Volatile)], "the host took it back");
}

const STOP: Command = Command::Block(BlockCommand::StartStop(STOPPING));

fn no_write_cache() -> ModePage {
    CachingModePage { write_cache: false, read_cache_disabled: false }.to_page()
}

fn protected(write_protect: bool) -> ModePage {
    let descriptor_sense = false;
    ControlModePage {
        descriptor_sense,
        unrestricted_reordering: true,
        write_protect,
        busy_timeout: 0xffff,
    }
    .to_page()
}

fn with_descriptors() -> ModePage {
    ControlModePage {
        descriptor_sense: true,
        unrestricted_reordering: true,
        write_protect: false,
        busy_timeout: 0xffff,
    }
    .to_page()
}

/// Returns the sense of a MODE SELECT that saves a page, without its field pointer.
fn select_as(host: &Host, from: &Nexus, page: &ModePage) -> Option<Sense> {
    let pages = vec![page.clone()];
    let list = ModeParameters { pages, ..ModeParameters::default() }.to_bytes_6();
    let select = PrimaryCommand::ModeSelect(ModeSelect {
        ten: false,
        page_format: true,
        revert: false,
        save: true,
        parameter_list_length: list.len() as u16,
    });
    let done = host.send_as(from, &select.encode(), &list);
    done.sense.map(|sense| Sense { field: None, descriptor_format: false, ..sense })
}

/// If the claim ended before the roll-back, readers would get half an epoch, and any flush would keep it.
#[test]
fn a_claim_whose_epoch_cannot_be_rolled_back_stays_in_force_and_can_be_dropped_later() {
    for is_saved in [true, false] {
        let store = Arc::new(MemoryStore::default());
        let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
        let other = host.other(2);
        assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
        assert_eq!(write_as(&host, &host.nexus), None);
        host.calls.keeps_open_epoch.store(is_saved, Ordering::Relaxed);
        store.broken.store(!is_saved, Ordering::Relaxed);
        let failed = now(host.unit.drop_claim()).expect_err("it fails");
        assert_eq!(matches!(failed, NotDropped::NotRolledBack(_)), is_saved, "{failed}");
        host.asked();
        assert!(host.unit.claim_report().expect("told").is_held);
        let read = host.send_as(&other, &Command::read(3, 2).encode(), &[]);
        assert_eq!((read.status, host.asked()), (ScsiStatus::Good, vec![Call::ReadFlushed(3, 2)]));
        let flush = host.send_as(&other, &Command::synchronize_cache().encode(), &[]);
        assert_eq!((flush.status, host.asked()), (ScsiStatus::Good, vec![]), "it ends no epoch");
        // The roll-back may have discarded a part of the epoch, so the former owner must not continue it.
        let fenced = Some(Sense::CLAIM_FENCED);
        assert_eq!(write_as(&host, &host.nexus), fenced);
        assert_eq!(host.send(&Command::synchronize_cache().encode(), &[]).sense, fenced);

        host.calls.keeps_open_epoch.store(false, Ordering::Relaxed);
        store.broken.store(false, Ordering::Relaxed);
        now(host.unit.drop_claim()).expect("dropped");
        assert_eq!(host.asked(), [Call::RollBack]);
        let told = host.unit.claim_report().expect("told");
        assert!(told.is_dropped && !told.is_held);
        assert_eq!(write_as(&host, &other), None);
    }
}

/// A volume without epochs holds a consistent prefix only from a flush of the owner until its next write.
#[test]
fn without_epochs_other_readers_are_refused_between_a_write_of_the_owner_and_its_flush() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    let read_as = |nexus: &Nexus, host: &Host| {
        let done = host.send_as(nexus, &Command::read(0, 8).encode(), &[]);
        (done.status, done.sense)
    };
    let (good, busy) = ((ScsiStatus::Good, None), (ScsiStatus::Busy, None));
    let refused = (ScsiStatus::CheckCondition, Some(Sense::CLAIM_HALF_AN_EPOCH));
    let dirty = |generation, opening, predecessors: &[u64]| ClaimParameters {
        is_dirty: true,
        ..claim(generation, opening, predecessors)
    };
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &dirty(1, 10, &[])), None);
    assert_eq!(read_as(&other, &host), good, "nothing was sent");
    assert_eq!(write_as(&host, &host.nexus), None);
    assert_eq!(read_as(&other, &host), busy);
    assert_eq!(read_as(&host.nexus, &host), good, "the owner may");
    let flush = Command::synchronize_cache();
    host.send_as(&other, &flush.encode(), &[]);
    assert_eq!(read_as(&other, &host), busy, "only the owner knows where its epoch ends");
    host.send_as(&other, &STOP.encode(), &[]);
    assert_eq!(read_as(&other, &host), busy, "the stop is not the owner's either");
    host.good(&flush, &[]);
    assert_eq!(read_as(&other, &host), good);
    assert_eq!(write_as(&host, &host.nexus), None);
    host.good(&STOP, &[]);
    assert_eq!(read_as(&other, &host), good, "the owner's stop is a flush");
    // The gateway writes this directly to the volume, bypassing its log (FUA), so no flush need follow.
    host.good(&Command::write(0, 1, true), &pattern(1, 1));
    assert_eq!(read_as(&other, &host), good);
    // The owner is lost in the middle of a destage round: no other initiator can end the round.
    assert_eq!(write_as(&host, &host.nexus), None);
    host.unit.nexus_closed(&host.nexus);
    assert_eq!(read_as(&other, &host), refused);
    // The owner comes back with dirty data that the unit does not have yet; then again after a restart of the unit.
    let back = host.other(3);
    assert_eq!(ask(&host, &back, ClaimAction::Claim, &dirty(1, 10, &[])), None);
    assert_eq!(read_as(&other, &host), busy);
    drop(host);
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    assert_eq!(read_as(&other, &host), refused, "the state of the epoch is unknown");
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &dirty(1, 10, &[])), None);
    assert_eq!(read_as(&other, &host), busy);
    // The owner's log is empty, so the volume has all data.
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(read_as(&other, &host), good);
    // The operator discards the data that only the owner's log has.
    assert_eq!(write_as(&host, &host.nexus), None);
    host.unit.nexus_closed(&host.nexus);
    assert_eq!(read_as(&other, &host), refused);
    now(host.unit.drop_claim()).expect("saved");
    assert_eq!(read_as(&other, &host), good);
}

/// The check at the beginning of a command cannot know what the owner does during the command.
#[tokio::test(start_paused = true)]
async fn without_epochs_a_verify_during_which_a_round_begins_ends_in_busy() {
    let read = Duration::from_secs(1);
    let memory = Arc::new(MemVolume::new(geometry()));
    let slow = Arc::new(DelayVolume::new(memory, Latency { read, ..Latency::default() }));
    let store = Arc::new(MemoryStore::default());
    let unit = BlockUnit::open(slow, UnitIdentity::new("f00d"), Settings::default(), store);
    let unit = unit.expect("opened");
    let (owner, other) = (nexus(1), nexus(2));
    let send = |from: &Nexus, command: Command, data: Vec<u8>| {
        unit.execute(crate::party::task(from, command.encode(), data))
    };
    for nexus in [&owner, &other] {
        unit.nexus_opened(nexus);
        send(nexus, READY, vec![]).await;
    }
    let (command, list) = out(ClaimAction::Claim, &claim(1, 10, &[]));
    assert_eq!(send(&owner, command, list).await.status, ScsiStatus::Good);
    for (byte_check, data) in [
        (ByteCheck::Medium, vec![]),
        (ByteCheck::Data, vec![0; 1024]),
        (ByteCheck::Data, vec![9; 1024]),
    ] {
        let verify = verify(BlockTransfer::new(0, 2), byte_check);
        let mut verified = send(&other, verify, data);
        assert!(
            std::pin::Pin::new(&mut verified)
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let write = Command::write(100, 1, false);
        assert_eq!(send(&owner, write, pattern(1, 1)).await.status, ScsiStatus::Good);
        assert_eq!(verified.await.status, ScsiStatus::Busy, "{byte_check:?}");
        let flushed = send(&owner, Command::synchronize_cache(), vec![]).await;
        assert_eq!(flushed.status, ScsiStatus::Good);
    }
    let verify = verify(BlockTransfer::new(0, 2), ByteCheck::Medium);
    assert_eq!(send(&other, verify, vec![]).await.status, ScsiStatus::Good);
}

/// A write-through cache acknowledges a write only after the volume has it, so the volume always holds a
/// consistent prefix.
#[test]
fn other_readers_during_the_claim_of_a_write_through_cache_are_not_refused() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    let through = ClaimParameters { writes_back: false, ..claim(1, 10, &[]) };
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &through), None);
    assert_eq!(write_as(&host, &host.nexus), None);
    let read = host.send_as(&other, &Command::read(0, 8).encode(), &[]);
    assert_eq!(read.status, ScsiStatus::Good);
}

#[test]
fn a_unit_without_epochs_has_neither_their_page_nor_their_command() {
    let host = Host::new(geometry());
    let page = PrimaryCommand::Inquiry { page: Some(ForebayVolume::PAGE), allocation_length: 64 };
    assert_eq!(host.fails(&page, &[]), Sense::INVALID_FIELD_IN_CDB);
    assert_eq!(host.fails(&VendorCommand::RollBack, &[]), Sense::INVALID_COMMAND_OPERATION_CODE);
}

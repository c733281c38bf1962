//! Tests the status that an initiator gets when the volume fails, and the checks before data is solicited.

use std::sync::atomic::Ordering;

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Command, Form, ScsiStatus, Sense, UnmapDescriptor,
    unmap_list,
};
use unit::LogicalUnit;
use volume::{Error, Extent, FaultCallKind as On, FaultRule, Lba, Symptom};

use crate::host::{BLOCK, Call, Host, geometry, pattern};

fn write_same(blocks: u32) -> Command {
    let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(0, blocks) };
    Command::Block(BlockCommand::WriteSame {
        transfer,
        unmap: false,
        anchor: false,
        no_data_out: false,
    })
}

/// Returns each command that calls the volume, with its data.
fn commands() -> Vec<(Command, Vec<u8>)> {
    let list = unmap_list(&[UnmapDescriptor { lba: 0, blocks: 1 }]);
    let transfer = BlockTransfer::new(0, 1);
    vec![
        (Command::read(0, 1), vec![]),
        (Command::Block(BlockCommand::Read(transfer.with_fua(true))), vec![]),
        (Command::write(0, 1, false), pattern(0, 1)),
        (Command::Block(BlockCommand::Verify { transfer, byte_check: ByteCheck::Medium }), vec![]),
        (
            Command::Block(BlockCommand::WriteAndVerify { transfer, byte_check: ByteCheck::Data }),
            pattern(0, 1),
        ),
        (Command::synchronize_cache(), vec![]),
        (write_same(1), pattern(0, 1)),
        (
            Command::Block(BlockCommand::Unmap {
                anchor: false,
                parameter_list_length: list.len() as u16,
            }),
            list,
        ),
    ]
}

#[test]
fn an_unreachable_lower_volume_makes_every_command_busy() {
    let host = Host::new(geometry());
    for error in [Error::Away("link down".into()), Error::Busy("log full")] {
        host.faults.add(FaultRule::always(On::Any, Symptom::Fails(error)));
        for (command, data) in commands() {
            let completion = host.send(&command.encode(), &data);
            assert_eq!(
                (completion.status, completion.sense),
                (ScsiStatus::Busy, None),
                "{command:?}"
            );
            assert!(completion.data_in.is_empty());
        }
        host.faults.clear();
    }
    for (command, data) in commands() {
        host.good(&command, &data);
    }
}

#[test]
fn a_device_failure_fails_every_command() {
    let host = Host::new(geometry());
    host.faults.add(FaultRule::always(On::Any, Symptom::Fails(Error::Device("gone".into()))));
    for (command, data) in commands() {
        assert_eq!(host.fails(&command, &data), Sense::INTERNAL_TARGET_FAILURE, "{command:?}");
    }
}

#[test]
fn medium_errors_name_their_block() {
    let host = Host::new(geometry());
    let extent = Extent { lba: Lba(5), blocks: 1 };
    let error = Error::Medium { extent, reason: "scratched".into() };
    host.faults.add(FaultRule::always(On::Any, Symptom::Fails(error)).at(extent));
    let read = host.fails(&Command::read(0, 8), &[]);
    assert_eq!(read, Sense::UNRECOVERED_READ_ERROR.with_information(5));
    let write = host.fails(&Command::write(5, 1, true), &pattern(0, 1));
    assert_eq!(write, Sense::WRITE_ERROR.with_information(5));
    host.good(&Command::read(0, 5), &[]);
}

#[test]
fn no_space_in_the_lower_volume_ends_in_space_allocation_failed() {
    let host = Host::new(geometry());
    host.faults.add(FaultRule::always(On::Write, Symptom::Fails(Error::NoSpace)));
    let sense = host.fails(&Command::write(0, 1, false), &pattern(0, 1));
    assert_eq!(sense, Sense::SPACE_ALLOCATION_FAILED);
}

#[test]
fn a_failed_flush_does_not_end_in_good() {
    let host = Host::new(geometry());
    let extent = Extent { lba: Lba(0), blocks: 1 };
    let error = Error::Medium { extent, reason: "lost".into() };
    host.faults.add(FaultRule::always(On::Flush, Symptom::FailsAfter(error)));
    let sense = host.fails(&Command::synchronize_cache(), &[]);
    assert!(sense.is(Sense::WRITE_ERROR));
}

#[test]
fn a_write_same_that_fails_half_way_does_not_end_in_good() {
    let host = Host::new(volume::Geometry::with_blocks(10_000));
    let rule = FaultRule::always(On::Write, Symptom::Fails(Error::NoSpace)).after(1);
    host.faults.add(rule);
    assert_eq!(host.fails(&write_same(5000), &[1; BLOCK]), Sense::SPACE_ALLOCATION_FAILED);
}

#[test]
fn admission_asks_the_volume_for_the_announced_bytes() {
    let host = Host::new(geometry());
    let cdb = Command::write(0, 8, false).encode();
    assert!(host.unit.admit(&host.nexus, &cdb, 8 * 512).is_ok());
    assert!(host.unit.admit(&host.nexus, &cdb, 512).is_ok());
    assert!(host.unit.admit(&host.nexus, &write_same(100).encode(), 512).is_ok());
    assert_eq!(host.asked(), [Call::Admit(8 * 512), Call::Admit(512), Call::Admit(100 * 512)]);
    host.calls.full.store(true, Ordering::Relaxed);
    let refused = host.unit.admit(&host.nexus, &cdb, 4096).unwrap_err();
    assert_eq!((refused.status, refused.sense), (ScsiStatus::Busy, None));
    assert!(host.unit.admit(&host.nexus, &Command::read(0, 8).encode(), 0).is_ok());
}

/// A command that is done in pieces needs room in the log for one piece only.
#[test]
fn admission_asks_the_volume_for_one_piece_of_a_command_done_in_pieces() {
    let host = Host::new(volume::Geometry::with_blocks(10_000));
    assert!(host.unit.admit(&host.nexus, &write_same(5000).encode(), 512).is_ok());
    let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(0, 5000) };
    let or = BlockCommand::OrWrite(transfer).encode();
    assert!(host.unit.admit(&host.nexus, &or, 5000 * 512).is_ok());
    assert_eq!(host.asked(), [Call::Admit(1 << 20), Call::Admit(1 << 20)]);
}

#[test]
fn admission_refuses_commands_that_would_fail_anyway() {
    let host = Host::new(geometry());
    let refused = |command: &Command| host.unit_admits(command, 512).unwrap_err();
    let outside = refused(&Command::write(geometry().blocks, 1, false));
    assert_eq!(outside, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    let write_buffer = scsi::Cdb::new(&[0x3b, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
    let completion = host.unit.admit(&host.nexus, &write_buffer, 24).unwrap_err();
    assert_eq!(completion.sense, Some(Sense::INVALID_COMMAND_OPERATION_CODE));
    assert_eq!(host.asked(), []);
}

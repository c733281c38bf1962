//! Tests READ, WRITE and SYNCHRONIZE CACHE.

use std::task::{Context, Poll, Waker};

use scsi::{BlockCommand, BlockTransfer, Command, Form, ScsiStatus, Sense};
use unit::{LogicalUnit, Settings};
use volume::{Durability, Geometry};

use crate::host::{BLOCK, Call, Host, geometry, pattern};

const FORMS: [Form; 4] = [Form::Six, Form::Ten, Form::Twelve, Form::Sixteen];

fn transfer(form: Form, lba: u64, blocks: u32) -> BlockTransfer {
    BlockTransfer { form, ..BlockTransfer::new(lba, blocks) }
}

#[test]
fn data_written_in_any_form_reads_back_in_any_form() {
    let host = Host::new(geometry());
    for (seed, write) in FORMS.into_iter().enumerate() {
        let data = pattern(seed as u8 * 50, 7);
        host.good(&BlockCommand::Write(transfer(write, 100, 7)), &data);
        for read in FORMS {
            assert_eq!(host.good(&BlockCommand::Read(transfer(read, 100, 7)), &[]), data);
        }
    }
}

#[test]
fn read_6_of_length_zero_reads_256_blocks() {
    let host = Host::new(geometry());
    assert_eq!(host.send(&[0x08, 0, 0, 0, 0, 0], &[]).data_in.len(), 256 * BLOCK);
}

#[test]
fn blocks_beyond_the_room_of_the_initiator_are_reported_and_not_read() {
    let host = Host::new(geometry());
    let data = pattern(1, 8);
    host.good(&Command::write(3, 8, false), &data);
    host.asked();
    let cases = [(0, 0), (1, 1), (512, 1), (513, 2), (7 * 512, 7), (8 * 512, 8), (u32::MAX, 8)];
    for (room, blocks) in cases {
        let mut task = host.task(&host.nexus, &Command::read(3, 8).encode(), &[]);
        task.data_in_capacity = room;
        let mut answer = host.unit.execute(task);
        let Poll::Ready(completion) =
            std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("a volume in memory answers at once")
        };
        assert_eq!(completion.status, ScsiStatus::Good);
        assert_eq!(completion.data_in.into_bytes(), data[..blocks as usize * BLOCK]);
        let told = (blocks < 8).then_some(8 * BLOCK as u32);
        assert_eq!(completion.data_out_length, told, "{room}");
        let read = (blocks > 0).then_some(Call::Read(3, blocks));
        assert_eq!(host.asked(), read.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_read_is_one_call_and_a_write_is_one_call() {
    let host = Host::new(geometry());
    host.good(&Command::write(3, 2, false), &pattern(1, 2));
    host.good(&Command::read(3, 2), &[]);
    let expected = [Call::Write(3, 1024, Durability::Volatile), Call::Read(3, 2)];
    assert_eq!(host.asked(), expected);
}

#[test]
fn read_and_write_beyond_the_end() {
    let host = Host::new(geometry());
    let last = geometry().blocks;
    for form in FORMS {
        for (lba, blocks) in [(last, 1), (last - 1, 2), (last + 1, 1), (last - 255, 256)] {
            let outside = transfer(form, lba, blocks);
            let data = pattern(0, blocks as usize);
            let sense = Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
            assert_eq!(host.fails(&BlockCommand::Read(outside), &[]), sense);
            assert_eq!(host.fails(&BlockCommand::Write(outside), &data), sense);
        }
        host.good(&BlockCommand::Read(transfer(form, last - 1, 1)), &[]);
    }
    for lba in [1 << 63, u64::MAX] {
        let sense = Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
        assert_eq!(host.fails(&Command::read(lba, 1), &[]), sense);
    }
}

#[test]
fn zero_blocks_are_good_within_the_volume_only() {
    let host = Host::new(geometry());
    for form in [Form::Ten, Form::Twelve, Form::Sixteen] {
        assert!(host.good(&BlockCommand::Read(transfer(form, 0, 0)), &[]).is_empty());
        host.good(&BlockCommand::Write(transfer(form, 0, 0)), &[]);
        let outside = transfer(form, geometry().blocks + 1, 0);
        let sense = Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
        assert_eq!(host.fails(&BlockCommand::Read(outside), &[]), sense);
        assert_eq!(host.fails(&BlockCommand::Write(outside), &[]), sense);
    }
    assert_eq!(host.asked(), []);
}

#[test]
fn protection_information_is_refused() {
    let host = Host::new(geometry());
    for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x41, 0xa8, 0xaa, 0xae, 0xaf, 0x88, 0x8a, 0x93] {
        for protect in 1..8u8 {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (opcode, protect << 5);
            assert_eq!(host.fails_cdb(&cdb, &[]), Sense::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn more_than_the_maximum_transfer_is_refused() {
    let settings = Settings { maximum_transfer_bytes: 8192, ..Settings::default() };
    let host = Host::with_settings(geometry(), settings);
    host.good(&Command::read(0, 16), &[]);
    assert_eq!(host.fails(&Command::read(0, 17), &[]), Sense::INVALID_FIELD_IN_CDB);
    let data = pattern(0, 17);
    assert_eq!(host.fails(&Command::write(0, 17, false), &data), Sense::INVALID_FIELD_IN_CDB);
    let completion = host.send(&Command::read(0, 17).encode(), &[]);
    assert_eq!(completion.sense.unwrap().field.unwrap().byte, 7);
}

#[test]
fn a_fua_write_is_stable() {
    let host = Host::new(geometry());
    host.good(&Command::write(0, 1, true), &pattern(0, 1));
    host.good(&BlockCommand::Read(BlockTransfer::new(0, 1).with_fua(true)), &[]);
    let expected = [Call::Write(0, 512, Durability::Stable), Call::Flush, Call::Read(0, 1)];
    assert_eq!(host.asked(), expected);
}

#[test]
fn a_fua_read_without_a_volatile_cache_does_not_flush() {
    let host = Host::new(Geometry { volatile_cache: false, ..geometry() });
    host.good(&BlockCommand::Read(BlockTransfer::new(0, 1).with_fua(true)), &[]);
    assert_eq!(host.asked(), [Call::Read(0, 1)]);
}

#[test]
fn dpo_changes_nothing() {
    let host = Host::new(geometry());
    let hinted = BlockTransfer { dpo: true, ..BlockTransfer::new(5, 1) };
    host.good(&BlockCommand::Write(hinted), &pattern(9, 1));
    assert_eq!(host.good(&BlockCommand::Read(hinted), &[]), pattern(9, 1));
}

#[test]
fn synchronize_cache_flushes_the_whole_volume_for_any_range() {
    let host = Host::new(geometry());
    host.good(&Command::synchronize_cache(), &[]);
    let some =
        BlockCommand::SynchronizeCache { transfer: transfer(Form::Sixteen, 8, 8), immediate: true };
    host.good(&some, &[]);
    assert_eq!(host.asked(), [Call::Flush, Call::Flush]);
    let outside = BlockCommand::SynchronizeCache {
        transfer: transfer(Form::Ten, geometry().blocks, 1),
        immediate: false,
    };
    assert_eq!(host.fails(&outside, &[]), Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    assert_eq!(host.asked(), []);
}

#[test]
fn data_beyond_the_cdb_is_not_written() {
    let host = Host::new(geometry());
    let completion = host.send(&Command::write(0, 1, false).encode(), &pattern(7, 2));
    assert_eq!((completion.status, completion.data_out_length), (ScsiStatus::Good, Some(512)));
    assert_eq!(host.good(&Command::read(0, 2), &[]), [pattern(7, 1), vec![0; BLOCK]].concat());
}

#[test]
fn whole_blocks_short_of_the_cdb_are_written_and_counted() {
    let host = Host::new(geometry());
    let completion = host.send(&Command::write(0, 2, false).encode(), &pattern(7, 1));
    assert_eq!((completion.status, completion.data_out_length), (ScsiStatus::Good, Some(1024)));
    assert_eq!(host.good(&Command::read(0, 2), &[]), [pattern(7, 1), vec![0; BLOCK]].concat());
    let completion = host.send(&Command::write(0, 1, false).encode(), &[]);
    assert_eq!((completion.status, completion.data_out_length), (ScsiStatus::Good, Some(512)));
}

#[test]
fn a_part_of_a_block_is_refused_and_nothing_is_written() {
    let host = Host::new(geometry());
    for length in [200, 700] {
        let completion = host.send(&Command::write(0, 2, false).encode(), &vec![7; length]);
        assert_eq!(completion.sense, Some(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        assert_eq!(completion.data_out_length, Some(1024));
    }
    assert_eq!(host.asked(), []);
}

#[test]
fn a_read_only_volume_is_read_and_not_written() {
    let host = Host::new(Geometry { read_only: true, ..geometry() });
    host.good(&Command::read(0, 8), &[]);
    host.good(&BlockCommand::Read(BlockTransfer::new(0, 1).with_fua(true)), &[]);
    host.good(&Command::synchronize_cache(), &[]);
    host.asked();
    for form in FORMS {
        let write = Command::Block(BlockCommand::Write(transfer(form, 0, 1)));
        assert_eq!(host.fails(&write, &pattern(0, 1)), Sense::WRITE_PROTECTED);
        assert!(host.unit_admits(&write, 512).unwrap_err().is(Sense::WRITE_PROTECTED));
    }
    let zero = Command::write(0, 0, false);
    assert_eq!(host.fails(&zero, &[]), Sense::WRITE_PROTECTED);
    assert_eq!(host.asked(), []);
}

#[test]
fn blocks_of_4096_bytes() {
    let host = Host::new(Geometry { block_size: 4096, ..Geometry::with_blocks(100) });
    let data = pattern(1, 16);
    host.good(&Command::write(98, 2, false), &data);
    assert_eq!(host.good(&Command::read(98, 2), &[]), data);
    assert_eq!(
        host.fails(&Command::write(0, 1, false), &data[..512]),
        Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT
    );
}

impl Host {
    pub fn unit_admits(&self, command: &Command, data_out_length: u32) -> Result<(), Sense> {
        use unit::LogicalUnit;
        match self.unit.admit(&self.nexus, &command.encode(), data_out_length) {
            Ok(_) => Ok(()),
            Err(completion) => Err(completion.sense.expect("CHECK CONDITION")),
        }
    }
}

//! Tests the commands UNMAP and WRITE SAME.

use scsi::{
    BlockCommand, BlockTransfer, Command, Form, ScsiStatus, Sense, UnmapDescriptor, unmap_list,
};
use unit::Settings;
use volume::{Durability, Geometry};

use crate::host::{BLOCK, Call, Host, geometry, pattern};

fn unmap(host: &Host, runs: &[(u64, u32)]) -> Result<(), Sense> {
    let descriptors: Vec<_> =
        runs.iter().map(|&(lba, blocks)| UnmapDescriptor { lba, blocks }).collect();
    let list = unmap_list(&descriptors);
    let command = BlockCommand::Unmap {
        anchor: false,
        parameter_list_length: list.len().try_into().unwrap(),
    };
    let completion = host.send(&command.encode(), &list);
    match completion.status {
        ScsiStatus::Good => Ok(()),
        _ => Err(Sense { field: None, ..completion.sense.unwrap() }),
    }
}

fn write_same(form: Form, lba: u64, blocks: u32) -> Command {
    Command::Block(BlockCommand::WriteSame {
        transfer: BlockTransfer { form, ..BlockTransfer::new(lba, blocks) },
        unmap: false,
        anchor: false,
        no_data_out: false,
    })
}

fn unmapping(command: Command) -> Command {
    match command {
        Command::Block(BlockCommand::WriteSame { transfer, anchor, no_data_out, .. }) => {
            Command::Block(BlockCommand::WriteSame { transfer, unmap: true, anchor, no_data_out })
        }
        other => other,
    }
}

#[test]
fn unmapped_blocks_read_as_zeros() {
    let host = Host::new(geometry());
    host.good(&Command::write(0, 16, false), &pattern(1, 16));
    host.asked();
    assert_eq!(unmap(&host, &[(0, 3), (8, 1)]), Ok(()));
    assert_eq!(host.asked(), [Call::Discard(0, 3), Call::Discard(8, 1)]);
    let mut expected = pattern(1, 16);
    expected[..3 * BLOCK].fill(0);
    expected[8 * BLOCK..9 * BLOCK].fill(0);
    assert_eq!(host.good(&Command::read(0, 16), &[]), expected);
}

#[test]
fn empty_descriptors_and_empty_lists_are_good() {
    let host = Host::new(geometry());
    assert_eq!(unmap(&host, &[]), Ok(()));
    assert_eq!(unmap(&host, &[(0, 0), (geometry().blocks, 0)]), Ok(()));
    host.good(&BlockCommand::Unmap { anchor: false, parameter_list_length: 0 }, &[]);
    assert_eq!(host.asked(), []);
}

#[test]
fn one_bad_descriptor_and_nothing_is_unmapped() {
    let host = Host::new(geometry());
    let sense = Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
    assert_eq!(unmap(&host, &[(0, 8), (geometry().blocks, 1)]), Err(sense));
    assert_eq!(unmap(&host, &[(0, 8), (u64::MAX, 8)]), Err(sense));
    assert_eq!(host.asked(), []);
}

#[test]
fn the_limits_of_unmap_are_kept() {
    let settings = Settings { maximum_unmap_bytes: 8192, ..Settings::default() };
    let host = Host::with_settings(geometry(), settings);
    assert_eq!(unmap(&host, &[(0, 8), (100, 8)]), Ok(()));
    let sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
    assert_eq!(unmap(&host, &[(0, 8), (100, 9)]), Err(sense));
    assert_eq!(unmap(&host, &[(0, 0); 256]), Ok(()));
    assert_eq!(unmap(&host, &[(0, 0); 257]), Err(sense));
}

#[test]
fn an_incomplete_parameter_list_unmaps_nothing() {
    let host = Host::new(geometry());
    let list = unmap_list(&[UnmapDescriptor { lba: 0, blocks: 8 }]);
    let command = BlockCommand::Unmap { anchor: false, parameter_list_length: 24 };
    assert_eq!(host.fails(&command, &list[..23]), Sense::PARAMETER_LIST_LENGTH_ERROR);
    let header = BlockCommand::Unmap { anchor: false, parameter_list_length: 7 };
    assert_eq!(host.fails(&header, &list), Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(host.asked(), []);
}

#[test]
fn anchors_are_refused() {
    let host = Host::new(geometry());
    let anchored = BlockCommand::Unmap { anchor: true, parameter_list_length: 8 };
    assert_eq!(host.fails(&anchored, &[0; 8]), Sense::INVALID_FIELD_IN_CDB);
    for flags in [0x10, 0x18] {
        let mut cdb = write_same(Form::Sixteen, 0, 1).encode().to_vec();
        cdb[1] = flags;
        assert_eq!(host.fails_cdb(&cdb, &[0; BLOCK]), Sense::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn a_thick_volume_unmaps_nothing() {
    let host = Host::new(Geometry { thin: false, ..geometry() });
    assert_eq!(unmap(&host, &[(0, 8)]), Err(Sense::INVALID_COMMAND_OPERATION_CODE));
    for form in [Form::Ten, Form::Sixteen] {
        let command = unmapping(write_same(form, 0, 1));
        assert_eq!(host.fails(&command, &[0; BLOCK]), Sense::INVALID_FIELD_IN_CDB);
    }
    assert_eq!(host.asked(), []);
}

#[test]
fn unmap_and_write_same_do_not_change_a_read_only_volume() {
    let host = Host::new(Geometry { read_only: true, ..geometry() });
    assert_eq!(unmap(&host, &[(0, 8)]), Err(Sense::WRITE_PROTECTED));
    let sense = host.fails(&write_same(Form::Ten, 0, 1), &[0; BLOCK]);
    assert_eq!(sense, Sense::WRITE_PROTECTED);
    assert_eq!(host.asked(), []);
}

#[test]
fn write_same_fills_the_blocks() {
    let host = Host::new(geometry());
    for form in [Form::Ten, Form::Sixteen] {
        let block: Vec<u8> = (0..BLOCK).map(|at| at as u8 ^ form as u8).collect();
        host.good(&write_same(form, 3, 300), &block);
        let all = host.good(&Command::read(3, 300), &[]);
        assert!(all.chunks_exact(BLOCK).all(|found| found == block));
        assert_eq!(host.good(&Command::read(303, 1), &[]), [0; BLOCK]);
    }
}

#[test]
fn a_long_write_same_is_written_in_pieces() {
    let host = Host::new(Geometry::with_blocks(10_000));
    host.good(&write_same(Form::Ten, 0, 5000), &[7; BLOCK]);
    let piece = |lba, blocks| Call::Write(lba, blocks * BLOCK, Durability::Volatile);
    assert_eq!(host.asked(), [piece(0, 2048), piece(2048, 2048), piece(4096, 904)]);
    let all = host.good(&Command::read(0, 5001), &[]);
    assert!(all[..5000 * BLOCK].iter().all(|byte| *byte == 7));
    assert!(all[5000 * BLOCK..].iter().all(|byte| *byte == 0));
}

#[test]
fn write_same_of_zero_blocks_is_refused_unless_that_means_up_to_the_end() {
    let host = Host::new(geometry());
    let sense = host.fails(&write_same(Form::Ten, 0, 0), &[5; BLOCK]);
    assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB);
    let settings = Settings { write_same_to_end: true, ..Settings::default() };
    let host = Host::with_settings(geometry(), settings);
    let last = geometry().blocks;
    host.good(&write_same(Form::Ten, last - 2, 0), &[5; BLOCK]);
    let expected = [vec![0; BLOCK], vec![5; 2 * BLOCK]].concat();
    assert_eq!(host.good(&Command::read(last - 3, 3), &[]), expected);
    let sense = host.fails(&write_same(Form::Sixteen, last + 1, 0), &[5; BLOCK]);
    assert_eq!(sense, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
}

#[test]
fn write_same_beyond_its_limit_is_refused_also_to_the_end() {
    let settings =
        Settings { maximum_transfer_bytes: 8192, write_same_to_end: true, ..Settings::default() };
    let host = Host::with_settings(geometry(), settings);
    let last = geometry().blocks;
    for form in [Form::Ten, Form::Sixteen] {
        host.good(&write_same(form, last - 16, 0), &[0; BLOCK]);
        for command in [write_same(form, last - 17, 0), write_same(form, 0, 17)] {
            assert_eq!(host.fails(&command, &[0; BLOCK]), Sense::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn write_same_with_unmap_discards_zeros_and_writes_the_rest() {
    let host = Host::new(geometry());
    host.good(&write_same(Form::Ten, 0, 64), &[9; BLOCK]);
    host.asked();
    for form in [Form::Ten, Form::Sixteen] {
        host.good(&unmapping(write_same(form, 0, 64)), &[0; BLOCK]);
        host.good(&unmapping(write_same(form, 0, 4)), &[6; BLOCK]);
        let written = Call::Write(0, 4 * BLOCK, Durability::Volatile);
        assert_eq!(host.asked(), [Call::Discard(0, 64), written]);
    }
    let expected = [vec![6; 4 * BLOCK], vec![0; 60 * BLOCK]].concat();
    assert_eq!(host.good(&Command::read(0, 64), &[]), expected);
}

#[test]
fn write_same_without_data_writes_zeros() {
    let host = Host::new(geometry());
    host.good(&Command::write(0, 4, false), &pattern(1, 4));
    for unmap in [false, true] {
        let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(1, 2) };
        let command = BlockCommand::WriteSame { transfer, unmap, anchor: false, no_data_out: true };
        let completion = host.send(&command.encode(), &[]);
        assert_eq!((completion.status, completion.data_out_length), (ScsiStatus::Good, Some(0)));
    }
    let mut expected = pattern(1, 4);
    expected[BLOCK..3 * BLOCK].fill(0);
    assert_eq!(host.good(&Command::read(0, 4), &[]), expected);
}

#[test]
fn write_same_takes_exactly_one_block() {
    let host = Host::new(geometry());
    for length in [0, BLOCK / 2, BLOCK * 2] {
        for form in [Form::Ten, Form::Sixteen] {
            for command in [write_same(form, 0, 1), unmapping(write_same(form, 0, 1))] {
                let completion = host.send(&command.encode(), &vec![0; length]);
                let sense = Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
                assert_eq!(completion.sense, Some(sense));
                assert_eq!(completion.data_out_length, Some(512));
            }
        }
    }
    assert_eq!(host.asked(), []);
}

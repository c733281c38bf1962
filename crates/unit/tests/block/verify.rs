//! Tests VERIFY and WRITE AND VERIFY.

use scsi::{BlockCommand, BlockTransfer, ByteCheck, Command, Form, ScsiStatus, Sense};
use volume::{Durability, Extent, FaultCallKind as On, FaultRule, Geometry, Lba, Symptom};

use crate::host::{BLOCK, Call, Host, geometry, pattern};

const FORMS: [Form; 3] = [Form::Ten, Form::Twelve, Form::Sixteen];

fn verify(form: Form, lba: u64, blocks: u32, byte_check: ByteCheck) -> Command {
    Command::Block(BlockCommand::Verify {
        transfer: BlockTransfer { form, ..BlockTransfer::new(lba, blocks) },
        byte_check,
    })
}

fn write_and_verify(lba: u64, blocks: u32, byte_check: ByteCheck) -> Command {
    Command::Block(BlockCommand::WriteAndVerify {
        transfer: BlockTransfer::new(lba, blocks),
        byte_check,
    })
}

#[test]
fn equal_bytes_are_good_and_others_a_miscompare_with_its_block() {
    let host = Host::new(geometry());
    let data = pattern(3, 9);
    host.good(&Command::write(10, 9, false), &data);
    for form in FORMS {
        host.good(&verify(form, 10, 9, ByteCheck::Data), &data);
        let mut other = data.clone();
        other[5 * BLOCK + 17] ^= 1;
        assert_eq!(
            host.fails(&verify(form, 10, 9, ByteCheck::Data), &other),
            Sense::MISCOMPARE_DURING_VERIFY.with_information(15)
        );
    }
}

#[test]
fn without_bytchk_the_data_does_not_matter() {
    let host = Host::new(geometry());
    let completion =
        host.send(&verify(Form::Ten, 0, 2, ByteCheck::Medium).encode(), &pattern(5, 2));
    assert_eq!((completion.status, completion.data_out_length), (ScsiStatus::Good, Some(0)));
    assert_eq!(host.asked(), [Call::Read(0, 2)]);
}

#[test]
fn one_block_is_compared_with_all() {
    let host = Host::new(geometry());
    host.good(&Command::write(0, 300, false), &vec![4; 300 * BLOCK]);
    host.good(&verify(Form::Sixteen, 0, 300, ByteCheck::Block), &[4; BLOCK]);
    host.good(&Command::write(299, 1, false), &[5; BLOCK]);
    assert_eq!(
        host.fails(&verify(Form::Sixteen, 0, 300, ByteCheck::Block), &[4; BLOCK]),
        Sense::MISCOMPARE_DURING_VERIFY.with_information(299)
    );
    let short = host.fails(&verify(Form::Sixteen, 0, 3, ByteCheck::Block), &[4; 511]);
    assert_eq!(short, Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
}

#[test]
fn a_long_verify_is_done_in_pieces() {
    let host = Host::new(Geometry::with_blocks(10_000));
    host.good(&Command::write(4100, 1, false), &[1; BLOCK]);
    host.asked();
    let sense = host.fails(&verify(Form::Ten, 1, 9000, ByteCheck::Block), &[0; BLOCK]);
    assert_eq!(sense, Sense::MISCOMPARE_DURING_VERIFY.with_information(4100));
    assert_eq!(host.asked(), [Call::Read(1, 2048), Call::Read(2049, 2048), Call::Read(4097, 2048)]);
}

#[test]
fn verify_beyond_the_end() {
    let host = Host::new(geometry());
    for form in FORMS {
        for (lba, blocks) in [(geometry().blocks, 1), (geometry().blocks + 1, 0)] {
            let sense = host.fails(&verify(form, lba, blocks, ByteCheck::Data), &[0; BLOCK]);
            assert_eq!(sense, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
        }
        host.good(&verify(form, 0, 0, ByteCheck::Data), &[]);
    }
}

#[test]
fn an_unknown_bytchk_is_refused() {
    let host = Host::new(geometry());
    let mut cdb = verify(Form::Ten, 0, 1, ByteCheck::Medium).encode().to_vec();
    cdb[1] |= 0x04;
    assert_eq!(host.fails_cdb(&cdb, &[]), Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn write_and_verify_is_stable_and_reads_back() {
    let host = Host::new(geometry());
    let data = pattern(1, 2);
    host.good(&write_and_verify(4, 2, ByteCheck::Data), &data);
    host.good(&write_and_verify(4, 2, ByteCheck::Medium), &data);
    let once = [Call::Write(4, 1024, Durability::Stable), Call::Read(4, 2)];
    assert_eq!(host.asked(), [once.clone(), once].concat());
    assert_eq!(host.good(&Command::read(4, 2), &[]), data);
}

#[test]
fn a_write_that_was_not_performed_is_detected() {
    let host = Host::new(geometry());
    host.faults.add(FaultRule::always(On::Write, Symptom::Lies));
    assert_eq!(
        host.fails(&write_and_verify(4, 2, ByteCheck::Data), &pattern(1, 2)),
        Sense::MISCOMPARE_DURING_VERIFY.with_information(4)
    );
}

#[test]
fn a_block_that_cannot_be_read_fails_the_verify() {
    let host = Host::new(geometry());
    let extent = Extent { lba: Lba(6), blocks: 1 };
    let error = volume::Error::Medium { extent, reason: "scratched".into() };
    host.faults.add(FaultRule::always(On::Read, Symptom::Fails(error)).at(extent));
    let sense = Sense::UNRECOVERED_READ_ERROR.with_information(6);
    assert_eq!(host.fails(&verify(Form::Ten, 0, 8, ByteCheck::Medium), &[]), sense);
    host.good(&verify(Form::Ten, 0, 6, ByteCheck::Medium), &[]);
}

#[test]
fn residuals_of_write_and_verify() {
    let host = Host::new(geometry());
    let send = |blocks, length: usize| {
        let cdb = write_and_verify(0, blocks, ByteCheck::Data).encode();
        let completion = host.send(&cdb, &vec![1; length]);
        (completion.status, completion.data_out_length)
    };
    assert_eq!(send(1, 0), (ScsiStatus::Good, Some(512)));
    assert_eq!(send(1, 10_000), (ScsiStatus::Good, Some(512)));
    assert_eq!(send(1, 200), (ScsiStatus::CheckCondition, Some(512)));
    assert_eq!(send(2, 512), (ScsiStatus::Good, Some(1024)));
}

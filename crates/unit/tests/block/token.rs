//! Tests POPULATE TOKEN, RECEIVE ROD TOKEN INFORMATION and WRITE USING TOKEN.

use std::sync::Arc;

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Command, Form, PrimaryCommand, Reporting, Sanitize,
    SanitizeAction, Sense,
    copy::{CopyResults, PopulateToken, ROD_TYPE, TOKEN_BYTES, TokenRange, WriteUsingToken},
};
use unit::Settings;
use volume::Geometry;

use crate::{
    host::{BLOCK, Host, geometry, pattern},
    party::{Member, Party, join},
};

fn range(lba: u64, blocks: u32) -> TokenRange {
    TokenRange { lba, blocks }
}

fn populate(ranges: &[TokenRange]) -> (Command, Vec<u8>) {
    let list = PopulateToken { timeout_s: 0, rod_type: None, ranges: ranges.to_vec() }.to_bytes();
    (
        Command::Block(BlockCommand::PopulateToken {
            list: 3,
            parameter_list_length: list.len() as u32,
        }),
        list,
    )
}

fn write(token: [u8; TOKEN_BYTES], offset: u64, ranges: &[TokenRange]) -> (Command, Vec<u8>) {
    let list = WriteUsingToken { delete: false, offset, token, ranges: ranges.to_vec() }.to_bytes();
    (
        Command::Block(BlockCommand::WriteUsingToken {
            list: 4,
            parameter_list_length: list.len() as u32,
        }),
        list,
    )
}

/// Creates a ROD token as Windows does: POPULATE TOKEN, then RECEIVE ROD TOKEN INFORMATION.
async fn token_of(member: &Member, ranges: &[TokenRange]) -> [u8; TOKEN_BYTES] {
    let (command, list) = populate(ranges);
    member.good(&command, list).await;
    let results = CopyResults::RodTokens(3);
    let asked = PrimaryCommand::ReceiveCopyResults { results, allocation_length: 1024 };
    let told = member.good(&asked, vec![]).await;
    assert_eq!((told[4], told[5]), (0x10, 1));
    let at = 32 + usize::from(told[13]);
    assert_eq!(told[at..at + 4], 514u32.to_be_bytes());
    told[at + 6..].try_into().expect("512 bytes")
}

fn two() -> (Arc<Party>, Member, Member) {
    let party = Arc::new(Party::default());
    let a = join(&party, "a", Geometry::with_blocks(1 << 16));
    let b = join(&party, "b", Geometry::with_blocks(1 << 16));
    (party, a, b)
}

#[tokio::test]
async fn the_blocks_of_a_token_are_written_to_another_unit() {
    let (_party, a, b) = two();
    a.good(&Command::write(100, 30, false), pattern(1, 30)).await;
    let token = token_of(&a, &[range(100, 20), range(5, 0), range(120, 10)]).await;
    assert_eq!(token[..4], ROD_TYPE.to_be_bytes());
    let (command, list) = write(token, 0, &[range(7, 25), range(1000, 5)]);
    b.good(&command, list).await;
    assert_eq!(b.good(&Command::read(7, 25), vec![]).await, pattern(1, 25));
    assert_eq!(b.good(&Command::read(1000, 5), vec![]).await, pattern(26, 5));
    let results = CopyResults::RodTokens(4);
    let asked = PrimaryCommand::ReceiveCopyResults { results, allocation_length: 64 };
    let told = b.good(&asked, vec![]).await;
    assert_eq!((told[4], told[5], &told[16..26]), (0x11, 1, &[0, 0, 0, 0, 0, 0, 0, 30, 0, 2][..]));
    // The unit that made the token can also write its blocks, here from the middle of the token on.
    let (command, list) = write(token, 18, &[range(40_000, 4)]);
    a.good(&command, list).await;
    assert_eq!(a.good(&Command::read(40_000, 4), vec![]).await, pattern(19, 4));
}

#[tokio::test]
async fn only_a_write_to_blocks_of_a_token_revokes_it() {
    let (_party, a, b) = two();
    let token = token_of(&a, &[range(100, 20)]).await;
    a.good(&Command::write(99, 1, false), pattern(1, 1)).await;
    a.good(&Command::write(120, 1, false), pattern(1, 1)).await;
    let (command, list) = write(token, 0, &[range(0, 20)]);
    b.good(&command, list.clone()).await;
    a.good(&Command::write(119, 1, false), pattern(1, 1)).await;
    assert_eq!(b.fails(&command, list).await, Sense::TOKEN_REVOKED);
    let again = token_of(&a, &[range(100, 20)]).await;
    let unmap = scsi::unmap_list(&[scsi::UnmapDescriptor { lba: 0, blocks: 1000 }]);
    let length = unmap.len() as u16;
    a.good(&BlockCommand::Unmap { anchor: false, parameter_list_length: length }, unmap).await;
    let (command, list) = write(again, 0, &[range(0, 20)]);
    assert_eq!(b.fails(&command, list).await, Sense::TOKEN_REVOKED);
}

#[tokio::test]
async fn every_command_that_changes_its_blocks_revokes_a_token() {
    let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(112, 8) };
    let sanitize = Sanitize {
        action: SanitizeAction::BlockErase,
        immediate: false,
        unrestricted_exit: false,
        parameter_list_length: 0,
    };
    let same = Command::Block(BlockCommand::WriteSame {
        transfer,
        unmap: false,
        anchor: false,
        no_data_out: false,
    });
    let verified =
        Command::Block(BlockCommand::WriteAndVerify { transfer, byte_check: ByteCheck::Medium });
    let changes = [
        (Command::Block(BlockCommand::CompareAndWrite(transfer)), 16),
        (Command::Block(BlockCommand::OrWrite(transfer)), 8),
        (same, 1),
        (verified, 8),
        (Command::Block(BlockCommand::WriteAtomic { transfer, boundary: 0 }), 8),
        (Command::Block(BlockCommand::Sanitize(sanitize)), 0),
    ];
    let (_party, a, b) = two();
    for (change, blocks) in changes {
        let token = token_of(&a, &[range(100, 20)]).await;
        a.good(&change, vec![0; blocks * BLOCK]).await;
        let (command, list) = write(token, 0, &[range(0, 20)]);
        assert_eq!(b.fails(&command, list).await, Sense::TOKEN_REVOKED, "{change:?}");
    }
}

/// The attack of CVE-2020-28374 with a token: an initiator that knows a token can use it only with access to
/// the unit that made it.
#[tokio::test]
async fn a_token_of_a_unit_outside_of_the_session_is_unknown() {
    let (_party, a, _) = two();
    let others = Arc::new(Party::default());
    let c = join(&others, "c", Geometry::with_blocks(4096));
    let token = token_of(&a, &[range(0, 8)]).await;
    let (command, list) = write(token, 0, &[range(0, 8)]);
    assert_eq!(c.fails(&command, list).await, Sense::TOKEN_UNKNOWN);
    let mut guess = token;
    guess[300] ^= 0x40;
    for wrong in [guess, [0; TOKEN_BYTES]] {
        let (command, list) = write(wrong, 0, &[range(0, 8)]);
        assert_eq!(a.fails(&command, list).await, Sense::TOKEN_UNKNOWN);
    }
}

#[tokio::test]
async fn token_ranges_must_be_inside_the_unit_disjoint_and_not_too_long() {
    let (_party, a, b) = two();
    let fails = async |ranges: &[TokenRange]| {
        let (command, list) = populate(ranges);
        a.fails(&command, list).await
    };
    let outside = Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
    assert_eq!(fails(&[range(0, 1), range(65_535, 2)]).await, outside);
    let wrong = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
    assert_eq!(fails(&[range(10, 5), range(0, 11)]).await, wrong);
    let token = token_of(&a, &[range(0, 8)]).await;
    let (command, list) = write(token, 4, &[range(0, 5)]);
    assert_eq!(b.fails(&command, list).await, wrong, "beyond the blocks of the token");
    let (command, list) = write(token, u64::MAX, &[range(0, 5)]);
    assert_eq!(b.fails(&command, list).await, wrong);
    let mut short = populate(&[range(0, 8)]).1;
    short.truncate(30);
    let command = BlockCommand::PopulateToken { list: 3, parameter_list_length: 30 };
    assert_eq!(a.fails(&command, short).await, Sense::PARAMETER_LIST_LENGTH_ERROR);
}

#[tokio::test]
async fn blocks_read_through_a_token_are_from_one_point_in_time() {
    let (_party, a, b) = two();
    for round in 0..20u8 {
        a.good(&Command::write(0, 64, false), vec![round; 64 * BLOCK]).await;
        let token = token_of(&a, &[range(0, 64)]).await;
        let next = vec![round + 100; 64 * BLOCK];
        let (command, list) = write(token, 0, &[range(0, 64)]);
        let (overwrite, fill) = (Command::write(0, 64, false), vec![0xff; 64 * BLOCK]);
        b.good(&Command::write(0, 64, false), fill).await;
        let (_, copied) = tokio::join!(a.good(&overwrite, next), b.send(&command, list));
        let read = b.good(&Command::read(0, 64), vec![]).await;
        let expected = if copied.sense.is_none() { round } else { 0xff };
        assert!(read.iter().all(|byte| *byte == expected), "{round}: {:?}", copied.sense);
    }
}

/// One of several gateways does not know of writes through the others, so its token could represent newer
/// data.
#[test]
fn one_of_several_gateways_makes_no_rod_tokens_and_reports_that() {
    let told = |is_one_of_many| {
        let settings = Settings { is_one_of_many, ..Settings::default() };
        let host = Host::with_settings(geometry(), settings);
        let (command, list) = populate(&[range(0, 8)]);
        let populated = host.send(&command.encode(), &list).sense;
        let (command, list) = write([0; TOKEN_BYTES], 0, &[range(0, 8)]);
        let written = host.send(&command.encode(), &list).sense;
        let supported = [0x10, 0x11].map(|action| {
            let reporting = Reporting::ServiceAction(0x83, action);
            let asked = PrimaryCommand::ReportSupportedOperationCodes {
                reporting,
                timeouts: false,
                allocation_length: 1024,
            };
            host.good(&asked, &[])[1] & 7 == 3
        });
        let pages = PrimaryCommand::Inquiry { page: Some(0), allocation_length: 255 };
        let has_page = host.good(&pages, &[])[4..].contains(&0x8f);
        (populated, written, supported, has_page)
    };
    let refused = Some(Sense::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(told(true), (refused, refused, [false; 2], false));
    let (populated, _, supported, has_page) = told(false);
    assert_eq!((populated, supported, has_page), (None, [true; 2], true));
}

//! Tests a unit with logical blocks of 4096 bytes: all commands count lengths in these blocks.

use std::sync::Arc;

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Capacity16, Command, Form, Overwrite, PrimaryCommand,
    Sanitize, SanitizeAction, Sense,
    copy::{CopyList, CopySegment},
    parse_lba_status_list,
};
use volume::Geometry;

use crate::party::{Party, join};

const LARGE: usize = 4096;

fn geometry() -> Geometry {
    Geometry { block_size: LARGE as u32, ..Geometry::with_blocks(1023) }
}

fn sixteen(lba: u64, blocks: u32) -> BlockTransfer {
    BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(lba, blocks) }
}

fn blocks(seed: u8, count: usize) -> Vec<u8> {
    (0..count * LARGE).map(|at| seed.wrapping_add((at / LARGE) as u8)).collect()
}

#[tokio::test]
async fn commands_use_blocks_of_4096_bytes() {
    let party = Arc::new(Party::default());
    let a = join(&party, "a", geometry());
    let asked = BlockCommand::ReadCapacity16 { allocation_length: 32 };
    let capacity = Capacity16::from_bytes(&a.good(&asked, vec![]).await).expect("capacity");
    assert_eq!(
        (capacity.last_lba, capacity.block_size, capacity.physical_exponent),
        (1022, 4096, 0)
    );
    a.good(&Command::write(1020, 3, false), blocks(1, 3)).await;
    let beyond = a.fails(&Command::write(1021, 3, false), blocks(1, 3)).await;
    assert_eq!(beyond, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    let verify =
        BlockCommand::Verify { transfer: BlockTransfer::new(1020, 3), byte_check: ByteCheck::Data };
    a.good(&verify, blocks(1, 3)).await;
    let mut other = blocks(1, 3);
    other[2 * LARGE + 9] ^= 1;
    let told = a.fails(&verify, other.clone()).await;
    assert_eq!(told, Sense::MISCOMPARE_DURING_VERIFY.with_information(1022));
    let exchange = BlockCommand::CompareAndWrite(sixteen(1020, 3));
    let told = a.fails(&exchange, [other, blocks(9, 3)].concat()).await;
    assert_eq!(told, Sense::MISCOMPARE_DURING_VERIFY.with_information(2 * LARGE as u64 + 9));
    a.good(&exchange, [blocks(1, 3), blocks(9, 3)].concat()).await;
    a.good(&BlockCommand::OrWrite(sixteen(1020, 3)), vec![0x80; 3 * LARGE]).await;
    let expected: Vec<u8> = blocks(9, 3).iter().map(|byte| byte | 0x80).collect();
    assert_eq!(a.good(&Command::read(1020, 3), vec![]).await, expected);
    let atomic = BlockCommand::WriteAtomic { transfer: sixteen(7, 256), boundary: 0 };
    a.good(&atomic, blocks(3, 256)).await;
    let same = BlockCommand::WriteSame {
        transfer: BlockTransfer::new(0, 1000),
        unmap: false,
        anchor: false,
        no_data_out: false,
    };
    assert_eq!(
        a.fails(&same, vec![5; 512]).await,
        Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT
    );
    a.good(&same, vec![5; LARGE]).await;
    assert_eq!(a.good(&Command::read(999, 2), vec![]).await, [[5; LARGE], [0; LARGE]].concat());
}

#[tokio::test]
async fn copies_holes_and_sanitize_use_blocks_of_4096_bytes() {
    let party = Arc::new(Party::default());
    let (a, b) = (join(&party, "a", geometry()), join(&party, "b", geometry()));
    a.good(&Command::write(10, 100, false), blocks(1, 100)).await;
    let list = CopyList {
        list: 1,
        identified: true,
        cscds: vec![a.cscd(), b.cscd()],
        segments: vec![CopySegment {
            source: 0,
            destination: 1,
            blocks: 100,
            source_lba: 10,
            destination_lba: 923,
        }],
    };
    let bytes = list.to_bytes(false);
    let length = bytes.len() as u32;
    a.good(&PrimaryCommand::ExtendedCopy { long: false, parameter_list_length: length }, bytes)
        .await;
    assert_eq!(b.good(&Command::read(923, 100), vec![]).await, blocks(1, 100));
    let asked = BlockCommand::GetLbaStatus { lba: 900, allocation_length: 256 };
    let runs: Vec<_> = parse_lba_status_list(&b.good(&asked, vec![]).await)
        .map(|run| (run.lba, run.blocks, run.mapped))
        .collect();
    assert_eq!(runs, [(900, 23, false), (923, 100, true)]);
    let list = Overwrite { invert: false, passes: 1, pattern: vec![0xaa; LARGE] }.to_bytes();
    let sanitize = BlockCommand::Sanitize(Sanitize {
        action: SanitizeAction::Overwrite,
        immediate: false,
        unrestricted_exit: false,
        parameter_list_length: list.len() as u16,
    });
    b.good(&sanitize, list).await;
    assert_eq!(b.good(&Command::read(0, 1023), vec![]).await, vec![0xaa; 1023 * LARGE]);
}

//! Tests GET LBA STATUS, PRE-FETCH and READ DEFECT DATA.

use scsi::{
    BlockCommand, BlockTransfer, Command, LbaStatus, ReadDefectData, Sense, parse_lba_status_list,
};
use volume::Geometry;

use crate::host::{BLOCK, Call, Host, geometry, pattern};

fn status(host: &Host, lba: u64, allocation_length: u32) -> Vec<LbaStatus> {
    let list = host.good(&BlockCommand::GetLbaStatus { lba, allocation_length }, &[]);
    assert!(list.len() <= allocation_length as usize);
    parse_lba_status_list(&list).collect()
}

#[test]
fn written_blocks_are_mapped_and_unmapped_blocks_are_not() {
    let host = Host::new(geometry());
    host.good(&Command::write(16, 8, false), &pattern(1, 8));
    let run = |lba, blocks, mapped| LbaStatus { lba, blocks, mapped };
    assert_eq!(
        status(&host, 3, 256),
        [run(3, 13, false), run(16, 8, true), run(24, 1023 - 24, false)]
    );
    assert_eq!(status(&host, 20, 24), [run(20, 4, true)]);
    let unmap = scsi::unmap_list(&[scsi::UnmapDescriptor { lba: 16, blocks: 8 }]);
    let command = BlockCommand::Unmap { anchor: false, parameter_list_length: unmap.len() as u16 };
    host.good(&command, &unmap);
    assert_eq!(status(&host, 0, 256), [run(0, 1023, false)]);
}

#[test]
fn lba_status_beyond_the_end_is_refused() {
    let host = Host::new(geometry());
    for lba in [1023, u64::MAX] {
        let command = BlockCommand::GetLbaStatus { lba, allocation_length: 256 };
        assert_eq!(host.fails(&command, &[]), Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    }
    assert_eq!(status(&host, 1022, 256).len(), 1);
}

#[test]
fn pre_fetch_reads_no_more_than_a_read_could() {
    let host = Host::new(Geometry::with_blocks(1 << 20));
    let fetch = |lba, blocks, immediate| {
        Command::Block(BlockCommand::PreFetch {
            transfer: BlockTransfer::new(lba, blocks),
            immediate,
        })
    };
    host.good(&fetch(5, 7, false), &[]);
    assert_eq!(host.asked(), [Call::Read(5, 7)]);
    host.good(&fetch(0, 0, false), &[]);
    assert_eq!(host.asked().len(), 16, "16 MiB");
    host.good(&fetch(0, 9, true), &[]);
    host.good(&fetch(1 << 20, 0, false), &[]);
    assert_eq!(host.asked(), []);
    let sense = host.fails(&fetch(1 << 20, 1, true), &[]);
    assert_eq!(sense, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
}

#[test]
fn there_are_no_defects() {
    let host = Host::new(geometry());
    let asked = ReadDefectData {
        twelve: false,
        primary: true,
        grown: true,
        format: 5,
        index: 0,
        allocation_length: BLOCK as u32,
    };
    assert_eq!(host.good(&BlockCommand::ReadDefectData(asked), &[]), [0, 0x1d, 0, 0]);
    let long = ReadDefectData { twelve: true, allocation_length: 6, ..asked };
    assert_eq!(host.good(&BlockCommand::ReadDefectData(long), &[]), [0, 0x1d, 0, 0, 0, 0]);
}

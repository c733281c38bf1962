//! Finds the holes of a file (`lseek` with `SEEK_DATA` and `SEEK_HOLE`).

use std::{fs::File, io, ops::Range};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use crate::Allocation;

/// Returns the runs of a range of bytes in blocks of `block_size` bytes. A block that contains data
/// is mapped. A file that does not support the query, such as a block device, counts as all data.
pub(super) fn find(file: &File, range: Range<u64>, block_size: u64) -> io::Result<Allocation> {
    let mut allocation = Allocation::default();
    let mut at = range.start;
    while at < range.end {
        let data = match next(file, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            // ENXIO: no data follows, so the hole extends to the end of the file.
            Err(Errno::NXIO) => range.end,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        // Round down, so that a block that is data in part counts as data.
        let data = data.min(range.end);
        let data = (range.start + (data - range.start) / block_size * block_size).max(at);
        let hole = if data == range.end { data } else { hole_after(file, data, &range)? };
        let hole = range.start + (hole - range.start).div_ceil(block_size) * block_size;
        let blocks = |from: u64, to: u64| ((to - from) / block_size) as u32;
        if !allocation.push(blocks(at, data), false) || !allocation.push(blocks(data, hole), true) {
            break;
        }
        at = hole;
    }
    Ok(allocation)
}

/// Returns the start of the first hole after `at`, or the end of the range if there is none before it. The result is
/// always greater than `at`.
fn hole_after(file: &File, at: u64, range: &Range<u64>) -> io::Result<u64> {
    match next(file, SeekFrom::Hole(at)) {
        // Count the block at `at` as data, even if it has become a hole since the last call, and search behind it. This
        // way the search always advances.
        Ok(hole) => Ok(hole.clamp(at + 1, range.end)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(range.end),
        Err(error) => Err(error.into()),
    }
}

fn next(file: &File, from: SeekFrom) -> Result<u64, Errno> {
    seek(file, from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::AllocationRun;

    const MIB: u64 = 1 << 20;

    fn sparse() -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(16 * MIB).expect("sized");
        file.write_all_at(&[1; 4096], 4 * MIB + 8192).expect("written");
        file
    }

    #[test]
    fn data_in_a_sparse_file_is_found_and_its_holes_too() {
        let file = sparse();
        let all = find(&file, 0..16 * MIB, 4096).expect("found");
        let run = |blocks, mapped| AllocationRun { blocks, mapped };
        assert_eq!(all.runs(), [run(1026, false), run(1, true), run(3069, false)]);
        let inside = find(&file, 4 * MIB + 8704..4 * MIB + 9216, 512).expect("found");
        assert_eq!(inside.runs(), [run(1, true)]);
    }

    #[test]
    fn a_block_with_some_data_is_mapped() {
        let large = find(&sparse(), 4 * MIB..5 * MIB, 16384).expect("found");
        assert_eq!(large.runs()[0], AllocationRun { blocks: 1, mapped: true });
    }

    #[test]
    fn a_file_that_cannot_report_holes_is_all_mapped() {
        let file = File::open("/dev/zero").expect("opened");
        let all = find(&file, 0..MIB, 512).expect("found");
        assert_eq!(all, Allocation::mapped(2048));
    }
}

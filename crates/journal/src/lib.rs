//! A log on a disk that survives crashes: superblocks, segments, the seals of their blocks, the ring that the
//! segments lie in, the index of the ring, and the scan that recovers all of this after a crash.
//!
//! The cache keeps its writes in such a log. The crate implements the bytes on the disk and the order of the
//! segments. The crate does not decide when a segment is written, and does not destage data.
//! `docs/formats/log-disk.md` describes every byte.

pub mod checksum;
pub mod bytes;
pub mod seal;
pub mod layout;
pub mod members;
pub mod identity;
pub mod shape;
pub mod superblock;
mod ring_layouts;
mod openings;
pub mod segment;
pub mod ring;
mod index;
pub mod doubt;
pub mod recovery;
pub mod reached;
pub mod index_memory;

/// Number of bytes in a block of the log disk, which can hold the data of one slot.
pub const BLOCK_BYTES: usize = 4096;
/// Maximum number of slots in one segment (STICS 4.3.1: 128).
pub const MAX_SEGMENT_SLOTS: u32 = 128;
/// Maximum number of slots in one segment whose blocks are sealed: their tags take room in its
/// header.
pub const MAX_SEALED_SLOTS: u32 = 96;
/// The lowest value that may be set for the maximum number of slots in one segment.
pub const MIN_SEGMENT_SLOTS: u32 = 1;
/// The version of the format that this code writes and the only one it reads.
pub const VERSION: u32 = 3;

#[cfg(test)]
mod tests {
    use super::{index, layout, members, segment, superblock};

    /// Parses every table of fields on a page of docs/formats. Returns name, offset and length in
    /// bytes of each row, table by table.
    fn tables(page: &str) -> Vec<Vec<(String, usize, usize)>> {
        let mut tables = Vec::new();
        for line in page.lines() {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            if cells.get(1) == Some(&"field") {
                tables.push(Vec::new());
            } else if let [_, name, offset, bytes, ..] = cells[..]
                && let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse())
            {
                tables.last_mut().expect("after a head").push((name.to_owned(), offset, bytes));
            }
        }
        tables
    }

    fn rows(fields: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
        fields.iter().map(|&(name, offset, bytes)| (name.to_owned(), offset, bytes)).collect()
    }

    #[test]
    fn the_format_page_matches_the_code() {
        let page = include_str!("../../../docs/formats/log-disk.md");
        let code = [
            superblock::tests::FIELDS,
            layout::tests::FIELDS,
            members::tests::FIELDS,
            segment::tests::FIELDS,
            segment::tests::RECORD_FIELDS,
            index::tests::FIELDS,
            segment::tests::BRIEF_FIELDS,
        ];
        assert_eq!(tables(page), code.map(rows));
    }
}

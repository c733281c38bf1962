//! The log disk: superblock, segments, how their blocks are sealed, the ring they lie in, the index
//! of it, and what recovery reads from them.
//!
//! The bytes are written down in `docs/formats/log-disk.md`.

pub(crate) mod bytes;
pub(crate) mod seal;
pub(crate) mod layout;
pub(crate) mod members;
pub(crate) mod identity;
pub(crate) mod shape;
pub(crate) mod superblock;
mod ring_layouts;
mod openings;
pub(crate) mod segment;
pub(crate) mod ring;
pub(crate) mod index;
pub(crate) mod doubt;
pub(crate) mod recovery;
pub(crate) mod reached;
pub(crate) mod index_memory;

/// Bytes in a block of the log disk; a slot's data fills one.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Most slots in one segment (STICS 4.3.1: 128).
pub const MAX_SEGMENT_SLOTS: u32 = 128;
/// Most slots in one segment whose blocks are sealed: their tags take room in its header.
pub(crate) const MAX_SEALED_SLOTS: u32 = 96;
/// Fewest slots that a segment may be limited to.
pub(crate) const MIN_SEGMENT_SLOTS: u32 = 1;
/// The version of the format that this code writes and the only one it reads.
pub(crate) const VERSION: u32 = 3;

#[cfg(test)]
pub(crate) mod tests {
    use super::{index, layout, members, segment, superblock};

    /// Name, offset and bytes of every row of every table of fields on a page, table by table.
    pub(crate) fn tables(page: &str) -> Vec<Vec<(String, usize, usize)>> {
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

    pub(crate) fn rows(fields: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
        fields.iter().map(|&(name, offset, bytes)| (name.to_owned(), offset, bytes)).collect()
    }

    #[test]
    fn the_page_says_what_the_code_does() {
        let page = include_str!("../../../../docs/formats/log-disk.md");
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

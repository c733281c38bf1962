//! Writes zeros into the holes of a file, so that every block is allocated on the disk.
//!
//! `fallocate` alone is not sufficient: it marks extents as unwritten, and each first write then changes
//! metadata, which doubles the time of a durable append.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

/// Fills the holes below `size` and syncs the file. Existing data stays, so a fill that was interrupted can
/// be resumed.
pub(super) fn prefill(
    file: &File,
    size: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    let zeros = vec![0; PIECE as usize];
    let mut unsynced = 0;
    let mut at = 0;
    while let Some((hole, end)) = next_hole(file, at, size)? {
        at = hole;
        while at < end {
            progress(at, size);
            let length = PIECE.min(end - at);
            file.write_all_at(&zeros[..length as usize], at)?;
            at += length;
            unsynced += length;
            if unsynced >= SYNC_EVERY {
                // Nothing depends on this sync. It limits the dirty memory and the duration of the last sync.
                file.sync_data()?;
                unsynced = 0;
            }
        }
    }
    // Sync, so that a file system that allocates blocks at write-back reports missing space now and not while a host
    // waits for a write. The sync does not protect data: zeros that are lost in a power cut read as zeros.
    file.sync_data()?;
    progress(size, size);
    Ok(())
}

/// Returns the first hole at or after `at`: its first byte, and the byte after its last one.
fn next_hole(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    // For `SEEK_HOLE` the end of the file counts as a hole.
    let hole = seek(file, SeekFrom::Hole(at))?;
    if hole >= size {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(hole)) {
        Ok(data) => Ok(Some((hole, data.min(size)))),
        Err(Errno::NXIO) => Ok(Some((hole, size))),
        Err(error) => Err(error.into()),
    }
}

/// Size in bytes of one write of zeros: large enough for the full speed of a disk.
const PIECE: u64 = 1 << 20;
/// Bytes between two syncs. This bounds the amount of dirty memory and the duration of the last
/// sync.
const SYNC_EVERY: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn holes_are_filled_and_data_stays() {
        let file = tempfile::tempfile().expect("a file");
        let size = 5 << 20;
        file.set_len(size).expect("sized");
        file.write_all_at(&[7; 8192], 2 << 20).expect("written");
        let mut reported = Vec::new();
        prefill(&file, size, &mut |done, all| reported.push((done, all))).expect("filled");
        assert!(file.metadata().expect("metadata").blocks() * 512 >= size);
        assert_eq!(reported.last(), Some(&(size, size)));
        assert!(reported.is_sorted());
        let mut bytes = vec![1; size as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        let (data, from) = (2 << 20, (2 << 20) + 8192);
        assert!(bytes[data..from].iter().all(|&b| b == 7));
        assert!(bytes[..data].iter().chain(&bytes[from..]).all(|&b| b == 0));
        assert_eq!(next_hole(&file, 0, size).expect("sought"), None);
    }
}

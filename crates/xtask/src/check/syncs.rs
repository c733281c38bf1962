//! Every place in the program that makes something stable has a number and a reason.
//!
//! `cargo xtask power-cuts --ignore-site` shows for each number what is lost without it.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

/// One call of fsync, fdatasync, msync or syncfs, or one use of RWF_DSYNC.
pub struct Place {
    /// Stays when other places go.
    pub number: usize,
    /// The source file below `crates`.
    pub file: &'static str,
    /// The data or names that the call makes stable.
    pub name: &'static str,
}

const fn place(number: usize, file: &'static str, name: &'static str) -> Place {
    Place { number, file, name }
}

/// All places.
pub const PLACES: &[Place] = &[
    place(1, "volume/src/file/open.rs", "size of a volume or log that was never written to"),
    place(2, "volume/src/file/open.rs", "name of a volume or log, at every opening"),
    place(3, "volume/src/file/prefill.rs", "every 64 MiB of a file that is filled"),
    place(4, "volume/src/file/prefill.rs", "end of filling a file"),
    place(5, "volume/src/file/mod.rs", "size of a file that grows"),
    place(6, "volume/src/file/mod.rs", "size of a file that shrinks"),
    place(7, "volume/src/engine/psync.rs", "stable write, in threads"),
    place(8, "volume/src/engine/psync.rs", "flush, in threads"),
    place(9, "volume/src/engine/uring.rs", "stable write, by io_uring"),
    place(10, "volume/src/engine/uring.rs", "flush, by io_uring"),
    place(11, "cache/src/nvram/memory.rs", "name of an NVRAM, at every opening"),
    place(12, "cache/src/nvram/memory.rs", "size and zeros of an NVRAM, at every opening"),
    place(13, "cache/src/nvram/memory.rs", "all pages of an NVRAM at a start"),
    place(14, "cache/src/nvram/memory.rs", "each write to an NVRAM"),
    place(15, "forebay/src/whole_file.rs", "content of a file that is replaced"),
    place(16, "forebay/src/whole_file.rs", "names in a state folder"),
    place(17, "forebay/src/key_file.rs", "content of a new key file"),
    place(18, "forebay/src/key_file.rs", "zeros over the file of an erased key"),
    place(19, "forebay/src/secret.rs", "content of a new secret"),
    place(20, "attach/src/loop_device.rs", "a loop device that is detached"),
    place(21, "attach/src/loop_device.rs", "a file system that is unmounted"),
    place(22, "cache/src/mapping.rs", "pages of a mapped file, for places 13 and 14"),
    place(23, "forebay/src/records/mark.rs", "id in the attributes of a volume file"),
    place(24, "forebay/src/confirmed.rs", "a new file of confirmed writes"),
    place(25, "forebay/src/confirmed.rs", "confirmed writes, once a second"),
];

/// Source text of such calls.
const CALLS: [&str; 11] = [
    ".sync_all()",
    ".sync_data()",
    "fdatasync(",
    "fsync(",
    "syncfs(",
    "sync_file_range(",
    "RWF_DSYNC",
    "ReadWriteFlags::DSYNC",
    "FsyncFlags::DATASYNC",
    "map.flush()",
    "flush_range(",
];

/// Crates that keep something, and are in the program.
const CRATES: [&str; 14] = [
    "attach",
    "cache",
    "fairtcp",
    "forebay",
    "initiator",
    "iscsi",
    "names",
    "program",
    "scsi",
    "target",
    "tokens",
    "transport",
    "unit",
    "volume",
];

/// Checks that every call in these crates has a number.
pub fn check(crates: &Path) -> Result<String> {
    for name in CRATES {
        check_folder(crates, &crates.join(name).join("src"))?;
    }
    for place in PLACES {
        let is_there = crates.join(place.file).is_file();
        ensure!(is_there, "sync site {}: {} is gone", place.number, place.file);
    }
    Ok(format!("{} places make something stable", PLACES.len()))
}

fn check_folder(crates: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            check_folder(crates, &path)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let file = path.strip_prefix(crates)?.display().to_string();
            let calls = calls(&fs::read_to_string(&path)?);
            let known = PLACES.iter().filter(|place| place.file == file).count();
            ensure!(
                calls == known,
                "{file} has {calls} calls that make something stable, and {known} of them have a \
                 number in crates/xtask/src/check/syncs.rs: give each its own there, and say in \
                 crates/xtask/src/suite/power/sites.rs which power cut needs it"
            );
        }
    }
    Ok(())
}

/// Calls before the tests of a file.
fn calls(source: &str) -> usize {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let is_call = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("//")
            && !line.trim_start_matches("pub ").starts_with("fn ")
            && CALLS.iter().any(|call| line.contains(call))
    };
    code.lines().filter(is_call).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_without_comments_and_tests() {
        let source = "// file.sync_all()\n fn fsync(&self) {\n file.sync_all()?;\n\
                      Kind::Sync => fdatasync(fd),\n}\n#[cfg(test)]\nmod tests {\nf.sync_all();\n";
        assert_eq!(calls(source), 2);
    }

    #[test]
    fn every_place_has_a_number_of_its_own() {
        let mut numbers: Vec<usize> = PLACES.iter().map(|place| place.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), PLACES.len());
    }
}

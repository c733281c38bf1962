//! Checks that every call in the program that makes data or names stable has a number in a table.
//!
//! `cargo xtask power-cuts --ignore-site` leaves out the call with a number, and shows which data or name a power cut
//! destroys then.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::check::source;

/// One call of fsync, fdatasync, msync or syncfs, or one use of a flag such as RWF_DSYNC.
pub struct SyncCallSite {
    /// The number of the call. It never changes, even when other calls are removed: pages and
    /// results refer to it.
    pub number: usize,
    /// The path of the source file with the call, below `crates`.
    pub file: &'static str,
    /// The data or names that the call makes stable.
    pub name: &'static str,
}

const fn place(number: usize, file: &'static str, name: &'static str) -> SyncCallSite {
    SyncCallSite { number, file, name }
}

/// All calls that make data or names stable, by number.
pub const PLACES: &[SyncCallSite] = &[
    place(1, "volume/src/file/open.rs", "size of a volume or log that was never written to"),
    place(2, "volume/src/file/open.rs", "name of a volume or log, at every opening"),
    place(3, "volume/src/file/prefill.rs", "every 64 MiB of a file that is filled"),
    place(4, "volume/src/file/prefill.rs", "end of filling a file"),
    place(5, "volume/src/file/size.rs", "size of a file that grows"),
    place(6, "volume/src/file/size.rs", "size of a file that shrinks"),
    place(7, "volume/src/engine/psync.rs", "stable write, in threads"),
    place(8, "volume/src/engine/psync.rs", "flush, in threads"),
    place(9, "volume/src/engine/uring.rs", "stable write, by io_uring"),
    place(10, "volume/src/engine/uring.rs", "flush, by io_uring"),
    place(11, "cache/src/nvram/memory.rs", "name of an NVRAM, at every opening"),
    place(12, "cache/src/nvram/memory.rs", "size and zeros of an NVRAM, at every opening"),
    place(13, "cache/src/nvram/memory.rs", "all pages of an NVRAM at a start"),
    place(14, "cache/src/nvram/memory.rs", "each write to an NVRAM"),
    place(15, "stack/src/atomic_file.rs", "content of a file that is replaced"),
    place(16, "stack/src/atomic_file.rs", "names in a state folder"),
    place(17, "stack/src/key_file.rs", "content of a new key file"),
    place(18, "stack/src/key_file.rs", "zeros over the file of an erased key"),
    place(19, "forebay/src/secret.rs", "content of a new secret"),
    place(20, "attach/src/loop_device.rs", "a loop device that is detached"),
    place(21, "attach/src/loop_device.rs", "a file system that is unmounted"),
    place(22, "cache/src/mapping.rs", "pages of a mapped file, for places 13 and 14"),
    place(23, "stack/src/records/file_id.rs", "id in the attributes of a volume file"),
    place(24, "stack/src/confirmed_writes.rs", "a new file of confirmed writes"),
    place(25, "stack/src/confirmed_writes.rs", "confirmed writes, once a second"),
    place(26, "forebay/src/object/transfer.rs", "a file that `forebay object get` has written"),
];

/// Identifiers that occur only in calls which make data or names stable.
const NAMES: [&str; 17] = [
    "DSYNC",
    "O_DSYNC",
    "O_SYNC",
    "RWF_DSYNC",
    "RWF_SYNC",
    "SYNC",
    "fdatasync",
    "flush_async",
    "flush_async_range",
    "flush_range",
    "fsync",
    "msync",
    "sync_all",
    "sync_data",
    "sync_file_range",
    "sync_filesystem",
    "syncfs",
];

/// Source text of further calls that make something stable. The names of these functions alone would also match other
/// code.
const CALLS: [&str; 2] = ["Fsync::new", "map.flush()"];

/// Crates whose calls need no number, with the reason.
const EXEMPT: [(&str, &str); 4] = [
    ("bench", "it is no part of the program"),
    ("lab", "an experiment keeps no user data; an interrupted one is repeated"),
    ("workload", "it writes like a user's program, and keeps no user data"),
    ("xtask", "it is no part of the program"),
];

/// Checks that every call in the crates of the program has a number.
pub fn check(crates: &Path) -> Result<String> {
    for (name, _) in EXEMPT {
        ensure!(crates.join(name).is_dir(), "there is no crate '{name}' that needs no number");
    }
    for entry in fs::read_dir(crates)? {
        let path = entry?.path();
        let is_exempt = EXEMPT.iter().any(|(name, _)| path.ends_with(name));
        if path.join("src").is_dir() && !is_exempt {
            check_folder(crates, &path.join("src"))?;
        }
    }
    for place in PLACES {
        let is_there = crates.join(place.file).is_file();
        ensure!(is_there, "sync site {}: {} does not exist", place.number, place.file);
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
            let calls = calls(&fs::read_to_string(&path)?).with_context(|| file.clone())?;
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

/// Counts the lines that call a function of [`NAMES`] or [`CALLS`]. Tests, imports and the
/// definitions of functions do not count.
fn calls(source: &str) -> Result<usize> {
    let code = source::without_tests(&source::code(source)?);
    let mut is_import = false;
    let is_call = |line: &&str| {
        let line = line.trim_start();
        let begins = |word: &str| {
            let public = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub "));
            public.unwrap_or(line).starts_with(word)
        };
        is_import |= begins("use ");
        if is_import {
            is_import = !line.contains(';');
            return false;
        }
        let mut names = line.split(|char: char| !(char.is_alphanumeric() || char == '_'));
        !begins("fn ")
            && (names.any(|name| NAMES.contains(&name))
                || CALLS.iter().any(|call| line.contains(call)))
    };
    Ok(code.lines().filter(is_call).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_without_comments_and_tests() {
        let source = "use a::{\n fdatasync,\n};\n// file.sync_all()\n fn fsync(&self) { match kind {\n file.sync_all()?;\n\
                      Kind::Sync => fdatasync(fd),\n} }\n#[cfg(test)]\nmod tests {\nf.sync_all();\n}\n";
        assert_eq!(calls(source).unwrap(), 2);
    }

    #[test]
    fn each_way_to_make_something_stable_is_a_call() {
        for call in [
            "file.and_then(File::sync_all)?;",
            "options.custom_flags(libc::O_DSYNC | libc::O_RDWR);",
            "let flags = OFlags::DSYNC;",
            "let flags = libc::O_SYNC;",
            "let flags = libc::RWF_SYNC;",
            "rustix::mm::msync(address, length, MsyncFlags::SYNC)?;",
            "opcode::Fsync::new(fd).build()",
            "self.map.flush()?;",
        ] {
            assert_eq!(calls(call).unwrap(), 1, "{call}");
        }
        assert_eq!(calls("let probed = opcode::Fsync::CODE;").unwrap(), 0);
        assert_eq!(calls("println!(\"fsync\");").unwrap(), 0);
    }

    #[test]
    fn every_sync_call_has_a_unique_number() {
        let mut numbers: Vec<usize> = PLACES.iter().map(|place| place.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), PLACES.len());
    }
}

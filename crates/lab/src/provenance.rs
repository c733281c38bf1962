//! Identifies the program and the machine of a measurement. Results of another program or machine
//! are not mixed with those of this one.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs::{self, File},
    hash::{DefaultHasher, Hasher},
    io::Read as _,
};

/// Returns the version of the program, the kernel, the processors and the memory, each under a name
/// for the report.
#[must_use]
pub fn maker() -> BTreeMap<String, String> {
    let system = rustix::system::uname();
    let text = |value: &CStr| value.to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    [
        ("forebay", Some(program())),
        ("kernel", Some(format!("{} {}", text(system.sysname()), text(system.release())))),
        ("processor", first("/proc/cpuinfo", "model name")),
        ("processors", Some(processors.to_string())),
        ("memory", first("/proc/meminfo", "MemTotal:")),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

/// Returns what follows `key` in the first line of a file that begins with it.
fn first(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

/// Returns the version of the program and a checksum of its file, because two builds of one version
/// may differ as much as two versions.
fn program() -> String {
    let version = env!("CARGO_PKG_VERSION");
    // Open `/proc/self/exe`: it leads to the running file, even if the file at the program's path
    // has been replaced.
    match sum("/proc/self/exe") {
        Ok(sum) => format!("{version}, build {sum:016x}"),
        Err(_) => format!("{version}, of an unknown build"),
    }
}

/// Returns a checksum of a file: SipHash of 64 bits. It detects differences, not attacks.
fn sum(path: &str) -> std::io::Result<u64> {
    // Read large pieces, so that the cost of system calls does not matter.
    let (mut file, mut piece) = (File::open(path)?, vec![0; 1 << 20]);
    let mut hasher = DefaultHasher::new();
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.write(&piece[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_program_on_the_same_machine_is_the_same() {
        let once = maker();
        assert_eq!(once, maker());
        assert!(once["forebay"].starts_with(concat!(env!("CARGO_PKG_VERSION"), ", build ")));
        assert!(once["kernel"].starts_with("Linux "), "{once:?}");
    }
}

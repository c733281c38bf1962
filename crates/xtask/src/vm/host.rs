//! The programs and files that the host needs to build and run the machine.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rig::packages;

/// The tools that this task needs, and the Debian packages that contain them.
const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("mkfs.ext4", "e2fsprogs"),
];

/// A firmware that does no more than start a kernel. Under emulation it starts a second faster than
/// QEMU's default firmware.
const FIRMWARE: &str = "qboot.rom";

/// Folders in which distributions keep QEMU's firmware.
const FIRMWARE_FOLDERS: &[&str] = &["/usr/share/qemu", "/usr/share/qboot"];

/// Makes sure that every tool is installed. Otherwise the error names the packages to install.
pub fn provide() -> Result<String> {
    if cfg!(not(target_arch = "x86_64")) {
        bail!("the machine is built from Debian's amd64 packages: run this on an amd64 Debian");
    }
    packages::install(missing, "the virtual machine is built from Debian's packages by these")
}

pub fn firmware() -> Option<PathBuf> {
    FIRMWARE_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(FIRMWARE))
        .find(|path| path.is_file())
}

/// Returns true if the CPU can run guests without emulation. The existence of `/dev/kvm` is not
/// enough: on some hosts it emulates every privileged instruction and is slower than QEMU's own
/// emulation.
pub fn has_virtualisation() -> bool {
    let can = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| virtualises(&text));
    can && std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

fn virtualises(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "svm" || flag == "vmx"))
}

fn missing() -> Vec<&'static str> {
    let mut missing = packages::of_missing(TOOLS);
    if firmware().is_none() {
        missing.push("qemu-system-data");
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_virtualisation_counts() {
        assert!(virtualises("processor: 0\nflags\t\t: fpu svm sse\n"));
        assert!(virtualises("flags : vmx"));
        assert!(!virtualises("flags : fpu svm_lock\nvmx flags : ept"));
    }
}

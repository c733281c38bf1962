//! The foreign tools that the tests use.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rig::packages::{install, of_missing};

/// The tools that the tests need, and the Debian packages that contain them.
const TOOLS: &[(&str, &str)] = &[
    ("iscsi-ls", "libiscsi-bin"),
    ("iscsi-test-cu", "libiscsi-bin"),
    ("iscsi-perf", "libiscsi-bin"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("tgtd", "tgt"),
    ("fio", "fio"),
    ("bonnie++", "bonnie++"),
    ("postmark", "postmark"),
    ("mkfs.ext4", "e2fsprogs"),
    ("ed", "ed"),
    ("nroff", "groff-base"),
    ("nginx", "nginx-light"),
    ("faketime", "faketime"),
    ("tshark", "tshark"),
];

/// The package of QEMU's iSCSI driver. The package has no command by which it could be recognised,
/// so it is not in [`TOOLS`].
const QEMU_DRIVER: &str = "qemu-block-extra";

/// Makes sure that every tool is installed. The error says what to do.
pub fn provide() -> Result<String> {
    install(missing, "these tests are left out with --no-interop")
}

fn missing() -> Vec<&'static str> {
    let mut missing = of_missing(TOOLS);
    if !has_qemu_driver() {
        missing.push(QEMU_DRIVER);
    }
    // Debian installs PostgreSQL's programs in a folder with the version's number, which is not in
    // PATH.
    if !fs::exists("/usr/lib/postgresql").unwrap_or(false) {
        missing.push("postgresql");
    }
    missing
}

fn has_qemu_driver() -> bool {
    let mut command = Command::new("qemu-img");
    let help = program::run(command.arg("--help"), Duration::from_secs(10));
    // QEMU also lists drivers whose module is not installed, so check for the file of the module,
    // too.
    let listed = help.is_ok_and(|help| help.output.contains(" iscsi "));
    let module =
        ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu", "/usr/lib64/qemu"];
    listed
        && module
            .iter()
            .any(|folder| fs::exists(format!("{folder}/block-iscsi.so")).unwrap_or(false))
}

//! The foreign tools that the tests use.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rig::packages::{install, of_missing};

/// A tool, and the Debian package that contains it.
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
];

/// The package of QEMU's iSCSI driver. It is a library without a command.
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
    // PostgreSQL's programs are in a folder of their version, which is not in PATH.
    if !fs::exists("/usr/lib/postgresql").unwrap_or(false) {
        missing.push("postgresql");
    }
    missing
}

fn has_qemu_driver() -> bool {
    let mut command = Command::new("qemu-img");
    let help = program::run(command.arg("--help"), Duration::from_secs(10));
    // This list also has drivers of modules that are not installed, therefore the module is looked
    // for, too.
    let listed = help.is_ok_and(|help| help.output.contains(" iscsi "));
    let module =
        ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu", "/usr/lib64/qemu"];
    listed
        && module
            .iter()
            .any(|folder| fs::exists(format!("{folder}/block-iscsi.so")).unwrap_or(false))
}

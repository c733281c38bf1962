//! The foreign tools: are they there, and if not, may we install them?

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

/// Tool, and the Debian package that has it.
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

/// QEMU's iSCSI driver is a library without a command of its own.
const QEMU_DRIVER: &str = "qemu-block-extra";

/// One call of apt-get; a slow mirror needs a while for some 60 MB.
const LIMIT: Duration = Duration::from_secs(300);

/// A package mirror that fails now often works a moment later.
const ATTEMPTS: usize = 3;

/// Makes sure that every tool is there, or says what to do.
pub fn provide() -> Result<String> {
    install(missing, "these tests are left out with --no-interop")
}

/// Installs the packages that `missing` names until it names none. Where that is not possible, the
/// error says what to install, and `otherwise`.
pub fn install(missing: fn() -> Vec<&'static str>, otherwise: &str) -> Result<String> {
    let packages = missing();
    if packages.is_empty() {
        return Ok("every tool is there".to_owned());
    }
    let list = packages.join(" ");
    if !is_debian() || !rustix::process::geteuid().is_root() {
        bail!("missing: {list}. Install them (Debian: apt-get install {list}); {otherwise}");
    }
    for attempt in 1..=ATTEMPTS {
        println!("installing {list} (attempt {attempt} of {ATTEMPTS})");
        let _ = apt(&["update", "-qq"])?;
        let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
        arguments.extend(packages.iter().copied());
        if apt(&arguments)? && missing().is_empty() {
            return Ok(format!("installed {list}"));
        }
    }
    bail!("apt-get cannot install {list}; {otherwise}")
}

fn missing() -> Vec<&'static str> {
    let mut missing = of_missing(TOOLS);
    if !has_qemu_driver() {
        missing.push(QEMU_DRIVER);
    }
    // Its programs are in a folder of their version, and on no PATH.
    if !fs::exists("/usr/lib/postgresql").unwrap_or(false) {
        missing.push("postgresql");
    }
    missing
}

/// The packages of those of these tools that are not there, each tool with its package; those of one package
/// stand together.
pub fn of_missing(tools: &[(&str, &'static str)]) -> Vec<&'static str> {
    let missing = tools.iter().filter(|(tool, _)| program::find(tool).is_none());
    let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn has_qemu_driver() -> bool {
    let mut command = Command::new("qemu-img");
    let help = program::run(command.arg("--help"), Duration::from_secs(10));
    // It lists the drivers it could load, also those of modules.
    let listed = help.is_ok_and(|help| help.output.contains(" iscsi "));
    let module =
        ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib/aarch64-linux-gnu/qemu", "/usr/lib64/qemu"];
    listed
        && module
            .iter()
            .any(|folder| fs::exists(format!("{folder}/block-iscsi.so")).unwrap_or(false))
}

fn is_debian() -> bool {
    fs::exists("/etc/debian_version").unwrap_or(false) && program::find("apt-get").is_some()
}

fn apt(arguments: &[&str]) -> Result<bool> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
    let finished = program::run(&mut command, LIMIT)?;
    if !finished.success() {
        println!("apt-get {}: {}\n{}", arguments[0], finished.ending(), finished.tail(5));
    }
    Ok(finished.success())
}

//! The Debian packages from which the machine is made. They are downloaded to a folder and kept
//! there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::ProgramResult;

/// The Debian packages in the virtual machine, in addition to those on which they depend.
pub const WANTED: &[&str] = &[
    "linux-image-cloud-amd64",
    "bash",
    "bcache-tools",
    "busybox-static",
    "coreutils",
    "diffutils",
    "dmsetup",
    "e2fsprogs",
    "grep",
    "kmod",
    "libiscsi-bin",
    "mount",
    "multipath-tools",
    "open-iscsi",
    "postmark",
    "sed",
    "sg3-utils",
    "udev",
    "util-linux",
];

/// Time limit of apt-get. All packages together have some 65 MB, which takes a while from a slow
/// mirror.
const LIMIT: Duration = Duration::from_secs(600);

/// Number of attempts to download. A package mirror that fails now often works a moment later.
const ATTEMPTS: usize = 3;

/// Downloads the packages that are not in `folder` yet. Returns the paths of all packages, sorted
/// by name.
pub fn provide(folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let files = closure()?;
    for attempt in 1..=ATTEMPTS {
        let missing: Vec<&String> =
            files.iter().filter(|file| !folder.join(file).is_file()).collect();
        if missing.is_empty() {
            return Ok(files.iter().map(|file| folder.join(file)).collect());
        }
        println!("    downloading {} packages (attempt {attempt} of {ATTEMPTS})", missing.len());
        let mut command = Command::new("apt-get");
        // A package in the folder is complete: apt-get checks it before it stores it under its
        // name.
        command.arg("download").current_dir(folder);
        command.args(missing.iter().filter_map(|file| package(file)));
        let finished = program::run(&mut command, LIMIT)?;
        if !finished.success() {
            println!("apt-get download: {}\n{}", finished.ending(), finished.tail(5));
        }
    }
    anyhow::bail!("apt-get cannot download the machine's packages")
}

/// Returns the file names of all packages that an empty system needs, as computed by apt-get.
fn closure() -> Result<Vec<String>> {
    let empty = tempfile::tempdir()?;
    let status = empty.path().join("status");
    fs::write(&status, "")?;
    fs::create_dir_all(empty.path().join("archives/partial"))?;
    let ask = || -> Result<ProgramResult> {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--no-install-recommends", "--print-uris", "--quiet"]);
        command.arg("-o").arg(format!("Dir::State::status={}", status.display()));
        let archives = empty.path().join("archives");
        command.arg("-o").arg(format!("Dir::Cache::archives={}/", archives.display()));
        command.args(["-o", "Debug::NoLocking=1"]).args(WANTED);
        Ok(program::run(&mut command, LIMIT)?)
    };
    let mut finished = ask()?;
    if !finished.success() {
        // A new container has no package lists at all.
        println!("    apt-get update");
        let _ = program::run(Command::new("apt-get").args(["update", "-qq"]), LIMIT)?;
        finished = ask()?;
    }
    ensure!(
        finished.success(),
        "apt-get does not know the machine's packages (run `apt-get update` as root): {}",
        finished.tail(3)
    );
    let mut files = files(&finished.output);
    files.sort();
    ensure!(files.len() > WANTED.len(), "apt-get lists no packages:\n{}", finished.tail(5));
    Ok(files)
}

/// Returns the file names in lines of apt such as `'http://.../dash_1.deb' dash_1_amd64.deb 98140 MD5Sum:...`.
fn files(output: &str) -> Vec<String> {
    let lines = output.lines().filter(|line| line.starts_with('\''));
    lines.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

/// Returns the argument for `apt-get download` (`name=version`) that downloads the package of a
/// file name.
fn package(file: &str) -> Option<String> {
    let (name_and_version, _architecture) = file.strip_suffix(".deb")?.rsplit_once('_')?;
    let (name, version) = name_and_version.split_once('_')?;
    Some(format!("{name}={}", version.replace("%3a", ":")))
}

/// Returns the version of the kernel package among these files, such as `6.1.192-2`.
pub fn kernel(files: &[PathBuf]) -> Result<String> {
    let names = files.iter().filter_map(|path| path.file_name()?.to_str());
    let mut versions = names
        .filter(|name| name.starts_with("linux-image-cloud-amd64_"))
        .filter_map(|name| name.split('_').nth(1));
    versions.next().map(str::to_owned).context("no kernel among the packages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_in_what_apt_prints() {
        let output = "Reading package lists...\n\
            'http://a/dmsetup_2%3a1.02_amd64.deb' dmsetup_2%3a1.02_amd64.deb 82040 MD5Sum:0\n";
        let files = files(output);
        assert_eq!(files, ["dmsetup_2%3a1.02_amd64.deb"]);
        assert_eq!(package(&files[0]).unwrap(), "dmsetup=2:1.02");
        assert_eq!(package("lsscsi_0.31-1+b1_amd64.deb").unwrap(), "lsscsi=0.31-1+b1");
        assert_eq!(package("README"), None);
    }

    #[test]
    fn the_version_of_the_kernel_is_read_from_its_package_name() {
        let files = ["a/linux-image-cloud-amd64_6.1.192-2_amd64.deb".into()];
        assert_eq!(kernel(&files).unwrap(), "6.1.192-2");
        assert!(kernel(&[]).is_err());
    }
}

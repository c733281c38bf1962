//! `lab run --install`: installs missing programs from Debian's archive. If a package cannot be installed, that is
//! reported, and the run continues without it.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use control::Failure;
use lab::ExperimentPoint;
use program::RunningProgram;
use rustix::process::Signal;
use workload::{Tool, WorkloadTask};

use crate::output::{print_line, tell};

/// Packages that start services when they are installed, with the default ports on Debian.
const SERVICES: [(&str, &str); 3] = [
    ("nginx-light", "a web server on port 80 (systemctl disable --now nginx)"),
    ("postgresql", "a database on port 5432 of localhost (systemctl disable --now postgresql)"),
    ("tgt", "an iSCSI target on port 3260 (systemctl disable --now tgt)"),
];

/// Time limit of one call of apt-get: all packages together have some hundred MB, and a mirror may be slow.
const LIMIT: Duration = Duration::from_secs(3600);
/// Time that apt-get has to end after SIGINT. It stops fetching, but completes the package that dpkg is unpacking,
/// because a partly installed package would block all others.
const ENDS: Duration = Duration::from_secs(30);

/// Returns the packages that contain these programs, each package once.
pub fn names(tools: &[Tool]) -> Vec<&'static str> {
    let mut names: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Installs the packages of these programs together. If that fails, updates the package lists and installs each package
/// separately. On a stop request, ends apt-get and starts no further call.
///
/// # Errors
/// If there is no apt-get.
pub fn packages(missing: &[Tool], stop: &AtomicBool) -> Result<(), Failure> {
    let stops = || stop.load(Ordering::Relaxed);
    let packages = names(missing);
    if packages.is_empty() {
        return Ok(());
    }
    print_line(format_args!("apt-get install {}", packages.join(" ")))?;
    let services = SERVICES.iter().filter(|(package, _)| packages.contains(package));
    let services: Vec<&str> = services.map(|(_, said)| *said).collect();
    if !services.is_empty() {
        let services = services.join("; ");
        print_line(format_args!(
            "Debian starts the installed services now and at every boot: {services}"
        ))?;
    }
    if installed(&packages, stop)?.is_ok() || stops() {
        return Ok(());
    }
    // Update the package lists of the machine: it may have none, or old ones.
    if apt(&["update"], stop)?.is_err() && !stops() {
        tell("apt-get update failed: packages are taken from the present lists");
    }
    for package in packages {
        if stops() {
            return Ok(());
        }
        if let Err(why) = installed(&[package], stop)?
            && !stops()
        {
            tell(format_args!(
                "{package} cannot be installed ({why}); points that need it are left out"
            ));
        }
    }
    Ok(())
}

/// Fetches the source that builds need, if one of these points is a build. Ends early on a stop request.
///
/// # Errors
/// If stderr cannot be written.
pub fn source(points: &[ExperimentPoint], stop: &AtomicBool) -> Result<(), Failure> {
    if !points.iter().any(|point| matches!(point.task, WorkloadTask::Build(_))) {
        return Ok(());
    }
    match workload::fetch(None, stop) {
        Ok(fetched) => print_line(format_args!("to be built: {}", fetched.file.display())),
        // The user has stopped the program, which the caller reports.
        Err(_) if stop.load(Ordering::Relaxed) => Ok(()),
        Err(error) => {
            tell(format_args!(
                "the source to build cannot be fetched ({error}); points that need it are left \
                 out"
            ));
            Ok(())
        }
    }
}

/// Result of an installation by apt-get; the error says why the installation failed.
type AptInstallResult = Result<(), String>;

fn installed(packages: &[&str], stop: &AtomicBool) -> Result<AptInstallResult, Failure> {
    let words = ["install", "--yes", "--no-install-recommends"];
    apt(&[&words, packages].concat(), stop)
}

fn apt(words: &[&str], stop: &AtomicBool) -> Result<AptInstallResult, Failure> {
    let failed = |error| {
        Failure::new(format!("cannot run apt-get: {error}")).remedy(
            "install them by hand, or run without --install: points that need them are left out",
        )
    };
    let mut command = Command::new("apt-get");
    // apt-get runs in a process group of its own, so it may not read from our terminal.
    command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let mut running = RunningProgram::start(&mut command, Signal::INT).map_err(failed)?;
    let status = running.ended_unless(stop, LIMIT).map_err(failed)?;
    if status.is_none() {
        running.end(Signal::INT, ENDS);
    }
    Ok(match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(program::ending(status)),
        None => Err(format!("it did not end within {} s", LIMIT.as_secs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_two_programs_is_installed_once() {
        let of = |program, package| Tool { program, package };
        let tools = [of("tgtd", "tgt"), of("psql", "postgresql-client"), of("tgtadm", "tgt")];
        assert_eq!(names(&tools), ["postgresql-client", "tgt"]);
    }
}

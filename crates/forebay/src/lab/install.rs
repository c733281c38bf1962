//! `lab run --install`: what is missing, from Debian's archive. What cannot be had is said, and the run goes on without.

use std::{
    process::{Command, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
};

use lab::Point;
use workload::{Task, Tool};

use crate::{
    failure::Failure,
    output::{print_line, tell},
};

/// Packages that come with services, and what those are: the ports are the defaults of Debian.
const SERVICES: [(&str, &str); 3] = [
    ("nginx-light", "a web server on port 80 (systemctl disable --now nginx)"),
    ("postgresql", "a database on port 5432 of localhost (systemctl disable --now postgresql)"),
    ("tgt", "an iSCSI target on port 3260 (systemctl disable --now tgt)"),
];

/// The packages that have these programs, each once.
pub fn names(tools: &[Tool]) -> Vec<&'static str> {
    let mut names: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Installs the packages of these programs: together; if that fails, with new lists and each by itself. Nothing is begun
/// any more when it is to stop.
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
            "Debian starts what it installs, now and with the machine: {services}"
        ))?;
    }
    if install(&packages)?.success() || stops() {
        return Ok(());
    }
    // A machine may know none of its archive, or an old one.
    if !apt(&["update"])?.success() {
        tell("apt-get update failed: packages are taken from the lists that are there");
    }
    for package in packages {
        if stops() {
            return Ok(());
        }
        let status = install(&[package])?;
        if !status.success() {
            tell(format_args!(
                "{package} cannot be installed ({status}); what needs it is left out"
            ));
        }
    }
    Ok(())
}

/// Fetches what builds build, if one of these points is a build.
///
/// # Errors
/// If nothing can be printed.
pub fn source(points: &[Point]) -> Result<(), Failure> {
    if !points.iter().any(|point| matches!(point.task, Task::Build(_))) {
        return Ok(());
    }
    match workload::fetch(None) {
        Ok(fetched) => print_line(format_args!("to be built: {}", fetched.file.display())),
        Err(error) => {
            tell(format_args!(
                "the source to build cannot be fetched ({error}); what needs it is left out"
            ));
            Ok(())
        }
    }
}

fn install(packages: &[&str]) -> Result<ExitStatus, Failure> {
    let words = ["install", "--yes", "--no-install-recommends"];
    apt(&[&words, packages].concat())
}

fn apt(words: &[&str]) -> Result<ExitStatus, Failure> {
    let mut command = Command::new("apt-get");
    command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
    command.status().map_err(|error| {
        Failure::new(format!("cannot run apt-get: {error}"))
            .remedy("install them by hand, or run without --install: what needs them is left out")
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

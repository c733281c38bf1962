//! Finds out which foreign tools are missing, and installs their Debian packages where that is
//! possible.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

/// Time limit of one call of apt-get, which may download some 60 MB from a slow mirror.
const LIMIT: Duration = Duration::from_secs(300);

/// Number of attempts to install a package. A package mirror that has failed often works again a moment later.
const ATTEMPTS: usize = 3;

/// Installs the Debian packages that `missing` returns. Fails if this is not possible, or if `missing` still returns
/// packages after [`ATTEMPTS`] attempts. The error names the packages and ends with the text `otherwise`, the user's
/// alternative to the packages.
pub fn install(missing: fn() -> Vec<&'static str>, otherwise: &str) -> Result<String> {
    let packages = missing();
    if packages.is_empty() {
        return Ok("all tools are installed".to_owned());
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

/// Returns the packages of the tools that are missing. `tools` has pairs of tool and package; tools
/// of one package must be neighbours, or their package is returned twice.
pub fn of_missing(tools: &[(&str, &'static str)]) -> Vec<&'static str> {
    let missing = tools.iter().filter(|(tool, _)| program::find(tool).is_none());
    let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
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

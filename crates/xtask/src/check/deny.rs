//! Checks licences, banned crates and advisories of all dependencies with cargo-deny.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use program::ProgramResult;

/// Time limit for compiling cargo-deny, which takes minutes on two cores. The program is compiled only once, since
/// cargo then keeps it in its own folder.
const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// Time limit of one run of cargo-deny. It reads the lock file and, for advisories, fetches a small
/// repository.
const CHECK_LIMIT: Duration = Duration::from_secs(120);

/// Checks the licences, bans and sources of all dependencies. Needs no network once they are downloaded.
pub fn licences() -> Result<String> {
    install()?;
    let finished = deny(&[], &["licenses", "bans", "sources"])?;
    ensure!(finished.success(), "cargo deny {}:\n{}", finished.ending(), finished.tail(60));
    Ok("licences, bans and sources are as deny.toml says".to_owned())
}

pub enum Advisories {
    /// The dependencies have no open advisory.
    Clear,
    /// The advisory database could not be fetched; the text is the reason.
    Unknown(String),
}

/// Checks for advisories, if the database can be fetched.
pub fn advisories() -> Result<Advisories> {
    install()?;
    let finished = deny(&[], &["advisories"])?;
    if finished.success() {
        return Ok(Advisories::Clear);
    }
    if let Some(reason) = unreachable_database(&finished.output) {
        // The database cannot be fetched now: use the copy of the database that an earlier run has fetched.
        let offline = deny(&["--offline"], &["advisories"])?;
        if offline.success() {
            return Ok(Advisories::Clear);
        }
        if unreachable_database(&offline.output).is_some() {
            return Ok(Advisories::Unknown(reason));
        }
        bail!("cargo deny {}:\n{}", offline.ending(), offline.tail(60));
    }
    bail!("cargo deny {}:\n{}", finished.ending(), finished.tail(60));
}

fn deny(options: &[&str], what: &[&str]) -> Result<ProgramResult> {
    let mut command = Command::new("cargo");
    command.arg("deny").args(options).arg("check").args(what);
    Ok(program::run(&mut command, CHECK_LIMIT)?)
}

fn install() -> Result<()> {
    let version = program::run(Command::new("cargo").args(["deny", "--version"]), CHECK_LIMIT)?;
    if version.success() {
        return Ok(());
    }
    println!(
        "cargo-deny is not installed: `cargo install cargo-deny --locked --debug` (some minutes, once)"
    );
    let mut command = Command::new("cargo");
    // Compile cargo-deny without optimization (`--debug`), because compiling takes most of the time; a check takes a
    // few seconds either way.
    let arguments = ["install", "cargo-deny", "--locked", "--debug", "--quiet"];
    command.args(arguments).env_remove("CARGO_TARGET_DIR");
    let finished = program::run(&mut command, INSTALL_LIMIT)?;
    ensure!(
        finished.success(),
        "cargo install cargo-deny {}; install it by hand:\n{}",
        finished.ending(),
        finished.tail(20)
    );
    Ok(())
}

/// Returns the reason why the advisory database could not be fetched, or `None` if the output does
/// not say so.
fn unreachable_database(output: &str) -> Option<String> {
    let fetch = ["failed to fetch advisory database", "failed to get 'FETCH_HEAD' metadata"];
    let line = output.lines().position(|line| fetch.iter().any(|text| line.contains(text)))?;
    let fatal = output.lines().skip(line).find(|line| line.starts_with("fatal:"));
    Some(fatal.unwrap_or("the advisory database could not be fetched").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_database_is_distinguished_from_an_advisory() {
        let output = "x [ERROR] failed to fetch advisory database https://h/db with cli: [\"clone\"]\n\
            Cloning into 'x'...\nfatal: unable to access 'https://h/db/': Could not resolve host: h\n";
        assert!(unreachable_database(output).unwrap().contains("Could not resolve host"));
        assert_eq!(unreachable_database("error[vulnerability]: RUSTSEC-2026-0001"), None);
    }
}

//! Starts the programs of a stage: in a network namespace, and with the mark of this run.

use std::{
    fs::File,
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use program::{LoggedProgram, WaitLimit};
use rustix::{
    process::Signal,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::Error;

/// The environment variable that marks all programs of this run. Its value is the process id of the
/// run. Programs that these start inherit it.
pub(crate) const MARK: &str = "FOREBAY_LAB_RUN";

/// A network namespace. `None` is the one of this process.
pub(crate) type StageNamespace = Option<File>;

/// Starts a program in a namespace. See [`LoggedProgram::start`].
pub(crate) fn start(
    name: impl Into<String>,
    command: &mut Command,
    namespace: &StageNamespace,
    events: &Path,
    when_we_die: Signal,
) -> Result<LoggedProgram, Error> {
    let name = name.into();
    enter(command, namespace).map_err(Error::system(format!("start {name}")))?;
    Ok(LoggedProgram::start(name, command, events, when_we_die)?)
}

/// Makes a program start in a namespace, with the mark of this run.
pub(crate) fn enter(command: &mut Command, namespace: &StageNamespace) -> std::io::Result<()> {
    command.env(MARK, std::process::id().to_string());
    if let Some(namespace) = namespace {
        let namespace = namespace.try_clone()?;
        let kind = Some(LinkNameSpaceType::Network);
        let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), kind)?);
        // SAFETY: between fork and exec only this one system call is made; nothing is allocated or locked.
        unsafe { command.pre_exec(enter) };
    }
    Ok(())
}

/// Runs a program to its end. Returns its standard output.
pub(crate) fn run(
    name: &str,
    command: &mut Command,
    namespace: &StageNamespace,
    events: &Path,
    wait: WaitLimit<'_>,
) -> Result<String, Error> {
    command.stdin(Stdio::null());
    Ok(start(name, command, namespace, events, Signal::KILL)?.finish(wait)?)
}

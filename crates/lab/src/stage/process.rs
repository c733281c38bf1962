//! Starts the programs of a stage: each in a network namespace, and with a mark that identifies
//! this run.

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

/// Environment variable that marks all programs of this run. Its value is the process id of the
/// run. Child processes of these programs inherit it.
pub(crate) const MARK: &str = "FOREBAY_LAB_RUN";

/// A network namespace; `None` for that of this process.
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

/// Makes the program that `command` starts enter a namespace, and sets the mark of this run.
pub(crate) fn enter(command: &mut Command, namespace: &StageNamespace) -> std::io::Result<()> {
    command.env(MARK, std::process::id().to_string());
    if let Some(namespace) = namespace {
        let namespace = namespace.try_clone()?;
        let kind = Some(LinkNameSpaceType::Network);
        let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), kind)?);
        // SAFETY: between fork and exec the closure makes only this one system call; it allocates nothing and takes no
        // lock.
        unsafe { command.pre_exec(enter) };
    }
    Ok(())
}

/// Runs a program until it ends, and returns its standard output.
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

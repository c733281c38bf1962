//! The signal dispositions that a program starts with.

use std::{io, os::unix::process::CommandExt, process::Command};

/// Signals that a program may ignore because of its parent: nohup(1) makes it ignore SIGHUP, and a shell without job
/// control makes background commands ignore SIGINT and SIGQUIT. SIGTERM is in the list because we end programs with it.
const RESET: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Makes the program start with the default dispositions of SIGHUP, SIGINT, SIGQUIT and SIGTERM.
///
/// An ignored signal stays ignored across execve(2). Without this, a program that is started under nohup(1) or
/// in the background of a script does not end when we send it one of these signals.
pub fn reset_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure calls only signal(2), which is async-signal-safe.
    unsafe { command.pre_exec(reset) }
}

fn reset() -> io::Result<()> {
    for signal in RESET {
        // SAFETY: the default disposition runs no code of ours.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

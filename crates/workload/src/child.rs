//! A program that is run to its end, within a time, with what it says.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, set_parent_process_death_signal,
    },
};

use crate::Error;

/// For a program that was killed to be gone: a thread or two of it at work in the kernel.
const KILLED_LIMIT: Duration = Duration::from_secs(5);
/// Of what a program says, the last that an error tells.
const TAIL_LINES: usize = 8;

/// Runs a program to its end and answers with what it said on both its outputs, and how long it took.
///
/// # Errors
/// If it fails, or takes longer: then it is killed, with all that it has started in its group.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(String, Duration), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = || Error::system(format!("run {program}"));
    // A file and not a pipe: nobody has to read while it runs, however much it says.
    let said = unnamed().map_err(failed())?;
    let again = |file: &File| file.try_clone().map_err(failed());
    command.stdin(Stdio::null()).stdout(again(&said)?).stderr(again(&said)?);
    tied(command, Signal::TERM);
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed())?;
    let Some(ending) = ending(&mut child, limit).map_err(failed())? else {
        kill(&mut child);
        return Err(Error::Late { program, limit });
    };
    let took = begun.elapsed();
    let said = all_of(said).map_err(failed())?;
    if ending.success() {
        return Ok((said, took));
    }
    Err(Error::Program { program, ending: told(ending), said: tail(&said) })
}

/// Ends a program with all that it has started in its group.
pub(crate) fn kill(child: &mut Child) {
    let _ = kill_process_group(group(child), Signal::KILL);
    // One that waits for storage that does not answer does not die before: whoever takes the storage away
    // must not wait for that.
    let _ = ending(child, KILLED_LIMIT);
}

/// Lets a program be a group of its own, and be told by this signal when the thread that starts it is no
/// more: nothing stays behind if we are killed.
pub(crate) fn tied(command: &mut Command, signal: Signal) {
    use std::os::unix::process::CommandExt;
    let tie = move || Ok(set_parent_process_death_signal(Some(signal))?);
    // SAFETY: between fork and exec only this one system call is made; nothing is allocated or locked.
    unsafe { command.process_group(0).pre_exec(tie) };
}

/// How a program ended; `None` if it has not within this time.
pub(crate) fn ending(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let ended = pidfd_open(group(child), PidfdFlags::empty())?;
    let until = Instant::now() + limit;
    loop {
        if let Some(ending) = child.try_wait()? {
            return Ok(Some(ending));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec::try_from(left).expect("a limit is no age of the world");
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The group of a program that is `tied`; its number is the program's own.
pub(crate) fn group(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// A file without a name, gone when it is closed.
pub(crate) fn unnamed() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("said", MemfdFlags::CLOEXEC)?.into())
}

fn all_of(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How a program ended, for people.
pub(crate) fn told(ending: ExitStatus) -> String {
    match (ending.code(), ending.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => ending.to_string(),
    }
}

/// The last lines.
pub(crate) fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_and_how_it_fails_is_told() {
        let shell =
            |script: &str| run(Command::new("sh").args(["-c", script]), Duration::from_secs(20));
        assert_eq!(shell("echo one; echo two >&2").unwrap().0, "one\ntwo\n");
        let error = shell("echo no room >&2; exit 3").unwrap_err().to_string();
        assert_eq!(error, "sh ended with 3: no room");
        let error = shell("kill -9 $$").unwrap_err().to_string();
        assert!(error.contains("signal 9"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_what_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let error = run(&mut command, Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
    }
}

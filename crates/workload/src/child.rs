//! A program that is run to its end, within a time, with what it says.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Error;

/// How often is looked whether it has ended; it is far less than any run that is measured, and what is
/// measured is timed by the program where it can be.
const LOOK: Duration = Duration::from_millis(2);
/// Of what a program says, the last that an error tells.
const TAIL_LINES: usize = 8;

/// Runs a program to its end and answers with what it said on both its outputs, and how long it took.
///
/// # Errors
/// If it fails, or takes longer: then it is killed, with all that it has started in its group.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(String, Duration), Error> {
    use std::os::unix::process::CommandExt;
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = || Error::system(format!("run {program}"));
    // A file and not a pipe: nobody has to read while it runs, however much it says.
    let said = unnamed().map_err(failed())?;
    let again = |file: &File| file.try_clone().map_err(failed());
    command.stdin(Stdio::null()).stdout(again(&said)?).stderr(again(&said)?).process_group(0);
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed())?;
    let ending = loop {
        if let Some(ending) = child.try_wait().map_err(failed())? {
            break ending;
        }
        if begun.elapsed() > limit {
            let group = Pid::from_raw(child.id() as i32).expect("a process has a number");
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            return Err(Error::Late { program, limit });
        }
        thread::sleep(LOOK);
    };
    let took = begun.elapsed();
    let said = all_of(said).map_err(failed())?;
    if ending.success() {
        return Ok((said, took));
    }
    Err(Error::Program { program, ending: told(ending), said: tail(&said) })
}

/// A file without a name, gone when it is closed.
fn unnamed() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("said", MemfdFlags::CLOEXEC)?.into())
}

fn all_of(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn told(ending: ExitStatus) -> String {
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

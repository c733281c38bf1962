//! Runs a program until it exits or reaches a time limit, and collects its output.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use program::{ending, last_lines};

use crate::Error;

/// The number of lines, at the end of a program's output, that an error shows.
const TAIL_LINES: usize = 8;

/// Runs a program to its end. Returns the text of its standard output and standard error, and how
/// long it ran.
///
/// # Errors
/// [`Error::Program`] if the program fails; [`Error::Late`] if it takes longer than `limit`: then
/// it is killed, with all processes of its group.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(String, Duration), Error> {
    run_unless(command, limit, &AtomicBool::new(false))
}

/// Runs a program like [`run`], but kills it when `stop` is set.
///
/// # Errors
/// The errors of [`run`]; [`Error::Stopped`] when `stop` was set.
pub(crate) fn run_unless(
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<(String, Duration), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let finished = program::run_unless(command, limit, stop)
        .map_err(Error::system(format!("run {program}")))?;
    match finished.status {
        Some(status) if status.success() => Ok((finished.output, finished.took)),
        Some(status) => {
            let said = tail(&finished.output);
            Err(Error::Program { program, ending: ending(status), said })
        }
        None if stop.load(Ordering::Relaxed) => Err(Error::Stopped { program }),
        None => Err(Error::Late { program, limit }),
    }
}

/// Returns the last [`TAIL_LINES`] lines of an output.
pub(crate) fn tail(said: &str) -> String {
    last_lines(said, TAIL_LINES)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_output_and_the_failure_of_a_program_are_returned() {
        let shell =
            |script: &str| run(Command::new("sh").args(["-c", script]), Duration::from_secs(20));
        assert_eq!(shell("echo one; echo two >&2").unwrap().0, "one\ntwo\n");
        let error = shell("echo no room >&2; exit 3").unwrap_err().to_string();
        assert_eq!(error, "sh ended with 3: no room");
        let error = shell("kill -9 $$").unwrap_err().to_string();
        assert!(error.contains("signal 9"), "{error}");
    }

    #[test]
    fn a_requested_stop_ends_the_wait_for_a_program() {
        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut command = Command::new("sh");
                command.args(["-c", "sleep 1000 & wait"]);
                run_unless(&mut command, Duration::from_secs(20), &stop)
            });
            stop.store(true, Ordering::Relaxed);
            running.join().unwrap()
        });
        assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_program_that_exceeds_its_time_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let error = run(&mut command, Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
    }
}

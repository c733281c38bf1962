//! Runs the same function several times at once, each time in a thread of its own.

use std::thread;

use crate::Error;

/// Calls the function `one` with each number from 0 to `count` - 1, concurrently and each in a thread of its own.
/// Returns the results in the order of the numbers.
///
/// # Errors
/// If calls fail, the error of the one with the lowest number, after all calls have ended.
pub(crate) fn at_once<T: Send>(
    count: u32,
    one: impl Fn(u32) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..count).map(|number| scope.spawn(move || one(number))).collect();
        all.into_iter().map(|it| it.join().expect("it does not panic")).collect()
    })
}

/// Checks that the user asked for a permitted number of processes of a program. The papers use ten
/// at most.
///
/// # Errors
/// [`Error::Settings`].
pub(crate) fn check_processes(program: &str, processes: u32) -> Result<(), Error> {
    if !(1..=64).contains(&processes) {
        return Err(Error::Settings(format!("{program} runs as 1 to 64 processes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_runs_are_concurrent_and_the_first_failure_is_returned() {
        // This barrier proves that the runs are concurrent: it blocks until all three threads have reached it.
        let all = Barrier::new(3);
        let one = |number: u32| {
            all.wait();
            Ok(number * 10)
        };
        assert_eq!(at_once(3, one).unwrap(), [0, 10, 20]);
        let fails = |number: u32| match number {
            0 => Ok(()),
            number => Err(Error::Settings(number.to_string())),
        };
        assert_eq!(at_once(3, fails).unwrap_err().to_string(), "1");
    }
}

//! Starts programs. Each program leads a process group of its own, has the default signal dispositions, and
//! gets a signal when the thread that started it ends. A wait for its end has a time limit, and its output is
//! kept for the caller.
//!
//! The caller decides which programs run, and handles their failures.

mod said;
mod signals;
mod running;
mod error;
mod logged;
mod finished;

pub use error::Error;
pub use finished::{ProgramResult, find, run, run_unless, start};
pub use logged::{LoggedProgram, WaitLimit};
pub use running::{RunningProgram, ending};
pub use said::{Said, last_lines};
pub use signals::reset_signals;

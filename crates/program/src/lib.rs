//! Programs that we start. Each leads a process group of its own, has the default signal dispositions and does
//! not itself outlive us. Waiting for its end has a time limit, and its output is kept for the caller.
//!
//! Which programs these are, and what becomes of one that fails, is their starter's affair.

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

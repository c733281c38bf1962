//! `forebay status`: prints the status on one screen, in full, as JSON, or as one line for a monitor.

mod full;
mod summary;
mod monitor;

use std::{path::Path, process::ExitCode, time::Duration};

use control::{ControlRequest, ControlResponse, Failure, ServingStatus};

pub use full::pair_in_words;

use crate::{cli::StatusArgs, control_socket, output::print};

/// Prints the status in the form that the command line selects.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    if args.check {
        return monitor::run(|| ask(&args.whom.path()?));
    }
    let path = args.whom.path()?;
    loop {
        let status = ask(&path)?;
        print(match (args.json, args.all) {
            (true, _) => serde_json::to_string(&status).map_err(Failure::new)? + "\n",
            (false, true) => full::for_people(&status),
            (false, false) => summary::for_people(&status),
        })?;
        match args.watch {
            Some(pause) => std::thread::sleep(pause.0.max(Duration::from_millis(100))),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn ask(path: &Path) -> Result<ServingStatus, Failure> {
    match control_socket::ask(path, ControlRequest::Status)? {
        ControlResponse::Status(status) => Ok(*status),
        other => Err(other.unexpected()),
    }
}

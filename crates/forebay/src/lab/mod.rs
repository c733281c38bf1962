//! The laboratory: distance, loss and load between real programs on one machine.

mod words;
mod arguments;
mod failed;
mod wan;
mod enter;
mod signals;
mod stop;
mod work;
mod install;
mod experiment;

use crate::failure::Failure;
pub use arguments::Lab;
use arguments::{Act, LabSubcommand};

/// Does what the command line asks.
pub fn run(lab: &Lab) -> Result<(), Failure> {
    let link = match &lab.part {
        LabSubcommand::Wan(link) => link,
        LabSubcommand::Workload(args) => return work::run(args),
        LabSubcommand::Fetch(args) => return work::fetch(args),
        LabSubcommand::Run(args) => return experiment::run(args),
    };
    match &link.act {
        Act::Run(args) => wan::run(args),
        Act::Change(args) => wan::change(args),
        Act::Status(args) => wan::status(args),
        Act::Exec(args) => enter::exec(args),
        Act::Remove(args) => wan::remove(args),
    }
}

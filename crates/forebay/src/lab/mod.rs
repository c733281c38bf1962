//! The laboratory: distance, loss and load between real programs on one machine.

mod words;
mod arguments;
mod failed;
mod wan;
mod enter;

use crate::failure::Failure;
pub use arguments::Lab;
use arguments::{Act, Part};

/// Does what the command line asks.
pub fn run(lab: &Lab) -> Result<(), Failure> {
    let Part::Wan(link) = &lab.part;
    match &link.act {
        Act::Run(args) => wan::run(args),
        Act::Change(args) => wan::change(args),
        Act::Status(args) => wan::status(args),
        Act::Exec(args) => enter::exec(args),
        Act::Remove(args) => wan::remove(args),
    }
}

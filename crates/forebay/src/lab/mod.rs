//! The laboratory: tests real programs on one machine over emulated long links, with loss and load.

mod link_settings;
mod arguments;
mod link_failure;
mod wan;
mod exec;
mod signals;
mod workload_stop;
mod run_workload;
mod install;
mod run_experiment;

pub use arguments::Lab;
use arguments::{Act, LabSubcommand};
use control::Failure;

pub fn run(lab: &Lab) -> Result<(), Failure> {
    let link = match &lab.part {
        LabSubcommand::Wan(link) => link,
        LabSubcommand::Workload(args) => return run_workload::run(args),
        LabSubcommand::Fetch(args) => return run_workload::fetch(args),
        LabSubcommand::Run(args) => return run_experiment::run(args),
    };
    match &link.act {
        Act::Run(args) => wan::run(args),
        Act::Change(args) => wan::change(args),
        Act::Status(args) => wan::status(args),
        Act::Exec(args) => exec::exec(args),
        Act::Remove(args) => wan::remove(args),
    }
}

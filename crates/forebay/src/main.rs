//! The program: settings, stacks, roles, quickstart.

mod failure;
mod quantity;
mod status;
mod control;
mod settings;
mod link;
mod cli;
mod quickstart;

fn main() {}

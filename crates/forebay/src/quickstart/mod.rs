//! Everything on one machine: a node, a slow link, a gateway, the fixed mix both ways, a crash.

mod ledger;
mod load;
mod outcome;
mod page;
mod process;

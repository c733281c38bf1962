//! TPC-C on PostgreSQL: orders of a wholesale supplier, after the TPC's standard, revision 5.11.
//!
//! The five transactions, their data and their mix are those of the standard. The requirements for a published result
//! (think times, scale, hours of steady state) are met only with the right settings. `docs/workloads.md` lists the
//! differences.

mod random;
mod cluster;
mod schema;
mod populate;
mod transaction;
mod terminal;
mod consistency;

use std::time::Duration;

use postgres::error::SqlState;
use serde::{Deserialize, Serialize};

use self::{
    cluster::Cluster,
    random::{Constants, TpccRandom},
    terminal::Terminals,
};
use crate::{Error, Tool, Workload, WorkloadResult, WorkloadRun};

/// Settings of the workload TPC-C.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Tpcc {
    /// Number of warehouses, each with some 100 MB of data
    #[arg(long, default_value_t = 1)]
    pub warehouses: u32,
    /// Customers of each of a warehouse's ten districts. The standard demands 3000
    #[arg(long, default_value_t = 3000)]
    pub customers: u32,
    /// Number of items, all of them in stock in each warehouse. The standard demands 100000
    #[arg(long, default_value_t = 100_000)]
    pub items: u32,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 10)]
    pub clients: u32,
    /// Length of the measurement in seconds
    #[arg(long, default_value_t = 60)]
    pub seconds: u32,
    /// Length of the warm-up in seconds, with the same load
    #[arg(long, default_value_t = 5)]
    pub warm_up: u32,
    /// Size of the database's own cache (shared_buffers) in MiB. It should be smaller than the
    /// data, or the storage has little to read
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub shared_buffers: u32,
    /// Size of the database's log between two checkpoints (max_wal_size) in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub log: u32,
    /// Let clients wait for the standard's keying and think times: some 21 s for each transaction
    #[arg(long)]
    pub think: bool,
}

impl Default for Tpcc {
    fn default() -> Self {
        Self {
            warehouses: 1,
            customers: 3000,
            items: 100_000,
            clients: 10,
            seconds: 60,
            warm_up: 5,
            shared_buffers: 64,
            log: 1024,
            think: false,
        }
    }
}

impl Workload for Tpcc {
    fn needs(&self) -> Vec<Tool> {
        vec![cluster::INITDB]
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = Error::wrong_setting;
        match self {
            Self { warehouses: 0 | 10_001.., .. } => wrong("TPC-C here has 1 to 10000 warehouses"),
            Self { customers: 0..30 | 3001.., .. } => {
                wrong("a district of TPC-C has 30 to 3000 customers")
            }
            Self { items: 0..100 | 100_001.., .. } => wrong("TPC-C has 100 to 100000 items"),
            Self { clients: 0 | 501.., .. } => wrong("TPC-C here has 1 to 500 clients"),
            Self { seconds: 0 | 86_401.., .. } | Self { warm_up: 86_401.., .. } => {
                wrong("TPC-C runs for a second to a day, after a warm-up of at most a day")
            }
            Self { shared_buffers: 0 | 1_000_000.., .. } => {
                wrong("the database's cache has 1 to 999999 MiB")
            }
            // PostgreSQL requires max_wal_size to be at least two segments of 16 MiB.
            Self { log: 0..32 | 1_000_000.., .. } => {
                wrong("the database's log has 32 to 999999 MiB")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        let [warehouses, customers, items] =
            [self.warehouses, self.customers, self.items].map(u64::from);
        // Bytes per row, measured in a filled database, indices included: stock 400, a customer
        // with an order of ten lines 2200, an item 120.
        let warehouse = items * 400 + 10 * customers * 2200;
        let data = warehouses.saturating_mul(warehouse).saturating_add(items * 120);
        // Add space for the log, for an empty cluster, and for the data that a fast machine adds in each second of the
        // run.
        let seconds = u64::from(self.seconds) + u64::from(self.warm_up);
        data.saturating_add((u64::from(self.log) << 20) + (64 << 20) + seconds * (4 << 20))
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("tpcc")?;
        self.check()?;
        let progress =
            |begin: f64, share: f64| move |done: f64| (run.progress)(begin + share * done);
        let mut cluster = Cluster::make(folder, run.scratch, self, self.space())?;
        cluster.start()?;
        let mut random = TpccRandom::new(run.seed);
        let constants = Constants::choose(&mut random);
        let mut client = cluster.connect()?;
        populate::populate(&mut client, self, &constants, &mut random, &progress(0.0, 0.4))?;
        let before = consistency::count(&mut client)?;
        let done = Terminals { cluster: &cluster, settings: self, constants: &constants }
            .run(&mut random, &progress(0.4, 0.4))?;
        consistency::check(&mut client)?;
        drop(client);
        // Restart the cluster before the totals are read, so that they come from its files and not from memory.
        cluster.stop()?;
        cluster.check_pages()?;
        cluster.start()?;
        let mut client = cluster.connect()?;
        consistency::check(&mut client)?;
        let after = consistency::count(&mut client)?;
        consistency::compare(before, after, &done)?;
        drop(client);
        cluster.stop()?;
        cluster.remove()?;
        (run.progress)(1.0);
        Ok(self.outcome(&done))
    }
}

impl Tpcc {
    fn outcome(&self, done: &terminal::TerminalResult) -> WorkloadResult {
        let minutes = f64::from(self.seconds) / 60.0;
        let counted: u64 = done.measured.iter().sum();
        let cut = |name: &str, is: u32, all: u32| {
            if is == all { String::new() } else { format!("; {name} reduced from {all} to {is}") }
        };
        let mut outcome = WorkloadResult {
            verified: format!(
                "consistency conditions 1 to 4, every page's checksum, and that each of {} orders and {} payments \
                 is there once, after the database was stopped and read again from storage{}{}",
                done.orders,
                done.payments,
                cut("customers of a district", self.customers, 3000),
                cut("items", self.items, 100_000),
            ),
            ..WorkloadResult::default()
        }
        .figure("transactions", "1/min", counted as f64 / minutes)
        .figure("new orders (tpmC)", "1/min", done.measured[0] as f64 / minutes)
        .figure("payments", "", done.measured[1] as f64)
        .figure("order status", "", done.measured[2] as f64)
        .figure("deliveries", "", done.measured[3] as f64)
        .figure("stock level", "", done.measured[4] as f64)
        .figure("rolled back as the standard wants", "", done.rolled_back as f64)
        .figure("tried again", "", done.tried_again as f64);
        for (name, share) in [("new order, half within", 0.5), ("new order, 90 % within", 0.9)] {
            if let Some(time) = done.within(share) {
                outcome = outcome.figure(name, "ms", time);
            }
        }
        outcome
    }
}

/// Converts an error of the database. Messages about damaged data become [`Error::Wrong`].
fn failed(error: postgres::Error) -> Error {
    let said = match error.as_db_error() {
        Some(db) => format!("{}: {}", db.code().code(), db.message()),
        None => error.to_string(),
    };
    let corrupted = [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED];
    if error.code().is_some_and(|code| corrupted.contains(code)) {
        return Error::Wrong(format!("PostgreSQL reports {said}"));
    }
    Error::Program { program: "PostgreSQL".to_owned(), ending: "answered".to_owned(), said }
}

/// Time limit of a statement. To read a database of a few GB from remote storage takes minutes;
/// after an hour a statement is stuck.
const STATEMENT_LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::{TrialFolders, left};

    #[test]
    fn tpcc_runs_compares_its_data_and_leaves_nothing() {
        let Some(trial) = TrialFolders::with(&[cluster::INITDB]) else { return };
        let task = Tpcc {
            warehouses: 2,
            customers: 60,
            items: 200,
            clients: 4,
            seconds: 2,
            warm_up: 0,
            ..Tpcc::default()
        };
        let outcome = trial.run(&task).unwrap();
        for figure in ["transactions", "new orders (tpmC)", "payments"] {
            assert!(outcome.get(figure).unwrap() > 0.0, "{outcome:?}");
        }
        assert_eq!(left(trial.scratch()), 0);
    }
}

//! The clients of the database. Each executes transactions until the time is over.

use std::time::{Duration, Instant};

use postgres::{Client, error::SqlState};

use super::{
    Constants, Error, Tpcc, TpccRandom,
    cluster::Cluster,
    failed,
    transaction::{
        Home, Statements, TransactionEnding, TransactionInputSource, TransactionKind, perform,
    },
};
use crate::timed_run::{RunWatch, within};

/// Maximum number of attempts of a transaction after serialization failures or deadlocks. With
/// hundreds of clients at one row some retries are normal; this many are not.
const TRIES: u32 = 100;

/// The parameters that all clients of a run share.
pub(super) struct Terminals<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) settings: &'a Tpcc,
    pub(super) constants: &'a Constants,
}

/// The results of one client, or the sum of the results of several clients.
#[derive(Clone, Debug, Default)]
pub(super) struct TerminalResult {
    /// Number of committed orders, also outside of the measured time.
    pub(super) orders: u64,
    /// Number of committed payments, also outside of the measured time.
    pub(super) payments: u64,
    /// Transactions of each kind that were committed in the measured time.
    pub(super) measured: [u64; 5],
    /// Number of New-Order transactions in the measured time that were rolled back, because one in a hundred orders an
    /// unknown item.
    pub(super) rolled_back: u64,
    /// Number of transactions that were repeated after a conflict with another transaction.
    pub(super) tried_again: u64,
    /// Response times in milliseconds of the orders in the measured time; sorted at the end.
    pub(super) times: Vec<f64>,
}

impl TerminalResult {
    /// Returns the time in milliseconds within which this share of the measured orders was
    /// answered; `None` if none was measured.
    pub(super) fn within(&self, share: f64) -> Option<f64> {
        within(&self.times, share)
    }

    fn add(&mut self, other: Self) {
        self.orders += other.orders;
        self.payments += other.payments;
        self.measured.iter_mut().zip(other.measured).for_each(|(all, more)| *all += more);
        self.rolled_back += other.rolled_back;
        self.tried_again += other.tried_again;
        self.times.extend(other.times);
    }

    fn count(
        &mut self,
        kind: TransactionKind,
        ending: &TransactionEnding,
        took: Duration,
        is_measured: bool,
    ) {
        match (kind, ending) {
            (TransactionKind::NewOrder, TransactionEnding::Committed) => self.orders += 1,
            (TransactionKind::Payment, TransactionEnding::Committed) => self.payments += 1,
            _ => (),
        }
        if !is_measured {
            return;
        }
        match ending {
            TransactionEnding::Committed => self.measured[kind as usize] += 1,
            TransactionEnding::RolledBack | TransactionEnding::Wrong(_) => self.rolled_back += 1,
        }
        if kind == TransactionKind::NewOrder {
            self.times.push(took.as_secs_f64() * 1e3);
        }
    }
}

impl Terminals<'_> {
    /// Runs all clients until the time is over.
    ///
    /// # Errors
    /// The first error of a client.
    pub(super) fn run(
        &self,
        random: &mut TpccRandom,
        progress: &dyn Fn(f64),
    ) -> Result<TerminalResult, Error> {
        let settings = self.settings;
        let ready = (0..settings.clients).map(|number| self.connect(number, random));
        let ready = ready.collect::<Result<Vec<Terminal<'_>>, Error>>()?;
        let workers =
            ready.into_iter().map(|mut terminal| move |watch: &RunWatch| terminal.work(watch));
        let watch = RunWatch::start(settings.warm_up, settings.seconds);
        let mut all = TerminalResult::default();
        watch.run(workers.collect(), progress)?.into_iter().for_each(|done| all.add(done));
        all.times.sort_by(f64::total_cmp);
        Ok(all)
    }

    /// Connects a client, and assigns it a warehouse and a district. Clients are distributed evenly over them.
    fn connect(&self, number: u32, random: &mut TpccRandom) -> Result<Terminal<'_>, Error> {
        let settings = self.settings;
        let mut client = self.cluster.connect()?;
        let statements = Statements::prepare(&mut client).map_err(failed)?;
        let (row, place) = (number / settings.warehouses, number % settings.warehouses);
        let home = Home { warehouse: place as i32 + 1, district: (row % 10) as i32 + 1 };
        let source = TransactionInputSource { tpcc: settings, constants: self.constants, home };
        Ok(Terminal { client, statements, source, random: random.fork() })
    }
}

/// A simulated client, with its connection to the database.
struct Terminal<'a> {
    client: Client,
    statements: Statements,
    source: TransactionInputSource<'a>,
    random: TpccRandom,
}

impl Terminal<'_> {
    fn work(&mut self, watch: &RunWatch) -> Result<TerminalResult, Error> {
        let mut done = TerminalResult::default();
        while !watch.is_over() {
            let kind = TransactionKind::choose(&mut self.random);
            let [keying, thinking] = kind.pauses();
            if self.source.tpcc.think {
                watch.pause(keying);
                if watch.is_over() {
                    break;
                }
            }
            let begun = Instant::now();
            let ending = self.one(kind, &mut done.tried_again)?;
            let now = Instant::now();
            done.count(kind, &ending, now - begun, watch.is_measured(now));
            if let TransactionEnding::Wrong(what) = ending {
                return Err(Error::Wrong(what));
            }
            if self.source.tpcc.think {
                // The think time is exponentially distributed, and at most ten times the mean
                // (clause 5.2.5.4).
                let pause = self.random.pause(thinking);
                watch.pause(pause.min(10.0 * thinking));
            }
        }
        Ok(done)
    }

    /// Executes a transaction, and repeats it after a conflict with another transaction.
    fn one(
        &mut self,
        kind: TransactionKind,
        tried_again: &mut u64,
    ) -> Result<TransactionEnding, Error> {
        let input = self.source.draw(kind, &mut self.random);
        for _ in 1..TRIES {
            match perform(&mut self.client, &self.statements, self.source.home, &input) {
                Err(error) if is_put_off(&error) => *tried_again += 1,
                result => return result.map_err(failed),
            }
        }
        perform(&mut self.client, &self.statements, self.source.home, &input).map_err(failed)
    }
}

fn is_put_off(error: &postgres::Error) -> bool {
    let put_off = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| put_off.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_measured_transactions_are_timed_but_all_committed_ones_are_counted() {
        let mut done = TerminalResult::default();
        let second = Duration::from_secs(1);
        done.count(TransactionKind::NewOrder, &TransactionEnding::Committed, second, false);
        done.count(TransactionKind::NewOrder, &TransactionEnding::Committed, second, true);
        done.count(TransactionKind::NewOrder, &TransactionEnding::RolledBack, 3 * second, true);
        done.count(TransactionKind::StockLevel, &TransactionEnding::Committed, 9 * second, true);
        let mut all = TerminalResult::default();
        all.add(done);
        assert_eq!((all.orders, all.measured, all.rolled_back), (2, [1, 0, 0, 0, 1], 1));
        assert_eq!((all.within(0.5), all.within(0.9)), (Some(1000.0), Some(3000.0)));
        assert_eq!(TerminalResult::default().within(0.9), None);
    }
}

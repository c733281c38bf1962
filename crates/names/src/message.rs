//! What two nodes say to each other: how new is what I know, here is what you do not have, and here is
//! what you do not have.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    channel::{FIRST_BYTES, FRAME_BYTES},
    gln::Gln,
    record::{NodeName, Record, Refusal, Stamp},
    table::Table,
};

/// What the node that connected says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The first: how new is what I know.
    Exchange {
        /// Who asks.
        from: Gln,
        /// Its process: random, so that who calls himself is told from who has the same number.
        instance: u64,
        /// How new.
        known: Vec<Stamp>,
    },
    /// The second, if there is something to tell.
    Tell {
        /// Records that the other does not have.
        told: Vec<Told>,
    },
}

/// What is answered.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// To the first.
    Exchanged {
        /// How new is what I know.
        known: Vec<Stamp>,
        /// Records that you do not have.
        told: Vec<Told>,
    },
    /// To the second.
    Taken,
    /// You are me.
    Yourself,
    /// You have my number, and are not me: one of us was made as a copy of the other.
    Twin {
        /// Who I am.
        node: NodeName,
    },
    /// You have said something that cannot be.
    Refused {
        /// What.
        reason: String,
    },
}

/// A record on its way.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Told {
    /// The record.
    record: Record,
    /// Milliseconds since its owner's last sign of life.
    age_ms: u64,
}

/// Records in one message: the rest of a frame is room for stamps.
const NEWS_BYTES: usize = FRAME_BYTES - FIRST_BYTES;

/// The first thing to say.
#[must_use]
pub fn begin(table: &Table, instance: u64) -> Request {
    Request::Exchange { from: table.own().stamp.gln, instance, known: table.stamps() }
}

/// What to say to a request.
pub fn answer(table: &mut Table, instance: u64, request: Request, now: Instant) -> Response {
    let answered = match request {
        Request::Exchange { from, instance: theirs, .. } if from == table.own().stamp.gln => {
            return match theirs == instance {
                true => Response::Yourself,
                false => Response::Twin { node: table.own().node.clone() },
            };
        }
        Request::Exchange { known, .. } => table.heed(&known, now).map(|()| {
            let told = news(table, &known, now);
            Response::Exchanged { known: table.stamps(), told }
        }),
        Request::Tell { told } => take(table, told, now).map(|()| Response::Taken),
    };
    answered.unwrap_or_else(|refusal| Response::Refused { reason: refusal.to_string() })
}

/// Takes the answer to the first request; what is still to be told, if anything is.
pub fn finish(
    table: &mut Table,
    known: &[Stamp],
    told: Vec<Told>,
    now: Instant,
) -> Result<Option<Request>, Refusal> {
    table.heed(known, now)?;
    take(table, told, now)?;
    let told = news(table, known, now);
    Ok((!told.is_empty()).then_some(Request::Tell { told }))
}

fn news(table: &Table, known: &[Stamp], now: Instant) -> Vec<Told> {
    let news = table.news_for(known, NEWS_BYTES, now).into_iter();
    let told = news.map(|(record, age)| Told { record, age_ms: age.as_millis() as u64 });
    told.collect()
}

fn take(table: &mut Table, told: Vec<Told>, now: Instant) -> Result<(), Refusal> {
    told.into_iter().try_for_each(|Told { record, age_ms }| {
        table.take(record, Duration::from_millis(age_ms), now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::tests::record,
        table::tests::{TIMES, table},
    };

    /// `a` calls `b`, by way of the text that goes over the wire.
    fn exchange(a: &mut Table, b: &mut Table, now: Instant) {
        let pass = |request: Request| {
            serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap()
        };
        let Response::Exchanged { known, told } = answer(b, 2, pass(begin(a, 1)), now) else {
            panic!("not exchanged")
        };
        if let Some(request) = finish(a, &known, told, now).unwrap() {
            assert_eq!(answer(b, 2, pass(request), now), Response::Taken);
        }
    }

    #[test]
    fn all_know_all_though_only_neighbours_talk() {
        let mut tables: Vec<Table> =
            (1..=6).map(|number| table(number, &[&*format!("v{number}")])).collect();
        let now = Instant::now();
        for _ in 0..6 {
            for at in 0..5 {
                let (left, right) = tables.split_at_mut(at + 1);
                exchange(&mut left[at], &mut right[0], now);
            }
        }
        for table in &tables {
            for number in 1..=6 {
                let place = table.resolve(&format!("v{number}").parse().unwrap(), now).unwrap();
                assert_eq!(place.node.to_string(), format!("node-{number}"));
            }
        }
    }

    #[test]
    fn a_node_that_lost_its_count_is_believed_again_after_one_exchange() {
        let now = Instant::now();
        let (mut a, mut b) = (table(1, &["new"]), table(2, &[]));
        b.take(record(1, 40, &["old"]), Duration::ZERO, now).unwrap();
        exchange(&mut a, &mut b, now);
        assert!(b.resolve(&"new".parse().unwrap(), now).is_ok());
        assert!(b.resolve(&"old".parse().unwrap(), now).is_err());
    }

    /// Otherwise a gateway finds an older copy of the volume elsewhere, or none.
    #[test]
    fn a_node_that_starts_takes_nothing_back_before_it_tells() {
        let now = Instant::now();
        let mut b = table(2, &[]);
        b.take(record(1, 7, &["v"]), Duration::ZERO, now).unwrap();
        let mut a = Table::new(record(1, 8, &[]), TIMES);
        let v = "v".parse().unwrap();
        exchange(&mut a, &mut b, now);
        assert!(b.resolve(&v, now).is_ok());
        exchange(&mut b, &mut a, now);
        assert!(b.resolve(&v, now).is_ok());
        assert!(a.tell(Vec::new(), Vec::new()), "that there are none is news, too");
        exchange(&mut a, &mut b, now);
        assert!(b.resolve(&v, now).is_err());
    }

    #[test]
    fn signs_of_life_reach_those_who_are_not_called() {
        let start = Instant::now();
        let (mut a, mut b, mut c) = (table(1, &["v"]), table(2, &[]), table(3, &[]));
        for seconds in (0..120).step_by(10) {
            let now = start + Duration::from_secs(seconds);
            a.beat();
            exchange(&mut a, &mut b, now);
            exchange(&mut b, &mut c, now);
        }
        let now = start + Duration::from_secs(120);
        let far = c.nodes(now).find(|listed| listed.record.stamp.gln == a.own().stamp.gln);
        assert!(far.is_some_and(|far| far.age < TIMES.stale_after / 2));
    }

    #[test]
    fn who_calls_himself_is_told_from_a_copy_of_him() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let request = begin(&a, 1);
        assert_eq!(answer(&mut a, 1, request.clone(), now), Response::Yourself);
        assert!(matches!(answer(&mut a, 2, request, now), Response::Twin { .. }));
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let mut wrong = record(2, 1, &["a"]);
        wrong.volumes[0].portals[0].address = "nowhere".into();
        let told = vec![Told { record: wrong, age_ms: u64::MAX }];
        let answered = answer(&mut a, 1, Request::Tell { told }, now);
        assert!(matches!(answered, Response::Refused { .. }));
        assert_eq!(a.stamps().len(), 1);
    }
}

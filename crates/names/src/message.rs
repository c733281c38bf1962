//! What two nodes say to each other: how new is what I know, here is what you do not have, and here is
//! what you do not have.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    channel::{FIRST_BYTES, FRAME_BYTES},
    gln::Gln,
    record::{NodeName, Record, Refusal, Stamp},
    table::{Listed, Table},
};

/// What the node that connected says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The first: how new is what I know.
    Exchange {
        /// Who asks.
        from: Gln,
        /// Its process, so that who calls himself is told from who has the same number.
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
    /// The same since two processes with its owner's number both gave signs of life, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    twins_ms: Option<u64>,
}

/// Records in one message: the rest of a frame is room for stamps.
const NEWS_BYTES: usize = FRAME_BYTES - FIRST_BYTES;

/// The first thing to say.
#[must_use]
pub fn begin(table: &Table) -> Request {
    let own = table.own();
    Request::Exchange { from: own.stamp.gln, instance: own.instance, known: table.stamps() }
}

/// What to say to a request.
pub fn answer(table: &mut Table, request: Request, now: Instant) -> Response {
    let answered = match request {
        Request::Exchange { from, instance, .. } if from == table.own().stamp.gln => {
            if instance == table.own().instance {
                return Response::Yourself;
            }
            table.meet_twin(now);
            return Response::Twin { node: table.own().node.clone() };
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
    let milliseconds = |age: Duration| age.as_millis() as u64;
    let news = table.news_for(known, NEWS_BYTES, now).into_iter();
    let told = news.map(|Listed { record, age, twins, .. }| Told {
        record: record.clone(),
        age_ms: milliseconds(age),
        twins_ms: twins.map(milliseconds),
    });
    told.collect()
}

/// What there is no room for is passed over: what follows may be of nodes that we know.
fn take(table: &mut Table, told: Vec<Told>, now: Instant) -> Result<(), Refusal> {
    for Told { record, age_ms, twins_ms } in told {
        let gln = record.stamp.gln;
        match table.take(record, Duration::from_millis(age_ms), now) {
            Ok(()) | Err(Refusal::Full { .. }) => {}
            Err(wrong) => return Err(wrong),
        }
        if let Some(age) = twins_ms {
            table.hear_of_twins(gln, Duration::from_millis(age), now);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Trouble,
        record::tests::record,
        table::tests::{TIMES, table},
    };

    /// `a` calls `b`, by way of the text that goes over the wire.
    fn exchange(a: &mut Table, b: &mut Table, now: Instant) {
        let pass = |request: Request| {
            serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap()
        };
        let Response::Exchanged { known, told } = answer(b, pass(begin(a)), now) else {
            panic!("not exchanged")
        };
        if let Some(request) = finish(a, &known, told, now).unwrap() {
            assert_eq!(answer(b, pass(request), now), Response::Taken);
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
        let request = begin(&a);
        assert_eq!(answer(&mut a, request, now), Response::Yourself);
        assert_eq!(a.troubles(now).count(), 0);
        let copy = Table::new(Record { instance: 2, ..a.own().clone() }, TIMES);
        assert!(matches!(answer(&mut a, begin(&copy), now), Response::Twin { .. }));
        assert_eq!(a.troubles(now).collect::<Vec<_>>(), [Trouble::Twin]);
    }

    #[test]
    fn a_copy_of_a_node_is_found_and_nobody_is_sent_to_either() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let v = "v".parse().unwrap();
        let (mut one, mut seed) = (table(1, &["v"]), table(9, &[]));
        let Record { volumes, stamp, .. } = one.own().clone();
        let mut two = Table::new(Record { stamp, instance: 77, ..record(1, 1, &[]) }, TIMES);
        two.tell(vec!["10.0.0.200:3299".into()], volumes);
        exchange(&mut one, &mut seed, start);
        assert!(seed.resolve(&v, start).is_ok());
        for seconds in (2..12).step_by(2) {
            one.beat();
            exchange(&mut one, &mut seed, at(seconds));
            two.beat();
            exchange(&mut two, &mut seed, at(seconds + 1));
        }
        let mut late = table(5, &[]);
        exchange(&mut late, &mut seed, at(12));
        for table in [&one, &two, &seed, &late] {
            let error = table.resolve(&v, at(12)).unwrap_err().to_string();
            assert!(error.contains("which two processes have"), "{error}");
        }
        for table in [&one, &two] {
            assert_eq!(table.troubles(at(12)).collect::<Vec<_>>(), [Trouble::Twin]);
        }
        // One is stopped: the other goes on as if nothing had been.
        for seconds in (12..60).step_by(2) {
            one.beat();
            exchange(&mut one, &mut seed, at(seconds));
        }
        exchange(&mut late, &mut seed, at(60));
        for table in [&one, &seed, &late] {
            assert!(table.resolve(&v, at(60)).is_ok());
            assert_eq!(table.troubles(at(60)).count(), 0);
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_passed_over() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let told = |numbers: std::ops::Range<u128>, version| {
            let record = |number: u128| {
                let mut record = record(1, version, &[]);
                record.stamp.gln = Gln::new((number << 8).to_be_bytes());
                Told { record, age_ms: 0, twins_ms: None }
            };
            numbers.map(record).collect::<Vec<_>>()
        };
        let all = Request::Tell { told: told(1..257, 1) };
        assert_eq!(answer(&mut a, all, now), Response::Taken);
        assert_eq!(a.troubles(now).count(), 0);
        let more = Request::Tell { told: [told(999..1000, 2), told(7..8, 2)].concat() };
        assert_eq!(answer(&mut a, more, now), Response::Taken);
        assert_eq!(a.stamps().len(), 257);
        assert_eq!(a.stamps()[7], told(7..8, 2)[0].record.stamp, "what came behind it is known");
        assert_eq!(a.troubles(now).collect::<Vec<_>>(), [Trouble::Full]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let mut wrong = record(2, 1, &["a"]);
        wrong.volumes[0].portals[0].address = "nowhere".into();
        let told = vec![Told { record: wrong, age_ms: u64::MAX, twins_ms: None }];
        let answered = answer(&mut a, Request::Tell { told }, now);
        assert!(matches!(answered, Response::Refused { .. }));
        assert_eq!(a.stamps().len(), 1);
    }
}

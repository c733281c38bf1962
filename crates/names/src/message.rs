//! The messages of an exchange between two nodes. Each node sends the stamps of its records, and the records
//! that the other one lacks.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    channel::{FIRST_BYTES, FRAME_BYTES},
    gln::Gln,
    names_table::NamesTable,
    node_record::{NodeName, NodeRecord, NodeRecordRefusal, NodeRecordStamp},
    volume_location::ListedNode,
};

/// A request that the connecting node sends.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NamesRequest {
    /// The first request. It carries the stamps of the records that the connecting node has.
    Exchange {
        from: Gln,
        /// Identifies the process of the sender. The number distinguishes a node that connects to itself from
        /// another node with the same GLN.
        instance: u64,
        known: Vec<NodeRecordStamp>,
    },
    /// The second request. This request carries the records that the other node lacks, and is not sent if there are
    /// none.
    Tell { told: Vec<RelayedNodeRecord> },
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NamesResponse {
    /// The answer to the first request of a connection: the two nodes compare and exchange records.
    Exchanged { known: Vec<NodeRecordStamp>, told: Vec<RelayedNodeRecord> },
    /// The answer to the second request: the records that it contains were processed.
    Taken,
    /// The process that has called is the same one that answers.
    Yourself,
    /// The caller has the GLN of this node but is another process: one of them is a copy of the other.
    Twin { node: NodeName },
    /// The request was invalid, for this reason.
    Refused { reason: String },
}

/// A record on its way to another node. The sender need not be the record's owner.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RelayedNodeRecord {
    record: NodeRecord,
    /// Milliseconds since the last sign of life of the record's owner.
    age_ms: u64,
    /// Milliseconds since two processes with the GLN of the record's owner both gave signs of life; `None` if that
    /// never happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    twins_ms: Option<u64>,
}

/// Maximum length of the records in one message, in bytes of JSON. The remaining bytes of a frame are for the stamps.
const NEWS_BYTES: usize = FRAME_BYTES - FIRST_BYTES;

/// Returns the first request of an exchange.
#[must_use]
pub fn begin(table: &NamesTable) -> NamesRequest {
    let own = table.own();
    NamesRequest::Exchange { from: own.stamp.gln, instance: own.instance, known: table.stamps() }
}

pub fn answer(table: &mut NamesTable, request: NamesRequest, now: Instant) -> NamesResponse {
    let answered = match request {
        NamesRequest::Exchange { from, instance, .. } if from == table.own().stamp.gln => {
            if instance == table.own().instance {
                return NamesResponse::Yourself;
            }
            table.meet_twin(now);
            return NamesResponse::Twin { node: table.own().node.clone() };
        }
        NamesRequest::Exchange { known, .. } => table.heed(&known, now).map(|()| {
            let told = news(table, &known, now);
            NamesResponse::Exchanged { known: table.stamps(), told }
        }),
        NamesRequest::Tell { told } => take(table, told, now).map(|()| NamesResponse::Taken),
    };
    answered.unwrap_or_else(|refusal| NamesResponse::Refused { reason: refusal.to_string() })
}

/// Handles the response to the first request. Returns the second request, if there are records to send.
pub fn finish(
    table: &mut NamesTable,
    known: &[NodeRecordStamp],
    told: Vec<RelayedNodeRecord>,
    now: Instant,
) -> Result<Option<NamesRequest>, NodeRecordRefusal> {
    table.heed(known, now)?;
    take(table, told, now)?;
    let told = news(table, known, now);
    Ok((!told.is_empty()).then_some(NamesRequest::Tell { told }))
}

fn news(table: &NamesTable, known: &[NodeRecordStamp], now: Instant) -> Vec<RelayedNodeRecord> {
    let milliseconds = |age: Duration| age.as_millis() as u64;
    let news = table.news_for(known, NEWS_BYTES, now).into_iter();
    let told = news.map(|ListedNode { record, age, twins, .. }| RelayedNodeRecord {
        record: record.clone(),
        age_ms: milliseconds(age),
        twins_ms: twins.map(milliseconds),
    });
    told.collect()
}

/// Accepts each record for which the table has room. After a record without room, continues with the next one, because
/// it may be of a node that is already in the table and need no more room.
fn take(
    table: &mut NamesTable,
    told: Vec<RelayedNodeRecord>,
    now: Instant,
) -> Result<(), NodeRecordRefusal> {
    for RelayedNodeRecord { record, age_ms, twins_ms } in told {
        let gln = record.stamp.gln;
        match table.take(record, Duration::from_millis(age_ms), now) {
            Ok(()) | Err(NodeRecordRefusal::Full { .. }) => {}
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
        NamingProblem,
        names_table::tests::{TIMES, table},
        node_record::tests::record,
    };

    /// Performs an exchange in which node `a` connects to node `b`. The messages pass through their text form, as on
    /// the link.
    fn exchange(a: &mut NamesTable, b: &mut NamesTable, now: Instant) {
        let pass = |request: NamesRequest| {
            serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap()
        };
        let NamesResponse::Exchanged { known, told } = answer(b, pass(begin(a)), now) else {
            panic!("not exchanged")
        };
        if let Some(request) = finish(a, &known, told, now).unwrap() {
            assert_eq!(answer(b, pass(request), now), NamesResponse::Taken);
        }
    }

    #[test]
    fn every_node_learns_all_records_through_its_neighbours() {
        let mut tables: Vec<NamesTable> =
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
    fn a_node_that_lost_its_version_number_is_believed_again_after_one_exchange() {
        let now = Instant::now();
        let (mut a, mut b) = (table(1, &["new"]), table(2, &[]));
        b.take(record(1, 40, &["old"]), Duration::ZERO, now).unwrap();
        exchange(&mut a, &mut b, now);
        assert!(b.resolve(&"new".parse().unwrap(), now).is_ok());
        assert!(b.resolve(&"old".parse().unwrap(), now).is_err());
    }

    /// A record without volumes would withdraw the volumes that the node announced before its restart. A gateway would
    /// then find an older copy of a volume at another node, or no copy.
    #[test]
    fn a_starting_node_withdraws_no_volumes_before_it_publishes_its_record() {
        let now = Instant::now();
        let mut b = table(2, &[]);
        b.take(record(1, 7, &["v"]), Duration::ZERO, now).unwrap();
        let mut a = NamesTable::new(record(1, 8, &[]), TIMES);
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
    fn signs_of_life_reach_nodes_that_are_not_connected_directly() {
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
    fn a_node_that_calls_itself_is_distinguished_from_a_copy_of_it() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let request = begin(&a);
        assert_eq!(answer(&mut a, request, now), NamesResponse::Yourself);
        assert_eq!(a.troubles(now).count(), 0);
        let copy = NamesTable::new(NodeRecord { instance: 2, ..a.own().clone() }, TIMES);
        assert!(matches!(answer(&mut a, begin(&copy), now), NamesResponse::Twin { .. }));
        assert_eq!(a.troubles(now).collect::<Vec<_>>(), [NamingProblem::Twin]);
    }

    #[test]
    fn a_copy_of_a_node_is_found_and_neither_is_used() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let v = "v".parse().unwrap();
        let (mut one, mut seed) = (table(1, &["v"]), table(9, &[]));
        let NodeRecord { volumes, stamp, .. } = one.own().clone();
        let mut two =
            NamesTable::new(NodeRecord { stamp, instance: 77, ..record(1, 1, &[]) }, TIMES);
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
            assert!(error.contains("used by two processes"), "{error}");
        }
        for table in [&one, &two] {
            assert_eq!(table.troubles(at(12)).collect::<Vec<_>>(), [NamingProblem::Twin]);
        }
        // After one of the two processes is stopped, the other one is no longer reported as a twin.
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
    fn records_beyond_the_limit_are_ignored() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let told = |numbers: std::ops::Range<u128>, version| {
            let record = |number: u128| {
                let mut record = record(1, version, &[]);
                record.stamp.gln = Gln::new((number << 8).to_be_bytes());
                RelayedNodeRecord { record, age_ms: 0, twins_ms: None }
            };
            numbers.map(record).collect::<Vec<_>>()
        };
        let all = NamesRequest::Tell { told: told(1..257, 1) };
        assert_eq!(answer(&mut a, all, now), NamesResponse::Taken);
        assert_eq!(a.troubles(now).count(), 0);
        let more = NamesRequest::Tell { told: [told(999..1000, 2), told(7..8, 2)].concat() };
        assert_eq!(answer(&mut a, more, now), NamesResponse::Taken);
        assert_eq!(a.stamps().len(), 257);
        assert_eq!(a.stamps()[7], told(7..8, 2)[0].record.stamp, "the record after it is known");
        assert_eq!(a.troubles(now).collect::<Vec<_>>(), [NamingProblem::Full]);
    }

    #[test]
    fn an_invalid_record_is_refused_and_changes_nothing() {
        let now = Instant::now();
        let mut a = table(1, &[]);
        let mut wrong = record(2, 1, &["a"]);
        wrong.volumes[0].portals[0].address = "nowhere".into();
        let told = vec![RelayedNodeRecord { record: wrong, age_ms: u64::MAX, twins_ms: None }];
        let answered = answer(&mut a, NamesRequest::Tell { told }, now);
        assert!(matches!(answered, NamesResponse::Refused { .. }));
        assert_eq!(a.stamps().len(), 1);
    }
}

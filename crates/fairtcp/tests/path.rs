//! Compares, in virtual time, sessions with one path model for each connection, as in BBR, and sessions with one model
//! for all connections: their throughput, the queue, and how flows share the bandwidth. Decision 0023 is based on these
//! results. `cargo test -p fairtcp --test path -- --ignored --nocapture` prints the longer table.

mod support;

use support::{
    path::{Load, MILLISECOND, Path, Plan, SECOND, Shown, Time, deviation, mean, play},
    reference_model::{Measure, Models},
};

const MEMBERS: usize = 4;
const LINE: u64 = 100_000_000;

/// Which connections share a path model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each connection has a path model of its own, as with BBR.
    Alone,
    /// Each connection has its own model, but its rates are measured as in an ensemble. The comparison shows which
    /// differences are not caused by sharing.
    Apart,
    /// All connections of a session share one path model.
    Together,
}

const WAYS: [Way; 3] = [Way::Alone, Way::Apart, Way::Together];

fn line(one_way_ms: u64, lost_per_million: u64, queue_segments: u64) -> Path {
    Path { one_way_us: one_way_ms * 1000, lost_per_million, bits_per_second: LINE, queue_segments }
}

/// Returns the length in segments of a queue that holds `parts` times the data that the link carries in a round trip.
/// Frames have 1514 bytes.
fn queue(one_way_ms: u64, parts: f64) -> u64 {
    (parts * 2e-3 * one_way_ms as f64 * LINE as f64 / (1514.0 * 8.0)) as u64
}

struct Trial {
    path: Path,
    load: Load,
    sessions: Vec<(Way, usize)>,
    before: Time,
    counted: Time,
    enough: u64,
}

impl Trial {
    fn new(path: Path, way: Way) -> Self {
        Self {
            path,
            load: Load::Endless,
            sessions: vec![(way, MEMBERS)],
            before: 2 * SECOND,
            counted: 10 * SECOND,
            enough: u64::MAX,
        }
    }

    /// Makes the load consist of writes of 128 KiB, with 32 of them in flight.
    fn commands(self) -> Self {
        Self { load: Load::Commands { segments: 91, outstanding: 32 }, ..self }
    }

    /// Makes a trial in which two sessions compete. The measurement begins after their shares of the bandwidth have
    /// become stable.
    fn beside(path: Path, sessions: [(Way, usize); 2]) -> Self {
        Self {
            sessions: sessions.to_vec(),
            before: 10 * SECOND,
            counted: 40 * SECOND,
            ..Self::new(path, Way::Alone)
        }
    }

    fn run(&self, seed: u64) -> Shown {
        let mut measures = vec![];
        let mut sessions = vec![];
        for &(way, members) in &self.sessions {
            let first = measures.len() as u32;
            let (measure, models) = match way {
                Way::Alone => (Measure::Connection, members),
                Way::Apart => (Measure::Ensemble, members),
                Way::Together => (Measure::Ensemble, 1),
            };
            measures.extend(vec![measure; models]);
            sessions.push((0..members).map(|it| first + (it % models) as u32).collect());
        }
        let plan = Plan {
            path: self.path,
            sessions,
            load: self.load,
            // Use buffers that are large enough not to limit the senders: otherwise the rate samples would be
            // application-limited.
            buffer_segments: 4096,
            before: self.before,
            counted: self.counted,
            stagger: 20 * MILLISECOND,
            enough: self.enough,
        };
        play(&plan, &mut Models::new(measures), seed)
    }

    fn runs(&self, seeds: u64) -> Vec<Shown> {
        (1..=seeds).map(|seed| self.run(seed)).collect()
    }
}

fn over(runs: &[Shown], of: impl Fn(&Shown) -> f64) -> f64 {
    mean(&runs.iter().map(of).collect::<Vec<f64>>())
}

fn rate(runs: &[Shown]) -> f64 {
    over(runs, |it| it.megabits_per_second)
}

fn queueing(runs: &[Shown]) -> f64 {
    over(runs, Shown::queueing_ms)
}

/// Returns the share of retransmitted segments in percent.
fn again(runs: &[Shown]) -> f64 {
    100.0 * over(runs, |it| it.retransmitted as f64 / it.sent as f64)
}

fn turnaround_spread(runs: &[Shown]) -> f64 {
    over(runs, |it| deviation(&it.turnaround))
}

/// Prints a table row for each algorithm, with its results as they are and relative to those of the first algorithm.
fn tell(what: &str, of: impl Fn(Way) -> Vec<Shown>) {
    let all = WAYS.map(|way| (way, of(way)));
    let first = &all[0].1;
    for (way, runs) in &all {
        print!(
            "| {what} | {way:?} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
            rate(runs),
            rate(runs) / rate(first),
            queueing(runs),
            queueing(runs) / queueing(first),
            again(runs),
            runs.iter().map(|it| it.timeouts).sum::<u64>(),
        );
        if !runs[0].turnaround.is_empty() {
            let time = over(runs, |it| mean(&it.turnaround));
            print!(" {time:.1} ± {:.1} ms |", turnaround_spread(runs));
        }
        println!();
    }
}

#[test]
fn one_model_for_a_session_fills_a_lossy_link_with_a_shorter_queue() {
    let trial = |way| Trial::new(line(10, 27_000, 1000), way).runs(2);
    tell("10 ms, 2.7 % lost", trial);
    let [alone, together] = [Way::Alone, Way::Together].map(trial);
    assert!(rate(&together) > rate(&alone), "{} and {} Mb/s", rate(&together), rate(&alone));
    assert!(queueing(&together) < 0.2 * queueing(&alone));
}

#[test]
fn one_model_for_a_session_loses_less_in_a_short_queue() {
    let trial = |way| Trial::new(line(2, 0, queue(2, 1.0)), way).runs(2);
    tell("2 ms, queue of a round trip", trial);
    let [alone, together] = [Way::Alone, Way::Together].map(trial);
    assert!(rate(&together) > 0.99 * rate(&alone));
    assert!(queueing(&together) < 0.6 * queueing(&alone));
    assert!(again(&together) < 0.3 * again(&alone), "{} and {}", again(&together), again(&alone));
}

#[test]
fn turnaround_times_vary_less_in_a_session_with_one_model() {
    let trial = |way| Trial::new(line(10, 0, 1000), way).commands().runs(2);
    tell("10 ms, commands", trial);
    let [alone, together] = [Way::Alone, Way::Together].map(trial);
    assert!(rate(&together) > rate(&alone));
    assert!(turnaround_spread(&together) < 0.3 * turnaround_spread(&alone));
}

/// A session with one model gets its share of a path with a long queue when it competes with a session of the same
/// kind, or with connections that have a model each. If the path has a short queue, the session gets less than its
/// share, as the long table shows.
#[test]
fn a_session_with_one_model_gets_its_share_in_competition_with_others() {
    let path = line(4, 0, queue(4, 4.0));
    for other in [Way::Together, Way::Alone] {
        let runs = Trial::beside(path, [(Way::Together, 4), (other, 4)]).runs(1);
        let part = over(&runs, |it| it.of_session[0]) / rate(&runs);
        println!("beside {other:?}: {part:.2} of {:.1} Mb/s", rate(&runs));
        assert!((0.38..0.62).contains(&part), "{other:?}: {part}");
    }
}

/// A connection that was idle sends as fast as before, and a connection that is busy alone gets the whole bandwidth.
#[test]
fn a_member_that_is_busy_alone_has_the_whole_path() {
    let path = line(4, 0, 1000);
    // Execute one command at a time, so that at most one connection has something to send.
    let load = Load::Commands { segments: 2000, outstanding: 1 };
    let runs = |way| Trial { load, ..Trial::new(path, way) }.runs(1);
    let [alone, together] = [Way::Alone, Way::Together].map(|way| rate(&runs(way)));
    println!("one command at a time: {alone:.1} and {together:.1} Mb/s");
    assert!(together > 0.95 * alone, "{alone} and {together} Mb/s");
}

#[test]
#[ignore = "a minute or two: all that decision 0023 tells"]
fn all_tables() {
    let seeds = 5;
    println!("| path | model | Mb/s | parts | queue ms | parts | again % | timeouts |");
    for one_way_ms in [0, 2, 4, 10] {
        let trial = |way| Trial::new(line(one_way_ms, 27_000, 1000), way).runs(seeds);
        tell(&format!("{one_way_ms} ms, 2.7 % lost"), trial);
    }
    for one_way_ms in [2, 10] {
        for parts in [0.5, 1.0, 4.0] {
            let path = line(one_way_ms, 0, queue(one_way_ms, parts));
            let trial = |way| Trial { counted: 30 * SECOND, ..Trial::new(path, way) }.runs(seeds);
            tell(&format!("{one_way_ms} ms, queue {parts}"), trial);
        }
    }
    for one_way_ms in [2, 10] {
        for mib in [1, 8] {
            let path = line(one_way_ms, 0, queue(one_way_ms, 1.0));
            let enough = (mib << 20) / 1448;
            let took = WAYS.map(|way| {
                let trial = Trial { before: 0, enough, ..Trial::new(path, way) };
                over(&trial.runs(seeds), |it| it.ended as f64 / MILLISECOND as f64)
            });
            println!("{one_way_ms} ms, until {mib} MiB are there: {took:.1?} ms");
        }
    }
    for (one_way_ms, lost) in [(0, 27_000), (2, 27_000), (10, 27_000), (2, 0), (10, 0)] {
        let path = line(one_way_ms, lost, 1000);
        let trial =
            |way| Trial { counted: 20 * SECOND, ..Trial::new(path, way) }.commands().runs(seeds);
        tell(&format!("{one_way_ms} ms, commands, {lost} lost of a million"), trial);
    }
    let (alone, together) = ((Way::Alone, 4), (Way::Together, 4));
    let one = (Way::Alone, 1);
    for parts in [1.0, 4.0] {
        for pair in
            [[alone, alone], [together, together], [together, alone], [alone, one], [together, one]]
        {
            let runs = Trial::beside(line(4, 0, queue(4, parts)), pair).runs(seeds);
            let of = |n: usize| over(&runs, |it| it.of_session[n]);
            println!(
                "queue {parts}, {pair:?}: {:.1} and {:.1} Mb/s, queue {:.2} ms, again {:.2} %",
                of(0),
                of(1),
                queueing(&runs),
                again(&runs),
            );
        }
    }
}

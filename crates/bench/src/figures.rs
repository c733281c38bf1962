//! The values that were measured in all rounds, and their summary: median and range of the values, or of a ratio of two
//! values that is computed for each round.

use std::fmt;

use serde_json::{Value, json};

use crate::load::BenchPoint;

/// The values of one figure, with one value for each round.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        } else {
            sorted[middle]
        }
    }

    /// Returns the figure of a single round.
    pub fn one(value: f64) -> Samples {
        Samples(vec![value])
    }

    /// Adds the value of another round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns the value of each round.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Returns the quantile `part` (0 to 1), interpolated between the two nearest values.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = part * (sorted.len() - 1) as f64;
        let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        low + (high - low) * at.fract()
    }

    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median(), self.least(), self.most()].map(short);
        write!(f, "{median} [{least}..{most}]")
    }
}

/// Formats a number with about three significant digits.
pub fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

/// Returns one measured value of a point, such as its median latency.
pub type PointMetric = fn(&BenchPoint) -> f64;

/// The measured points of all loads and servers, and values that belong to no load, such as the
/// peak memory of a process.
#[derive(Default)]
pub struct BenchFigures {
    points: Vec<(&'static str, &'static str, Vec<BenchPoint>)>,
    single: Vec<(&'static str, Vec<f64>)>,
    disturbed: usize,
}

impl BenchFigures {
    /// Adds the values that one round has measured for a load on a server.
    pub fn add(&mut self, load: &'static str, server: &'static str, point: BenchPoint) {
        match self.points.iter_mut().find(|(l, s, _)| (*l, *s) == (load, server)) {
            Some((_, _, points)) => points.push(point),
            None => self.points.push((load, server, vec![point])),
        }
    }

    /// Counts a point whose measurement was disturbed by other work on the machine.
    pub fn add_disturbed(&mut self) {
        self.disturbed += 1;
    }

    /// Returns a sentence with the number of disturbed points.
    pub fn disturbance(&self) -> String {
        let all: usize = self.points.iter().map(|(_, _, points)| points.len()).sum();
        format!("{} of {all} points were disturbed by other work on the machine", self.disturbed)
    }

    /// Adds one round's value of a figure that belongs to no load, such as the peak memory of a
    /// process.
    pub fn add_single(&mut self, name: &'static str, number: f64) {
        match self.single.iter_mut().find(|(n, _)| *n == name) {
            Some((_, numbers)) => numbers.push(number),
            None => self.single.push((name, vec![number])),
        }
    }

    /// Returns a metric of a load on a server for each round, or `None` if it was not measured.
    pub fn of(&self, load: &str, server: &str, part: PointMetric) -> Option<Samples> {
        let points = self.points.iter().find(|(l, s, _)| (*l, *s) == (load, server));
        points.map(|(_, _, points)| Samples(points.iter().map(part).collect()))
    }

    /// Returns the values of a figure that belongs to no load, one for each round.
    pub fn single(&self, name: &str) -> Option<Samples> {
        let numbers = self.single.iter().find(|(n, _)| *n == name);
        numbers.map(|(_, numbers)| Samples(numbers.clone()))
    }

    /// Returns the rows of the table of points.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |(load, server, points): &(&str, &str, Vec<BenchPoint>)| {
            let say =
                |part: PointMetric| short(Samples(points.iter().map(part).collect()).median());
            vec![
                (*load).to_owned(),
                (*server).to_owned(),
                say(BenchPoint::per_second),
                say(|point| point.mean_us()),
                say(BenchPoint::median_us),
                say(|point| point.quantile_us(0.99)),
                say(|point| point.quantile_us(0.999)),
                say(|point| point.quantile_us(0.9999)),
                say(BenchPoint::longest_us),
                say(BenchPoint::cpu_us),
                user_part(points).map_or_else(String::new, short),
                say(BenchPoint::switches),
            ]
        };
        self.points.iter().map(row).collect()
    }

    /// The column headings of the table that [`rows`](Self::rows) returns.
    #[rustfmt::skip]
    pub const HEADINGS: [&'static str; 12] = [
        "load", "server", "per second", "mean µs", "p50 µs", "p99 µs", "p99.9 µs", "p99.99 µs", "max µs", "CPU µs", "user share", "switches",
    ];

    /// Returns the points of every round as JSON.
    pub fn json(&self) -> Value {
        let points = self.points.iter().flat_map(|(load, server, points)| {
            points.iter().enumerate().map(move |(round, point)| {
                json!({
                    "load": load, "server": server, "round": round,
                    "per_second": point.per_second(), "mean_us": point.mean_us(),
                    "p50_us": point.median_us(), "p99_us": point.quantile_us(0.99),
                    "p999_us": point.quantile_us(0.999), "p9999_us": point.quantile_us(0.9999), "max_us": point.longest_us(),
                    "cpu_us": point.cpu_us(), "user_ticks": point.server.user_ticks,
                    "kernel_ticks": point.server.kernel_ticks, "switches": point.switches(),
                })
            })
        });
        points.collect()
    }
}

/// Returns how large a share of the server's CPU time, over all rounds together, was spent in user space. The kernel
/// counts CPU time in hundredths of a second, which is too coarse for a single round.
fn user_part(points: &[BenchPoint]) -> Option<f64> {
    let user: u64 = points.iter().map(|point| point.server.user_ticks).sum();
    let kernel: u64 = points.iter().map(|point| point.server.kernel_ticks).sum();
    (user + kernel > 0).then(|| user as f64 / (user + kernel) as f64)
}

/// Returns for each round the value in `one` divided by the value in `other`.
pub fn ratio(one: Option<Samples>, other: Option<Samples>) -> Option<Samples> {
    let (Samples(one), Samples(other)) = (one?, other?);
    Some(Samples(one.iter().zip(&other).map(|(one, other)| one / other).collect()))
}

/// Returns the sum of the two values for each round.
pub fn sum(one: Option<Samples>, other: Option<Samples>) -> Option<Samples> {
    let (Samples(one), Samples(other)) = (one?, other?);
    Some(Samples(one.iter().zip(&other).map(|(one, other)| one + other).collect()))
}

/// Returns the larger of the two values for each round.
pub fn larger(one: Option<Samples>, other: Option<Samples>) -> Option<Samples> {
    let (Samples(one), Samples(other)) = (one?, other?);
    Some(Samples(one.iter().zip(&other).map(|(one, other)| one.max(*other)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let one = Some(Samples(vec![10.0, 40.0, 90.0]));
        let other = Some(Samples(vec![10.0, 20.0, 30.0]));
        let ratio = ratio(one, other).unwrap();
        assert_eq!(ratio, Samples(vec![1.0, 2.0, 3.0]));
        assert_eq!(ratio.to_string(), "2.00 [1.00..3.00]");
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 8.0]).median(), 3.0);
    }

    #[test]
    fn a_quartile_lies_between_the_nearest_values() {
        let samples = Samples(vec![4.0, 1.0, 2.0]);
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|part| samples.quantile(part)), [1.0, 1.5, 2.0, 4.0]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [123456.7, 12.34, 1.234, 0.012345].map(short),
            ["123457", "12.3", "1.23", "0.0123"]
        );
    }
}

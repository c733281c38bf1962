//! The list of reasons why measurements may be wrong or missing. Each reason occurs once, with the number of points
//! that it concerns. Two reasons that differ only in the numbers of their text count as one: "3 % of the time was
//! stolen" and "8 % of the time was stolen".

use super::NOT_MEASURED;
use crate::PointRecord;

/// A reason why measurements may be wrong, such as a busy machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Doubt {
    /// Number of points to which the reason applies.
    pub points: usize,
    /// The text of the reason with placeholders for its numbers, see [`doubt_kind`].
    kind: String,
    /// For each number in the reason, its smallest and its largest value, as they are written.
    ranges: Vec<[Number; 2]>,
}

/// A number in the text of a reason: its value, and its digits as written.
type Number = (f64, String);

/// Placeholder for a number in [`Doubt::kind`]. The reasons do not contain this character.
const NUMBER: char = '\u{fffc}';

/// Returns the reasons to doubt measurements, the reason of most points first. `left_out` has the names of points
/// without a record, and the reasons.
#[must_use]
pub fn doubts(records: &[PointRecord], left_out: &[(String, String)]) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> = Vec::new();
    for record in records {
        // Count the reason once for each point, since several runs of the point may have it.
        let mut of_point: Vec<String> = Vec::new();
        for taint in &record.taints {
            let kind = doubt_kind(taint);
            add(&mut doubts, taint, usize::from(!of_point.contains(&kind)));
            of_point.push(kind);
        }
    }
    for (_, reason) in left_out {
        add(&mut doubts, &not_measured(reason), 1);
    }
    doubts.sort_by_key(|doubt| std::cmp::Reverse(doubt.points));
    doubts
}

/// Returns the text that a table cell shows for a point that was left out.
#[must_use]
pub fn not_measured(reason: &str) -> String {
    format!("{}: {reason}", NOT_MEASURED)
}

/// Returns a reason without the digits of its numbers, and without the number of the run. Reasons of one kind differ
/// only in their numbers.
#[must_use]
pub fn doubt_kind(reason: &str) -> String {
    divided(reason).0
}

impl Doubt {
    /// Returns the reason. A number that differs between the points is a range: "3 to 8 % of the time was stolen".
    #[must_use]
    pub fn text(&self) -> String {
        let mut ranges = self.ranges.iter();
        let mut text = String::new();
        for letter in self.kind.chars() {
            match (letter, if letter == NUMBER { ranges.next() } else { None }) {
                (NUMBER, Some([(_, least), (_, most)])) if least == most => text += least,
                (NUMBER, Some([(_, least), (_, most)])) => text += &format!("{least} to {most}"),
                _ => text.push(letter),
            }
        }
        text
    }

    /// Returns the number of points with the reason: "5 points: 3 to 8 % of the time was stolen".
    #[must_use]
    pub fn sentence(&self) -> String {
        let points = if self.points == 1 { "point" } else { "points" };
        format!("{} {points}: {}", self.points, self.text())
    }

    /// Returns true if the text `reason` is the same as this doubt's, except for the numbers in it.
    #[must_use]
    pub fn is_of(&self, reason: &str) -> bool {
        self.kind == doubt_kind(reason)
    }
}

fn add(doubts: &mut Vec<Doubt>, reason: &str, points: usize) {
    let (kind, numbers) = divided(reason);
    let Some(doubt) = doubts.iter_mut().find(|doubt| doubt.kind == kind) else {
        let ranges = numbers.into_iter().map(|number| [number.clone(), number]).collect();
        return doubts.push(Doubt { points, kind, ranges });
    };
    doubt.points += points;
    for ([least, most], number) in doubt.ranges.iter_mut().zip(numbers) {
        if number.0 < least.0 {
            *least = number;
        } else if number.0 > most.0 {
            *most = number;
        }
    }
}

/// Returns the text of a reason without a prefix such as "run 1 of 3: ".
fn without_run(reason: &str) -> &str {
    let rest = || {
        let (number, rest) = reason.strip_prefix("run ")?.split_once(" of ")?;
        let (of, rest) = rest.split_once(": ")?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(number) && is_number(of)).then_some(rest)
    };
    rest().unwrap_or(reason)
}

/// Divides a reason into its kind and its numbers. A number within a word or an address belongs to the kind: `eth0`,
/// 127.0.0.1.
fn divided(reason: &str) -> (String, Vec<Number>) {
    let text = without_run(reason);
    let (mut kind, mut numbers) = (String::new(), Vec::new());
    let is_part = |letter: char| letter.is_alphanumeric() || "_-./:".contains(letter);
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(word.max(rest.chars().next().map_or(1, char::len_utf8)));
        let digits = part.trim_end_matches(['.', ':']);
        match digits.parse::<f64>() {
            Ok(value) if digits.starts_with(|first: char| first.is_ascii_digit()) => {
                kind.push(NUMBER);
                kind += &part[digits.len()..];
                numbers.push((value, digits.to_owned()));
            }
            _ => kind += part,
        }
        rest = behind;
    }
    (kind, numbers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use workload::WorkloadResult;

    use super::*;

    fn record(point: &str, taints: &[&str]) -> PointRecord {
        PointRecord {
            point: point.to_owned(),
            settings: serde_json::Value::Null,
            outcome: WorkloadResult::default(),
            maker: BTreeMap::new(),
            runs: vec![],
            counted: vec![],
            taints: taints.iter().map(|taint| (*taint).to_owned()).collect(),
            notes: BTreeMap::new(),
            began: 0,
            took: 1.0,
        }
    }

    fn told(doubts: &[Doubt]) -> Vec<(usize, String)> {
        doubts.iter().map(|doubt| (doubt.points, doubt.text())).collect()
    }

    fn said(points: usize, text: &str) -> (usize, String) {
        (points, text.to_owned())
    }

    #[test]
    fn a_doubt_of_five_points_is_one_with_its_range_and_the_number_of_points() {
        let stolen = |percent: &str| format!("{percent} % of the time was stolen (limit 1 %)");
        let percents = ["4.2", "12", "3", "7", "3"].map(stolen);
        let records: Vec<_> = percents.iter().map(|text| record("a", &[text])).collect();
        let left_out = [("b".to_owned(), "tgt is not installed".to_owned())];
        assert_eq!(
            told(&doubts(&records, &left_out)),
            [
                said(5, "3 to 12 % of the time was stolen (limit 1 %)"),
                said(1, "not measured: tgt is not installed")
            ]
        );
    }

    #[test]
    fn several_runs_of_a_point_count_as_one_point() {
        let runs = ["run 1 of 3: 150 us late", "run 3 of 3: 90 us late", "slow"];
        let all = doubts(&[record("a", &runs)], &[]);
        assert_eq!(told(&all), [said(1, "90 to 150 us late"), said(1, "slow")]);
        assert!(all[0].is_of("run 2 of 3: 1 us late") && !all[0].is_of("slow"));
    }

    #[test]
    fn numbers_in_addresses_and_names_are_not_joined() {
        let texts =
            ["no answer from 127.0.0.1:80 within 5 s", "no answer from 127.0.0.2:80 within 5 s"];
        let records = texts.map(|text| record("a", &[text]));
        assert_eq!(doubts(&records, &[]).len(), 2);
        let odd = [
            "",
            "1",
            ".",
            "1.",
            "\u{fffc} 2",
            "run 1 of 3: ",
            "run away of 3: x",
            "é1 ½ 1e5 §",
            "md5 of n-1 at 1.2.3.4/24",
        ];
        for text in odd {
            let shown = doubts(&[record("a", &[text])], &[])[0].text();
            assert!(shown == without_run(text) || text.starts_with(NUMBER), "{text}: {shown}");
        }
    }
}

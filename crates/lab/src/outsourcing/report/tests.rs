//! The report of a small set of records, and of none.

use std::collections::BTreeMap;

use workload::Outcome;

use super::*;
use crate::{Part, Section, Site, csv, page};

fn record(point: &str, unit: &str, value: f64) -> Record {
    let mut site = Site::default();
    site.disk.model =
        point.strip_prefix("table-1/").and_then(|rest| rest.split('/').next()).map(str::to_owned);
    Record {
        point: point.to_owned(),
        settings: serde_json::json!({ "site": site }),
        outcome: Outcome::default().figure("found", unit, value),
        maker: Default::default(),
        runs: vec![value],
        counted: vec![],
        taints: vec![],
        notes: BTreeMap::new(),
        began: 0,
        took: 1.0,
    }
}

/// The paper's own numbers as if they had been measured: every ratio is 1.
fn papers() -> Vec<Record> {
    let mut records = vec![];
    for (row, way) in paper::WAYS.into_iter().enumerate() {
        for (n, disk) in paper::DISKS.into_iter().enumerate() {
            for (column, access) in paper::ACCESSES.into_iter().enumerate() {
                let ms = paper::RESPONSE_MS[row][n][column];
                records.push(record(&micro::point(disk, access, way), "us", ms * 1000.0));
            }
        }
    }
    for (disk, ms) in paper::DISKS.into_iter().zip(paper::ANSWER_MS) {
        records.push(record(&micro::point(disk, "identical-write", "local"), "ms", ms));
    }
    records
}

fn section<'a>(report: &'a Report, start: &str) -> &'a Section {
    report.sections.iter().find(|section| section.title.starts_with(start)).expect("a section")
}

#[test]
fn the_papers_own_numbers_are_the_papers() {
    let report = report(&papers(), &[]);
    let table_1 = section(&report, "Table 1");
    let ratios: Vec<f64> = table_1.cells().filter_map(|(_, _, _, cell)| cell.ratio()).collect();
    // 7 ways of 4 disks, 4 response times and 4 throughputs each, less what the null device prints as 0.00 ms.
    assert_eq!(ratios.len(), 7 * 4 * 8 - 4);
    let off = ratios.iter().filter(|ratio| (*ratio - 1.0).abs() > 0.03).count();
    // What is printed as 0.01 ms is any time to 0.015 ms: the throughputs beside it are off.
    assert_eq!(off, 2, "{ratios:?}");
    assert_eq!(table_1.deviations, Vec::<String>::new());
    assert!(
        table_1.text.iter().any(|text| text.contains("a simulated disk (dnes) over memory")),
        "{:?}",
        table_1.text
    );
}

#[test]
fn the_rules_are_set_against_both_tables() {
    let report = report(&papers(), &[]);
    let fits = section(&report, "Equation (1)");
    let cells: Vec<_> =
        fits.cells().filter(|(table, ..)| table.title.starts_with("How well")).collect();
    let cell = |row: &str, column: &str| {
        cells
            .iter()
            .find(|(_, r, c, _)| *r == row && c.name == column)
            .map(|(.., cell)| (*cell).clone())
            .unwrap()
    };
    let sum = cell("equation (1)", "mean |residual|");
    assert!((sum.paper.unwrap() - 0.769).abs() < 0.001, "{sum:?}");
    let answered = cell("with masking and the disk's answer", "mean |residual|");
    assert!((answered.paper.unwrap() - 0.221).abs() < 0.001, "{answered:?}");
    // Ours are the same times; only the protocol's time is their median instead of Figure 2's sum.
    assert!(answered.ours.unwrap() < 0.25, "{answered:?}");
    assert_eq!(cell("equation (1)", "requests").ours, Some(80.0));
    assert!(fits.text[1].contains("0.408 ms in the paper"), "{:?}", fits.text);
}

#[test]
fn nothing_measured_is_a_report_that_says_so() {
    let left_out = [("table-2/surge".to_owned(), "nginx-light is not installed".to_owned())];
    let report = report(&[], &left_out);
    assert_eq!(report.sections.len(), 12);
    for section in &report.sections {
        assert!(section.deviations.is_empty(), "{section:?}");
        assert!(section.cells().all(|(_, _, _, cell)| cell.ours.is_none()), "{section:?}");
    }
    let page = page(&report);
    assert!(page.contains("nginx-light is not installed") && !page.contains("NaN"), "{page}");
    assert!(csv(&report).contains("not measured: nginx-light is not installed"));
}

#[test]
fn a_delay_that_costs_something_else_is_told_with_the_disks_own_time() {
    let mut records = papers();
    for record in &mut records {
        let ms = match record.point.as_str() {
            "table-1/dnes/random-write/4ms" => 14.0,
            "table-1/dnes/random-write/8ms" => 28.0,
            _ => continue,
        };
        record.outcome = Outcome::default().figure("found", "ms", ms);
    }
    let report = report(&records, &[]);
    assert_eq!(
        section(&report, "Table 1").deviations,
        [
            "1 disk, IBM DNES, random write: from 0 to 8 ms a request becomes 16.62 ms longer here, and 6.09 ms in the \
          paper. The disk alone takes 11.44 here and 11.44 there."
        ]
    );
    let rule = &section(&report, "Equation (1)").deviations;
    assert!(
        rule.iter().any(|text| text
            .starts_with("1 disk, IBM DNES, random write: farthest from the rule at 8 ms, 28 ms")),
        "{rule:?}"
    );
}

#[test]
fn load_that_costs_something_else_is_told_at_its_worst() {
    let records = [
        record("table-3/postmark/soft/0", "1/s", 200.0),
        record("table-3/postmark/soft/60", "1/s", 100.0),
        record("table-3/postmark/soft/70", "1/s", 72.0),
    ];
    let report = report(&records, &[]);
    let deviations = &section(&report, "Table 3").deviations;
    let told = "As a share of no load, PostMark, ext4: farthest from the paper at 60, 0.5 instead of 0.675.";
    assert_eq!(deviations, &[told]);
}

#[test]
fn a_gateway_is_held_to_what_it_promises() {
    let records = [
        record("table-2/surge/soft/plain/local", "1/s", 100.0),
        record("table-2/surge/soft/plain/8ms", "1/s", 86.0),
        record("table-2/surge/soft/gateway/8ms", "1/s", 94.0),
    ];
    let report = report(&records, &[]);
    let table_2 = section(&report, "Table 2");
    let promised: Vec<_> = table_2.cells().filter(|(_, _, _, cell)| cell.bar.is_some()).collect();
    let [(_, row, column, surge), (.., tpcc)] = promised.as_slice() else { panic!("{promised:?}") };
    assert_eq!((*row, column.to_string().as_str()), ("8 ms", "Surge ext4"));
    assert_eq!((surge.ours, surge.paper, surge.holds()), (Some(0.94), Some(0.86), Some(false)));
    assert_eq!((tpcc.ours, tpcc.holds()), (None, None));
    let drawn = table_2.parts.iter().filter(|part| matches!(part, Part::Plot(_))).count();
    assert_eq!(drawn, 2);
}

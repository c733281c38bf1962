//! Tests the report without records, with records of all points, and with the paper's own numbers.

use workload::{WorkloadFigure, WorkloadResult, WorkloadSeries};

use super::*;
use crate::{ExperimentScale, stics::points};

fn record(point: &str, outcome: WorkloadResult, counted: &[(&str, f64)]) -> PointRecord {
    let figure = |(name, value): &(&str, f64)| WorkloadFigure {
        name: (*name).to_owned(),
        unit: if name.starts_with("cpu ") { "s" } else { "" }.to_owned(),
        value: *value,
    };
    PointRecord {
        point: point.to_owned(),
        settings: serde_json::Value::Null,
        maker: Default::default(),
        runs: outcome.figures.first().map(|first| first.value).into_iter().collect(),
        outcome,
        counted: counted.iter().map(figure).collect(),
        taints: vec![],
        notes: std::collections::BTreeMap::new(),
        began: 0,
        took: 1.0,
    }
}

/// Returns a record of every point of the experiment, with figures of the names that workloads
/// report.
fn all() -> Vec<PointRecord> {
    let responses = WorkloadSeries {
        name: "responses".to_owned(),
        x: "time, s".to_owned(),
        y: "response, ms".to_owned(),
        points: vec![[0.0, 1.0], [0.5, 30.0]],
    };
    points(ExperimentScale::Quick)
        .iter()
        .map(|point| {
            let speed = if point.name.ends_with("iscsi") { 10.0 } else { 20.0 };
            let mut outcome = match point.name.split('/').next().unwrap_or_default() {
                "figure-8" => {
                    WorkloadResult::default().figure("throughput", "MB/s of 1000 KiB", speed)
                }
                "figure-9" => WorkloadResult::default()
                    .figure("throughput", "KiB/s", speed)
                    .figure("processor time of this host", "% of all", 30.0),
                "figure-11" => WorkloadResult::default()
                    .figure("response", "ms", 100.0 / speed)
                    .figure("median response", "ms", 1.0)
                    .figure("99 % respond within", "ms", 1.0)
                    .figure("longest response", "ms", 1.0),
                _ => WorkloadResult::default().figure("transactions", "1/s", speed),
            };
            if point.name.starts_with("figure-11") {
                outcome.series.push(responses.clone());
            }
            let scale = if point.name.ends_with("iscsi") { 2.0 } else { 1.0 };
            let counts = [
                ("link near_to_far packets", 100.0 * scale),
                ("link far_to_near packets", 100.0 * scale),
                ("link near_to_far bytes", 1e5 * scale),
                ("link far_to_near bytes", 1e4 * scale),
                ("link near_to_far packets_by_length from_1024", 60.0 * scale),
                ("link near_to_far packets_by_length to_127", 40.0 * scale),
                ("link far_to_near packets_by_length to_127", 100.0 * scale),
                ("node 1 commands_by_kind READ(10)", 30.0 * scale),
                ("node 1 commands_by_kind WRITE(10)", 50.0 * scale),
                ("node 1 commands_by_kind SERVICE ACTION IN(16)", 1.0),
                ("gateway commands_by_kind READ(10)", 100.0),
                ("gateway commands_by_kind WRITE(10)", 100.0),
                ("gateway cache reads_dram", 70.0),
                ("cpu machine", 1.5),
            ];
            record(&point.name, outcome, &counts)
        })
        .collect()
}

fn cell<'a>(report: &'a LabReport, row: &str, column: &str) -> &'a Cell {
    let mut cells = report.sections.iter().flat_map(|section| section.cells());
    let found = cells.find(|(_, name, head, _)| *name == row && head.to_string() == column);
    found.unwrap_or_else(|| panic!("no {row}, {column}")).3
}

#[test]
fn a_report_without_measurements_shows_the_reason() {
    let report = report(&[], &[("figure-6".to_owned(), "postmark is not installed".to_owned())]);
    assert_eq!(report.sections.len(), 9);
    let text = format!("{report:?}");
    assert!(text.contains("not measured: postmark is not installed"), "{text}");
    assert!(report.sections.iter().all(|section| !section.title.is_empty()));
}

#[test]
fn every_point_is_in_the_report() {
    let report = report(&all(), &[]);
    let near = |cell: &Cell, value: f64| (cell.ours.unwrap() - value).abs() < 1e-9;
    assert!(near(cell(&report, "small, 4096", "by iSCSI's report after complete"), 2.0));
    assert!(near(cell(&report, "packets", "report after complete"), 200.0));
    // The record has 110,000 bytes in IP packets. The report adds 14 bytes for each of 200 frames.
    assert!(near(cell(&report, "bytes", "report after complete"), 112_800.0));
    assert!(near(cell(&report, "65 to 127", "iSCSI"), 280.0));
    assert!(near(cell(&report, "READ", "iSCSI"), 60.0), "READ CAPACITY is another command");
    assert!(near(cell(&report, "READ CAPACITY", "iSCSI"), 1.0));
    assert!(near(cell(&report, "share that did not reach the node", "ours"), 0.6));
    assert!(near(cell(&report, "immediate report", "iSCSI's mean by this"), 2.0));
    assert!(near(cell(&report, "immediate report", "share where the paper's most are"), 0.5));
    assert!(near(cell(&report, "4, 4096", "by iSCSI's"), 2.0));
    for section in &report.sections {
        for (table, row, column, cell) in section.cells() {
            let is_fewer = section.title.starts_with("Table 8") && cell.ours.is_none();
            assert!(
                cell.ours.is_some() || is_fewer || cell.note == "iSCSI has none",
                "{}: {}, {row}, {column}: {}",
                section.title,
                table.title,
                cell.note
            );
        }
    }
}

#[test]
fn errors_of_the_paper_are_listed() {
    let report = report(&all(), &[]);
    let misprints: Vec<&String> = report.sections.iter().flat_map(|it| &it.misprints).collect();
    assert!(misprints.iter().any(|text| text.contains("839,100") && text.contains("1,039,100")));
    assert_eq!(misprints.len(), crate::paper::stics::MISPRINTS.len());
    let packets = cell(&report, "packets", "by iSCSI's");
    assert!((packets.paper.unwrap().least - 0.310).abs() < 0.001, "{packets:?}");
}

#[test]
fn processors_are_busy_for_a_share_of_the_time_in_which_that_was_counted() {
    // The workload measures five seconds, but the processor time also covers filling and comparing.
    let told = |counted: &[(&str, f64)]| {
        let mut records = all();
        for record in &mut records {
            let [name, unit] = ["time", "s"].map(str::to_owned);
            record.outcome.figures.push(WorkloadFigure { name, unit, value: 5.0 });
            record.maker.insert("processors".to_owned(), "2".to_owned());
            record.counted.retain(|figure| figure.name != "cpu machine");
            record.counted.extend(counted.iter().map(|(name, value)| {
                let [name, unit] = [*name, "s"].map(str::to_owned);
                WorkloadFigure { name, unit, value: *value }
            }));
        }
        super::report(&records, &[]).sections[0].deviations.join("\n")
    };
    let hot = told(&[("cpu machine", 30.0), ("time counted", 18.0)]);
    assert!(hot.contains("The machine's 2 processors are busy for 83 % of the time."), "{hot}");
    for idle in [&[("cpu machine", 30.0), ("time counted", 60.0)][..], &[("cpu machine", 30.0)]] {
        let told = told(idle);
        assert!(!told.is_empty() && !told.contains("processors"), "{told}");
    }
}

#[test]
fn deviations_from_the_paper_are_reported_with_the_measured_reasons() {
    let mut records = all();
    for record in &mut records {
        let mut add = |name: &str, unit: &str, value: f64| {
            let [name, unit] = [name, unit].map(str::to_owned);
            record.counted.push(WorkloadFigure { name, unit, value });
        };
        if record.point.ends_with("iscsi") {
            add("node 1 time_write", "us", 8000.0);
        } else {
            add("gateway cache time_write", "us", 400.0);
            add("gateway cache written_bytes", "bytes", 1048576.0);
            let gateway = crate::SiteGateway { log: 64 << 20, ..crate::SiteGateway::default() };
            let site = crate::LabSite { gateway: Some(gateway), ..crate::LabSite::default() };
            record.settings = serde_json::json!({ "site": site });
        }
    }
    let report = report(&records, &[]);
    let told = |start: &str| {
        let mut sections = report.sections.iter();
        sections.find(|it| it.title.starts_with(start)).expect("it").deviations.clone()
    };
    // Every gain is 2.0. The paper's ranges are 1.6 to 2.1 for report after complete, which 2.0 is in, and 2.69 to 4.18
    // for immediate report, which 2.0 is not in.
    let six = told("Figure 6");
    assert_eq!(six.len(), 1, "{six:#?}");
    assert!(six[0].contains("2 instead of 2.69 to 4.18"), "{six:#?}");
    assert!(six[0].contains("0.4 ms in the gateway, and 8 ms in the node without one"), "{six:#?}");
    assert!(six[0].contains("of the 1 MiB") && six[0].contains("its log of 64 MiB"), "{six:#?}");
    assert!(six[0].ends_with("It has the largest difference of 4 of 4 that differ."), "{six:#?}");
    assert_eq!(told("Figure 8"), Vec::<String>::new());
    assert_eq!(told("Figures 11").len(), 3);
    // Records without the counters of gateway and node give no explanations.
    let bare = super::report(&all(), &[]);
    let bare = bare.sections.iter().flat_map(|section| &section.deviations);
    assert!(
        bare.clone().any(|text| text.contains(crate::NO_REASON)),
        "{:#?}",
        bare.collect::<Vec<_>>()
    );
}

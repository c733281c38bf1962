//! Tests the HTML page of a report: its content, its escaping and its closing tags.

use super::*;
use crate::{
    Cell, Curve, Finding, MeasuredRatio, PaperClaim, Plot, PointCount, PointRecord, Printed,
    ReportTable, RunProgress, Section, doubts,
};

fn sample() -> LabReport {
    let taints = ["4 % of the time was stolen".to_owned()];
    let table = ReportTable::new("Turnaround of writes", "one-way delay, ms")
        .column_of("Reno", "mean", "ms")
        .column_of("Fair-TCP", "mean", "ms")
        .row("0", [Cell::ours(200.0).beside(208.0), Cell::ours(100.0).beside(102.0).at_most(200.0)])
        .row(
            "2",
            [Cell::ours(f64::NAN).beside(351.0).tainted(&taints), Cell::ours(400.0).at_most(351.0)],
        )
        .row(
            "4",
            [Cell::paper(450.0), Cell::words("not measured: tgt is not installed").at_most(450.0)],
        );
    let plot = Plot::new("Figure 7", "delay, ms", "MB/s")
        .curve(Curve::ours("Reno", [[0.0, 1.0], [2.0, 0.5]]));
    let section = Section::new("Table 3")
        .text("What it shows.")
        .table(table)
        .plot(plot)
        .deviation("Slower at 2 ms.")
        .misprint("Table 3 prints 39.");
    LabReport::new("Fair-TCP")
        .about("What was done.")
        .fact("kernel", "6.12")
        .section(section)
        .section(Section::new("Table 4"))
}

#[test]
fn a_page_shows_our_value_the_papers_value_and_their_ratio() {
    let page = page(&sample());
    for part in [
        "<title>Fair-TCP</title>",
        "<dt>kernel</dt><dd>6.12</dd>",
        "<a href=\"#s2\">Table 4</a>",
        "<span class=\"ours\">200</span><span class=\"ref\">paper 208, ×0.96</span>",
        "<span class=\"ref good\">≤ 200: holds</span>",
        "<span class=\"ref bad\">≤ 351: missed</span>",
        "<span class=\"ref\">≤ 450: not measured</span>",
        "Figures with a bound: <span class=\"good\">1 within it</span>, <span class=\"bad\">1 not</span>, 1 not measured.",
        "<a href=\"#s1\">Turnaround of writes: 2, Fair-TCP mean</a>",
        "not measured: tgt is not installed",
        "<li>Slower at 2 ms.</li>",
        "<li>Table 3 prints 39.</li>",
        "<th class=\"group\" scope=\"colgroup\" colspan=\"1\">Reno</th>",
        "<svg viewBox",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn a_range_of_the_paper_is_shown_as_a_range() {
    let printed = Printed { least: 0.91, most: 0.99 };
    let cells = [0.93, 0.455, 1.98].map(|ours| Cell::ours(ours).beside_printed(printed));
    let heads = ReportTable::new("MTU", "delay").column("a", "").column("b", "").column("c", "");
    let page =
        page(&LabReport::new("r").section(Section::new("s").table(heads.row("0 ms", cells))));
    for part in ["paper 0.91–0.99, within<", "paper 0.91–0.99, ×0.50<", "paper 0.91–0.99, ×2.00<"]
    {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(!page.contains("0.95"), "the paper has no such number");
}

#[test]
fn a_taint_that_is_in_no_list_of_doubts_is_a_footnote() {
    let page = page(&sample());
    assert!(page.contains("<sup class=\"taint\">†<a href=\"#s1t0n0\">1</a></sup>"), "{page}");
    assert!(page.contains("<li id=\"s1t0n0\">4 % of the time was stolen</li>"));
    assert!(page.contains("Figures in doubt: 1,"), "{page}");
}

#[test]
fn the_same_doubt_of_five_points_occurs_once_with_their_number() {
    let text = |percent: usize| format!("{percent} % of the time was stolen");
    let records: Vec<_> = (2..7).map(|n| record(&format!("point {n}"), &[text(n)])).collect();
    let no_room = "not measured: no room for 1 GiB".to_owned();
    let left_out = [("point 7".to_owned(), "no room for 1 GiB".to_owned())];
    let heads = ReportTable::new("t", "r").column("a", "").column("b", "");
    let cells = |n: usize| [Cell::ours(1.0).tainted(&[text(n)]), Cell::words(&no_room)];
    let one = (2..4).fold(heads.clone(), |table, n| table.row("r", cells(n)));
    let two = (4..7).fold(heads.clone(), |table, n| table.row("r", cells(n)));
    let none = heads.row("r", [Cell::words(&no_room), Cell::words(&no_room)]);
    let section = Section::new("s").table(one).table(two).table(none);
    let mut report = LabReport::new("r").section(section);
    report.doubts = doubts(&records, &left_out);
    let page = page(&report);
    assert!(
        page.contains("<li id=\"d1\">5 points: 2 to 6 % of the time was stolen</li>"),
        "{page}"
    );
    assert!(page.contains("<li id=\"d2\">1 point: not measured: no room for 1 GiB</li>"), "{page}");
    for once in ["of the time was stolen", "no room for 1 GiB"] {
        assert_eq!(page.matches(once).count(), 1, "{once} in {page}");
    }
    assert_eq!(page.matches("†<a href=\"#d1\">doubt 1</a>").count(), 5, "{page}");
    assert!(page.contains("t: not measured (doubt 2)."), "{page}");
}

fn record(point: &str, taints: &[String]) -> PointRecord {
    PointRecord {
        point: point.to_owned(),
        settings: serde_json::Value::Null,
        outcome: workload::WorkloadResult::default(),
        maker: Default::default(),
        runs: vec![],
        counted: vec![],
        taints: taints.to_vec(),
        notes: Default::default(),
        began: 0,
        took: 1.0,
    }
}

fn finding() -> Finding {
    let claim = PaperClaim {
        place: "Figure 7",
        statement: "a cache is <fast>",
        ratio: "the speed with a cache to that without",
        least: 1.5,
        most: f64::INFINITY,
        printed_most: None,
    };
    let ratios = [1.6, 2.0, 2.4].map(|value| MeasuredRatio { value, is_doubtful: false });
    Finding { claim, ratios: ratios.into() }
}

#[test]
fn a_page_begins_with_claim_result_and_verdict() {
    let single = Finding { ratios: finding().ratios[..1].into(), ..finding() };
    let page = page(&sample().findings([single, finding()]));
    let (_, begin) = page.split_once("</h1>\n").expect("a heading");
    let expected = "<p class=\"found\">The paper claims (figure 7) that a cache is &lt;fast&gt;.\n\
                    Measured here, the ratio of the speed with a cache to that without is 2 (median of 3 ratios, quartiles 1.8 and 2.2).\n\
                    <strong>The claim held: both quartiles are at least 1.5.</strong></p>\n";
    assert!(begin.starts_with(expected), "{begin}");
    assert!(begin.contains("<td><span class=\"none\">not decided</span>"), "{begin}");
}

#[test]
fn a_stopped_run_states_its_points_and_the_command() {
    let part = PointCount { measured: 30, all: 176 };
    let command = "forebay lab run stics --out 'a <b>'".to_owned();
    let progress =
        RunProgress { requested: part, experiment: part, again: false, stopped: Some(command) };
    let mut report = sample().findings([finding()]);
    report.progress = Some(progress.clone());
    let page = page(&report);
    let begin: String =
        page.split_once("</h1>\n").expect("a heading").1.chars().take(800).collect();
    for text in [
        "Measured here in 30 of 176 points, the ratio of ",
        "<p class=\"found\">Stopped after 30 of 176 points; the same command goes on:</p>\n\
         <pre><code>forebay lab run stics --out &#39;a &lt;b&gt;&#39;</code></pre>",
    ] {
        assert!(begin.contains(text), "{text} is not in {begin}");
    }
    let again = RunProgress { again: true, ..progress.clone() }.sentence();
    assert!(again.ends_with("This command measures all of them again:"), "{again}");
    let whole = PointCount { measured: 2, all: 2 };
    let ended = RunProgress { requested: whole, stopped: None, ..progress };
    let sentence = "All 2 requested points have results; the whole experiment has 176 points, 30 with results.";
    assert_eq!(ended.sentence(), sentence);
}

#[test]
fn a_page_has_no_invalid_numbers_and_no_external_resources() {
    let page = page(&sample());
    for wrong in ["NaN", "inf<", "http:", "https:", "<script", "src=", "url("] {
        assert!(!page.contains(wrong), "{wrong} in {page}");
    }
}

#[test]
fn the_median_of_several_runs_has_its_quartiles() {
    let cells = [Cell::ours(2.0).of_runs(&[1.0, 3.0, 2.0]), Cell::ours(2.0).of_runs(&[2.0])];
    let table = ReportTable::new("t", "r").column("a", "s").column("b", "s").row("r", cells);
    let page = page(&LabReport::new("r").section(Section::new("s").table(table)));
    let several =
        "<td><span class=\"ours\">2</span><span class=\"ref\">quartiles 1.5, 2.5</span></td>";
    assert!(page.contains(&format!("{several}<td><span class=\"ours\">2</span></td>")), "{page}");
}

#[test]
fn a_table_without_values_is_one_line_with_the_reasons() {
    let absent = || Cell::words("not measured: tgt is not installed");
    let table = ReportTable::new("Peers", "delay")
        .column("tgt", "ms")
        .row("0 ms", [absent()])
        .row("1 ms", [absent()]);
    let page = page(&LabReport::new("r").section(Section::new("s").table(table)));
    assert!(!page.contains("<table>"), "{page}");
    assert!(
        page.contains("<p class=\"none\">Peers: not measured: tgt is not installed.</p>"),
        "{page}"
    );
}

#[test]
fn an_empty_report_is_a_page() {
    assert!(page(&LabReport::default()).ends_with("</html>\n"));
}

/// Checks that every opened tag is closed, in order. If a text of the report was not escaped, it
/// could open a tag.
#[test]
fn hostile_text_does_not_change_the_markup() {
    let evil = "</td></table><script>alert(1)</script>\"'&<!--\0";
    let taints = [evil.to_owned()];
    let table = ReportTable::new(evil, evil)
        .column_of(evil, evil, evil)
        .row(evil, [Cell::ours(1.0).beside(2.0).at_least(3.0).note(evil).tainted(&taints)]);
    let plot = Plot::new(evil, evil, evil)
        .labels([evil])
        .curve(Curve::ours(evil, [[0.0, 1.0]]))
        .note(evil);
    let section =
        Section::new(evil).text(evil).table(table).plot(plot).deviation(evil).misprint(evil);
    let page = page(&LabReport::new(evil).about(evil).fact(evil, evil).section(section));
    let body = page.split_once("</style>").unwrap().1;
    let mut open: Vec<&str> = vec!["html", "head"];
    for tag in body.split('<').skip(1) {
        let tag = tag.split_once('>').expect("a tag ends").0;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            assert_ne!(name, "script");
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

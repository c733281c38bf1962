//! Tests of the HTML page of a report: its content, escaping and closed tags.

use super::*;
use crate::{Cell, Curve, Plot, Printed, ReportTable, Section};

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
        "Of 3 figures with a bar <span class=\"good\">1 hold</span>, <span class=\"bad\">1 do not</span>, not measured: 1.",
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
fn taints_are_shown_at_the_figure_and_below_its_table() {
    let page = page(&sample());
    assert!(page.contains("<sup class=\"taint\">†<a href=\"#s1t0n0\">1</a></sup>"), "{page}");
    assert!(page.contains("<li id=\"s1t0n0\">4 % of the time was stolen</li>"));
    assert!(page.contains("† 1 figures may be wrong"));
}

#[test]
fn a_page_has_no_invalid_numbers_and_no_external_resources() {
    let page = page(&sample());
    for wrong in ["NaN", "inf<", "http:", "https:", "<script", "src=", "url("] {
        assert!(!page.contains(wrong), "{wrong} in {page}");
    }
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

//! The report as a self-contained HTML page: tables, and plots as inline SVG.

use std::fmt::Write as _;

use super::quickstart_report::{PartOutcome, QuickstartReport, gain, time};
use config::quantity::about;

/// Colours of node and gateway in the plots.
const NODE: &str = "#b4552d";
const GATEWAY: &str = "#1f6f8b";

/// Left end (`BARS_FROM`) and right end (`BARS_TO`) of the bars, in pixels. Names are to the left of the bars,
/// numbers to the right.
const BARS_FROM: f64 = 220.0;
const BARS_TO: f64 = 560.0;

pub fn page(outcome: &QuickstartReport) -> String {
    let mut page = String::from(HEAD);
    let verdict = if outcome.nothing_lost() {
        "<p class=\"good\">Nothing was lost.</p>"
    } else {
        "<p class=\"bad\">Blocks were lost: see the last table.</p>"
    };
    let _ = write!(
        page,
        "<h1>Forebay quickstart</h1>{verdict}<p>forebay {} on {} CPUs, Linux {}, {}. The link: \
         {} ms one \
         way, {} Mbit/s, no loss.</p>",
        escape(outcome.version),
        outcome.machine.cpus,
        escape(&outcome.machine.kernel),
        escape(&outcome.date),
        outcome.delay_one_way_ms,
        outcome.rate_bits_per_second / 1_000_000,
    );
    page.push_str(
        "<h2>Operations per second</h2><p>The axis is logarithmic: each line stands for ten times as many as \
         the line before. Depth is the number of operations in flight.</p>",
    );
    page.push_str(&bars(outcome));
    page.push_str(
        "<h2>Latency</h2><p>The share of the operations that were faster than a time. The axis of time is \
         logarithmic.</p>",
    );
    for (part, depth) in parts(&outcome.parts) {
        let (name, curves) = (escape(part), curves(&outcome.parts, part));
        let _ = write!(page, "<h3>{name}, depth {depth}</h3>{curves}");
    }
    page.push_str("<h2>Figures</h2>");
    page.push_str(&figures(outcome));
    page.push_str(&crash(outcome));
    page.push_str("</body></html>\n");
    page
}

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width\"><title>Forebay quickstart</title><style>\
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
h3{margin:1.2rem 0 .2rem;font-size:1rem}table{border-collapse:collapse;font-size:13px}\
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}\
.good{color:#186a3b;font-weight:bold}.bad{color:#a11;font-weight:bold}\
svg{max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#333}\
</style></head><body>";

/// Returns the name and the number of concurrent operations of each part of the load, in the order of the results.
fn parts(outcomes: &[PartOutcome]) -> Vec<(&'static str, usize)> {
    let mut parts = Vec::new();
    for part in outcomes.iter().map(|outcome| (outcome.part, outcome.depth)) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

fn colour(way: &str) -> &'static str {
    if way == "node" { NODE } else { GATEWAY }
}

/// Maps values to positions on a logarithmic scale.
struct LogarithmicScale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl LogarithmicScale {
    /// Makes a scale of whole decades that contains the values.
    fn around(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).max(1e-3).log10().floor();
        let most = values.fold(0.0, f64::max).max(1e-3).log10().ceil();
        let least = if least.is_finite() { least } else { 0.0 };
        Self { least, most: most.max(least + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-3).log10() - self.least) / (self.most - self.least);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.least as i32..=self.most as i32).map(|power| 10f64.powi(power))
    }
}

fn bars(outcome: &QuickstartReport) -> String {
    let outcomes = &outcome.parts[..];
    let scale = LogarithmicScale::around(
        outcomes.iter().map(|part| part.operations_per_second),
        BARS_FROM,
        BARS_TO,
    );
    let height = outcomes.len() * 26 + parts(outcomes).len() * 10 + 40;
    let mut svg = format!("<svg viewBox=\"0 0 800 {height}\" width=\"800\" role=\"img\">");
    for decade in scale.decades() {
        let x = scale.at(decade);
        let _ = write!(
            svg,
            "<line x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"0\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.0}\" y=\"{}\" text-anchor=\"middle\">{decade}</text>",
            height - 30,
            height - 12
        );
    }
    let mut y = 4;
    for (name, depth) in parts(outcomes) {
        for (index, part) in outcomes.iter().filter(|part| part.part == name).enumerate() {
            let width = scale.at(part.operations_per_second) - BARS_FROM;
            if index == 0 {
                let name = escape(name);
                let _ = write!(svg, "<text x=\"0\" y=\"{}\">{name}, depth {depth}</text>", y + 15);
            }
            let gain = outcome.gain(part).map(|ratio| format!(", {} times the node", gain(ratio)));
            let _ = write!(
                svg,
                "<rect x=\"{BARS_FROM}\" y=\"{y}\" width=\"{width:.0}\" height=\"20\" fill=\"{}\"/>\
                 <text x=\"{:.0}\" y=\"{}\">{:.0} ({}{})</text>",
                colour(part.way),
                BARS_FROM + 5.0 + width,
                y + 15,
                part.operations_per_second,
                part.way,
                gain.unwrap_or_default()
            );
            y += 26;
        }
        y += 10;
    }
    svg.push_str("</svg>");
    svg
}

fn curves(outcomes: &[PartOutcome], name: &str) -> String {
    let here: Vec<_> = outcomes.iter().filter(|part| part.part == name).collect();
    let values = here.iter().flat_map(|part| part.percentiles_us.iter().map(|(_, us)| *us as f64));
    let scale = LogarithmicScale::around(values, 60.0, 760.0);
    let mut svg = String::from("<svg viewBox=\"0 0 800 240\" width=\"800\" role=\"img\">");
    for decade in scale.decades() {
        let x = scale.at(decade);
        let _ = write!(
            svg,
            "<line x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"10\" y2=\"210\" stroke=\"#ddd\"/>\
             <text x=\"{x:.0}\" y=\"228\" text-anchor=\"middle\">{}</text>",
            time(decade)
        );
    }
    for share in [0, 25, 50, 75, 100] {
        let y = 210 - share * 2;
        let _ = write!(
            svg,
            "<line x1=\"60\" x2=\"760\" y1=\"{y}\" y2=\"{y}\" stroke=\"#eee\"/>\
             <text x=\"50\" y=\"{}\" text-anchor=\"end\">{share} %</text>",
            y + 4
        );
    }
    for part in here {
        let points: Vec<_> = part
            .percentiles_us
            .iter()
            .map(|(share, us)| format!("{:.1},{:.1}", scale.at(*us as f64), 210.0 - share * 2.0))
            .collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" \
             stroke-width=\"2\"><title>{}</title>\
             </polyline>",
            points.join(" "),
            colour(part.way),
            part.way
        );
    }
    let _ = write!(
        svg,
        "<text x=\"66\" y=\"24\" style=\"fill:{NODE}\">— node</text>\
         <text x=\"66\" y=\"42\" style=\"fill:{GATEWAY}\">— gateway</text></svg>"
    );
    svg
}

fn figures(outcome: &QuickstartReport) -> String {
    let mut table = String::from(
        "<table><tr><th>part<th>way<th>depth<th>operations/s<th>times the node<th>data/s<th>mean<th>p50<th>p99<th>max<th>link \
         bytes<th>link PDUs<th>hits<th>wrong blocks</tr>",
    );
    for part in &outcome.parts {
        let _ = write!(
            table,
            "<tr><td>{}<td>{}<td>{}<td>{:.0}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(part.part),
            part.way,
            part.depth,
            part.operations_per_second,
            outcome.gain(part).map_or(String::new(), gain),
            about(part.bytes_per_second as u64),
            time(part.mean_us),
            time(part.p50_us as f64),
            time(part.p99_us as f64),
            time(part.max_us as f64),
            about(part.link.bytes),
            part.link.pdus,
            part.hit_ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0)),
            part.blocks_wrong,
        );
    }
    table.push_str("</table>");
    table
}

fn crash(outcome: &QuickstartReport) -> String {
    let crash = &outcome.crash;
    let mut text = format!(
        "<h2>The crash</h2><p>The gateway was killed with SIGKILL in the middle of writing, \
         after {} \
         acknowledged writes, with about {} in its log that the node did not have. A new process \
         listened again after {} ms.</p><table><tr><th>read again<th>through<th>blocks verified<th>\
         blocks lost</tr><tr><td>after the restart<td>gateway<td>{}<td>{}</tr>",
        crash.writes_acknowledged,
        about(crash.dirty_bytes_at_kill),
        crash.recovered_ms,
        crash.blocks_verified,
        crash.blocks_lost
    );
    if crash.destaged {
        let _ = write!(
            text,
            "<tr><td>after destage<td>node<td>{}<td>{}</tr>",
            crash.blocks_verified_at_node, crash.blocks_lost_at_node
        );
    }
    text.push_str("</table>");
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{super::quickstart_report::QuickstartMachine, *};

    #[test]
    fn a_scale_clamps_values_to_its_range() {
        let scale = LogarithmicScale::around([3.0, 4500.0].into_iter(), 100.0, 500.0);
        assert_eq!(scale.decades().count(), 5);
        assert!((scale.at(1.0) - 100.0).abs() < 1e-9);
        assert!((scale.at(1e4) - 500.0).abs() < 1e-9);
        assert!((scale.at(1e9) - 500.0).abs() < 1e-9);
        let empty = LogarithmicScale::around(std::iter::empty(), 0.0, 1.0);
        assert!(empty.at(5.0).is_finite());
    }

    #[test]
    fn page_and_table_state_ratio_and_depth_and_the_page_its_logarithmic_axes() {
        let part = |way, operations_per_second| PartOutcome {
            part: "reads",
            depth: 32,
            way,
            operations: 1,
            operations_per_second,
            bytes_per_second: 1.0,
            seconds: 1.0,
            mean_us: 1.0,
            p50_us: 1,
            p99_us: 1,
            max_us: 1,
            percentiles_us: vec![(50.0, 1)],
            link: Default::default(),
            hit_ratio: None,
            blocks_wrong: 0,
        };
        let report = QuickstartReport {
            version: "1",
            date: String::new(),
            machine: QuickstartMachine { cpus: 2, kernel: String::new() },
            delay_one_way_ms: 4.0,
            rate_bits_per_second: 1_000_000_000,
            parts: vec![part("node", 100.0), part("gateway", 730.0)],
            crash: Default::default(),
        };
        let page = page(&report);
        assert!(page.contains(", 7.3 times the node)</text>"), "{page}");
        for chart in ["<h2>Operations per second</h2><p>", "<h2>Latency</h2><p>"] {
            let (_, text) = page.split_once(chart).expect("a chart");
            let (text, _) = text.split_once("</p>").expect("a paragraph");
            assert!(text.contains("logarithmic"), "{text}");
        }
        assert!(
            page.contains(">reads, depth 32</text>") && page.contains("<h3>reads, depth 32</h3>"),
            "{page}"
        );
        let table = report.table();
        for text in ["depth", "32", "times the node", "7.3"] {
            assert!(table.contains(text), "{text} is not in {table}");
        }
    }

    #[test]
    fn names_cannot_break_the_page() {
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
    }
}

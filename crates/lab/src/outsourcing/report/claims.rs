//! The statements of the outsourcing paper, and the measured ratios that confirm or refute them.

use super::{delays, table_1_point};
use crate::{
    Cell, Finding, MeasuredPoints, MeasuredRatio, PaperClaim, TOLERANCE,
    paper::{
        PaperStatement,
        outsourcing::{
            DISKS, FIGURE_4, FIGURE_5_HOST, FIGURE_5_NODE, FIGURE_7_CACHE_AT_8_MS,
            FIGURE_7_CACHE_AT_70, FIGURE_7_MASKED, FIGURE_7_TOLERATED, MTU_APPLICATIONS, WINDOW,
        },
    },
};

/// Returns the statements of the paper, each with the measured ratios for it.
pub fn findings(measured: &MeasuredPoints<'_>) -> Vec<Finding> {
    // Returns for each pair of points the ratio of the first point's figure to the second's.
    let pairs = |pairs: Vec<[String; 2]>| -> Vec<MeasuredRatio> {
        let ratios =
            pairs.iter().flat_map(|[over, under]| measured.ratios([over, under], "", "1/s"));
        ratios.collect()
    };
    let each = |pair: &dyn Fn(&str) -> [String; 2]| {
        pairs(delays().map(|(_, at)| pair(at)).filter(|[over, under]| over != under).collect())
    };
    let cached = each(&|at| [format!("figure-5/host/{at}"), "figure-5/host/0ms".to_owned()]);
    let at_node = each(&|at| ["node", "none"].map(|place| format!("figure-5/{place}/{at}")));
    let frames = |at: &str| ["1500", "8192"].map(|mtu| format!("mtu/postmark/{mtu}/{at}"));
    let windows =
        each(&|at| ["64k", "640k"].map(|window| format!("window/postmark/{window}/{at}")));
    let of_set = |axis: &str, percent: u32, at: &str| {
        let none = if axis == "delay" { "0ms" } else { "0" };
        [format!("figure-7/{axis}/{percent}/{at}"), format!("figure-7/{axis}/none/{none}")]
    };
    let masked = pairs(vec![of_set("delay", FIGURE_7_CACHE_AT_8_MS, "8ms")]);
    let tolerated = pairs(vec![of_set("load", FIGURE_7_CACHE_AT_70, "70")]);
    let frames = pairs(vec![frames("0ms"), frames("1ms")]);
    let ratios = [
        round_trips(measured),
        cached,
        at_node,
        array(measured),
        masked,
        tolerated,
        frames,
        windows,
    ];
    CLAIMS.into_iter().zip(ratios).map(|(claim, ratios)| Finding { claim, ratios }).collect()
}

/// Statements of the paper that the report checks, the most important one first.
const CLAIMS: [PaperClaim; 8] = [
    ROUND_TRIP,
    read(
        &FIGURE_5_HOST,
        "a cache at the host \"can hide almost all of the network latency\"",
        "PostMark's transactions with a delay to those without, with a cache at the host",
    ),
    read(
        &FIGURE_5_NODE,
        "a cache at the node does not hide the delay: its curve and the one without a cache \"coincide\"",
        "PostMark's transactions with a cache at the node to those without a cache",
    ),
    read(
        &FIGURE_4,
        "SDET on an array is \"much more sensitive to network delay\" than on one disk",
        "the share of its speed that SDET keeps at 8 ms on the array to the share on one disk",
    ),
    read(
        &FIGURE_7_MASKED,
        "a cache of 60 % of PostMark's files masks a delay of 8 ms",
        "PostMark's transactions with this cache and delay to those without cache and delay",
    ),
    read(
        &FIGURE_7_TOLERATED,
        "a cache of 30 % of PostMark's files masks a background load of 70 %",
        "PostMark's transactions with this cache and load to those without cache and load",
    ),
    PaperClaim {
        place: MTU_APPLICATIONS.place,
        statement: "while the delay is short, applications with packets of 1.5 KB are 1 to 9 % slower than with packets of 8 KB",
        ratio: "PostMark's transactions with an MTU of 1500 bytes to those with 8192 bytes",
        least: MTU_APPLICATIONS.least,
        most: MTU_APPLICATIONS.most,
        printed_most: None,
    },
    read(
        &WINDOW,
        "a TCP window of 64 KB \"does not harm performance\" compared with one of 640 KB",
        "PostMark's transactions with socket buffers of 64 KB to those with 640 KB",
    ),
];

/// The claim is checked with reads only, because a disk's write cache can hide the round trip of a write.
const ROUND_TRIP: PaperClaim = PaperClaim {
    place: "Equation (1), section 4.1",
    statement: "a read over a link with a delay takes one round trip longer than without the delay, on each disk",
    ratio: "the additional time of a read with a delay to the round trip time",
    least: 1.0 - TOLERANCE,
    most: 1.0 + TOLERANCE,
    printed_most: None,
};

/// Returns a statement in the paper's words, with our bounds for the meaning of these words.
const fn read(words: &PaperStatement, statement: &'static str, ratio: &'static str) -> PaperClaim {
    let PaperStatement { place, least, most, .. } = *words;
    PaperClaim { place, statement, ratio, least, most, printed_most: None }
}

/// Returns by how much longer a read takes with a delay than without, divided by the round trip time of that delay: one
/// ratio for each disk, access pattern and delay.
fn round_trips(measured: &MeasuredPoints<'_>) -> Vec<MeasuredRatio> {
    let mut ratios = vec![];
    for disk in DISKS {
        for access in ["random-read", "sequential-read"] {
            let time = |at: &str| measured.cell(&table_1_point(disk, access, at), "", "ms");
            let near = time("0ms");
            for (delay, at) in delays().filter(|(delay, _)| *delay > 0.0) {
                let far = time(at);
                let (Some(long), Some(short)) = (far.ours, near.ours) else { continue };
                let ratio = Cell::ours((long - short) / (2.0 * delay));
                ratios.extend(MeasuredRatio::of(&ratio.tainted(&near.taints).tainted(&far.taints)));
            }
        }
    }
    ratios
}

/// For each file system, divides SDET's speed at 8 ms by its speed at 0 ms, on the array and on one disk. Returns the
/// array's quotient divided by the disk's.
fn array(measured: &MeasuredPoints<'_>) -> Vec<MeasuredRatio> {
    let kept = |disk: &str, file_system: &str| {
        let at =
            |way: &str| measured.cell(&format!("figure-4/{disk}/{file_system}/{way}"), "", "1/h");
        at("8ms").by(&at("0ms"))
    };
    let ratio =
        |file_system| MeasuredRatio::of(&kept("array", file_system).by(&kept("ddys", file_system)));
    ["soft", "sync"].into_iter().filter_map(ratio).collect()
}

//! The statements of the STICS paper, and the measured ratios that confirm or refute them.

use crate::{
    Finding, MeasuredPoints, PaperClaim,
    paper::{PaperFigure, stics as paper},
    stics::points::{POOLS, SIZES_KIB},
};

/// A claim: the paper's figure, the statement, the ratio, the report mode of the gateway, the measured figure with its
/// unit, and the points that are measured with a gateway and with iSCSI alone.
type Claim = (
    PaperFigure,
    &'static str,
    &'static str,
    &'static str,
    (&'static str, &'static str),
    fn() -> Vec<String>,
);

/// Statements of the STICS paper that the report checks, the most important one first.
const CLAIMS: [Claim; 7] = [
    (
        paper::POSTMARK_100M,
        "with a cache that acknowledges writes when they are in its log, PostMark at 100 Mbit/s is 1.6 to 2.1 times as fast as with \
             iSCSI alone",
        TRANSACTIONS,
        "after-complete",
        RATE,
        || by_pool(6),
    ),
    (
        paper::POSTMARK_100M_IMMEDIATE,
        "with a cache that acknowledges writes at once, PostMark at 100 Mbit/s is 2.69 to 4.18 times as fast as with iSCSI alone",
        TRANSACTIONS,
        "immediate",
        RATE,
        || by_pool(6),
    ),
    (
        paper::POSTMARK_1G,
        "with a cache that acknowledges writes when they are in its log, PostMark at 1 Gbit/s is 1.51 to 1.8 times as fast as with \
             iSCSI alone",
        TRANSACTIONS,
        "after-complete",
        RATE,
        || by_pool(7),
    ),
    (
        paper::POSTMARK_1G_IMMEDIATE,
        "with a cache that acknowledges writes at once, PostMark at 1 Gbit/s is 2.49 to 3.07 times as fast as with iSCSI alone",
        TRANSACTIONS,
        "immediate",
        RATE,
        || by_pool(7),
    ),
    (
        paper::IOZONE,
        "a cache makes random reads and writes 1.51 to 4.3 times as fast as iSCSI alone",
        THROUGHPUT,
        "after-complete",
        ("throughput", "MB/s of 1000 KiB"),
        by_record,
    ),
    (
        paper::VXBENCH,
        "a cache makes vxbench 1.52 to 1.9 times as fast as iSCSI alone",
        THROUGHPUT,
        "after-complete",
        ("throughput", "KiB/s"),
        by_load,
    ),
    (
        FOUR_NODES,
        "with four nodes, a cache makes PostMark 1.52 to 1.74 times as fast as iSCSI alone",
        TRANSACTIONS,
        "after-complete",
        RATE,
        by_block,
    ),
];

const TRANSACTIONS: &str = "transactions a second with a cache to those with iSCSI alone";
const THROUGHPUT: &str = "the throughput with a cache to that with iSCSI alone";
const RATE: (&str, &str) = ("transactions", "1/s");
const FOUR_NODES: PaperFigure =
    PaperFigure { place: "Table 8", what: "transactions by iSCSI's", least: 1.52, most: 1.74 };

fn by_pool(figure: u8) -> Vec<String> {
    let of = |pool: &str| paper::BLOCKS.map(|block| format!("figure-{figure}/{pool}/{block}"));
    POOLS.iter().flat_map(|pool| of(pool)).collect()
}

fn by_record() -> Vec<String> {
    let of = |access: &str| SIZES_KIB.map(|kib| format!("figure-8/{access}/{kib}k"));
    ["read", "write"].into_iter().flat_map(of).collect()
}

fn by_load() -> Vec<String> {
    ["write", "mixed"].map(|access| format!("figure-9/{access}")).into()
}

fn by_block() -> Vec<String> {
    paper::BLOCKS.map(|block| format!("table-8/4/{block}")).into()
}

/// Returns the claims. Each has a ratio for each pair of points with and without a gateway.
pub(super) fn findings(measured: &MeasuredPoints<'_>) -> Vec<Finding> {
    let found = |(figure, statement, ratio, how, (name, unit), points): Claim| {
        let claim = PaperClaim {
            place: figure.place,
            statement,
            ratio,
            least: figure.least,
            most: f64::INFINITY,
            printed_most: Some(figure.most),
        };
        let ratios = points().into_iter().flat_map(|point| {
            let [over, under] = [how, "iscsi"].map(|how| format!("{point}/{how}"));
            measured.ratios([&over, &under], name, unit)
        });
        Finding { claim, ratios: ratios.collect() }
    };
    CLAIMS.into_iter().map(found).collect()
}

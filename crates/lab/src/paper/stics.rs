//! The numbers of "STICS: SCSI-to-IP cache for storage area networks", which compares plain iSCSI
//! with a cache that has a log disk, on Linux 2.4.

use super::{Misprint, PaperFigure};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IscsiSticsPair<T> {
    pub iscsi: T,
    /// The figure of STICS, with writes that are reported after they are complete.
    pub stics: T,
}

const fn both<T: Copy>(iscsi: T, stics: T) -> IscsiSticsPair<T> {
    IscsiSticsPair { iscsi, stics }
}

/// The classes of packet lengths in Table 3: the shortest and the longest length of each, in bytes.
pub const PACKET_LENGTHS: [[u32; 2]; 6] =
    [[0, 64], [65, 127], [128, 255], [256, 511], [512, 1023], [1024, u32::MAX]];

/// STICS paper, Table 3: number of packets in each class of [`PACKET_LENGTHS`] during PostMark.
pub const PACKETS: [IscsiSticsPair<u64>; 6] = [
    both(7, 4),
    both(1_937_724, 431_216),
    both(91, 16),
    both(60, 30),
    both(27, 7),
    both(1_415_912, 607_827),
];

/// STICS paper, Table 4: number of all packets. The number for STICS is the sum of Table 3: see
/// [`MISPRINTS`].
pub const TOTAL_PACKETS: IscsiSticsPair<f64> = both(3_353_821.0, 1_039_100.0);

/// STICS paper, Table 4: number of all packets as printed, for STICS with a misprint.
pub const TOTAL_PACKETS_PRINTED: IscsiSticsPair<f64> = both(3_353_821.0, 839_100.0);

/// STICS paper, Table 4: ratio of packets of 1024 bytes and more to shorter ones.
pub const FULL_BY_PARTIAL: IscsiSticsPair<f64> = both(0.73, 1.41);

/// STICS paper, Table 4: bytes on the wire.
pub const BYTES: IscsiSticsPair<f64> = both(1_914_566_504.0, 980_963_821.0);

/// STICS paper, Table 4: mean bytes per packet.
pub const BYTES_A_PACKET: IscsiSticsPair<f64> = both(571.0, 944.0);

/// STICS paper, Table 5: requests that the host's file system received.
pub const REQUESTS: IscsiSticsPair<f64> = both(3_104_257.0, 3_069_438.0);

/// STICS paper, Table 5: requests that the file system passed to the block layer.
pub const REQUESTS_TO_BLOCK: IscsiSticsPair<f64> = both(1_867_529.0, 1_854_554.0);

/// STICS paper, Table 5: requests that the file system of the host answered from its own cache.
pub const REQUESTS_FROM_HOST: IscsiSticsPair<f64> = both(1_236_728.0, 1_214_884.0);

/// STICS paper, Table 5: requests that STICS answered from its cache. Plain iSCSI has no such
/// cache.
pub const REQUESTS_FROM_STICS: f64 = 896_582.0;

/// STICS paper, Table 6: SCSI commands at the target during PostMark.
pub const COMMANDS: [(&str, IscsiSticsPair<f64>); 5] = [
    ("READ", both(237_659.0, 94_502.0)),
    ("WRITE", both(309_182.0, 200_531.0)),
    ("INQUIRY", both(2009.0, 1278.0)),
    ("READ CAPACITY", both(3.0, 3.0)),
    ("TEST UNIT READY", both(53.0, 47.0)),
];

/// STICS paper, Table 8: file system block sizes, bytes.
pub const BLOCKS: [u32; 4] = [512, 1024, 2048, 4096];

/// STICS paper, Table 8: PostMark with four targets, transactions per second, by [`BLOCKS`].
pub const FOUR_TARGETS: [IscsiSticsPair<f64>; 4] =
    [both(318.0, 552.0), both(367.0, 589.0), both(354.0, 537.0), both(283.0, 432.0)];

/// STICS paper, section 5.3.1: round trip of the network, µs, at 100 Mbit/s and at 1 Gbit/s.
pub const LATENCY_US: [f64; 2] = [128.99, 106.78];

/// STICS paper, section 5.2: requests of the EMC-tel trace.
pub const TRACE_REQUESTS: u64 = 230_370;

/// STICS paper, section 5.2: the share of writes in the EMC-tel trace.
pub const TRACE_WRITES: f64 = 0.89;

/// STICS paper, section 5.2: mean requests per second of the EMC-tel trace.
pub const TRACE_RATE: f64 = 333.0;

/// STICS paper, Figures 11 and 12 (section 5.3.4): mean response times of the trace, ms: STICS with immediate report,
/// STICS with report after complete, plain iSCSI.
pub const RESPONSE_MS: [(&str, f64); 3] =
    [("immediate report", 2.7), ("report after complete", 5.71), ("iSCSI", 16.73)];

/// STICS paper, Figure 12: the range of most response times, ms, in the order of [`RESPONSE_MS`].
pub const MOST_RESPONSES_MS: [[f64; 2]; 3] = [[0.0, 2.0], [2.0, 5.0], [6.0, 28.0]];

/// STICS paper, Figure 11: the longest response times, ms. `stics`: report after complete, for four
/// requests.
pub const LONGEST_MS: IscsiSticsPair<f64> = both(400.0, 300.0);

/// STICS paper, Figure 6: PostMark transactions per second at 100 Mbit/s, of STICS with "report after complete" over
/// plain iSCSI, for all block sizes and both numbers of files.
pub const POSTMARK_100M: PaperFigure = PaperFigure {
    place: "Figure 6, section 5.3.1",
    what: "transactions by iSCSI's",
    least: 1.6,
    most: 2.1,
};

/// STICS paper, Figure 6: PostMark at 100 Mbit/s, ratio of immediate report to plain iSCSI.
pub const POSTMARK_100M_IMMEDIATE: PaperFigure = PaperFigure {
    place: "Figure 6, section 5.3.1",
    what: "transactions by iSCSI's",
    least: 2.69,
    most: 4.18,
};

/// STICS paper, Figure 7: PostMark at 1 Gbit/s, ratio of report after complete to plain iSCSI.
pub const POSTMARK_1G: PaperFigure = PaperFigure {
    place: "Figure 7, section 5.3.1",
    what: "transactions by iSCSI's",
    least: 1.51,
    most: 1.8,
};

/// STICS paper, Figure 7: PostMark at 1 Gbit/s, ratio of immediate report to plain iSCSI.
pub const POSTMARK_1G_IMMEDIATE: PaperFigure = PaperFigure {
    place: "Figure 7, section 5.3.1",
    what: "transactions by iSCSI's",
    least: 2.49,
    most: 3.07,
};

/// STICS paper, Figure 8: IOzone, random reads and writes of 1 to 32 KiB, synchronous, 100 Mbit/s.
pub const IOZONE: PaperFigure = PaperFigure {
    place: "Figure 8, section 5.3.2",
    what: "throughput by iSCSI's",
    least: 1.51,
    most: 4.3,
};

/// STICS paper, Figures 9 and 10: vxbench on Solaris, random writes and mixed, 100 Mbit/s.
pub const VXBENCH: PaperFigure = PaperFigure {
    place: "Figures 9 and 10, section 5.3.3",
    what: "throughput by iSCSI's",
    least: 1.52,
    most: 1.9,
};

pub const MISPRINTS: &[Misprint] = &[
    Misprint {
        place: "Table 4",
        printed: "839,100 packets of STICS, and section 1 a reduction by 75 percent",
        taken: "Table 3 sums to 1,039,100, which alone gives the printed 944 bytes a packet: 69 percent fewer, and \
                0.310 of iSCSI's instead of 0.250",
    },
    Misprint {
        place: "Table 8",
        printed: "10,0000 transactions",
        taken: "section 5.3.1 has 100,000",
    },
    Misprint {
        place: "Section 5.3.4",
        printed: "Figures 8b and 9c where it reports response times",
        taken: "Figures 11b and 12c are meant",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(of: impl Fn(&IscsiSticsPair<u64>) -> u64) -> f64 {
        PACKETS.iter().map(of).sum::<u64>() as f64
    }

    #[test]
    fn the_corrected_sum_fits_the_other_numbers() {
        assert_eq!(sum(|of| of.iscsi), TOTAL_PACKETS.iscsi);
        assert_eq!(sum(|of| of.stics), TOTAL_PACKETS.stics);
        let mean = |bytes: f64, packets: f64| (bytes / packets).round();
        assert_eq!(mean(BYTES.iscsi, TOTAL_PACKETS.iscsi), BYTES_A_PACKET.iscsi);
        assert_eq!(mean(BYTES.stics, TOTAL_PACKETS.stics), BYTES_A_PACKET.stics);
        assert_ne!(mean(BYTES.stics, TOTAL_PACKETS_PRINTED.stics), BYTES_A_PACKET.stics);
    }

    #[test]
    fn ratios_follow_from_the_counts() {
        let full = |of: fn(&IscsiSticsPair<u64>) -> u64| {
            of(&PACKETS[5]) as f64 / (sum(of) - of(&PACKETS[5]) as f64)
        };
        assert!((full(|of| of.iscsi) - FULL_BY_PARTIAL.iscsi).abs() < 0.005);
        assert!((full(|of| of.stics) - FULL_BY_PARTIAL.stics).abs() < 0.005);
        assert_eq!(REQUESTS.stics - REQUESTS_TO_BLOCK.stics, REQUESTS_FROM_HOST.stics);
        assert_eq!(REQUESTS.iscsi - REQUESTS_TO_BLOCK.iscsi, REQUESTS_FROM_HOST.iscsi);
        let gains = FOUR_TARGETS.map(|row| (row.stics / row.iscsi * 100.0).round() / 100.0);
        assert_eq!(gains, [1.74, 1.6, 1.52, 1.53]);
    }
}

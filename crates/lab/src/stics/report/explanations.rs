//! Sentences that explain the gain of a gateway by measurements without and with the gateway.

use serde::Deserialize as _;

use super::counted;
use crate::{LabSite, MeasuredPoints, rounded, stage::TIME_COUNTED};

/// The names of two points that differ only in the gateway: `plain` has none, `cached` has one.
#[derive(Clone, Copy)]
pub(super) struct GatewayComparison<'a> {
    pub measured: &'a MeasuredPoints<'a>,
    pub plain: &'a str,
    pub cached: &'a str,
}

impl GatewayComparison<'_> {
    /// Returns all explanations of the result, the most important one first.
    pub(super) fn all(self) -> Vec<Option<String>> {
        vec![self.a_write(), self.reads(), self.fits_the_log(), self.busy()]
    }

    /// Compares the time of a write in the gateway with the time of a write at the node, without a
    /// gateway.
    pub(super) fn a_write(self) -> Option<String> {
        let of = |point: &str, figure: &str| {
            self.measured.value(point, figure, "ms").filter(|ms| *ms > 0.0)
        };
        let here = of(self.cached, "gateway cache time_write")?;
        let there = of(self.plain, "node 1 time_write")?;
        Some(format!(
            "A write takes {} ms in the gateway, and {} ms in the node without one.",
            rounded(here),
            rounded(there)
        ))
    }

    /// States the share of reads that the gateway answered from its cache, and the size of the
    /// cache.
    fn reads(self) -> Option<String> {
        let of = |figure: &str| {
            counted(self.measured, self.cached, |name| name == format!("gateway cache {figure}"))
        };
        // With fewer than 20 reads, the share that the cache has answered explains nothing.
        let reads = of("reads").filter(|reads| *reads >= 20.0)?;
        let share = 1.0 - of("reads_lower").unwrap_or(0.0) / reads;
        let dram = self.site()?.gateway?.dram;
        Some(format!(
            "The gateway answers {} % of {} reads, with {} MiB of memory.",
            rounded((share * 100.0).round()),
            rounded(reads),
            rounded((dram >> 20) as f64)
        ))
    }

    /// If all written data fits in the gateway's log, states so: no write then waited for the
    /// remote disk.
    fn fits_the_log(self) -> Option<String> {
        let log = self.site()?.gateway?.log as f64;
        let written = self.measured.value(self.cached, "gateway cache written_bytes", "bytes")?;
        (written > 0.0 && written < log).then(|| {
            let [written, log] = [written, log].map(|bytes| rounded((bytes / 1048576.0).round()));
            format!("All of the {written} MiB of written data fit in its log of {log} MiB: nothing waits for the far disk.")
        })
    }

    /// If the processors were busy for most of the time, states so.
    fn busy(self) -> Option<String> {
        let seconds = self.measured.value(self.cached, TIME_COUNTED, "s")?;
        let record = self.measured.record(self.cached)?;
        let processors: f64 = record.maker.get("processors")?.parse().ok()?;
        let busy = self.measured.value(self.cached, "cpu machine", "s")? / seconds / processors;
        (busy > BUSY).then(|| {
            format!(
                "The machine's {} processors are busy for {} % of the time.",
                rounded(processors),
                rounded((busy * 100.0).round())
            )
        })
    }

    fn site(self) -> Option<LabSite> {
        let site = self.measured.record(self.cached)?.settings.get("site")?;
        LabSite::deserialize(site).ok()
    }
}

/// If the processors are busy for a larger share of the time than this, the report considers them the bottleneck.
const BUSY: f64 = 0.7;

//! Explains results of the report by other measurements of the same run.

use crate::{MeasuredPoints, rounded};

/// How often a workload completes an operation per second: over a link without a delay, and over the same link with a
/// delay.
#[derive(Clone, Copy, Debug)]
pub struct NearFarRates {
    /// Rate over a link without a delay. All costs other than the delay are included in it.
    pub near: f64,
    /// Rate of the workload over the same link with a delay.
    pub far: f64,
}

impl NearFarRates {
    /// Returns two numbers: the time in milliseconds that an operation takes without a delay, and the number of round
    /// trips by which the delay makes it longer.
    fn taken_apart(self, round_trip_ms: f64) -> (f64, f64) {
        let [near, far] = [self.near, self.far].map(|rate| 1000.0 / rate);
        (near, (far - near) / round_trip_ms)
    }
}

/// Explains why the share of local performance that a workload keeps differs from the paper's: compares with the paper
/// the time of an operation without distance, and the number of round trips for which it waits.
pub fn waits(
    one: &str,
    ours: NearFarRates,
    paper: NearFarRates,
    round_trip_ms: f64,
) -> Option<String> {
    let [(own, trips), (own_there, trips_there)] =
        [ours, paper].map(|rates| rates.taken_apart(round_trip_ms));
    if ![own, trips, own_there, trips_there].iter().all(|value| value.is_finite()) {
        return None;
    }
    let told = format!(
        "{one} takes {} ms without distance here and {} ms in the paper, and waits for {} round trips of {round_trip_ms} ms here \
         and {} there",
        rounded(own),
        rounded(own_there),
        rounded(trips),
        rounded(trips_there)
    );
    let which = match (alike(own, own_there), alike(trips, trips_there)) {
        (false, true) => ": its own time makes the difference",
        (true, false) => ": how often it waits makes the difference",
        _ => "",
    };
    Some(format!("{told}{which}."))
}

/// Compares the time of an operation without delay or load here and in the paper. Both follow from
/// the rates per second. Returns `None` if the times are similar.
pub fn own_time(ours: f64, paper: f64) -> Option<String> {
    let [here, there] = [ours, paper].map(|rate| 1000.0 / rate);
    (!alike(here, there)).then(|| {
        format!(
            "Without delay or load an operation takes {} ms here and {} ms in the paper.",
            rounded(here),
            rounded(there)
        )
    })
}

/// Returns true if `a` and `b` differ by at most a factor of two.
fn alike(a: f64, b: f64) -> bool {
    (0.5..=2.0).contains(&(a / b))
}

/// Returns a sentence with an upper bound of the bandwidth that a run has used besides background traffic. The run may
/// have used less, since the link also counts bytes that were sent after the measured time. Returns `None` if the bound
/// exceeds the free bandwidth and therefore shows nothing, or if bytes or time are unknown.
pub fn sent(
    measured: &MeasuredPoints<'_>,
    point: &str,
    rate_mbit_s: f64,
    load: u32,
) -> Option<String> {
    let seconds = measured.value(point, "time", "s")?;
    let way = |way: &str| measured.value(point, &format!("link {way} passed_bytes"), "bytes");
    let bytes = way("near_to_far")?.max(way("far_to_near").unwrap_or(0.0));
    let most = bytes * 8.0 / 1e6 / seconds;
    let left = rate_mbit_s * (1.0 - f64::from(load) / 100.0);
    let bound = if most < left / 2.0 { ": bandwidth is no limit here" } else { "" };
    (most <= left).then(|| {
        format!(
            "At a load of {load} % it sends at most {} of the {} Mbit/s that are free{bound}.",
            rounded(most),
            rounded(left)
        )
    })
}

/// Returns a sentence with the mean time of a write at the node in two points. `points` has the name of each point, and
/// the words that describe it in the sentence.
pub fn writes_at_node(measured: &MeasuredPoints<'_>, points: [(&str, &str); 2]) -> Option<String> {
    let [a, b] = points.map(|(point, with)| {
        let mean = measured.value(point, "node 1 time_write", "ms")?;
        Some(format!("{} ms {with}", rounded(mean)))
    });
    Some(format!("A write takes the node {} and {}.", a?, b?))
}

/// Describes the share of the reads that a gateway has answered from its cache.
pub fn reads_at_gateway(measured: &MeasuredPoints<'_>, point: &str) -> Option<String> {
    let of = |figure: &str| measured.value(point, &format!("gateway cache {figure}"), "");
    let reads = of("reads").filter(|reads| *reads > 0.0)?;
    let share = 1.0 - of("reads_lower").unwrap_or(0.0) / reads;
    Some(format!(
        "Of {} reads that the host's memory did not answer, the gateway answered {} %.",
        rounded(reads),
        rounded((share * 100.0).round())
    ))
}

/// Returns the share of the written bytes that a gateway did not destage, because they were
/// overwritten in its log.
pub fn filtered(measured: &MeasuredPoints<'_>, point: &str) -> Option<f64> {
    let of = |figure: &str| measured.value(point, &format!("gateway cache {figure}"), "bytes");
    let written = of("written_bytes").filter(|bytes| *bytes > 0.0)?;
    Some(1.0 - of("destaged_bytes").unwrap_or(0.0) / written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_divided_into_local_time_and_round_trips() {
        // TPC-C: an operation waits for about as many round trips here as in the paper, but without distance it takes a
        // sixtieth of the paper's time.
        let ours = NearFarRates { near: 700.0, far: 69.4 };
        let paper = NearFarRates { near: 12.25, far: 10.5 };
        let told = waits("A transaction", ours, paper, 16.0).unwrap();
        assert_eq!(
            told,
            "A transaction takes 1.43 ms without distance here and 81.6 ms in the paper, and waits for 0.811 round trips of \
             16 ms here and 0.85 there: its own time makes the difference."
        );
        let often = NearFarRates { near: 700.0, far: 10.0 };
        let told = waits("A transaction", often, ours, 16.0).unwrap();
        assert!(told.ends_with(": how often it waits makes the difference."), "{told}");
        assert_eq!(waits("x", NearFarRates { near: 0.0, far: 1.0 }, paper, 16.0), None);
    }
}

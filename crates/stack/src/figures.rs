//! Statistics of several crates in the form of the control socket.

use control::{
    ClaimStatus, CommandCounts, EnsembleStatus, PathStatus, PduLengths, ResponseTimes, ShareStatus,
};
use fairtcp::PathModel;
use iscsi::PduSizes;
use scsi::{CommandCode, name_of_opcode};
use transport::CongestionStatistics;
use volume::TimeHistogramSnapshot;

/// Converts response times; rounds to tenths of a microsecond.
pub fn times(taken: &TimeHistogramSnapshot) -> ResponseTimes {
    let us = |time: std::time::Duration| (time.as_nanos() as f64 / 100.0).round() / 10.0;
    ResponseTimes {
        count: taken.count(),
        mean_us: us(taken.mean()),
        p50_us: us(taken.quantile(0.5)),
        p90_us: us(taken.quantile(0.9)),
        p99_us: us(taken.quantile(0.99)),
        p999_us: us(taken.quantile(0.999)),
        max_us: us(taken.quantile(1.0)),
        classes_us: taken.classes().map(|(end, count)| (us(end), count)).collect(),
    }
}

/// Converts the counts of commands by code to counts by name.
pub fn commands(counted: &[(CommandCode, u64)]) -> CommandCounts {
    counted.iter().map(|(command, count)| (command_name(*command), *count)).collect()
}

/// Returns the name of a command; its number in hexadecimal if it has no name.
fn command_name(command: CommandCode) -> String {
    match command {
        CommandCode::Opcode(opcode) => name_of_opcode(opcode),
        CommandCode::VariableLength(action) => match osd::ServiceAction::from_code(action) {
            Some(known) => known.name().to_owned(),
            None => format!("7Fh/{action:04X}h"),
        },
    }
}

/// Converts counts of iSCSI messages (PDUs) by length to the form in which `forebay status` reports them.
pub fn sizes(sizes: &PduSizes) -> PduLengths {
    let [below_64, below_128, below_256, below_512, below_1024, from_1024] = sizes.classes;
    let bytes = sizes.bytes;
    PduLengths { below_64, below_128, below_256, below_512, below_1024, from_1024, bytes }
}

/// Converts the state of the ensemble (the shared congestion window) of a session; `None` if the session has none.
pub fn ensemble(congestion: &CongestionStatistics) -> Option<EnsembleStatus> {
    let tenths = |segments: f64| (segments * 10.0).round() / 10.0;
    let block = congestion.ensemble?;
    Some(EnsembleStatus {
        members: block.members,
        cwnd_segments: tenths(block.cwnd),
        ssthresh_segments: block.ssthresh.is_finite().then(|| tenths(block.ssthresh)),
        srtt_us: block.srtt.as_micros() as u64,
        rttvar_us: block.rttvar.as_micros() as u64,
        cuts: block.cuts,
        late_cuts: block.late_cuts,
        undone_cuts: block.undone,
        timeouts: block.timeouts,
        path: block.path.map(|model| path(&model, congestion.segment_bytes)),
    })
}

fn path(model: &PathModel, segment_bytes: u32) -> PathStatus {
    let rate = (model.bandwidth * f64::from(segment_bytes) * 8.0).round() as u64;
    let least_rtt_us = model.least_rtt.as_micros() as u64;
    PathStatus {
        delivery_bits_per_second: Some(rate).filter(|rate| *rate > 0),
        least_rtt_us: Some(least_rtt_us).filter(|us| *us > 0),
        is_crowded: model.is_crowded,
        probes: model.probes,
    }
}

/// Converts the exclusive right of a gateway to write a unit (claim) into the form of the control socket.
pub fn claim(report: scsi::ClaimReport) -> ClaimStatus {
    ClaimStatus {
        owner: report.owner,
        log: report.instance.iter().map(|byte| format!("{byte:02x}")).collect(),
        generation: report.generation,
        held: report.is_held,
        dirty: report.is_dirty,
        dropped: report.is_dropped,
        present: report.is_present,
        confirmed: report.confirmed,
        share: None,
    }
}

/// Converts the claim of one of the gateways that share a unit into the form of the control socket.
pub fn sharer(sharer: unit::Sharer) -> ClaimStatus {
    let standing = sharer.standing;
    let share = ShareStatus {
        silent: standing.is_silent,
        awaited: standing.is_awaited,
        reads: standing.shared,
        writes: standing.exclusive,
        recalled: standing.recalled,
    };
    ClaimStatus { share: Some(share), ..claim(sharer.claim) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn figures_have_names_and_units() {
        let taken = volume::TimeHistogram::default();
        taken.add(Duration::from_micros(100), 2);
        let told = json!(times(&taken.taken()));
        assert_eq!((&told["count"], &told["mean_us"]), (&json!(2), &json!(100.0)));
        assert_eq!(told["classes_us"].as_array().map(Vec::len), Some(1));
        let opcode = CommandCode::Opcode;
        let told = json!(commands(&[(opcode(0x28), 7), (opcode(0xc1), 1)]));
        assert_eq!(told, json!({ "READ(10)": 7, "C1h": 1 }));
        let mut pdus = PduSizes::default();
        pdus.count(100);
        let told = json!(sizes(&pdus));
        assert_eq!((&told["below_128"], &told["bytes"]), (&json!(1), &json!(100)));
    }

    #[test]
    fn a_path_model_is_shown_in_bits_per_second_and_microseconds() {
        let path = |bandwidth, least_rtt| PathModel { bandwidth, least_rtt, ..Default::default() };
        let ensemble = |path: Option<PathModel>| {
            let block = fairtcp::EnsembleControlBlock {
                members: 4,
                cwnd: 63.0,
                path,
                ..Default::default()
            };
            let name = "fairtcp".to_owned();
            super::ensemble(&CongestionStatistics {
                name,
                segment_bytes: 1448,
                ensemble: Some(block),
            })
            .unwrap()
        };
        let known = ensemble(Some(path(8000.0, std::time::Duration::from_micros(4020))));
        let of = known.path.as_ref().unwrap();
        assert_eq!((of.delivery_bits_per_second, of.least_rtt_us), (Some(92_672_000), Some(4020)));
        assert_eq!(known.to_string(), "4 share 63.0 segments, 92.7 Mbit/s, 4.0 ms");
        let new = ensemble(Some(path(0.0, Default::default())));
        let of = new.path.as_ref().unwrap();
        assert_eq!((of.delivery_bits_per_second, of.least_rtt_us), (None, None));
        assert_eq!(new.to_string(), "4 share 63.0 segments");
        for (it, has_path) in [(known, true), (new, true), (ensemble(None), false)] {
            let json = serde_json::to_value(&it).unwrap();
            assert_eq!(json.get("path").is_some(), has_path, "{json}");
            assert_eq!(serde_json::from_value::<EnsembleStatus>(json).unwrap(), it);
        }
    }

    #[test]
    fn object_commands_have_the_names_of_their_service_actions() {
        let object = CommandCode::VariableLength;
        let counted = [
            (CommandCode::Opcode(0x7f), 4),
            (object(0x8885), 6),
            (object(0x888d), 7),
            (object(0x8f7c), 8),
        ];
        let names = [
            ("7Fh/888Dh", 7),
            ("PERFORM SCSI COMMAND", 8),
            ("READ", 6),
            ("VARIABLE LENGTH CDB", 4),
        ];
        let names = names.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(commands(&counted), CommandCounts::from(names));
    }
}

//! The Data-In of READ MAP. The layout is our definition, since the T10 text was not available: a
//! header of 16 bytes (additional length 8, reserved 8), then 24 bytes for each run (MAP TYPE 2,
//! reserved 6, start 8, length 8).

use object::{MapRun, MapRunKind};

use crate::bytes::{put, u16_at, u64_at};

const HEADER: usize = 16;
const RUN: usize = 24;

/// Returns the number of runs that fit into `allocation_length` bytes.
#[must_use]
pub fn runs_within(allocation_length: u64) -> usize {
    let runs = allocation_length.saturating_sub(HEADER as u64) / RUN as u64;
    usize::try_from(runs).unwrap_or(usize::MAX)
}

#[must_use]
pub fn encode_map(runs: &[MapRun]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER + runs.len() * RUN];
    let additional = (bytes.len() - 8) as u64;
    put(&mut bytes, 0, &additional.to_be_bytes());
    for (run, at) in runs.iter().zip((HEADER..).step_by(RUN)) {
        put(&mut bytes, at, &(run.kind as u16).to_be_bytes());
        put(&mut bytes, at + 8, &run.start.to_be_bytes());
        put(&mut bytes, at + 16, &run.length.to_be_bytes());
    }
    bytes
}

/// Parses a map. Returns `None` for a map that is shorter than its header, or has a run of an
/// unknown kind. An incomplete run at the end is left out.
#[must_use]
pub fn parse_map(bytes: &[u8]) -> Option<Vec<MapRun>> {
    let claimed = usize::try_from(u64_at(bytes, 0)?).ok()?.checked_add(8)?;
    let runs = bytes.get(HEADER..claimed.min(bytes.len()))?;
    let run = |run: &[u8]| {
        let kind = match u16_at(run, 0)? {
            1 => MapRunKind::Written,
            2 => MapRunKind::Hole,
            3 => MapRunKind::DamagedData,
            _ => return None,
        };
        Some(MapRun { kind, start: u64_at(run, 8)?, length: u64_at(run, 16)? })
    };
    runs.chunks_exact(RUN).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_decodes_to_the_encoded_runs() {
        let runs = [
            MapRun { kind: MapRunKind::Written, start: 0, length: 4096 },
            MapRun { kind: MapRunKind::Hole, start: 4096, length: 1 << 40 },
            MapRun { kind: MapRunKind::DamagedData, start: 1 << 41, length: 1 },
        ];
        let bytes = encode_map(&runs);
        assert_eq!(bytes.len(), 16 + 3 * 24);
        assert_eq!(parse_map(&bytes).as_deref(), Some(&runs[..]));
        assert_eq!(parse_map(&bytes[..bytes.len() - 1]).map(|runs| runs.len()), Some(2));
        assert_eq!(parse_map(&bytes[..7]), None);
        assert_eq!(parse_map(&[0; 16]).map(|runs| runs.len()), None, "ends within its header");
        let mut unknown = bytes;
        unknown[17] = 9;
        assert_eq!(parse_map(&unknown), None);
    }

    #[test]
    fn the_allocation_length_bounds_the_runs() {
        assert_eq!(runs_within(0), 0);
        assert_eq!(runs_within(39), 0);
        assert_eq!(runs_within(40), 1);
        assert_eq!(runs_within(u64::MAX), ((u64::MAX - 16) / 24) as usize);
    }
}

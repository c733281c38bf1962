//! The stored record of persistent reservations. `docs/formats/state.md` describes its bytes.

use scsi::persistent::ReservationType;

use super::state::{MOST_REGISTRANTS, Path, PersistentReservation, Registrant, ReservationState};

impl ReservationState {
    /// Returns the record. The record is empty if no reservation has to survive a loss of power.
    pub(super) fn to_record(&self) -> Vec<u8> {
        if !self.persist || self.registrants.is_empty() {
            return Vec::new();
        }
        let (kind, holder) = match &self.reservation {
            None => (0, NO_HOLDER),
            Some(held) => {
                let place = |path: &Path| self.registrants.iter().position(|r| r.path == *path);
                let holder = held.holder.as_ref().and_then(place);
                (held.kind as u8, holder.map_or(NO_HOLDER, |place| place as u32))
            }
        };
        let mut bytes = vec![VERSION, kind, 0, 0];
        bytes.extend_from_slice(&holder.to_le_bytes());
        bytes.extend_from_slice(&(self.registrants.len() as u32).to_le_bytes());
        for registrant in &self.registrants {
            let name = registrant.path.initiator.as_bytes();
            bytes.extend_from_slice(&registrant.key.to_le_bytes());
            bytes.extend_from_slice(&registrant.path.target.to_le_bytes());
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name);
        }
        bytes
    }

    /// Parses a stored record of reservations; returns `None` if it is invalid.
    pub(super) fn from_record(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (head, mut rest) = bytes.split_first_chunk::<12>()?;
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (holder, count) = (number(4), number(8) as usize);
        if head[0] != VERSION || count == 0 || count > MOST_REGISTRANTS {
            return None;
        }
        let mut registrants: Vec<Registrant> = Vec::new();
        for _ in 0..count {
            let (fixed, after) = rest.split_first_chunk::<12>()?;
            let (key, tail) = fixed.split_first_chunk::<8>()?;
            let length = usize::from(u16::from_le_bytes([tail[2], tail[3]]));
            let (name, after) = after.split_at_checked(length)?;
            let path = Path {
                initiator: std::str::from_utf8(name).ok()?.into(),
                target: u16::from_le_bytes([tail[0], tail[1]]),
            };
            registrants.push(Registrant { path, key: u64::from_le_bytes(*key) });
            rest = after;
        }
        let reservation = match (head[1], holder) {
            (0, NO_HOLDER) => None,
            (kind, holder) => {
                let kind = ReservationType::from_number(kind)?;
                let holder = match holder {
                    NO_HOLDER => None,
                    place => Some(registrants.get(place as usize)?.path.clone()),
                };
                if holder.is_none() != kind.all_registrants() {
                    return None;
                }
                Some(PersistentReservation { kind, holder })
            }
        };
        rest.is_empty().then_some(Self { registrants, reservation, generation: 0, persist: true })
    }
}

const VERSION: u8 = 1;
/// Stands in place of the index of a registrant if there is no holder, or if all registrants hold the
/// reservation.
const NO_HOLDER: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(number: u16) -> Path {
        Path { initiator: format!("iqn.a,i,0x{number:012x}").into(), target: number }
    }

    fn state(kind: Option<ReservationType>) -> ReservationState {
        let registrants = (1..4).map(|n| Registrant { path: path(n), key: u64::from(n) }).collect();
        let reservation = kind.map(|kind| PersistentReservation {
            kind,
            holder: (!kind.all_registrants()).then(|| path(2)),
        });
        ReservationState { registrants, reservation, generation: 0, persist: true }
    }

    #[test]
    fn records_read_back() {
        for kind in ReservationType::ALL.map(Some).into_iter().chain([None]) {
            let state = state(kind);
            assert_eq!(ReservationState::from_record(&state.to_record()), Some(state));
        }
        let gone = ReservationState { persist: false, ..state(None) };
        assert_eq!(gone.to_record(), []);
        assert_eq!(ReservationState::from_record(&[]), Some(ReservationState::default()));
    }

    #[test]
    fn the_record_byte_by_byte() {
        let mut state = state(Some(ReservationType::ExclusiveAccess));
        state.registrants.truncate(2);
        let bytes = state.to_record();
        assert_eq!(bytes[..12], [1, 3, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[12..24], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 22, 0]);
        assert_eq!(&bytes[24..46], b"iqn.a,i,0x000000000001");
        assert_eq!(bytes.len(), 12 + 2 * (12 + 22));
    }

    #[test]
    fn an_inconsistent_record_is_refused() {
        let good = state(Some(ReservationType::WriteExclusive)).to_record();
        for length in 1..good.len() {
            assert_eq!(ReservationState::from_record(&good[..length]), None, "{length}");
        }
        for (at, byte) in [(0, 2), (1, 2), (1, 7), (4, 3), (8, 0), (8, 200), (10, 1), (24, 0xff)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(ReservationState::from_record(&bytes), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn hostile_records_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ReservationState::from_record(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = ReservationState::from_record(&bytes);
        }
    }
}

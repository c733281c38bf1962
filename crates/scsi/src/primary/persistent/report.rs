//! Parameter data of PERSISTENT RESERVE IN (SPC-4, 6.15.2 to 6.15.5).

use super::{command::ReservationType, transport_id::TransportId};

/// The reservation that READ RESERVATION reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReservationHeld {
    /// The key of the holder; 0 if all registrants hold the reservation.
    pub key: u64,
    pub kind: ReservationType,
}

/// The reservation features in which units differ, for REPORT CAPABILITIES. Every unit supports
/// SPEC_I_PT, ALL_TG_PT, all six types of reservations, and RESERVE and RELEASE in the compatible
/// way (CRH).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities {
    /// PTPL_C: reservations can survive a power loss.
    pub can_persist: bool,
    /// PTPL_A: the present registrations and reservation survive a power loss.
    pub persists: bool,
}

/// A registration, as READ FULL STATUS reports it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FullStatus {
    pub key: u64,
    /// Type of the reservation if this nexus holds the reservation; otherwise `None`.
    pub held: Option<ReservationType>,
    pub target_port: u16,
    pub port: TransportId,
}

/// Encodes the parameter data of READ KEYS. `generation` is PRGENERATION.
#[must_use]
pub fn keys(generation: u32, keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    framed(generation, keys.into_iter().flat_map(u64::to_be_bytes).collect())
}

/// Encodes READ RESERVATION data. `generation` is PRGENERATION.
#[must_use]
pub fn reservation(generation: u32, held: Option<ReservationHeld>) -> Vec<u8> {
    let mut rest = Vec::new();
    if let Some(held) = held {
        rest.extend_from_slice(&held.key.to_be_bytes());
        rest.extend_from_slice(&[0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
    }
    framed(generation, rest)
}

/// Encodes READ FULL STATUS data. `generation` is PRGENERATION.
#[must_use]
pub fn full_status(generation: u32, all: impl IntoIterator<Item = FullStatus>) -> Vec<u8> {
    let mut rest = Vec::new();
    for status in all {
        let port = status.port.to_bytes();
        rest.extend_from_slice(&status.key.to_be_bytes());
        let kind = status.held.map_or(0, |kind| kind as u8);
        rest.extend_from_slice(&[0, 0, 0, 0, u8::from(status.held.is_some()), kind, 0, 0, 0, 0]);
        rest.extend_from_slice(&status.target_port.to_be_bytes());
        rest.extend_from_slice(&(port.len() as u32).to_be_bytes());
        rest.extend_from_slice(&port);
    }
    framed(generation, rest)
}

impl Capabilities {
    /// Encodes the response to REPORT CAPABILITIES.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let crh_sip_atp = 0x10 | 0x08 | 0x04;
        // TMV=1: the type mask below is valid. ALLOW COMMANDS=011b: TEST UNIT READY is allowed
        // under any reservation; MODE SENSE and similar commands (SPC-4, table 210) are allowed
        // under write exclusive ones.
        let tmv_allow = 0x80 | 0x30;
        let types = ReservationType::ALL.iter().fold(0u16, |mask, kind| {
            // In the mask, bit n of the first byte stands for type n, and bit 0 of the second byte
            // for type 8.
            let number = *kind as u16;
            mask | if number < 8 { 0x100 << number } else { 1 << (number - 8) }
        });
        let [first, second] = types.to_be_bytes();
        let can = crh_sip_atp | u8::from(self.can_persist);
        vec![0, 8, can, tmv_allow | u8::from(self.persists), first, second, 0, 0]
    }
}

fn framed(generation: u32, rest: Vec<u8>) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(rest.len() as u32).to_be_bytes());
    bytes.extend(rest);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_byte_by_byte() {
        assert_eq!(keys(3, [1, 2])[..16], [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(reservation(1, None), [0, 0, 0, 1, 0, 0, 0, 0]);
        let held = ReservationHeld { key: 7, kind: ReservationType::ExclusiveAccess };
        let bytes = reservation(1, Some(held));
        assert_eq!(bytes[4..], [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 3, 0, 0]);
        let capabilities = Capabilities { can_persist: true, persists: true };
        assert_eq!(capabilities.to_bytes(), [0, 8, 0x1d, 0xb1, 0xea, 0x01, 0, 0]);
    }

    #[test]
    fn full_status_names_port_and_holder() {
        let status = FullStatus {
            key: 9,
            held: Some(ReservationType::WriteExclusive),
            target_port: 2,
            port: TransportId("iqn.a,i,0x00023d000001".into()),
        };
        let bytes = full_status(5, [status.clone()]);
        assert_eq!(bytes[..8], [0, 0, 0, 5, 0, 0, 0, 52]);
        assert_eq!(bytes[8..32], {
            let mut expected = [0; 24];
            (expected[7], expected[12], expected[13]) = (9, 1, 1);
            (expected[19], expected[23]) = (2, 28);
            expected
        });
        assert_eq!(bytes[32..], status.port.to_bytes());
    }
}

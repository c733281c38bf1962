//! TransportIDs: how parameter data names an initiator port (SPC-4, 7.6.4).

use crate::{
    field::{u8_at, u16_at},
    plain::is_plain,
};

/// The name of an iSCSI initiator port (SPC-4, 7.6.4.6): iSCSI name, `,i,0x`, and the ISID in
/// twelve hexadecimal digits (RFC 7143, 3.4.3). The other format of a TransportID has no ISID and
/// names a device with any number of ports; it is not supported.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct TransportId(pub String);

impl TransportId {
    /// Encodes the TransportID: a header of four bytes, then the name, padded with NULs to a
    /// multiple of four.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let name = &self.0.as_bytes()[..self.0.len().min(LONGEST_NAME)];
        let length = (name.len() + 1).next_multiple_of(4).max(SHORTEST);
        let [high, low] = (length as u16).to_be_bytes();
        let mut bytes = vec![WITH_ISID | ISCSI, 0, high, low];
        bytes.extend_from_slice(name);
        bytes.resize(4 + length, 0);
        bytes
    }

    /// Parses the TransportID at the start of `bytes`. Returns it and the bytes after it. Returns
    /// `None` if the TransportID is truncated, is of another protocol or format, or does not name
    /// an initiator port.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let length = usize::from(u16_at(bytes, 2)?);
        let (body, rest) = bytes.get(4..)?.split_at_checked(length)?;
        if u8_at(bytes, 0)? != WITH_ISID | ISCSI || length < SHORTEST || length % 4 != 0 {
            return None;
        }
        let end = body.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&body[..end]).ok()?;
        if end > LONGEST_NAME || body[end..].iter().any(|byte| *byte != 0) {
            return None;
        }
        let (device, isid) = name.split_once(",i,0x")?;
        let is_isid = isid.len() == 12 && isid.bytes().all(|digit| digit.is_ascii_hexdigit());
        if device.is_empty() || !device.chars().all(is_plain) || !is_isid {
            return None;
        }
        Some((Self(format!("{device},i,0x{}", isid.to_ascii_lowercase())), rest))
    }
}

/// The value of TPID FORMAT for the name of an initiator port (01b).
const WITH_ISID: u8 = 0x40;
/// The value of PROTOCOL IDENTIFIER for iSCSI.
const ISCSI: u8 = 0x05;
/// The least valid value of the field ADDITIONAL LENGTH.
const SHORTEST: usize = 20;
/// The longest name of an initiator port: an iSCSI name of 223 bytes, the separator `,i,0x` and an
/// ISID of twelve digits.
const LONGEST_NAME: usize = 223 + 5 + 12;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_port_reads_back() {
        let port = TransportId("iqn.2026-11.io.forebay:host,i,0x00023d000001".into());
        let bytes = port.to_bytes();
        assert_eq!(bytes[..8], [0x45, 0, 0, 48, b'i', b'q', b'n', b'.']);
        assert_eq!(bytes.len(), 52);
        let two = [bytes.clone(), bytes.clone()].concat();
        assert_eq!(TransportId::from_bytes(&two), Some((port.clone(), &bytes[..])));
        let upper = TransportId("iqn.a,i,0x0002AB000001".into()).to_bytes();
        assert_eq!(TransportId::from_bytes(&upper).unwrap().0.0, "iqn.a,i,0x0002ab000001");
    }

    #[test]
    fn transport_ids_that_are_no_iscsi_port_are_refused() {
        let good = TransportId("iqn.a,i,0x00023d000001".into()).to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(TransportId::from_bytes(&good).is_some());
        assert_eq!(TransportId::from_bytes(&with(0, 0x05)), None, "a device, not a port");
        assert_eq!(TransportId::from_bytes(&with(0, 0x46)), None, "SAS");
        assert_eq!(TransportId::from_bytes(&with(3, 200)), None, "longer than what came");
        assert_eq!(TransportId::from_bytes(&with(3, 16)), None, "too short");
        assert_eq!(TransportId::from_bytes(&with(9, b'x')), None, "no separator");
        assert_eq!(TransportId::from_bytes(&with(4, 0xff)), None, "not UTF-8");
        assert_eq!(TransportId::from_bytes(&with(27, 1)), None, "bytes behind the name");
        assert_eq!(TransportId::from_bytes(&good[..3]), None);
    }

    proptest! {
        #[test]
        fn hostile_transport_ids_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = 0x45;
            }
            if let Some((port, rest)) = TransportId::from_bytes(&bytes) {
                prop_assert!(rest.len() < bytes.len());
                let again = port.to_bytes();
                prop_assert_eq!(TransportId::from_bytes(&again), Some((port, &[][..])));
            }
        }
    }
}

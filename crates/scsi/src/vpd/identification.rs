//! Page 83h: device identification (SPC-4, 7.8.6).

use super::page::{framed, unframed};

/// Names of the logical unit, of its target, and of the target port that received the INQUIRY.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeviceIdentification(pub Vec<Designator>);

/// A designator: one of the names of a logical unit, a target or a target port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Designator {
    pub association: Association,
    pub kind: DesignatorKind,
    /// True for ASCII or UTF-8 text, false for a binary name.
    pub text: bool,
    /// PROTOCOL IDENTIFIER for names of ports and targets; 5 is iSCSI.
    pub protocol: Option<u8>,
    /// The bytes of the name, at most 255.
    pub name: Vec<u8>,
}

/// ASSOCIATION (SPC-4, table 502). The parser skips designators with the reserved value 3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Association {
    LogicalUnit = 0,
    TargetPort = 1,
    Target = 2,
}

/// The field DESIGNATOR TYPE (SPC-4, table 503).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DesignatorKind {
    VendorSpecific,
    T10VendorId,
    Eui64,
    Naa,
    RelativeTargetPort,
    TargetPortGroup,
    LogicalUnitGroup,
    Md5,
    ScsiNameString,
    /// A designator type that SPC-4 does not define: 9 to 15.
    Other(u8),
}

impl DeviceIdentification {
    pub const PAGE: u8 = 0x83;

    /// Encodes page 83h with its header.
    ///
    /// # Panics
    /// If a name is longer than 255 bytes, or the page longer than 65,535.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        for designator in &self.0 {
            designator.append_to(&mut rest);
        }
        framed(Self::PAGE, &rest)
    }

    /// Parses page 83h, up to the first truncated designator. Skips designators with an unknown
    /// association. Returns `None` for another page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = unframed(Self::PAGE, bytes)?;
        let mut designators = Vec::new();
        while let [set, kind, _, length, body @ ..] = rest {
            let Some((name, after)) = body.split_at_checked(usize::from(*length)) else {
                break;
            };
            rest = after;
            let association = match kind >> 4 & 0x03 {
                0 => Association::LogicalUnit,
                1 => Association::TargetPort,
                2 => Association::Target,
                _ => continue,
            };
            designators.push(Designator {
                association,
                kind: DesignatorKind::from_number(kind & 0x0f),
                text: matches!(set & 0x0f, 2 | 3),
                protocol: (kind & 0x80 != 0).then_some(set >> 4),
                name: name.to_vec(),
            });
        }
        Some(Self(designators))
    }

    /// Returns the best name of the logical unit: its NAA name, EUI-64, SCSI name string or T10
    /// vendor identification, in this order of preference. Skips empty names.
    #[must_use]
    pub fn logical_unit(&self) -> Option<&Designator> {
        use DesignatorKind::{Eui64, Naa, ScsiNameString, T10VendorId};
        [Naa, Eui64, ScsiNameString, T10VendorId].into_iter().find_map(|kind| {
            self.0.iter().find(|d| {
                d.association == Association::LogicalUnit && d.kind == kind && !d.name.is_empty()
            })
        })
    }
}

impl Designator {
    /// Returns an NAA designator of the logical unit.
    #[must_use]
    pub fn naa(name: &[u8]) -> Self {
        Self {
            association: Association::LogicalUnit,
            kind: DesignatorKind::Naa,
            text: false,
            protocol: None,
            name: name.to_vec(),
        }
    }

    /// Returns a T10 vendor identification designator of the logical unit: the eight characters of
    /// the vendor, followed by an identifier that the vendor keeps unique. Truncates it to 255
    /// bytes.
    #[must_use]
    pub fn t10(vendor: [u8; 8], unique: &str) -> Self {
        let mut name = vendor.to_vec();
        name.extend_from_slice(unique.as_bytes());
        name.truncate(255);
        Self {
            association: Association::LogicalUnit,
            kind: DesignatorKind::T10VendorId,
            text: true,
            protocol: None,
            name,
        }
    }

    /// Returns a designator with the iSCSI name of a target or a target port (SPC-4, 7.8.6.10),
    /// padded with one to four NULs to a multiple of four bytes. Truncates `text` to 251 bytes.
    #[must_use]
    pub fn iscsi_name(association: Association, text: &str) -> Self {
        let mut name: Vec<u8> = text.bytes().take(251).collect();
        name.push(0);
        name.resize(name.len().next_multiple_of(4), 0);
        Self {
            association,
            kind: DesignatorKind::ScsiNameString,
            text: true,
            protocol: Some(ISCSI),
            name,
        }
    }

    /// Returns a designator with the number of the target port that received the INQUIRY (SPC-4,
    /// 7.8.6.6).
    #[must_use]
    pub fn relative_target_port(port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        Self {
            association: Association::TargetPort,
            kind: DesignatorKind::RelativeTargetPort,
            text: false,
            protocol: Some(ISCSI),
            name: vec![0, 0, high, low],
        }
    }

    /// Returns a designator with the number of the target port group of the port that received the
    /// INQUIRY (SPC-4, 7.8.6.7).
    #[must_use]
    pub fn target_port_group(group: u16) -> Self {
        let [high, low] = group.to_be_bytes();
        Self {
            kind: DesignatorKind::TargetPortGroup,
            name: vec![0, 0, high, low],
            ..Self::relative_target_port(0)
        }
    }

    pub(super) fn append_to(&self, bytes: &mut Vec<u8>) {
        // The values of CODE SET: 3 is UTF-8, which SCSI name strings use; 2 is ASCII; 1 is binary.
        let set = match (self.text, self.kind) {
            (true, DesignatorKind::ScsiNameString) => 3,
            (true, _) => 2,
            (false, _) => 1,
        };
        let valid = if self.protocol.is_some() { 0x80 } else { 0 };
        bytes.push(self.protocol.unwrap_or(0) << 4 | set);
        bytes.push(valid | (self.association as u8) << 4 | self.kind.number());
        bytes.push(0);
        bytes.push(u8::try_from(self.name.len()).expect("a name has at most 255 bytes"));
        bytes.extend_from_slice(&self.name);
    }
}

impl DesignatorKind {
    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::VendorSpecific,
            1 => Self::T10VendorId,
            2 => Self::Eui64,
            3 => Self::Naa,
            4 => Self::RelativeTargetPort,
            5 => Self::TargetPortGroup,
            6 => Self::LogicalUnitGroup,
            7 => Self::Md5,
            8 => Self::ScsiNameString,
            other => Self::Other(other & 0x0f),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::VendorSpecific => 0,
            Self::T10VendorId => 1,
            Self::Eui64 => 2,
            Self::Naa => 3,
            Self::RelativeTargetPort => 4,
            Self::TargetPortGroup => 5,
            Self::LogicalUnitGroup => 6,
            Self::Md5 => 7,
            Self::ScsiNameString => 8,
            Self::Other(number) => number & 0x0f,
        }
    }
}

/// The value of PROTOCOL IDENTIFIER for iSCSI (SPC-4, table 441).
const ISCSI: u8 = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn designators_of_the_unit_are_ordered_best_first() {
        let page = DeviceIdentification(vec![
            Designator::iscsi_name(Association::Target, "iqn.2026-11.io.forebay:a"),
            Designator::t10(*b"FOREBAY ", "0001"),
            Designator::naa(&[0x60; 16]),
            Designator::relative_target_port(1),
            Designator::target_port_group(2),
        ]);
        let read = DeviceIdentification::from_bytes(&page.to_bytes()).unwrap();
        assert_eq!(read, page);
        assert_eq!(read.logical_unit(), Some(&page.0[2]));
        let target = &page.to_bytes()[4..];
        assert_eq!(target[..4], [0x53, 0xa8, 0, 28]);
        assert_eq!(target[31], 0);
    }

    #[test]
    fn a_designator_with_a_wrong_length_ends_the_list() {
        let mut bytes = DeviceIdentification(vec![Designator::naa(&[1; 8])]).to_bytes();
        bytes[7] = 9;
        assert_eq!(DeviceIdentification::from_bytes(&bytes), Some(DeviceIdentification(vec![])));
    }

    proptest! {
        #[test]
        fn hostile_pages_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(page) = bytes.get_mut(1) {
                *page = 0x83;
            }
            if let Some(page) = DeviceIdentification::from_bytes(&bytes) {
                prop_assert_eq!(page.0.iter().map(|d| d.name.len() + 4).sum::<usize>() <= bytes.len(), true);
                let again = DeviceIdentification::from_bytes(&page.to_bytes());
                prop_assert_eq!(again, Some(page));
            }
        }
    }
}

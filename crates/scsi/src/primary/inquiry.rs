//! The standard INQUIRY data of a logical unit (SPC-4, 6.6.2).

use crate::field::{array_at, u16_at};

/// Standard INQUIRY data of a logical unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StandardInquiry {
    /// PERIPHERAL QUALIFIER, 0 to 7. 0: a unit is accessible; 1: the LUN could have a unit, but has
    /// none; 3: the LUN cannot have a unit.
    pub qualifier: u8,
    /// PERIPHERAL DEVICE TYPE, 0 to 31. 0: direct access block device; 17: [`OBJECT_STORAGE`]; 31:
    /// unknown or no device type.
    pub device_type: u8,
    /// RMB: the medium can be removed.
    pub removable: bool,
    /// VERSION field: 5 for SPC-3, 6 for SPC-4.
    pub version: u8,
    /// HISUP: LUNs are assigned in the hierarchical form of REPORT LUNS.
    pub hierarchical_luns: bool,
    /// CMDQUE bit: the unit accepts several commands at a time.
    pub command_queueing: bool,
    /// TPGS, 0 to 3: asymmetric logical unit access is managed implicitly (bit 0), explicitly (bit
    /// 1).
    pub target_port_groups: u8,
    /// PROTECT: the unit supports protection information.
    pub protect: bool,
    /// T10 VENDOR IDENTIFICATION: ASCII, padded with spaces.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION: ASCII, padded with spaces.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL: ASCII, padded with spaces.
    pub revision: [u8; 4],
    /// VERSION DESCRIPTORS: the standards that the unit claims to follow; zero for an unused entry.
    pub version_descriptors: [u16; 8],
}

/// Version descriptor of SAM-5, without the version of the document.
pub const SAM_5: u16 = 0x00a0;
/// Version descriptor of iSCSI, without the version of the document.
pub const ISCSI: u16 = 0x0960;
/// Version descriptor of SPC-4, without the version of the document.
pub const SPC_4: u16 = 0x0460;
/// Version descriptor of SPC-3, without the version of the document.
pub const SPC_3: u16 = 0x0300;
/// Version descriptor of SBC-3, without the version of the document.
pub const SBC_3: u16 = 0x04c0;
/// Version descriptor of OSD-2, without the version of the document.
pub const OSD_2: u16 = 0x0440;
/// PERIPHERAL DEVICE TYPE of an object storage device.
pub const OBJECT_STORAGE: u8 = 0x11;

impl StandardInquiry {
    /// Returns standard INQUIRY data for a LUN that has no unit: byte 0 is 7Fh (SPC-4, 6.6.2).
    #[must_use]
    pub fn no_unit(vendor: [u8; 8], product: [u8; 16], revision: [u8; 4]) -> Self {
        Self { qualifier: 3, device_type: 31, ..Self::disk(vendor, product, revision) }
    }

    /// Returns standard INQUIRY data of an iSCSI block device with command queueing that follows
    /// SBC-3, SPC-4 and SAM-5.
    #[must_use]
    pub fn disk(vendor: [u8; 8], product: [u8; 16], revision: [u8; 4]) -> Self {
        let version_descriptors = [SAM_5, ISCSI, SPC_4, SBC_3, 0, 0, 0, 0];
        Self { version_descriptors, ..Self::device(0, vendor, product, revision) }
    }

    /// Returns standard INQUIRY data of an iSCSI object storage device with command queueing that
    /// follows OSD-2, SPC-4 and SAM-5.
    #[must_use]
    pub fn object_storage(vendor: [u8; 8], product: [u8; 16], revision: [u8; 4]) -> Self {
        let version_descriptors = [SAM_5, ISCSI, SPC_4, OSD_2, 0, 0, 0, 0];
        Self { version_descriptors, ..Self::device(OBJECT_STORAGE, vendor, product, revision) }
    }

    /// Returns standard INQUIRY data of an iSCSI device with command queueing that follows SPC-4
    /// and SAM-5. `device_type` is 0 to 31.
    #[must_use]
    pub fn device(device_type: u8, vendor: [u8; 8], product: [u8; 16], revision: [u8; 4]) -> Self {
        Self {
            qualifier: 0,
            device_type,
            removable: false,
            version: 6,
            hierarchical_luns: true,
            command_queueing: true,
            target_port_groups: 0,
            protect: false,
            vendor,
            product,
            revision,
            version_descriptors: [SAM_5, ISCSI, SPC_4, 0, 0, 0, 0, 0],
        }
    }

    /// If `older`, claims SPC-3 instead of SPC-4.
    #[must_use]
    pub fn with_spc_3(mut self, older: bool) -> Self {
        if older {
            self.version = 5;
            for descriptor in self.version_descriptors.iter_mut().filter(|d| **d == SPC_4) {
                *descriptor = SPC_3;
            }
        }
        self
    }

    /// Returns byte 0 of standard INQUIRY data and of every VPD page: qualifier and device type.
    #[must_use]
    pub const fn peripheral(&self) -> u8 {
        self.qualifier << 5 | self.device_type & 0x1f
    }

    /// Encodes the standard INQUIRY data, 96 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        bytes[0] = self.peripheral();
        bytes[1] = u8::from(self.removable) << 7;
        bytes[2] = self.version;
        bytes[3] = u8::from(self.hierarchical_luns) << 4 | RESPONSE_DATA_FORMAT;
        bytes[4] = (LENGTH - 5) as u8;
        bytes[5] = (self.target_port_groups & 0x03) << 4 | u8::from(self.protect);
        bytes[7] = u8::from(self.command_queueing) << 1;
        bytes[8..16].copy_from_slice(&self.vendor);
        bytes[16..32].copy_from_slice(&self.product);
        bytes[32..36].copy_from_slice(&self.revision);
        for (place, descriptor) in bytes[58..74].chunks_exact_mut(2).zip(self.version_descriptors) {
            place.copy_from_slice(&descriptor.to_be_bytes());
        }
        bytes
    }

    /// Parses standard INQUIRY data that another target returned. Returns `None` for fewer than 36
    /// bytes, which every version of the standard requires. Missing version descriptors become
    /// zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut version_descriptors = [0; 8];
        for (index, descriptor) in version_descriptors.iter_mut().enumerate() {
            *descriptor = u16_at(bytes, 58 + 2 * index).unwrap_or(0);
        }
        let revision = array_at(bytes, 32)?;
        Some(Self {
            qualifier: bytes[0] >> 5,
            device_type: bytes[0] & 0x1f,
            removable: bytes[1] & 0x80 != 0,
            version: bytes[2],
            hierarchical_luns: bytes[3] & 0x10 != 0,
            command_queueing: bytes[7] & 0x02 != 0,
            target_port_groups: bytes[5] >> 4 & 0x03,
            protect: bytes[5] & 0x01 != 0,
            vendor: array_at(bytes, 8)?,
            product: array_at(bytes, 16)?,
            revision,
            version_descriptors,
        })
    }
}

/// Converts text to `N` bytes as SPC-4, 4.4.1 requires: printable ASCII, truncated or padded with
/// spaces. A character that is not printable ASCII becomes a question mark.
#[must_use]
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    for (byte, character) in bytes.iter_mut().zip(text.chars()) {
        *byte = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
    }
    bytes
}

/// Value of the field RESPONSE DATA FORMAT; the standards define no other value.
const RESPONSE_DATA_FORMAT: u8 = 2;
/// Length in bytes of standard INQUIRY data without the vendor specific part.
const LENGTH: usize = 96;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn standard_inquiry_data_lists_the_standards() {
        let bytes =
            StandardInquiry::disk(ascii("FOREBAY"), ascii("VOLUME"), ascii("0.1")).to_bytes();
        assert_eq!(bytes.len(), 96);
        assert_eq!(bytes[..8], [0, 0, 6, 0x12, 91, 0, 0, 2]);
        assert_eq!(&bytes[8..36], b"FOREBAY VOLUME          0.1 ");
        assert_eq!(bytes[58..68], [0, 0xa0, 9, 0x60, 4, 0x60, 4, 0xc0, 0, 0]);
        let older = StandardInquiry::from_bytes(&bytes).unwrap().with_spc_3(true).to_bytes();
        assert_eq!((older[2], &older[62..64]), (5, &[3, 0][..]));
    }

    #[test]
    fn an_object_storage_device_has_its_type_and_standard() {
        let inquiry = StandardInquiry::object_storage(ascii("A"), ascii("B"), ascii("C"));
        let bytes = inquiry.to_bytes();
        assert_eq!(bytes[..8], [0x11, 0, 6, 0x12, 91, 0, 0, 2]);
        assert_eq!(bytes[58..68], [0, 0xa0, 9, 0x60, 4, 0x60, 4, 0x40, 0, 0]);
        assert_eq!(StandardInquiry::from_bytes(&bytes), Some(inquiry));
    }

    #[test]
    fn text_is_made_printable() {
        assert_eq!(&ascii::<6>("a\u{0}é~long"), b"a??~lo");
    }

    proptest! {
        #[test]
        fn hostile_inquiry_data_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            match StandardInquiry::from_bytes(&bytes) {
                None => prop_assert!(bytes.len() < 36),
                Some(inquiry) => {
                    prop_assert_eq!(StandardInquiry::from_bytes(&inquiry.to_bytes()), Some(inquiry));
                }
            }
        }
    }
}

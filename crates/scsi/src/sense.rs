//! Sense data, which says why a command ended with CHECK CONDITION (SPC-4, 4.5): values, names,
//! encoding in fixed and in descriptor format.

use crate::field::{u16_at, u32_at, u64_at};

/// Sense data: the sense key, the additional sense code (ASC) with its qualifier (ASCQ), and the
/// optional fields that we use.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[error("{}{key:?}, asc/ascq {asc:02x}/{ascq:02x}", if *.deferred { "deferred " } else { "" })]
pub struct Sense {
    pub key: SenseKey,
    pub asc: u8,
    pub ascq: u8,
    /// The INFORMATION field; block commands put the first LBA in error there.
    pub information: Option<u64>,
    /// The field of the CDB or of the parameter list that ILLEGAL REQUEST is about.
    pub field: Option<FieldPointer>,
    /// PROGRESS INDICATION: the progress of a running operation in units of 1/65,536. Valid with NO
    /// SENSE and NOT READY.
    pub progress: Option<u16>,
    /// True if [`Sense::to_bytes`] uses descriptor format (D_SENSE=1) even if fixed format could
    /// hold all fields.
    pub descriptor_format: bool,
    /// True if the error is about an earlier command that had ended with GOOD, for example because
    /// writing cached data failed. The command that ends with a deferred error was not executed
    /// (SPC-4, 4.5.7).
    pub deferred: bool,
}

/// Sense key specific data of ILLEGAL REQUEST (SPC-4, 4.5.2.4.2): the position of the invalid
/// field.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FieldPointer {
    /// True if the field is in the CDB, false if it is in the parameter data.
    pub in_cdb: bool,
    /// Offset of the first byte in error.
    pub byte: u16,
    /// The most significant bit in error, 0 to 7; `None` if only the byte is reported.
    pub bit: Option<u8>,
}

/// The sense keys, which say what kind of error occurred (SPC-4, table 48).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum SenseKey {
    NoSense = 0x0,
    RecoveredError = 0x1,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    BlankCheck = 0x8,
    VendorSpecific = 0x9,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    VolumeOverflow = 0xd,
    Miscompare = 0xe,
    Completed = 0xf,
}

impl SenseKey {
    /// Returns the sense key in the low four bits of a byte; `None` for 0Ch, which is obsolete.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte & 0x0f {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xa => Self::CopyAborted,
            0xb => Self::AbortedCommand,
            0xd => Self::VolumeOverflow,
            0xe => Self::Miscompare,
            0xf => Self::Completed,
            _ => return None,
        })
    }
}

/// The sense data that Forebay returns, with the names of SPC-4, annex F.
impl Sense {
    pub const NO_SENSE: Self = Self::new(SenseKey::NoSense, 0x00, 0x00);
    /// The gateway is fenced: another gateway has taken over the data cached here, and an operator
    /// must act.
    pub const MANUAL_INTERVENTION_REQUIRED: Self = Self::new(SenseKey::NotReady, 0x04, 0x03);
    /// A sanitize operation is running; see [`Sense::with_progress`].
    pub const SANITIZE_IN_PROGRESS: Self = Self::new(SenseKey::NotReady, 0x04, 0x1b);
    pub const WRITE_ERROR: Self = Self::new(SenseKey::MediumError, 0x0c, 0x00);
    pub const UNRECOVERED_READ_ERROR: Self = Self::new(SenseKey::MediumError, 0x11, 0x00);
    /// A sanitize operation failed: some blocks may hold neither their old data nor sanitized data.
    pub const SANITIZE_COMMAND_FAILED: Self = Self::new(SenseKey::MediumError, 0x31, 0x03);
    /// The storage below the unit failed to execute the command.
    pub const INTERNAL_TARGET_FAILURE: Self = Self::new(SenseKey::HardwareError, 0x44, 0x00);
    /// A copy with the same list identifier is still running.
    pub const OPERATION_IN_PROGRESS: Self = Self::new(SenseKey::IllegalRequest, 0x00, 0x16);
    /// The write data is not a whole number of blocks, or not as long as the command requires.
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Self =
        Self::new(SenseKey::IllegalRequest, 0x0e, 0x03);
    /// The parameter list is shorter than its length fields say, or than the command requires.
    pub const PARAMETER_LIST_LENGTH_ERROR: Self = Self::new(SenseKey::IllegalRequest, 0x1a, 0x00);
    pub const INVALID_COMMAND_OPERATION_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x20, 0x00);
    /// The command addresses blocks beyond the last block.
    pub const LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE: Self =
        Self::new(SenseKey::IllegalRequest, 0x21, 0x00);
    /// The ROD token was not made by this target.
    pub const TOKEN_UNKNOWN: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x04);
    /// The data of the ROD token was overwritten after the token was made.
    pub const TOKEN_REVOKED: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x06);
    /// The ROD token was unused for longer than its inactivity timeout.
    pub const TOKEN_EXPIRED: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x07);
    /// The CDB has an invalid field. [`Sense::invalid_field_in_cdb`] adds a pointer to the field.
    pub const INVALID_FIELD_IN_CDB: Self = Self::new(SenseKey::IllegalRequest, 0x24, 0x00);
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Self = Self::new(SenseKey::IllegalRequest, 0x25, 0x00);
    /// The parameter list has an invalid field. [`Sense::invalid_field_in_parameter_list`] adds a
    /// pointer to the field.
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x00);
    /// The list of EXTENDED COPY has more than [`limits::CSCDS`](crate::copy::limits::CSCDS) CSCD
    /// descriptors.
    pub const TOO_MANY_TARGET_DESCRIPTORS: Self = Self::new(SenseKey::IllegalRequest, 0x26, 0x06);
    /// The list of EXTENDED COPY has a CSCD descriptor of a type other than E4h.
    pub const UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x07);
    /// The list of EXTENDED COPY has more than [`limits::SEGMENTS`](crate::copy::limits::SEGMENTS)
    /// segment descriptors.
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Self = Self::new(SenseKey::IllegalRequest, 0x26, 0x08);
    /// The list of EXTENDED COPY has a segment descriptor of a type other than 02h.
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x09);
    /// RELEASE of PERSISTENT RESERVE OUT named a type that differs from the type of the
    /// reservation.
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x04);
    pub const MEDIUM_NOT_PRESENT: Self = Self::new(SenseKey::NotReady, 0x3a, 0x00);
    /// An initiator has prevented the removal of the medium.
    pub const MEDIUM_REMOVAL_PREVENTED: Self = Self::new(SenseKey::IllegalRequest, 0x53, 0x02);
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Self =
        Self::new(SenseKey::IllegalRequest, 0x55, 0x04);
    /// The unit does not save mode pages.
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Self =
        Self::new(SenseKey::IllegalRequest, 0x39, 0x00);
    /// Reported with the first command of a nexus: power on, reset, or bus device reset occurred.
    pub const POWER_ON_OCCURRED: Self = Self::new(SenseKey::UnitAttention, 0x29, 0x00);
    /// The target was reset.
    pub const SCSI_BUS_RESET_OCCURRED: Self = Self::new(SenseKey::UnitAttention, 0x29, 0x02);
    /// The logical unit was reset.
    pub const BUS_DEVICE_RESET_FUNCTION_OCCURRED: Self =
        Self::new(SenseKey::UnitAttention, 0x29, 0x03);
    /// The medium was removed and inserted again.
    pub const MEDIUM_MAY_HAVE_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x28, 0x00);
    /// Another nexus changed mode parameters.
    pub const MODE_PARAMETERS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x01);
    /// Another nexus set the clock.
    pub const TIMESTAMP_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x10);
    /// Another nexus changed the identifying information.
    pub const DEVICE_IDENTIFIER_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x3f, 0x05);
    /// Another nexus removed the registration of this nexus and cleared the reservation.
    pub const RESERVATIONS_PREEMPTED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x03);
    /// Another nexus released the reservation or changed its type.
    pub const RESERVATIONS_RELEASED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x04);
    /// Another nexus removed the registration of this nexus.
    pub const REGISTRATIONS_PREEMPTED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x05);
    /// A thin volume uses more than its soft threshold.
    pub const THIN_PROVISIONING_SOFT_THRESHOLD_REACHED: Self =
        Self::new(SenseKey::UnitAttention, 0x38, 0x07);
    /// Logical units were added to the target or removed from it.
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x3f, 0x0e);
    /// The size of the volume changed.
    pub const CAPACITY_DATA_HAS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x09);
    /// Another nexus cleared the task set.
    pub const COMMANDS_CLEARED_BY_ANOTHER_INITIATOR: Self =
        Self::new(SenseKey::UnitAttention, 0x2f, 0x00);
    /// Commands were aborted because their iSCSI connection ended (RFC 7143, 11.14.5).
    pub const SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT: Self =
        Self::new(SenseKey::UnitAttention, 0x47, 0x7f);
    /// The volume is read-only.
    pub const WRITE_PROTECTED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x00);
    /// Another nexus holds a claim on the unit: only its owner, the gateway with the unit's dirty
    /// data, may write.
    pub const LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED: Self =
        Self::new(SenseKey::DataProtect, 0x27, 0x02);
    /// Vendor specific: a later opening of the same log has claimed the unit, so this session is
    /// fenced.
    pub const CLAIM_FENCED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x80);
    /// Vendor specific: another log holds the claim on this unit.
    pub const CLAIM_HELD_BY_ANOTHER_LOG: Self = Self::new(SenseKey::DataProtect, 0x27, 0x81);
    /// Vendor specific: the claim on record at the unit is older than the claim that this log was
    /// granted. The unit was probably restored from a backup.
    pub const CLAIM_WENT_BACK: Self = Self::new(SenseKey::DataProtect, 0x27, 0x82);
    /// Vendor specific: the operator of the unit has dropped the claim of this log.
    pub const CLAIM_DROPPED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x83);
    /// Vendor specific: other initiators may have changed the unit since this log collected its
    /// dirty data.
    pub const CLAIM_OUT_OF_DATE: Self = Self::new(SenseKey::DataProtect, 0x27, 0x84);
    /// Vendor specific: a session of the previous opening of the log still exists. Only an explicit
    /// takeover may fence that session, so that a copy of a log which is started by accident
    /// cannot.
    pub const CLAIM_OWNER_IS_PRESENT: Self = Self::new(SenseKey::DataProtect, 0x27, 0x85);
    /// Vendor specific: the gateway requests a shared claim on a unit that is not set up for
    /// sharing, or an exclusive one on a unit that is.
    pub const CLAIM_NOT_SHARED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x86);
    /// Vendor specific: the log ends before the newest write that it has confirmed to the unit, so
    /// the log is an older copy. INFORMATION holds the number of the confirmed write.
    pub const CLAIM_BEHIND: Self = Self::new(SenseKey::DataProtect, 0x27, 0x87);
    /// Vendor specific: a read by another initiator is refused. The owner of the claim has no
    /// session and has sent only a part of an epoch to the unit, so the unit does not hold a
    /// consistent prefix.
    pub const CLAIM_HALF_AN_EPOCH: Self = Self::new(SenseKey::DataProtect, 0x27, 0x88);
    /// A thin volume has no space left (SPACE ALLOCATION FAILED WRITE PROTECT).
    pub const SPACE_ALLOCATION_FAILED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x07);
    /// A copy is impossible, or it ended before it was complete.
    pub const COPY_ABORTED: Self = Self::new(SenseKey::CopyAborted, 0x00, 0x00);
    /// The storage below the unit did not answer in time. Either the command was executed in part,
    /// up to the block in INFORMATION, or it is not known whether the command was executed.
    pub const LOGICAL_UNIT_COMMUNICATION_TIME_OUT: Self =
        Self::new(SenseKey::AbortedCommand, 0x08, 0x01);
    /// The block size of a unit that takes part in a copy differs from the size that the list
    /// states, or from the block size of the other unit.
    pub const INCORRECT_COPY_TARGET_DEVICE_TYPE: Self =
        Self::new(SenseKey::CopyAborted, 0x0d, 0x03);
    /// A copy names a unit that is not accessible to this nexus.
    pub const UNREACHABLE_COPY_TARGET: Self = Self::new(SenseKey::CopyAborted, 0x08, 0x04);
    /// A unit that takes part in a copy refused a command of the copy.
    pub const THIRD_PARTY_DEVICE_FAILURE: Self = Self::new(SenseKey::CopyAborted, 0x0d, 0x01);
    /// The target has no space for another ROD token at present.
    pub const INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN: Self =
        Self::new(SenseKey::CopyAborted, 0x55, 0x0d);
    /// Unsolicited data arrived although the login had not negotiated it.
    pub const UNEXPECTED_UNSOLICITED_DATA: Self = Self::new(SenseKey::AbortedCommand, 0x0c, 0x0c);
    /// The amount of write data that arrived differs from the expected amount.
    pub const INCORRECT_AMOUNT_OF_DATA: Self = Self::new(SenseKey::AbortedCommand, 0x0c, 0x0d);
    /// An initiator requested the retransmission of data that is no longer kept.
    pub const SNACK_REJECTED: Self = Self::new(SenseKey::AbortedCommand, 0x11, 0x13);
    /// Data arrived with a digest error, and its retransmission could not be requested.
    pub const PROTOCOL_SERVICE_CRC_ERROR: Self = Self::new(SenseKey::AbortedCommand, 0x47, 0x05);
    /// VERIFY found data that differs from the data sent with it.
    pub const MISCOMPARE_DURING_VERIFY: Self = Self::new(SenseKey::Miscompare, 0x1d, 0x00);
}

impl Sense {
    #[must_use]
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Self {
        Self {
            key,
            asc,
            ascq,
            information: None,
            field: None,
            progress: None,
            descriptor_format: false,
            deferred: false,
        }
    }

    /// Returns true if key, ASC and ASCQ are equal; ignores the other fields.
    #[must_use]
    pub fn is_same_condition(self, other: Self) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }

    /// Sets PROGRESS INDICATION, in units of 1/65,536.
    #[must_use]
    pub const fn with_progress(mut self, progress: u16) -> Self {
        self.progress = Some(progress);
        self
    }

    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Returns 5/24/00 with a pointer to the first byte of the invalid field in the CDB.
    #[must_use]
    pub const fn invalid_field_in_cdb(byte: u16) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_CDB;
        sense.field = Some(FieldPointer { in_cdb: true, byte, bit: None });
        sense
    }

    /// Returns 5/24/00 with a pointer to one invalid bit of the CDB.
    #[must_use]
    pub const fn invalid_bit_in_cdb(byte: u16, bit: u8) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_CDB;
        sense.field = Some(FieldPointer { in_cdb: true, byte, bit: Some(bit) });
        sense
    }

    /// Returns 5/26/00 with a pointer to the first byte of the invalid field in the parameter list.
    #[must_use]
    pub const fn invalid_field_in_parameter_list(byte: u16) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_PARAMETER_LIST;
        sense.field = Some(FieldPointer { in_cdb: false, byte, bit: None });
        sense
    }

    /// Returns true if key, ASC and ASCQ are equal; ignores the other fields.
    #[must_use]
    pub fn is(&self, other: Self) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }

    /// Encodes the sense data in fixed format (SPC-4, 4.5.3). Uses descriptor format instead if
    /// `descriptor_format` is set, or if INFORMATION exceeds the 32 bits that fixed format has for
    /// it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self.information {
            _ if self.descriptor_format => self.to_descriptor_bytes(),
            Some(information) if information > u64::from(u32::MAX) => self.to_descriptor_bytes(),
            _ => self.to_fixed_bytes(),
        }
    }

    /// Encodes the sense data in fixed format, 18 bytes. INFORMATION above 32 bits is omitted.
    #[must_use]
    pub fn to_fixed_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        bytes[2] = self.key as u8;
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            bytes[0] |= VALID;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10;
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        if let Some(specific) = self.key_specific() {
            bytes[15..18].copy_from_slice(&specific);
        }
        bytes
    }

    /// Encodes the sense data in descriptor format (SPC-4, 4.5.2), 8 to 28 bytes.
    #[must_use]
    pub fn to_descriptor_bytes(&self) -> Vec<u8> {
        let code = if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT };
        let mut bytes = vec![code, self.key as u8, self.asc, self.ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[INFORMATION_DESCRIPTOR, 10, VALID, 0]);
            bytes.extend_from_slice(&information.to_be_bytes());
        }
        if let Some(specific) = self.key_specific() {
            bytes.extend_from_slice(&[KEY_SPECIFIC_DESCRIPTOR, 6, 0, 0]);
            bytes.extend_from_slice(&specific);
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Returns the three bytes of sense key specific data: field pointer or progress indication.
    fn key_specific(&self) -> Option<[u8; 3]> {
        let progress = |progress: u16| {
            let [high, low] = progress.to_be_bytes();
            [SENSE_KEY_SPECIFIC_VALID, high, low]
        };
        self.field.map(FieldPointer::to_bytes).or(self.progress.map(progress))
    }

    /// Parses sense data of either format, current or deferred. Returns `None` for another response
    /// code, and if the bytes end before the sense key. Missing fields become zero or `None`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let code = bytes.first()? & 0x7f;
        let sense = match code {
            FIXED_CURRENT | FIXED_DEFERRED => Self::from_fixed_bytes(bytes),
            DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED => Self::from_descriptor_bytes(bytes),
            _ => None,
        }?;
        Some(Self { deferred: matches!(code, FIXED_DEFERRED | DESCRIPTOR_DEFERRED), ..sense })
    }

    fn from_fixed_bytes(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey::from_byte(*bytes.get(2)?)?;
        let claimed = bytes.get(7).map_or(bytes.len(), |&additional| 8 + usize::from(additional));
        let bytes = &bytes[..claimed.min(bytes.len())];
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let mut sense = Self::new(key, byte_at(12), byte_at(13));
        if bytes[0] & VALID != 0 {
            sense.information = u32_at(bytes, 3).map(u64::from);
        }
        sense.field = field_of(key, bytes.get(15..18));
        sense.progress = progress_of(key, bytes.get(15..18));
        Some(sense)
    }

    fn from_descriptor_bytes(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey::from_byte(*bytes.get(1)?)?;
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let mut sense = Self::new(key, byte_at(2), byte_at(3));
        let mut rest = crate::field::body(bytes, 8, usize::from(byte_at(7)));
        while let [kind, length, body @ ..] = rest {
            let Some((descriptor, after)) = body.split_at_checked(usize::from(*length)) else {
                break;
            };
            match *kind {
                INFORMATION_DESCRIPTOR if descriptor.first().is_some_and(|b| b & VALID != 0) => {
                    sense.information = u64_at(descriptor, 2);
                }
                KEY_SPECIFIC_DESCRIPTOR => {
                    sense.field = field_of(key, descriptor.get(2..5));
                    sense.progress = progress_of(key, descriptor.get(2..5));
                }
                _ => {}
            }
            rest = after;
        }
        Some(sense)
    }
}

impl FieldPointer {
    fn to_bytes(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let in_cdb = if self.in_cdb { 0x40 } else { 0 };
        let bit = self.bit.map_or(0, |bit| 0x08 | bit & 0x07);
        [SENSE_KEY_SPECIFIC_VALID | in_cdb | bit, high, low]
    }
}

/// Reads a field pointer from the three bytes of sense key specific data. Returns `None` if the
/// bytes do not hold a field pointer.
fn field_of(key: SenseKey, bytes: Option<&[u8]>) -> Option<FieldPointer> {
    let bytes = bytes?;
    let flags = *bytes.first()?;
    if key != SenseKey::IllegalRequest || flags & SENSE_KEY_SPECIFIC_VALID == 0 {
        return None;
    }
    let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
    Some(FieldPointer { in_cdb: flags & 0x40 != 0, byte: u16_at(bytes, 1)?, bit })
}

/// Reads a progress indication from the three bytes of sense key specific data. Returns `None` if
/// the bytes do not hold one.
fn progress_of(key: SenseKey, bytes: Option<&[u8]>) -> Option<u16> {
    let bytes = bytes?;
    let told = matches!(key, SenseKey::NoSense | SenseKey::NotReady)
        && *bytes.first()? & SENSE_KEY_SPECIFIC_VALID != 0;
    if told { u16_at(bytes, 1) } else { None }
}

/// Response codes (SPC-4, table 27).
const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;
/// The bit VALID in byte 0: the INFORMATION field is valid.
const VALID: u8 = 0x80;
/// Sense data descriptor types (SPC-4, table 29).
const INFORMATION_DESCRIPTOR: u8 = 0x00;
const KEY_SPECIFIC_DESCRIPTOR: u8 = 0x02;
/// The SKSV bit: the sense key specific data is valid.
const SENSE_KEY_SPECIFIC_VALID: u8 = 0x80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fixed_format_byte_by_byte() {
        let sense = Sense::invalid_bit_in_cdb(1, 5);
        assert_eq!(
            sense.to_bytes(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 1]
        );
        let medium = Sense::UNRECOVERED_READ_ERROR.with_information(0x0102_0304);
        assert_eq!(&medium.to_bytes()[..8], [0xf0, 0, 3, 1, 2, 3, 4, 10]);
    }

    #[test]
    fn descriptor_format_when_the_information_needs_it() {
        let sense = Sense::WRITE_ERROR.with_information(0x1_0000_0000);
        assert_eq!(
            sense.to_bytes(),
            [0x72, 3, 0x0c, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn descriptor_format_when_it_is_asked_for() {
        let sense = Sense { descriptor_format: true, ..Sense::WRITE_PROTECTED };
        assert_eq!(sense.to_bytes(), [0x72, 7, 0x27, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_deferred_error_is_distinguished_from_an_error_of_the_command() {
        let error = Sense::WRITE_ERROR;
        let told = |code: u8, mut bytes: Vec<u8>| {
            bytes[0] = code;
            Sense::from_bytes(&bytes).unwrap()
        };
        let deferred = Sense { deferred: true, ..error };
        assert_eq!(told(0x70, error.to_fixed_bytes()), error);
        assert_eq!(told(0x71, error.to_fixed_bytes()), deferred);
        assert!(told(0xf1, error.to_fixed_bytes()).deferred);
        assert_eq!(told(0x72, error.to_descriptor_bytes()), error);
        assert_eq!(told(0x73, error.to_descriptor_bytes()), deferred);
        assert!(deferred.to_string().starts_with("deferred MediumError"), "{deferred}");
    }

    #[test]
    fn truncated_sense_data_still_has_its_key() {
        assert_eq!(Sense::from_bytes(&[0x70, 0, 2]), Some(Sense::new(SenseKey::NotReady, 0, 0)));
        assert_eq!(Sense::from_bytes(&[0x70, 0]), None);
        assert_eq!(Sense::from_bytes(&[0x72, 6]), Some(Sense::new(SenseKey::UnitAttention, 0, 0)));
        assert_eq!(Sense::from_bytes(&[]), None);
        assert_eq!(Sense::from_bytes(&[0x7f; 18]), None);
    }

    #[test]
    fn a_sense_descriptor_with_a_wrong_length_is_ignored() {
        let mut bytes = Sense::WRITE_ERROR.with_information(7).to_descriptor_bytes();
        bytes[9] = 200;
        assert_eq!(Sense::from_bytes(&bytes), Some(Sense::WRITE_ERROR));
    }

    fn any_sense() -> impl Strategy<Value = Sense> {
        let field = (any::<bool>(), any::<u16>(), proptest::option::of(0u8..8))
            .prop_map(|(in_cdb, byte, bit)| FieldPointer { in_cdb, byte, bit });
        let key = (0u8..16).prop_filter_map("obsolete", SenseKey::from_byte);
        let information = proptest::option::of(any::<u64>());
        let progress = proptest::option::of(any::<u16>());
        let code = (any::<u8>(), any::<u8>());
        (key, code, information, proptest::option::of(field), progress, any::<bool>()).prop_map(
            |(key, (asc, ascq), information, field, progress, deferred)| Sense {
                key,
                asc,
                ascq,
                information,
                field: field.filter(|_| key == SenseKey::IllegalRequest),
                progress: progress
                    .filter(|_| matches!(key, SenseKey::NoSense | SenseKey::NotReady)),
                descriptor_format: false,
                deferred,
            },
        )
    }

    proptest! {
        #[test]
        fn both_formats_read_back(sense in any_sense()) {
            prop_assert_eq!(Sense::from_bytes(&sense.to_bytes()), Some(sense));
            prop_assert_eq!(Sense::from_bytes(&sense.to_descriptor_bytes()), Some(sense));
            let fits = Sense {
                information: sense.information.filter(|&i| i <= u64::from(u32::MAX)),
                ..sense
            };
            prop_assert_eq!(Sense::from_bytes(&sense.to_fixed_bytes()), Some(fits));
        }

        #[test]
        fn hostile_sense_data_does_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
                                           format in 0x70u8..0x74) {
            let _ = Sense::from_bytes(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = format;
            }
            let _ = Sense::from_bytes(&bytes);
        }
    }
}

//! Sense data, which says why a command ended with CHECK CONDITION (SPC-4, 4.5): its values. The
//! names are in `conditions`, the encoding in fixed and in descriptor format in `format`, the
//! descriptors of object storage devices in `object`.

mod conditions;
mod format;
mod object;

pub use object::{ObjectIdentification, ObjectSense, ReceivedObjectSense};

/// Sense data: the sense key, the additional sense code (ASC) with its qualifier (ASCQ), and the
/// optional fields that we use.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[error("{}{key:?}, asc/ascq {asc:02x}/{ascq:02x}", if *.deferred { "deferred " } else { "" })]
pub struct Sense {
    pub key: SenseKey,
    pub asc: u8,
    pub ascq: u8,
    /// The field INFORMATION, in which block commands report the address of the first block in error.
    pub information: Option<u64>,
    /// The field of the CDB or of the parameter list that ILLEGAL REQUEST is about.
    pub field: Option<FieldPointer>,
    /// PROGRESS INDICATION: the progress of a running operation in units of 1/65,536. Valid with NO
    /// SENSE and NOT READY.
    pub progress: Option<u16>,
    /// COMMAND-SPECIFIC INFORMATION. [`Sense::to_bytes`] encodes it in descriptor format only.
    /// After a READ beyond the end of an object, the field holds the number of bytes read (OSD-2).
    pub command_specific: Option<u64>,
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
            command_specific: None,
            descriptor_format: false,
            deferred: false,
        }
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

    #[must_use]
    pub const fn with_command_specific(mut self, value: u64) -> Self {
        self.command_specific = Some(value);
        self
    }

    /// Returns 5/24/00 with a pointer to the first byte of the invalid field in the CDB.
    #[must_use]
    pub const fn invalid_field_in_cdb(byte: u16) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_CDB;
        sense.field = Some(FieldPointer { in_cdb: true, byte, bit: None });
        sense
    }

    /// Returns INVALID FIELD IN CDB (5/24/00) with a pointer to the invalid bit.
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

    /// Returns true if both have the same sense key, ASC and ASCQ. Ignores all other fields.
    #[must_use]
    pub fn is(&self, other: Self) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }
}

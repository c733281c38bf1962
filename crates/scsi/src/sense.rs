//! Why a command ended in CHECK CONDITION (SPC-4, 4.5).

/// Sense key, additional sense code and qualifier, and the INFORMATION field where one is valid.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[error("{key:?}, asc/ascq {asc:02x}/{ascq:02x}")]
pub struct Sense {
    /// What kind of trouble.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// The INFORMATION field: for block commands the first LBA in error.
    pub information: Option<u64>,
}

/// The sense keys (SPC-4, table 48).
#[allow(missing_docs)]
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

impl Sense {
    /// A sense value without an INFORMATION field.
    #[must_use]
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Self {
        Self { key, asc, ascq, information: None }
    }
}

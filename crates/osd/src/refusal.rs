//! The reasons for which a command is refused before an object store sees it.

use scsi::Sense;

/// The reason why a command was refused. The drive has changed no object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// 5/20/00: the service action is unknown, or belongs to OSD-1.
    #[error("unknown service action")]
    UnknownServiceAction,
    /// 5/24/00: a field of the CDB is invalid. The sense data points to this byte.
    #[error("invalid field in byte {0} of the CDB")]
    Field(u16),
    /// 5/24/06: the drive has seen the nonce of the command before.
    #[error("the nonce was used before")]
    NonceNotUnique,
    /// 5/24/07: the time in the nonce is too old or too new.
    #[error("the timestamp of the nonce is out of range")]
    NonceTimestampOutOfRange,
    /// 5/24/04: the audit value of the capability is frozen.
    #[error("the audit value of the capability is frozen")]
    AuditFrozen,
    /// 5/24/05: the working key of the capability is frozen.
    #[error("the working key is frozen")]
    WorkingKeyFrozen,
    /// 5/26/0F: the Data-Out buffer does not match its integrity check value.
    #[error("the data does not match its integrity check value")]
    DataOutIntegrity,
    /// 5/26/00: a list or descriptor in the Data-Out buffer is invalid.
    #[error("invalid field in byte {0} of a parameter list")]
    ParameterList(u16),
    /// 5/1A/00: the Data-Out buffer ends before a list or descriptor does.
    #[error("a parameter list is too short")]
    ParameterListLength,
}

impl Refusal {
    pub(crate) const fn field(byte: u16) -> Self {
        Self::Field(byte)
    }

    /// Returns the byte of the CDB to which the sense data points, if it points to one.
    #[must_use]
    pub const fn pointer(self) -> Option<u16> {
        match self {
            Self::Field(byte) => Some(byte),
            _ => None,
        }
    }

    /// Returns the sense data, without the descriptors of OSD.
    #[must_use]
    pub fn sense(self) -> Sense {
        let illegal = |asc, ascq| Sense::new(scsi::SenseKey::IllegalRequest, asc, ascq);
        match self {
            Self::UnknownServiceAction => Sense::INVALID_COMMAND_OPERATION_CODE,
            Self::Field(byte) => Sense::invalid_field_in_cdb(byte),
            Self::NonceNotUnique => illegal(0x24, 0x06),
            Self::NonceTimestampOutOfRange => illegal(0x24, 0x07),
            Self::AuditFrozen => illegal(0x24, 0x04),
            Self::WorkingKeyFrozen => illegal(0x24, 0x05),
            Self::DataOutIntegrity => illegal(0x26, 0x0f),
            Self::ParameterList(byte) => Sense::invalid_field_in_parameter_list(byte),
            Self::ParameterListLength => Sense::PARAMETER_LIST_LENGTH_ERROR,
        }
    }
}

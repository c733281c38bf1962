//! Converts each error of an object store to sense data.

use object::{ObjectAddress, ObjectError};
use scsi::{Sense, SenseKey};

/// Returns the sense data of an error, without the descriptors that name attributes.
pub(crate) fn sense_of(error: &ObjectError) -> Sense {
    let identifier = |object: &ObjectAddress| if object.object == 0 { 16 } else { 24 };
    match error {
        ObjectError::NoSuchObject { object } | ObjectError::Exists { object } => {
            Sense::invalid_field_in_cdb(identifier(object))
        }
        ObjectError::NotEmpty { .. } => illegal(0x2c, 0x0a),
        ObjectError::InvalidField { field } => Sense::invalid_field_in_cdb(*field as u16),
        ObjectError::InvalidAttribute { .. } => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        ObjectError::Quota { .. } => illegal(0x55, 0x07),
        ObjectError::Damaged { range, .. } => {
            Sense::UNRECOVERED_READ_ERROR.with_information(range.start)
        }
        ObjectError::FormatInProgress => Sense::new(SenseKey::NotReady, 0x04, 0x04),
        ObjectError::Storage(_)
        | ObjectError::Unreachable(_)
        | ObjectError::NotGenuine(_)
        | ObjectError::OutcomeUnknown
        | ObjectError::ChangesMayBeLost => Sense::INTERNAL_TARGET_FAILURE,
        ObjectError::Capability(_) => Sense::invalid_field_in_cdb(osd::PERMISSIONS_IN_CDB),
        ObjectError::Unsupported => Sense::INVALID_COMMAND_OPERATION_CODE,
    }
}

const fn illegal(asc: u8, ascq: u8) -> Sense {
    Sense::new(SenseKey::IllegalRequest, asc, ascq)
}

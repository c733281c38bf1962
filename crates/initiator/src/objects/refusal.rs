//! Converts sense data of a drive to the error of a command.

use object::{AttributeId, Command, ObjectAddress, ObjectError, RefusedField};
use scsi::{ReceivedObjectSense, Sense, SenseKey};

/// Returns the error of a command that ended with this sense data.
pub(crate) fn error_of(
    sense: Sense,
    received: Option<&ReceivedObjectSense>,
    command: &Command,
) -> ObjectError {
    let object = command.object();
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::NotReady, 0x04, 0x04) => ObjectError::FormatInProgress,
        (SenseKey::MediumError, 0x11, _) => {
            let start = sense.information.unwrap_or_else(|| start_of(command));
            ObjectError::Damaged { object, range: start..start.saturating_add(1) }
        }
        (SenseKey::IllegalRequest, 0x20, 0x00) => ObjectError::Unsupported,
        (SenseKey::IllegalRequest, 0x24, 0x00) => {
            invalid_field(sense.field.map(|field| field.byte), command)
        }
        (SenseKey::IllegalRequest, 0x24, 0x04) => capability("its audit value is frozen"),
        (SenseKey::IllegalRequest, 0x24, 0x05) => capability("its working key is frozen"),
        (SenseKey::IllegalRequest, 0x24, 0x06) => capability("the nonce was used before"),
        (SenseKey::IllegalRequest, 0x24, 0x07) => {
            capability("the time of the nonce is not near the time of the drive")
        }
        (SenseKey::IllegalRequest, 0x26, 0x0f) => {
            capability("the data does not match its integrity check value")
        }
        (SenseKey::IllegalRequest, 0x26 | 0x1a, _) => match first_attribute(received) {
            Some(id) => ObjectError::InvalidAttribute { page: id.page, number: id.number },
            None => ObjectError::InvalidField { field: RefusedField::Attributes },
        },
        (SenseKey::IllegalRequest, 0x2c, 0x0a) => ObjectError::NotEmpty { object },
        (SenseKey::IllegalRequest, 0x55, 0x07) => ObjectError::Quota { used: 0, limit: 0 },
        _ => ObjectError::Storage(sense.to_string()),
    }
}

/// Returns the first of the attributes that the sense data names as the cause.
fn first_attribute(received: Option<&ReceivedObjectSense>) -> Option<AttributeId> {
    let &(page, number) = received?.descriptors.attributes.first()?;
    Some(AttributeId::new(page, number))
}

/// Returns true if the drive refused a command because of the time in its nonce. The command was not performed.
pub(crate) fn is_nonce_time(sense: &Sense) -> bool {
    (sense.key, sense.asc, sense.ascq) == (SenseKey::IllegalRequest, 0x24, 0x07)
}

/// Returns true for an error that says something about objects. If answers are signed, such an error must be, too.
pub(crate) fn is_about_objects(error: &ObjectError) -> bool {
    match error {
        ObjectError::NoSuchObject { .. }
        | ObjectError::Exists { .. }
        | ObjectError::NotEmpty { .. }
        | ObjectError::InvalidField { .. }
        | ObjectError::InvalidAttribute { .. }
        | ObjectError::Quota { .. }
        | ObjectError::Damaged { .. } => true,
        ObjectError::FormatInProgress
        | ObjectError::Storage(_)
        | ObjectError::Unreachable(_)
        | ObjectError::NotGenuine(_)
        | ObjectError::OutcomeUnknown
        | ObjectError::ChangesMayBeLost
        | ObjectError::Capability(_)
        | ObjectError::Unsupported => false,
    }
}

fn capability(reason: &str) -> ObjectError {
    ObjectError::Capability(reason.into())
}

/// Returns the error for INVALID FIELD IN CDB. `byte` is the field pointer of the sense data.
fn invalid_field(byte: Option<u16>, command: &Command) -> ObjectError {
    let object = command.object();
    let partition = ObjectAddress::partition(object.partition);
    let field = match byte {
        None => return ObjectError::Storage("the drive refuses a field of the command".into()),
        Some(10) => RefusedField::Options,
        Some(11) => RefusedField::Scope,
        Some(14) => RefusedField::DuplicationMethod,
        Some(16) => match command {
            Command::CreatePartition { requested } if *requested != 0 => {
                return ObjectError::Exists { object };
            }
            _ if partition.is_root() => RefusedField::Partition,
            _ => return ObjectError::NoSuchObject { object: partition },
        },
        Some(24) if command.creates() => match object.object {
            0 => RefusedField::Object,
            _ => return ObjectError::Exists { object },
        },
        Some(24) if object.object == 0 => RefusedField::Object,
        Some(24) => return ObjectError::NoSuchObject { object },
        Some(32..40) => RefusedField::Length,
        Some(40..48) => RefusedField::Start,
        Some(48..52) => RefusedField::ContinuationLength,
        Some(52..80) => RefusedField::Attributes,
        Some(82) => return capability("the drive requires a stronger security method"),
        Some(84..90) => return capability("it has expired"),
        Some(122..128) => return capability("the object was created at another time"),
        Some(128) => return capability("it is for another type of object"),
        Some(129..131) => return capability("it lacks a permission"),
        Some(140..144) => return capability("it was revoked: the policy access tag has changed"),
        Some(144..146) => return capability("it is for another start of the drive"),
        Some(152..168) => return capability("it is for another object"),
        Some(168..184) => return capability("it is for another range of the object"),
        Some(80..184) => return capability("it is not valid"),
        Some(184..228) => {
            return capability("its signature is wrong, or the key that must sign it is not set");
        }
        Some(byte) => {
            return ObjectError::Storage(format!("the drive refuses byte {byte} of the CDB"));
        }
    };
    ObjectError::InvalidField { field }
}

/// Returns the first byte of the object that the command accesses.
const fn start_of(command: &Command) -> u64 {
    match *command {
        Command::Read { start, .. } | Command::Write { start, .. } => start,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointed(byte: u16, command: Command) -> ObjectError {
        error_of(Sense::invalid_field_in_cdb(byte), None, &command)
    }

    #[test]
    fn a_pointer_to_an_identifier_means_absent_or_present_by_command() {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let partition = ObjectAddress::partition(0x10000);
        let read = Command::Read { object, length: 1, start: 0 };
        assert_eq!(pointed(24, read), ObjectError::NoSuchObject { object });
        assert_eq!(pointed(16, read), ObjectError::NoSuchObject { object: partition });
        let create = Command::Create { partition: 0x10000, requested: 0x10001, count: 1 };
        assert_eq!(pointed(24, create), ObjectError::Exists { object });
        assert_eq!(pointed(16, create), ObjectError::NoSuchObject { object: partition });
        let create = Command::CreatePartition { requested: 0x10000 };
        assert_eq!(pointed(16, create), ObjectError::Exists { object: partition });
    }

    #[test]
    fn every_pointer_gives_an_error() {
        let read = Command::Read { object: ObjectAddress::ROOT, length: 1, start: 0 };
        for byte in 0..=300 {
            assert!(!pointed(byte, read).to_string().is_empty());
        }
        assert!(pointed(129, read).to_string().contains("permission"));
        assert!(pointed(184, read).to_string().contains("signature"));
    }
}

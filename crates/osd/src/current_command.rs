//! Encodes and parses the current command page in page format (OSD-2, 7.2.27).

use object::{CURRENT_COMMAND, CurrentCommand, ObjectAddress, ObjectType};

use crate::{
    bytes::{array_at, put, u32_at, u64_at},
    layout::{CURRENT_COMMAND_BYTES, RESPONSE_IN_PAGE},
    security::IntegrityCheckValue,
};

/// Encodes the current command page with `value`, the drive's proof of the status.
#[must_use]
pub fn current_command_page(
    current: &CurrentCommand,
    value: &IntegrityCheckValue,
) -> [u8; CURRENT_COMMAND_BYTES] {
    let mut page = [0; CURRENT_COMMAND_BYTES];
    put(&mut page, 0, &CURRENT_COMMAND.to_be_bytes());
    put(&mut page, 4, &(CURRENT_COMMAND_BYTES as u32 - 8).to_be_bytes());
    put(&mut page, RESPONSE_IN_PAGE, &value.0);
    page[40] = current.object_type.map_or(0, |object_type| object_type as u8);
    put(&mut page, 44, &current.object.partition.to_be_bytes());
    put(&mut page, 52, &current.object.object.to_be_bytes());
    put(&mut page, 60, &current.append_start.to_be_bytes());
    put(&mut page, 68, &current.change_in_used.to_be_bytes());
    page
}

/// Parses the page. Returns `None` for another page, and if the bytes are too few.
#[must_use]
pub fn parse_current_command(bytes: &[u8]) -> Option<(CurrentCommand, IntegrityCheckValue)> {
    if u32_at(bytes, 0)? != CURRENT_COMMAND {
        return None;
    }
    let current = CurrentCommand {
        object_type: ObjectType::from_code(*bytes.get(40)?),
        object: ObjectAddress::new(u64_at(bytes, 44)?, u64_at(bytes, 52)?),
        append_start: u64_at(bytes, 60)?,
        change_in_used: u64_at(bytes, 68)?.cast_signed(),
    };
    Some((current, IntegrityCheckValue(array_at(bytes, RESPONSE_IN_PAGE)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        security::{Algorithm, CapabilityKey, Key, response_of_page},
        testing::{ascending, capability_vector, nonce_vector, system_vector},
    };

    fn key(algorithm: Algorithm) -> CapabilityKey {
        let capability = capability_vector(algorithm);
        CapabilityKey::new(algorithm, &Key::new(ascending(0)), &capability, &system_vector())
    }

    #[test]
    fn the_page_decodes_to_the_encoded_command() {
        let current = CurrentCommand {
            object_type: Some(ObjectType::Collection),
            object: ObjectAddress::new(1, 2),
            append_start: 3,
            change_in_used: -4,
        };
        let value = IntegrityCheckValue([9; 32]);
        let page = current_command_page(&current, &value);
        assert_eq!(page[..8], [0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0x44]);
        assert_eq!(parse_current_command(&page), Some((current, value)));
        assert_eq!(parse_current_command(&page[..75]), None);
        assert_eq!(parse_current_command(&[0; 76]), None);
    }

    #[test]
    fn the_proof_of_a_good_status_matches_the_vectors() {
        let current = CurrentCommand {
            object_type: Some(ObjectType::UserObject),
            object: ObjectAddress::new(0x10000, 0x10001),
            ..CurrentCommand::default()
        };
        let page = current_command_page(&current, &IntegrityCheckValue::ZERO);
        let proof =
            |algorithm| format!("{:?}", response_of_page(&key(algorithm), nonce_vector(), &page));
        assert_eq!(proof(Algorithm::HmacSha1)[..40], *"9000cd85cb6b641225a58a110454b923f672d6c5");
        assert_eq!(
            proof(Algorithm::HmacSha256),
            "49763b381d7e82c79bd5563d0f33569144861411200b679520db8cfdebf587af"
        );
    }
}

//! Parameter data of REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).

use crate::OperationCodeEntry;

/// Encodes the list of all commands in `operations` with its header. If `timeouts`, each command
/// has a command timeouts descriptor.
#[must_use]
pub fn supported_operations<'a>(
    operations: impl IntoIterator<Item = &'a OperationCodeEntry>,
    timeouts: bool,
) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for operation in operations {
        let [action_high, action_low] = operation.service_action.unwrap_or(0).to_be_bytes();
        let has_action = u8::from(operation.service_action.is_some());
        let flags = u8::from(timeouts) << 1 | has_action;
        let [length_high, length_low] = length_of(operation);
        bytes.extend_from_slice(&[
            operation.opcode,
            0,
            action_high,
            action_low,
            0,
            flags,
            length_high,
            length_low,
        ]);
        if timeouts {
            bytes.extend_from_slice(&timeouts_descriptor(operation));
        }
    }
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Encodes the data about one command. `None` stands for a command that is not supported.
#[must_use]
pub fn supported_operation(operation: Option<&OperationCodeEntry>, timeouts: bool) -> Vec<u8> {
    let Some(operation) = operation else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let flags = u8::from(timeouts) << 7 | SUPPORTED_AS_IN_THE_STANDARD;
    let [length_high, length_low] = length_of(operation);
    let mut bytes = vec![0, flags, length_high, length_low];
    bytes.extend_from_slice(operation.usage());
    if timeouts {
        bytes.extend_from_slice(&timeouts_descriptor(operation));
    }
    bytes
}

/// Returns the field with the length of the CDB, up to 260 bytes.
fn length_of(operation: &OperationCodeEntry) -> [u8; 2] {
    (operation.usage().len() as u16).to_be_bytes()
}

/// Encodes a command timeouts descriptor (SPC-4, 6.35.4).
fn timeouts_descriptor(operation: &OperationCodeEntry) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[1] = 10;
    bytes[4..8].copy_from_slice(&operation.nominal_s.to_be_bytes());
    bytes[8..].copy_from_slice(&operation.recommended_s.to_be_bytes());
    bytes
}

/// Values of SUPPORT (SPC-4, table 281).
const NOT_SUPPORTED: u8 = 1;
const SUPPORTED_AS_IN_THE_STANDARD: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPERATIONS;

    #[test]
    fn the_list_has_a_descriptor_for_every_row() {
        let bytes = supported_operations(OPERATIONS, false);
        assert_eq!(bytes.len(), 4 + 8 * OPERATIONS.len());
        assert_eq!(bytes[..4], ((bytes.len() - 4) as u32).to_be_bytes());
        let capacity = bytes[4..].chunks_exact(8).find(|d| d[0] == 0x9e).unwrap();
        assert_eq!(capacity, [0x9e, 0, 0, 0x10, 0, 1, 0, 16]);
        let timed = supported_operations(OPERATIONS, true);
        assert_eq!(timed.len(), 4 + 20 * OPERATIONS.len());
        assert_eq!(timed[4..16], [0, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0]);
    }

    #[test]
    fn one_command_comes_with_its_usage_data() {
        let read = OperationCodeEntry::find(0x28, None);
        assert_eq!(
            supported_operation(read, false),
            [0, 3, 0, 10, 0x28, 0xf8, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4]
        );
        assert_eq!(supported_operation(read, true).len(), 4 + 10 + 12);
        assert_eq!(supported_operation(read, true)[1], 0x83);
        assert_eq!(supported_operation(None, true), [0, 1, 0, 0]);
    }
}

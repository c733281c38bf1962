//! Offsets and lengths in a CDB of 236 bytes (OSD-2, 5.2) that several modules need.

/// Length of a CDB in bytes.
pub const CDB_BYTES: usize = 236;
/// Offset of the capability in a CDB, in bytes.
pub const CAPABILITY: usize = 80;
/// Length of a capability of OSD-2 in bytes.
pub const CAPABILITY_BYTES: usize = 104;
/// Offset of the REQUEST INTEGRITY CHECK VALUE in a CDB, in bytes.
pub const INTEGRITY: usize = 184;
/// Offset of the REQUEST NONCE in a CDB, in bytes.
pub const NONCE: usize = 216;
/// Length of the current command page in page format, in bytes.
pub const CURRENT_COMMAND_BYTES: usize = 76;
/// Offset of the response integrity check value in the current command page.
pub const RESPONSE_IN_PAGE: usize = 8;
/// Offset of the integrity check value in a CDB continuation segment.
pub const CONTINUATION_INTEGRITY: usize = 8;

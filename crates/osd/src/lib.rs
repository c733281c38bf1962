//! The T10 object storage commands (OSD-2) on the wire: CDBs, attributes lists, capabilities and
//! the proofs of the four security methods.
//!
//! The crate converts between bytes and the values of the crate `object`, without I/O, clock or
//! state: a drive and an initiator both use it. Every parser accepts hostile bytes, and an argument
//! limits the number of entries of each list.

mod bytes;
#[cfg(test)]
mod testing;
mod layout;
mod refusal;
pub mod offset;
mod service_action;
mod permissions;
pub mod security;
mod capability;
mod attribute_parameters;
mod fields;
mod cdb;
pub mod list;
mod continuation;
mod object_list;
mod object_map;
mod current_command;
mod page_format;
mod request_tag;

pub use attribute_parameters::{
    AttributeParameters, ListInBuffer, MAX_VALUE_IN_CDB, PageToGet, Space, ValueInBuffer,
};
pub use capability::{AllowedRange, Capability, PERMISSIONS_IN_CDB};
pub use cdb::OsdCdb;
pub use continuation::{ContinuationSegment, DESCRIPTOR_TYPES};
pub use current_command::{current_command_page, parse_current_command};
pub use fields::performed_allocation_length;
pub use layout::{
    CAPABILITY, CAPABILITY_BYTES, CDB_BYTES, CURRENT_COMMAND_BYTES, INTEGRITY, NONCE,
};
pub use object_list::{ListKind, encode_list, parse_list};
pub use object_map::{encode_map, parse_map, runs_within};
pub use page_format::{encode_page, parse_page};
pub use permissions::Permissions;
pub use refusal::Refusal;
pub use request_tag::{
    BOOT_EPOCH, REQUEST_HORIZON, REQUEST_RESULT, REQUEST_RESULT_BYTES, REQUEST_TAG,
    REQUEST_TAG_BYTES, REQUEST_TAG_PAGE, RequestResult, RequestTag,
};
pub use service_action::{OPERATION_CODE, ServiceAction};

//! The reasons for which an object store refuses a command, or cannot perform it.

use std::ops::Range;

use crate::ObjectAddress;

/// A command of an object store that failed. The store has changed no object, unless the variant says so.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ObjectError {
    #[error("{object} does not exist")]
    NoSuchObject { object: ObjectAddress },
    #[error("{object} exists already")]
    Exists { object: ObjectAddress },
    #[error("{object} is not empty")]
    NotEmpty { object: ObjectAddress },
    /// A field of the CDB has a value that the store does not accept.
    #[error("field {field:?} of the command is invalid")]
    InvalidField { field: RefusedField },
    /// The attribute cannot be set by clients, or cannot have this value.
    #[error("attribute {page:X}h/{number:X}h cannot have this value")]
    InvalidAttribute { page: u32, number: u32 },
    /// The drive is full, or a quota or limit is reached.
    #[error("no space: {used} of {limit} bytes or objects are in use")]
    Quota { used: u64, limit: u64 },
    /// Stored bytes do not match their checksum, and no good copy exists.
    #[error("{object} is damaged in bytes {} to {}", range.start, range.end)]
    Damaged { object: ObjectAddress, range: Range<u64> },
    #[error("the drive is being formatted")]
    FormatInProgress,
    /// The volume on which the drive keeps its objects failed. Changes that were not stable may be lost.
    #[error("storage failed: {0}")]
    Storage(String),
    /// The session with the drive is lost, or the drive does not answer. A command that has the same effect when it is
    /// performed twice, such as WRITE, may have been performed.
    #[error("the drive cannot be reached: {0}")]
    Unreachable(String),
    /// The answer does not match its integrity check value, or contradicts the request. The command may have been
    /// performed.
    #[error("the drive's answer is not genuine: {0}")]
    NotGenuine(String),
    /// The initiator lost its session, and cannot find out if the command was performed.
    #[error("the outcome is unknown: the session ended before the drive answered")]
    OutcomeUnknown,
    /// The drive has restarted, and changes that it acknowledged before were not flushed.
    #[error("the drive was restarted: acknowledged changes that were not flushed may be lost")]
    ChangesMayBeLost,
    /// The drive refused the command because of its capability.
    #[error("the drive refused the capability: {0}")]
    Capability(String),
    #[error("the drive does not support this command")]
    Unsupported,
}

/// The fields of a CDB to which sense data can point, with their byte offsets in the CDB of OSD-2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum RefusedField {
    Options = 10,
    Scope = 11,
    DuplicationMethod = 14,
    Partition = 16,
    Object = 24,
    Length = 32,
    Start = 40,
    ContinuationLength = 48,
    Attributes = 52,
    Permissions = 129,
}

//! The sense data that Forebay returns, by name.

use super::{Sense, SenseKey};

/// The sense data that Forebay returns, with the names of SPC-4, annex F.
///
/// The first paragraph of each constant is its row in `docs/protocols.md`.
impl Sense {
    /// There is nothing to report.
    pub const NO_SENSE: Self = Self::new(SenseKey::NoSense, 0x00, 0x00);
    /// The cache is fenced, or its log was exported. Also the answer to TEST UNIT READY, so that
    /// hosts use another path.
    ///
    /// Another gateway has taken over the data cached here, and an operator must act.
    pub const MANUAL_INTERVENTION_REQUIRED: Self = Self::new(SenseKey::NotReady, 0x04, 0x03);
    /// A sanitize operation is running; PROGRESS INDICATION has its progress.
    ///
    /// See [`Sense::with_progress`].
    pub const SANITIZE_IN_PROGRESS: Self = Self::new(SenseKey::NotReady, 0x04, 0x1b);
    /// A block is not writable; INFORMATION has it.
    pub const WRITE_ERROR: Self = Self::new(SenseKey::MediumError, 0x0c, 0x00);
    /// A block is unreadable; INFORMATION has it.
    pub const UNRECOVERED_READ_ERROR: Self = Self::new(SenseKey::MediumError, 0x11, 0x00);
    /// A sanitize operation failed: some blocks may hold neither their old data nor sanitized data.
    pub const SANITIZE_COMMAND_FAILED: Self = Self::new(SenseKey::MediumError, 0x31, 0x03);
    /// The storage below the unit failed to execute the command.
    pub const INTERNAL_TARGET_FAILURE: Self = Self::new(SenseKey::HardwareError, 0x44, 0x00);
    /// A copy with the same list identifier is still running.
    pub const OPERATION_IN_PROGRESS: Self = Self::new(SenseKey::IllegalRequest, 0x00, 0x16);
    /// The write data is not a whole number of blocks, or not as long as the command requires.
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Self =
        Self::new(SenseKey::IllegalRequest, 0x0e, 0x03);
    /// The parameter list is shorter than its length fields say, or than the command requires.
    pub const PARAMETER_LIST_LENGTH_ERROR: Self = Self::new(SenseKey::IllegalRequest, 0x1a, 0x00);
    /// The unit has no such command.
    pub const INVALID_COMMAND_OPERATION_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x20, 0x00);
    /// The command addresses blocks beyond the last block.
    pub const LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE: Self =
        Self::new(SenseKey::IllegalRequest, 0x21, 0x00);
    /// The ROD token was not made by this target.
    pub const TOKEN_UNKNOWN: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x04);
    /// The data of the ROD token was overwritten after the token was made.
    pub const TOKEN_REVOKED: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x06);
    /// The ROD token was unused for longer than its inactivity timeout.
    pub const TOKEN_EXPIRED: Self = Self::new(SenseKey::IllegalRequest, 0x23, 0x07);
    /// The CDB has an invalid field, to which the sense data points.
    ///
    /// [`Sense::invalid_field_in_cdb`] adds the pointer.
    pub const INVALID_FIELD_IN_CDB: Self = Self::new(SenseKey::IllegalRequest, 0x24, 0x00);
    /// The target has no such logical unit, or the unit was removed during the command.
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Self = Self::new(SenseKey::IllegalRequest, 0x25, 0x00);
    /// The parameter list has an invalid field, to which the sense data points.
    ///
    /// [`Sense::invalid_field_in_parameter_list`] adds the pointer.
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x00);
    /// The list of EXTENDED COPY has more than 8 CSCD descriptors.
    ///
    /// The limit is [`limits::CSCDS`](crate::copy::limits::CSCDS).
    pub const TOO_MANY_TARGET_DESCRIPTORS: Self = Self::new(SenseKey::IllegalRequest, 0x26, 0x06);
    /// The list of EXTENDED COPY has a CSCD descriptor of a type other than E4h.
    pub const UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x07);
    /// The list of EXTENDED COPY has more than 64 segment descriptors.
    ///
    /// The limit is [`limits::SEGMENTS`](crate::copy::limits::SEGMENTS).
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Self = Self::new(SenseKey::IllegalRequest, 0x26, 0x08);
    /// The list of EXTENDED COPY has a segment descriptor of a type other than 02h.
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x09);
    /// RELEASE of PERSISTENT RESERVE OUT named a type that differs from the type of the
    /// reservation.
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Self =
        Self::new(SenseKey::IllegalRequest, 0x26, 0x04);
    /// The medium is ejected.
    pub const MEDIUM_NOT_PRESENT: Self = Self::new(SenseKey::NotReady, 0x3a, 0x00);
    /// Another initiator has prevented the removal of the medium, or owns the claim.
    pub const MEDIUM_REMOVAL_PREVENTED: Self = Self::new(SenseKey::IllegalRequest, 0x53, 0x02);
    /// The unit has 4,096 registrations already.
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Self =
        Self::new(SenseKey::IllegalRequest, 0x55, 0x04);
    /// The unit does not save mode pages.
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Self =
        Self::new(SenseKey::IllegalRequest, 0x39, 0x00);
    /// Reported with the first command of a session: power on, reset, or bus device reset occurred.
    pub const POWER_ON_OCCURRED: Self = Self::new(SenseKey::UnitAttention, 0x29, 0x00);
    /// The target was reset. Also reported to the initiator that asked for it.
    pub const SCSI_BUS_RESET_OCCURRED: Self = Self::new(SenseKey::UnitAttention, 0x29, 0x02);
    /// The logical unit was reset.
    pub const BUS_DEVICE_RESET_FUNCTION_OCCURRED: Self =
        Self::new(SenseKey::UnitAttention, 0x29, 0x03);
    /// The medium was removed and inserted again.
    pub const MEDIUM_MAY_HAVE_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x28, 0x00);
    /// Another nexus changed mode parameters.
    pub const MODE_PARAMETERS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x01);
    /// Another nexus set the clock.
    pub const TIMESTAMP_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x10);
    /// Another nexus changed the identifying information.
    pub const DEVICE_IDENTIFIER_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x3f, 0x05);
    /// Another nexus removed the registration of this nexus and cleared the reservation.
    pub const RESERVATIONS_PREEMPTED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x03);
    /// Another nexus released the reservation or changed its type.
    pub const RESERVATIONS_RELEASED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x04);
    /// Another nexus removed the registration of this nexus.
    pub const REGISTRATIONS_PREEMPTED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x05);
    /// A thin volume uses more than its soft threshold.
    pub const THIN_PROVISIONING_SOFT_THRESHOLD_REACHED: Self =
        Self::new(SenseKey::UnitAttention, 0x38, 0x07);
    /// Logical units were added to the target or removed from it. Reported once for a session, and
    /// not after REPORT LUNS.
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x3f, 0x0e);
    /// The size of the volume changed.
    pub const CAPACITY_DATA_HAS_CHANGED: Self = Self::new(SenseKey::UnitAttention, 0x2a, 0x09);
    /// Another nexus cleared the task set.
    pub const COMMANDS_CLEARED_BY_ANOTHER_INITIATOR: Self =
        Self::new(SenseKey::UnitAttention, 0x2f, 0x00);
    /// Commands were aborted because their iSCSI connection ended (RFC 7143, 11.14.5).
    pub const SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT: Self =
        Self::new(SenseKey::UnitAttention, 0x47, 0x7f);
    /// The volume is read-only.
    pub const WRITE_PROTECTED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x00);
    /// Another cache has claimed the unit: only the owner of the claim, the gateway with the unit's
    /// dirty data, may write.
    pub const LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED: Self =
        Self::new(SenseKey::DataProtect, 0x27, 0x02);
    /// Vendor specific: a later opening of the same log has claimed the unit, or the claim was
    /// dropped. The answer to reads, writes and flushes of the session, which is fenced.
    pub const CLAIM_FENCED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x80);
    /// Vendor specific: another log holds the claim on this unit.
    pub const CLAIM_HELD_BY_ANOTHER_LOG: Self = Self::new(SenseKey::DataProtect, 0x27, 0x81);
    /// Vendor specific: the claim on record at the unit is older than the claim that this log was
    /// granted. The unit was probably restored from a backup.
    pub const CLAIM_WENT_BACK: Self = Self::new(SenseKey::DataProtect, 0x27, 0x82);
    /// Vendor specific: the operator of the unit has dropped the claim of this log.
    pub const CLAIM_DROPPED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x83);
    /// Vendor specific: other initiators may have changed the unit since this log collected its
    /// dirty data.
    pub const CLAIM_OUT_OF_DATE: Self = Self::new(SenseKey::DataProtect, 0x27, 0x84);
    /// Vendor specific: a session of the previous opening of the log still exists. Only an explicit
    /// takeover may fence that session, so that a copy of a log which is started by accident
    /// cannot.
    pub const CLAIM_OWNER_IS_PRESENT: Self = Self::new(SenseKey::DataProtect, 0x27, 0x85);
    /// Vendor specific: the gateway requests a shared claim on a unit that is not set up for
    /// sharing, or an exclusive one on a unit that is.
    pub const CLAIM_NOT_SHARED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x86);
    /// Vendor specific: the log ends before the newest write that it has confirmed to the unit, so
    /// the log is an older copy. INFORMATION holds the number of the confirmed write.
    pub const CLAIM_BEHIND: Self = Self::new(SenseKey::DataProtect, 0x27, 0x87);
    /// Vendor specific: a read by another initiator is refused. The owner of the claim has no
    /// session and has sent only a part of an epoch to the unit, so the unit does not hold a
    /// consistent prefix.
    pub const CLAIM_HALF_AN_EPOCH: Self = Self::new(SenseKey::DataProtect, 0x27, 0x88);
    /// A thin volume has no space left (SPACE ALLOCATION FAILED WRITE PROTECT).
    pub const SPACE_ALLOCATION_FAILED: Self = Self::new(SenseKey::DataProtect, 0x27, 0x07);
    /// A copy is impossible, or it was stopped or failed before it was complete.
    pub const COPY_ABORTED: Self = Self::new(SenseKey::CopyAborted, 0x00, 0x00);
    /// The storage below the unit did not answer in time. The command was executed up to the block
    /// in INFORMATION, or it is not known whether it was executed.
    pub const LOGICAL_UNIT_COMMUNICATION_TIME_OUT: Self =
        Self::new(SenseKey::AbortedCommand, 0x08, 0x01);
    /// The block size of a unit that takes part in a copy differs from the size that the list
    /// states, or from the block size of the other unit.
    pub const INCORRECT_COPY_TARGET_DEVICE_TYPE: Self =
        Self::new(SenseKey::CopyAborted, 0x0d, 0x03);
    /// A copy names a unit that the target of the session does not have.
    pub const UNREACHABLE_COPY_TARGET: Self = Self::new(SenseKey::CopyAborted, 0x08, 0x04);
    /// A unit that takes part in a copy refused a command of the copy. If the unit was busy, the
    /// status is BUSY instead.
    pub const THIRD_PARTY_DEVICE_FAILURE: Self = Self::new(SenseKey::CopyAborted, 0x0d, 0x01);
    /// The target has no space for another ROD token at present, or a claimed unit with epochs was
    /// to make one (POPULATE TOKEN).
    pub const INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN: Self =
        Self::new(SenseKey::CopyAborted, 0x55, 0x0d);
    /// Unsolicited data arrived although the login had not negotiated it.
    pub const UNEXPECTED_UNSOLICITED_DATA: Self = Self::new(SenseKey::AbortedCommand, 0x0c, 0x0c);
    /// The amount of write data that arrived differs from the expected amount.
    pub const INCORRECT_AMOUNT_OF_DATA: Self = Self::new(SenseKey::AbortedCommand, 0x0c, 0x0d);
    /// An initiator requested the retransmission of data that is no longer kept.
    pub const SNACK_REJECTED: Self = Self::new(SenseKey::AbortedCommand, 0x11, 0x13);
    /// Data arrived with a digest error, and its retransmission could not be requested.
    pub const PROTOCOL_SERVICE_CRC_ERROR: Self = Self::new(SenseKey::AbortedCommand, 0x47, 0x05);
    /// VERIFY or COMPARE AND WRITE found other data than was sent. INFORMATION has the block, or
    /// the offset of the first difference.
    pub const MISCOMPARE_DURING_VERIFY: Self = Self::new(SenseKey::Miscompare, 0x1d, 0x00);
}

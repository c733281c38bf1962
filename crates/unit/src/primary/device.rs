//! The answers of a device type to the commands that all device types share.

use scsi::{
    OperationCodeEntry, Sense,
    inquiry::StandardInquiry,
    log::LogPage,
    mode::{BlockDescriptor, ModePage, ModeParameters},
};

use super::modes::Modes;
use crate::{Completion, abilities::UnitFuture};

/// The properties of a unit that depend on its SCSI device type.
pub trait DeviceType {
    /// Returns the standard INQUIRY data, which contains the device type.
    fn inquiry(&self) -> StandardInquiry;

    /// Returns the codes of the VPD pages that the device type adds, in any order.
    fn vpd_pages(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns VPD page `_page` with its header if it is one of [`Self::vpd_pages`]; otherwise `None`.
    fn vpd_page(&self, _page: u8) -> Option<Vec<u8>> {
        None
    }

    /// Returns the log pages that the device type adds, ascending by page code, all below 2Fh.
    fn log_pages(&self) -> Vec<LogPage> {
        Vec::new()
    }

    /// Returns all commands whose CDBs the unit can parse, ascending by operation code and service action.
    fn operations(&self) -> Vec<&'static OperationCodeEntry>;

    /// Returns true if the unit can perform a command of [`Self::operations`] in its present state.
    fn serves(&self, _operation: &OperationCodeEntry) -> bool {
        true
    }

    /// Checks that TEST UNIT READY succeeds.
    ///
    /// # Errors
    /// The sense data of the answer.
    fn check_ready(&self) -> Result<(), Sense> {
        Ok(())
    }

    /// Returns the sense data of REQUEST SENSE if no unit attention condition waits, for example while a
    /// SANITIZE is running.
    fn condition(&self) -> Option<Sense> {
        None
    }
}

/// The mode parameters that depend on the device type. The Control mode page and the Informational Exceptions Control
/// mode page belong to every device type and come from [`PrimaryUnit`](super::PrimaryUnit).
pub trait DeviceModes: Send + Sync {
    /// Returns the mode parameters without pages. They have a block descriptor if the device type has one, in its
    /// long form if `long_lba` is set.
    fn mode_header(&self, modes: Modes, long_lba: bool) -> ModeParameters;

    /// Returns true if a MODE SELECT with this block descriptor is allowed for the device type.
    fn takes_block_descriptor(&self, wanted: &BlockDescriptor) -> bool;

    /// Returns the mode pages of the device type with these values, in any order. `saveable` is set in a page that has
    /// values of [`Modes`].
    fn mode_pages(&self, modes: Modes) -> Vec<ModePage>;

    /// Returns `modes` with the values that `page`, one of [`Self::mode_pages`], contains.
    fn with_mode_page(&self, modes: Modes, page: &ModePage) -> Modes;

    /// Prepares the change of the values from `before` to `wanted` by a nexus, for example flushes a write
    /// cache.
    ///
    /// # Errors
    /// The completion of a MODE SELECT that changes nothing.
    fn before_mode_change(
        &self,
        nexus: u64,
        before: Modes,
        wanted: Modes,
    ) -> UnitFuture<'_, Result<(), Completion>>;
}

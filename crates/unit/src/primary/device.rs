//! What a device type adds to the answers of the commands that all device types share.

use scsi::{OperationCodeEntry, Sense, inquiry::StandardInquiry, log::LogPage};

/// The facts about a unit that depend on its device type.
pub trait DeviceType {
    /// Standard INQUIRY data, with the device type in it.
    fn inquiry(&self) -> StandardInquiry;

    /// Codes of the VPD pages that the device type adds, in any order.
    fn vpd_pages(&self) -> Vec<u8> {
        Vec::new()
    }

    /// A VPD page of [`Self::vpd_pages`], header included; `None` for any other page.
    fn vpd_page(&self, _page: u8) -> Option<Vec<u8>> {
        None
    }

    /// Log pages that the device type adds, ascending by page code, all below 2Fh.
    fn log_pages(&self) -> Vec<LogPage> {
        Vec::new()
    }

    /// All commands whose CDBs the unit can read, ascending by operation code and service action.
    fn operations(&self) -> Vec<&'static OperationCodeEntry>;

    /// Returns true if the unit can perform a command of [`Self::operations`] in its present state.
    fn serves(&self, _operation: &OperationCodeEntry) -> bool {
        true
    }

    /// Why TEST UNIT READY fails.
    ///
    /// # Errors
    /// The sense data of the answer.
    fn check_ready(&self) -> Result<(), Sense> {
        Ok(())
    }

    /// What REQUEST SENSE reports if no unit attention condition waits, such as work that is going on.
    fn condition(&self) -> Option<Sense> {
        None
    }
}

//! The refusal of a command after which a volume has older content, while hosts may still have it mounted.

use std::fmt;

use control::Failure;

/// Returns the refusal of `command`, which discards acknowledged writes of `what`. A host that has the volume mounted
/// reconnects by itself, and writes what it has in memory over the older content.
pub fn hosts_may_be_mounted(what: impl fmt::Display, command: &str) -> Failure {
    Failure::new(format!(
        "{what}: it is not stated that all hosts have unmounted the volume; a host that has it mounted reconnects \
         to the older content and damages its file system"
    ))
    .remedy(format!(
        "unmount the volume at every host and log out there (`umount FOLDER`, `iscsiadm --logout`), then `{command}`"
    ))
}

//! The service actions of the OSD commands (OSD-2, 6).

/// VARIABLE LENGTH CDB, the operation code of every OSD command.
pub const OPERATION_CODE: u8 = 0x7f;

macro_rules! service_actions {
    ($($(#[$about:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// A service action of OSD-2.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(u16)]
        pub enum ServiceAction {
            $($(#[$about])* $name = $code,)*
        }

        impl ServiceAction {
            /// All service actions, ascending by code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the service action with this code; `None` for a code of OSD-1, a vendor
            /// specific and an unknown code.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the name in OSD-2.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

// The comment of each service action says what the initiator sends and the drive returns, without
// attributes, and which permissions the command needs: always, and after a semicolon in some cases.
// `cargo xtask reference` makes a table of `docs/protocols.md` from the comments, and a test
// compares the table with the code.
service_actions! {
    /// Needs the permission object-management.
    ObjectStructureCheck = 0x8880, "OBJECT STRUCTURE CHECK";
    /// Needs the permissions object-management, global.
    FormatOsd = 0x8881, "FORMAT OSD";
    /// Needs the permission create.
    Create = 0x8882, "CREATE";
    /// Returns the partitions of the root or the user objects of a partition. Needs the permission
    /// read.
    List = 0x8883, "LIST";
    /// Needs the permission write.
    Punch = 0x8884, "PUNCH";
    /// Sends the ranges, if there are several. Returns data. Needs the permission read.
    Read = 0x8885, "READ";
    /// Sends the ranges, if there are several, and data. Needs the permission write.
    Write = 0x8886, "WRITE";
    /// Sends data. Needs the permission append or write.
    Append = 0x8887, "APPEND";
    /// Needs the permission object-management.
    Flush = 0x8888, "FLUSH";
    /// Needs the permission write.
    Clear = 0x8889, "CLEAR";
    /// Needs the permission remove.
    Remove = 0x888a, "REMOVE";
    /// Needs the permission create.
    CreatePartition = 0x888b, "CREATE PARTITION";
    /// Needs the permission remove; global-remove if it has contents.
    RemovePartition = 0x888c, "REMOVE PARTITION";
    /// Needs the permission get-attributes.
    GetAttributes = 0x888e, "GET ATTRIBUTES";
    /// Needs the permission set-attributes.
    SetAttributes = 0x888f, "SET ATTRIBUTES";
    /// Sends data. Needs the permissions write, create.
    CreateAndWrite = 0x8892, "CREATE AND WRITE";
    /// Sends the source. Needs the permissions write, create; global for the source.
    CopyUserObjects = 0x8893, "COPY USER OBJECTS";
    /// Needs the permission create; global with a source.
    CreateUserTrackingCollection = 0x8894, "CREATE USER TRACKING COLLECTION";
    /// Needs the permission create.
    CreateCollection = 0x8895, "CREATE COLLECTION";
    /// Needs the permission remove.
    RemoveCollection = 0x8896, "REMOVE COLLECTION";
    /// Returns the collections of a partition or the members of a collection. Needs the permission
    /// read.
    ListCollection = 0x8897, "LIST COLLECTION";
    /// Needs the permission policy-security; device-management for the root key.
    SetKey = 0x8898, "SET KEY";
    /// Sends parameters. Returns parameters. Needs the permissions device-management,
    /// policy-security.
    SetMasterKey = 0x8899, "SET MASTER KEY";
    /// Needs the permission object-management.
    FlushCollection = 0x889a, "FLUSH COLLECTION";
    /// Needs the permission object-management.
    FlushPartition = 0x889b, "FLUSH PARTITION";
    /// Needs the permission object-management.
    FlushOsd = 0x889c, "FLUSH OSD";
    /// Sends the criteria. Returns the matches, unless they become members. Needs the permissions
    /// read, query; write, global if they do.
    Query = 0x88a0, "QUERY";
    /// Needs the permissions remove, member-objects.
    RemoveMemberObjects = 0x88a1, "REMOVE MEMBER OBJECTS";
    /// Needs the permissions get-attributes, member-objects.
    GetMemberAttributes = 0x88a2, "GET MEMBER ATTRIBUTES";
    /// Needs the permissions set-attributes, member-objects.
    SetMemberAttributes = 0x88a3, "SET MEMBER ATTRIBUTES";
    /// Needs the permissions write, create.
    CreateClone = 0x88a8, "CREATE CLONE";
    /// Needs the permissions write, create.
    CreateSnapshot = 0x88a9, "CREATE SNAPSHOT";
    /// Needs the permission object-management.
    DetachClone = 0x88aa, "DETACH CLONE";
    /// Needs the permission object-management.
    RefreshSnapshotOrClone = 0x88ab, "REFRESH SNAPSHOT OR CLONE";
    /// Needs the permissions write, object-management.
    RestorePartitionFromSnapshot = 0x88ac, "RESTORE PARTITION FROM SNAPSHOT";
    /// Returns a map. Needs the permission read.
    ReadMap = 0x88b1, "READ MAP";
    /// Sends the identifiers of a second object. Returns a map. Needs the permission read; for the
    /// second object the permission global.
    ReadMapsAndCompare = 0x88b2, "READ MAPS AND COMPARE";
    /// Returns the data of the command. Needs the permission device-management.
    PerformScsiCommand = 0x8f7c, "PERFORM SCSI COMMAND";
    /// Needs the permission device-management.
    PerformTaskManagementFunction = 0x8f7d, "PERFORM TASK MANAGEMENT FUNCTION";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_convert_both_ways() {
        assert!(ServiceAction::ALL.is_sorted());
        for &action in ServiceAction::ALL {
            assert_eq!(ServiceAction::from_code(action as u16), Some(action));
        }
    }

    #[test]
    fn codes_of_osd_1_are_unknown() {
        for code in (0x8801..=0x881f).chain([0x8f7e, 0x8f7f, 0x888d, 0x8f80]) {
            assert_eq!(ServiceAction::from_code(code), None, "{code:04x}");
        }
    }
}

//! The service actions of the OSD commands (OSD-2, 6).

/// VARIABLE LENGTH CDB, the operation code of every OSD command.
pub const OPERATION_CODE: u8 = 0x7f;

macro_rules! service_actions {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// A service action of OSD-2.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(u16)]
        pub enum ServiceAction {
            $($name = $code,)*
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

service_actions! {
    ObjectStructureCheck = 0x8880, "OBJECT STRUCTURE CHECK";
    FormatOsd = 0x8881, "FORMAT OSD";
    Create = 0x8882, "CREATE";
    List = 0x8883, "LIST";
    Punch = 0x8884, "PUNCH";
    Read = 0x8885, "READ";
    Write = 0x8886, "WRITE";
    Append = 0x8887, "APPEND";
    Flush = 0x8888, "FLUSH";
    Clear = 0x8889, "CLEAR";
    Remove = 0x888a, "REMOVE";
    CreatePartition = 0x888b, "CREATE PARTITION";
    RemovePartition = 0x888c, "REMOVE PARTITION";
    GetAttributes = 0x888e, "GET ATTRIBUTES";
    SetAttributes = 0x888f, "SET ATTRIBUTES";
    CreateAndWrite = 0x8892, "CREATE AND WRITE";
    CopyUserObjects = 0x8893, "COPY USER OBJECTS";
    CreateUserTrackingCollection = 0x8894, "CREATE USER TRACKING COLLECTION";
    CreateCollection = 0x8895, "CREATE COLLECTION";
    RemoveCollection = 0x8896, "REMOVE COLLECTION";
    ListCollection = 0x8897, "LIST COLLECTION";
    SetKey = 0x8898, "SET KEY";
    SetMasterKey = 0x8899, "SET MASTER KEY";
    FlushCollection = 0x889a, "FLUSH COLLECTION";
    FlushPartition = 0x889b, "FLUSH PARTITION";
    FlushOsd = 0x889c, "FLUSH OSD";
    Query = 0x88a0, "QUERY";
    RemoveMemberObjects = 0x88a1, "REMOVE MEMBER OBJECTS";
    GetMemberAttributes = 0x88a2, "GET MEMBER ATTRIBUTES";
    SetMemberAttributes = 0x88a3, "SET MEMBER ATTRIBUTES";
    CreateClone = 0x88a8, "CREATE CLONE";
    CreateSnapshot = 0x88a9, "CREATE SNAPSHOT";
    DetachClone = 0x88aa, "DETACH CLONE";
    RefreshSnapshotOrClone = 0x88ab, "REFRESH SNAPSHOT OR CLONE";
    RestorePartitionFromSnapshot = 0x88ac, "RESTORE PARTITION FROM SNAPSHOT";
    ReadMap = 0x88b1, "READ MAP";
    ReadMapsAndCompare = 0x88b2, "READ MAPS AND COMPARE";
    PerformScsiCommand = 0x8f7c, "PERFORM SCSI COMMAND";
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

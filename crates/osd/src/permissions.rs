//! The permissions of a capability, and those that each command needs (OSD-2, 4.11.3).

use std::ops::{BitOr, BitOrAssign};

use object::{Command, KeyToSet, SetKeyRequest};

/// The PERMISSIONS BIT MASK of a capability, its bytes 49 and 50. Bytes 51 to 53 are reserved.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Permissions(pub u16);

impl Permissions {
    pub const NONE: Self = Self(0);
    pub const READ: Self = Self(0x8000);
    pub const WRITE: Self = Self(0x4000);
    pub const GET_ATTRIBUTES: Self = Self(0x2000);
    pub const SET_ATTRIBUTES: Self = Self(0x1000);
    pub const CREATE: Self = Self(0x0800);
    pub const REMOVE: Self = Self(0x0400);
    pub const OBJECT_MANAGEMENT: Self = Self(0x0200);
    pub const APPEND: Self = Self(0x0100);
    pub const DEVICE_MANAGEMENT: Self = Self(0x0080);
    pub const GLOBAL: Self = Self(0x0040);
    pub const POLICY_SECURITY: Self = Self(0x0020);
    pub const MEMBER_OBJECTS: Self = Self(0x0010);
    pub const QUERY: Self = Self(0x0008);
    pub const GLOBAL_REMOVE: Self = Self(0x0004);

    /// All permissions with their names on the command line.
    pub const NAMES: [(Self, &'static str); 14] = [
        (Self::READ, "read"),
        (Self::WRITE, "write"),
        (Self::GET_ATTRIBUTES, "get-attributes"),
        (Self::SET_ATTRIBUTES, "set-attributes"),
        (Self::CREATE, "create"),
        (Self::REMOVE, "remove"),
        (Self::OBJECT_MANAGEMENT, "object-management"),
        (Self::APPEND, "append"),
        (Self::DEVICE_MANAGEMENT, "device-management"),
        (Self::GLOBAL, "global"),
        (Self::POLICY_SECURITY, "policy-security"),
        (Self::MEMBER_OBJECTS, "member-objects"),
        (Self::QUERY, "query"),
        (Self::GLOBAL_REMOVE, "global-remove"),
    ];

    #[must_use]
    pub const fn contain(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Returns true if the permissions suffice for a command. Does not check its lists of
    /// attributes.
    #[must_use]
    pub fn suffice_for(self, command: &Command) -> bool {
        if matches!(command, Command::Append { .. }) {
            return self.contain(Self::APPEND) || self.contain(Self::WRITE);
        }
        self.contain(needed_for(command))
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Permissions {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Returns all permissions that a command needs, apart from those for its lists of attributes. For
/// APPEND it is one of two: see [`Permissions::suffice_for`].
fn needed_for(command: &Command) -> Permissions {
    match command {
        Command::Read { .. }
        | Command::ReadMap { .. }
        | Command::ReadMapsAndCompare { .. }
        | Command::List { .. }
        | Command::ListCollection { .. } => Permissions::READ,
        Command::Query { matches: 0, .. } => Permissions::READ | Permissions::QUERY,
        Command::Query { .. } => Permissions::READ | Permissions::QUERY | Permissions::WRITE,
        Command::Write { .. } | Command::Clear { .. } | Command::Punch { .. } => Permissions::WRITE,
        Command::Append { .. } => Permissions::APPEND,
        Command::Create { .. }
        | Command::CreatePartition { .. }
        | Command::CreateCollection { .. }
        | Command::CreateUserTrackingCollection { .. } => Permissions::CREATE,
        Command::CreateAndWrite { .. }
        | Command::CopyUserObjects { .. }
        | Command::CreateSnapshot { .. }
        | Command::CreateClone { .. } => Permissions::CREATE | Permissions::WRITE,
        Command::Remove { .. }
        | Command::RemovePartition { with_contents: false, .. }
        | Command::RemoveCollection { .. } => Permissions::REMOVE,
        Command::RemovePartition { with_contents: true, .. } => {
            Permissions::REMOVE | Permissions::GLOBAL_REMOVE
        }
        Command::RemoveMemberObjects { .. } => Permissions::REMOVE | Permissions::MEMBER_OBJECTS,
        Command::GetAttributes { .. } => Permissions::GET_ATTRIBUTES,
        Command::SetAttributes { .. } => Permissions::SET_ATTRIBUTES,
        Command::GetMemberAttributes { .. } => {
            Permissions::GET_ATTRIBUTES | Permissions::MEMBER_OBJECTS
        }
        Command::SetMemberAttributes { .. } => {
            Permissions::SET_ATTRIBUTES | Permissions::MEMBER_OBJECTS
        }
        Command::Flush { .. }
        | Command::FlushCollection { .. }
        | Command::FlushPartition { .. }
        | Command::FlushOsd { .. }
        | Command::ObjectStructureCheck { .. }
        | Command::DetachClone { .. }
        | Command::RefreshSnapshotOrClone { .. } => Permissions::OBJECT_MANAGEMENT,
        Command::RestorePartitionFromSnapshot { .. } => {
            Permissions::OBJECT_MANAGEMENT | Permissions::WRITE
        }
        Command::FormatOsd { .. } => Permissions::OBJECT_MANAGEMENT | Permissions::GLOBAL,
        Command::SetKey(SetKeyRequest { key: KeyToSet::Root, .. })
        | Command::SetMasterKey { .. } => {
            Permissions::DEVICE_MANAGEMENT | Permissions::POLICY_SECURITY
        }
        Command::SetKey(_) => Permissions::POLICY_SECURITY,
        Command::PerformScsiCommand { .. } | Command::PerformTaskManagementFunction { .. } => {
            Permissions::DEVICE_MANAGEMENT
        }
    }
}

#[cfg(test)]
mod tests {
    use object::ObjectAddress;

    use super::*;

    #[test]
    fn an_append_needs_either_of_two_permissions() {
        let append = Command::Append { object: ObjectAddress::new(1, 2), length: 1 };
        assert!(Permissions::APPEND.suffice_for(&append));
        assert!(Permissions::WRITE.suffice_for(&append));
        assert!(!Permissions::READ.suffice_for(&append));
    }

    #[test]
    fn every_needed_permission_must_be_there() {
        let create = Command::CreateAndWrite { partition: 1, requested: 0, length: 1, start: 0 };
        assert!(!Permissions::CREATE.suffice_for(&create));
        assert!(!Permissions::WRITE.suffice_for(&create));
        assert!((Permissions::CREATE | Permissions::WRITE).suffice_for(&create));
    }

    #[test]
    fn each_permission_has_one_bit_and_one_name() {
        let mut all = Permissions::NONE;
        for (permission, name) in Permissions::NAMES {
            assert_eq!(permission.0.count_ones(), 1, "{name}");
            assert!(!all.contain(permission), "{name}");
            all |= permission;
        }
        assert_eq!(all.0, 0xfffc);
    }
}

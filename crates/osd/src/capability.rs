//! Capabilities: statements of what a client may do, signed by the drive's owner (OSD-2, 4.11).

use object::{Command, ObjectAddress, ObjectType, Timestamp};

use crate::{
    bytes::{array_at, put, u16_at, u32_at, u64_at},
    layout::{CAPABILITY, CAPABILITY_BYTES},
    permissions::Permissions,
    refusal::Refusal,
    security::{Algorithm, SecurityMethod},
};

/// CAPABILITY FORMAT of a command without capability.
const FORMAT_NONE: u8 = 0;
/// CAPABILITY FORMAT of OSD-1, which the initiator of Linux writes into CDBs of OSD-2.
const FORMAT_OSD_1: u8 = 1;
const FORMAT_OSD_2: u8 = 2;

/// A capability of OSD-2: its holder may use one object in certain ways (OSD-2, 4.11).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capability {
    /// KEY VERSION of the working key, 0 to 15.
    pub key_version: u8,
    pub algorithm: Algorithm,
    pub method: SecurityMethod,
    /// The capability is not valid after this time. Zero: no limit.
    pub expiration: Timestamp,
    /// AUDIT: a value that the signer chooses, for its own records.
    pub audit: [u8; 20],
    /// CAPABILITY DISCRIMINATOR: makes two capabilities of the same content different.
    pub discriminator: [u8; 12],
    /// OBJECT CREATED TIME: the capability is not valid for a later object with the same
    /// identifiers. Zero: not checked.
    pub created: Timestamp,
    pub object_type: ObjectType,
    pub permissions: Permissions,
    /// ALLOWED ATTRIBUTES ACCESS. Forebay does not check this field.
    pub attributes_access: u32,
    /// POLICY ACCESS TAG: must equal that of the object; zero: not checked.
    pub policy_tag: u32,
    /// BOOT EPOCH: must equal that of the drive; zero: not checked.
    pub boot_epoch: u16,
    pub object: ObjectAddress,
    /// The bytes of a user object that the capability is valid for.
    pub range: AllowedRange,
}

/// A range of bytes of a user object, which a capability permits to access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AllowedRange {
    pub start: u64,
    /// FFFFFFFFFFFFFFFFh: to the end of the object, wherever that is.
    pub length: u64,
}

impl AllowedRange {
    pub const ALL: Self = Self { start: 0, length: u64::MAX };

    /// Returns true if the bytes `start .. start + length` are in the range. A range that wraps
    /// around contains nothing.
    #[must_use]
    pub fn contains(self, start: u64, length: u64) -> bool {
        let end = if self.length == u64::MAX {
            Some(u64::MAX)
        } else {
            self.start.checked_add(self.length)
        };
        let (Some(end), Some(wanted)) = (end, start.checked_add(length)) else { return false };
        start >= self.start && wanted <= end
    }
}

impl Capability {
    /// Returns a capability with these permissions for one object and all of its bytes: without
    /// expiry, discriminator and policy tag, for key version 0.
    #[must_use]
    pub fn for_object(
        object: ObjectAddress,
        object_type: ObjectType,
        permissions: Permissions,
        method: SecurityMethod,
    ) -> Self {
        Self {
            key_version: 0,
            algorithm: Algorithm::HmacSha256,
            method,
            expiration: Timestamp::ZERO,
            audit: [0; 20],
            discriminator: [0; 12],
            created: Timestamp::ZERO,
            object_type,
            permissions,
            attributes_access: 0,
            policy_tag: 0,
            boot_epoch: 0,
            object,
            range: AllowedRange::ALL,
        }
    }

    /// Parses the capability of a CDB of 236 bytes. Returns `None` for a command without one: with
    /// CAPABILITY FORMAT zero, or that of OSD-1. Such a command passes only where no security is
    /// required.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to a field of the capability that has a reserved value.
    pub fn parse_in_cdb(cdb: &[u8]) -> Result<Option<Self>, Refusal> {
        let capability = cdb.get(CAPABILITY..CAPABILITY + CAPABILITY_BYTES);
        let capability = capability.ok_or(Refusal::field(CAPABILITY as u16))?;
        Self::parse(capability).map_err(|at| Refusal::field((CAPABILITY + at) as u16))
    }

    /// Parses a capability of [`CAPABILITY_BYTES`] bytes. See [`Self::parse_in_cdb`].
    ///
    /// # Errors
    /// The offset of a field that has a reserved value.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, usize> {
        match bytes.first().ok_or(0usize)? & 0x0f {
            FORMAT_NONE | FORMAT_OSD_1 => return Ok(None),
            FORMAT_OSD_2 => {}
            _ => return Err(0),
        }
        let time = |at| array_at(bytes, at).map(Timestamp::from_bytes).ok_or(at);
        let word = |at| u32_at(bytes, at).ok_or(at);
        let long = |at| u64_at(bytes, at).ok_or(at);
        let object_type = ObjectType::from_code(*bytes.get(48).ok_or(48usize)?).ok_or(48usize)?;
        let capability = Self {
            key_version: bytes[1] >> 4,
            algorithm: Algorithm::from_code(bytes[1] & 0x0f).ok_or(1usize)?,
            method: SecurityMethod::from_code(bytes[2] & 0x0f).ok_or(2usize)?,
            expiration: time(4)?,
            audit: array_at(bytes, 10).ok_or(10usize)?,
            discriminator: array_at(bytes, 30).ok_or(30usize)?,
            created: time(42)?,
            object_type,
            permissions: Permissions(u16_at(bytes, 49).ok_or(49usize)?),
            attributes_access: word(56)?,
            policy_tag: word(60)?,
            boot_epoch: u16_at(bytes, 64).ok_or(64usize)?,
            object: ObjectAddress::new(long(72)?, long(80)?),
            range: AllowedRange { length: long(88)?, start: long(96)? },
        };
        if bytes[55] >> 4 != descriptor_type(object_type) {
            return Err(55);
        }
        Ok(Some(capability))
    }

    #[must_use]
    pub fn to_bytes(&self) -> [u8; CAPABILITY_BYTES] {
        let mut bytes = [0; CAPABILITY_BYTES];
        bytes[0] = FORMAT_OSD_2;
        bytes[1] = self.key_version << 4 | self.algorithm as u8;
        bytes[2] = self.method as u8;
        put(&mut bytes, 4, &self.expiration.to_bytes());
        put(&mut bytes, 10, &self.audit);
        put(&mut bytes, 30, &self.discriminator);
        put(&mut bytes, 42, &self.created.to_bytes());
        bytes[48] = self.object_type as u8;
        put(&mut bytes, 49, &self.permissions.0.to_be_bytes());
        bytes[55] = descriptor_type(self.object_type) << 4;
        put(&mut bytes, 56, &self.attributes_access.to_be_bytes());
        put(&mut bytes, 60, &self.policy_tag.to_be_bytes());
        put(&mut bytes, 64, &self.boot_epoch.to_be_bytes());
        put(&mut bytes, 72, &self.object.partition.to_be_bytes());
        put(&mut bytes, 80, &self.object.object.to_be_bytes());
        put(&mut bytes, 88, &self.range.length.to_be_bytes());
        put(&mut bytes, 96, &self.range.start.to_be_bytes());
        bytes
    }

    /// Checks that the capability permits a command: its permissions, its object and its range. The
    /// caller checks the integrity, the times, the policy tag and the attributes lists.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to the permissions, the identifiers or the start of the range.
    pub fn check(&self, command: &Command) -> Result<(), Refusal> {
        if !self.permissions.suffice_for(command) {
            return Err(Refusal::field(PERMISSIONS_IN_CDB));
        }
        let object = command.object();
        if self.object.partition != object.partition {
            return Err(Refusal::field(16));
        }
        // The allowed identifier zero of a user object or collection lets the drive choose one.
        let is_new = command.creates() && object.object == 0;
        if self.object.object != object.object && !(is_new && self.object.object == 0) {
            return Err(Refusal::field(24));
        }
        match byte_range(command) {
            Some((start, length)) if !self.range.contains(start, length) => Err(Refusal::field(40)),
            _ => Ok(()),
        }
    }
}

/// The offset of the permissions in a CDB, to which sense data points (Linux maps it to EACCES).
pub const PERMISSIONS_IN_CDB: u16 = (CAPABILITY + 49) as u16;

/// Returns the code of OBJECT DESCRIPTOR TYPE for the type of a capability's object.
const fn descriptor_type(object_type: ObjectType) -> u8 {
    match object_type {
        ObjectType::UserObject => 1,
        ObjectType::Partition | ObjectType::Root => 2,
        ObjectType::Collection => 3,
    }
}

/// Returns start and length of the range that a capability must contain for a command. PUNCH and
/// the reads of maps reach from their start to the end. `None` for APPEND, whose position the drive
/// chooses, and for commands without a range.
fn byte_range(command: &Command) -> Option<(u64, u64)> {
    match *command {
        Command::Read { length, start, .. }
        | Command::Write { length, start, .. }
        | Command::CreateAndWrite { length, start, .. }
        | Command::Clear { length, start, .. } => Some((start, length)),
        Command::Punch { start, .. } => Some((start, u64::MAX - start)),
        Command::ReadMap { start, .. } | Command::ReadMapsAndCompare { start, .. } => {
            Some((start, u64::MAX - start))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(start: u64, length: u64) -> Command {
        Command::Read { object: ObjectAddress::new(0x10000, 0x10001), length, start }
    }

    fn capability() -> Capability {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let permissions = Permissions::READ;
        let (kind, method) = (ObjectType::UserObject, SecurityMethod::CmdRsp);
        Capability::for_object(object, kind, permissions, method)
    }

    #[test]
    fn a_capability_decodes_to_itself() {
        let capability = Capability {
            key_version: 5,
            algorithm: Algorithm::Blake3,
            expiration: Timestamp::from_ms(9),
            audit: [1; 20],
            discriminator: [2; 12],
            created: Timestamp::from_ms(8),
            attributes_access: 3,
            policy_tag: 4,
            boot_epoch: 5,
            range: AllowedRange { start: 6, length: 7 },
            ..capability()
        };
        assert_eq!(Capability::parse(&capability.to_bytes()), Ok(Some(capability)));
        assert_eq!(Capability::parse(&[0; CAPABILITY_BYTES]), Ok(None));
    }

    #[test]
    fn reserved_values_and_short_capabilities_are_refused_at_their_field() {
        let with = |at: usize, value: u8| {
            let mut bytes = capability().to_bytes();
            bytes[at] = value;
            Capability::parse(&bytes)
        };
        assert_eq!(with(0, 3), Err(0), "format 3");
        assert_eq!(with(1, 0x0f), Err(1), "algorithm 15");
        assert_eq!(with(2, 4), Err(2), "method 4");
        assert_eq!(with(48, 0), Err(48), "object type 0");
        assert_eq!(with(55, 0x20), Err(55), "a user object with the descriptor of a partition");
        let bytes = capability().to_bytes();
        for length in 0..CAPABILITY_BYTES {
            assert!(Capability::parse(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_capability_permits_its_object_its_range_and_its_permissions_only() {
        let mut capability = capability();
        capability.range = AllowedRange { start: 100, length: 50 };
        assert_eq!(capability.check(&read(100, 50)), Ok(()));
        let refused = |command| capability.check(&command).map_err(Refusal::pointer);
        assert_eq!(refused(read(99, 1)), Err(Some(40)), "before the range");
        assert_eq!(refused(read(140, 11)), Err(Some(40)), "behind the range");
        assert_eq!(refused(read(u64::MAX, 2)), Err(Some(40)), "a range that wraps around");
        let other = Command::Read { object: ObjectAddress::new(0x10000, 2), length: 0, start: 100 };
        assert_eq!(refused(other), Err(Some(24)));
        let other = Command::Read { object: ObjectAddress::new(3, 0x10001), length: 0, start: 100 };
        assert_eq!(refused(other), Err(Some(16)));
        let object = ObjectAddress::new(0x10000, 0x10001);
        assert_eq!(refused(Command::Write { object, length: 1, start: 100 }), Err(Some(129)));
        capability.permissions = Permissions::WRITE;
        let punch = Command::Punch { object, length: 1, start: 100 };
        assert_eq!(capability.check(&punch), Err(Refusal::field(40)), "moves bytes behind 150");
    }

    #[test]
    fn an_allowed_range_to_the_end_of_the_object_has_no_other_bound() {
        assert!(AllowedRange::ALL.contains(0, u64::MAX));
        assert!(!AllowedRange::ALL.contains(1, u64::MAX), "wraps around");
        let tail = AllowedRange { start: 10, length: u64::MAX };
        assert!(tail.contains(10, 5) && !tail.contains(9, 5));
        let wrapping = AllowedRange { start: u64::MAX, length: 2 };
        assert!(!wrapping.contains(u64::MAX, 0));
    }
}

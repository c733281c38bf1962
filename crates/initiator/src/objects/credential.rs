//! The capability with which an initiator uses a drive, and the proof of it that each command carries.

use std::{collections::HashMap, sync::Arc};

use object::{Command, KeyToSet, ObjectAddress, ObjectError, ObjectType, SetKeyRequest};
use osd::{
    CAPABILITY_BYTES, Capability, OsdCdb, Permissions,
    security::{Algorithm, CapabilityKey, Key, SecurityMethod, SigningKey, SystemId},
};
use parking_lot::Mutex;

use super::key_chain::KeyChain;

/// A capability that the drive's owner has signed, and the key with which its holder proves it.
#[derive(Clone, Debug)]
pub struct GrantedCapability {
    bytes: [u8; CAPABILITY_BYTES],
    capability: Capability,
    key: CapabilityKey,
}

impl GrantedCapability {
    /// Takes a capability and its secret key. Returns `None` if the bytes are not a capability of OSD-2.
    #[must_use]
    pub fn new(bytes: [u8; CAPABILITY_BYTES], key: Key) -> Option<Self> {
        let capability = Capability::parse(&bytes).ok()??;
        let key = CapabilityKey::from_key(capability.algorithm, key);
        Some(Self { bytes, capability, key })
    }

    #[must_use]
    pub const fn capability(&self) -> &Capability {
        &self.capability
    }

    /// Returns true if the capability permits the command. Does not check the command's attributes lists.
    fn permits(&self, command: &Command) -> bool {
        let is_type = match command.object().known_type() {
            Some(known) if !command.creates() => self.capability.object_type == known,
            _ => true,
        };
        is_type && self.capability.check(command).is_ok()
    }
}

/// The source of the capabilities that an initiator's commands carry.
#[derive(Debug, Default)]
pub enum Credential {
    /// No capability: the drive must accept the method NOSEC.
    #[default]
    None,
    /// The drive's master key: the initiator signs a capability for each command and may do everything.
    Keys(Box<OwnKeys>),
    /// Capabilities that the drive's owner has signed. Each command uses the first that permits it.
    Capabilities(Vec<GrantedCapability>),
}

/// The keys of the drive's owner, from which the initiator signs capabilities.
#[derive(Debug)]
pub struct OwnKeys {
    chain: KeyChain,
    method: SecurityMethod,
    algorithm: Algorithm,
    /// KEY VERSION of the working keys that sign, 0 to 15.
    version: u8,
    /// Capabilities that were signed before, so that a command for the same object can use them again.
    signed: Mutex<HashMap<SignedFor, Arc<CommandProof>>>,
}

type SignedFor = (ObjectAddress, ObjectType, SigningKey, SecurityMethod);

/// Maximum number of signed capabilities that are kept. A signature takes about 5 us.
const SIGNED: usize = 1024;

/// The capability that a command carries, with the key that proves it.
#[derive(Debug)]
pub(crate) struct CommandProof {
    pub(crate) capability: [u8; CAPABILITY_BYTES],
    pub(crate) method: SecurityMethod,
    pub(crate) key: CapabilityKey,
}

impl Credential {
    /// Returns the credential of the drive's owner. `version`, 0 to 15, selects the working keys that sign.
    #[must_use]
    pub fn keys(
        chain: KeyChain,
        method: SecurityMethod,
        algorithm: Algorithm,
        version: u8,
    ) -> Self {
        let signed = Mutex::default();
        Self::Keys(Box::new(OwnKeys { chain, method, algorithm, version, signed }))
    }

    /// Returns the capability that a command must carry, with its key; `None` for a credential without capabilities.
    /// `lists_collection` is true if the command's lists name attributes pages of collections.
    ///
    /// # Errors
    /// No capability permits the command, or the identifier of the drive is not known.
    pub(crate) fn prove(
        &self,
        command: &Command,
        lists_collection: bool,
        system: Option<&SystemId>,
    ) -> Result<Option<Arc<CommandProof>>, ObjectError> {
        match self {
            Self::None => Ok(None),
            Self::Keys(keys) => {
                let missing =
                    || ObjectError::Capability("the drive's system ID is not known".into());
                keys.prove(command, lists_collection, system.ok_or_else(missing)?).map(Some)
            }
            Self::Capabilities(granted) => {
                let created = type_of(command, false);
                let is_for_type = |granted: &&GrantedCapability| {
                    granted.permits(command) && granted.capability.object_type == created
                };
                let mut any = granted.iter().filter(|granted| granted.permits(command));
                // Objects are created with another key than their partition is listed.
                let granted = granted.iter().find(is_for_type).filter(|_| command.creates());
                let granted = granted.or_else(|| any.next()).ok_or_else(|| {
                    let name = OsdCdb::new(*command).service_action().name();
                    let object = command.object();
                    ObjectError::Capability(format!(
                        "no capability of the credential permits {name} of {object}"
                    ))
                })?;
                Ok(Some(Arc::new(CommandProof {
                    capability: granted.bytes,
                    method: granted.capability.method,
                    key: granted.key.clone(),
                })))
            }
        }
    }

    /// Returns the owner's keys, if the initiator has them.
    #[must_use]
    pub fn owner(&self) -> Option<&OwnKeys> {
        match self {
            Self::Keys(keys) => Some(keys),
            Self::None | Self::Capabilities(_) => None,
        }
    }
}

impl OwnKeys {
    fn prove(
        &self,
        command: &Command,
        lists_collection: bool,
        system: &SystemId,
    ) -> Result<Arc<CommandProof>, ObjectError> {
        let (object, object_type) = (command.object(), type_of(command, lists_collection));
        let signing = SigningKey::for_command(command);
        let method = match command {
            // A drive accepts new keys only in a command that is signed itself.
            Command::SetKey(_) | Command::SetMasterKey { .. } => {
                self.method.max(SecurityMethod::CmdRsp)
            }
            _ => self.method,
        };
        let signed_for = (object, object_type, signing, method);
        let mut signed = self.signed.lock();
        if let Some(proof) = signed.get(&signed_for) {
            return Ok(Arc::clone(proof));
        }
        let everything = Permissions::NAMES.iter().fold(Permissions::NONE, |all, one| all | one.0);
        let capability = Capability {
            algorithm: self.algorithm,
            key_version: self.version,
            ..Capability::for_object(object, object_type, everything, method)
        };
        let (capability, key) = self.chain.sign(&capability, signing, system);
        let proof = Arc::new(CommandProof { capability, method, key });
        if signed.len() >= SIGNED {
            signed.clear();
        }
        signed.insert(signed_for, Arc::clone(&proof));
        Ok(proof)
    }

    /// Returns the SET KEY that makes the drive derive the key `key` as this initiator derives it from the master key.
    #[must_use]
    pub fn set_key(&self, key: KeyToSet) -> Command {
        Command::SetKey(SetKeyRequest { key, key_identifier: [0; 7], seed: self.chain.seed(key) })
    }

    /// Signs a capability that the owner hands to another client.
    #[must_use]
    pub fn grant(&self, capability: &Capability, key: SigningKey, system: &SystemId) -> Grant {
        let (capability, key) = self.chain.sign(capability, key, system);
        Grant { capability, key: key.key }
    }

    #[must_use]
    pub const fn method(&self) -> SecurityMethod {
        self.method
    }

    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }
}

/// A signed capability and its secret key. The owner hands both to a client.
#[derive(Clone, Debug)]
pub struct Grant {
    pub capability: [u8; CAPABILITY_BYTES],
    pub key: Key,
}

/// Returns the type of the object that a command accesses. Identifiers do not tell user objects from collections, so
/// the attributes pages in the lists of GET and SET ATTRIBUTES decide.
fn type_of(command: &Command, lists_collection: bool) -> ObjectType {
    match command {
        Command::Create { .. }
        | Command::CreateAndWrite { .. }
        | Command::CopyUserObjects { .. } => ObjectType::UserObject,
        Command::CreateCollection { .. }
        | Command::CreateUserTrackingCollection { .. }
        | Command::RemoveCollection { .. }
        | Command::FlushCollection { .. }
        | Command::Query { .. }
        | Command::RemoveMemberObjects { .. }
        | Command::GetMemberAttributes { .. }
        | Command::SetMemberAttributes { .. } => ObjectType::Collection,
        Command::CreatePartition { .. } => ObjectType::Partition,
        _ => match command.object().known_type() {
            Some(known) => known,
            None if lists_collection || matches!(command, Command::ListCollection { .. }) => {
                ObjectType::Collection
            }
            None => ObjectType::UserObject,
        },
    }
}

#[cfg(test)]
mod tests {
    use object::ListRequest;

    use super::*;

    const OBJECT: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);

    fn granted(
        object: ObjectAddress,
        object_type: ObjectType,
        permissions: Permissions,
    ) -> GrantedCapability {
        let capability =
            Capability::for_object(object, object_type, permissions, SecurityMethod::CmdRsp);
        GrantedCapability::new(capability.to_bytes(), Key::new([7; 32])).unwrap()
    }

    #[test]
    fn each_command_uses_the_capability_that_permits_it() {
        let partition = ObjectAddress::partition(0x10000);
        let credential = Credential::Capabilities(vec![
            granted(ObjectAddress::ROOT, ObjectType::Root, Permissions::GET_ATTRIBUTES),
            granted(OBJECT, ObjectType::UserObject, Permissions::READ),
            granted(partition, ObjectType::Partition, Permissions::CREATE | Permissions::READ),
            granted(partition, ObjectType::UserObject, Permissions::CREATE),
        ]);
        let prove = |command| credential.prove(&command, false, None);
        let read = prove(Command::Read { object: OBJECT, length: 1, start: 0 }).unwrap().unwrap();
        let root = prove(Command::GetAttributes { object: ObjectAddress::ROOT }).unwrap().unwrap();
        assert_ne!(read.capability, root.capability);
        let list = ListRequest::default();
        let listed = prove(Command::List { partition: 0x10000, list }).unwrap().unwrap();
        let create = Command::Create { partition: 0x10000, requested: 0, count: 1 };
        let created = prove(create).unwrap().unwrap();
        // The capability for new objects is signed with another key than that for the partition.
        assert_ne!(created.capability, listed.capability);
        let collection = Command::CreateCollection { partition: 0x10000, requested: 0 };
        assert_eq!(prove(collection).unwrap().unwrap().capability, listed.capability);
        let refused = prove(Command::Write { object: OBJECT, length: 1, start: 0 }).unwrap_err();
        assert!(refused.to_string().contains("WRITE of 10000h/10001h"), "{refused}");
        // The capability for new objects of the partition is not one for the partition.
        let new =
            granted(partition, ObjectType::UserObject, Permissions::CREATE | Permissions::READ);
        let credential = Credential::Capabilities(vec![new]);
        let list = Command::List { partition: 0x10000, list };
        assert!(credential.prove(&list, false, None).is_err());
    }

    #[test]
    fn the_owner_signs_each_command_with_the_key_of_its_level() {
        let chain =
            KeyChain::parse(format!("{}\n{}\n", "01".repeat(32), "02".repeat(32)).as_bytes());
        let credential =
            Credential::keys(chain.unwrap(), SecurityMethod::CmdRsp, Algorithm::HmacSha256, 3);
        let system = [9; 20];
        let prove = |command| credential.prove(&command, false, Some(&system)).unwrap().unwrap();
        let get = prove(Command::GetAttributes { object: OBJECT });
        let again = prove(Command::GetAttributes { object: OBJECT });
        assert!(Arc::ptr_eq(&get, &again));
        let capability = Capability::parse(&get.capability).unwrap().unwrap();
        assert_eq!((capability.key_version, capability.object), (3, OBJECT));
        let root = prove(Command::GetAttributes { object: ObjectAddress::ROOT });
        assert_ne!(get.key.key.bytes(), root.key.key.bytes());
        let unknown = credential.prove(&Command::GetAttributes { object: OBJECT }, false, None);
        assert!(unknown.is_err());
    }
}

//! The checks of one command against its capability. The doc of the module `security` has their order.

use std::sync::Arc;

use bytes::Bytes;
use object::{Attribute, AttributeSelection, Command, Continuation, ObjectAddress, ObjectType};
use osd::{
    CAPABILITY, CDB_BYTES, Capability, INTEGRITY, OsdCdb, PERMISSIONS_IN_CDB, Permissions, Refusal,
    security::{
        CapabilityKey, IntegrityCheckValue, Key, KeyPair, Nonce, SecurityMethod, SigningKey,
        SystemId,
    },
};

use super::{
    capability_keys::{CapabilityKeys, SignedCapability},
    clock::DriveClock,
    key_store::{KeyStore, KeyStoreError, PartitionGuard},
    lists,
    nonces::{KeySlot, NonceTable, NonceWindow},
    refused::{Refused, RefusedCounters, RefusedReason},
    work::WorkGate,
};
use crate::backing::DriveBacking;

/// Settings of the check of capabilities.
#[derive(Clone, Debug)]
pub struct SecuritySettings {
    /// The weakest security method that the unit accepts.
    pub least: SecurityMethod,
    /// How far the time of a nonce may be from the drive's clock, in milliseconds.
    pub nonce_window_ms: u64,
    /// Maximum number of nonces that the drive remembers.
    pub nonces: usize,
    pub system: SystemId,
}

impl SecuritySettings {
    /// Returns settings with a window of 5 minutes and 65,536 nonces, about 3 MiB.
    #[must_use]
    pub const fn new(least: SecurityMethod, system: SystemId) -> Self {
        Self { least, nonce_window_ms: 5 * 60_000, nonces: 65_536, system }
    }
}

/// Checks each command of one drive against its capability.
pub struct Security {
    settings: SecuritySettings,
    keys: KeyStore,
    clock: Arc<DriveClock>,
    nonces: NonceTable,
    capability_keys: CapabilityKeys,
    gate: WorkGate,
    refused: RefusedCounters,
}

/// The result of the first check of a command: its client has the capability key.
#[derive(Clone, Debug)]
pub struct Proof {
    pub method: SecurityMethod,
    /// The capability and its key. `None` with the method NOSEC, under which no field of a capability is checked.
    pub signed: Option<SignedProof>,
}

/// The capability of a proved command, and the capability key.
#[derive(Clone, Debug)]
pub struct SignedProof {
    pub capability: Capability,
    pub key: CapabilityKey,
    slot: KeySlot,
    /// [`KeyStore::generation`] before the keys were read: if it has changed, the proof is out of date.
    generation: u64,
}

impl Security {
    /// Starts the clock and opens the keys of a drive.
    ///
    /// # Errors
    /// The records of the drive cannot be read, or were sealed under another master key.
    pub async fn open(
        store: &impl DriveBacking,
        settings: SecuritySettings,
        master: Option<KeyPair>,
        clock: Arc<DriveClock>,
    ) -> Result<Self, KeyStoreError> {
        clock.start(store).await?;
        Ok(Self {
            keys: KeyStore::open(store, master, settings.system).await?,
            clock,
            nonces: NonceTable::new(settings.nonces),
            capability_keys: CapabilityKeys::new(CAPABILITY_KEYS),
            gate: WorkGate::default(),
            refused: RefusedCounters::default(),
            settings,
        })
    }

    #[must_use]
    pub const fn settings(&self) -> &SecuritySettings {
        &self.settings
    }

    #[must_use]
    pub const fn keys(&self) -> &KeyStore {
        &self.keys
    }

    #[must_use]
    pub fn clock(&self) -> &DriveClock {
        &self.clock
    }

    #[must_use]
    pub const fn gate(&self) -> &WorkGate {
        &self.gate
    }

    #[must_use]
    pub const fn refused(&self) -> &RefusedCounters {
        &self.refused
    }

    /// Checks the method of a command, and that its client has the capability key. `bytes` is the
    /// CDB, `token` the security token of the nexus.
    ///
    /// # Errors
    /// The capability has reserved values; its method is less than the unit or the command requires;
    /// its key was never set, or the integrity check value of the CDB is wrong.
    pub async fn prove(
        &self,
        store: &impl DriveBacking,
        cdb: &OsdCdb,
        bytes: &[u8; CDB_BYTES],
        token: &[u8],
    ) -> Result<Proof, Refused> {
        let least = least_for(&cdb.command, self.settings.least);
        let method = cdb.capability[2] & 0x0f;
        let no_security = Proof { method: SecurityMethod::NoSec, signed: None };
        // With NOSEC, clients write anything into the other fields of the capability: do not parse it.
        if least == SecurityMethod::NoSec && method == SecurityMethod::NoSec as u8 {
            return Ok(no_security);
        }
        let capability = cdb
            .capability()
            .map_err(|refusal| Refused::Capability(RefusedReason::Capability, refusal))?;
        let method = capability.map_or(SecurityMethod::NoSec, |capability| capability.method);
        if method < least {
            return Err(Refused::at(RefusedReason::Method, CAPABILITY + 2));
        }
        let Some(capability) = capability.filter(|_| method != SecurityMethod::NoSec) else {
            return Ok(no_security);
        };
        let slot = slot_of(&cdb.command, &capability);
        let generation = self.keys.generation();
        let signed = SignedCapability { capability: cdb.capability, slot, generation };
        let known = self.capability_keys.get(&signed);
        let is_known = known.is_some();
        let key = match known {
            Some(key) => key,
            None => {
                let key = self.authentication(store, slot).await?;
                let system = &self.settings.system;
                CapabilityKey::new(capability.algorithm, &key, &cdb.capability, system)
            }
        };
        let expected = match method {
            SecurityMethod::CapKey => key.of_token(token),
            _ => key.of_cdb(bytes),
        };
        if expected != cdb.integrity {
            return Err(Refused::at(RefusedReason::Integrity, INTEGRITY));
        }
        if !is_known {
            self.capability_keys.insert(signed, key.clone());
        }
        Ok(Proof { method, signed: Some(SignedProof { capability, key, slot, generation }) })
    }

    /// Returns true if no key of the drive has changed since the proof.
    #[must_use]
    pub fn is_current(&self, proof: &Proof) -> bool {
        let generation = self.keys.generation();
        proof.signed.as_ref().is_none_or(|signed| signed.generation == generation)
    }

    /// Checks that the capability of a proved command is valid now, and permits the command on its object. Take a pass
    /// of [`Self::gate`] before, and keep it until the command has ended: a change of policy access tags waits for it.
    ///
    /// # Errors
    /// See [`RefusedReason`]; or the object does not exist.
    pub async fn judge(
        &self,
        store: &impl DriveBacking,
        cdb: &OsdCdb,
        proof: &Proof,
    ) -> Result<(), Refused> {
        let Some(signed) = &proof.signed else { return Ok(()) };
        let capability = &signed.capability;
        self.clock.keep_ahead(store).await?;
        let now = self.clock.now();
        if capability.expiration.as_ms() != 0 && now >= capability.expiration {
            return Err(Refused::at(RefusedReason::Expired, CAPABILITY + 4));
        }
        self.check_nonce(signed, proof.method, cdb.nonce)?;
        self.check_frozen(store, signed).await?;
        if capability.boot_epoch != 0 && !store.accepts_boot_epoch(capability.boot_epoch) {
            return Err(Refused::at(RefusedReason::BootEpoch, CAPABILITY + 64));
        }
        check_command(capability, cdb)?;
        let object = guarded_object(&cdb.command);
        let facts = store.guard_facts(object).await?;
        let is_container = cdb.command.creates() && capability.object == object;
        let is_type = match created_type(&cdb.command) {
            Some(created) if is_container => {
                [created, facts.object_type].contains(&capability.object_type)
            }
            Some(created) => capability.object_type == created,
            None => capability.object_type == facts.object_type,
        };
        if !is_type {
            return Err(Refused::at(RefusedReason::Object, CAPABILITY + 48));
        }
        if capability.created.as_ms() != 0 && capability.created != facts.created {
            return Err(Refused::at(RefusedReason::CreatedTime, CAPABILITY + 42));
        }
        if capability.policy_tag != 0 && capability.policy_tag != facts.policy_tag {
            return Err(Refused::at(RefusedReason::PolicyTag, CAPABILITY + 60));
        }
        Ok(())
    }

    /// Checks that the capability permits to set and to return the attributes in the lists of its command.
    ///
    /// # Errors
    /// A permission is missing.
    pub fn check_lists(
        &self,
        proof: &Proof,
        set: &[Attribute],
        get: &[AttributeSelection],
    ) -> Result<(), Refused> {
        let signed = proof.signed.as_ref();
        signed.map_or(Ok(()), |signed| lists::check(&signed.capability, set, get))
    }

    /// Checks the integrity of a CDB continuation segment, and that the capability permits the ranges and objects in
    /// it. `segment` is the encoded segment, `integrity` its integrity check value.
    ///
    /// # Errors
    /// The segment was altered; a range is not within that of the capability; another object is not
    /// in the same partition.
    pub fn check_continuation(
        &self,
        proof: &Proof,
        nonce: Nonce,
        segment: &Bytes,
        integrity: IntegrityCheckValue,
        continuation: &Continuation,
    ) -> Result<(), Refused> {
        let Some(signed) = &proof.signed else { return Ok(()) };
        if proof.method >= SecurityMethod::CmdRsp
            && signed.key.of_continuation(nonce, segment) != integrity
        {
            return Err(Refused::Capability(
                RefusedReason::DataIntegrity,
                Refusal::DataOutIntegrity,
            ));
        }
        let capability = &signed.capability;
        let other = |object: ObjectAddress| object.partition == capability.object.partition;
        match continuation {
            Continuation::ScatterGather(entries) => {
                let is_allowed = |entry: &object::ScatterEntry| {
                    capability.range.contains(entry.start, entry.length)
                };
                if !entries.iter().all(is_allowed) {
                    return Err(Refused::at(RefusedReason::Range, 40));
                }
            }
            Continuation::UserObject(object) if !other(*object) => {
                return Err(Refused::at(RefusedReason::Object, 24));
            }
            Continuation::CopySource(source) if !other(source.object) => {
                return Err(Refused::at(RefusedReason::Object, 24));
            }
            _ => {}
        }
        Ok(())
    }

    /// Records the nonce of a command as used. Call this right before the command has its effect.
    ///
    /// # Errors
    /// The nonce was used before, or its time is not valid.
    pub fn use_nonce(&self, proof: &Proof, nonce: Nonce) -> Result<(), Refused> {
        match &proof.signed {
            Some(signed) if proof.method >= SecurityMethod::CmdRsp => {
                self.nonces.record(signed.slot, nonce, self.window()).map_err(nonce_refused)
            }
            _ => Ok(()),
        }
    }

    /// Returns the range of times in which a nonce is valid now. The range ends at the mark of the clock: after a crash
    /// the drive refuses everything up to the mark, so it cannot accept a nonce twice.
    #[must_use]
    pub fn window(&self) -> NonceWindow {
        let now = self.clock.now().as_ms();
        let window = self.settings.nonce_window_ms;
        let oldest = now.saturating_sub(window).max(self.clock.floor().as_ms() + 1);
        let newest = now.saturating_add(window).min(self.clock.mark().as_ms());
        let time = object::Timestamp::from_ms;
        NonceWindow { oldest: time(oldest), newest: time(newest) }
    }

    fn check_nonce(
        &self,
        signed: &SignedProof,
        method: SecurityMethod,
        nonce: Nonce,
    ) -> Result<(), Refused> {
        if method < SecurityMethod::CmdRsp {
            return Ok(());
        }
        self.nonces.check(signed.slot, nonce, self.window()).map_err(nonce_refused)
    }

    async fn authentication(
        &self,
        store: &impl DriveBacking,
        slot: KeySlot,
    ) -> Result<Key, Refused> {
        match self.keys.authentication(store, slot).await {
            Ok(Some((key, _))) => Ok(key),
            // Answer as for a wrong signature: a client without a key must not learn which partitions exist.
            Ok(None) => Err(Refused::at(RefusedReason::Key, INTEGRITY)),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Refuses a command whose working key or audit value is frozen by attributes of its partition.
    async fn check_frozen(
        &self,
        store: &impl DriveBacking,
        signed: &SignedProof,
    ) -> Result<(), Refused> {
        let (partition, is_working) = match signed.slot.key {
            SigningKey::Working { partition } => (partition, true),
            SigningKey::Partition { partition } => (partition, false),
            SigningKey::Master | SigningKey::Root => return Ok(()),
        };
        let guard = self.keys.partition(store, partition).await.map_err(unreadable)?;
        let PartitionGuard { frozen, frozen_audits, .. } = &*guard;
        if is_working && frozen >> signed.slot.version & 1 != 0 {
            return Err(Refused::Capability(RefusedReason::FrozenKey, Refusal::WorkingKeyFrozen));
        }
        if frozen_audits.contains(&signed.capability.audit) {
            return Err(Refused::Capability(RefusedReason::Audit, Refusal::AuditFrozen));
        }
        Ok(())
    }
}

/// Returns the weakest method that a command may use. SET KEY needs CMDRSP: the proof of CAPKEY is the same for all
/// commands of a session, so an observer of the session could send a SET KEY again.
fn least_for(command: &Command, least: SecurityMethod) -> SecurityMethod {
    match command {
        Command::SetKey(_) | Command::SetMasterKey { .. } => least.max(SecurityMethod::CmdRsp),
        _ => least,
    }
}

/// Returns the key under which a capability must be signed for a command.
fn slot_of(command: &Command, capability: &Capability) -> KeySlot {
    let key = SigningKey::for_command(command);
    let has_versions = matches!(key, SigningKey::Working { .. });
    KeySlot { key, version: if has_versions { capability.key_version } else { 0 } }
}

/// Checks that the capability permits the object, the range and the permissions of the command.
fn check_command(capability: &Capability, cdb: &OsdCdb) -> Result<(), Refused> {
    let command = match cdb.command {
        // The ranges are in the continuation segment, which is checked when it has arrived.
        Command::Read { object, .. } if cdb.continuation_length > 0 => {
            Command::Read { object, length: 0, start: capability.range.start }
        }
        Command::Write { object, .. } if cdb.continuation_length > 0 => {
            Command::Write { object, length: 0, start: capability.range.start }
        }
        command => command,
    };
    capability.check(&command).map_err(|refusal| match refusal.pointer() {
        Some(PERMISSIONS_IN_CDB) => Refused::Capability(RefusedReason::Permissions, refusal),
        Some(40) => Refused::Capability(RefusedReason::Range, refusal),
        _ => Refused::Capability(RefusedReason::Object, refusal),
    })?;
    match command {
        // A capability for one identifier must not permit to create objects with the identifiers behind it.
        Command::Create { requested, count, .. } if requested != 0 && count > 1 => {
            Err(Refused::at(RefusedReason::Object, 32))
        }
        // The drive chooses the position of appended bytes, which no limited range contains.
        Command::Append { .. } if capability.range.length != u64::MAX => {
            Err(Refused::at(RefusedReason::Range, 40))
        }
        command
            if needs_global(&command) && !capability.permissions.contain(Permissions::GLOBAL) =>
        {
            Err(Refused::at(RefusedReason::Permissions, usize::from(PERMISSIONS_IN_CDB)))
        }
        _ => Ok(()),
    }
}

/// Returns true for a command that accesses a second object of the partition, which the capability
/// does not name.
const fn needs_global(command: &Command) -> bool {
    match command {
        Command::CopyUserObjects { .. } | Command::ReadMapsAndCompare { .. } => true,
        Command::Query { matches, .. } => *matches != 0,
        Command::CreateUserTrackingCollection { source, .. } => *source != 0,
        _ => false,
    }
}

/// Returns the object whose type, creation time and policy access tag a capability is checked against: the object of
/// the command, or the partition (or root) in which the command creates objects.
pub const fn guarded_object(command: &Command) -> ObjectAddress {
    let object = command.object();
    match command {
        Command::CreatePartition { .. } => ObjectAddress::ROOT,
        Command::CreateSnapshot { .. } | Command::CreateClone { .. } => object,
        command if command.creates() => ObjectAddress::partition(object.partition),
        _ => object,
    }
}

/// Returns the type of the objects that a command creates; `None` if it creates none, and for snapshots and clones.
const fn created_type(command: &Command) -> Option<ObjectType> {
    Some(match command {
        Command::CreatePartition { .. } => ObjectType::Partition,
        Command::Create { .. }
        | Command::CreateAndWrite { .. }
        | Command::CopyUserObjects { .. } => ObjectType::UserObject,
        Command::CreateCollection { .. } | Command::CreateUserTrackingCollection { .. } => {
            ObjectType::Collection
        }
        _ => return None,
    })
}

fn nonce_refused(refusal: Refusal) -> Refused {
    let reason = match refusal {
        Refusal::NonceNotUnique => RefusedReason::NonceRepeated,
        _ => RefusedReason::NonceTime,
    };
    Refused::Capability(reason, refusal)
}

fn unreadable(error: KeyStoreError) -> Refused {
    Refused::Store(match error {
        KeyStoreError::Store(error) => error,
        KeyStoreError::Sealed => object::ObjectError::Storage(error.to_string()),
    })
}

/// Maximum number of capability keys in memory. One entry serves all commands with one capability.
const CAPABILITY_KEYS: usize = 4_096;

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

//! Performs one object command whose data has arrived.

use std::sync::Arc;

use object::{
    Attribute, Command, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, SetKeyRequest,
};
use unit::{Completion, Nexus, TaskTurn};
use volume::Data;

use super::{
    Drive, ObjectUnit,
    command::ObjectCommand,
    data_in::{self, CurrentSelections},
    data_out,
    layout::{InLayout, OutLayout},
    own_attributes,
    sense::Failure,
};
use crate::{
    backing::DriveBacking,
    security::{FROZEN_AUDITS, FROZEN_KEYS, KeyStore, Proof, Refused, SetKeyError, guarded_object},
};

/// An object command with its data, ready to be performed.
pub struct ObjectWork {
    /// The nexus that sent the command.
    pub nexus: Nexus,
    pub command: Arc<ObjectCommand>,
    pub data_out: Data,
    /// Maximum number of bytes that the initiator can receive for this command.
    pub capacity: u64,
}

impl<S: DriveBacking> ObjectUnit<S> {
    /// Runs a command, with which its turn ends. Dropping the future aborts the command: it then had
    /// its whole effect, or none.
    pub(super) async fn run(&self, work: ObjectWork, turn: TaskTurn<'_>) -> Completion {
        let cdb = &work.command.cdb;
        let object = cdb.command.object();
        let proof = match self.proof(&work).await {
            Ok(proof) => proof,
            Err(refused) => return self.refuse(refused).completion(object, None, Data::new()),
        };
        let signer = Some((&proof, cdb.nonce));
        let layouts = OutLayout::new(cdb, proof.method, &self.limits)
            .and_then(|out| Ok((out, InLayout::new(cdb, proof.method)?)));
        let (out, layout) = match layouts {
            Ok(layouts) => layouts,
            Err(refusal) => return Failure::from(refusal).completion(object, signer, Data::new()),
        };
        let data_out_length = u32::try_from(out.end).ok();
        let completion = match self.perform(&work, turn, &proof, (&out, &layout)).await {
            Ok(Done { reply, current }) => {
                let past_end = reply.read_past_end;
                let object = reply.current.object;
                let data_in = data_in::encode(cdb, &proof, &layout, reply, &current, work.capacity);
                match past_end {
                    Some(read) => Failure::read_past_end(read).completion(object, signer, data_in),
                    None => Completion::good(data_in),
                }
            }
            Err(failure) => failure.completion(object, signer, Data::new()),
        };
        Completion { data_out_length, ..completion }
    }

    /// Returns the proof of a command: the one that was made before its data was requested, unless keys have changed
    /// since.
    async fn proof(&self, work: &ObjectWork) -> Result<Proof, Refused> {
        let Drive { store, security } = &*self.drive;
        security.clock().keep_ahead(&**store).await?;
        let ObjectCommand { cdb, bytes, proof } = &*work.command;
        match proof.get() {
            Some(proof) if security.is_current(proof) => Ok(proof.clone()),
            _ => security.prove(&**store, cdb, bytes, &self.token(work.nexus.number)).await,
        }
    }

    /// Makes the remaining checks, performs the command, and returns the reply of the store.
    async fn perform(
        &self,
        work: &ObjectWork,
        turn: TaskTurn<'_>,
        proof: &Proof,
        (out, layout): (&OutLayout, &InLayout),
    ) -> Result<Done, Failure> {
        let Drive { store, security } = &*self.drive;
        let cdb = &work.command.cdb;
        let refuse = |refused| self.refuse(refused);
        // Take the pass before `judge` reads the policy access tag: a change of the tag then waits for this command.
        let pass =
            proof.signed.is_some().then(|| security.gate().begin(guarded_object(&cdb.command)));
        security.judge(&**store, cdb, proof).await.map_err(refuse)?;
        data_in::check_capacity(layout, work.capacity)?;
        let parsed = data_out::parse(security, cdb, proof, out, &work.data_out, &self.limits);
        let mut request = parsed.map_err(refuse)?;
        own_attributes::check_set(&request.set)?;
        request.data_in_capacity = work.capacity;
        let current = CurrentSelections::take(&mut request);
        let (object, get) = (cdb.command.object(), request.get.clone());
        let drains = tag_scope(&cdb.command, &request.set);
        security.use_nonce(proof, cdb.nonce).map_err(refuse)?;
        let mut reply = {
            let _forget = Forget::after(security.keys(), &cdb.command, &request.set);
            self.effect(work, turn, request).await?
        };
        // The effect is complete: a concurrent change of the tag need not wait for this command any more.
        drop(pass);
        if let Some(scope) = drains {
            security.gate().drain(scope).await;
        }
        own_attributes::put(security, &**store, object, &get, &mut reply).await?;
        Ok(Done { reply, current })
    }

    /// Performs a checked command.
    async fn effect(
        &self,
        work: &ObjectWork,
        turn: TaskTurn<'_>,
        request: ObjectRequest,
    ) -> Result<ObjectReply, Failure> {
        let store = &self.drive.store;
        match request.command {
            Command::PerformScsiCommand { cdb } => {
                self.perform_primary(&work.nexus, turn, &cdb, request).await
            }
            Command::SetKey(key) => {
                self.set_key(key).await?;
                // The store sets the attributes and keeps the request tag when the key is stable already. If a crash
                // loses the tag, the client repeats the command and sets the same key.
                Ok(store.perform(request).await?)
            }
            Command::RemovePartition { partition, .. } => {
                let reply = store.perform(request).await?;
                self.security().keys().remove(&**store, partition).await;
                Ok(reply)
            }
            _ => Ok(store.perform(request).await?),
        }
    }

    /// Performs SET KEY in a task of its own, which an abort of the command does not stop: the stored key and the key
    /// in memory must agree.
    async fn set_key(&self, key: SetKeyRequest) -> Result<(), Failure> {
        let drive = Arc::clone(&self.drive);
        let set =
            tokio::spawn(async move { drive.security.keys().set_key(&*drive.store, &key).await });
        let interrupted = || SetKeyError::Store(ObjectError::Storage("SET KEY ended early".into()));
        Ok(set.await.unwrap_or_else(|_| Err(interrupted()))?)
    }

    pub(super) fn refuse(&self, refused: Refused) -> Failure {
        self.security().refused().count(&refused);
        let is_nonce_time =
            matches!(refused, Refused::Capability(_, osd::Refusal::NonceTimestampOutOfRange));
        let mut failure = Failure::from(refused);
        if is_nonce_time {
            // Tell the client the drive's time in milliseconds, so that it can sign again at once.
            failure.sense.information = Some(self.security().clock().now().as_ms());
        }
        failure
    }
}

/// The reply to a command that had its effect.
struct Done {
    reply: ObjectReply,
    current: CurrentSelections,
}

/// Returns the object for which a change of policy access tags must wait until all earlier commands have ended; `None`
/// if the command changes no tag.
fn tag_scope(command: &Command, set: &[Attribute]) -> Option<ObjectAddress> {
    let is_tag = |attribute: &Attribute| TAGS.contains(&attribute.id.number);
    if !set.iter().any(is_tag) {
        return None;
    }
    let object = command.object();
    Some(match command {
        // This command changes tags of user objects in the partition.
        Command::SetMemberAttributes { .. } => ObjectAddress::partition(object.partition),
        _ => object,
    })
}

/// When dropped, makes the drive read the keys and frozen keys of partitions again. Hold it during a command that
/// changes them: even an aborted command may have had its effect.
struct Forget<'a> {
    keys: &'a KeyStore,
    scope: ForgetScope,
}

enum ForgetScope {
    Nothing,
    Partition(u64),
    Everything,
}

impl<'a> Forget<'a> {
    fn after(keys: &'a KeyStore, command: &Command, set: &[Attribute]) -> Self {
        let freezes = |attribute: &Attribute| {
            attribute.id == FROZEN_KEYS || attribute.id.page == FROZEN_AUDITS
        };
        let scope = match *command {
            Command::FormatOsd { .. } | Command::RestorePartitionFromSnapshot { .. } => {
                ForgetScope::Everything
            }
            Command::RemovePartition { partition, .. } => ForgetScope::Partition(partition),
            _ if set.iter().any(freezes) => match command.object().partition {
                0 => ForgetScope::Everything,
                partition => ForgetScope::Partition(partition),
            },
            _ => ForgetScope::Nothing,
        };
        Self { keys, scope }
    }
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        match self.scope {
            ForgetScope::Nothing => {}
            ForgetScope::Partition(partition) => self.keys.forget(partition),
            ForgetScope::Everything => self.keys.forget_all(),
        }
    }
}

/// The attribute numbers of the policy access tags in the policy/security pages: the tag of the object itself, and in a
/// partition the tag of its user objects.
const TAGS: [u32; 2] = [0x4000_0001, 0x4000_0002];

//! Signs each command when it is sent, with the drive's time at that moment.

use std::sync::Arc;

use bytes::BytesMut;
use iscsi::session::initiator::DataPhase;
use object::{Command, Continuation, ObjectRequest};
use osd::{
    INTEGRITY, OsdCdb, offset,
    security::{CODE_BYTES, DataOutIntegrity, Nonce, SecurityMethod},
};
use parking_lot::Mutex;
use scsi::Cdb;

use super::{
    credential::CommandProof,
    drive_time::DriveTime,
    encoding::{EncodedRequest, encode},
};
use crate::{
    pending_commands::{ChangedObject, CommandSource},
    session_state::RemoteSessionState,
};

/// Offset of the integrity check value in a CDB continuation segment.
const CONTINUATION_INTEGRITY: usize = 8;

/// The values that all signatures of one session with a drive need.
pub(crate) struct Signer {
    pub(crate) time: DriveTime,
    pub(crate) state: Arc<RemoteSessionState>,
}

/// An encoded command, which is signed with a new nonce each time that it is sent.
pub(crate) struct SignedCommand {
    encoded: EncodedRequest,
    proof: Option<Arc<CommandProof>>,
    signer: Arc<Signer>,
    changes: Option<ChangedObject>,
    /// The nonce of the last signature. An answer can only belong to it: a command is signed again when its earlier
    /// transmission has ended.
    nonce: Mutex<Nonce>,
}

impl SignedCommand {
    /// # Errors
    /// See [`encode`].
    pub(crate) fn new(
        request: &ObjectRequest,
        proof: Option<Arc<CommandProof>>,
        signer: &Arc<Signer>,
    ) -> Result<Self, object::ObjectError> {
        let method = method_of(proof.as_deref());
        let encoded = encode(request, method)?;
        let nonce = Mutex::new(encoded.cdb.nonce);
        let (signer, changes) = (Arc::clone(signer), changes(request));
        Ok(Self { encoded, proof, signer, changes, nonce })
    }

    pub(crate) fn encoded(&self) -> &EncodedRequest {
        &self.encoded
    }

    pub(crate) fn proof(&self) -> Option<&CommandProof> {
        self.proof.as_deref()
    }

    pub(crate) fn last_nonce(&self) -> Nonce {
        *self.nonce.lock()
    }

    fn transfer(&self, data_out: bytes::Bytes) -> DataPhase {
        match (data_out.is_empty(), self.encoded.incoming.total) {
            (true, 0) => DataPhase::None,
            (true, data_in) => DataPhase::In(data_in),
            (false, 0) => DataPhase::Out(data_out),
            (false, data_in) => DataPhase::Both { data_out, data_in },
        }
    }

    /// Signs a command with the method CMDRSP or ALLDATA.
    fn sign_command(&self, proof: &CommandProof, mut cdb: OsdCdb) -> (Cdb, DataPhase) {
        let nonce = self.signer.time.nonce();
        *self.nonce.lock() = nonce;
        cdb.nonce = nonce;
        let mut data_out = self.encoded.data_out.clone();
        let continuation = cdb.continuation_length as usize;
        let is_all = proof.method == SecurityMethod::AllData;
        if continuation > 0 || is_all {
            let mut buffer = BytesMut::with_capacity(data_out.len() + 128);
            buffer.extend_from_slice(&data_out);
            if continuation > 0 {
                let value = proof.key.of_continuation(nonce, &buffer[..continuation]);
                buffer[CONTINUATION_INTEGRITY..CONTINUATION_INTEGRITY + CODE_BYTES]
                    .copy_from_slice(&value.0);
            }
            if is_all {
                let at = offset::next(buffer.len() as u64).expect("a buffer of at most 32 MiB");
                buffer.resize(at as usize, 0);
                let lengths = self.encoded.lengths;
                let info = DataOutIntegrity::new(&proof.key, nonce, [&buffer[..]], lengths);
                buffer.extend_from_slice(&info.to_bytes());
                cdb.data_out_integrity = Some(at);
                cdb.data_in_integrity = self.encoded.incoming.integrity;
            }
            data_out = buffer.freeze();
        }
        let mut bytes = cdb.encode();
        let value = proof.key.of_cdb(&bytes);
        bytes[INTEGRITY..INTEGRITY + CODE_BYTES].copy_from_slice(&value.0);
        (Cdb::new(&bytes), self.transfer(data_out))
    }
}

impl CommandSource for SignedCommand {
    fn make(&self) -> (Cdb, DataPhase) {
        let mut cdb = self.encoded.cdb;
        if let Some(proof) = &self.proof {
            cdb.capability = proof.capability;
            match proof.method {
                SecurityMethod::NoSec => {}
                SecurityMethod::CapKey => {
                    let facts = self.signer.state.facts.lock().clone();
                    let drive = facts.as_ref().and_then(|facts| facts.object_drive.as_ref());
                    let token = drive.map_or(&[][..], |drive| &drive.security_token);
                    cdb.integrity = proof.key.of_token(token);
                }
                SecurityMethod::CmdRsp | SecurityMethod::AllData => {
                    return self.sign_command(proof, cdb);
                }
            }
        }
        (Cdb::new(&cdb.encode()), self.transfer(self.encoded.data_out.clone()))
    }

    fn changes(&self) -> Option<ChangedObject> {
        self.changes
    }
}

pub(crate) fn method_of(proof: Option<&CommandProof>) -> SecurityMethod {
    proof.map_or(SecurityMethod::NoSec, |proof| proof.method)
}

/// Returns the range of an object that a late repetition of the command could overwrite. `None` for APPEND and for
/// commands that create objects: they overwrite nothing.
fn changes(request: &ObjectRequest) -> Option<ChangedObject> {
    let command = request.command;
    let address = command.object();
    let object = (address.partition, address.object);
    match command {
        Command::Write { length, start, .. } | Command::Clear { length, start, .. }
            if request.set.is_empty() && request.continuation == Continuation::None =>
        {
            Some(ChangedObject { object, first: start, end: start.saturating_add(length) })
        }
        Command::Write { .. }
        | Command::Clear { .. }
        | Command::Punch { .. }
        | Command::Remove { .. }
        | Command::SetAttributes { .. } => Some(ChangedObject { object, first: 0, end: u64::MAX }),
        _ => None,
    }
}

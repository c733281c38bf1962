//! One request from its signature to its reply.

use std::sync::Arc;

use object::{ObjectError, ObjectReply, ObjectRequest};
use osd::security::SystemId;
use parking_lot::Mutex;

use super::{
    answer::{AnswerError, decode},
    credential::Credential,
    encoding::names_collection,
    signing::{SignedCommand, Signer},
};
use crate::{CommandError, RemoteSession, pending_commands::CommandRepetition};

/// A session with a drive, and what its signatures need.
pub(super) struct DriveLink {
    pub(super) session: RemoteSession,
    pub(super) credential: Credential,
    pub(super) signer: Arc<Signer>,
    /// The identifier of the drive, over which capabilities are signed.
    pub(super) system: Mutex<Option<SystemId>>,
}

/// A request that the drive has answered.
pub(super) struct Exchanged {
    pub(super) reply: ObjectReply,
    /// The generation of the session that answered.
    pub(super) generation: u64,
}

/// The reason why a request has no reply.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The drive's answer, or a request that was not sent.
    Refused(ObjectError),
    NonceTime(Option<u64>),
    /// The command was never sent.
    NotSent(String),
    /// The command may have been performed.
    Lost(String),
}

impl ExchangeError {
    pub(super) fn into_object_error(self) -> ObjectError {
        match self {
            Self::Refused(error) => error,
            Self::NonceTime(_) => {
                let reason = "the time of the nonce is not near the time of the drive";
                ObjectError::Capability(reason.into())
            }
            Self::NotSent(reason) | Self::Lost(reason) => ObjectError::Unreachable(reason),
        }
    }
}

impl DriveLink {
    /// Sends one command, and decodes its answer.
    pub(super) async fn exchange(
        &self,
        request: &ObjectRequest,
        repetition: CommandRepetition,
    ) -> Result<Exchanged, ExchangeError> {
        let system = *self.system.lock();
        let proof =
            self.credential.prove(&request.command, names_collection(request), system.as_ref());
        let proof = proof.map_err(ExchangeError::Refused)?;
        let command = SignedCommand::new(request, proof, &self.signer);
        let command = Arc::new(command.map_err(ExchangeError::Refused)?);
        let performed = self.session.execute_made(command.clone(), repetition).await;
        let performed = performed.map_err(|error| match error {
            CommandError::Away(reason) => ExchangeError::NotSent(reason.to_string()),
            other => ExchangeError::Lost(other.to_string()),
        })?;
        let generation = performed.generation;
        let nonce = command.last_nonce();
        let reply = decode(request, command.encoded(), command.proof(), nonce, performed);
        let reply = reply.map_err(|error| match error {
            AnswerError::Refused(error) => ExchangeError::Refused(error),
            AnswerError::NonceTime(time) => ExchangeError::NonceTime(time),
            AnswerError::NotGenuine(reason) => {
                ExchangeError::Refused(ObjectError::NotGenuine(reason))
            }
        })?;
        Ok(Exchanged { reply, generation })
    }
}

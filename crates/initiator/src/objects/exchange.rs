//! Sends one signed request, and waits for its reply.

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

/// A session with a drive, and the values with which its commands are signed.
pub(super) struct DriveLink {
    pub(super) session: RemoteSession,
    pub(super) credential: Credential,
    pub(super) signer: Arc<Signer>,
    /// OSD SYSTEM ID of the drive, which is a part of what capabilities sign; `None` until it is known.
    pub(super) system: Mutex<Option<SystemId>>,
}

/// The reply of the drive to a request.
pub(super) struct Exchanged {
    pub(super) reply: ObjectReply,
    /// The generation of the session that answered: see [`crate::RemoteSession::generation`].
    pub(super) generation: u64,
}

/// The reason why there is no reply of the drive to a request.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The drive refused the command, or the request was not sent because it is invalid or has no capability.
    Refused(ObjectError),
    NonceTime(Option<u64>),
    /// The command was never sent, since there is no session.
    NotSent(String),
    /// The session ended before the answer. The drive may have performed the command.
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
    /// Signs and sends one command, waits for the answer, and decodes it.
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

//! Repeats requests whose answer was lost, or asks the drive whether it has performed them.

use object::{
    Attribute, AttributeSelection, Command, CurrentCommand, ListedObject, ObjectAddress,
    ObjectError, ObjectReply, ObjectRequest, ObjectResult, ObjectType,
};
use osd::{REQUEST_HORIZON, REQUEST_RESULT, REQUEST_TAG, RequestResult, RequestTag};

use super::{
    RemoteObjects,
    exchange::{ExchangeError, Exchanged},
    unflushed::{is_flush, leaves_unflushed},
};
use crate::pending_commands::CommandRepetition;

/// Maximum number of attempts at a command that the drive has not begun.
const ATTEMPTS: usize = 4;

/// The drive's statement about a command whose answer was lost.
enum LookedUp {
    /// The result of the command, and the generation of the session in which the drive has reported it.
    Performed(RequestResult, u64),
    NotPerformed,
    Unknown,
}

impl RemoteObjects {
    pub(super) async fn perform_known(&self, request: ObjectRequest) -> ObjectResult {
        if is_flush(&request.command) {
            return self.flush(&request).await;
        }
        let exchanged = if request.command.is_unrepeatable() {
            self.perform_once(request.clone()).await?
        } else {
            self.perform_repeatable(&request).await?
        };
        if leaves_unflushed(&request.command, request.options.fua) {
            let epoch = self.epoch_of(exchanged.generation).await;
            let object = match exchanged.reply.current.object {
                ObjectAddress::ROOT => request.command.object(),
                created => created,
            };
            self.unflushed.lock().note_change(object, epoch);
        }
        Ok(exchanged.reply)
    }

    /// Flushes. Fails once if a restart of the drive may have lost changes that were not flushed.
    async fn flush(&self, request: &ObjectRequest) -> ObjectResult {
        let begun = {
            let mut unflushed = self.unflushed.lock();
            if unflushed.take_lost() {
                return Err(ObjectError::ChangesMayBeLost);
            }
            unflushed.begin_flush()
        };
        let Exchanged { reply, generation } = self.perform_repeatable(request).await?;
        let epoch = self.epoch_of(generation).await;
        match self.unflushed.lock().end_flush(&request.command, begun, epoch) {
            true => Ok(reply),
            false => Err(ObjectError::ChangesMayBeLost),
        }
    }

    async fn perform_repeatable(&self, request: &ObjectRequest) -> Result<Exchanged, ObjectError> {
        for _ in 1..ATTEMPTS {
            match self.link.exchange(request, CommandRepetition::Allowed).await {
                Err(ExchangeError::NonceTime(time)) => self.learn_time(time).await?,
                result => return result.map_err(ExchangeError::into_object_error),
            }
        }
        let last = self.link.exchange(request, CommandRepetition::Allowed).await;
        last.map_err(ExchangeError::into_object_error)
    }

    /// Performs a command that must not be performed twice. Keeps a request tag that the caller has given to the
    /// request.
    async fn perform_once(&self, mut request: ObjectRequest) -> Result<Exchanged, ObjectError> {
        let given = request.set.iter().find(|attribute| attribute.id == REQUEST_TAG);
        let tag = match given.and_then(|attribute| RequestTag::parse(&attribute.value)) {
            Some(tag) => tag,
            None => {
                let tag = self.link.signer.time.tag();
                let value = tag.to_bytes().to_vec().into();
                request.set.push(Attribute { id: REQUEST_TAG, value });
                tag
            }
        };
        let mut lost = String::new();
        for _ in 0..ATTEMPTS {
            match self.link.exchange(&request, CommandRepetition::Forbidden).await {
                Err(ExchangeError::NonceTime(time)) => self.learn_time(time).await?,
                Err(ExchangeError::Lost(reason)) => match self.look_up(tag).await {
                    LookedUp::Performed(result, generation) => {
                        let reply = self.performed(&request, result).await?;
                        return Ok(Exchanged { reply, generation });
                    }
                    LookedUp::NotPerformed => lost = reason,
                    LookedUp::Unknown => return Err(ObjectError::OutcomeUnknown),
                },
                result => return result.map_err(ExchangeError::into_object_error),
            }
        }
        // The last lookup has shown that the command was not performed.
        Err(ObjectError::Unreachable(lost))
    }

    /// Asks the drive whether it has performed the command with this request tag.
    async fn look_up(&self, tag: RequestTag) -> LookedUp {
        let root = ObjectAddress::ROOT;
        let mut request = ObjectRequest::new(Command::GetAttributes { object: root });
        let set = Attribute { id: REQUEST_TAG, value: tag.to_bytes().to_vec().into() };
        request.set.push(set);
        request.get = [REQUEST_RESULT, REQUEST_HORIZON].map(AttributeSelection::One).into();
        let Ok(exchanged) = self.perform_repeatable(&request).await else {
            return LookedUp::Unknown;
        };
        let [result, horizon] = &exchanged.reply.attributes[..] else { return LookedUp::Unknown };
        match (RequestResult::parse(&result.value), RequestTag::parse(&horizon.value)) {
            (Some(result), _) => LookedUp::Performed(result, exchanged.generation),
            (None, Some(horizon)) if result.value.is_empty() && tag > horizon => {
                LookedUp::NotPerformed
            }
            _ => LookedUp::Unknown,
        }
    }

    /// Makes the reply to a command that the drive has performed, but whose answer was lost.
    async fn performed(&self, request: &ObjectRequest, result: RequestResult) -> ObjectResult {
        let RequestResult { object_type, object, append_start, .. } = result;
        let current =
            CurrentCommand { object_type, object, append_start, ..CurrentCommand::default() };
        let mut reply = ObjectReply { current, ..ObjectReply::default() };
        if let Command::Create { count, .. } = request.command {
            let ids = object.object..object.object.saturating_add(count.into());
            let listed = |id| {
                let object_type = ObjectType::UserObject;
                ListedObject { id, object_type, attributes: Vec::new() }
            };
            reply.members = ids.map(listed).collect();
        }
        if !request.get.is_empty() {
            // The attributes are those after the command, if the object still exists.
            let mut get = ObjectRequest::new(Command::GetAttributes { object });
            get.get.clone_from(&request.get);
            let got = self.perform_repeatable(&get).await;
            let got = got.map_err(|_| ObjectError::OutcomeUnknown)?;
            (reply.attributes, reply.page) = (got.reply.attributes, got.reply.page);
        }
        Ok(reply)
    }
}

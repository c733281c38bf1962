//! Checks the answer of a drive, and decodes it. A drive can be hostile: every length, identifier and proof is checked.

use bytes::Bytes;
use object::{
    Attribute, AttributeId, AttributeSelection, CURRENT_COMMAND, Command, CurrentCommand,
    ListedObject, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType, ReplyData,
    standard_attribute,
};
use osd::{
    AttributeParameters, ListKind, current_command_page, encode_page, list, parse_current_command,
    parse_list, parse_map,
    security::{
        CODE_BYTES, DATA_IN_INTEGRITY_BYTES, DataInIntegrity, IntegrityCheckValue, Nonce,
        SecurityMethod, response_of_page, response_of_zeroed_sense,
    },
};
use scsi::{ReceivedObjectSense, ScsiStatus, Sense, SenseKey};
use volume::Data;

use super::{
    credential::CommandProof,
    encoding::{EncodedRequest, Incoming},
    refusal::{error_of, is_about_objects, is_nonce_time},
    signing::method_of,
};
use crate::PerformedCommand;

/// The reason why the answer to a command is not a reply.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum AnswerError {
    /// The drive refused the command, or could not perform it for another reason.
    Refused(ObjectError),
    /// The drive refused the time of the nonce, and did not perform the command. The value is the drive's time in ms,
    /// if the drive named it and the answer can be trusted.
    NonceTime(Option<u64>),
    NotGenuine(String),
}

fn not_genuine<T>(reason: impl Into<String>) -> Result<T, AnswerError> {
    Err(AnswerError::NotGenuine(reason.into()))
}

/// Maximum number of attributes that are accepted in one list: 128 KiB of the smallest entries.
const MOST_ATTRIBUTES: usize = 8192;

/// Checks the drive's answer to `request`, and decodes it.
pub(crate) fn decode(
    request: &ObjectRequest,
    sent: &EncodedRequest,
    proof: Option<&CommandProof>,
    nonce: Nonce,
    performed: PerformedCommand,
) -> Result<ObjectReply, AnswerError> {
    let PerformedCommand { status, sense, object_sense, data_in, .. } = performed;
    let proof = proof.filter(|proof| method_of(Some(proof)) >= SecurityMethod::CmdRsp);
    let is_recovered = sense.is_some_and(|sense| {
        matches!(sense.key, SenseKey::RecoveredError | SenseKey::NoSense) && !sense.deferred
    });
    let received = object_sense.as_deref();
    let is_signed = check_sense(proof, nonce, status, received)?;
    match status {
        ScsiStatus::Good => {}
        ScsiStatus::CheckCondition if is_recovered => {
            if proof.is_some() && !is_signed {
                return not_genuine("its sense data has no integrity check value");
            }
        }
        _ => {
            return Err(failure(status, sense, received, request, proof.is_none() || is_signed));
        }
    }
    let data_in: Data = data_in.into_iter().collect();
    if data_in.len() > sent.incoming.total as usize {
        return not_genuine("it returned more data than requested");
    }
    let all_data = proof.filter(|proof| proof.method == SecurityMethod::AllData);
    let data_in = match (all_data, sent.incoming.integrity) {
        (Some(proof), Some(at)) => verified_data(proof, nonce, data_in, at)?,
        _ => data_in,
    };
    let mut retrieved = Retrieved::parse(request, sent, &data_in)?;
    if let Some(proof) = proof
        && status == ScsiStatus::Good
    {
        let Some((current, value)) = &retrieved.current else {
            return not_genuine("it returned no integrity check value");
        };
        let page = current_command_page(current, value);
        if response_of_page(&proof.key, nonce, &page) != *value {
            return not_genuine("the integrity check value of its status is wrong");
        }
    }
    let past_end = sense.filter(|sense| (sense.asc, sense.ascq) == (0x3b, 0x17));
    let read_past_end = past_end.map(|sense| sense.command_specific.unwrap_or(u64::MAX));
    let data = command_data(request, &sent.incoming, data_in, read_past_end)?;
    let current = retrieved.current.map(|(current, _)| current).unwrap_or_default();
    if retrieved.members.is_empty() {
        retrieved.members = created(&request.command, &current)?;
    }
    Ok(ObjectReply {
        data,
        attributes: retrieved.attributes,
        page: retrieved.page,
        members: retrieved.members,
        current,
        read_past_end,
    })
}

/// Checks the response integrity check value in sense data. Returns false if the sense data has none.
fn check_sense(
    proof: Option<&CommandProof>,
    nonce: Nonce,
    status: ScsiStatus,
    received: Option<&ReceivedObjectSense>,
) -> Result<bool, AnswerError> {
    let value = received.and_then(|received| received.descriptors.response_integrity);
    match (proof, received, value) {
        (Some(proof), Some(received), Some(value)) => {
            let proven = &received.proven;
            let expected = response_of_zeroed_sense(&proof.key, nonce, status as u8, proven);
            if expected != IntegrityCheckValue(value) {
                return not_genuine("the integrity check value of its sense data is wrong");
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Returns the error for a command that was not performed. `is_proved` is false if the drive had to sign the status and
/// did not: such a status counts only if it says nothing about objects. A drive that refuses the capability may lack
/// the key to sign.
fn failure(
    status: ScsiStatus,
    sense: Option<Sense>,
    received: Option<&ReceivedObjectSense>,
    request: &ObjectRequest,
    is_proved: bool,
) -> AnswerError {
    let Some(sense) = sense else {
        let reason = format!("the drive ended the command with {status:?}");
        return AnswerError::Refused(ObjectError::Storage(reason));
    };
    if is_nonce_time(&sense) {
        // A time that the drive has not signed could make this client sign commands for a later time.
        return AnswerError::NonceTime(sense.information.filter(|_| is_proved));
    }
    let error = error_of(sense, received, &request.command);
    if !is_proved && is_about_objects(&error) {
        return AnswerError::NotGenuine(format!("\"{error}\" has no integrity check value"));
    }
    AnswerError::Refused(error)
}

/// Checks the integrity information at offset `at` of a Data-In buffer, and returns the bytes before it.
fn verified_data(
    proof: &CommandProof,
    nonce: Nonce,
    data_in: Data,
    at: u64,
) -> Result<Data, AnswerError> {
    let at = at as usize;
    if data_in.len() != at + DATA_IN_INTEGRITY_BYTES {
        return not_genuine("its data has no integrity information");
    }
    let info = data_in.slice(at, DATA_IN_INTEGRITY_BYTES).into_bytes();
    let before = data_in.slice(0, at);
    let info = DataInIntegrity::parse(&info).expect("48 bytes");
    let lengths = [info.data_bytes, info.retrieved_attributes_bytes];
    let pieces = before.parts().iter().map(|part| &part[..]);
    if DataInIntegrity::new(&proof.key, nonce, pieces, lengths).value != info.value {
        return not_genuine("the integrity check value of its data is wrong");
    }
    Ok(before)
}

/// Returns the command's data from the Data-In buffer, without attributes.
fn command_data(
    request: &ObjectRequest,
    incoming: &Incoming,
    data_in: Data,
    read_past_end: Option<u64>,
) -> Result<ReplyData, AnswerError> {
    let length = data_in.len().min(incoming.data as usize);
    let data = data_in.slice(0, length);
    match request.command {
        Command::Read { length: wanted, .. } => {
            let returned = match read_past_end {
                None => wanted,
                // The drive did not say where the object ends. If no attributes were requested, it ends with Data-In.
                Some(u64::MAX) if incoming.total as u64 == incoming.data => length as u64,
                Some(returned) => returned,
            };
            if returned > wanted || returned > length as u64 {
                return not_genuine(format!(
                    "a READ of {wanted} bytes returned {length}, and claims {returned}"
                ));
            }
            Ok(ReplyData::Bytes(data.slice(0, returned as usize)))
        }
        Command::List { list, partition } => {
            let kind = if partition == 0 { ListKind::Partitions } else { ListKind::UserObjects };
            listed(data, kind, list.first)
        }
        Command::ListCollection { list, collection } => {
            let kind =
                if collection.object == 0 { ListKind::Collections } else { ListKind::UserObjects };
            listed(data, kind, list.first)
        }
        Command::Query { matches: 0, .. } => listed(data, ListKind::Query, 0),
        Command::ReadMap { .. } | Command::ReadMapsAndCompare { .. } => {
            let runs = parse_map(&data.into_bytes());
            runs.map(ReplyData::Map).map_or_else(|| not_genuine("its map is invalid"), Ok)
        }
        Command::SetMasterKey { .. } | Command::PerformScsiCommand { .. } => {
            Ok(ReplyData::Bytes(data))
        }
        _ => Ok(ReplyData::None),
    }
}

fn listed(data: Data, kind: ListKind, first: u64) -> Result<ReplyData, AnswerError> {
    let Ok(list) = parse_list(&data.into_bytes(), kind, MOST_ATTRIBUTES) else {
        return not_genuine("its list is invalid");
    };
    let ascends = list.objects.windows(2).all(|pair| pair[0].id < pair[1].id);
    let begins = list.objects.first().is_none_or(|object| object.id >= first);
    if kind != ListKind::Query && !(ascends && begins) {
        return not_genuine("its list is not in order");
    }
    // A hostile drive could repeat an identifier in its continuations, and the caller would never stop asking.
    let last = list.objects.last().map_or(first, |last| last.id);
    if list.continuation != 0 && list.continuation <= last {
        return not_genuine("its list continues before its end");
    }
    Ok(ReplyData::List(list))
}

/// The attributes that the drive has returned for a command.
#[derive(Default)]
struct Retrieved {
    attributes: Vec<Attribute>,
    page: Option<Bytes>,
    members: Vec<ListedObject>,
    current: Option<(CurrentCommand, IntegrityCheckValue)>,
}

impl Retrieved {
    fn parse(
        request: &ObjectRequest,
        sent: &EncodedRequest,
        data_in: &Data,
    ) -> Result<Self, AnswerError> {
        let Some(space) = sent.incoming.attributes else { return Ok(Self::default()) };
        let begin = (space.offset as usize).min(data_in.len());
        let length = (data_in.len() - begin).min(space.allocation_length as usize);
        let region = data_in.slice(begin, length).into_bytes();
        match sent.cdb.attributes {
            AttributeParameters::Page { get: Some(get), .. } if get.page == CURRENT_COMMAND => {
                Ok(Self { current: parse_current_command(&region), ..Self::default() })
            }
            AttributeParameters::Page { .. } => {
                Ok(Self { page: Some(checked_page(region)?), ..Self::default() })
            }
            _ => Self::parse_lists(request, &region),
        }
    }

    fn parse_lists(request: &ObjectRequest, region: &Bytes) -> Result<Self, AnswerError> {
        const OBJECTS: u8 = 0x0e;
        if region.is_empty() {
            return not_genuine("it returned no attributes");
        }
        let mut retrieved = Self::default();
        if region[0] & 0x0f == OBJECTS {
            let Ok(mut members) = list::parse_objects(region, MOST_ATTRIBUTES) else {
                return not_genuine("its list of objects is invalid");
            };
            for member in &mut members {
                let current = take_current(&mut member.attributes);
                retrieved.current = retrieved.current.or(current);
                member.attributes =
                    matched(&request.get, std::mem::take(&mut member.attributes))?.0;
            }
            retrieved.members = members;
            return Ok(retrieved);
        }
        let Ok(mut attributes) = list::parse_attributes(region, MOST_ATTRIBUTES) else {
            return not_genuine("its list of attributes is invalid");
        };
        retrieved.current = take_current(&mut attributes);
        (retrieved.attributes, retrieved.page) = matched(&request.get, attributes)?;
        Ok(retrieved)
    }
}

/// Cuts the unused space of the Data-In buffer behind a page in page format.
fn checked_page(region: Bytes) -> Result<Bytes, AnswerError> {
    let length = region.get(4..8).and_then(|length| length.try_into().ok()).map(u32::from_be_bytes);
    match length.and_then(|length| (length as usize).checked_add(8)) {
        Some(end) if end <= region.len() => Ok(region.slice(..end)),
        _ => not_genuine("its attributes page is invalid"),
    }
}

/// Removes the current command page from the end of a list. The initiator requests it as the last page.
fn take_current(attributes: &mut Vec<Attribute>) -> Option<(CurrentCommand, IntegrityCheckValue)> {
    let mut page = [0; osd::CURRENT_COMMAND_BYTES];
    page[..4].copy_from_slice(&CURRENT_COMMAND.to_be_bytes());
    let mut below = u32::MAX;
    while let Some(last) = attributes.last()
        && last.id.page == CURRENT_COMMAND
        && last.id.number < below
    {
        let last = attributes.pop().expect("just seen");
        below = last.id.number;
        let place = match below {
            1 => 8..8 + CODE_BYTES,
            2 => 40..41,
            3 => 44..52,
            4 => 52..60,
            5 => 60..68,
            6 => 68..76,
            _ => continue,
        };
        if last.value.len() == place.len() {
            page[place].copy_from_slice(&last.value);
        }
    }
    if below == u32::MAX { None } else { parse_current_command(&page) }
}

/// Checks that the attributes in an answer are those that the request selected, in the same order. Adds selected
/// attributes that the drive left out, as undefined. Returns the attributes, and the page that was requested in page
/// format.
fn matched(
    selections: &[AttributeSelection],
    attributes: Vec<Attribute>,
) -> Result<(Vec<Attribute>, Option<Bytes>), AnswerError> {
    let mut rest = attributes.into_iter().peekable();
    let (mut found, mut page) = (Vec::new(), None);
    for selection in selections {
        match *selection {
            AttributeSelection::One(id) => {
                let one = rest.next_if(|attribute| attribute.id == id);
                found.push(one.unwrap_or(Attribute { id, value: Bytes::new() }));
            }
            AttributeSelection::Page(page) => {
                while let Some(one) = rest.next_if(|attribute| attribute.id.page == page) {
                    found.push(one);
                }
            }
            AttributeSelection::PageFormat(number) => {
                let mut values = Vec::new();
                while let Some(one) = rest.next_if(|attribute| attribute.id.page == number) {
                    values.push(one);
                }
                let value = |id: AttributeId| {
                    values.iter().find(|value| value.id == id).map(|value| value.value.clone())
                };
                page = Some(encode_page(number, value).into());
            }
            AttributeSelection::All => found.extend(rest.by_ref()),
            AttributeSelection::NumberInAllPages(number) => {
                while let Some(one) = rest.next_if(|attribute| attribute.id.number == number) {
                    found.push(one);
                }
            }
        }
    }
    if let Some(Attribute { id, .. }) = rest.next() {
        let AttributeId { page, number } = id;
        return not_genuine(format!("attribute {page:X}h/{number:X}h was not requested"));
    }
    for Attribute { id, value } in &found {
        let length = standard_attribute(*id).and_then(|standard| standard.length);
        if !value.is_empty() && length.is_some_and(|length| usize::from(length) != value.len()) {
            let (AttributeId { page, number }, bytes) = (*id, value.len());
            return not_genuine(format!("attribute {page:X}h/{number:X}h has {bytes} bytes"));
        }
    }
    Ok((found, page))
}

/// Returns the user objects that CREATE created; their identifiers are consecutive. Other commands return an empty
/// list.
fn created(command: &Command, current: &CurrentCommand) -> Result<Vec<ListedObject>, AnswerError> {
    let Command::Create { partition, requested, count } = *command else { return Ok(Vec::new()) };
    let ObjectAddress { partition: found, object: first } = current.object;
    if found != partition || first == 0 || requested != 0 && requested != first {
        return not_genuine(format!("CREATE in {partition:X}h created {}", current.object));
    }
    let Some(end) = first.checked_add(count.into()) else {
        return not_genuine("the identifiers of the created objects wrap around");
    };
    let object_type = ObjectType::UserObject;
    Ok((first..end).map(|id| ListedObject { id, object_type, attributes: Vec::new() }).collect())
}

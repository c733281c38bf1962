//! The last step of each command: it sets and returns attributes, and keeps the result under the request tag.

use bytes::{Bytes, BytesMut};
use object::{
    AttributeId, AttributeSelection, CURRENT_COMMAND, Command, CurrentCommand, ObjectAddress,
    ObjectError, ObjectReply, ObjectRequest, Timestamp,
};

use super::{
    attributes::{self, AttributeContext, TAG_PAGE},
    drive_core::DriveCore,
    key,
    object_row::ObjectRow,
    object_rows::store,
    transaction::{Step, Stop, TAG_BYTES, Transaction},
};

pub(crate) struct Conclusion<'a> {
    pub(crate) request: &'a ObjectRequest,
    pub(crate) address: ObjectAddress,
    pub(crate) context: AttributeContext<'a>,
    pub(crate) append_start: u64,
    pub(crate) change_in_used: i64,
}

impl<'a> Conclusion<'a> {
    pub(crate) fn new(
        core: &'a DriveCore,
        request: &'a ObjectRequest,
        address: ObjectAddress,
        now: Timestamp,
    ) -> Self {
        let options = &core.options;
        let context =
            AttributeContext { identity: &options.identity, limits: &options.limits, now };
        Self { request, address, context, append_start: 0, change_in_used: 0 }
    }

    fn current(&self, row: &ObjectRow) -> CurrentCommand {
        CurrentCommand {
            object_type: Some(row.object_type),
            object: self.address,
            append_start: self.append_start,
            change_in_used: self.change_in_used,
        }
    }
}

/// Sets the attributes that the request names, stores `row` if `is_changed` or if attributes were set, and returns the
/// selected attributes.
pub(crate) fn conclude(
    transaction: &mut Transaction<'_>,
    conclusion: &Conclusion<'_>,
    row: &mut ObjectRow,
    is_changed: bool,
) -> Step<ObjectReply> {
    let Conclusion { request, address, context, .. } = conclusion;
    if !request.set.is_empty() {
        attributes::set(transaction, context, *address, row, &request.set)?;
    }
    if is_changed || !request.set.is_empty() {
        store(transaction, *address, row)?;
    }
    answer(transaction, conclusion, row)
}

/// Returns the selected attributes of the command's object, and keeps the command's result under its request tag.
pub(crate) fn answer(
    transaction: &mut Transaction<'_>,
    conclusion: &Conclusion<'_>,
    row: &ObjectRow,
) -> Step<ObjectReply> {
    let Conclusion { request, address, context, .. } = conclusion;
    let current = conclusion.current(row);
    let mut found = Vec::new();
    let mut page = None;
    if !request.get.is_empty() {
        found = attributes::get(transaction, context, *address, row, &request.get)?;
        fill_current(&mut found, &request.get, &current);
        if let [AttributeSelection::PageFormat(number)] = request.get[..] {
            let values = std::mem::take(&mut found);
            let value =
                |id| values.iter().find(|found| found.id == id).map(|found| found.value.clone());
            page = Some(Bytes::from(osd::encode_page(number, value)));
        }
    }
    keep_tag(transaction, conclusion, &current)?;
    Ok(ObjectReply { attributes: found, page, current, ..ObjectReply::default() })
}

fn fill_current(
    found: &mut Vec<object::Attribute>,
    selections: &[AttributeSelection],
    current: &CurrentCommand,
) {
    attributes::fill_current_command(found, current);
    for selection in selections {
        if let AttributeSelection::Page(page) | AttributeSelection::PageFormat(page) = selection
            && *page == CURRENT_COMMAND
        {
            found.extend((2..=6).map(|number| {
                let value = attributes::of_current_command(current, number);
                object::Attribute::new(CURRENT_COMMAND, number, value)
            }));
        }
    }
}

/// Returns the request tag of a command, if the command has one.
pub(crate) fn tag_of(request: &ObjectRequest) -> Option<[u8; TAG_BYTES]> {
    let tag = request.set.iter().find(|set| set.id.page == TAG_PAGE && set.id.number == 1)?;
    tag.value.as_ref().try_into().ok()
}

/// Returns the request without its request tag.
pub(crate) fn untagged(request: &ObjectRequest) -> ObjectRequest {
    let set = request.set.iter().filter(|set| set.id.page != TAG_PAGE).cloned().collect();
    ObjectRequest { set, ..request.clone() }
}

/// Fails if the drive may have forgotten the result of the command with this tag. Then the command may have been
/// performed, and must not be performed again.
pub(crate) fn check_tag(transaction: &Transaction<'_>, tag: &[u8; TAG_BYTES]) -> Step<()> {
    match *tag <= transaction.counters.tag_horizon {
        true => Err(refused_tag()),
        false => Ok(()),
    }
}

/// Fails if a new tag is from the future. When the drive forgets a tag, it refuses all smaller ones, so a client with a
/// wrong clock would shut out all others.
pub(crate) fn check_tag_time(tag: &[u8; TAG_BYTES], now: Timestamp) -> Step<()> {
    let time = osd::RequestTag::parse(tag).map_or(0, |tag| tag.time.as_ms());
    match time > now.as_ms().saturating_add(MOST_AHEAD_MS) {
        true => Err(refused_tag()),
        false => Ok(()),
    }
}

fn refused_tag() -> Stop {
    let AttributeId { page, number } = osd::REQUEST_TAG;
    Stop::Failed(ObjectError::InvalidAttribute { page, number })
}

/// The result of a tagged command, as bytes: sequence number, object type, identifiers, begin of an append.
pub(super) fn encode_result(sequence: u64, current: &CurrentCommand) -> Bytes {
    let mut bytes = BytesMut::with_capacity(40);
    bytes.extend_from_slice(&sequence.to_be_bytes());
    bytes.extend_from_slice(&[
        current.object_type.map_or(0, |kind| kind as u8),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    bytes.extend_from_slice(&current.object.partition.to_be_bytes());
    bytes.extend_from_slice(&current.object.object.to_be_bytes());
    bytes.extend_from_slice(&current.append_start.to_be_bytes());
    bytes.freeze()
}

/// Returns the sequence number in the encoded result of a tagged command.
pub(crate) fn result_sequence(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().copied().map(u64::from_be_bytes)
}

/// Decodes the result of a tagged command.
pub(crate) fn decode_result(bytes: &[u8]) -> Option<CurrentCommand> {
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(CurrentCommand {
        object_type: object::ObjectType::from_code(*bytes.get(8)?),
        object: ObjectAddress::new(number(16)?, number(24)?),
        append_start: number(32)?,
        change_in_used: 0,
    })
}

fn keep_tag(
    transaction: &mut Transaction<'_>,
    conclusion: &Conclusion<'_>,
    current: &CurrentCommand,
) -> Step<()> {
    let Some(tag) = tag_of(conclusion.request) else { return Ok(()) };
    if !conclusion.request.command.is_unrepeatable() {
        return Ok(());
    }
    // A second transmission of the same command may have been performed since this one began.
    if transaction.get(&key::tag(&tag))?.is_some() {
        return Err(refused_tag());
    }
    // FORMAT OSD has taken effect already, and may itself have raised the horizon above its own tag.
    if !matches!(conclusion.request.command, Command::FormatOsd { .. }) {
        check_tag(transaction, &tag)?;
    }
    let sequence = transaction.counters.next_tag;
    transaction.put(key::tag(&tag), Some(encode_result(sequence, current)))?;
    transaction.counters.largest_tag = transaction.counters.largest_tag.max(tag);
    transaction.insert(key::tag_order(sequence), Bytes::copy_from_slice(&tag));
    transaction.counters.next_tag += 1;
    while transaction.counters.next_tag - transaction.counters.oldest_tag
        > conclusion.context.limits.request_tags
    {
        let order = key::tag_order(transaction.counters.oldest_tag);
        if let Some(oldest) = transaction.get(&order)? {
            transaction.put(order, None)?;
            if let Ok(oldest) = <[u8; TAG_BYTES]>::try_from(&oldest[..]) {
                transaction.put(key::tag(&oldest), None)?;
                transaction.counters.tag_horizon = transaction.counters.tag_horizon.max(oldest);
            }
        }
        transaction.counters.oldest_tag += 1;
    }
    Ok(())
}

/// The time by which a request tag may be ahead of the drive's clock: ten minutes. An initiator reads the drive's clock
/// when it logs in; this is more than its own clock drifts from it in a session of a week.
const MOST_AHEAD_MS: u64 = 10 * 60 * 1000;

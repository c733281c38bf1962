//! Reads and sets attributes. Some values are computed from the row of the object; every other attribute has a row of
//! its own.

use bytes::{Bytes, BytesMut};
use object::{
    Attribute, AttributeAccess, AttributeId, AttributeSelection, CURRENT_COMMAND, CurrentCommand,
    MAX_VALUE_LENGTH, ObjectAddress, ObjectError, ObjectType, PageFamily, RefusedField,
    StandardPage, Timestamp, attributes_of, family_of, is_vendor_number, standard_attribute,
};

use super::{
    disk::BLOCK,
    key,
    object_row::ObjectRow,
    object_rows::{check_changeable, check_tables, find, find_typed, store},
    options::{DriveIdentity, Limits},
    tracking::{self, TRACKING_COLLECTION, TRACKING_PAGE},
    transaction::{Step, Stop, Transaction},
};

/// The attributes page of a user object that names the collections of which it is a member.
pub(crate) const MEMBERSHIP_PAGE: u32 = 4;
/// The attributes page of request tags, an extension of Forebay (`osd::RequestTag`).
pub(crate) const TAG_PAGE: u32 = 0xf001_0000;

/// Values that attributes are computed from, besides the rows of the tables.
pub(crate) struct AttributeContext<'a> {
    pub(crate) identity: &'a DriveIdentity,
    pub(crate) limits: &'a Limits,
    pub(crate) now: Timestamp,
}

fn refused(id: AttributeId) -> Stop {
    Stop::Failed(ObjectError::InvalidAttribute { page: id.page, number: id.number })
}

/// Returns true for the policy access tags of a security page: that of the object, and in a partition that of its user
/// objects.
pub(crate) const fn is_policy_tag(attribute: &Attribute) -> bool {
    let AttributeId { page, number } = attribute.id;
    page & 0x0fff_ffff == 5 && matches!(number, 0x4000_0001 | 0x4000_0002)
}

/// Sets attributes of the object whose row is `row`. The caller must store the row afterwards.
pub(crate) fn set(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    set: &[Attribute],
) -> Step<()> {
    for attribute in set {
        let Attribute { id, value } = attribute;
        if id.page == TAG_PAGE {
            continue;
        }
        // Each command can set attributes, also one that otherwise only reads, such as READ. The content of a snapshot
        // cannot change, but access to it can be permitted and revoked.
        if !is_policy_tag(attribute) {
            let field = match address.object {
                0 => RefusedField::Partition,
                _ => RefusedField::Object,
            };
            check_changeable(row, field)?;
        }
        let may_have = match family_of(id.page) {
            PageFamily::Of(object_type) => object_type == row.object_type,
            PageFamily::Any => true,
            _ => false,
        };
        if !may_have || value.len() > MAX_VALUE_LENGTH || id.number == 0 || id.number == u32::MAX {
            return Err(refused(*id));
        }
        if row.object_type == ObjectType::UserObject && id.page == MEMBERSHIP_PAGE {
            set_membership(transaction, context, address, row, *id, value)?;
        } else if is_vendor_number(id.page) {
            put(transaction, context, address, row, *id, value)?;
        } else {
            set_standard(transaction, context, address, row, *id, value)?;
        }
        row.times.attributes_modified = context.now;
    }
    Ok(())
}

fn set_standard(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    id: AttributeId,
    value: &Bytes,
) -> Step<()> {
    let known = standard_attribute(id).filter(|known| known.access == AttributeAccess::Settable);
    let known = known.ok_or_else(|| refused(id))?;
    if known.length.is_some_and(|length| value.len() != usize::from(length)) {
        return Err(refused(id));
    }
    let long = || value.as_ref().try_into().map(u64::from_be_bytes).map_err(|_| refused(id));
    let short = || value.as_ref().try_into().map(u32::from_be_bytes).map_err(|_| refused(id));
    match (row.object_type, id.page % 0x3000_0000, id.number) {
        // The caller changes the logical length, because blocks may have to be freed or zeroed for that.
        (ObjectType::UserObject, 1, 0x82) => {}
        (ObjectType::UserObject, 2, 1) => {
            let max = long()?;
            if max != 0 && max < row.length {
                return Err(refused(id));
            }
            row.max_length = max;
        }
        (_, 2, 1) => row.max_length = long()?,
        (_, 2, 0x1_0001) => row.quota.bytes = long()?,
        (_, 2, 0x1_0002) => row.quota.objects = long()?,
        (_, 5, 0x4000_0001) => {
            row.policy_tag = short()?;
            tracking::abort_background(transaction, address)?;
        }
        (ObjectType::Partition, 5, 0x4000_0002) => {
            row.quota.user_policy_tag = short()?;
            tracking::abort_background(transaction, address)?;
        }
        _ => put(transaction, context, address, row, id, value)?,
    }
    Ok(())
}

/// Replaces, adds or removes (empty `value`) an attribute that has a row of its own.
fn put(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    id: AttributeId,
    value: &Bytes,
) -> Step<()> {
    let key = key::attribute(address, id);
    let old = transaction.get_of(address, &key)?;
    let old_length = old.as_ref().map_or(0, Bytes::len);
    if value.len() > old_length {
        check_tables(transaction)?;
    }
    let bytes = (row.attribute_bytes as usize).saturating_sub(old_length) + value.len();
    if bytes as u64 > context.limits.attribute_bytes {
        let (used, limit) = (bytes as u64, context.limits.attribute_bytes);
        return Err(Stop::Failed(ObjectError::Quota { used, limit }));
    }
    row.attribute_bytes = bytes as u32;
    // Copy the value: a slice of the long Data-Out buffer would keep the whole buffer in memory.
    let new = (!value.is_empty()).then(|| Bytes::copy_from_slice(value));
    transaction.replace(key, old.as_ref(), new);
    Ok(())
}

/// Makes a user object a member of the collection that `value` names. An empty `value` ends the membership.
fn set_membership(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    id: AttributeId,
    value: &Bytes,
) -> Step<()> {
    if id.number > LAST_MEMBERSHIP {
        return Err(refused(id));
    }
    let key = key::attribute(address, id);
    if let Some(old) = transaction.get(&key)? {
        leave(transaction, address, &old)?;
        transaction.put(key.clone(), None)?;
        row.attribute_bytes = row.attribute_bytes.saturating_sub(8);
    }
    if value.is_empty() {
        return Ok(());
    }
    let collection = value.as_ref().try_into().map(u64::from_be_bytes).map_err(|_| refused(id))?;
    let collection = ObjectAddress::new(address.partition, collection);
    if collection.object == 0 {
        return Err(refused(id));
    }
    let mut parent = find_typed(transaction, collection, ObjectType::Collection)?;
    check_changeable(&parent, RefusedField::Object)?;
    if parent.members.kind == TRACKING_COLLECTION {
        return Err(refused(id));
    }
    let member = key::member(collection, address.object);
    if transaction.get(&member)?.is_some() {
        return Err(refused(id));
    }
    let first = key::attribute(address, AttributeId::new(MEMBERSHIP_PAGE, 1));
    let mut memberships = 0;
    transaction.for_each(&first, &key::page_end(address, MEMBERSHIP_PAGE), |_, _, _| {
        memberships += 1;
        Ok(())
    })?;
    if memberships >= context.limits.collections {
        let limit = context.limits.collections as u64;
        return Err(Stop::Failed(ObjectError::Quota { used: limit, limit }));
    }
    parent.members.count += 1;
    store(transaction, collection, &parent)?;
    transaction.put(member, Some(Bytes::copy_from_slice(&id.number.to_be_bytes())))?;
    transaction.put(key, Some(Bytes::copy_from_slice(value)))?;
    row.attribute_bytes += 8;
    Ok(())
}

/// Takes a user object off the member list of the collection whose identifier is `value`.
pub(crate) fn leave(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    value: &Bytes,
) -> Step<()> {
    let Ok(collection) = value.as_ref().try_into().map(u64::from_be_bytes) else { return Ok(()) };
    let collection = ObjectAddress::new(address.partition, collection);
    transaction.put(key::member(collection, address.object), None)?;
    let Some(row) = transaction.get(&key::object(collection))? else { return Ok(()) };
    let mut parent = super::object_rows::decode(collection, &row)?;
    parent.members.count = parent.members.count.saturating_sub(1);
    store(transaction, collection, &parent)
}

/// Returns the values of the selected attributes of an object.
pub(crate) fn get(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
    selections: &[AttributeSelection],
) -> Step<Vec<Attribute>> {
    let mut found = Vec::new();
    for selection in selections {
        match *selection {
            AttributeSelection::One(id) => {
                let value = value_of(transaction, context, address, row, id)?.unwrap_or_default();
                found.push(Attribute { id, value });
            }
            AttributeSelection::Page(page) | AttributeSelection::PageFormat(page) => {
                let last = page;
                pages(transaction, context, address, row, page..=last, None, &mut found)?;
            }
            AttributeSelection::All => {
                pages(transaction, context, address, row, 0..=u32::MAX, None, &mut found)?;
            }
            AttributeSelection::NumberInAllPages(number) => {
                pages(transaction, context, address, row, 0..=u32::MAX, Some(number), &mut found)?;
            }
        }
    }
    Ok(found)
}

/// Adds the defined attributes of a range of pages to `found`; with `number`, only those with this number.
fn pages(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
    pages: std::ops::RangeInclusive<u32>,
    number: Option<u32>,
    found: &mut Vec<Attribute>,
) -> Step<()> {
    let begin = found.len();
    let wanted = |id: AttributeId| number.is_none_or(|number| number == id.number);
    for known in attributes_of(row.object_type) {
        if pages.contains(&known.id.page)
            && wanted(known.id)
            && let Some(value) = derived(transaction, context, address, row, known.id)?
        {
            found.push(Attribute { id: known.id, value });
        }
    }
    if row.attribute_bytes > 0 {
        let first = key::attribute(address, AttributeId::new(*pages.start(), 0));
        let end = key::page_end(address, *pages.end());
        transaction.for_each(&first, &end, |_, key, value| {
            let id = key::attribute_id(&key);
            if wanted(id) {
                found.push(Attribute { id, value });
            }
            Ok(())
        })?;
    }
    found[begin..].sort_by_key(|attribute| attribute.id);
    Ok(())
}

/// Returns the value of one attribute; `None` if the attribute is not defined.
pub(crate) fn value_of(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
    id: AttributeId,
) -> Step<Option<Bytes>> {
    if id.page == TAG_PAGE {
        return Ok(None);
    }
    if let Some(value) = derived(transaction, context, address, row, id)? {
        return Ok(Some(value));
    }
    if row.attribute_bytes == 0 {
        return Ok(None);
    }
    transaction.get(&key::attribute(address, id))
}

/// Returns the value of an attribute that has no row of its own.
fn derived(
    transaction: &mut Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
    id: AttributeId,
) -> Step<Option<Bytes>> {
    match computed(transaction, context, address, row, id) {
        None if id.page == TRACKING_PAGE && row.object_type == ObjectType::Collection => {
            tracking::value(transaction, address, id.number)
        }
        value => Ok(value),
    }
}

/// Returns the value of an attribute that follows from the row of the object.
fn computed(
    transaction: &Transaction<'_>,
    context: &AttributeContext<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
    id: AttributeId,
) -> Option<Bytes> {
    let long = |value: u64| Some(Bytes::copy_from_slice(&value.to_be_bytes()));
    let time = |time: Timestamp| Some(Bytes::copy_from_slice(&time.to_bytes()));
    let family = StandardPage::Directory.of(row.object_type);
    let members = &row.members;
    match (id.page.checked_sub(family)?, id.number) {
        (1, _) if row.object_type == ObjectType::Root => {
            root_information(transaction, context, row, id.number)
        }
        (1, 1) => long(address.partition),
        (1, 2) if address.object != 0 => long(address.object),
        (1, 0xa) if row.object_type == ObjectType::Collection => {
            Some(Bytes::copy_from_slice(&[members.kind]))
        }
        (1, 0x81) => long(row.used * BLOCK),
        (1, 0x82) if row.object_type == ObjectType::UserObject => long(row.length),
        (1, 0xc1) if row.object_type == ObjectType::Partition => {
            long(members.count.saturating_add(members.collections))
        }
        (2, 1) if row.object_type != ObjectType::Collection => long(row.max_length),
        (2, 0x1_0001) if has_quota(row) => long(row.quota.bytes),
        (2, 0x1_0002) if has_quota(row) => long(row.quota.objects),
        (3, 1) if row.object_type != ObjectType::Root => time(row.times.created),
        (3, 2) => time(row.times.attributes_accessed),
        (3, 3) => time(row.times.attributes_modified),
        (3, 4) if row.object_type != ObjectType::Root => time(row.times.data_accessed),
        (3, 5) if row.object_type != ObjectType::Root => time(row.times.data_modified),
        (4, 0x10) if row.object_type == ObjectType::Collection => long(members.count),
        (5, 0x8000_0001..=0x8000_0003) if row.object_type == ObjectType::Root => {
            Some(Bytes::copy_from_slice(&[(id.number & 0xf) as u8]))
        }
        (5, 0x4000_0001) => Some(Bytes::copy_from_slice(&row.policy_tag.to_be_bytes())),
        (5, 0x4000_0002) if row.object_type == ObjectType::Partition => {
            Some(Bytes::copy_from_slice(&row.quota.user_policy_tag.to_be_bytes()))
        }
        _ => None,
    }
}

fn has_quota(row: &ObjectRow) -> bool {
    matches!(row.object_type, ObjectType::Root | ObjectType::Partition)
}

fn root_information(
    transaction: &Transaction<'_>,
    context: &AttributeContext<'_>,
    row: &ObjectRow,
    number: u32,
) -> Option<Bytes> {
    let long = |value: u64| Some(Bytes::copy_from_slice(&value.to_be_bytes()));
    let identity = context.identity;
    match number {
        3 => Some(Bytes::copy_from_slice(&identity.system_id)),
        4 => Some(padded(&identity.vendor, 8)),
        5 => Some(padded(&identity.product, 16)),
        6 => Some(padded(&identity.product, 32)),
        7 => Some(padded(&identity.revision, 4)),
        8 => Some(Bytes::copy_from_slice(identity.serial.as_bytes())),
        0xa => Some(Bytes::copy_from_slice(&(context.limits.list_bytes as u32).to_be_bytes())),
        0x80 => long(transaction.total_blocks() * BLOCK),
        0x81 => long(transaction.used_blocks() * BLOCK),
        0xc0 => long(row.members.count),
        0x100 => Some(Bytes::copy_from_slice(&context.now.to_bytes())),
        0x110 => Some(Bytes::from_static(&[5])),
        // Each command takes effect as a whole: the limits of atomic changes are those of the data and the attributes
        // of a command.
        0x120 => long(context.limits.command_bytes),
        0x121 => long(1),
        0x122 => long(context.limits.attribute_bytes),
        0x123 => Some(Bytes::from_static(&[1])),
        _ => None,
    }
}

/// Returns `text` in `length` bytes, padded with spaces.
fn padded(text: &str, length: usize) -> Bytes {
    let mut bytes = BytesMut::zeroed(length);
    bytes.fill(b' ');
    let n = text.len().min(length);
    bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
    bytes.freeze()
}

/// Returns an attribute of the current command page; an empty value for an unknown number.
pub(crate) fn of_current_command(current: &CurrentCommand, number: u32) -> Bytes {
    match number {
        2 => current.object_type.map_or(Bytes::new(), |kind| Bytes::copy_from_slice(&[kind as u8])),
        3 => Bytes::copy_from_slice(&current.object.partition.to_be_bytes()),
        4 => Bytes::copy_from_slice(&current.object.object.to_be_bytes()),
        5 => Bytes::copy_from_slice(&current.append_start.to_be_bytes()),
        6 => Bytes::copy_from_slice(&current.change_in_used.to_be_bytes()),
        _ => Bytes::new(),
    }
}

/// Fills in the attributes of the current command page, which are known at the end of the command.
pub(crate) fn fill_current_command(found: &mut [Attribute], current: &CurrentCommand) {
    for attribute in found.iter_mut().filter(|attribute| attribute.id.page == CURRENT_COMMAND) {
        attribute.value = of_current_command(current, attribute.id.number);
    }
}

/// Returns the row of the root object, for commands about the drive.
pub(crate) fn root(transaction: &mut Transaction<'_>) -> Step<ObjectRow> {
    find(transaction, ObjectAddress::ROOT)
}

/// The highest attribute number of the collections page that can name a collection.
const LAST_MEMBERSHIP: u32 = 0xffff_ff00;

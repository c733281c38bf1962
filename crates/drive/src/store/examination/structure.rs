//! Compares the rows of the tables with each other: counts, memberships, attributes and request tags.

use bytes::Bytes;
use object::{AttributeId, ObjectAddress, ObjectType};

use super::{
    report::{DriveExamination, DriveFindingKind},
    rows::ExaminedRows,
    unfinished::{count_unfinished_chunks, examine_unfinished},
};
use crate::store::{
    attributes::MEMBERSHIP_PAGE,
    chunk::{CHUNK_BLOCKS, ENTRY},
    conclusion::result_sequence,
    groups::{GROUP_BLOCKS, SUMMARY_GROUPS},
    key::{self, Key, RowKind},
    object_row::{HAS_WORK, ObjectRow},
    tracking::{self, Pending, TRACKING_COLLECTION},
    transaction::Counters,
};

/// Numbers that were counted while all objects were examined.
#[derive(Default)]
pub(super) struct WalkedObjects {
    pub(super) objects: u64,
    partitions: u64,
    chunks: u64,
    last_content: u64,
}

/// Examines all rows, but not the blocks that they name. Returns the drive's counters and number of used blocks as
/// their row says, or `None` if that row is damaged.
pub(super) fn examine_rows(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
) -> Result<Option<(Counters, u64)>, redb::Error> {
    let walked = walk(rows, report)?;
    examine_each_row(rows, report, &walked)?;
    let row = rows.get(&key::counters())?;
    let Some((counters, used)) = row.as_deref().and_then(Counters::decode) else {
        report.find(DriveFindingKind::Counter, "the row of counters is missing or damaged");
        return Ok(None);
    };
    let kind = DriveFindingKind::Counter;
    report.compare(kind, "user objects and collections", counters.objects, walked.objects);
    report.compare(kind, "partitions", counters.partitions, walked.partitions);
    if walked.last_content > counters.next_content {
        report.find(kind, "an object has a content number that the drive may give again");
    }
    Ok(Some((counters, used)))
}

/// Examines the objects of all partitions, and counts them.
fn walk(rows: &ExaminedRows, report: &mut DriveExamination) -> Result<WalkedObjects, redb::Error> {
    let mut walked = WalkedObjects::default();
    let root = object_row(rows, report, ObjectAddress::ROOT, ObjectType::Root)?;
    let first = key::object(ObjectAddress::partition(1));
    rows.each(&first, &key::partitions_end(), |row_key, row| {
        let address = ObjectAddress::partition(key::last_number(&row_key));
        walked.partitions += 1;
        match ObjectRow::decode(&row).filter(|row| row.object_type == ObjectType::Partition) {
            Some(row) => examine_partition(rows, report, &mut walked, address, &row),
            None => {
                report.find_at(DriveFindingKind::Object, address, "its row is damaged");
                Ok(())
            }
        }
    })?;
    if let Some(root) = root {
        let kind = DriveFindingKind::Object;
        report.compare(kind, "partitions of the root", root.members.count, walked.partitions);
        examine_attributes(rows, report, ObjectAddress::ROOT, &root)?;
    }
    (report.partitions, report.objects) = (walked.partitions, walked.objects);
    Ok(walked)
}

/// Returns the row of an object that must have this type. Adds a finding if there is none.
fn object_row(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    address: ObjectAddress,
    object_type: ObjectType,
) -> Result<Option<ObjectRow>, redb::Error> {
    let row = rows.get(&key::object(address))?;
    let row = row.and_then(|row| ObjectRow::decode(&row));
    let row = row.filter(|row| row.object_type == object_type);
    if row.is_none() {
        report.find_at(DriveFindingKind::Object, address, "its row is missing or damaged");
    }
    Ok(row)
}

fn examine_partition(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    walked: &mut WalkedObjects,
    address: ObjectAddress,
    partition: &ObjectRow,
) -> Result<(), redb::Error> {
    let (mut users, mut collections, mut used, mut highest) = (0, 0, 0_u64, 0);
    let start = key::object(ObjectAddress::new(address.partition, 1));
    rows.each(&start, &key::objects_end(address.partition), |row_key, row| {
        let object = ObjectAddress::new(address.partition, key::last_number(&row_key));
        walked.objects += 1;
        highest = object.object;
        let Some(row) = ObjectRow::decode(&row) else {
            report.find_at(DriveFindingKind::Object, object, "its row is damaged");
            return Ok(());
        };
        walked.last_content = walked.last_content.max(row.content);
        match row.object_type {
            ObjectType::UserObject => {
                users += 1;
                used = used.saturating_add(row.used);
                examine_content(rows, report, walked, object, &row)?;
            }
            ObjectType::Collection => {
                collections += 1;
                examine_members(rows, report, object, &row)?;
            }
            _ => report.find_at(DriveFindingKind::Object, object, "its row has a wrong type"),
        }
        examine_attributes(rows, report, object, &row)
    })?;
    let kind = DriveFindingKind::Object;
    let members = &partition.members;
    report.compare(kind, format_args!("user objects of {address}"), members.count, users);
    report.compare(
        kind,
        format_args!("collections of {address}"),
        members.collections,
        collections,
    );
    report.compare(kind, format_args!("used blocks of {address}"), partition.used, used);
    if highest > members.highest {
        report.find_at(kind, address, "it has an object above its highest identifier");
    }
    examine_attributes(rows, report, address, partition)
}

/// Compares the length and the used blocks of a user object with its chunks.
fn examine_content(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    walked: &mut WalkedObjects,
    object: ObjectAddress,
    row: &ObjectRow,
) -> Result<(), redb::Error> {
    let mut used = 0;
    let blocks = row.length.div_ceil(crate::store::disk::BLOCK);
    let mut is_behind = false;
    let (start, end) = (key::chunk(row.content, 0), key::chunks_end(row.content));
    rows.each(&start, &end, |row_key, chunk| {
        walked.chunks += 1;
        let first = key::last_number(&row_key).saturating_mul(CHUNK_BLOCKS);
        for (index, _) in crate::store::chunk::entries(&chunk) {
            used += 1;
            is_behind |= first.saturating_add(index) >= blocks;
        }
        Ok(())
    })?;
    let kind = DriveFindingKind::Object;
    report.compare(kind, format_args!("used blocks of {object}"), row.used, used);
    if row.has(HAS_WORK) && !rows.has(&key::work(row.content))? {
        report.find_at(kind, object, "no work row has the chunks of it that are to be freed");
    }
    if is_behind {
        report.find_at(kind, object, "it has blocks behind its end");
    }
    Ok(())
}

fn examine_members(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    collection: ObjectAddress,
    row: &ObjectRow,
) -> Result<(), redb::Error> {
    let kind = DriveFindingKind::Collection;
    if !rows.has(&key::collection(collection.partition, collection.object))? {
        report.find_at(kind, collection, "it is missing in the list of collections");
    }
    let mut members = 0;
    rows.each(&key::member(collection, 0), &key::members_end(collection), |_, _| {
        members += 1;
        Ok(())
    })?;
    report.compare(kind, format_args!("members of {collection}"), row.members.count, members);
    Ok(())
}

/// Compares the length of all attributes of an object with its row, and its memberships with the collections.
fn examine_attributes(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    address: ObjectAddress,
    row: &ObjectRow,
) -> Result<(), redb::Error> {
    let mut bytes = 0_u64;
    let first = key::attribute(address, AttributeId::new(0, 0));
    rows.each(&first, &key::attributes_end(address), |row_key, value| {
        bytes += value.len() as u64;
        let id = key::attribute_id(&row_key);
        if row.object_type != ObjectType::UserObject || id.page != MEMBERSHIP_PAGE {
            return Ok(());
        }
        let collection = value.as_ref().try_into().map(u64::from_be_bytes).unwrap_or_default();
        let collection = ObjectAddress::new(address.partition, collection);
        let number = rows.get(&key::member(collection, address.object))?;
        if number.as_deref() != Some(&id.number.to_be_bytes()[..]) {
            let text = format!("it names the collection {collection}, which does not list it");
            report.find_at(DriveFindingKind::Collection, address, &text);
        }
        Ok(())
    })?;
    let kept = u64::from(row.attribute_bytes);
    let kind = DriveFindingKind::Attribute;
    report.compare(kind, format_args!("bytes of attributes of {address}"), kept, bytes);
    Ok(())
}

/// Examines the form of each row, and that the object exists to which the row belongs.
fn examine_each_row(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    walked: &WalkedObjects,
) -> Result<(), redb::Error> {
    let (mut chunks, mut objects) = (0, 0);
    rows.each(&[], &[u8::MAX], |row_key, row| {
        report.rows += 1;
        let Some(kind) = RowKind::of(&row_key) else {
            report.unknown_rows += 1;
            return Ok(());
        };
        if !kind.fits(row_key.len()) {
            report.find(
                DriveFindingKind::Tables,
                format!("a key has a wrong length: {row_key:02x?}"),
            );
            return Ok(());
        }
        match kind {
            RowKind::Chunk => {
                chunks += 1;
                let most = CHUNK_BLOCKS as usize * ENTRY;
                check_length(report, &row_key, &row, ENTRY, most);
            }
            RowKind::Group => check_length(report, &row_key, &row, 8, GROUP_BLOCKS as usize / 8),
            RowKind::Summary => check_length(report, &row_key, &row, 2, SUMMARY_GROUPS * 2),
            RowKind::Object => objects += 1,
            RowKind::Attribute => {
                let owner = ObjectAddress::new(key::number(&row_key, 0), key::number(&row_key, 1));
                if !rows.has(&key::object(owner))? {
                    let text = "an attribute belongs to this object, which does not exist";
                    report.find_at(DriveFindingKind::Attribute, owner, text);
                }
            }
            RowKind::Collection => {
                let address =
                    ObjectAddress::new(key::number(&row_key, 0), key::number(&row_key, 1));
                examine_listed(rows, report, address)?;
            }
            RowKind::Member => examine_member(rows, report, &row_key, &row)?,
            RowKind::Tracking | RowKind::Pending => {
                examine_tracking(rows, report, kind, &row_key, &row)?;
            }
            RowKind::Trash | RowKind::Work | RowKind::Build | RowKind::Progress => {
                examine_unfinished(rows, report, kind, &row_key, &row)?;
            }
            RowKind::Tag | RowKind::TagOrder => examine_tag(rows, report, kind, &row_key, &row)?,
            _ => {}
        }
        Ok(())
    })?;
    let kind = DriveFindingKind::Object;
    report.compare(kind, "rows of objects in partitions", objects, walked.objects);
    let unfinished = count_unfinished_chunks(rows)?;
    report.compare(kind, "chunks of objects", chunks, walked.chunks + unfinished);
    Ok(())
}

/// Adds a finding if a row is longer than `most` bytes, or does not consist of whole entries.
fn check_length(
    report: &mut DriveExamination,
    row_key: &Key,
    row: &Bytes,
    entry: usize,
    most: usize,
) {
    if row.is_empty() || row.len() > most || !row.len().is_multiple_of(entry) {
        let text = format!("the row {row_key:02x?} has {} bytes", row.len());
        report.find(DriveFindingKind::Tables, text);
    }
}

/// Examines that a row in the list of collections names a collection.
fn examine_listed(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    address: ObjectAddress,
) -> Result<(), redb::Error> {
    let row = rows.get(&key::object(address))?.and_then(|row| ObjectRow::decode(&row));
    if row.is_none_or(|row| row.object_type != ObjectType::Collection) {
        let text = "it is in the list of collections, but it is no collection";
        report.find_at(DriveFindingKind::Collection, address, text);
    }
    Ok(())
}

/// Examines that a member of a collection has the attribute which names the collection.
fn examine_member(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    row_key: &Key,
    row: &Bytes,
) -> Result<(), redb::Error> {
    let collection = ObjectAddress::new(key::number(row_key, 0), key::number(row_key, 1));
    let member = ObjectAddress::new(collection.partition, key::number(row_key, 2));
    let parent = rows.get(&key::object(collection))?.and_then(|row| ObjectRow::decode(&row));
    if parent.is_some_and(|parent| parent.members.kind == TRACKING_COLLECTION) {
        // The member may have been removed since, and does not name the collection.
        if row.len() != 6 {
            let text = format!("the row of its member {member} is damaged");
            report.find_at(DriveFindingKind::Collection, collection, &text);
        }
        return Ok(());
    }
    let number = row.as_ref().try_into().map(u32::from_be_bytes).unwrap_or_default();
    let attribute = key::attribute(member, AttributeId::new(MEMBERSHIP_PAGE, number));
    let value = rows.get(&attribute)?;
    if value.as_deref() != Some(&collection.object.to_be_bytes()[..]) {
        let text = format!("it lists {member}, which does not name it");
        report.find_at(DriveFindingKind::Collection, collection, &text);
    }
    Ok(())
}

/// Examines a record of a tracked command, or the row of one that a start of the drive goes on with. Both belong to a
/// collection, and the second needs the first.
fn examine_tracking(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    kind: RowKind,
    row_key: &Key,
    row: &Bytes,
) -> Result<(), redb::Error> {
    let collection = key::pending_collection(row_key);
    let owner = rows.get(&key::object(collection))?.and_then(|row| ObjectRow::decode(&row));
    let is_collection = owner.is_some_and(|owner| owner.object_type == ObjectType::Collection);
    let text = match kind {
        _ if !is_collection => "a tracked command belongs to this collection, which does not exist",
        RowKind::Tracking if !tracking::is_record(row) => "its record of a command is damaged",
        RowKind::Pending if Pending::decode(row).is_none() => "its pending command is damaged",
        RowKind::Pending if !rows.has(&key::tracking(collection))? => {
            "its pending command has no record"
        }
        _ => return Ok(()),
    };
    report.find_at(DriveFindingKind::Collection, collection, text);
    Ok(())
}

/// Examines that a request tag is in both lists, the one by tag and the one by age.
fn examine_tag(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    kind: RowKind,
    row_key: &Key,
    row: &Bytes,
) -> Result<(), redb::Error> {
    let is_right = match kind {
        RowKind::Tag => {
            let order = match result_sequence(row) {
                Some(sequence) => rows.get(&key::tag_order(sequence))?,
                None => None,
            };
            order.as_deref() == row_key.get(1..)
        }
        _ => match <[u8; 16]>::try_from(&row[..]) {
            Ok(tag) => {
                let found = rows.get(&key::tag(&tag))?;
                let sequence = found.as_deref().and_then(result_sequence);
                sequence == Some(key::last_number(row_key))
            }
            Err(_) => false,
        },
    };
    if !is_right {
        report.find(
            DriveFindingKind::Tables,
            format!("the row of a request tag is damaged: {row_key:02x?}"),
        );
    }
    Ok(())
}

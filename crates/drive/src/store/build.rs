//! A partition that is being made as a copy of another one, in steps.
//!
//! A snapshot or clone is made object by object while other commands change its source. A build row exists from the
//! first step to the last one. Until then the new partition is hidden. A command that changes an object of
//! the source which is not copied yet copies this object first, so the copy is as of the moment of the first step. A
//! build that is aborted, or that a crash interrupts, is undone.
//!
//! The build row is named by the new partition: the source (8 bytes, little-endian), the newest content at the begin
//! (8), the blocks that were copied (8), the partition that the copy replaces (8; zero: none), the stage of the
//! replacement (8), and the row of the source at the begin. A progress row exists for an object
//! that is copied in part: its new content (8), the next chunk or member (8), and the blocks that were copied (8).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use object::{AttributeId, ObjectAddress, ObjectError, ObjectType};

use super::{
    chunk,
    freeing::free_content,
    key,
    object_row::{FROZEN, HAS_WORK, MAY_SHARE, ObjectRow},
    object_rows::{check_tables, decode},
    sharing::share_blocks,
    tracking,
    transaction::{ActiveBuild, BuildChange, Step, Stop, Transaction},
    work_row::{WorkRow, is_left_over, store_work},
};

#[derive(Clone, Debug)]
pub(crate) struct BuildRow {
    pub(crate) source: u64,
    pub(crate) newest_content: u64,
    pub(crate) used: u64,
    /// The partition whose objects are replaced when the copy is complete; zero: none.
    pub(crate) replaces: u64,
    /// Zero while objects are copied. Then the old objects are removed (1), and the new ones moved (2).
    pub(crate) stage: u64,
    /// The row of the source at the begin.
    pub(crate) row: ObjectRow,
}

impl BuildRow {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        for number in [self.source, self.newest_content, self.used, self.replaces, self.stage] {
            bytes.put_u64_le(number);
        }
        bytes.extend_from_slice(&self.row.encode());
        bytes.freeze()
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 40 {
            return None;
        }
        let [source, newest_content, used, replaces, stage] =
            std::array::from_fn(|_| bytes.get_u64_le());
        let row = ObjectRow::decode(bytes)?;
        Some(Self { source, newest_content, used, replaces, stage, row })
    }
}

/// How far the copy of one object is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) content: u64,
    pub(crate) next: u64,
    pub(crate) used: u64,
}

impl Progress {
    pub(crate) fn encode(self) -> Bytes {
        [self.content, self.next, self.used].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 24).then(|| Self {
            content: bytes.get_u64_le(),
            next: bytes.get_u64_le(),
            used: bytes.get_u64_le(),
        })
    }
}

/// Returns the build row of a partition. Fails if there is none, because FORMAT OSD or a failure has ended the build.
pub(crate) fn find_build(transaction: &mut Transaction<'_>, target: u64) -> Step<BuildRow> {
    let object = ObjectAddress::partition(target);
    let damaged = || ObjectError::Storage(format!("the build row of {object} is damaged"));
    match transaction.get(&key::build(target))? {
        Some(row) => BuildRow::decode(&row)
            .filter(|row| row.replaces != target)
            .ok_or_else(|| Stop::Failed(damaged())),
        None => Err(Stop::Failed(ObjectError::NoSuchObject { object })),
    }
}

/// Returns the build row of a copy that a start found. Fails if the copy is a visible partition, or replaces one that does
/// not exist: no command leaves such a row, and undoing the copy would remove objects that are in use.
pub(crate) fn find_interrupted(transaction: &mut Transaction<'_>, copy: u64) -> Step<BuildRow> {
    let build = find_build(transaction, copy)?;
    let mut is_visible = |partition| -> Step<bool> {
        Ok(transaction.get(&key::object(ObjectAddress::partition(partition)))?.is_some())
    };
    if is_visible(copy)? || (build.stage != 0 && !is_visible(build.replaces)?) {
        let object = ObjectAddress::partition(copy);
        let text = format!("the build row of {object} contradicts the rows of partitions");
        return Err(Stop::Failed(ObjectError::Storage(text)));
    }
    Ok(build)
}

/// Copies objects of the source from `first` on, a bounded number of chunks. Returns the object with which to go on;
/// `None`: all are copied.
pub(crate) fn copy_some(
    transaction: &mut Transaction<'_>,
    build: &ActiveBuild,
    first: u64,
) -> Step<Option<u64>> {
    find_build(transaction, build.target)?;
    check_tables(transaction)?;
    let start = key::object(ObjectAddress::new(build.source, first.max(1)));
    let mut room = transaction.step_chunks();
    let page = transaction.page(&start, &key::objects_end(build.source), room)?;
    for (row_key, row) in page.rows {
        let id = key::last_number(&row_key);
        if room == 0 {
            return Ok(Some(id));
        }
        let old = decode(ObjectAddress::new(build.source, id), &row)?;
        if transaction.is_to_copy(build, id, old.content)?
            && !copy_object(transaction, build, id, old, &mut room)?
        {
            return Ok(Some(id));
        }
    }
    Ok(page.next.map(|next| number_after(&next)))
}

/// Copies a part of one object of the source, if it is not copied yet.
pub(crate) fn copy_one(transaction: &mut Transaction<'_>, id: u64) -> Step<()> {
    let Some(build) = transaction.active_build() else { return Ok(()) };
    let from = ObjectAddress::new(build.source, id);
    let Some(row) = transaction.get(&key::object(from))? else { return Ok(()) };
    let old = decode(from, &row)?;
    if transaction.is_to_copy(&build, id, old.content)? {
        check_tables(transaction)?;
        let mut room = transaction.step_chunks();
        copy_object(transaction, &build, id, old, &mut room)?;
    }
    Ok(())
}

/// Copies at most `room` chunks of an object. Returns false if some are left.
fn copy_object(
    transaction: &mut Transaction<'_>,
    build: &ActiveBuild,
    id: u64,
    mut old: ObjectRow,
    room: &mut usize,
) -> Step<bool> {
    let (from, to) = (ObjectAddress::new(build.source, id), ObjectAddress::new(build.target, id));
    let progress_key = key::progress(build.target, id);
    let stored = transaction.get(&progress_key)?;
    let mut progress = stored.as_ref().and_then(|row| Progress::decode(row)).unwrap_or_default();
    *room = room.saturating_sub(1);
    let is_done = match old.object_type {
        ObjectType::UserObject => {
            if progress.content == 0 {
                progress.content = transaction.next_content();
            }
            copy_chunks(transaction, from, &mut old, &mut progress, room)?
        }
        _ => copy_members(transaction, from, to, &mut progress)?,
    };
    if !is_done {
        transaction.put(progress_key, Some(progress.encode()))?;
        return Ok(false);
    }
    if stored.is_some() {
        transaction.put(progress_key, None)?;
    }
    copy_attribute_rows(transaction, from, to)?;
    let mut new = ObjectRow { content: progress.content, used: progress.used, ..old };
    new.flags &= !(HAS_WORK | FROZEN | MAY_SHARE);
    if progress.used > 0 {
        new.flags |= MAY_SHARE;
    }
    if build.is_snapshot {
        new.flags |= FROZEN;
    }
    transaction.insert(key::object(to), new.encode());
    if progress.used > 0 {
        let mut row = find_build(transaction, build.target)?;
        row.used += progress.used;
        transaction.put(key::build(build.target), Some(row.encode()))?;
    }
    Ok(true)
}

/// Lets the new content refer to further chunks of a user object, and marks the object as sharing.
fn copy_chunks(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    old: &mut ObjectRow,
    progress: &mut Progress,
    room: &mut usize,
) -> Step<bool> {
    if old.used == 0 {
        return Ok(true);
    }
    let limit = *room + 1;
    let start = key::chunk(old.content, progress.next);
    let page = transaction.page(&start, &key::chunks_end(old.content), limit)?;
    let is_all = page.rows.len() <= limit;
    for (row_key, row) in page.rows.into_iter().take(limit) {
        let number = key::last_number(&row_key);
        progress.next = number + 1;
        *room = room.saturating_sub(1);
        if is_left_over(transaction, old, number)? {
            continue;
        }
        let blocks: Vec<_> = chunk::entries(&row).map(|(_, entry)| entry.block).collect();
        progress.used += blocks.len() as u64;
        share_blocks(transaction, old, blocks)?;
        transaction.insert(key::chunk(progress.content, number), row);
    }
    if !old.has(MAY_SHARE) {
        old.flags |= MAY_SHARE;
        transaction.put(key::object(from), Some(old.encode()))?;
    }
    if let Some(next) = page.next.as_ref().filter(|_| is_all) {
        // Rows that were removed since the last commit are skipped.
        progress.next = number_after(next);
    }
    Ok(is_all && page.next.is_none())
}

/// Copies further members of a collection.
fn copy_members(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    to: ObjectAddress,
    progress: &mut Progress,
) -> Step<bool> {
    if progress.content == 0 {
        progress.content = transaction.next_content();
        transaction.insert(key::collection(to.partition, to.object), Bytes::new());
    }
    let start = key::member(from, progress.next);
    let page = transaction.page(&start, &key::members_end(from), MEMBERS)?;
    for (row_key, row) in page.rows {
        transaction.insert(key::member(to, key::last_number(&row_key)), row);
    }
    let Some(next) = page.next else { return Ok(true) };
    progress.next = number_after(&next);
    Ok(false)
}

/// Copies all attributes that are in rows.
pub(crate) fn copy_attribute_rows(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    to: ObjectAddress,
) -> Step<()> {
    let (start, end) = (key::attribute(from, AttributeId::new(0, 0)), key::attributes_end(from));
    transaction.for_each(&start, &end, |transaction, row_key, value| {
        transaction.insert(key::attribute(to, key::attribute_id(&row_key)), value);
        Ok(())
    })
}

/// Ends the active build as failed, so that no further object is copied. The worker undoes it.
pub(crate) fn cancel(transaction: &mut Transaction<'_>) -> Step<()> {
    transaction.change_build(BuildChange::Cancel);
    transaction.note_work();
    Ok(())
}

/// Removes a bounded number of objects of a partition whose build has failed. Returns false if no build has failed.
pub(crate) fn undo_some(transaction: &mut Transaction<'_>) -> Step<bool> {
    let Some((target, first)) = transaction.failed_build() else { return Ok(false) };
    if let Some(next) = remove_objects(transaction, target, first)? {
        transaction.change_build(BuildChange::Advance(next));
        return Ok(true);
    }
    if remove_progress(transaction, target)? {
        remove_attribute_rows(transaction, ObjectAddress::partition(target))?;
        transaction.put(key::build(target), None)?;
        transaction.change_build(BuildChange::Undone);
    }
    Ok(true)
}

/// Removes the rows of some objects of a partition from `first` on. Returns the object with which to go on; `None`: none
/// is left.
pub(crate) fn remove_objects(
    transaction: &mut Transaction<'_>,
    partition: u64,
    first: u64,
) -> Step<Option<u64>> {
    let start = key::object(ObjectAddress::new(partition, first.max(1)));
    let limit = transaction.step_chunks();
    let page = transaction.page(&start, &key::objects_end(partition), limit)?;
    let mut blocks = 0;
    for (row_key, row) in page.rows {
        let address = ObjectAddress::new(partition, key::last_number(&row_key));
        let row = decode(address, &row)?;
        let is_user = row.object_type == ObjectType::UserObject;
        if blocks > STEP_BLOCKS || !(is_user || remove_members(transaction, address)?) {
            return Ok(Some(address.object));
        }
        if !is_user {
            tracking::forget(transaction, address)?;
        }
        remove_attribute_rows(transaction, address)?;
        free_content(transaction, &row)?;
        blocks += row.used;
        transaction.put(row_key, None)?;
    }
    Ok(page.next.map(|next| number_after(&next)))
}

/// Removes the parts of objects that were copied in part. Returns true if none is left.
fn remove_progress(transaction: &mut Transaction<'_>, target: u64) -> Step<bool> {
    let (mut start, end) = (key::progress(target, 0), key::progress_end(target));
    loop {
        let page = transaction.page(&start, &end, PROGRESS_ROWS)?;
        let is_any = !page.rows.is_empty();
        for (row_key, row) in page.rows {
            let address = ObjectAddress::new(target, key::last_number(&row_key));
            if !remove_members(transaction, address)? {
                return Ok(false);
            }
            let progress = Progress::decode(&row).unwrap_or_default();
            if progress.used > 0 {
                let work = WorkRow { may_share: true, ..WorkRow::of_all() };
                store_work(transaction, progress.content, &work)?;
            }
            transaction.put(row_key, None)?;
        }
        match page.next {
            None => return Ok(true),
            Some(_) if is_any => return Ok(false),
            // Rows that were removed since the last commit.
            Some(next) => start = next,
        }
    }
}

/// Returns the number after that of the last key of a page, from the key with which the next page begins.
pub(crate) fn number_after(next: &[u8]) -> u64 {
    key::last_number(&next[..next.len() - 1]).saturating_add(1)
}

/// Removes a collection's row for lists and some of its members. Returns false if some are left.
fn remove_members(transaction: &mut Transaction<'_>, collection: ObjectAddress) -> Step<bool> {
    transaction.put(key::collection(collection.partition, collection.object), None)?;
    let (mut start, end) = (key::member(collection, 0), key::members_end(collection));
    loop {
        let page = transaction.page(&start, &end, MEMBERS)?;
        let is_any = !page.rows.is_empty();
        for (row_key, row) in page.rows {
            transaction.replace(row_key, Some(&row), None);
        }
        match page.next {
            None => return Ok(true),
            Some(_) if is_any => return Ok(false),
            // Rows that were removed since the last commit.
            Some(next) => start = next,
        }
    }
}

pub(crate) fn remove_attribute_rows(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
) -> Step<()> {
    let first = key::attribute(address, AttributeId::new(0, 0));
    transaction.for_each(&first, &key::attributes_end(address), |transaction, row_key, _| {
        transaction.put(row_key, None)
    })
}

/// Members of a collection that one transaction copies or removes: their rows take about 200 KiB of memory.
pub(crate) const MEMBERS: usize = 1024;
/// Blocks after which a step that removes objects ends.
const STEP_BLOCKS: u64 = 4096;
/// Rows about objects that were copied in part, of which one transaction removes those that it reads.
const PROGRESS_ROWS: usize = 64;

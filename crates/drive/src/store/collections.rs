//! Creating linked collections, and removing collections.

use object::{ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType, RefusedField};

use super::{
    attributes::MEMBERSHIP_PAGE,
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    key,
    members::first_members,
    object_row::{FROZEN, ObjectRow},
    object_rows::{check_changeable, decode, find_partition, find_typed, store},
    objects::{create_objects, remove_collection},
    tracking::{self, TRACKING_COLLECTION},
    transaction::{Step, Stop, Transaction},
};

impl DriveCore {
    /// Performs CREATE COLLECTION.
    pub(crate) async fn create_collection(
        &self,
        request: &ObjectRequest,
        partition: u64,
        requested: u64,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let row = ObjectRow::new(ObjectType::Collection, now);
            let id = create_objects(transaction, partition, requested, 1, &row)?;
            let address = ObjectAddress::new(partition, id);
            let mut row = find_typed(transaction, address, ObjectType::Collection)?;
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
        })
        .await
    }

    /// Performs REMOVE COLLECTION. Members stay user objects. A command at work that the collection tracks is aborted,
    /// which needs `force`.
    ///
    /// Members of a long list leave in steps. A removal that is interrupted leaves a collection with fewer members, to
    /// which no more can be added, and has to be repeated.
    pub(crate) async fn remove_collection(
        &self,
        request: &ObjectRequest,
        collection: ObjectAddress,
        force: bool,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        loop {
            self.admit_change().await?;
            let reply = self
                .run(|transaction| {
                    let mut row = find_typed(transaction, collection, ObjectType::Collection)?;
                    let parent = find_partition(transaction, collection.partition)?;
                    check_changeable(&parent, RefusedField::Object)?;
                    if !force {
                        tracking::check_idle(transaction, collection, RefusedField::Object)?;
                    }
                    if row.members.count > 0 && !force {
                        return Err(Stop::Failed(ObjectError::NotEmpty { object: collection }));
                    }
                    if !drop_members(transaction, collection, &mut row)? {
                        row.flags |= FROZEN;
                        store(transaction, collection, &row)?;
                        transaction.works().abort(collection);
                        return Ok(None);
                    }
                    let conclusion = Conclusion::new(self, request, collection, now);
                    let reply = conclude(transaction, &conclusion, &mut row, false)?;
                    remove_collection(transaction, collection)?;
                    Ok(Some(reply))
                })
                .await?;
            if let Some(reply) = reply {
                return Ok(reply);
            }
        }
    }
}

/// Ends the membership of some members of a collection. Returns true if there are no more.
fn drop_members(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    row: &mut ObjectRow,
) -> Step<bool> {
    let page = first_members(transaction, collection)?;
    row.members.count = row.members.count.saturating_sub(page.rows.len() as u64);
    for (row_key, number) in page.rows {
        if row.members.kind != TRACKING_COLLECTION {
            end_membership(transaction, collection, key::last_number(&row_key), &number)?;
        }
        transaction.put(row_key, None)?;
    }
    Ok(page.next.is_none())
}

/// Removes the attribute with which a user object is a member of a collection that is removed.
fn end_membership(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    object: u64,
    number: &[u8],
) -> Step<()> {
    let address = ObjectAddress::new(collection.partition, object);
    let number = number.try_into().map_or(0, u32::from_be_bytes);
    let id = object::AttributeId::new(MEMBERSHIP_PAGE, number);
    transaction.put(key::attribute(address, id), None)?;
    let Some(row) = transaction.get(&key::object(address))? else { return Ok(()) };
    let mut row = decode(address, &row)?;
    row.attribute_bytes = row.attribute_bytes.saturating_sub(8);
    store(transaction, address, &row)
}

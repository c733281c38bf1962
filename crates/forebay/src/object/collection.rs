//! `forebay object collection` and `forebay object query`: members of collections.

use bytes::Bytes;
use control::Failure;
use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, ListRequest, ObjectAddress,
    ObjectList, ObjectRequest, Query, QueryCriterion, QueryMatch, ReplyData,
};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    errors::OTHER_VERSION_REMEDY,
    hex,
};
use crate::{
    cli::{AttributeValue, DriveArgs, ObjectName},
    output::print_line,
};

/// The attributes page of a user object that names its collections.
const COLLECTIONS: u32 = 0x4;
const ALLOCATION: u64 = 64 << 10;

pub async fn run(
    args: &DriveArgs,
    collection: ObjectName,
    add: Option<u64>,
    drop: Option<u64>,
) -> Result<(), Failure> {
    let collection = collection.0;
    let drive = connect(args).await?;
    let done = match (add, drop) {
        _ if collection.object == 0 => create(&drive, collection.partition).await,
        (Some(object), _) => {
            join(&drive, collection, ObjectAddress::new(collection.partition, object)).await
        }
        (None, Some(object)) => {
            leave(&drive, collection, ObjectAddress::new(collection.partition, object)).await
        }
        (None, None) => members(&drive, collection).await,
    };
    drive.close().await;
    done
}

async fn create(drive: &Drive<'_>, partition: u64) -> Result<(), Failure> {
    let request =
        ObjectRequest::new(Command::CreateCollection { partition, requested: 0 }).with_fua();
    let reply = drive.perform(&format!("create a collection in {partition:X}h"), request).await?;
    let created = reply.current.object;
    if drive.args.json {
        return print_line(json!({ "partition": created.partition, "object": created.object }));
    }
    print_line(created)
}

/// Returns the collections of a user object: the number of the attribute that names it, and the COLLECTION_ID.
async fn collections_of(
    drive: &Drive<'_>,
    object: ObjectAddress,
) -> Result<Vec<(u32, u64)>, Failure> {
    let get = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::Page(COLLECTIONS));
    let reply = drive.perform(&format!("read the collections of {object}"), get).await?;
    let entry = |attribute: &Attribute| {
        let id = attribute.value.as_ref().try_into().map(u64::from_be_bytes).ok()?;
        Some((attribute.id.number, id))
    };
    Ok(reply.attributes.iter().filter_map(entry).collect())
}

async fn join(
    drive: &Drive<'_>,
    collection: ObjectAddress,
    object: ObjectAddress,
) -> Result<(), Failure> {
    let present = collections_of(drive, object).await?;
    if present.iter().any(|&(_, id)| id == collection.object) {
        return Ok(());
    }
    let is_free = |number: &u32| present.iter().all(|(used, _)| used != number);
    let number = (1..0xffff_ff00).find(is_free).expect("a list has fewer entries");
    set(drive, object, number, collection.object.to_be_bytes().to_vec().into()).await
}

async fn leave(
    drive: &Drive<'_>,
    collection: ObjectAddress,
    object: ObjectAddress,
) -> Result<(), Failure> {
    let present = collections_of(drive, object).await?;
    for (number, _) in present.into_iter().filter(|&(_, id)| id == collection.object) {
        set(drive, object, number, Bytes::new()).await?;
    }
    Ok(())
}

async fn set(
    drive: &Drive<'_>,
    object: ObjectAddress,
    number: u32,
    value: Bytes,
) -> Result<(), Failure> {
    let id = AttributeId::new(COLLECTIONS, number);
    let request = ObjectRequest::new(Command::SetAttributes { object })
        .setting(Attribute { id, value })
        .with_fua();
    drive.perform(&format!("change the collections of {object}"), request).await.map(|_| ())
}

async fn members(drive: &Drive<'_>, collection: ObjectAddress) -> Result<(), Failure> {
    let mut found = Vec::new();
    let mut list = ListRequest { allocation_length: ALLOCATION, ..ListRequest::default() };
    loop {
        let command = Command::ListCollection { collection, list };
        let reply = drive.command(&format!("list {collection}"), command).await?;
        let ReplyData::List(part) = reply.data else {
            return Err(Failure::new("the drive returned no list").remedy(OTHER_VERSION_REMEDY));
        };
        found.extend(part.objects.iter().map(|object| object.id));
        if part.continuation == 0 {
            return show(drive, collection.partition, &found);
        }
        list = ListRequest { first: part.continuation, identifier: part.identifier, ..list };
    }
}

pub async fn query(
    args: &DriveArgs,
    collection: ObjectName,
    criteria: &[AttributeValue],
    any: bool,
) -> Result<(), Failure> {
    let collection = collection.0;
    let criterion = |text: &AttributeValue| {
        let (minimum, maximum) = text.value.split_once("..").unwrap_or((&text.value, &text.value));
        let id = text.name.0;
        let bounds = hex::value(minimum).zip(hex::value(maximum));
        bounds.map(|(minimum, maximum)| QueryCriterion {
            id,
            minimum: minimum.into(),
            maximum: maximum.into(),
        })
    };
    let criteria: Option<Vec<_>> = criteria.iter().map(criterion).collect();
    let criteria = criteria.ok_or_else(|| {
        Failure::settings("a bound has not pairs of hexadecimal digits after hex:")
            .remedy(hex::HEX_REMEDY)
    })?;
    let drive = connect(args).await?;
    let mut request = ObjectRequest::new(Command::Query {
        collection,
        allocation_length: 1 << 20,
        matches: 0,
        immediate: false,
    });
    let match_type = if any { QueryMatch::Any } else { QueryMatch::All };
    request.continuation = Continuation::Query(Query { match_type, criteria });
    let reply = drive.perform(&format!("query {collection}"), request).await?;
    let ReplyData::List(ObjectList { objects, total_bytes, .. }) = reply.data else {
        return Err(Failure::new("the drive returned no list").remedy(OTHER_VERSION_REMEDY));
    };
    let found: Vec<u64> = objects.iter().map(|object| object.id).collect();
    if total_bytes > 8 * found.len() as u64 {
        let all = total_bytes / 8;
        let message = format!("{all} members match, and one answer has room for {}", found.len());
        return Err(Failure::new(message).remedy("narrow the criteria"));
    }
    show(&drive, collection.partition, &found)?;
    drive.close().await;
    Ok(())
}

fn show(drive: &Drive<'_>, partition: u64, found: &[u64]) -> Result<(), Failure> {
    if drive.args.json {
        return print_line(json!({ "partition": partition, "objects": found }));
    }
    found.iter().try_for_each(|&id| print_line(ObjectAddress::new(partition, id)))
}

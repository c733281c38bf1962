//! `forebay object create` and `forebay object remove`: partitions, objects and collections.

use control::Failure;
use object::{Command, KeyToSet, ObjectAddress, ObjectRequest};
use serde_json::json;

use super::connect::{Drive, connect};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

pub async fn create(
    args: &DriveArgs,
    object: Option<ObjectName>,
    partition: Option<u64>,
    count: u16,
) -> Result<(), Failure> {
    let drive = connect(args).await?;
    let created = match object {
        None => vec![create_partition(&drive, partition.unwrap_or(0)).await?],
        Some(ObjectName(ObjectAddress { partition, object: requested })) => {
            let create = Command::Create { partition, requested, count };
            let request = ObjectRequest::new(create).with_fua();
            let reply =
                drive.perform(&format!("create objects in {partition:X}h"), request).await?;
            reply.members.iter().map(|member| ObjectAddress::new(partition, member.id)).collect()
        }
    };
    drive.close().await;
    if args.json {
        let row = |one: &ObjectAddress| json!({ "partition": one.partition, "object": one.object });
        return print_line(json!({ "created": created.iter().map(row).collect::<Vec<_>>() }));
    }
    created.iter().try_for_each(print_line)
}

/// Creates a partition. If this client is the drive's owner, also sets the keys of the partition.
async fn create_partition(drive: &Drive<'_>, requested: u64) -> Result<ObjectAddress, Failure> {
    let request = ObjectRequest::new(Command::CreatePartition { requested }).with_fua();
    let reply = drive.perform("create a partition", request).await?;
    let created = reply.current.object;
    if drive.objects.credential().owner().is_some() {
        set_partition_keys(drive, created.partition).await?;
    }
    Ok(created)
}

/// Sets the key of a partition, and the working key with which this client signs.
pub async fn set_partition_keys(drive: &Drive<'_>, partition: u64) -> Result<(), Failure> {
    let owner = drive.owner()?;
    let action = format!("set the keys of {partition:X}h");
    drive.command(&action, owner.set_key(KeyToSet::Partition { partition })).await?;
    let working = KeyToSet::Working { partition, version: owner.version() };
    drive.command(&action, owner.set_key(working)).await?;
    Ok(())
}

pub async fn remove(
    args: &DriveArgs,
    name: ObjectName,
    with_contents: bool,
    collection: bool,
) -> Result<(), Failure> {
    let object = name.0;
    let command = match object {
        ObjectAddress { partition, object: 0 } => {
            Command::RemovePartition { partition, with_contents }
        }
        _ if collection => Command::RemoveCollection { collection: object, force: with_contents },
        _ => Command::Remove { object },
    };
    let drive = connect(args).await?;
    drive.perform(&format!("remove {object}"), ObjectRequest::new(command).with_fua()).await?;
    drive.close().await;
    if args.json {
        print_line(json!({ "partition": object.partition, "object": object.object }))
    } else {
        Ok(())
    }
}

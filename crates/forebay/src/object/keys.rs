//! `forebay object format` and `forebay object set-key`: empty a drive, and set its keys.

use control::Failure;
use object::{Command, KeyToSet, ObjectAddress, ObjectError, ObjectRequest};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    create::set_partition_keys,
    show::Lister,
};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

pub async fn format(args: &DriveArgs, lose_data: bool) -> Result<(), Failure> {
    if !lose_data {
        return Err(Failure::settings(format!("{} would lose all its objects", args.url))
            .remedy("if that is meant, add --lose-data"));
    }
    let drive = connect(args).await?;
    let has_keys = drive.objects.credential().owner().is_some();
    if has_keys && !works(&drive, ObjectAddress::ROOT).await? {
        set_root_key(&drive).await?;
    }
    drive.command("format the drive", Command::FormatOsd { capacity: 0 }).await?;
    if has_keys && !works(&drive, ObjectAddress::ROOT).await? {
        set_root_key(&drive).await?;
    }
    drive.close().await;
    done(args, "the drive is empty")
}

pub async fn set_key(
    args: &DriveArgs,
    partition: Option<ObjectName>,
    force: bool,
) -> Result<(), Failure> {
    let drive = connect(args).await?;
    drive.owner()?;
    let address = partition.map_or(ObjectAddress::ROOT, |name| name.0);
    if address.object != 0 {
        return Err(Failure::settings(format!("{address} is not a partition")).remedy("name PID"));
    }
    let is_set = !force && works(&drive, address).await?;
    match address.partition {
        _ if is_set => {}
        0 => set_root_key(&drive).await?,
        partition => set_partition_keys(&drive, partition).await?,
    }
    drive.close().await;
    done(args, if is_set { "the key works already" } else { "the key is set" })
}

/// Sets the root key and the keys of all partitions, as far as they do not work already.
pub async fn set_all(args: &DriveArgs, force: bool) -> Result<(), Failure> {
    let drive = connect(args).await?;
    drive.owner()?;
    let mut set = 0;
    if force || !works(&drive, ObjectAddress::ROOT).await? {
        set_root_key(&drive).await?;
        set += 1;
    }
    let mut partitions = Lister::new(0, false);
    while let Some(part) = partitions.next(&drive).await? {
        for partition in part {
            let address = ObjectAddress::partition(partition.id);
            if force || !works(&drive, address).await? {
                set_partition_keys(&drive, partition.id).await?;
                set += 1;
            }
        }
    }
    drive.close().await;
    if args.json {
        return print_line(json!({ "set": set }));
    }
    print_line(format_args!("{set} of the root key and the partition keys were set"))
}

async fn set_root_key(drive: &Drive<'_>) -> Result<(), Failure> {
    let command = drive.owner()?.set_key(KeyToSet::Root);
    drive.command("set the root key", command).await.map(|_| ())
}

/// Returns true if the drive accepts commands that are signed with the key for `address`: the root key, or the key of a
/// partition.
async fn works(drive: &Drive<'_>, address: ObjectAddress) -> Result<bool, Failure> {
    let get = ObjectRequest::new(Command::GetAttributes { object: address });
    match drive.objects.request(get).await {
        Ok(_) => Ok(true),
        Err(ObjectError::Capability(_)) => Ok(false),
        Err(error) => Err(super::errors::failed(
            drive.args,
            &format!("read the attributes of {address}"),
            error,
        )),
    }
}

fn done(args: &DriveArgs, message: &str) -> Result<(), Failure> {
    if args.json { print_line(json!({ "done": message })) } else { print_line(message) }
}

//! `forebay object snapshot`: copies of partitions that share blocks with their source.

use control::Failure;
use object::{Command, CopyMethod, ObjectAddress, ObjectRequest};
use serde_json::json;

use super::{connect::connect, create::set_partition_keys};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

/// The options of the command. Without any of them, the command makes a snapshot.
pub struct Change {
    pub clone_it: bool,
    pub detach: bool,
    pub refresh: bool,
    pub restore: Option<u64>,
}

pub async fn run(args: &DriveArgs, name: ObjectName, change: Change) -> Result<(), Failure> {
    let ObjectAddress { partition, object } = name.0;
    if object != 0 {
        return Err(Failure::settings(format!("{} is not a partition", name.0)).remedy("name PID"));
    }
    let (requested, method, source) = (0, CopyMethod(0), partition);
    let (action, command) = match change {
        Change { restore: Some(snapshot), .. } => {
            ("restore", Command::RestorePartitionFromSnapshot { partition, snapshot })
        }
        Change { refresh: true, .. } => {
            ("refresh", Command::RefreshSnapshotOrClone { copy: partition })
        }
        Change { detach: true, .. } => ("detach", Command::DetachClone { clone: partition }),
        Change { clone_it: true, .. } => {
            ("clone", Command::CreateClone { source, requested, method })
        }
        _ => ("make a snapshot of", Command::CreateSnapshot { source, requested, method }),
    };
    let drive = connect(args).await?;
    let request = ObjectRequest::new(command).with_fua();
    let reply = drive.perform(&format!("{action} {partition:X}h"), request).await?;
    let result = if command.creates() {
        let created = reply.current.object.partition;
        if drive.objects.credential().owner().is_some() {
            set_partition_keys(&drive, created).await?;
        }
        created
    } else {
        partition
    };
    drive.close().await;
    match (args.json, command.creates()) {
        (true, _) => print_line(json!({ "partition": result })),
        (false, true) => print_line(ObjectAddress::partition(result)),
        (false, false) => Ok(()),
    }
}

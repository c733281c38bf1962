//! `forebay object verify`: reads objects to find damage.

use control::Failure;
use object::{MapType, ObjectAddress};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    show::{Lister, runs_of},
    transfer::{length_of, read},
};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

/// Number of bytes that one READ transfers.
const PIECE: u64 = 1 << 20;

/// Counts of the objects and bytes that were read, and the damage that was found.
#[derive(Default)]
struct Verified {
    objects: u64,
    bytes: u64,
    /// Each damaged object, with the reason of the first failure.
    damaged: Vec<(ObjectAddress, String)>,
}

pub async fn run(args: &DriveArgs, name: Option<ObjectName>) -> Result<(), Failure> {
    let drive = connect(args).await?;
    let mut verified = Verified::default();
    match name.map(|name| name.0) {
        Some(object) if object.object != 0 => verified.object(&drive, object).await?,
        Some(partition) => verified.partition(&drive, partition.partition).await?,
        None => {
            let mut partitions = Lister::new(0, false);
            while let Some(part) = partitions.next(&drive).await? {
                for partition in part {
                    verified.partition(&drive, partition.id).await?;
                }
            }
        }
    }
    drive.close().await;
    let Verified { objects, bytes, damaged } = verified;
    if args.json {
        let row = |(object, reason): &(ObjectAddress, String)| json!({ "partition": object.partition, "object": object.object, "reason": reason });
        let rows: Vec<_> = damaged.iter().map(row).collect();
        print_line(json!({ "objects": objects, "bytes": bytes, "damaged": rows }))?;
    } else {
        for (object, reason) in &damaged {
            print_line(format_args!("{object}: {reason}"))?;
        }
        print_line(format_args!(
            "{objects} objects with {bytes} bytes, {} damaged",
            damaged.len()
        ))?;
    }
    match damaged.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} of {objects} objects are damaged"))
            .remedy("restore them from a copy: `forebay object put`")),
    }
}

impl Verified {
    async fn partition(&mut self, drive: &Drive<'_>, partition: u64) -> Result<(), Failure> {
        let mut objects = Lister::new(partition, false);
        while let Some(part) = objects.next(drive).await? {
            for object in part {
                self.object(drive, ObjectAddress::new(partition, object.id)).await?;
            }
        }
        Ok(())
    }

    async fn object(&mut self, drive: &Drive<'_>, object: ObjectAddress) -> Result<(), Failure> {
        self.objects += 1;
        let length = length_of(drive, object).await?;
        let mut reason = None;
        for start in (0..length).step_by(PIECE as usize) {
            let bytes = PIECE.min(length - start);
            match read(drive, &format!("read {object}"), object, start, bytes).await {
                Ok(data) => self.bytes += data.len() as u64,
                Err(failure) => reason = reason.or(Some(failure.message)),
            }
        }
        if reason.is_none() {
            let runs = runs_of(drive, object, MapType::DamagedData).await?;
            let bytes: u64 = runs.iter().map(|run| run.length).sum();
            reason = (bytes > 0).then(|| format!("{bytes} bytes are damaged"));
        }
        self.damaged.extend(reason.map(|reason| (object, reason)));
        Ok(())
    }
}

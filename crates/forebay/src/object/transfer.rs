//! `forebay object put`, `get` and `append`: stream files to and from objects.

use std::{
    fs::File,
    io::{ErrorKind, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use control::Failure;
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, FlushScope, ObjectAddress, ObjectRequest,
    ReplyData,
};
use serde_json::json;
use volume::Data;

use super::connect::{Drive, connect};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

/// The bytes of one command.
const PIECE: u64 = 1 << 20;
/// The most commands in flight: together as much as a gigabit link carries in a round trip of 64 ms.
const IN_FLIGHT: usize = 8;
/// An interrupted put may lack any of the pieces that were in flight.
const UNCERTAIN: u64 = IN_FLIGHT as u64 * PIECE;
const LENGTH: AttributeId = AttributeId::new(0x1, 0x82);

pub async fn put(
    args: &DriveArgs,
    object: ObjectName,
    path: &Path,
    resume: bool,
) -> Result<(), Failure> {
    let (file, length) = open(path)?;
    if resume && object.0.object == 0 {
        return Err(Failure::settings(
            "--resume needs the object that the interrupted put has created",
        )
        .remedy("name it as PID/OID"));
    }
    let drive = connect(args).await?;
    let object = match object.0 {
        ObjectAddress { partition, object: 0 } => {
            let create = Command::Create { partition, requested: 0, count: 1 };
            let reply =
                drive.command(&format!("create an object in {partition:X}h"), create).await?;
            // Print the identifier at once: an interrupted put needs it to continue.
            if !args.json {
                print_line(reply.current.object)?;
            }
            reply.current.object
        }
        object => object,
    };
    let action = format!("write {object}");
    let present = length_of(&drive, object).await?;
    let begin = if resume { present.min(length).saturating_sub(UNCERTAIN) } else { 0 };
    if present > length || !resume && present > 0 {
        let keep = if resume { length } else { 0 };
        truncate(&drive, object, keep).await?;
    }
    let bar = bar(begin, length);
    let pieces = pieces(begin, length);
    let writes = stream::iter(pieces).map(|(start, bytes)| {
        let (file, drive, bar, action) = (&file, &drive, &bar, &action);
        async move {
            let mut data = vec![0; bytes as usize];
            file.read_exact_at(&mut data, start).map_err(|error| {
                Failure::new(format!("cannot read {}: {error}", path.display()))
            })?;
            let write = ObjectRequest::new(Command::Write { object, length: bytes, start });
            drive.perform(action, write.with_data(Data::from(data))).await?;
            bar.inc(bytes);
            Ok::<_, Failure>(())
        }
    });
    let written = writes.buffer_unordered(IN_FLIGHT).try_collect::<()>().await;
    written.map_err(|failure| continued(failure, "put", args, object, path))?;
    flush(&drive, object).await?;
    bar.finish_and_clear();
    drive.close().await;
    report(args, object, begin, length)
}

pub async fn append(args: &DriveArgs, object: ObjectName, path: &Path) -> Result<(), Failure> {
    let (file, length) = open(path)?;
    let object = user_object(object)?;
    let drive = connect(args).await?;
    let bar = bar(0, length);
    let mut first = None;
    for (start, bytes) in pieces(0, length) {
        let mut data = vec![0; bytes as usize];
        file.read_exact_at(&mut data, start)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
        let append = ObjectRequest::new(Command::Append { object, length: bytes });
        let action = format!("append to {object} after {start} bytes of {}", path.display());
        let reply = drive.perform(&action, append.with_data(Data::from(data))).await?;
        first = first.or(Some(reply.current.append_start));
        bar.inc(bytes);
    }
    flush(&drive, object).await?;
    bar.finish_and_clear();
    drive.close().await;
    if args.json {
        return print_line(json!({
            "partition": object.partition, "object": object.object, "start": first, "bytes": length,
        }));
    }
    match first {
        Some(first) => print_line(format_args!("{length} bytes at {first} of {object}")),
        None => print_line(format_args!("{} is empty", path.display())),
    }
}

pub async fn get(
    args: &DriveArgs,
    object: ObjectName,
    path: &Path,
    resume: bool,
) -> Result<(), Failure> {
    let object = user_object(object)?;
    let drive = connect(args).await?;
    let length = length_of(&drive, object).await?;
    let shown = path.display();
    let mut options = File::options();
    options.write(true).create_new(!resume);
    let cannot = |error: std::io::Error| {
        let failure = Failure::new(format!("cannot write {shown}: {error}"));
        match error.kind() {
            ErrorKind::AlreadyExists => {
                failure.remedy("name another file, or continue an interrupted get with --resume")
            }
            _ => failure,
        }
    };
    let mut file = options.open(path).map_err(cannot)?;
    let begin = file.seek(SeekFrom::End(0)).map_err(cannot)?;
    if begin > length {
        let message = format!("{shown} has {begin} bytes, and {object} has {length}");
        return Err(
            Failure::new(message).remedy("name another file: this one is of another object")
        );
    }
    let bar = bar(begin, length);
    let action = format!("read {object}");
    let reads = stream::iter(pieces(begin, length)).map(|(start, bytes)| {
        let (drive, action) = (&drive, &action);
        async move { read(drive, action, object, start, bytes).await }
    });
    let mut reads = Box::pin(reads.buffered(IN_FLIGHT));
    while let Some(data) = reads.next().await {
        let data = data.map_err(|failure| continued(failure, "get", args, object, path))?;
        data.parts().iter().try_for_each(|part| file.write_all(part)).map_err(cannot)?;
        bar.inc(data.len() as u64);
    }
    drop(reads);
    file.sync_all().map_err(cannot)?;
    bar.finish_and_clear();
    drive.close().await;
    report(args, object, begin, length)
}

/// Reads bytes of an object, which must have them.
pub async fn read(
    drive: &Drive<'_>,
    action: &str,
    object: ObjectAddress,
    start: u64,
    length: u64,
) -> Result<Data, Failure> {
    let reply = drive.command(action, Command::Read { object, length, start }).await?;
    match reply.data {
        ReplyData::Bytes(data) if data.len() as u64 == length => Ok(data),
        _ => Err(Failure::new(format!("cannot {action}: it has become shorter meanwhile"))
            .remedy("repeat it when no other client changes the object")),
    }
}

pub async fn length_of(drive: &Drive<'_>, object: ObjectAddress) -> Result<u64, Failure> {
    let get = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::One(LENGTH));
    let reply = drive.perform(&format!("read the length of {object}"), get).await?;
    let length = reply.attributes.first().map(|attribute| attribute.value.as_ref());
    length.and_then(|length| length.try_into().ok()).map(u64::from_be_bytes).ok_or_else(|| {
        Failure::new(format!("{object} has no length"))
            .remedy("name a user object, not a collection")
    })
}

async fn truncate(drive: &Drive<'_>, object: ObjectAddress, length: u64) -> Result<(), Failure> {
    let length = Attribute { id: LENGTH, value: length.to_be_bytes().to_vec().into() };
    let set = ObjectRequest::new(Command::SetAttributes { object }).setting(length);
    drive.perform(&format!("set the length of {object}"), set).await.map(|_| ())
}

async fn flush(drive: &Drive<'_>, object: ObjectAddress) -> Result<(), Failure> {
    let flush = Command::Flush { object, scope: FlushScope::ContentOrList, length: 0, start: 0 };
    drive.command(&format!("make {object} stable"), flush).await.map(|_| ())
}

fn user_object(name: ObjectName) -> Result<ObjectAddress, Failure> {
    match name.0 {
        ObjectAddress { partition, object: 0 } => {
            Err(Failure::settings(format!("{partition:X}h is a partition")).remedy("name PID/OID"))
        }
        object => Ok(object),
    }
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let cannot = |error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        let message = format!("{} is not a plain file", path.display());
        return Err(Failure::settings(message).remedy("name a plain file"));
    }
    Ok((file, metadata.len()))
}

/// Returns start and length of each piece.
fn pieces(begin: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (begin..end).step_by(PIECE as usize).map(move |start| (start, PIECE.min(end - start)))
}

fn bar(begin: u64, length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    bar.set_position(begin);
    bar
}

/// Adds how to continue an interrupted transfer.
fn continued(
    failure: Failure,
    act: &str,
    args: &DriveArgs,
    object: ObjectAddress,
    path: &Path,
) -> Failure {
    let again = format!(
        "continue with: `forebay object {act} {} {:#x}/{:#x} {} --resume`",
        args.url,
        object.partition,
        object.object,
        path.display()
    );
    let remedy =
        failure.remedy.clone().map_or(again.clone(), |remedy| format!("{remedy}; then {again}"));
    failure.remedy(remedy)
}

fn report(args: &DriveArgs, object: ObjectAddress, begin: u64, length: u64) -> Result<(), Failure> {
    if args.json {
        return print_line(json!({
            "partition": object.partition,
            "object": object.object,
            "length": length,
            "transferred": length - begin,
        }));
    }
    print_line(format_args!("{length} bytes in {object}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_file() {
        let all: Vec<_> = pieces(5, 2 * PIECE).collect();
        assert_eq!(all, [(5, PIECE), (5 + PIECE, PIECE - 5)]);
        assert_eq!(pieces(7, 7).count(), 0);
    }
}

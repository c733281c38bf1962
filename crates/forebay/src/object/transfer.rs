//! `forebay object put`, `get` and `append`: stream files to and from objects.

use std::{
    fs::{File, Metadata},
    io::{ErrorKind, Seek, SeekFrom, Write},
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
};

use control::Failure;
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, FlushScope, ObjectAddress, ObjectError,
    ObjectRequest, ReplyData,
};
use osd::REQUEST_TAG;
use serde_json::json;
use volume::Data;

use super::{
    connect::{Drive, connect},
    errors::failed,
    hex,
    interrupted::{Progress, ProgressFile},
};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

/// Number of bytes that one READ, WRITE or APPEND transfers.
const PIECE: u64 = 1 << 20;
/// Maximum number of commands in flight: together as many bytes as a gigabit link carries in a round trip of 64 ms.
const IN_FLIGHT: usize = 8;
/// The bytes after which a put is made stable, and from where it continues: eight times as many as are in flight, so
/// that the wait for the flush costs little.
const STABLE_EVERY: u64 = 8 * IN_FLIGHT as u64 * PIECE;
const LENGTH: AttributeId = AttributeId::new(0x1, 0x82);

pub async fn put(
    args: &DriveArgs,
    object: ObjectName,
    path: &Path,
    resume: bool,
    state: Option<&Path>,
) -> Result<(), Failure> {
    let (file, source) = open(path)?;
    let length = source.len();
    if resume && object.0.object == 0 {
        return Err(Failure::settings(
            "--resume needs the object that the interrupted put has created",
        )
        .remedy("name it as PID/OID"));
    }
    let drive = connect(args).await?;
    let object = match object.0 {
        ObjectAddress { partition, object: 0 } => create(&drive, partition).await?,
        object => object,
    };
    let record = ProgressFile::new("put", path, object, state);
    let begun = Progress::new(object, drive.objects.system_id(), &source);
    let mut progress = begin_put(&drive, object, &record, begun, resume).await?;
    let begin = progress.done;
    let bar = bar(begin, length);
    while progress.done < length {
        let end = length.min(progress.done + STABLE_EVERY);
        let written = write_range(&drive, object, (&file, path), progress.done..end, &bar).await;
        written.map_err(|failure| continued(failure, "put", args, object, path, state))?;
        progress.done = end;
        if end < length {
            record.write(&progress)?;
        }
    }
    record.remove()?;
    bar.finish_and_clear();
    drive.close().await;
    report(args, object, begin, length)
}

/// Writes a range of a file to the same place of an object, and makes it stable.
async fn write_range(
    drive: &Drive<'_>,
    object: ObjectAddress,
    (file, path): (&File, &Path),
    range: Range<u64>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let action = format!("write {object}");
    let writes = stream::iter(pieces(range.start, range.end)).map(|(start, bytes)| {
        let action = &action;
        async move {
            let data = read_source(file, path, start, bytes)?;
            let write = ObjectRequest::new(Command::Write { object, length: bytes, start });
            drive.perform(action, write.with_data(data)).await?;
            bar.inc(bytes);
            Ok::<_, Failure>(())
        }
    });
    writes.buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
    // This fails if the drive was restarted since the first of these writes.
    flush(drive, object).await
}

/// Creates an object to write to.
async fn create(drive: &Drive<'_>, partition: u64) -> Result<ObjectAddress, Failure> {
    let create = Command::Create { partition, requested: 0, count: 1 };
    let reply = drive.command(&format!("create an object in {partition:X}h"), create).await?;
    // Print the identifier at once: an interrupted put needs it to continue.
    if !drive.args.json {
        print_line(reply.current.object)?;
    }
    Ok(reply.current.object)
}

/// Empties the object and records that a put has begun, or finds out where an interrupted put continues.
async fn begin_put(
    drive: &Drive<'_>,
    object: ObjectAddress,
    record: &ProgressFile,
    begun: Progress,
    resume: bool,
) -> Result<Progress, Failure> {
    if resume {
        let found = record.read(&begun)?;
        let present = length_of(drive, object).await?;
        if present < found.done {
            return Err(Failure::new(format!(
                "{object} has {present} bytes, and the put has made {} stable",
                found.done
            ))
            .remedy(
                "put the whole file again without --resume: another client has changed the object",
            ));
        }
        if present > begun.length() {
            truncate(drive, object, begun.length()).await?;
        }
        return Ok(found);
    }
    // The record of an earlier put would say that the object has the begin of that file.
    record.remove()?;
    match length_of(drive, object).await? {
        // Another client may have emptied the object without a flush.
        0 => flush(drive, object).await?,
        _ => truncate(drive, object, 0).await?,
    }
    record.write(&begun)?;
    Ok(begun)
}

pub async fn append(
    args: &DriveArgs,
    object: ObjectName,
    path: &Path,
    resume: bool,
    state: Option<&Path>,
) -> Result<(), Failure> {
    let (file, source) = open(path)?;
    let length = source.len();
    let object = user_object(object)?;
    let drive = connect(args).await?;
    let record = ProgressFile::new("append", path, object, state);
    let mut progress = Progress::new(object, drive.objects.system_id(), &source);
    if resume {
        progress = record.read(&progress)?;
    } else {
        record.refuse_leftover()?;
    }
    let bar = bar(progress.done, length);
    for (start, bytes) in pieces(progress.done, length) {
        let data = read_source(&file, path, start, bytes)?;
        let append = append_piece(&drive, object, &record, &mut progress, data);
        append.await.map_err(|failure| match record.exists() {
            true => continued(failure, "append", args, object, path, state),
            false => failure,
        })?;
        bar.inc(bytes);
    }
    record.remove()?;
    bar.finish_and_clear();
    drive.close().await;
    if args.json {
        return print_line(json!({
            "partition": object.partition, "object": object.object, "start": progress.start, "bytes": length,
        }));
    }
    match progress.start {
        Some(first) => print_line(format_args!("{length} bytes at {first} of {object}")),
        None => print_line(format_args!("{} is empty", path.display())),
    }
}

/// Appends one piece of a file. Its request tag is recorded before it is sent, so that the piece can be sent again after
/// an interruption: the drive performs a command with a tag once. The piece is stable when the drive acknowledges it.
async fn append_piece(
    drive: &Drive<'_>,
    object: ObjectAddress,
    record: &ProgressFile,
    progress: &mut Progress,
    data: Data,
) -> Result<(), Failure> {
    let tag = match progress.tag.as_deref().and_then(hex::decode) {
        Some(tag) => tag,
        None => {
            let tag = drive.objects.request_tag().await.to_bytes();
            progress.tag = Some(hex::encode(&tag));
            record.write(progress)?;
            tag.to_vec()
        }
    };
    let length = data.len() as u64;
    let append = ObjectRequest::new(Command::Append { object, length }).with_data(data).with_fua();
    let append = append.setting(Attribute { id: REQUEST_TAG, value: tag.into() });
    let appended = drive.objects.request(append).await.map_err(|error| {
        if progress.start.is_none() && is_refusal(&error) {
            // Nothing was appended, so there is nothing to continue. A record that stays does no harm.
            let _ = record.remove();
        }
        match error {
            ObjectError::InvalidAttribute { page, number }
                if AttributeId::new(page, number) == REQUEST_TAG =>
            {
                record.forgotten(progress.done)
            }
            error => failed(drive.args, &format!("append to {object}"), error),
        }
    });
    let start = appended?.current.append_start;
    progress.start = progress.start.or(Some(start));
    progress.done += length;
    progress.tag = None;
    Ok(())
}

/// Returns true for an error with which a command had no effect.
const fn is_refusal(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::NoSuchObject { .. }
            | ObjectError::InvalidField { .. }
            | ObjectError::Quota { .. }
            | ObjectError::FormatInProgress
            | ObjectError::Capability(_)
            | ObjectError::Unsupported
    )
}

/// Reads a piece of a file that is sent.
fn read_source(file: &File, path: &Path, start: u64, bytes: u64) -> Result<Data, Failure> {
    let mut data = vec![0; bytes as usize];
    file.read_exact_at(&mut data, start)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))?;
    Ok(Data::from(data))
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
    options.read(resume).write(true).create_new(!resume);
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
    let action = format!("read {object}");
    check_present(&drive, object, &file, path, begin).await?;
    let bar = bar(begin, length);
    let reads = stream::iter(pieces(begin, length)).map(|(start, bytes)| {
        let (drive, action) = (&drive, &action);
        async move { read(drive, action, object, start, bytes).await }
    });
    let mut reads = Box::pin(reads.buffered(IN_FLIGHT));
    while let Some(data) = reads.next().await {
        let data = data.map_err(|failure| continued(failure, "get", args, object, path, None))?;
        data.parts().iter().try_for_each(|part| file.write_all(part)).map_err(cannot)?;
        bar.inc(data.len() as u64);
    }
    drop(reads);
    file.sync_all().map_err(cannot)?;
    bar.finish_and_clear();
    drive.close().await;
    report(args, object, begin, length)
}

/// Compares the last bytes of a file, which an interrupted get has written, with the object.
async fn check_present(
    drive: &Drive<'_>,
    object: ObjectAddress,
    file: &File,
    path: &Path,
    present: u64,
) -> Result<(), Failure> {
    let bytes = present.min(PIECE);
    let start = present - bytes;
    let data = read_source(file, path, start, bytes)?;
    let expected = match bytes {
        0 => Data::new(),
        _ => read(drive, &format!("read {object}"), object, start, bytes).await?,
    };
    if data.into_bytes() == expected.into_bytes() {
        return Ok(());
    }
    Err(Failure::new(format!("{} differs from {object} in its last {bytes} bytes", path.display()))
        .remedy("name another file: the object has changed, or this file is of another object"))
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

/// Sets the length of an object. It is stable when this returns.
async fn truncate(drive: &Drive<'_>, object: ObjectAddress, length: u64) -> Result<(), Failure> {
    let length = Attribute { id: LENGTH, value: length.to_be_bytes().to_vec().into() };
    let set = ObjectRequest::new(Command::SetAttributes { object }).setting(length).with_fua();
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

fn open(path: &Path) -> Result<(File, Metadata), Failure> {
    let cannot = |error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        let message = format!("{} is not a plain file", path.display());
        return Err(Failure::settings(message).remedy("name a plain file"));
    }
    Ok((file, metadata))
}

/// Returns start and length of the range of each command.
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

/// Adds to a failure how to continue the interrupted transfer.
fn continued(
    failure: Failure,
    act: &str,
    args: &DriveArgs,
    object: ObjectAddress,
    path: &Path,
    state: Option<&Path>,
) -> Failure {
    let state = state.map_or_else(String::new, |state| format!(" --state {}", state.display()));
    let again = format!(
        "continue with: `forebay object {act} {} {:#x}/{:#x} {} --resume{state}`",
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

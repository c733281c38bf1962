//! Records of transfers that were interrupted, beside the file that is sent: `put` and `append` continue with them.

use std::{
    fs::{self, Metadata},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use control::Failure;
use object::ObjectAddress;
use serde::{Deserialize, Serialize};
use stack::atomic_file;

use super::hex;

/// Most bytes of a record that is read. The records that are written are shorter than 1 KiB.
const RECORD_BYTES: u64 = 4096;
const VERSION: u32 = 1;

/// The progress of one transfer.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Progress {
    version: u32,
    /// The OSD system ID of the drive; empty if the drive does not report one.
    drive: String,
    partition: u64,
    object: u64,
    /// The length of the file, and the time at which it was last changed.
    length: u64,
    modified_ns: u128,
    /// Bytes that the drive has acknowledged as stable.
    pub done: u64,
    /// The place of the first appended byte in the object.
    pub start: Option<u64>,
    /// The request tag with which the bytes after `done` are sent, in hexadecimal digits.
    pub tag: Option<String>,
}

impl Progress {
    /// Describes the beginning of a transfer of a file to an object.
    pub fn new(object: ObjectAddress, system: Option<[u8; 20]>, file: &Metadata) -> Self {
        let modified = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            version: VERSION,
            drive: system.map_or_else(String::new, |system| hex::encode(&system)),
            partition: object.partition,
            object: object.object,
            length: file.len(),
            modified_ns: modified.unwrap_or_default().as_nanos(),
            ..Self::default()
        }
    }

    /// Returns the length of the file.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Returns true if both describe the same transfer, with the file unchanged.
    fn continues(&self, other: &Self) -> bool {
        let begin = |one: &Self| Self { done: 0, start: None, tag: None, ..one.clone() };
        begin(self) == begin(other) && other.done <= other.length
    }
}

/// The file with the progress of one transfer.
pub struct ProgressFile {
    path: PathBuf,
    /// The subcommand that makes the transfer.
    act: &'static str,
    source: PathBuf,
    object: ObjectAddress,
}

impl ProgressFile {
    /// Names the record: `state`, or a file beside the source.
    pub fn new(
        act: &'static str,
        source: &Path,
        object: ObjectAddress,
        state: Option<&Path>,
    ) -> Self {
        let ending = format!("{act}-{:X}h-{:X}h", object.partition, object.object);
        let path = state.map_or_else(|| atomic_file::beside(source, &ending), Path::to_path_buf);
        Self { path, act, source: source.to_path_buf(), object }
    }

    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Reads the record of the transfer that `begun` describes.
    pub fn read(&self, begun: &Progress) -> Result<Progress, Failure> {
        let (shown, source, act) = (self.path.display(), self.source.display(), self.act);
        let found = match read(&self.path) {
            Ok(bytes) => serde_json::from_slice::<Progress>(&bytes).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Failure::new(format!(
                    "no {act} of {source} to {} was interrupted: there is no record {shown}",
                    self.object
                ))
                .remedy("leave out --resume, or name the record of the transfer: --state FILE"));
            }
            Err(error) => {
                return Err(Failure::new(format!("cannot read the record {shown}: {error}"))
                    .remedy("correct the access to it, or name it: --state FILE"));
            }
        };
        match found {
            Some(found) if begun.continues(&found) => Ok(found),
            Some(_) => Err(Failure::new(format!(
                "the record {shown} is not about this {act}: the drive, the object or the content of {source} is \
                 another one"
            ))
            .remedy(format!(
                "name the file and the object of the interrupted {act}, with the file unchanged; or remove {shown}, \
                 and {act} without --resume"
            ))),
            None => Err(Failure::new(format!("{shown} is no record of a transfer"))
                .remedy("name the right record: --state FILE")),
        }
    }

    /// Writes the record, which is stable when this returns.
    pub fn write(&self, progress: &Progress) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(progress).map_err(Failure::new)?;
        atomic_file::replace(&self.path, &bytes).map_err(|error| {
            let shown = self.path.display();
            Failure::new(format!("cannot write the record {shown}: {error}"))
                .remedy("name a place for it where this user can write: --state FILE")
        })
    }

    /// Removes the record of a transfer that has ended.
    pub fn remove(&self) -> Result<(), Failure> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let shown = self.path.display();
                Err(Failure::new(format!(
                    "the transfer has ended, but its record {shown} cannot be removed: {error}"
                ))
                .remedy("remove it, so that a later transfer is not mistaken for this one"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the failure of an append of the bytes from `done` on, whose outcome the drive has forgotten.
    pub fn forgotten(&self, done: u64) -> Failure {
        let (shown, source) = (self.path.display(), self.source.display());
        Failure::new(format!(
            "whether {} has the bytes of {source} from {done} on is unknown: the drive has forgotten the command",
            self.object
        )).remedy(format!(
            "compare the end of the object with the file (`forebay object get`), append what is missing, and remove \
             {shown}"
        ))
    }

    /// Fails if a record is there: the bytes of an interrupted append would be appended twice.
    pub fn refuse_leftover(&self) -> Result<(), Failure> {
        if !self.exists() {
            return Ok(());
        }
        let (shown, source, act) = (self.path.display(), self.source.display(), self.act);
        Err(Failure::new(format!(
            "an earlier {act} of {source} to {} was interrupted",
            self.object
        ))
        .remedy(format!(
            "continue it with --resume; or remove {shown}, and {act} the whole file again"
        )))
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    match fs::symlink_metadata(path)?.len() {
        length if length > RECORD_BYTES => {
            Err(std::io::Error::other(format!("it has more than {RECORD_BYTES} bytes")))
        }
        _ => atomic_file::read(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);

    #[test]
    fn a_record_is_read_for_its_own_transfer_only() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("today.log");
        fs::write(&source, b"content").unwrap();
        let begun = |object, system| Progress::new(object, system, &fs::metadata(&source).unwrap());
        let file = ProgressFile::new("append", &source, OBJECT, None);
        assert!(file.read(&begun(OBJECT, None)).unwrap_err().message.contains("no append of"));
        file.refuse_leftover().unwrap();
        let progress = Progress { done: 3, start: Some(9), ..begun(OBJECT, Some([7; 20])) };
        file.write(&progress).unwrap();
        assert!(folder.path().join("today.log.append-10000h-10001h").exists());
        assert_eq!(file.read(&begun(OBJECT, Some([7; 20]))).unwrap(), progress);
        assert!(file.refuse_leftover().unwrap_err().remedy.unwrap().contains("--resume"));
        let other = ObjectAddress::new(0x10000, 0x10002);
        for wrong in
            [begun(OBJECT, Some([8; 20])), begun(OBJECT, None), begun(other, Some([7; 20]))]
        {
            assert!(file.read(&wrong).is_err());
        }
        file.write(&Progress { done: 8, ..progress.clone() }).unwrap();
        assert!(file.read(&begun(OBJECT, Some([7; 20]))).is_err(), "more than the file has");
        file.write(&progress).unwrap();
        fs::write(&source, b"changed content").unwrap();
        assert!(file.read(&begun(OBJECT, Some([7; 20]))).is_err(), "the file has changed");
        for hostile in ["", "{}", "[1]", &"x".repeat(5000)] {
            fs::write(folder.path().join("today.log.append-10000h-10001h"), hostile).unwrap();
            assert!(file.read(&begun(OBJECT, Some([7; 20]))).is_err(), "{hostile}");
        }
        file.remove().unwrap();
        file.remove().unwrap();
    }
}

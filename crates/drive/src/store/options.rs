//! The options with which a drive is opened, its counters, and the errors at the start.

use std::sync::Arc;

use object::{ObjectType, Timestamp};

/// The clock of a drive, which never runs backwards.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// Names of the drive that clients read from its root information page.
#[derive(Clone, Debug)]
pub struct DriveIdentity {
    pub system_id: [u8; 20],
    /// At most 8 bytes.
    pub vendor: String,
    /// At most 16 bytes.
    pub product: String,
    /// At most 4 bytes.
    pub revision: String,
    pub serial: String,
}

/// Bounds of what one client can make the drive keep or do at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Maximum number of bytes of the attribute values of one object. 64 KiB: one command reads them in one list.
    pub attribute_bytes: u64,
    /// Maximum number of objects in one answer of LIST and similar commands. 1,024: an answer is made in about a
    /// millisecond.
    pub list_entries: usize,
    /// Maximum number of bytes of one attributes list. 64 KiB: the longest value fits.
    pub list_bytes: usize,
    /// Maximum number of collections of which one user object is a member. 64: REMOVE changes one row for each of them.
    pub collections: usize,
    /// Maximum number of bytes of one command with its lists. 32 MiB: a session reserves memory for them.
    pub command_bytes: u64,
    /// Number of request tags whose results are kept. 4,096: more than the commands that can be at work at once.
    pub request_tags: u64,
    /// Maximum number of chunks of 1 MiB that one transaction frees or copies. 16: their rows take about 50 KiB, and
    /// the rows about shared blocks about 1 MiB.
    pub step_chunks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attribute_bytes: 64 << 10,
            list_entries: 1024,
            list_bytes: 64 << 10,
            collections: 64,
            command_bytes: 32 << 20,
            request_tags: 4096,
            step_chunks: 16,
        }
    }
}

/// The options with which a drive is opened.
#[derive(Clone)]
pub struct DriveOptions {
    pub limits: Limits,
    pub identity: DriveIdentity,
    pub clock: Arc<dyn Clock>,
}

/// The reason why a volume was not opened as an object drive.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the volume has content that is not an object drive\nuse a volume of zeros: an object drive formats it at \
         its first start"
    )]
    Foreign,
    #[error(
        "the volume holds an object drive of format version {version}, and this program knows version {known}\n\
         start a newer version of this program"
    )]
    NewerVersion { version: u32, known: u32 },
    #[error(
        "the volume holds an object drive of format version {version}, which this program cannot read: it knows \
         version {known}\nserve a new drive on a volume of zeros, and copy the objects with the program of the old one"
    )]
    OlderVersion { version: u32, known: u32 },
    #[error("the volume has {bytes} bytes, and an object drive needs at least {least}")]
    TooSmall { bytes: u64, least: u64 },
    #[error("the volume has {bytes} bytes, but the object drive on it was made for {formatted}")]
    Truncated { bytes: u64, formatted: u64 },
    #[error("both superblocks of the object drive are damaged")]
    Superblocks,
    #[error("the log of the object drive is damaged: acknowledged changes in it are lost")]
    Log,
    #[error(
        "the two superblocks on the volume contradict each other: one is of another object drive"
    )]
    Contradiction,
    #[error("the volume holds another object drive, whose OSD SYSTEM ID ends in {}", hexadecimal(.identity))]
    OtherDrive { identity: [u8; 16] },
    #[error("the tables of the object drive are damaged: {0}")]
    Tables(String),
    #[error("the volume failed: {0}")]
    Volume(#[from] volume::Error),
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The facts about an object that the check of a capability compares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GuardFacts {
    pub object_type: ObjectType,
    pub created: Timestamp,
    pub policy_tag: u32,
}

/// Counters of a drive for its status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DriveStatistics {
    /// Number of user objects and collections.
    pub objects: u64,
    pub partitions: u64,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    /// Number of commits since the drive was opened.
    pub commits: u64,
    /// Number of blocks with a good copy that were read one by one, because a read of several blocks did not match its
    /// checksums.
    pub repaired_blocks: u64,
    /// Number of reads of a block that had no copy which matches its checksum.
    pub damaged_blocks: u64,
}

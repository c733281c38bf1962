//! The report of an examination.

use object::ObjectAddress;

/// The result of examining the volume of a drive.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DriveExamination {
    pub partitions: u64,
    /// Number of user objects and collections.
    pub objects: u64,
    /// Number of rows of the tables, without the named records.
    pub rows: u64,
    /// Number of rows whose kind this program does not know. They were not examined.
    pub unknown_rows: u64,
    /// Number of bytes of data that were read and compared with their checksums.
    pub bytes: u64,
    /// Observations that need no action, such as that the drive was not closed.
    pub notes: Vec<String>,
    /// The first 1,024 findings of damage.
    pub findings: Vec<DriveFinding>,
    /// Number of all findings.
    pub found: u64,
}

/// One kind of damage at one place of the drive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DriveFinding {
    pub kind: DriveFindingKind,
    pub text: String,
}

/// The kind of damage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DriveFindingKind {
    /// The tables as a whole cannot be used, or a row does not have the form of its kind.
    Tables,
    /// The row of a root, partition, object or collection contradicts other rows.
    Object,
    /// Data does not match its checksum, or cannot be read.
    Data,
    /// A block has more references than its reference count says, or fewer.
    References,
    /// A block counts as used, but no object refers to it.
    Leaked,
    /// A block counts as free, but an object refers to it.
    Free,
    Attribute,
    /// A collection and its members contradict each other.
    Collection,
    /// A counter of the drive is wrong.
    Counter,
}

impl DriveFindingKind {
    /// Returns the name of the kind of damage for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tables => "tables",
            Self::Object => "object",
            Self::Data => "data",
            Self::References => "references",
            Self::Leaked => "leaked",
            Self::Free => "free",
            Self::Attribute => "attribute",
            Self::Collection => "collection",
            Self::Counter => "counter",
        }
    }
}

impl DriveExamination {
    /// Returns true if there is no damage.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.found == 0
    }

    pub(super) fn find(&mut self, kind: DriveFindingKind, text: impl Into<String>) {
        self.found += 1;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(DriveFinding { kind, text: text.into() });
        }
    }

    pub(super) fn find_at(&mut self, kind: DriveFindingKind, object: ObjectAddress, text: &str) {
        self.find(kind, format!("{object}: {text}"));
    }

    /// Adds a finding unless two numbers are equal: `kept` is in a row of the tables, `counted` was counted by the
    /// examination.
    pub(super) fn compare(
        &mut self,
        kind: DriveFindingKind,
        what: impl std::fmt::Display,
        kept: u64,
        counted: u64,
    ) {
        if kept != counted {
            self.find(kind, format!("{what}: {kept} according to the tables, {counted} counted"));
        }
    }
}

/// Maximum number of findings whose texts are kept: enough for a person, and a bound for a volume of random bytes.
const MOST_FINDINGS: usize = 1024;

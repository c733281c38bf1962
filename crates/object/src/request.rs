//! A command with everything that an object store needs to perform it.

use volume::Data;

use crate::{Attribute, AttributeSelection, Command, Continuation};

/// A command with its data and its attributes lists, as an object store receives it.
#[derive(Clone, Debug)]
pub struct ObjectRequest {
    pub command: Command,
    pub options: CommandOptions,
    pub continuation: Continuation,
    /// The data that WRITE, APPEND or CREATE AND WRITE stores.
    pub data: Data,
    /// Attributes that the command sets, atomically with its other effects.
    pub set: Vec<Attribute>,
    /// Attributes that the command returns.
    pub get: Vec<AttributeSelection>,
    /// Maximum number of bytes that the initiator can receive from the drive for this command (Data-In).
    pub data_in_capacity: u64,
}

impl ObjectRequest {
    /// Returns a request with default options, without data and lists.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self {
            command,
            options: CommandOptions::default(),
            continuation: Continuation::None,
            data: Data::new(),
            set: Vec::new(),
            get: Vec::new(),
            data_in_capacity: u64::MAX,
        }
    }

    #[must_use]
    pub fn with_data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    #[must_use]
    pub fn setting(mut self, attribute: Attribute) -> Self {
        self.set.push(attribute);
        self
    }

    #[must_use]
    pub fn getting(mut self, selection: AttributeSelection) -> Self {
        self.get.push(selection);
        self
    }

    #[must_use]
    pub const fn with_fua(mut self) -> Self {
        self.options.fua = true;
        self
    }
}

/// The bits of the OPTIONS byte, and TIMESTAMPS CONTROL (OSD-2, 5.2.3 and 5.2.8).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CommandOptions {
    /// FUA: the effects are stable when the command ends; a read returns stable data.
    pub fua: bool,
    /// DPO: the data will not be used again soon, so caches need not keep it.
    pub dpo: bool,
    pub isolation: Isolation,
    pub timestamps: TimestampControl,
}

/// ISOLATION: whether other commands may see a part of the effects of a command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum Isolation {
    /// The method in the root attribute "default isolation method".
    #[default]
    Default = 0,
    None = 1,
    Strict = 2,
    Range = 4,
    Functional = 5,
    VendorSpecific = 7,
}

impl Isolation {
    /// Returns the method with the code in bits 2 to 0; `None` for a reserved code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code & 0x07 {
            0 => Self::Default,
            1 => Self::None,
            2 => Self::Strict,
            4 => Self::Range,
            5 => Self::Functional,
            7 => Self::VendorSpecific,
            _ => return None,
        })
    }
}

/// TIMESTAMPS CONTROL: whether the command changes the times in the timestamps page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum TimestampControl {
    #[default]
    Update = 0x00,
    Bypass = 0x7f,
}

impl TimestampControl {
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x00 => Some(Self::Update),
            0x7f => Some(Self::Bypass),
            _ => None,
        }
    }
}

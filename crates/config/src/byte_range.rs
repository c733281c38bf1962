//! A range of the bytes of a file.

use std::fmt;

use crate::quantity::Size;

/// The bytes from `start` up to, but not including, `end`. An `end` of `u64::MAX` stands for the end of the file,
/// wherever that is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// Returns the range of `size` bytes from `start`, or from `start` to the end of the file if `size` is `None`.
    pub fn new(start: u64, size: Option<u64>) -> Self {
        let end = size.and_then(|size| start.checked_add(size)).unwrap_or(u64::MAX);
        Self { start, end }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns true if the two ranges have a byte in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (Size(self.start), Size(self.end));
        match self.end {
            u64::MAX => write!(f, "the bytes from {start} to the end"),
            _ => write!(f, "the bytes from {start} to {end}"),
        }
    }
}

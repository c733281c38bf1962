//! Data in transit: a list of reference-counted pieces that reads as one run of bytes.
//!
//! A read of sixteen cached slots returns sixteen pieces and copies nothing. A socket or a disk
//! takes the pieces in one vectored operation.

use bytes::{Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};

/// Data that is read or written, as a list of pieces of memory, so that it need not be copied.
#[derive(Clone, Debug, Default)]
pub struct Data {
    parts: SmallVec<[Bytes; 1]>,
    length: usize,
}

impl Data {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns data without bytes, with room for `capacity` pieces.
    #[must_use]
    pub fn with_parts(capacity: usize) -> Self {
        Self { parts: SmallVec::with_capacity(capacity), length: 0 }
    }

    /// Returns `length` zero bytes. All pieces share one static buffer.
    #[must_use]
    pub fn zeros(length: usize) -> Self {
        static ZEROS: [u8; 65536] = [0; 65536];
        let mut data = Self::new();
        let mut left = length;
        while left > 0 {
            let n = left.min(ZEROS.len());
            data.push(Bytes::from_static(&ZEROS[..n]));
            left -= n;
        }
        data
    }

    /// Returns the number of bytes in all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the pieces in order; no piece is empty.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Returns the pieces in order, for a transport to send.
    #[must_use]
    pub fn into_parts(self) -> SmallVec<[Bytes; 1]> {
        self.parts
    }

    /// Appends a piece of data, unless it is empty.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.length += part.len();
            self.parts.push(part);
        }
    }

    pub fn append(&mut self, other: Self) {
        self.length += other.length;
        self.parts.extend(other.parts);
    }

    /// Returns the bytes `start .. start + length`, which share memory with `self`.
    ///
    /// # Panics
    /// If the range exceeds the length of the data.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Self {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length));
        let mut slice = Self::new();
        let (mut skip, mut left) = (start, length);
        for part in &self.parts {
            if left == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let n = left.min(part.len() - skip);
            slice.push(part.slice(skip..skip + n));
            (skip, left) = (0, left - n);
        }
        slice
    }

    /// Copies all bytes into `to`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to_slice(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.length);
        let mut at = 0;
        for part in &self.parts {
            to[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Returns all bytes as one piece: the only piece itself, or a copy of all pieces.
    #[must_use]
    pub fn into_bytes(mut self) -> Bytes {
        match self.parts.len() {
            0 => Bytes::new(),
            1 => self.parts.remove(0),
            _ => {
                let mut all = BytesMut::with_capacity(self.length);
                for part in &self.parts {
                    all.extend_from_slice(part);
                }
                all.freeze()
            }
        }
    }
}

impl From<SmallVec<[Bytes; 1]>> for Data {
    fn from(mut parts: SmallVec<[Bytes; 1]>) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        if parts.iter().any(Bytes::is_empty) {
            parts.retain(|part| !part.is_empty());
        }
        Self { parts, length }
    }
}

impl From<Bytes> for Data {
    fn from(part: Bytes) -> Self {
        let length = part.len();
        if length == 0 { Self::new() } else { Self { parts: smallvec![part], length } }
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl FromIterator<Bytes> for Data {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut data = Self::new();
        parts.into_iter().for_each(|part| data.push(part));
        data
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.parts.iter().flatten().eq(other.parts.iter().flatten())
    }
}

impl Eq for Data {}

/// Reads the bytes of a [`Data`] in order, across its pieces.
pub(crate) struct DataCursor<'a> {
    part: &'a [u8],
    rest: std::slice::Iter<'a, Bytes>,
}

impl<'a> DataCursor<'a> {
    pub(crate) fn new(data: &'a Data) -> Self {
        Self { part: &[], rest: data.parts.iter() }
    }

    /// Returns the next contiguous bytes, at most `limit`.
    ///
    /// # Panics
    /// If no bytes are left.
    fn next(&mut self, limit: usize) -> &'a [u8] {
        if self.part.is_empty() {
            self.part = self.rest.next().expect("the caller counts the bytes");
        }
        let (head, tail) = self.part.split_at(limit.min(self.part.len()));
        self.part = tail;
        head
    }

    /// Fills `to` with the next bytes.
    pub(crate) fn copy_to(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            let bytes = self.next(to.len());
            let (head, tail) = to.split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            to = tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_across_pieces_reads_as_one_run() {
        let data: Data = ["abc", "", "defg", "h"].map(Bytes::from_static_str).into_iter().collect();
        assert_eq!(data.parts().len(), 3);
        assert_eq!(data.slice(2, 4).into_bytes(), "cdef");
        assert_eq!(data.slice(3, 0).len(), 0);
        assert_eq!(data, Data::from(b"abcdefgh".to_vec()));
        let parts: SmallVec<[Bytes; 1]> =
            ["abc", "", "defgh"].map(Bytes::from_static_str).into_iter().collect();
        let moved = Data::from(parts);
        assert_eq!((moved.len(), moved.parts().len()), (8, 2));
        assert_eq!(moved, data);
    }

    trait FromStaticStr {
        fn from_static_str(s: &'static str) -> Self;
    }
    impl FromStaticStr for Bytes {
        fn from_static_str(s: &'static str) -> Self {
            Self::from_static(s.as_bytes())
        }
    }
}

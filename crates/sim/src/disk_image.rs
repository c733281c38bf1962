//! The content of the medium of a simulated disk after a power failure.

use std::{collections::BTreeMap, ops::Range};

use bytes::{Bytes, BytesMut};
use volume::Geometry;

use crate::Rng;

/// The stable bytes of a disk in *atoms*, which the medium writes completely or not at all.
#[derive(Clone, Debug)]
pub struct StableDiskImage {
    pub(crate) geometry: Geometry,
    pub(crate) atom_size: u32,
    /// An absent atom is all zeros.
    pub(crate) atoms: BTreeMap<u64, Bytes>,
}

impl StableDiskImage {
    /// Returns a medium of zeros with atoms of `atom_size` bytes.
    pub(crate) fn new(geometry: Geometry, atom_size: u32) -> Self {
        Self { geometry, atom_size, atoms: BTreeMap::new() }
    }

    /// Returns the geometry of the disk from which the image was taken.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[must_use]
    pub fn read(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        for (atom, within, at) in pieces(&range, self.atom_size) {
            if let Some(stored) = self.atoms.get(&atom) {
                bytes[at..at + within.len()].copy_from_slice(&stored[within]);
            }
        }
        bytes
    }

    /// Replaces the bytes from `offset` on.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        for (atom, within, at) in pieces(&range, self.atom_size) {
            let from = &bytes[at..at + within.len()];
            self.change(atom, |stored| stored[within].copy_from_slice(from));
        }
    }

    /// Flips one random bit of the bytes in `range`.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn corrupt(&mut self, range: Range<u64>, rng: &mut Rng) {
        let (at, bit) = (rng.within(range), rng.below(8));
        let within = (at % u64::from(self.atom_size)) as usize;
        self.change(at / u64::from(self.atom_size), |stored| stored[within] ^= 1 << bit);
    }

    fn change(&mut self, atom: u64, change: impl FnOnce(&mut BytesMut)) {
        let mut stored = match self.atoms.get(&atom) {
            Some(stored) => BytesMut::from(&stored[..]),
            None => BytesMut::zeroed(self.atom_size as usize),
        };
        change(&mut stored);
        self.atoms.insert(atom, stored.freeze());
    }
}

/// Splits a range of bytes into atoms. Returns for each the number of the atom, the bytes in it, and their offset in
/// the range.
pub(crate) fn pieces(
    range: &Range<u64>,
    atom_size: u32,
) -> impl Iterator<Item = (u64, Range<usize>, usize)> + use<> {
    let (start, end, size) = (range.start, range.end, u64::from(atom_size));
    let mut at = start;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (atom, first) = (at / size, at % size);
            let length = (size - first).min(end - at);
            let piece = (atom, first as usize..(first + length) as usize, (at - start) as usize);
            at += length;
            piece
        })
    })
}

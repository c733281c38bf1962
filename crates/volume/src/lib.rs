//! Block volumes and the layers that stack on them.
//!
//! A [`Volume`] is an array of fixed-size blocks. A *layer* is a struct that holds the volume
//! below it in a field called `lower` and is itself a `Volume`; that is the whole mechanism.

mod data;
mod volume;
mod mem;

pub use data::Data;
pub use mem::MemVolume;
pub use volume::{Durability, Error, Extent, Geometry, Io, Lba, Stack, Volume};

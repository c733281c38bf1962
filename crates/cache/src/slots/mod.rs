//! Slots of 4096 bytes: the table of all slots that the cache has content of, their pages in memory, the
//! order in which pages are evicted, and locks on slots.

pub(crate) mod pages;
pub(crate) mod hash;
pub(crate) mod replacement;
pub(crate) mod sectors;
pub(crate) mod table;
pub(crate) mod locks;

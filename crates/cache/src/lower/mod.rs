//! The lower volume from the outside: how long it has been silent, its size, and the load on the link to it.

pub(crate) mod silence;
pub(crate) mod window;
pub(crate) mod flow;
pub(crate) mod extent;

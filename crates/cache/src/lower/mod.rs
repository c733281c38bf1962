//! The lower volume as the cache sees it: how long it has not answered, its size, and the load on the link to
//! it.

pub(crate) mod silence;
pub(crate) mod window;
pub(crate) mod flow;
pub(crate) mod extent;

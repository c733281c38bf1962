//! The status of a process for people.

mod full;

pub use full::{for_people, pair_in_words};

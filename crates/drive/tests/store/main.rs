//! Tests of the store of an object drive on simulated disks.

mod support;
mod drive_model;
mod random_requests;
mod basics;
mod tags;
mod members;
mod tracking;
mod dropped;
mod log;
mod superblocks;
mod model;
mod steps;
mod disk_errors;
mod concurrent;
mod copies;
mod crash;
mod full_tables;
mod growth;
mod one_thread;
mod scrub;

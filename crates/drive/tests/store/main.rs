//! Tests of the object drive on simulated disks.

mod support;
mod basics;
mod tags;
mod members;
mod log;
mod model;
mod steps;
mod crash;

//! The points that are measured. The report finds points by their names:
//!
//! - `table-1/DISK/ACCESS/WAY`: 8 KiB at a time; DISK is dnes, ddys, array or null; ACCESS is
//!   random-read, random-write, sequential-read, sequential-write, identical-read or
//!   identical-write; WAY is local, target, or the one-way delay: 0ms, 1ms, 2ms, 4ms, 8ms.
//! - `sweep/null/ACCESS/SIZE/WAY`: SIZE is 1k, 2k, 4k, 8k, 16k, 32k, 64k.
//! - `figure-2/HOW/read`, `figure-2/HOW/write`: one 8 KiB request at a time at 0 ms, with counters;
//!   HOW is device (attached), url (only the initiator) or loopback (only the initiator, without a
//!   link).
//! - `table-2/WORKLOAD/META/HOW/WAY`: WORKLOAD is build, sdet, postmark, surge or tpcc; META is
//!   soft (ext4 that commits every second; PostMark in little memory) or sync (metadata
//!   synchronous); HOW is plain or gateway.
//! - `table-3/WORKLOAD/META/LOAD`: WORKLOAD is postmark or tpcc; LOAD is the background's
//!   percentage: 0, 20, 30, 35, 40, 50, 55, 60, 70, 75.
//! - `figure-4/DISK/META/WAY`: SDET; DISK is ddys or array.
//! - `figure-5/PLACE/WAY`: PostMark; PLACE of a small cache is none, host or node.
//! - `figure-6/CACHE/LOAD`: PostMark with synchronous metadata; CACHE at the host's end of the link
//!   is none, small (the smallest possible: a log of 8 MiB) or large (larger than all data that is
//!   written).
//! - `figure-7/load/CACHE/LOAD` and `figure-7/delay/CACHE/WAY`: PostMark on soft ext4, with little
//!   memory; CACHE is the percentage of its files that the gateway's memory can hold: none, 10, 30,
//!   60.
//! - `mtu/WORKLOAD/MTU/WAY`: WORKLOAD is random-write or postmark; MTU is 1500 or 8192.
//! - `window/WORKLOAD/BUFFER/WAY`: BUFFER is 64k or 640k.
//! - `peers/WHO/ACCESS/WAY`: WHO is forebay, tgt, qemu-storage-daemon (the initiator, with our
//!   node) or nbdkit (with qemu-storage-daemon).

mod applications;
mod testbeds;
mod raw_device;

use crate::{ExperimentPoint, ExperimentScale};

/// Returns all points in the order in which they are run. Points with the same site are adjacent.
#[must_use]
pub fn points(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    [
        raw_device::table_1(scale),
        raw_device::sweep(scale),
        raw_device::figure_2(scale),
        applications::table_2(scale),
        applications::table_3(scale),
        applications::figure_4(scale),
        applications::figure_5(scale),
        applications::figure_6(scale),
        applications::figure_7(scale),
        raw_device::mtu(scale),
        applications::mtu(scale),
        raw_device::window(scale),
        applications::window(scale),
        raw_device::peers(scale),
    ]
    .concat()
}

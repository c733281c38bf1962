//! A gateway on simulated hardware: the real cache over disks and an NVRAM that lose power.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod hardware;
pub mod model;
pub mod workload;

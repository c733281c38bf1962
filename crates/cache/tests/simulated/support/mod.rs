//! A gateway on simulated hardware: the real cache with disks and an NVRAM that lose their power.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod claimed;
pub mod confirmed;
pub mod damage;
pub mod far;
pub mod gateway;
pub mod hanging_log;
pub mod hardware;
pub mod memory;
pub mod model;
pub mod pair;
pub mod site;
pub mod tier;
pub mod workload;

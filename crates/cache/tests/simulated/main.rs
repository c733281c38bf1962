//! Tests of the cache on simulated hardware that loses power, and on real files. One binary has all tests, so that
//! they are linked only once.

mod support;
mod cache;
mod reads;
mod destage;
mod abilities;
mod index;
mod read_ahead;
mod ahead;
mod orders;
mod pace;
mod counter;
mod prefix;
mod log_errors;
mod log_mirror;
mod nvram;
mod nvram_failure;
mod recovery;
mod older_copies;
mod resize;
mod growth;
mod sealed;
mod several;
mod tier;
mod tier_figures;
mod lost_gateway;
mod pair;
mod pair_nvram;
mod crash;
mod several_crash;

//! Samples the congestion windows of connections every 10 ms while a workload runs (Fair-TCP paper, 2.1 and Table 2:
//! "collected approximately every 10ms").

mod sock_diag;
mod summary;
mod sampler;

pub use sampler::{Sampler, SamplerScope};
pub use summary::Windows;

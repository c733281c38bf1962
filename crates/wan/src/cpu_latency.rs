//! Idle processors that stay awake. One that sleeps for long takes longer to be there again, on a virtual
//! machine 0.2 ms after 50 ms: nobody can get up early for a packet that another program is about to send.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
};

/// The kernel's "PM QoS" (its Documentation/power/pm_qos_interface.rst): as long as this is open, no
/// processor takes longer than was written to wake.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Has idle processors wait awake until it is dropped, or the process ends.
#[derive(Debug)]
pub(crate) struct CpuLatencyRequest {
    _request: File,
}

impl CpuLatencyRequest {
    /// # Errors
    /// If this host does not allow it, or has no such request. Nothing is changed then.
    pub fn ask() -> io::Result<Self> {
        let mut request = OpenOptions::new().write(true).open(LATENCY)?;
        // Microseconds, as the processor has them in memory. No other than zero keeps a virtual
        // machine's processor from its host.
        request.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: request })
    }
}

//! Keeps idle processors out of deep sleep states. A processor that has slept for long takes longer to wake: on a
//! virtual machine 0.2 ms after a sleep of 50 ms. The emulator cannot wake up in advance, since it does not know when
//! another program will send a packet.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
};

/// The kernel's PM QoS interface (Documentation/power/pm_qos_interface.rst): while this file is open, no processor
/// takes longer to wake than the value written to it.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps idle processors out of deep sleep states until this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct CpuLatencyRequest {
    _request: File,
}

impl CpuLatencyRequest {
    /// Asks the kernel to keep idle processors out of deep sleep states.
    ///
    /// # Errors
    /// If this host does not allow it or has no such interface. The sleep states are unchanged then.
    pub fn ask() -> io::Result<Self> {
        let mut request = OpenOptions::new().write(true).open(LATENCY)?;
        // The value is in microseconds, in native byte order. Only zero keeps a virtual machine from giving
        // its processor back to the host.
        request.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _request: request })
    }
}

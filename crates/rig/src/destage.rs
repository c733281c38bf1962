//! What a gateway says of its dirty data.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::{ServeProcess, layer_figures};

/// Bytes that a gateway has and its far side does not, and that it has sent there.
pub struct Destage {
    /// Still to be sent.
    pub dirty: u64,
    /// Sent since the gateway started.
    pub destaged: u64,
}

impl Destage {
    /// What the gateway says now.
    pub fn of(gateway: &ServeProcess) -> Result<Destage> {
        Destage::in_status(&gateway.status()?)
    }

    fn in_status(status: &Value) -> Result<Destage> {
        let figures = layer_figures(status, "cache")?;
        let number =
            |name: &str| figures[name].as_u64().with_context(|| format!("no {name} in {figures}"));
        Ok(Destage { dirty: number("dirty_bytes")?, destaged: number("destaged_bytes")? })
    }
}

/// Waits until the far side has everything.
pub fn drained(gateway: &ServeProcess, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while Destage::of(gateway)?.dirty > 0 {
        ensure!(Instant::now() < deadline, "dirty data stays in the gateway for {limit:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_of_dirty_data() {
        let status = serde_json::json!({"targets": [{"units": [{"layers": [
            {"layer": "remote", "figures": {}},
            {"layer": "cache", "figures": {"dirty_bytes": 8192, "destaged_bytes": 4096}}]}]}]});
        let figures = Destage::in_status(&status).unwrap();
        assert_eq!((figures.dirty, figures.destaged), (8192, 4096));
        assert!(Destage::in_status(&serde_json::json!({})).is_err());
    }
}

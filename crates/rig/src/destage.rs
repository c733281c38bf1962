//! The amounts of dirty and destaged data in the status of a gateway.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::{ServeProcess, layer_figures};

/// Dirty and destaged bytes of the first unit of a gateway.
pub struct Destage {
    /// Number of dirty bytes, which the far volume does not hold yet.
    pub dirty: u64,
    /// Bytes destaged since the gateway started.
    pub destaged: u64,
}

impl Destage {
    /// Reads the progress of destage from the status of a gateway.
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

/// Waits until a gateway holds no dirty data.
pub fn drained(gateway: &ServeProcess, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while Destage::of(gateway)?.dirty > 0 {
        ensure!(Instant::now() < deadline, "the gateway still has dirty data after {limit:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_and_destaged_bytes_are_read_from_a_status() {
        let status = serde_json::json!({"targets": [{"units": [{"layers": [
            {"layer": "remote", "figures": {}},
            {"layer": "cache", "figures": {"dirty_bytes": 8192, "destaged_bytes": 4096}}]}]}]});
        let figures = Destage::in_status(&status).unwrap();
        assert_eq!((figures.dirty, figures.destaged), (8192, 4096));
        assert!(Destage::in_status(&serde_json::json!({})).is_err());
    }
}

//! `cargo xtask bench`: what the data path costs, beside peers and limits in the same run.

pub mod load;
pub mod raw;
pub mod tgt;

use std::time::Duration;
use anyhow::Result;
use load::{Load, measure};

pub fn try_it(rounds: usize) -> Result<()> {
    crate::machine::confine(crate::machine::CLIENT_CPU)?;
    crate::machine::prefer();
    let raw = raw::Server::start()?;
    let tgt = tgt::Tgt::start(256 << 20)?;
    let loads = [("r4k32", Load::read_4k(32)), ("w4k32", Load::write_4k(32)), ("r128k8", Load::stream(false, 8)), ("w128k8", Load::stream(true, 8)), ("r4k1", Load::read_4k(1)), ("w4k1", Load::write_4k(1)),
        ("r4k32d", Load{digests: true, ..Load::read_4k(32)}), ("w4k32d", Load{digests: true, ..Load::write_4k(32)})];
    let time = Duration::from_millis(700);
    for _ in 0..rounds {
        for (name, load) in &loads {
            let p = raw.measure(load, time)?;
            let q = measure(tgt.login(), load, tgt.id(), time)?;
            for (who, p) in [("raw", p), ("tgt", q)] {
                println!("{name} {who} {:.0}/s p50 {:.1} p99 {:.1} cpu {:.2} sw {:.3}", p.per_second(), p.median_us(), p.quantile_us(0.99), p.cpu_us(), p.switches());
            }
        }
    }
    Ok(())
}

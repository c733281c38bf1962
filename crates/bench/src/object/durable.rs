//! Measures changes of objects that are stable when the object drive answers, with the drive on the disk of the run's
//! folder. Compares them with stable appends to a file, one at a time, and with files created on ext4, on the same
//! disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use initiator::{Credential, RemoteObjects};
use object::{KeyToSet, ObjectAddress};
use osd::security::{Algorithm, SecurityMethod};
use rig::node::ServeProcess;
use rustix::thread::CpuSet;

use super::ObjectBenchScale;
use super::client::{self, PARTITION};
use super::load::{self, ObjectBenchLoad, draw};
use super::place::{ObjectBenchPlace, keyed_drive, runtime};
use super::ratios::ObjectRatios;
use crate::load::{BenchLoad, BenchPoint, histogram};
use crate::raw::RawTcpServer;
use crate::stage::Appender;

/// Commands in flight, and threads that make files.
const MANY: usize = 32;

const BLOCK: u64 = 4096;

/// Parts of a measurement in which appends, writes and keys take turns: other work on the disk changes the time of a
/// sync from one moment to the next.
const SLICES: u32 = 6;

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let region = scale.memory_bytes / 4;
    let layer = place.file("durable.img", 4 * scale.memory_bytes, true)?;
    let node = place.start("durable", &[keyed_drive(&layer)])?;
    let appender = Appender::open(&place.path("appends"))?;
    let raw = RawTcpServer::start(false)?;
    runtime()?.block_on(async {
        let method = (SecurityMethod::CmdRsp, Algorithm::HmacSha256);
        let owner = client::drive(&node, 0, client::owner(method.0, method.1)?).await?;
        client::set_keys(&owner).await?;
        let drive = client::drive(&node, 0, Credential::None).await?;
        let object = client::create(&drive).await?;
        let fill = ObjectBenchLoad::large(true, 1, region);
        for start in (0..region).step_by(fill.bytes as usize) {
            let data = Bytes::from(vec![0x5a; fill.bytes as usize]);
            client::request(&drive, client::write(object, start, data)).await?;
        }
        for round in 0..scale.rounds {
            let (mut append, mut alone, mut keys) = (histogram(), histogram(), histogram());
            for _ in 0..SLICES {
                let time = scale.time / SLICES;
                append.add(&appender.measure(time)?.latency)?;
                alone.add(&writes(&node, &drive, (object, region), 1, time).await?.latency)?;
                keys.add(&set_keys(&node, &owner, time).await?.latency)?;
            }
            let median = |latency: &Histogram<u64>| latency.value_at_quantile(0.5) as f64 / 1e3;
            let [append, alone, keys] = [append, alone, keys].map(|latency| median(&latency));
            let trip = raw.measure(&BenchLoad::write_4k(1), 0, scale.time)?.median_us();
            let many = writes(&node, &drive, (object, region), MANY, scale.time).await?;
            let created = creates(&node, &drive, scale.time).await?.per_second();
            let files = files_per_second(&place.path(&format!("files-{round}")), scale.time)?;
            let over = alone / (append + trip);
            ratios.most(
                "FUA WRITE of 4 KiB, depth 1: median over append + TCP round trip",
                1.6,
                over,
            );
            let over = many.per_second() * alone / 1e6;
            ratios.least("FUA WRITE of 4 KiB, depth 32: rate over depth 1", 5.0, over);
            let over = created / files;
            ratios.least(
                "CREATE AND WRITE with FUA, 4 KiB, depth 32: rate over files on ext4",
                2.0,
                over,
            );
            ratios.most("SET KEY: median over durable append", 2.0, keys / append);
            ratios.note("durable append of 4 KiB: median, us", append);
            ratios.note("TCP round trip with 4 KiB: median, us", trip);
            ratios.note("FUA WRITE of 4 KiB, depth 1: median, us", alone);
            ratios.note("FUA WRITE of 4 KiB, depth 32: per second", many.per_second());
            ratios.note("CREATE AND WRITE with FUA, depth 32: per second", created);
            ratios.note("files of 4 KiB by 32 threads: per second", files);
            ratios.note("SET KEY: median, us", keys);
        }
        drive.close().await;
        owner.close().await;
        Ok(())
    })
}

async fn writes(
    node: &ServeProcess,
    drive: &RemoteObjects,
    (object, region): (ObjectAddress, u64),
    depth: usize,
    time: Duration,
) -> Result<BenchPoint> {
    let (random, data) = (std::cell::Cell::new(1), Bytes::from(vec![0xa5; BLOCK as usize]));
    load::measure(depth, node.id(), time, |_| {
        let start = draw(&random, region / BLOCK) * BLOCK;
        let write = client::write(object, start, data.clone()).with_fua();
        async move { client::request(drive, write).await.map(|_| ()) }
    })
    .await
}

async fn creates(node: &ServeProcess, drive: &RemoteObjects, time: Duration) -> Result<BenchPoint> {
    let data = Bytes::from(vec![0xa5; BLOCK as usize]);
    load::measure(MANY, node.id(), time, |_| {
        let create = client::create_and_write(data.clone()).with_fua();
        async move { client::request(drive, create).await.map(|_| ()) }
    })
    .await
}

async fn set_keys(
    node: &ServeProcess,
    owner: &RemoteObjects,
    time: Duration,
) -> Result<BenchPoint> {
    let key = KeyToSet::Working { partition: PARTITION, version: 1 };
    load::measure(1, node.id(), time, |_| client::set_key(owner, key)).await
}

/// Creates, writes and syncs files of 4 KiB in a new folder with 32 threads, each in a folder of its own. Returns the
/// files per second, and deletes the files.
fn files_per_second(folder: &Path, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let made: u64 = std::thread::scope(|scope| {
        let make = |thread| move || on_all_cpus().and_then(|()| files(folder, thread, time));
        let threads: Vec<_> = (0..MANY).map(|thread| scope.spawn(make(thread))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .sum::<Result<u64>>()
    })?;
    let rate = made as f64 / start.elapsed().as_secs_f64();
    fs::remove_dir_all(folder)?;
    Ok(rate)
}

/// Lets the calling thread use every CPU: the processes of the drive and of its client use two.
fn on_all_cpus() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(rig::machine::SERVER_CPU);
    cpus.set(rig::machine::CLIENT_CPU);
    rustix::thread::sched_setaffinity(None, &cpus).context("using every CPU")
}

fn files(folder: &Path, thread: usize, time: Duration) -> Result<u64> {
    let folder = folder.join(thread.to_string());
    fs::create_dir_all(&folder)?;
    let (start, mut made) = (Instant::now(), 0);
    while start.elapsed() < time {
        let mut file = File::create(folder.join(made.to_string()))?;
        file.write_all(&[0xa5; BLOCK as usize])?;
        file.sync_all()?;
        made += 1;
    }
    Ok(made)
}

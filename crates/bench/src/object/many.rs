//! Many objects beside few: memory of the process, rate of READ, and start after a kill.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use futures_util::future::try_join_all;
use initiator::{Credential, RemoteObjects};
use object::{Attribute, ObjectAddress};
use rig::node::ServeProcess;

use super::ObjectBenchScale;
use super::client::{self, PARTITION};
use super::load::{self, draw};
use super::place::{ObjectBenchPlace, plain_drive, runtime};
use super::ratios::ObjectRatios;
use crate::load::BenchPoint;
use crate::memory;

const FEW: u64 = 1000;
const BLOCK: u64 = 4096;
const DEPTH: usize = 32;

/// The first page of user objects that clients may use freely.
const PAGE: u32 = 0x1_0000;

/// Bytes of the volume for each object. A sixteenth of them is for tables, and an object has 500 bytes of rows. The file
/// is sparse.
const BYTES_PER_OBJECT: u64 = 64 << 10;

/// Bytes of the smallest volume.
const LEAST_BYTES: u64 = 256 << 20;

/// Changes before each kill, which are not flushed.
const CHANGES: u64 = 100;

/// A drive with objects of 4 KiB.
struct Populated<'a> {
    place: &'a ObjectBenchPlace,
    name: &'static str,
    layer: String,
    node: ServeProcess,
    objects: Vec<u64>,
}

impl<'a> Populated<'a> {
    async fn new(place: &'a ObjectBenchPlace, name: &'static str, count: u64) -> Result<Self> {
        let bytes = (count * BYTES_PER_OBJECT).max(LEAST_BYTES);
        let layer = format!("{{ file = {{ path = \"{name}.img\", size = {bytes} }} }}");
        let node = place.start(name, &[plain_drive(&layer)])?;
        let mut populated = Self { place, name, layer, node, objects: vec![] };
        let drive = populated.connect().await?;
        client::create_partition(&drive).await?;
        populated.objects = add(&drive, count).await?;
        client::flush(&drive).await?;
        drive.close().await;
        Ok(populated)
    }

    async fn connect(&self) -> Result<RemoteObjects> {
        client::drive(&self.node, 0, Credential::None).await
    }

    async fn reads(&self, time: Duration) -> Result<BenchPoint> {
        let drive = self.connect().await?;
        let random = Cell::new(1);
        let point = load::measure(DEPTH, self.node.id(), time, |_| {
            let drawn = self.objects[draw(&random, self.objects.len() as u64) as usize];
            client::read(&drive, ObjectAddress::new(PARTITION, drawn), 0, BLOCK)
        })
        .await?;
        drive.close().await;
        Ok(point)
    }

    /// Changes the drive without a flush, kills the process, and starts it again. Returns the seconds until it listens.
    async fn start_again(&mut self) -> Result<f64> {
        let drive = self.connect().await?;
        add(&drive, CHANGES).await?;
        drive.close().await;
        self.node.kill()?;
        let start = Instant::now();
        self.node = self.place.start(self.name, &[plain_drive(&self.layer)])?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Creates objects of 4 KiB with four attributes. Returns their identifiers.
async fn add(drive: &RemoteObjects, count: u64) -> Result<Vec<u64>> {
    let (data, left) = (Bytes::from(vec![0xa5; BLOCK as usize]), Cell::new(count));
    let task = |_| async {
        let mut made = vec![];
        while left.get() > 0 {
            left.set(left.get() - 1);
            let create = (1..=4).fold(client::create_and_write(data.clone()), |create, number| {
                create.setting(Attribute::new(PAGE, number, vec![number as u8; 32]))
            });
            made.push(client::request(drive, create).await?.current.object.object);
        }
        anyhow::Ok(made)
    };
    Ok(try_join_all((0..DEPTH).map(task)).await?.concat())
}

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let count = scale.objects;
    runtime()?.block_on(async {
        let mut empty = Populated::new(place, "empty", 0).await?;
        let few = Populated::new(place, "few", FEW.min(count)).await?;
        let start = Instant::now();
        let mut many = Populated::new(place, "many", count).await?;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        ratios.note("CREATE AND WRITE of 4 KiB with four attributes, depth 32: per second", rate);
        for _ in 0..scale.rounds {
            let few = few.reads(scale.time).await?.per_second();
            let read = many.reads(scale.time).await?.per_second();
            ratios.least(
                format!("{count} objects: rate of READ over that with {FEW}"),
                0.8,
                read / few,
            );
            let peak = memory::peak(many.node.id())?;
            ratios.most(format!("{count} objects: peak of resident memory, MiB"), 128.0, peak);
            let (started, bare) = (many.start_again().await?, empty.start_again().await?);
            let figure = format!("{count} objects: start after a kill over that of an empty drive");
            ratios.most(figure, 3.0, started / bare);
            ratios.most(format!("{count} objects: start after a kill, s"), 2.0, started);
        }
        Ok(())
    })
}

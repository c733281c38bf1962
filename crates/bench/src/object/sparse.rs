//! An object of 1 TiB with little data.

use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use initiator::{Credential, RemoteObjects};
use object::{AttributeId, AttributeSelection, Command, ObjectAddress, ObjectRequest};

use super::ObjectBenchScale;
use super::client;
use super::place::{ObjectBenchPlace, plain_drive, runtime};
use super::ratios::ObjectRatios;
use crate::stage::Appender;

const LENGTH: u64 = 1 << 40;

/// Blocks with data, evenly spread over the object.
const BLOCKS: u64 = 64;

const BLOCK: u64 = 4096;
const MIB: f64 = (1 << 20) as f64;

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let layer = place.file("sparse.img", 64 << 20, true)?;
    let node = place.start("sparse", &[plain_drive(&layer)])?;
    let appender = Appender::open(&place.path("appends"))?;
    runtime()?.block_on(async {
        let drive = client::drive(&node, 0, Credential::None).await?;
        client::create_partition(&drive).await?;
        for _ in 0..scale.rounds {
            let before = used(&drive).await?;
            let object = client::create(&drive).await?;
            for at in 1..=BLOCKS {
                let data = Bytes::from(vec![0x5a; BLOCK as usize]);
                let start = LENGTH / BLOCKS * at - BLOCK;
                client::request(&drive, client::write(object, start, data)).await?;
            }
            client::flush(&drive).await?;
            let taken = used(&drive).await?.saturating_sub(before);
            ratios.most(
                "object of 1 TiB with 64 blocks of data: space, MiB",
                1.0,
                taken as f64 / MIB,
            );
            let append = appender.measure(scale.time)?.median_us();
            let clear = Command::Clear { object, length: LENGTH, start: 0 };
            let start = Instant::now();
            client::request(&drive, ObjectRequest::new(clear).with_fua()).await?;
            let cleared = start.elapsed().as_secs_f64() * 1e6;
            ratios.most("CLEAR of 1 TiB with FUA over durable append", 20.0, cleared / append);
            client::request(&drive, ObjectRequest::new(Command::Remove { object })).await?;
            client::flush(&drive).await?;
        }
        drive.close().await;
        Ok(())
    })
}

/// Returns the used capacity of the drive in bytes.
async fn used(drive: &RemoteObjects) -> Result<u64> {
    let object = ObjectAddress::ROOT;
    let get = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::One(AttributeId::new(0x9000_0001, 0x81)));
    let reply = client::request(drive, get).await?;
    let value = &reply.attributes.first().context("the drive reports no used capacity")?.value;
    Ok(u64::from_be_bytes(value[..].try_into()?))
}

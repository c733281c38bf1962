//! Streams on a drive whose objects were replaced many times, beside streams on the fresh drive.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use futures_util::future::try_join_all;
use initiator::{Credential, RemoteObjects};
use object::{Command, ObjectAddress, ObjectRequest};

use super::ObjectBenchScale;
use super::client;
use super::load::draw;
use super::place::{ObjectBenchPlace, memory, plain_drive, runtime};
use super::ratios::ObjectRatios;

/// A disk of 500 MB/s that needs 100 us for each access that does not continue an earlier one.
const DISK: &str = "{ disk = { model = \"null\", media_rate = 500000000, read_position = \"100us\", \
                    write_position = \"100us\" } }";

/// Bytes of one command.
const PIECE: u64 = 128 << 10;

/// Commands in flight.
const DEPTH: usize = 8;

/// The sizes of the objects in pieces: 128 KiB to 1 MiB.
const MOST_PIECES: u64 = 8;

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let layers = format!("{}, {DISK}", memory(scale.turnover_bytes));
    for round in 0..scale.rounds {
        let node = place.start("turnovers", &[plain_drive(&layers)])?;
        runtime()?.block_on(async {
            let drive = client::drive(&node, 0, Credential::None).await?;
            client::create_partition(&drive).await?;
            let stream = scale.turnover_bytes / 16;
            let fresh = streams(&drive, stream).await?;
            let mut turned = Turned::new(&drive, round as u64);
            // The volume also holds the tables of the drive.
            turned.fill(scale.turnover_bytes / 10 * 8).await?;
            turned.replace(scale.turnover_bytes / 10 * 8 * scale.turnovers).await?;
            let later = streams(&drive, stream).await?;
            for (name, fresh, later) in [("WRITE", fresh.0, later.0), ("READ", fresh.1, later.1)] {
                let figure = format!(
                    "streams of {name} after ten turnovers at 80 % full: bandwidth over fresh"
                );
                ratios.least(figure, 0.7, later / fresh);
                ratios.note(format!("fresh streams of {name}: MB/s"), fresh / 1e6);
            }
            drive.close().await;
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

/// Writes a new object, reads it and removes it. Returns the bytes per second of both.
async fn streams(drive: &RemoteObjects, bytes: u64) -> Result<(f64, f64)> {
    let object = client::create(drive).await?;
    let start = Instant::now();
    put(drive, object, bytes).await?;
    let written = start.elapsed().as_secs_f64();
    let start = Instant::now();
    pieces(bytes, |at| client::read(drive, object, at, PIECE)).await?;
    let read = start.elapsed().as_secs_f64();
    client::request(drive, ObjectRequest::new(Command::Remove { object })).await?;
    Ok((bytes as f64 / written, bytes as f64 / read))
}

async fn put(drive: &RemoteObjects, object: ObjectAddress, bytes: u64) -> Result<()> {
    let data = Bytes::from(vec![0xa5; PIECE as usize]);
    pieces(bytes, |at| {
        let write = client::write(object, at, data.clone());
        async move { client::request(drive, write).await.map(|_| ()) }
    })
    .await
}

/// Performs an operation on each piece of an object, in ascending order, several at a time.
async fn pieces<F, O>(bytes: u64, operation: F) -> Result<()>
where
    F: Fn(u64) -> O,
    O: Future<Output = Result<()>>,
{
    let next = Cell::new(0);
    let task = |_| async {
        while next.get() < bytes {
            let at = next.replace(next.get() + PIECE);
            operation(at).await?;
        }
        anyhow::Ok(())
    };
    try_join_all((0..DEPTH).map(task)).await?;
    Ok(())
}

/// The objects of a drive that are replaced at random.
struct Turned<'a> {
    drive: &'a RemoteObjects,
    objects: Vec<(ObjectAddress, u64)>,
    bytes: u64,
    random: Cell<u64>,
}

impl<'a> Turned<'a> {
    fn new(drive: &'a RemoteObjects, seed: u64) -> Self {
        Self { drive, objects: vec![], bytes: 0, random: Cell::new(seed) }
    }

    /// Creates objects until they have `limit` bytes.
    async fn fill(&mut self, limit: u64) -> Result<()> {
        loop {
            let bytes = (draw(&self.random, MOST_PIECES) + 1) * PIECE;
            if self.bytes + bytes > limit {
                return Ok(());
            }
            let object = client::create(self.drive).await?;
            put(self.drive, object, bytes).await?;
            self.objects.push((object, bytes));
            self.bytes += bytes;
        }
    }

    /// Replaces objects by others until `total` bytes were written.
    async fn replace(&mut self, total: u64) -> Result<()> {
        let (mut written, limit) = (0, self.bytes);
        while written < total {
            let drawn = draw(&self.random, self.objects.len() as u64) as usize;
            let (object, bytes) = self.objects.swap_remove(drawn);
            client::request(self.drive, ObjectRequest::new(Command::Remove { object })).await?;
            self.bytes -= bytes;
            self.fill(limit).await?;
            written += bytes;
        }
        Ok(())
    }
}

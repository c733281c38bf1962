//! A drive and a block unit in the memory of one process, under the same loads.

use anyhow::Result;
use initiator::Credential;

use super::ObjectBenchScale;
use super::client::{self, ObjectBenchSession};
use super::load::{self, ObjectBenchLoad};
use super::place::{ObjectBenchPlace, block_unit, memory, plain_drive, runtime};
use super::ratios::ObjectRatios;

const SESSIONS: usize = 64;

const BLOCK: u16 = 0;
/// The drive for small commands.
const SMALL: u16 = 1;
/// The drive for streams. It discards what they overwrite, so that the next writes need new memory.
const STREAMS: u16 = 2;

/// One load with the least ratio of the drive's rate to the block unit's.
struct MemoryPoint {
    name: &'static str,
    sessions: usize,
    load: ObjectBenchLoad,
    least: f64,
}

fn points(region: u64) -> Vec<MemoryPoint> {
    let point = |name, sessions, load, least| MemoryPoint { name, sessions, load, least };
    let (small, large) = (ObjectBenchLoad::small, ObjectBenchLoad::large);
    vec![
        point("128 KiB READ, depth 8", 1, large(false, 8, region), 0.85),
        point("128 KiB WRITE, depth 8", 1, large(true, 8, region), 0.85),
        point("4 KiB READ, depth 32", 1, small(false, 32, region), 0.6),
        point("4 KiB WRITE, depth 32", 1, small(true, 32, region), 0.6),
        point("64 sessions, 4 KiB READ, depth 4", SESSIONS, small(false, 4, region), 0.8),
        point("64 sessions, 4 KiB WRITE, depth 4", SESSIONS, small(true, 4, region), 0.8),
    ]
}

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let bytes = scale.memory_bytes;
    // A write to an object takes new blocks before it frees the old ones, and a drive has tables.
    let drive = plain_drive(&memory(3 * bytes));
    let node = place.start("memory", &[block_unit(&memory(bytes)), drive.clone(), drive])?;
    runtime()?.block_on(async {
        let connect = |lun| client::drive(&node, lun, Credential::None);
        let first = connect(SMALL).await?;
        client::create_partition(&first).await?;
        let object = client::create(&first).await?;
        let mut drives = vec![ObjectBenchSession::Object(first, object)];
        let mut blocks = vec![client::block(&node, BLOCK).await?];
        for _ in 1..SESSIONS {
            drives.push(ObjectBenchSession::Object(connect(SMALL).await?, object));
            blocks.push(client::block(&node, BLOCK).await?);
        }
        let first = connect(STREAMS).await?;
        client::create_partition(&first).await?;
        let object = client::create(&first).await?;
        let stream = [ObjectBenchSession::Object(first, object)];
        load::age(&drives[0], bytes, 3 * bytes, node.id()).await?;
        stream[0].fill(bytes).await?;
        blocks[0].fill(bytes).await?;
        for round in 0..scale.rounds {
            for point in points(bytes) {
                let (count, load) = (point.sessions, point.load);
                let on = |sessions| load.measure(sessions, node.id(), scale.time);
                let drives = if load.random { &drives[..count] } else { &stream[..] };
                // Every other round measures the drive first, so that drifts cancel out.
                let (drive, block) = if round % 2 == 0 {
                    let block = on(&blocks[..count]).await?;
                    (on(drives).await?, block)
                } else {
                    (on(drives).await?, on(&blocks[..count]).await?)
                };
                let name = point.name;
                let rate = drive.per_second() / block.per_second();
                ratios.least(format!("{name}: rate over the block unit"), point.least, rate);
                let cpu = drive.cpu_us() / block.cpu_us();
                ratios.note(format!("{name}: server CPU over the block unit"), cpu);
                ratios.note(format!("{name}: server CPU of the drive, us"), drive.cpu_us());
                ratios.note(format!("{name}: drive, per second"), drive.per_second());
            }
        }
        for session in drives.iter().chain(&stream).chain(&blocks) {
            session.close().await;
        }
        Ok(())
    })
}

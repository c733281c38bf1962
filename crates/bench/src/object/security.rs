//! The security methods of a drive, in memory and on a simulated disk of 500 MB/s.

use std::time::{Duration, Instant};

use anyhow::Result;
use initiator::Credential;
use osd::security::{Algorithm, Key, Mac, SecurityMethod};
use rig::node::ServeProcess;

use super::ObjectBenchScale;
use super::client::{self, ObjectBenchSession};
use super::load::{self, ObjectBenchLoad};
use super::place::{ObjectBenchPlace, keyed_drive, memory, runtime};
use super::ratios::ObjectRatios;

/// The drive in memory for small commands.
const SMALL: u16 = 0;
/// The drive in memory for streams.
const STREAMS: u16 = 1;
const DISK: u16 = 2;

/// Commands in flight on the simulated disk: 4 MiB, which it transfers in 8 ms, so that it has work while a host
/// computes integrity check values.
const DISK_DEPTH: usize = 32;

/// Bytes that one call of the hash gets. It is the size of the commands.
const HASHED: usize = 128 << 10;

/// Length of the measurement of one hash.
const HASH_TIME: Duration = Duration::from_millis(50);

/// The sessions with one drive. All use the same object.
struct MethodSessions {
    plain: [ObjectBenchSession; 1],
    /// With the method CMDRSP.
    signed: [ObjectBenchSession; 1],
    all_data: Vec<(Algorithm, [ObjectBenchSession; 1])>,
}

impl MethodSessions {
    async fn open(node: &ServeProcess, lun: u16) -> Result<Self> {
        let owner = client::owner(SecurityMethod::CmdRsp, Algorithm::HmacSha256)?;
        let owner = client::drive(node, lun, owner).await?;
        client::set_keys(&owner).await?;
        let object = client::create(&owner).await?;
        let session = ObjectBenchSession::Object;
        let plain = session(client::drive(node, lun, Credential::None).await?, object);
        let mut all_data = vec![];
        for algorithm in Algorithm::ALL {
            let owner = client::owner(SecurityMethod::AllData, algorithm)?;
            all_data.push((algorithm, [session(client::drive(node, lun, owner).await?, object)]));
        }
        Ok(Self { plain: [plain], signed: [session(owner, object)], all_data })
    }

    async fn close(&self) {
        let all = self.all_data.iter().map(|(_, session)| session);
        for [session] in all.chain([&self.plain, &self.signed]) {
            session.close().await;
        }
    }
}

pub fn measure(
    place: &ObjectBenchPlace,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let lower = memory(3 * scale.memory_bytes);
    let disk = format!("{lower}, {{ disk = {{ model = \"null\", media_rate = 500000000 }} }}");
    let units = [keyed_drive(&lower), keyed_drive(&lower), keyed_drive(&disk)];
    let node = place.start("security", &units)?;
    runtime()?.block_on(async {
        let bytes = scale.memory_bytes;
        let small = MethodSessions::open(&node, SMALL).await?;
        load::age(&small.plain[0], bytes, 3 * bytes, node.id()).await?;
        let streams = MethodSessions::open(&node, STREAMS).await?;
        streams.plain[0].fill(bytes).await?;
        let on_disk = MethodSessions::open(&node, DISK).await?;
        on_disk.plain[0].fill(bytes / 4).await?;
        for _ in 0..scale.rounds {
            for write in [false, true] {
                small_round(&node, &small, write, scale, ratios).await?;
                stream_round(&node, &streams, write, scale, ratios).await?;
                disk_round(&node, &on_disk, write, scale, ratios).await?;
            }
        }
        for sessions in [small, streams, on_disk] {
            sessions.close().await;
        }
        Ok(())
    })
}

const fn action(write: bool) -> &'static str {
    if write { "WRITE" } else { "READ" }
}

async fn small_round(
    node: &ServeProcess,
    sessions: &MethodSessions,
    write: bool,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let action = action(write);
    let load = ObjectBenchLoad::small(write, 32, scale.memory_bytes);
    let plain = load.measure(&sessions.plain, node.id(), scale.time).await?.cpu_us();
    let signed = load.measure(&sessions.signed, node.id(), scale.time).await?.cpu_us();
    let figure = format!("CMDRSP, 4 KiB {action}, depth 32: server CPU over NOSEC");
    ratios.most(figure, 1.4, signed / plain);
    ratios.note(format!("NOSEC, 4 KiB {action}, depth 32: server CPU, us"), plain);
    ratios.note(format!("CMDRSP, 4 KiB {action}, depth 32: server CPU, us"), signed);
    Ok(())
}

async fn stream_round(
    node: &ServeProcess,
    sessions: &MethodSessions,
    write: bool,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let (action, region) = (action(write), scale.memory_bytes);
    for (size, bytes) in [("128 KiB", 128 << 10), ("1 MiB", 1 << 20)] {
        let load = ObjectBenchLoad { bytes, ..ObjectBenchLoad::large(write, 8, region) };
        let plain = load.measure(&sessions.plain, node.id(), scale.time).await?;
        let signed = load.measure(&sessions.signed, node.id(), scale.time).await?;
        let rate = signed.per_second() / plain.per_second();
        ratios.least(format!("CMDRSP, {size} {action}: bandwidth over NOSEC"), 0.95, rate);
        if bytes != HASHED as u64 {
            continue;
        }
        let plain = plain.per_second() * bytes as f64;
        ratios.note(format!("NOSEC, {size} {action}: MB/s"), plain / 1e6);
        for (algorithm, session) in &sessions.all_data {
            let name = name_of(*algorithm);
            let hash = hash_rate(*algorithm);
            let all = load.measure(session, node.id(), scale.time).await?;
            let all = all.per_second() * bytes as f64;
            let bound = 1.0 / (1.0 / plain + 1.0 / hash);
            let figure = format!(
                "ALLDATA with {name}, {size} {action}: bandwidth over 1/(1/NOSEC + 1/hash)"
            );
            ratios.least(figure, 0.8, all / bound);
            ratios.note(format!("{name} of {size}: MB/s"), hash / 1e6);
        }
    }
    Ok(())
}

async fn disk_round(
    node: &ServeProcess,
    sessions: &MethodSessions,
    write: bool,
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    let action = action(write);
    let load = ObjectBenchLoad::large(write, DISK_DEPTH, scale.memory_bytes / 4);
    let plain = load.measure(&sessions.plain, node.id(), scale.time).await?.per_second();
    let figure = format!("disk of 500 MB/s, NOSEC, 128 KiB {action}: MB/s");
    ratios.note(figure, plain * HASHED as f64 / 1e6);
    for (algorithm, session) in &sessions.all_data {
        let all = load.measure(session, node.id(), scale.time).await?.per_second();
        let name = name_of(*algorithm);
        let figure = format!(
            "disk of 500 MB/s, ALLDATA with {name}, 128 KiB {action}: bandwidth over NOSEC"
        );
        ratios.least(figure, 0.6, all / plain);
    }
    Ok(())
}

const fn name_of(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::HmacSha1 => "HMAC-SHA1",
        Algorithm::HmacSha256 => "HMAC-SHA-256",
        Algorithm::Blake3 => "BLAKE3",
    }
}

/// Returns the bytes per second that one thread hashes.
fn hash_rate(algorithm: Algorithm) -> f64 {
    let (key, data) = (Key::new([7; 32]), vec![0x5a; HASHED]);
    let (start, mut hashed) = (Instant::now(), 0_u64);
    while start.elapsed() < HASH_TIME {
        std::hint::black_box(Mac::new(algorithm, &key).with(&data).finish());
        hashed += HASHED as u64;
    }
    hashed as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hash_has_a_rate() {
        assert!(Algorithm::ALL.into_iter().all(|algorithm| hash_rate(algorithm) > 1e6));
    }
}

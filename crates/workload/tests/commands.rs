//! Runs the workload `commands` over a session with a Forebay node on loopback.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use target::{Portal, Target, TargetServer};
use unit::{BlockUnit, UnitIdentity};
use volume::{Data, Durability, Extensions, Extent, Geometry, Io, Lba, MemVolume, Volume};
use workload::{CommandsWorkload, Error, Workload, WorkloadLocation, WorkloadResult, WorkloadRun};

const NAME: &str = "iqn.2026-11.io.forebay.test:node";

/// Starts a node that serves `disk`, and runs the workload on its unit.
fn run(disk: Arc<dyn Volume>, commands: &CommandsWorkload) -> Result<WorkloadResult, Error> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (server, address) = runtime.block_on(async {
        let unit =
            Arc::new(BlockUnit::new(disk, UnitIdentity::new("disk-1"), unit::Settings::default()));
        let target = Target::new(NAME, vec![(0, unit as _)]);
        let server =
            TargetServer::new(target::Settings::default(), vec![target]).expect("a target");
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let address = server.open_portal(Portal::from(any)).await.expect("a port");
        (server, address)
    });
    let place = WorkloadLocation::Url(format!("iscsi://{address}/{NAME}/0"));
    let scratch = std::env::temp_dir();
    let run = WorkloadRun { place: &place, scratch: &scratch, seed: 3, progress: &|_| () };
    let outcome = commands.run(&run);
    runtime.block_on(server.shutdown(std::time::Duration::from_secs(1)));
    outcome
}

fn short() -> CommandsWorkload {
    CommandsWorkload {
        warm: 0.0,
        seconds: 20.0,
        total: 16 << 20,
        span: 8 << 20,
        depth: 16,
        congestion: "reno".parse().expect("a name"),
        socket_buffer: Some(512 << 10),
        ..CommandsWorkload::default()
    }
}

fn disk() -> MemVolume {
    MemVolume::new(Geometry::with_blocks((16 << 20) / 512))
}

#[test]
fn writes_are_counted_and_read_back() {
    let outcome = run(Arc::new(disk()), &short()).unwrap();
    assert_eq!(outcome.get("commands"), Some(128.0), "{outcome:?}");
    assert!(outcome.get("throughput").unwrap() > 0.0);
    assert!(outcome.get("turnaround mean").unwrap() > 0.0);
    assert!(outcome.verified.starts_with("32 of"), "{outcome:?}");
    let shares =
        (1..=4).map(|number| outcome.get(&format!("share of connection {number}")).unwrap());
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9, "{outcome:?}");
}

#[test]
fn reads_are_compared() {
    let commands = CommandsWorkload { read: true, ..short() };
    let outcome = run(Arc::new(disk()), &commands).unwrap();
    assert_eq!(outcome.get("commands"), Some(128.0), "{outcome:?}");
}

#[test]
fn a_disk_that_loses_a_write_is_detected() {
    let disk = Forgetful { disk: disk(), writes: AtomicU64::new(0) };
    let commands = CommandsWorkload { check: u32::MAX, ..short() };
    let error = run(Arc::new(disk), &commands).unwrap_err();
    assert!(matches!(error, Error::Wrong(_)), "{error}");
}

#[test]
fn a_span_beyond_the_end_and_a_folder_are_refused() {
    let commands = CommandsWorkload { span: 32 << 20, ..short() };
    let error = run(Arc::new(disk()), &commands).unwrap_err();
    assert!(matches!(error, Error::Space { .. }), "{error}");
    let place = WorkloadLocation::Folder("/".into());
    let run = WorkloadRun { place: &place, scratch: "/".as_ref(), seed: 1, progress: &|_| () };
    assert!(matches!(short().run(&run), Err(Error::Place { .. })));
}

/// A faulty volume, which acknowledges the hundredth write without performing it.
struct Forgetful {
    disk: MemVolume,
    writes: AtomicU64,
}

impl Volume for Forgetful {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.disk.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        if self.writes.fetch_add(1, Ordering::Relaxed) == 99 {
            return Io::new(async { Ok(()) });
        }
        self.disk.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.disk.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.disk.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), volume::Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

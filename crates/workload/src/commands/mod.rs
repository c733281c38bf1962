//! SCSI commands over one iSCSI session, a fixed number at a time: measures how the connections of a session use a
//! link, without a file system and without the kernel's block layer ("Performance Evaluation of Multiple TCP
//! connections in iSCSI", 4.1: a sequential write in requests of 128 KB).

mod block_pattern;
mod measurement;
mod session;
mod command_blocks;

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use transport::CongestionChoice;
use volume::Volume;

use self::{
    block_pattern::CommandBlockPattern, command_blocks::CommandBlocks,
    measurement::CommandMeasurement,
};
use crate::{
    Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun,
    remote_unit::{self, failed},
};

/// Settings of the workload that sends SCSI commands. Sizes are in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct CommandsWorkload {
    /// Read instead of write. The blocks are written first, before the measurement
    #[arg(long)]
    pub read: bool,
    /// Bytes of each command, a multiple of 4096, at most 1 MiB
    #[arg(long, default_value_t = 128 << 10)]
    pub block: u32,
    /// Commands in flight, 1 to 1024
    #[arg(long, default_value_t = 32)]
    pub depth: u16,
    /// Connections of the session, 1 to 8
    #[arg(long, default_value_t = 4)]
    pub connections: u16,
    /// Distribute the commands to the connections in turn, instead of to the connection with the
    /// least to do
    #[arg(long)]
    pub in_turn: bool,
    /// TCP congestion control of this end, as in the setting `congestion`
    #[arg(long, value_name = "NAME", default_value = "kernel default")]
    pub congestion: CongestionChoice,
    /// Send and receive buffer of each socket of this end in bytes. Without this option the kernel
    /// tunes them
    #[arg(long, value_name = "BYTES")]
    pub socket_buffer: Option<u32>,
    /// Warm-up before the measurement in seconds
    #[arg(long, default_value_t = 1.0)]
    pub warm: f64,
    /// Longest measurement in seconds
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Bytes after which the run ends earlier, including those of the warm-up. 0: no limit
    #[arg(long, default_value_t = 0)]
    pub total: u64,
    /// Bytes at the beginning of the volume that are used, in sequential order and repeatedly
    #[arg(long, default_value_t = 64 << 20)]
    pub span: u64,
    /// Number of blocks to read back and compare after writes, distributed over the written blocks
    #[arg(long, default_value_t = 32)]
    pub check: u32,
}

impl Default for CommandsWorkload {
    fn default() -> Self {
        Self {
            read: false,
            block: 128 << 10,
            depth: 32,
            connections: 4,
            in_turn: false,
            congestion: CongestionChoice::KernelDefault,
            socket_buffer: None,
            warm: 1.0,
            seconds: 10.0,
            total: 0,
            span: 64 << 20,
            check: 32,
        }
    }
}

impl Workload for CommandsWorkload {
    fn needs(&self) -> Vec<Tool> {
        Vec::new()
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = Error::wrong_setting;
        let times = [self.warm, self.seconds];
        match self {
            _ if self.block == 0 || !self.block.is_multiple_of(4096) || self.block > 1 << 20 => {
                wrong("a command moves a multiple of 4096 bytes, 1 MiB at most")
            }
            _ if !(1..=1024).contains(&self.depth) => wrong("1 to 1024 commands at once"),
            _ if !(1..=8).contains(&self.connections) => wrong("a session has 1 to 8 connections"),
            _ if times.iter().any(|time| !(0.0..=86_400.0).contains(time)) => {
                wrong("a measurement takes at most a day")
            }
            // Demand at least two blocks per command in flight. With fewer, every block could be in
            // use, and a search for a free one would not end.
            _ if self.slots() < 2 * u64::from(self.depth) => {
                wrong("the span is smaller than twice the data in flight")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        self.span
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        self.check()?;
        let WorkloadLocation::Url(url) = run.place else {
            let (workload, wanted) = ("commands", "an iSCSI unit (iscsi://HOST/TARGET/LUN)");
            return Err(Error::Place { workload, wanted, place: run.place.to_string() });
        };
        // Use one thread for both the submission of commands and the session.
        remote_unit::runtime()?.block_on(self.drive(url, run))
    }
}

impl CommandsWorkload {
    fn slots(&self) -> u64 {
        self.span / u64::from(self.block)
    }

    async fn drive(&self, url: &str, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let volume = session::open(self, url).await?;
        let content = CommandBlockPattern::new(run.seed, self.block);
        let slots = CommandBlocks::new(&volume, self.block, self.slots(), content)?;
        if self.read {
            slots.fill(self.depth, run).await?;
        }
        let before = volume.session().connections();
        let (measured, sent) = self.measure(&slots, run).await?;
        let after = volume.session().connections();
        let lost = volume.statistics().recovery.connections_lost;
        let verified = if self.read {
            "every block that was read".to_owned()
        } else {
            volume.flush().await.map_err(failed("flush"))?;
            format!("{} of the blocks that were written", slots.read_back(self.check).await?)
        };
        volume.close().await;
        let is_all = sent >= self.most();
        let mut outcome = measured.outcome(self.block, is_all, verified)?.figure(
            "connections lost",
            "",
            lost as f64,
        );
        for (number, share) in session::shares(&before, &after, self.read).into_iter().enumerate() {
            outcome = outcome.figure(&format!("share of connection {}", number + 1), "", share);
        }
        Ok(outcome)
    }

    /// Returns the largest number of commands that the byte limit allows.
    fn most(&self) -> u64 {
        if self.total == 0 { u64::MAX } else { self.total.div_ceil(self.block.into()) }
    }

    /// Keeps `depth` commands in flight until the time is over or all data is transferred. Also
    /// returns the number of commands that were sent.
    async fn measure(
        &self,
        slots: &CommandBlocks<'_>,
        run: &WorkloadRun<'_>,
    ) -> Result<(CommandMeasurement, u64), Error> {
        let started = Instant::now();
        let begin = started + Duration::from_secs_f64(self.warm);
        let end = begin + Duration::from_secs_f64(self.seconds);
        let length = (end - started).as_secs_f64().max(f64::MIN_POSITIVE);
        let most = self.most();
        let next = Cell::new(0);
        let measured = RefCell::new(CommandMeasurement::new(begin, end));
        let one_after_another = async || {
            while next.get() < most && Instant::now() < end {
                let number = next.replace(next.get() + 1);
                let sent = Instant::now();
                let slot = slots.take();
                if self.read {
                    slots.read(slot).await?;
                } else {
                    slots.write(slot).await?;
                }
                slots.give_back(slot);
                measured.borrow_mut().add(sent, Instant::now());
                let by_time = started.elapsed().as_secs_f64() / length;
                let by_total = (number + 1) as f64 / most as f64;
                (run.progress)(by_time.max(by_total).min(1.0));
            }
            Ok::<(), Error>(())
        };
        try_join_all((0..self.depth).map(|_| one_after_another())).await?;
        Ok((measured.into_inner(), next.get()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    };

    use volume::{Data, Durability, Extensions, Extent, Geometry, Io, Lba, MemVolume};

    use super::*;

    /// A volume in memory for a test. The volume delays its first write until `OTHERS` other writes are done. It counts
    /// the writes that arrive while another write to the same block is in progress.
    struct HoldingUp {
        memory: MemVolume,
        writes: AtomicU32,
        released: tokio::sync::Notify,
        on_their_way: Mutex<Vec<Lba>>,
        met: AtomicU32,
    }

    const OTHERS: u32 = 20;

    impl Volume for HoldingUp {
        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn read(&self, extent: Extent) -> Io<'_, Data> {
            self.memory.read(extent)
        }

        fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
            Io::new(async move {
                let here = |it: &&Lba| **it == lba;
                let met = self.on_their_way.lock().unwrap().iter().filter(here).count();
                self.met.fetch_add(met as u32, Ordering::Relaxed);
                self.on_their_way.lock().unwrap().push(lba);
                match self.writes.fetch_add(1, Ordering::Relaxed) {
                    0 => self.released.notified().await,
                    OTHERS => self.released.notify_one(),
                    _ => tokio::task::yield_now().await,
                }
                self.on_their_way.lock().unwrap().retain(|it| *it != lba);
                self.memory.write(lba, data, durability).await
            })
        }

        fn flush(&self) -> Io<'_, ()> {
            self.memory.flush()
        }

        fn discard(&self, extent: Extent) -> Io<'_, ()> {
            self.memory.discard(extent)
        }

        fn admit(&self, _: usize) -> Result<(), volume::Error> {
            Ok(())
        }

        fn extensions(&self) -> Extensions<'_> {
            Extensions::default()
        }
    }

    #[test]
    fn no_two_commands_for_one_block_are_in_flight() {
        let held = HoldingUp {
            memory: MemVolume::new(Geometry::with_blocks(32)),
            writes: AtomicU32::new(0),
            released: tokio::sync::Notify::new(),
            on_their_way: Mutex::default(),
            met: AtomicU32::new(0),
        };
        let task = CommandsWorkload {
            block: 4096,
            depth: 2,
            span: 16 << 10,
            ..CommandsWorkload::default()
        };
        let task = CommandsWorkload { total: 40 * 4096, warm: 0.0, seconds: 60.0, ..task };
        let (place, scratch) = (WorkloadLocation::Url(String::new()), std::path::Path::new("/"));
        let run = WorkloadRun { place: &place, scratch, seed: 3, progress: &|_| () };
        let slots =
            CommandBlocks::new(&held, 4096, task.slots(), CommandBlockPattern::new(3, 4096))
                .unwrap();
        let runtime = remote_unit::runtime().unwrap();
        let (_, sent) = runtime.block_on(task.measure(&slots, &run)).unwrap();
        assert_eq!(runtime.block_on(slots.read_back(4)).unwrap(), 4);
        assert_eq!((sent, held.writes.into_inner(), held.met.into_inner()), (40, 40, 0));
    }

    #[test]
    fn invalid_settings_are_refused() {
        let wrong = |change: fn(&mut CommandsWorkload)| {
            let mut commands = CommandsWorkload::default();
            change(&mut commands);
            assert!(matches!(commands.check(), Err(Error::Settings(_))), "{commands:?}");
        };
        assert!(CommandsWorkload::default().check().is_ok());
        wrong(|it| it.block = 1000);
        wrong(|it| it.depth = 0);
        wrong(|it| it.connections = 9);
        wrong(|it| it.seconds = f64::NAN);
        wrong(|it| it.span = 4 << 20);
    }
}

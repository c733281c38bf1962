//! FUSE, a loop device and a volume in memory. The tests need root, /dev/fuse and /dev/loop-control.
//! Otherwise they print a message and end.

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    sync::Arc,
    time::Duration,
};

use attach::{
    FileName, HostProcess, LoopDevice, LoopOptions, ServedFile, ServedFileOptions, VolumeFile,
    backing, leftovers, users,
};
use tokio::task::spawn_blocking;
use volume::{Data, Durability, Extent, Geometry, Lba, MemVolume, ObserveVolume, Stack, Volume};

const MIB: u64 = 1 << 20;

/// A constant from linux/fs.h.
const BLKDISCARD: libc::c_ulong = 0x1277;

fn is_possible() -> bool {
    let possible = rustix::process::geteuid().is_root()
        && ["/dev/fuse", "/dev/loop-control"]
            .iter()
            .all(|path| OpenOptions::new().read(true).write(true).open(path).is_ok());
    if !possible {
        println!("not run: needs root, /dev/fuse and /dev/loop-control");
    }
    possible
}

async fn open(volume: Stack, name: &str, direct: bool) -> (LoopDevice, ServedFile) {
    let name = FileName::new(name, HostProcess::this().expect("/proc"), "test");
    let options = ServedFileOptions { name, patience: Duration::from_secs(5) };
    let set_up = spawn_blocking(move || {
        let geometry = volume.geometry();
        let file = VolumeFile::open(volume, options).expect("a file");
        let options = LoopOptions {
            block_size: geometry.block_size,
            read_only: geometry.read_only,
            direct,
            partitions: false,
        };
        let device = LoopDevice::set_up(file.file(), &options).expect("a loop device");
        (device, file.into_served())
    });
    set_up.await.expect("no panic")
}

async fn close(device: LoopDevice, mut served: ServedFile) {
    spawn_blocking(move || device.clear()).await.expect("no panic").expect("cleared");
    tokio::time::timeout(Duration::from_secs(20), served.ended())
        .await
        .expect("the last user has gone");
}

fn device_file(device: LoopDevice) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(device.path())
        .expect("the device opens")
}

/// A buffer that is aligned as direct I/O requires.
struct Aligned(Vec<u8>, usize, usize);

impl Aligned {
    fn new(length: usize, fill: u8) -> Self {
        let bytes = vec![fill; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self(bytes, start, length)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_written_to_the_device_is_in_the_volume() {
    if !is_possible() {
        return;
    }
    for (direct, block_size) in [(true, 512), (false, 512), (true, 4096), (false, 4096)] {
        let blocks = 16 * MIB / u64::from(block_size);
        let geometry = Geometry { block_size, ..Geometry::with_blocks(blocks) };
        let observed = ObserveVolume::new(Arc::new(MemVolume::new(geometry)));
        let counters = observed.counters().clone();
        let volume: Stack = Arc::new(observed);
        let name = format!("test{}x{direct}{block_size}", std::process::id());
        let (device, served) = open(volume.clone(), &name, direct).await;
        let before = counters.counts();
        spawn_blocking(move || {
            let file = device_file(device);
            // The first write is longer than one request and does not begin at a page boundary.
            for (offset, length, fill) in
                [(u64::from(block_size), 3 * MIB, 7), (8 * MIB, MIB, 8), (12 * MIB, 4096, 9)]
            {
                file.write_all_at(Aligned::new(length as usize, fill).bytes(), offset)
                    .expect("written");
            }
            file.sync_all().expect("stable");
            let range =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, range, 8 * MIB, MIB / 2).expect("discarded");
            let mut back = Aligned::new(4096, 0);
            file.read_exact_at(back.bytes(), 12 * MIB).expect("read");
            assert!(back.bytes().iter().all(|byte| *byte == 9));
        })
        .await
        .expect("the device performs its requests");
        let after = counters.counts();
        assert!(after.flushes > before.flushes, "a flush of the device is one of the volume");
        assert!(after.discards > before.discards, "a discard of the device is one of the volume");
        assert!(
            leftovers(&name).iter().any(|found| found.number == device.number && found.is_alive)
        );
        close(device, served).await;
        assert_eq!(leftovers(&name), []);
        let all = Extent { lba: Lba(0), blocks: blocks as u32 };
        let all = volume.read(all).await.expect("read").into_bytes();
        let expected = |at: u64| match at {
            at if (u64::from(block_size)..u64::from(block_size) + 3 * MIB).contains(&at) => 7,
            at if (8 * MIB + MIB / 2..9 * MIB).contains(&at) => 8,
            at if (12 * MIB..12 * MIB + 4096).contains(&at) => 9,
            _ => 0,
        };
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == expected(at as u64)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_has_the_device_open_is_named_and_a_refused_request_is_an_error() {
    if !is_possible() {
        return;
    }
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(4096)));
    volume.write(Lba(0), Data::from(vec![1; 512]), Durability::Stable).await.expect("written");
    let name = format!("test{}users", std::process::id());
    let (device, served) = open(volume, &name, true).await;
    assert_eq!(users(device.number), []);
    let mut reader = std::process::Command::new("sleep")
        .arg("60")
        .stdin(File::open(device.path()).expect("the device opens"))
        .spawn()
        .expect("sleep runs");
    let found = users(device.number);
    reader.kill().expect("it ran");
    reader.wait().expect("it ends");
    assert!(
        matches!(&found[..], [attach::DeviceUser::Process { id, .. }] if *id == reader.id()),
        "{found:?}"
    );
    served.refuse().await;
    let read = spawn_blocking(move || {
        device_file(device).read_exact_at(Aligned::new(4096, 0).bytes(), 4096)
    });
    let error = read.await.expect("no panic").expect_err("nothing is served");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let found = leftovers(&name);
    assert!(found.len() == 1 && found[0].is_alive, "a volume that fails is no leftover: {found:?}");
    assert_eq!(backing(device.number).map(|name| name.process), HostProcess::this().ok());
    close(device, served).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discards_are_accepted_if_the_volume_is_thin() {
    if !is_possible() {
        return;
    }
    for thin in [true, false] {
        let geometry = Geometry { thin, ..Geometry::with_blocks(8192) };
        let volume: Stack = Arc::new(MemVolume::new(geometry));
        let ones = Data::from(vec![1; 4 << 20]);
        volume.write(Lba(0), ones, Durability::Stable).await.expect("written");
        let name = format!("test{}thin{thin}", std::process::id());
        let (device, served) = open(volume.clone(), &name, true).await;
        // After the zeroing, the range must read as zeros on a thin volume and on another one. The kernel uses
        // different requests for the two.
        spawn_blocking(move || {
            let range =
                rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let file = device_file(device);
            rustix::fs::fallocate(&file, range, MIB, MIB).expect("zeroed");
            let range = [2 * MIB, MIB];
            // SAFETY: BLKDISCARD reads two numbers, a range of the device.
            let discarded = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, &range) };
            // BLKDISCARD succeeds even if the volume refuses the discard: the kernel does not report the refusal.
            assert_eq!(discarded, 0);
        })
        .await
        .expect("no panic");
        close(device, served).await;
        let all = volume.read(Extent { lba: Lba(0), blocks: 8192 }).await.expect("read");
        let end = if thin { 3 * MIB } else { 2 * MIB };
        let zero = |at: usize| (MIB as usize..end as usize).contains(&at);
        let bytes = all.into_bytes();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == u8::from(!zero(at))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_volume_takes_no_write() {
    if !is_possible() {
        return;
    }
    let read_only = Geometry { read_only: true, ..Geometry::with_blocks(2048) };
    let name = format!("test{}readonly", std::process::id());
    let (device, served) = open(Arc::new(MemVolume::new(read_only)), &name, true).await;
    let refused = OpenOptions::new().write(true).open(device.path());
    let text = std::fs::read_to_string(format!("/sys/block/loop{}/size", device.number));
    assert_eq!(text.expect("a size").trim(), "2048");
    assert!(refused.is_err() || refused.is_ok_and(|file| file.write_all_at(&[1; 512], 0).is_err()));
    spawn_blocking(move || device.resize()).await.expect("no panic").expect("same size");
    close(device, served).await;
}

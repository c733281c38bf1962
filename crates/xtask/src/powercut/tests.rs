//! Tests of what each call makes stable, on a mounted file system. They need root and /dev/fuse.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use program::RunningProgram;
use rustix::io::ReadWriteFlags;
use rustix::process::Pid;

use super::supply::{Cut, MachineEnding, Phase, Supply};
use super::tree::ROOT;
use super::{FaultFsTree, Honour, Mounted, missing, private_namespace};

/// Number of images that a test draws. With this many images, a test sees every combination in which a few sectors
/// survive or are lost.
const DRAWS: u64 = 300;

/// A mounted file system, with its simulated power supply and its mount point.
struct Bench {
    mounted: Mounted,
    supply: Arc<Supply>,
    folder: tempfile::TempDir,
}

fn pid(running: &RunningProgram) -> Pid {
    Pid::from_raw(running.id() as i32).expect("not zero")
}

fn honest() -> Honour {
    Arc::new(|_| true)
}

impl Bench {
    fn new() -> Option<Bench> {
        Bench::with(FaultFsTree::new(), honest())
    }

    fn with(tree: FaultFsTree, honour: Honour) -> Option<Bench> {
        if let Some(why) = missing() {
            println!("not run: {why}");
            return None;
        }
        private_namespace().expect("root may do that");
        let folder = tempfile::tempdir().expect("a folder");
        let supply = Supply::new(1);
        let mounted = Mounted::mount(tree, folder.path(), &supply, 0, honour).expect("mounted");
        Some(Bench { mounted, supply, folder })
    }

    /// Starts a process on machine 0 that appends lines to file `f` until it is killed.
    fn writer(&self) -> RunningProgram {
        let script = "i=0; while :; do i=$((i+1)); echo $i >> f; echo $i; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.folder.path()).stdout(Stdio::piped());
        let writer = program::start(&mut command).expect("started");
        self.supply.runs(0, pid(&writer)).expect("it lives");
        writer
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a file with a stable name and `sectors` stable sectors of zeros.
    fn file(&self, name: &str, sectors: usize) -> File {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(self.path(name)).expect("made");
        file.write_all_at(&vec![0; sectors * 512], 0).expect("written");
        file.sync_all().expect("synced");
        self.sync_names();
        file
    }

    fn sync_names(&self) {
        let folder = File::open(self.folder.path()).expect("open");
        folder.sync_all().expect("synced");
    }

    fn end(self) -> FaultFsTree {
        self.mounted.unmount().expect("unmounted")
    }
}

/// Returns the bytes of the file `name`; `None` if the file does not exist.
fn bytes(tree: &FaultFsTree, name: &str) -> Option<Vec<u8>> {
    let content = tree.file(tree.lookup(ROOT, OsStr::new(name)).ok()?).expect("a file");
    Some(content.read(0, content.len()).to_vec())
}

/// Returns every outcome of many power cuts, as the first byte of each sector of the file.
fn outcomes(tree: &FaultFsTree, name: &str) -> BTreeSet<Vec<u8>> {
    let firsts = |seed| {
        let bytes = bytes(&tree.draw(seed), name).expect("there");
        bytes.chunks(512).map(|sector| sector[0]).collect()
    };
    (0..DRAWS).map(firsts).collect()
}

fn set<const N: usize, const M: usize>(of: [[u8; N]; M]) -> BTreeSet<Vec<u8>> {
    of.into_iter().map(|one| one.to_vec()).collect()
}

#[test]
fn an_unsynced_write_is_kept_lost_or_torn_at_sectors() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("f", 2);
    file.write_all_at(&[7; 1024], 0).expect("written");
    drop(file);
    assert_eq!(outcomes(&bench.end(), "f"), set([[0, 0], [0, 7], [7, 0], [7, 7]]));
}

#[test]
fn two_unsynced_writes_may_reach_the_disk_in_either_order() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("f", 2);
    file.write_all_at(&[1; 512], 0).expect("written");
    file.write_all_at(&[2; 512], 512).expect("written");
    drop(file);
    assert_eq!(outcomes(&bench.end(), "f"), set([[0, 0], [0, 2], [1, 0], [1, 2]]));
}

#[test]
fn data_written_before_fsync_or_fdatasync_is_stable() {
    let Some(bench) = Bench::new() else { return };
    for (name, only_data) in [("f", false), ("g", true)] {
        let file = bench.file(name, 1);
        file.write_all_at(&[1; 1024], 0).expect("written");
        if only_data { file.sync_data() } else { file.sync_all() }.expect("synced");
        file.write_all_at(&[2; 512], 0).expect("written");
    }
    let tree = bench.end();
    assert_eq!(outcomes(&tree, "f"), set([[1, 1], [2, 1]]));
    assert_eq!(outcomes(&tree, "g"), set([[1, 1], [2, 1]]));
}

#[test]
fn a_stable_write_makes_its_own_bytes_stable_and_no_others() {
    let Some(bench) = Bench::new() else { return };
    let by_flag = bench.file("f", 2);
    by_flag.write_all_at(&[1; 512], 512).expect("written");
    let stable = [std::io::IoSlice::new(&[2; 512])];
    rustix::io::pwritev2(&by_flag, &stable, 0, ReadWriteFlags::DSYNC).expect("written");
    drop(bench.file("g", 2));
    for (name, flag) in [("g", libc::O_DSYNC), ("h", libc::O_SYNC)] {
        drop(bench.file(name, 2));
        let file = File::options().write(true).custom_flags(flag).open(bench.path(name));
        file.expect("open").write_all_at(&[3; 512], 0).expect("written");
    }
    drop(by_flag);
    let tree = bench.end();
    assert_eq!(outcomes(&tree, "f"), set([[2, 0], [2, 1]]));
    assert_eq!(outcomes(&tree, "g"), set([[3, 0]]));
    assert_eq!(outcomes(&tree, "h"), set([[3, 0]]));
}

#[test]
fn a_sync_after_a_stable_write_of_the_same_thread_is_a_sync_of_everything() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("f", 2);
    file.write_all_at(&[1; 512], 512).expect("written");
    let stable = [std::io::IoSlice::new(&[2; 512])];
    rustix::io::pwritev2(&file, &stable, 0, ReadWriteFlags::DSYNC).expect("written");
    file.sync_data().expect("synced");
    drop(file);
    assert_eq!(outcomes(&bench.end(), "f"), set([[2, 1]]));
}

#[test]
fn direct_writes_are_recorded_like_buffered_writes() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("f", 8));
    let mut options = File::options();
    let options = options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = options.open(bench.path("f")).expect("open");
    let memory = memory_aligned(9);
    let stable = [std::io::IoSlice::new(&memory.0[memory.1..memory.1 + 4096])];
    rustix::io::pwritev2(&file, &stable, 0, ReadWriteFlags::DSYNC).expect("written");
    drop(file);
    assert_eq!(outcomes(&bench.end(), "f"), set([[9; 8]]));
}

fn memory_aligned(fill: u8) -> (Vec<u8>, usize) {
    let bytes = vec![fill; 8192];
    let start = bytes.as_ptr().align_offset(4096);
    (bytes, start)
}

#[test]
fn an_unsynced_append_is_whole_short_zero_filled_or_absent() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("f", 1);
    file.write_all_at(&[5; 1024], 512).expect("written");
    drop(file);
    let found = outcomes(&bench.end(), "f");
    for wanted in [vec![0], vec![0, 5, 5], vec![0, 0, 5], vec![0, 5]] {
        assert!(found.contains(&wanted), "{wanted:?} of {found:?}");
    }
}

#[test]
fn a_name_is_stable_when_its_folder_was_synced() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("stable", 1));
    let file = File::create(bench.path("new")).expect("made");
    file.sync_all().expect("synced");
    drop(file);
    let tree = bench.end();
    let there = |seed| bytes(&tree.draw(seed), "new").is_some();
    assert!((0..DRAWS).all(|seed| bytes(&tree.draw(seed), "stable").is_some()));
    assert!((0..DRAWS).any(there) && !(0..DRAWS).all(there), "a synced file without a synced name");
}

#[test]
fn a_renamed_file_is_the_old_or_the_new_one_until_its_folder_is_synced() {
    let Some(bench) = Bench::new() else { return };
    for name in ["f", "f.new"] {
        let file = bench.file(name, 1);
        file.write_all_at(name.as_bytes(), 0).expect("written");
        file.sync_all().expect("synced");
    }
    fs::rename(bench.path("f.new"), bench.path("f")).expect("renamed");
    let before = bench.mounted.tree();
    bench.sync_names();
    let after = bench.end();
    let lengths = |tree: &FaultFsTree| -> BTreeSet<(bool, Vec<u8>)> {
        let look = |seed| {
            let left = tree.draw(seed);
            (bytes(&left, "f.new").is_some(), bytes(&left, "f").expect("there")[..5].to_vec())
        };
        (0..DRAWS).map(look).collect()
    };
    let (old, new) = ((true, b"f\0\0\0\0".to_vec()), (false, b"f.new".to_vec()));
    assert_eq!(lengths(&before), BTreeSet::from([old, new.clone()]));
    assert_eq!(lengths(&after), BTreeSet::from([new]));
}

#[test]
fn a_removed_file_may_come_back_until_its_folder_is_synced() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("f", 1));
    fs::remove_file(bench.path("f")).expect("removed");
    let before = bench.mounted.tree();
    bench.sync_names();
    let there = |tree: &FaultFsTree| {
        (0..DRAWS).filter(|seed| bytes(&tree.draw(*seed), "f").is_some()).count()
    };
    let count = there(&before) as u64;
    assert!(count > 0 && count < DRAWS);
    assert_eq!(there(&bench.end()), 0);
}

#[test]
fn holes_are_found_made_and_filled() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("f", 0);
    file.set_len(16384).expect("sized");
    file.write_all_at(&[1; 4096], 8192).expect("written");
    let seek = |from| rustix::fs::seek(&file, from).map(|at| at as i64).unwrap_or(-1);
    use rustix::fs::SeekFrom::{Data, Hole};
    assert_eq!([seek(Data(0)), seek(Hole(8192)), seek(Data(12288))], [8192, 12288, -1]);
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, mode, 8192, 4096).expect("punched");
    assert_eq!(seek(Data(0)), -1);
    rustix::fs::fallocate(&file, mode, 16384, 4096).expect("punched behind the end");
    assert_eq!(file.metadata().expect("there").len(), 16384);
}

#[test]
fn an_ignored_sync_makes_nothing_stable() {
    let ignores: Honour = Arc::new(|sync| sync.path != "/f");
    let Some(bench) = Bench::with(FaultFsTree::new(), ignores) else { return };
    let file = bench.file("f", 1);
    file.write_all_at(&[1; 512], 0).expect("written");
    file.sync_all().expect("answered with success");
    drop(file);
    let found = outcomes(&bench.end(), "f");
    assert!(found.contains(&vec![]) && found.contains(&vec![1]), "{found:?}");
}

#[test]
fn the_power_fails_at_the_chosen_operation_and_its_write_is_not_confirmed() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("f", 1));
    let machines = vec![0];
    let ending = MachineEnding::Power { lag: Duration::from_millis(1) };
    bench.supply.arm(Cut { operation: 20, machines, ending });
    let mut writer = bench.writer();
    bench.supply.wait_off(0).expect("it fails");
    assert_eq!(bench.supply.phase(0), Phase::Off);
    let ended = writer.ended(Duration::from_secs(10)).expect("waited");
    assert!(ended.is_some_and(|status| !status.success()), "a killed process ends");
    let refused = fs::write(bench.path("g"), "after the cut").expect_err("no power");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    drop(writer);
    assert!(bytes(&bench.end(), "f").is_some());
}

#[test]
fn a_process_that_is_named_after_the_power_failed_is_killed() {
    let supply = Supply::new(1);
    supply.arm(Cut {
        operation: 1,
        machines: vec![0],
        ending: MachineEnding::Power { lag: Duration::ZERO },
    });
    supply.cut_now();
    supply.wait_off(0).expect("it fails");
    let mut late = program::start(Command::new("sleep").arg("60")).expect("started");
    supply.runs(0, pid(&late)).expect("it lives");
    let ended = late.ended(Duration::from_secs(10)).expect("waited");
    assert!(ended.is_some_and(|status| !status.success()), "a killed process ends");
}

#[test]
fn a_kill_leaves_all_written_data_and_the_disk_stays_usable() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("f", 0));
    bench.supply.arm(Cut { operation: 20, machines: vec![0], ending: MachineEnding::Kill });
    let mut writer = bench.writer();
    bench.supply.wait_off(0).expect("it is killed");
    let ended = writer.ended(Duration::from_secs(10)).expect("waited");
    assert!(ended.is_some_and(|status| !status.success()), "a killed process ends");
    let written = fs::read_to_string(bench.path("f")).expect("the disk has power");
    assert!(written.starts_with("1\n2\n"), "{written}");
    fs::write(bench.path("g"), "after the kill").expect("the disk has power");
    // A power cut after the kill can still lose the unsynced writes of the killed process.
    assert!(outcomes(&bench.end(), "f").len() > 1);
}

#[test]
fn the_same_operations_and_the_same_seed_leave_the_same() {
    let Some(bench) = Bench::new() else { return };
    let mut file = bench.file("f", 4);
    for byte in 1..20 {
        file.write_all(&[byte; 700]).expect("written");
    }
    drop(file);
    let tree = bench.end();
    let left = |seed| bytes(&tree.draw(seed), "f");
    assert!((0..20).all(|seed| left(seed) == left(seed)));
    assert!((1..20).any(|seed| left(seed) != left(0)));
}

#[test]
fn the_files_left_by_a_power_cut_can_be_mounted_again() {
    let Some(bench) = Bench::new() else { return };
    drop(bench.file("f", 1));
    fs::create_dir(bench.path("d")).expect("made");
    bench.sync_names();
    fs::write(bench.path("d/g"), "bytes").expect("written");
    let Bench { mounted, supply, folder } = bench;
    let left = mounted.unmount().expect("unmounted").draw(1);
    let again = Mounted::mount(left, folder.path(), &supply, 0, honest()).expect("mounted");
    assert_eq!(fs::read(folder.path().join("f")).expect("there"), [0; 512]);
    assert!(fs::metadata(folder.path().join("d")).expect("there").is_dir());
    drop(again);
}

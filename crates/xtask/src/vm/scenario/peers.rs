//! Runs PostMark on alternatives to a gateway: the kernel's own initiator and target, and its
//! write-back caches `dm-writecache` and bcache, all over the same far volume.
//!
//! The machine is emulated, so compare these times only with each other, and only over a link whose
//! delay is much longer than a system call.

use anyhow::{Context, Result, ensure};
use rig::destage;
use rig::node::{RelayProcess, ServeProcess};
use rig::tgt;

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::scenario::lio;
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioFigure, VmScenarioStage, file, settings};

const NODE: &str = "iqn.2026-11.forebay.vm:far";
const GATEWAY: &str = "iqn.2026-11.forebay.vm:near";

/// Delay of the link in each direction, in milliseconds; the middle value of the papers' tables.
const DELAY_MS: f64 = 4.0;

/// Options of a small PostMark. It is small because every write is synchronous: without a cache a
/// transaction takes about 0.1 s here.
const POSTMARK: &str =
    "set number 20\nset transactions 60\nset size 500 9770\nset read 4096\nset write 4096";
const TRANSACTIONS: f64 = 60.0;

/// Time limit of a run: several times as long as PostMark takes over the link without a cache.
const RUN: std::time::Duration = std::time::Duration::from_secs(120);

/// Time limit for destaging some megabytes of dirty data.
const DRAIN_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Script that makes the cache device in memory, which is the fastest device of the machine. The kernel's caches are
/// thus measured at their best: a real cache device must survive a power cut and is slower than memory.
const FAST: &str = "\
modprobe loop
truncate -s 96M /tmp/fast.img
fast=$(losetup -f --show /tmp/fast.img)";

/// Shell functions. `postmark_on DISK` makes a file system, runs PostMark, writes a file to
/// compare, and prints `took MICROSECONDS`, the time of PostMark alone. `kept_on DISK` checks the
/// file system and compares that file.
const ON_DISK: &str = "\
postmark_on() {
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $1
    mount -o sync,dirsync $1 /mnt/a
    printf 'set location /mnt/a\\n%s\\nrun\\nquit\\n' \"$POSTMARK\" >/tmp/postmark.in
    local began=${EPOCHREALTIME/./}
    postmark /tmp/postmark.in >/tmp/postmark.out
    echo took $((${EPOCHREALTIME/./} - began))
    grep -q 'per second' /tmp/postmark.out
    ! grep -q Error /tmp/postmark.out
    head -c 262144 /dev/urandom >/mnt/a/kept
    md5sum </mnt/a/kept >/tmp/kept
    umount /mnt/a
}
kept_on() {
    e2fsck -f -n $1
    mount -o ro $1 /mnt/b
    md5sum </mnt/b/kept | cmp - /tmp/kept
    umount /mnt/b
}";

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("node", &settings(NODE, &[0], &file("far.img", 128)))?;
    let line = RelayProcess::start(stage.program, node.portal(), DELAY_MS)?;
    let mut guest = stage.boot(Hardware::default())?;
    guest.run("start the initiator", SHORT, &format!("start_initiator {INITIATOR}"))?;
    let far = format!("{NODE} {}:{}", HOSTS[0], line.address().port());
    guest.run("log in to the node", SHORT, &format!("record {far}\nlogin {far}"))?;
    let disk = format!("disk=$(disk {far})");

    let plain = format!("{disk}\npostmark_on $disk\nkept_on $disk");
    measure(stage, &mut guest, "kernel initiator, Forebay node", &plain)?;

    let writecache = format!(
        "{disk}\n{FAST}\nmodprobe dm_writecache\n\
         dmsetup create cached --table \"0 $(blockdev --getsz $disk) writecache s $disk $fast 4096 0\"\n\
         postmark_on /dev/mapper/cached\ndmsetup message cached 0 flush\ndmsetup remove cached\n\
         losetup -d $fast\nkept_on $disk"
    );
    measure(stage, &mut guest, "dm-writecache over the kernel initiator", &writecache)?;

    let bcache = format!(
        "{disk}\n{FAST}\nmodprobe bcache\nwipefs -q -a $disk\n\
         make-bcache --writeback --wipe-bcache --bucket 64k -C $fast -B $disk >/dev/null\n\
         for one in $fast $disk; do echo $one >/sys/fs/bcache/register_quiet; done\n\
         wait_for 10 'bcache' test -b /dev/bcache0\necho writeback >/sys/block/bcache0/bcache/cache_mode\n\
         postmark_on /dev/bcache0\nkept_on /dev/bcache0\n\
         echo 1 >/sys/block/bcache0/bcache/detach\n\
         detached() {{ grep -q 'no cache' /sys/block/bcache0/bcache/state; }}\n\
         wait_for 60 'what is dirty' detached\nkept_on /dev/bcache0\n\
         echo 1 >/sys/block/bcache0/bcache/stop\ngone() {{ [ ! -e /dev/bcache0 ]; }}\n\
         wait_for 20 'bcache to stop' gone\nwipefs -q -a $disk"
    );
    measure(stage, &mut guest, "bcache over the kernel initiator", &bcache)?;
    guest.run("log out", SHORT, &format!("logout {far}\nno_io_error"))?;

    gateway(stage, &mut guest, &line)?;
    drop(line);
    node.stop()?;
    kernels_target(stage, &mut guest)?;
    stage.held(
        "after each run the far volume has the file that was written, in a clean file system",
    );
    Ok(())
}

fn gateway(stage: &mut VmScenarioStage<'_>, guest: &mut Guest, line: &RelayProcess) -> Result<()> {
    let stack = format!(
        "{{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }}, {{ cache = {{ log = \"log\", \
         log_size = \"128MiB\", nvram = \"nvram\", dram = \"16MiB\", report = \"after-complete\" }} }}",
        line.address()
    );
    let near = stage.serve("near", &settings(GATEWAY, &[0], &stack))?;
    on_unit(stage, guest, &near, "kernel initiator, Forebay gateway and node")?;
    destage::drained(&near, DRAIN_LIMIT)?;
    near.stop()?;
    Ok(())
}

fn on_unit(
    stage: &mut VmScenarioStage<'_>,
    guest: &mut Guest,
    near: &ServeProcess,
    name: &str,
) -> Result<()> {
    let unit = format!("{GATEWAY} {}:{}", HOSTS[0], near.portal().port());
    let script = format!(
        "record {unit}\nlogin {unit}\ndisk=$(disk {unit})\npostmark_on $disk\nkept_on $disk\nlogout {unit}"
    );
    measure(stage, guest, name, &script)
}

/// Measures with the kernel's own target as the far volume. The target runs in a second machine.
fn kernels_target(stage: &mut VmScenarioStage<'_>, guest: &mut Guest) -> Result<()> {
    let at = tgt::free_port()?;
    let mut far = stage.boot(Hardware { forwarded: Some(at.port()), ..Hardware::default() })?;
    far.run("set the kernel's target up", SHORT, &lio::script(NODE))?;
    let line = RelayProcess::start(stage.program, at, DELAY_MS)?;
    let unit = format!("{NODE} {}:{}", HOSTS[0], line.address().port());
    let script = format!(
        "record {unit}\nlogin {unit}\ndisk=$(disk {unit})\npostmark_on $disk\nkept_on $disk\nlogout {unit}\n\
         no_io_error"
    );
    measure(stage, guest, "kernel initiator, kernel target (LIO)", &script)
}

/// Runs PostMark and records the number of transactions per second.
fn measure(
    stage: &mut VmScenarioStage<'_>,
    guest: &mut Guest,
    name: &str,
    script: &str,
) -> Result<()> {
    let script = format!("POSTMARK='{POSTMARK}'\n{ON_DISK}\n{script}");
    let said = guest.run(name, RUN + LONG, &script)?;
    let took = said.lines().find_map(|line| line.strip_prefix("took ")).context("no time")?;
    let seconds = took.trim().parse::<f64>()? / 1e6;
    ensure!(seconds > 0.0, "PostMark took no time");
    stage.figures.push(VmScenarioFigure {
        what: "PostMark, 20 files, 60 transactions, sync,dirsync, 4 ms one way",
        name: name.to_owned(),
        unit: "transactions/s",
        value: TRANSACTIONS / seconds,
    });
    Ok(())
}

//! Discard and growth: the host frees blocks that a file system discards, and the guest can use a
//! unit that has grown without a logout.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};
use rig::node::ServeProcess;

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, VmScenarioStage, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:space";

/// Size of the unit in bytes, before it grows to [`LARGE`].
const SMALL: u64 = 192 << 20;
const LARGE: u64 = 320 << 20;

/// Number of bytes that the guest writes and deletes.
const FILES: u64 = 48 << 20;

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let backing = stage.folder.join("unit.img");
    fs::File::create(&backing)?.set_len(SMALL)?;
    let node =
        stage.serve("target", &settings(TARGET, &[0], "{ file = { path = \"unit.img\" } }"))?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{TARGET} {}:{}", HOSTS[0], node.portal().port());
    guest.run(
        "log in, make a file system, write 48 MiB",
        LONG,
        &format!(
            "start_initiator {INITIATOR}\nrecord {unit}\nlogin {unit}\nmkfs.ext4 -q $(disk {unit})\n\
             mount $(disk {unit}) /mnt/a\nhead -c {FILES} /dev/urandom >/mnt/a/gone\nsync"
        ),
    )?;
    let full = held_bytes(&backing)?;
    guest.run("delete it, trim", LONG, "rm /mnt/a/gone\nsync\nfstrim -v /mnt/a")?;
    let trimmed = held_bytes(&backing)?;
    let back = full.saturating_sub(trimmed);
    ensure!(
        back >= FILES - (1 << 20),
        "of {FILES} bytes deleted and trimmed, the host has freed {back} ({full} before, {trimmed} after)"
    );
    stage.held(format!("fstrim gives {} MiB of {} back to the host", back >> 20, FILES >> 20));
    grow(stage, &node, &mut guest, &unit)?;
    node.stop()?;
    Ok(())
}

fn grow(
    stage: &mut VmScenarioStage<'_>,
    node: &ServeProcess,
    guest: &mut Guest,
    unit: &str,
) -> Result<()> {
    let asked = node.ask(&["resize", TARGET, "0", &format!("{}MiB", LARGE >> 20)])?;
    ensure!(asked.success(), "forebay resize: {}", asked.tail(5));
    guest.run(
        "grow",
        LONG,
        &format!(
            "disk=$(disk {unit})\n\
             # The kernel hears of it with the answer to its next command.\n\
             echo before >/mnt/a/before\nsync\n\
             heard() {{ sg_turs $disk || true; dmesg | grep -q 'Capacity data has changed'; }}\n\
             wait_for 20 'the unit attention' heard\n\
             echo 1 >/sys/block/${{disk#/dev/}}/device/rescan\n\
             [ $(blockdev --getsize64 $disk) -eq {LARGE} ]\nresize2fs $disk\n\
             head -c $((200 << 20)) /dev/zero >/mnt/a/large\nsync\n\
             grep -q before /mnt/a/before\numount /mnt/a\ne2fsck -f -n $disk\nno_io_error"
        ),
    )?;
    stage.held("a unit grows while in use: unit attention 2A/09, rescan, resize2fs");
    Ok(())
}

/// Returns the number of bytes that a file occupies on the host's disk, without its holes.
fn held_bytes(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.blocks() * 512)
}

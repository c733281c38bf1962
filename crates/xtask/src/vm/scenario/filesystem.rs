//! The simplest scenario: a file system keeps its files from one login to the next.

use anyhow::Result;

use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:filesystem";

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("target", &settings(TARGET, &[0], &file("unit.img", 256)))?;
    let mut guest = stage.boot(Hardware::default())?;
    let portal = format!("{}:{}", HOSTS[0], node.portal().port());
    let unit = format!("{TARGET} {portal}");
    guest.run(
        "log in",
        SHORT,
        &format!("start_initiator {INITIATOR}\nrecord {unit}\nlogin {unit}"),
    )?;
    guest.run(
        "make a file system and write 40 files",
        LONG,
        &format!(
            "mkfs.ext4 -q $(disk {unit})\nmount $(disk {unit}) /mnt/a\nstart_load /mnt/a 60\n\
             wait_for 60 '40 files' wrote_more_than 39\nstop_load\nsync\numount /mnt/a"
        ),
    )?;
    guest.run(
        "log out and in, check, compare",
        LONG,
        &format!(
            "logout {unit}\nlogin {unit}\ne2fsck -f -n $(disk {unit})\nmount $(disk {unit}) /mnt/a\n\
             verify_load /mnt/a\numount /mnt/a\nlogout {unit}\nno_io_error"
        ),
    )?;
    stage.held("an ext4 file system survives logout and login, e2fsck finds it clean");
    node.stop()?;
    Ok(())
}

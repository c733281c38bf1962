//! The network fails for a while: the kernel must wait, log in again, and lose nothing.

use std::time::Duration;

use anyhow::Result;

use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:cut";

/// Duration of the network failure. It is longer than the kernel waits for a connection without answers (a ping every 5
/// s, 5 s for its answer). After that, the kernel waits for a new connection before it fails commands; the cut is
/// shorter than this wait.
const AWAY: Duration = Duration::from_secs(20);

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("target", &settings(TARGET, &[0], &file("unit.img", 256)))?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{TARGET} {}:{}", HOSTS[0], node.portal().port());
    guest.run(
        "log in, make a file system, begin to write",
        LONG,
        &format!(
            "start_initiator {INITIATOR}\n\
             record {unit} node.session.timeo.replacement_timeout=120\nlogin {unit}\n\
             mkfs.ext4 -q $(disk {unit})\nmount $(disk {unit}) /mnt/a\nstart_load /mnt/a\n\
             wait_for 30 '3 files' wrote_more_than 2"
        ),
    )?;
    guest.pull(0)?;
    let away = AWAY.as_secs();
    let stood = guest.run(
        "the network is cut",
        AWAY + SHORT,
        &format!("sleep {away}\nwritten\n[ ! -e /run/load/failed ]"),
    )?;
    guest.plug(0)?;
    let report = guest.run(
        "continue to write, compare",
        LONG,
        &format!(
            "wait_for 60 'writes to go on' wrote_more_than $(({stood} + 3))\nstop_load\n\
             umount /mnt/a\ne2fsck -f -n $(disk {unit}) >&2\nmount $(disk {unit}) /mnt/a\n\
             verify_load /mnt/a >&2\numount /mnt/a\nlogout {unit} >&2\nno_io_error >&2\n\
             echo longest $(cat /run/load/longest)"
        ),
    )?;
    let longest = report.lines().find_map(|line| line.strip_prefix("longest "));
    stage.held(format!(
        "no error through a cut of {away} s under load; the longest write took {} ms",
        longest.unwrap_or("?")
    ));
    node.stop()?;
    Ok(())
}

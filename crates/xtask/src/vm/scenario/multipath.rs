//! Tests two paths to the same unit. Each path fails once under load and is restored.

use anyhow::{Result, ensure};

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:multipath";

/// Settings of open-iscsi: it notices a silent path after 4 s, and 3 s later multipath uses the
/// other path.
const PATIENCE: &str = "node.session.timeo.replacement_timeout=3 \
    node.conn[0].timeo.noop_out_interval=2 node.conn[0].timeo.noop_out_timeout=2";

/// Settings of multipath: both paths are in one group, so that both are used. Requests are queued
/// while no path works.
const CONFIGURATION: &str = "defaults {\n    find_multipaths no\n    user_friendly_names yes\n    \
    path_grouping_policy multibus\n    no_path_retry queue\n    polling_interval 1\n}\n\
    blacklist {\n    devnode \"^(vd|loop|ram)\"\n}\n";

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("target", &settings(TARGET, &[0, 0], &file("unit.img", 256)))?;
    let mut guest = stage.boot(Hardware { second_card: true, ..Hardware::default() })?;
    let ports = node.ports();
    let units: Vec<String> =
        HOSTS.iter().zip(&ports).map(|(host, port)| format!("{TARGET} {host}:{port}")).collect();
    let [first, second] = &units[..] else { anyhow::bail!("two portals are needed") };
    guest.run(
        "log in twice, make a file system, begin to write",
        LONG,
        &format!(
            "cat >/etc/multipath.conf <<'@@'\n{CONFIGURATION}@@\n\
             modprobe -a dm_multipath dm_round_robin dm_service_time\nmultipathd\n\
             start_initiator {INITIATOR}\n\
             record {first} {PATIENCE}\nrecord {second} {PATIENCE}\nlogin {first}\nlogin {second}\n\
             wait_for 30 'the map' test -b /dev/mapper/mpatha\n\
             both() {{ [ $(multipath -ll mpatha | grep -c 'active ready running') -eq 2 ]; }}\n\
             wait_for 30 'both paths' both\n\
             mkfs.ext4 -q /dev/mapper/mpatha\nmount /dev/mapper/mpatha /mnt/a\nstart_load /mnt/a\n\
             wait_for 30 '3 files' wrote_more_than 2"
        ),
    )?;
    let mut longest = vec![];
    for card in [1, 0] {
        longest.push(cut(&mut guest, card)?);
    }
    guest.run(
        "stop, check, compare",
        LONG,
        "stop_load\numount /mnt/a\ne2fsck -f -n /dev/mapper/mpatha\nmount /dev/mapper/mpatha /mnt/a\n\
         verify_load /mnt/a\numount /mnt/a\n! dmesg | grep -E 'Buffer I/O|EXT4-fs (error|warning)'",
    )?;
    stage.held(format!(
        "either of two paths is cut under load: no error, longest writes {} ms",
        longest.join(" and ")
    ));
    node.stop()?;
    Ok(())
}

/// Pulls one cable until writes continue on the other path, plugs it in, and waits for both paths.
/// Returns the time of the longest write in milliseconds.
fn cut(guest: &mut Guest, card: usize) -> Result<String> {
    guest.pull(card)?;
    let report = guest.run(
        "continue on the other path",
        LONG,
        "echo 0 >/run/load/longest\n\
         one() { [ $(multipath -ll mpatha | grep -c 'failed') -eq 1 ]; }\n\
         wait_for 60 'a failed path' one\n\
         count=$(written)\nwait_for 60 'writes to go on' wrote_more_than $((count + 3))\n\
         [ ! -e /run/load/failed ]\necho longest $(cat /run/load/longest)",
    )?;
    guest.plug(card)?;
    guest.run(
        "both paths again",
        LONG,
        "both() { [ $(multipath -ll mpatha | grep -c 'active ready running') -eq 2 ]; }\n\
         wait_for 80 'both paths' both",
    )?;
    let longest = report.lines().find_map(|line| line.strip_prefix("longest "));
    ensure!(longest.is_some(), "no longest time in {report}");
    Ok(longest.unwrap_or_default().to_owned())
}

//! All parts together: a file system on a gateway with a far node. The gateway is killed and
//! started again.

use std::time::Duration;

use anyhow::Result;
use rig::destage;
use rig::node::RelayProcess;
use rig::tgt;

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const NODE: &str = "iqn.2026-11.forebay.vm:node";
const GATEWAY: &str = "iqn.2026-11.forebay.vm:gateway";

/// Delay of the link in each direction, in milliseconds. Such a delay is typical of links between neighbouring
/// countries.
const DELAY_MS: f64 = 10.0;

/// Time limit for destaging the last dirty data over the link.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("node", &settings(NODE, &[0], &file("node.img", 128)))?;
    let line = RelayProcess::start(stage.program, node.portal(), DELAY_MS)?;
    // Choose the gateway's port here: the gateway must listen on the same port after the restart,
    // since the machine logs in to it.
    let port = tgt::free_port()?.port();
    let stack = format!(
        "{{ remote = {{ url = \"iscsi://{}/{NODE}/0\" }} }}, \
         {{ cache = {{ log = \"log\", log_size = \"64MiB\", nvram = \"nvram\", dram = \"16MiB\" }} }}",
        line.address()
    );
    let gateway_settings = settings(GATEWAY, &[port], &stack);
    let mut gateway = stage.serve("gateway", &gateway_settings)?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{GATEWAY} {}:{port}", HOSTS[0]);
    guest.run(
        "log in, make a file system, begin to write",
        LONG,
        &format!(
            "start_initiator {INITIATOR}\nrecord {unit}\nlogin {unit}\nmkfs.ext4 -q $(disk {unit})\n\
             mount $(disk {unit}) /mnt/a\nstart_load /mnt/a 30\nwait_for 40 '5 files' wrote_more_than 4"
        ),
    )?;
    gateway.kill()?;
    println!("    gateway killed");
    drop(gateway);
    guest.run("without a gateway", SHORT, "sleep 3\n[ ! -e /run/load/failed ]")?;
    let gateway = stage.serve("gateway", &gateway_settings)?;
    println!("    gateway started again");
    guest.run(
        "continue to write, check, compare",
        LONG,
        &format!(
            "count=$(written)\nwait_for 60 'writes to go on' wrote_more_than $((count + 5))\n\
             stop_load\numount /mnt/a\ne2fsck -f -n $(disk {unit})\nmount $(disk {unit}) /mnt/a\n\
             verify_load /mnt/a\numount /mnt/a\nlogout {unit}\nno_io_error"
        ),
    )?;
    stage.held("kill -9 of the gateway under load: no error, file system clean, data verified");
    destage::drained(&gateway, DRAIN_LIMIT)?;
    gateway.stop()?;
    look_behind(&mut guest, &format!("{NODE} {}:{}", HOSTS[0], node.portal().port()))?;
    stage.held("after it has drained, the node itself has the same file system and data");
    drop(line);
    node.stop()?;
    Ok(())
}

/// Checks the node's own unit, without the gateway.
fn look_behind(guest: &mut Guest, unit: &str) -> Result<()> {
    guest.run(
        "check the node itself",
        LONG,
        &format!(
            "record {unit}\nlogin {unit}\ne2fsck -f -n $(disk {unit})\n\
             mount -o ro $(disk {unit}) /mnt/b\nverify_load /mnt/b\numount /mnt/b\nlogout {unit}"
        ),
    )?;
    Ok(())
}

//! The other way round: the kernel's own target in the machine, our initiator on the host, as the
//! lower volume of a unit that is written and read there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::client::Login;
use crate::suite::pass::{self, Range};
use crate::tgt;
use crate::vm::guest::{Guest, Hardware};
use crate::vm::stage::{SHORT, Stage, settings};

const LIO: &str = "iqn.2026-11.forebay.vm:lio";
const NEAR: &str = "iqn.2026-11.forebay.vm:near";

/// Makes the target with kernel's own files: a unit of 64 MiB, open to all, four connections.
const MAKE: &str = "\
mount -t configfs configfs /sys/kernel/config 2>/dev/null || modprobe configfs
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
modprobe -a target_core_mod target_core_file iscsi_target_mod
truncate -s 64M /tmp/unit.img
store=/sys/kernel/config/target/core/fileio_0/unit
mkdir -p $store
echo fd_dev_name=/tmp/unit.img,fd_dev_size=67108864 >$store/control
echo 1 >$store/enable
group=/sys/kernel/config/target/iscsi/$NAME/tpgt_1
mkdir -p /sys/kernel/config/target/iscsi
mkdir -p $group/np/0.0.0.0:3260 $group/lun/lun_0
ln -s $store $group/lun/lun_0/unit
echo 0 >$group/attrib/authentication
echo 1 >$group/attrib/generate_node_acls
echo 1 >$group/attrib/cache_dynamic_acls
echo 0 >$group/attrib/demo_mode_write_protect
echo 4 >$group/param/MaxConnections
echo 1 >$group/enable";

/// As many as the target above allows.
const CONNECTIONS: u16 = 4;

/// Waits for as many connections to port 3260 (0CBCh), as the machine's kernel lists them: the session
/// is up, and used, before all of them are.
const COUNT: &str = "\
count() { grep -c -E '^ *[0-9]+: [0-9A-F]+:0CBC [0-9A-F]+:[0-9A-F]+ 01 ' /proc/net/tcp || true; }
all() { [ $(count) -eq $CONNECTIONS ]; }
wait_for 20 \"$CONNECTIONS connections\" all";

/// 16 MiB in blocks of 16 KiB, written over and over.
const WRITTEN: Range = Range { each: 32, commands: 1024, depth: 32 };

/// Long enough for a login to fail, short enough for three of them.
const AWAY: Duration = Duration::from_secs(5);

const CUTS: u64 = 2;

/// Plays it.
pub fn play(stage: &mut Stage<'_>) -> Result<()> {
    let port = tgt::free_port()?.port();
    let mut guest = stage.boot(Hardware { forwarded: Some(port), ..Hardware::default() })?;
    guest.run("set the kernel's target up", SHORT, &format!("NAME={LIO}\n{MAKE}"))?;
    let remote = |more: &str| {
        let stack = format!(
            "{{ remote = {{ url = \"iscsi://127.0.0.1:{port}/{LIO}/0\", connect_timeout = \"3s\", \
             login_timeout = \"3s\", command_timeout = \"10s\", ping_interval = \"1s\", \
             give_up_after = \"60s\"{more} }} }}"
        );
        settings(NEAR, &[0], &stack)
    };
    several_connections(stage, &mut guest, &remote(&format!(", connections = {CONNECTIONS}")))?;
    let near = stage.serve("near", &remote(""))?;
    let login = near.login(NEAR);
    let done = AtomicBool::new(false);
    let passes = thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&done, &login));
        let cut = cuts(&mut guest);
        done.store(true, Ordering::Relaxed);
        let passes = writer.join().expect("the writer does not panic");
        cut.and(passes)
    })?;
    let wrong = pass::read(&login, WRITTEN, passes)?;
    ensure!(wrong == 0, "{wrong} of {} reads are wrong", WRITTEN.commands);
    stage.held(format!(
        "our initiator writes through {CUTS} cuts of {} s: no error, data verified",
        AWAY.as_secs()
    ));
    near.stop()?;
    Ok(())
}

/// One session of several connections, without cuts: after some of a session that has several, this
/// kernel's target (Linux 6.1) follows a list entry that is gone, and panics.
fn several_connections(stage: &mut Stage<'_>, guest: &mut Guest, settings: &str) -> Result<()> {
    let Some(near) = stage.serve_if_known("several", settings, "connections")? else {
        stage.skip("several connections", "our initiator has no setting for them");
        return Ok(());
    };
    let script = format!("CONNECTIONS={CONNECTIONS}\n{COUNT}");
    guest.run("count connections", SHORT, &script)?;
    let login = near.login(NEAR);
    pass::write(&login, WRITTEN, 1)?;
    let wrong = pass::read(&login, WRITTEN, 1)?;
    ensure!(wrong == 0, "{wrong} of {} reads are wrong", WRITTEN.commands);
    stage.held(format!("a session of {CONNECTIONS} connections (MaxConnections), data verified"));
    near.stop()?;
    stage.skip(
        "cuts of a session of several connections",
        "Linux 6.1's own target panics after some of them",
    );
    Ok(())
}

/// Writes everything again and again, each time as a new version; says which was the last.
fn write_until(done: &AtomicBool, login: &Login) -> Result<u64> {
    let mut version = 0;
    while version == 0 || !done.load(Ordering::Relaxed) {
        version += 1;
        pass::write(login, WRITTEN, version).with_context(|| format!("pass {version}"))?;
    }
    Ok(version)
}

fn cuts(guest: &mut Guest) -> Result<()> {
    for _ in 0..CUTS {
        guest.run("under load", SHORT, "sleep 2")?;
        guest.pull(0)?;
        guest.run("the network is away", AWAY + SHORT, &format!("sleep {}", AWAY.as_secs()))?;
        guest.plug(0)?;
    }
    Ok(())
}

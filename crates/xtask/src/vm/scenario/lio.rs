//! The kernel's own target (LIO) in the machine, and our program on the host as its initiator: the
//! target's unit is the lower volume of a unit of our program, and the scenario reads and writes
//! there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rawclient::ClientLogin;
use rig::node::ServeProcess;
use rig::tgt;

use crate::suite::pass::{self, StampedPass};
use crate::vm::guest::{Guest, Hardware};
use crate::vm::stage::{INITIATOR, SHORT, VmScenarioStage, settings};

const LIO: &str = "iqn.2026-11.forebay.vm:lio";
const NEAR: &str = "iqn.2026-11.forebay.vm:near";

/// Script that makes the target through configfs: a unit of 64 MiB, for one initiator, with four
/// connections. The target drops a connection that does not answer a ping within 6 s; 3 s and 3 s
/// are the smallest values that the kernel accepts.
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
echo 4 >$group/param/MaxConnections
mkdir -p $group/acls/$INITIATOR/lun_0
ln -s $group/lun/lun_0 $group/acls/$INITIATOR/lun_0/unit
echo 0 >$group/acls/$INITIATOR/lun_0/write_protect
echo 3 >$group/acls/$INITIATOR/attrib/nopin_timeout
echo 3 >$group/acls/$INITIATOR/attrib/nopin_response_timeout
echo 1 >$group/enable";

/// Script that makes the target keep silent connections for 45 s, which is its default.
const PATIENT: &str = "\
attributes=/sys/kernel/config/target/iscsi/$NAME/tpgt_1/acls/$INITIATOR/attrib
echo 15 >$attributes/nopin_timeout
echo 30 >$attributes/nopin_response_timeout";

/// Number of connections that [`MAKE`] allows a session.
const CONNECTIONS: u16 = 4;

/// Script that waits until the machine's kernel lists this many connections to port 3260 (0CBCh). A
/// session is usable before it has all of its connections.
const COUNT: &str = "\
count() { grep -c -E '^ *[0-9]+: [0-9A-F]+:0CBC [0-9A-F]+:[0-9A-F]+ 01 ' /proc/net/tcp || true; }
all() { [ $(count) -eq $CONNECTIONS ]; }
wait_for 20 \"$CONNECTIONS connections\" all";

/// The range that is written again and again: 16 MiB in commands of 16 KiB.
const WRITTEN: StampedPass = StampedPass { each: 32, commands: 1024, depth: 32 };

/// Duration of the link failure with one connection, which is long enough for a login to fail.
const SHORT_CUT: Duration = Duration::from_secs(5);

/// Duration of a cut with several connections: until the target itself has dropped all of them.
const LONG_CUT: Duration = Duration::from_secs(12);

const CUTS: u64 = 2;

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let port = tgt::free_port()?.port();
    let mut guest = stage.boot(Hardware { forwarded: Some(port), ..Hardware::default() })?;
    guest.run("set the kernel's target up", SHORT, &script(LIO))?;
    through_cuts(stage, &mut guest, port, 1, SHORT_CUT)?;
    through_cuts(stage, &mut guest, port, CONNECTIONS, LONG_CUT)?;
    what_it_does_not_survive(stage, &mut guest, port)
}

/// Returns a script that creates a target named `name` in the kernel (LIO).
pub fn script(name: &str) -> String {
    format!("NAME={name}\nINITIATOR={INITIATOR}\n{MAKE}")
}

/// Writes in a session with this many connections while the network is cut several times, and reads
/// everything back.
fn through_cuts(
    stage: &mut VmScenarioStage<'_>,
    guest: &mut Guest,
    port: u16,
    connections: u16,
    cut: Duration,
) -> Result<()> {
    let near = serve(stage, &format!("near{connections}"), port, connections)?;
    let count = format!("CONNECTIONS={connections}\n{COUNT}");
    guest.run(&format!("connections: {connections}"), SHORT, &count)?;
    let login = ClientLogin::new(near.portal(), NEAR, 0);
    let passes = write_meanwhile(&login, || (0..CUTS).try_for_each(|_| pull(guest, cut)))?;
    guest.run(&format!("connections again: {connections}"), SHORT, &count)?;
    let wrong = pass::read(&login, WRITTEN, passes)?;
    ensure!(wrong == 0, "{wrong} of {} reads are wrong", WRITTEN.commands);
    stage.held(format!(
        "a session of {connections} (MaxConnections {CONNECTIONS}): our initiator writes through \
         {CUTS} cuts of {} s, no error, data verified",
        cut.as_secs()
    ));
    near.stop()?;
    Ok(())
}

/// Logs in again and replaces a session of several connections while the target still considers the old connections
/// open. Linux 6.1 panics: it walks its list of the connections while they are removed. Runs only with `--all`.
fn what_it_does_not_survive(
    stage: &mut VmScenarioStage<'_>,
    guest: &mut Guest,
    port: u16,
) -> Result<()> {
    let what = "a login in place of a session of several connections that the target still has";
    let why = "Linux 6.1's own target may panic in iscsit_inc_conn_usage_count, called by \
               iscsit_stop_session, called by iscsi_check_for_session_reinstatement: \
               connections leave the list while it is walked; `--scenario lio --all` shows it";
    if !stage.all {
        stage.leave_out(what, why);
        return Ok(());
    }
    let script = format!("NAME={LIO}\nINITIATOR={INITIATOR}\n{PATIENT}");
    guest.run("have the target wait as long as it does by default", SHORT, &script)?;
    let near = serve(stage, "short", port, CONNECTIONS)?;
    let login = ClientLogin::new(near.portal(), NEAR, 0);
    let mut survived = Ok(());
    // If the target has panicked, the writes fail after a while. That is no error here.
    let _ = write_meanwhile(&login, || {
        survived = (0..MOST_SHORT_CUTS).try_for_each(|_| pull(guest, SHORT_CUT));
        Ok(())
    });
    near.stop()?;
    let Err(gone) = survived else {
        stage.held(format!("{what}, {MOST_SHORT_CUTS} times"));
        return Ok(());
    };
    let console = stage.consoles();
    let is_known = console.contains("iscsit_stop_session") && console.contains("Kernel panic");
    ensure!(is_known, "{gone:#}, without the known panic");
    println!("{console}");
    stage.leave_out(what, why);
    Ok(())
}

/// Number of cuts after which the target is considered safe. A kernel with the fault panicked at the first or the
/// second cut.
const MOST_SHORT_CUTS: u64 = 4;

/// Starts our program with the machine's unit as the lower volume of its own unit.
fn serve(
    stage: &VmScenarioStage<'_>,
    name: &str,
    port: u16,
    connections: u16,
) -> Result<ServeProcess> {
    let stack = format!(
        "{{ remote = {{ url = \"iscsi://127.0.0.1:{port}/{LIO}/0\", connect_timeout = \"3s\", \
         login_timeout = \"3s\", command_timeout = \"10s\", ping_interval = \"1s\", \
         give_up_after = \"60s\", connections = {connections} }} }}"
    );
    let settings = settings(NEAR, &[0], &stack);
    stage.serve(name, &format!("initiator_name = \"{INITIATOR}\"\n{settings}"))
}

/// Writes the range again and again while `act` runs. Returns how often the whole range was
/// written.
fn write_meanwhile(login: &ClientLogin, act: impl FnOnce() -> Result<()>) -> Result<u64> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&done, login));
        let acted = act();
        done.store(true, Ordering::Relaxed);
        let passes = writer.join().expect("the writer does not panic");
        acted.and(passes)
    })
}

/// Writes the whole range again and again, each time with a new version. Returns the last version.
fn write_until(done: &AtomicBool, login: &ClientLogin) -> Result<u64> {
    let mut version = 0;
    while version == 0 || !done.load(Ordering::Relaxed) {
        version += 1;
        pass::write(login, WRITTEN, version).with_context(|| format!("pass {version}"))?;
    }
    Ok(version)
}

/// Pulls the cable of the machine for the given time.
fn pull(guest: &mut Guest, away: Duration) -> Result<()> {
    guest.run("under load", SHORT, "sleep 2")?;
    guest.pull(0)?;
    guest.run("the network is cut", away + SHORT, &format!("sleep {}", away.as_secs()))?;
    guest.plug(0)
}

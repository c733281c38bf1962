//! Tests persistent reservations as clusters use them: one of two initiators excludes the other.

use anyhow::Result;
use rig::node::ServeProcess;

use crate::vm::guest::{Guest, HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:reservations";

/// The initiator name of the machine's second session.
const SECOND: &str = "iqn.2026-11.forebay.vm:second";

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    // The ports must be the same after the restart. Each of the two initiators in the machine logs in at another port,
    // so that the machine has two different names for the disk.
    let ports = [rig::tgt::free_port()?.port(), rig::tgt::free_port()?.port()];
    let settings = settings(TARGET, &ports, &file("unit.img", 64));
    let settings = format!("state = \"state\"\n{settings}");
    let node = stage.serve("target", &settings)?;
    let mut guest = stage.boot(Hardware::default())?;
    let [first, second] = ports.map(|port| format!("{TARGET} {}:{port}", HOSTS[0]));
    guest.run(
        "log in under two names",
        SHORT,
        &format!(
            "start_initiator {INITIATOR}\nrecord {first}\nlogin {first}\n\
             iscsiadm -m iface -I second -o new\n\
             iscsiadm -m iface -I second -o update -n iface.initiatorname -v {SECOND}\n\
             IFACE=second record {second}\nlogin {second}\n\
             # Scripts find the disks under these names.\n\
             ln -s $(disk {first}) /run/a\nln -s $(disk {second}) /run/b"
        ),
    )?;
    guest.run(
        "register, reserve, shut the other out",
        LONG,
        &format!(
            "{CONFLICTS}\n\
             sg_persist --out --register --param-sark=a1 /run/a\n\
             sg_persist --out --register --param-sark=b2 --param-aptpl /run/b\n\
             sg_persist --out --register-ignore --param-sark=a1 --param-aptpl /run/a\n\
             sg_persist --in --read-keys /run/b | grep -c -E '0x(a1|b2)' | grep -x 2\n\
             sg_persist --out --reserve --param-rk=a1 --prout-type=1 /run/a\n\
             sg_persist --in --read-reservation /run/b | grep -q 'Write Exclusive'\n\
             writes /run/a\nreads /run/b\nrefused /run/b"
        ),
    )?;
    stage.held("write exclusive: the holder writes, the other only reads (RESERVATION CONFLICT)");
    let node = restart(stage, node, &settings, &mut guest)?;
    guest.run(
        "preempt, clear",
        LONG,
        &format!(
            "{CONFLICTS}\n\
             sg_persist --out --preempt --param-rk=b2 --param-sark=a1 --prout-type=5 /run/b\n\
             sg_persist --in --read-reservation /run/b | grep -q 'registrants only'\n\
             # The preempted initiator first gets a unit attention.\n\
             sg_turs /run/a || true\n\
             writes /run/b\nreads /run/a\nrefused /run/a\n\
             sg_persist --out --clear --param-rk=b2 /run/b\nsg_turs /run/a || true\nwrites /run/a"
        ),
    )?;
    stage.held("preempt takes the reservation over, clear ends it");
    node.stop()?;
    Ok(())
}

/// Stops the target and starts it again. The registrations and the reservation must survive.
fn restart(
    stage: &mut VmScenarioStage<'_>,
    node: ServeProcess,
    settings: &str,
    guest: &mut Guest,
) -> Result<ServeProcess> {
    node.stop()?;
    let node = stage.serve("target", settings)?;
    guest.run(
        "the same after a restart of the target",
        LONG,
        &format!(
            "{CONFLICTS}\n\
             wait_for 40 'the first session' reads /run/a\nwait_for 40 'the second' reads /run/b\n\
             sg_persist --in --read-full-status /run/b\n\
             sg_persist --in --read-keys /run/b | grep -c -E '0x(a1|b2)' | grep -x 2\n\
             writes /run/a\nrefused /run/b"
        ),
    )?;
    stage.held("registrations and the reservation last over a restart of the target (APTPL)");
    Ok(node)
}

/// Shell functions that test if an initiator may read and write. They use sg3-utils, since the
/// kernel would retry. The tools exit with 24 at RESERVATION CONFLICT (`sg3_utils(8)`, EXIT
/// STATUS).
const CONFLICTS: &str = "writes() { sg_write_same --lba=8 --num=8 --in=/dev/zero --xferlen=512 $1; }\n\
    reads() { sg_dd if=$1 of=/dev/null bs=512 count=8 blk_sgio=1 2>/dev/null; }\n\
    refused() { code=0; writes $1 || code=$?; [ $code -eq 24 ] || { echo \"ends with $code\"; return 1; }; }";

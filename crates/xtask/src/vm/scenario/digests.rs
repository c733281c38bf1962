//! Header and data digests in every combination: the kernel and the target must agree on them, and
//! reads must return the data that was written.

use anyhow::Result;

use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:digests";

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("target", &settings(TARGET, &[0], &file("unit.img", 64)))?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{TARGET} {}:{}", HOSTS[0], node.portal().port());
    guest.run(
        "log in, make a file system",
        SHORT,
        &format!(
            "start_initiator {INITIATOR}\nrecord {unit}\nlogin {unit}\nmkfs.ext4 -q $(disk {unit})\n\
             logout {unit}"
        ),
    )?;
    for (header, data) in [("CRC32C", "None"), ("None", "CRC32C"), ("CRC32C", "CRC32C")] {
        guest.run(
            &format!("header digest {header}, data digest {data}"),
            LONG,
            &format!(
                "record {unit} node.conn[0].iscsi.HeaderDigest={header} \
                 node.conn[0].iscsi.DataDigest={data}\nlogin {unit}\n\
                 agreed=$(iscsiadm -m session -P 2)\n\
                 echo \"$agreed\" | grep -q 'HeaderDigest: {header}'\n\
                 echo \"$agreed\" | grep -q 'DataDigest: {data}'\n\
                 mount $(disk {unit}) /mnt/a\nstart_load /mnt/a 4\n\
                 wait_for 40 '4 files' wrote_more_than 3\nstop_load\numount /mnt/a\nlogout {unit}\n\
                 login {unit}\nmount $(disk {unit}) /mnt/a\nverify_load /mnt/a\numount /mnt/a\n\
                 logout {unit}\nno_io_error"
            ),
        )?;
        stage.held(format!("HeaderDigest={header}, DataDigest={data}: agreed on, data verified"));
    }
    node.stop()?;
    Ok(())
}

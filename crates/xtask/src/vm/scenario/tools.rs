//! Sends the commands of an administrator to a disk: sg3-utils, through the kernel's own SCSI
//! stack.

use std::time::Duration;

use anyhow::{Result, ensure};
use program::ProgramResult;

use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:tools";

/// Exit status of a tool at MISCOMPARE (`sg3_utils(8)`, EXIT STATUS).
const MISCOMPARE: i32 = 14;

/// Time limit of a call. Most take a moment. SANITIZE overwrites the whole unit, and with `--wait`
/// the tool waits for that; without it, the tool asks only once a minute.
const LIMIT: Duration = Duration::from_secs(50);

/// A command of sg3_utils; `$D` stands for the disk.
struct SgToolCall {
    command: &'static str,
    /// The exit code that the tool must return.
    code: i32,
    /// A text that the tool must print.
    says: &'static str,
}

const fn says(command: &'static str, says: &'static str) -> SgToolCall {
    SgToolCall { command, code: 0, says }
}

const fn ends(command: &'static str, code: i32) -> SgToolCall {
    SgToolCall { command, code, says: "" }
}

/// The calls in the order in which they run: a call checks what an earlier one wrote. sg_dd
/// bypasses the kernel's cache (blk_sgio).
const CALLS: &[SgToolCall] = &[
    says("sg_turs $D", ""),
    says("sg_inq $D", "FOREBAY"),
    says("sg_vpd $D", "Supported VPD pages"),
    says("sg_vpd --page=sn $D", "VM-UNIT"),
    says("sg_vpd --page=di $D", "NAA"),
    says("sg_vpd --page=bl $D", "Maximum unmap LBA count"),
    says("sg_vpd --page=bdc $D", "Non-rotating medium"),
    says("sg_vpd --page=lbpv $D", "Unmap command supported (LBPU): 1"),
    says("sg_readcap --long $D", "Logical block length=512"),
    says("sg_luns $D", "Report luns"),
    says("sg_modes --all $D", "Caching"),
    says("sg_logs $D", "Supported log pages"),
    says("sg_opcodes $D", "Read(16)"),
    says("sg_requests $D", ""),
    says("sg_rtpg $D", "target port group"),
    says("sg_sync $D", ""),
    says("sg_verify --lba=0 --count=64 $D", ""),
    says("sg_dd if=/tmp/ones of=$D bs=512 blk_sgio=1 count=128 2>&1", "128+0 records out"),
    says("sg_get_lba_status --lba=0 $D", "mapped"),
    says("sg_write_same --lba=0 --num=64 --in=/tmp/ones --xferlen=512 $D", ""),
    says(
        "sg_dd if=$D of=/tmp/back bs=512 blk_sgio=1 count=64 && cmp -n 32768 /tmp/back /tmp/ones",
        "",
    ),
    says("sg_compare_and_write --lba=0 --num=1 --in=/tmp/swap --xferlen=1024 $D", ""),
    ends("sg_compare_and_write --lba=0 --num=1 --in=/tmp/swap --xferlen=1024 $D", MISCOMPARE),
    says("sg_unmap --lba=0 --num=128 $D", ""),
    says(
        "sg_dd if=$D of=/tmp/back bs=512 blk_sgio=1 count=128 && cmp -n 65536 /tmp/back /dev/zero",
        "",
    ),
    says("sg_write_same --lba=128 --num=64 --unmap --in=/dev/zero --xferlen=512 $D", ""),
    says("sg_sanitize --block --quick --wait $D", ""),
    says("sg_start --stop $D && sg_start --start $D", ""),
    says("sg_reset --device $D", ""),
];

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    let node = stage.serve("target", &settings(TARGET, &[0], &file("unit.img", 64)))?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{TARGET} {}:{}", HOSTS[0], node.portal().port());
    let disk = guest.run(
        "log in",
        SHORT,
        &format!(
            "start_initiator {INITIATOR} >&2\n\
             record {unit} >&2\nlogin {unit} >/dev/null\n\
             head -c 65536 /dev/zero | tr '\\0' '1' >/tmp/ones\n\
             {{ head -c 512 /tmp/ones && head -c 512 /dev/zero; }} >/tmp/swap\ndisk {unit}"
        ),
    )?;
    let commands: Vec<String> =
        CALLS.iter().map(|call| call.command.replace("$D", disk.trim())).collect();
    let ended = guest.each("calls of sg3-utils", LIMIT, &commands)?;
    let mut wrong = vec![];
    for (call, finished) in CALLS.iter().zip(&ended) {
        if is_right(call, finished) {
            stage.held(format!("`{}`", call.command));
        } else {
            println!("{} ({}):\n{}", call.command, finished.ending(), finished.tail(10));
            wrong.push(call.command);
        }
    }
    ensure!(wrong.is_empty(), "not as expected: {}", wrong.join("; "));
    node.stop()?;
    Ok(())
}

fn is_right(call: &SgToolCall, finished: &ProgramResult) -> bool {
    finished.code() == Some(call.code) && finished.output.contains(call.says)
}

//! Foreign initiators against our program: libiscsi's small tools and QEMU's iSCSI driver.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::ProgramResult;
use rawclient::stamp;

use crate::steps::StepTally;

/// None of these does more than some hundred megabytes.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of the image that QEMU copies.
const IMAGE_BYTES: usize = 48 << 20;

/// What one tool must say.
struct InitiatorToolCase {
    name: &'static str,
    command: Command,
    says: Vec<String>,
}

/// iscsi-ls, iscsi-inq, iscsi-readcapacity16, iscsi-perf and our own `forebay ls`.
pub fn libiscsi(program: &Path, portal: &str, target: &str, blocks: u64) -> Result<StepTally> {
    let url = format!("{portal}/{target}/0");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let inquiry = |page: &str| {
        let mut command = Command::new("iscsi-inq");
        command.args(["-e", "1", "-c", page, &url]);
        command
    };
    let mut list = Command::new("iscsi-ls");
    list.args(["-s", portal]);
    let mut plain = Command::new("iscsi-inq");
    plain.arg(&url);
    let mut capacity = Command::new("iscsi-readcapacity16");
    capacity.arg(&url);
    let mut perf = Command::new("iscsi-perf");
    perf.args(["-t", "2", "-b", "8", "-m", "32", "-r", &url]);
    let mut own = Command::new(program);
    own.args(["ls", portal]);
    run(vec![
        InitiatorToolCase {
            name: "iscsi-ls",
            command: list,
            says: words(&[target, "DIRECT_ACCESS"]),
        },
        InitiatorToolCase {
            name: "iscsi-inq",
            command: plain,
            says: words(&["DIRECT_ACCESS", "CONNECTED"]),
        },
        InitiatorToolCase {
            name: "iscsi-inq of page 00h",
            command: inquiry("0"),
            says: words(&["0x83", "0xb0"]),
        },
        InitiatorToolCase {
            name: "iscsi-inq of page 83h",
            command: inquiry("131"),
            says: words(&["DESIGNATOR"]),
        },
        InitiatorToolCase {
            name: "iscsi-inq of page B0h",
            command: inquiry("176"),
            says: words(&["unmap"]),
        },
        InitiatorToolCase {
            name: "iscsi-readcapacity16",
            command: capacity,
            says: vec![format!("ADDRESS:{}", blocks - 1), "BYTES:512".to_owned()],
        },
        InitiatorToolCase {
            name: "iscsi-perf",
            command: perf,
            says: words(&["iops average", "finished"]),
        },
        InitiatorToolCase { name: "forebay ls", command: own, says: words(&[target]) },
    ])
}

/// A target that wants CHAP, and what both ends know.
pub struct Guarded<'a> {
    /// `127.0.0.1:3260`.
    pub portal: &'a str,
    /// Its name.
    pub target: &'a str,
    /// The initiator's name and secret.
    pub user: (&'a str, &'a str),
    /// The target's.
    pub mutual: (&'a str, &'a str),
}

/// libiscsi's tools with CHAP: right, wrong, none, mutual.
pub fn chap(guarded: &Guarded<'_>) -> Result<StepTally> {
    let Guarded { portal, target, user: (user, secret), mutual } = guarded;
    let list = |who: &str| {
        let mut command = Command::new("iscsi-ls");
        command.arg(format!("iscsi://{who}{portal}"));
        command
    };
    let inquire = |who: &str, more: &str| {
        let mut command = Command::new("iscsi-inq");
        command.arg(format!("iscsi://{who}{portal}/{target}/0{more}"));
        command
    };
    let (right, wrong) = (format!("{user}%{secret}@"), format!("{user}%not-the-secret@"));
    let prove = |secret: &str| format!("?target_user={}&target_password={secret}", mutual.0);
    let is_in = vec!["CONNECTED".to_owned()];
    let mut tally = run(vec![
        InitiatorToolCase {
            name: "iscsi-ls with the right secret",
            command: list(&right),
            says: vec![(*target).to_owned()],
        },
        InitiatorToolCase {
            name: "iscsi-inq with the right secret",
            command: inquire(&right, ""),
            says: is_in.clone(),
        },
        InitiatorToolCase {
            name: "iscsi-inq with mutual CHAP",
            command: inquire(&right, &prove(mutual.1)),
            says: is_in,
        },
    ])?;
    for (name, mut command) in [
        ("iscsi-ls with a wrong secret", list(&wrong)),
        ("iscsi-inq with a wrong secret", inquire(&wrong, "")),
        ("iscsi-inq without a secret", inquire("", "")),
        ("iscsi-inq on a target with another secret", inquire(&right, &prove("not-the-secret"))),
    ] {
        let finished = program::run(&mut command, LIMIT).context(name)?;
        if finished.success() {
            println!("{name}: is let in\n{}", finished.tail(8));
        }
        tally.count(!finished.success());
    }
    // Who has proved nothing is told of nothing.
    let finished = program::run(&mut list(""), LIMIT)?;
    let is_told = finished.output.contains(target);
    if is_told {
        println!("iscsi-ls without a secret: is told of the target\n{}", finished.tail(8));
    }
    tally.count(!is_told);
    Ok(tally)
}

/// qemu-img and qemu-io on a unit, whose content they overwrite.
pub fn qemu(url: &str, folder: &Path) -> Result<StepTally> {
    let image = folder.join("image.raw");
    let back = folder.join("back.raw");
    write_image(&image)?;
    let file = |path: &Path| path.display().to_string();
    let qemu_img = |arguments: &[&str]| {
        let mut command = Command::new("qemu-img");
        command.args(arguments);
        command
    };
    let qemu_io = |commands: &[&str]| {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none"]);
        commands.iter().for_each(|text| {
            command.args(["-c", text]);
        });
        command.arg(url);
        command
    };
    let says = |word: &str| vec![word.to_owned()];
    let size = IMAGE_BYTES.to_string();
    let compare = ["compare", "-f", "raw", "-F", "raw", &file(&image), &file(&back)];
    let tally = run(vec![
        InitiatorToolCase {
            name: "qemu-img info",
            command: qemu_img(&["info", "-f", "raw", url]),
            says: says("virtual size"),
        },
        InitiatorToolCase {
            name: "qemu-img convert to us",
            command: qemu_img(&[
                "convert",
                "-n",
                "-f",
                "raw",
                "-O",
                "raw",
                "-t",
                "none",
                &file(&image),
                url,
            ]),
            says: vec![],
        },
        InitiatorToolCase {
            name: "qemu-img dd from us",
            command: qemu_img(&[
                "dd",
                "-f",
                "raw",
                "-O",
                "raw",
                "bs=1M",
                &format!("count={}", IMAGE_BYTES >> 20),
                &format!("if={url}"),
                &format!("of={}", file(&back)),
            ]),
            says: vec![],
        },
        InitiatorToolCase {
            name: "qemu-img compare",
            command: qemu_img(&compare),
            says: says("identical"),
        },
        InitiatorToolCase {
            name: "qemu-io write, flush, read",
            command: qemu_io(&[
                "write -P 0xa5 1M 3M",
                "flush",
                "read -P 0xa5 1M 3M",
                "read -P 0xa5 2560k 512",
            ]),
            says: says("read 3145728/3145728"),
        },
        InitiatorToolCase {
            name: "qemu-io discard reads zeros",
            command: qemu_io(&["discard 1M 1M", "read -P 0 1M 1M", "read -P 0xa5 2M 1M"]),
            says: says("discard 1048576/1048576"),
        },
        InitiatorToolCase {
            name: "qemu-io write zeros",
            command: qemu_io(&[
                "write -z 2M 1M",
                "read -P 0 2M 1M",
                "write -z -u 3M 512k",
                "read -P 0 3M 512k",
            ]),
            says: says("read 524288/524288"),
        },
        InitiatorToolCase {
            name: "qemu-io FUA and odd sizes",
            command: qemu_io(&["write -f -P 0x11 512 7680", "read -P 0x11 512 7680", "flush"]),
            says: says("read 7680/7680"),
        },
        InitiatorToolCase {
            name: "qemu-io many at once",
            command: qemu_io(&[
                "aio_write -P 1 8M 1M",
                "aio_write -P 2 9M 1M",
                "aio_write -P 3 10M 1M",
                "aio_flush",
                "read -P 1 8M 1M",
                "read -P 2 9M 1M",
                "read -P 3 10M 1M",
            ]),
            says: says("read 1048576/1048576"),
        },
        InitiatorToolCase {
            name: "qemu-img bench",
            command: qemu_img(&[
                "bench",
                "-f",
                "raw",
                "-t",
                "none",
                "-w",
                "-c",
                "4000",
                "-d",
                "32",
                "-s",
                "4096",
                "--flush-interval=64",
                url,
            ]),
            says: says("Run completed"),
        },
    ])?;
    ensure!(
        fs::metadata(&back).map(|file| file.len()).unwrap_or(0) == size.parse::<u64>()?,
        "the copy is short"
    );
    Ok(tally)
}

/// Runs the cases one after the other and prints those that do not hold.
fn run(cases: Vec<InitiatorToolCase>) -> Result<StepTally> {
    let mut tally = StepTally::default();
    for mut case in cases {
        let finished = program::run(&mut case.command, LIMIT).context(case.name)?;
        let wrong = wrong(&finished, &case.says);
        if let Some(wrong) = &wrong {
            println!("{}: {wrong}\n{}", case.name, finished.tail(8));
        }
        tally.count(wrong.is_none());
    }
    Ok(tally)
}

fn wrong(finished: &ProgramResult, says: &[String]) -> Option<String> {
    if !finished.success() {
        return Some(finished.ending());
    }
    // qemu-io ends with 0 also when a pattern was not found.
    let missing = says.iter().find(|word| !finished.output.contains(word.as_str()));
    let bad = ["Pattern verification failed", "failed:"]
        .into_iter()
        .find(|word| finished.output.contains(word));
    missing
        .map(|word| format!("does not say '{word}'"))
        .or(bad.map(|word| format!("says '{word}'")))
}

/// An image of stamped blocks with holes of zeros between.
fn write_image(path: &Path) -> Result<()> {
    let mut image = vec![0; IMAGE_BYTES];
    for (lba, block) in image.chunks_exact_mut(4096).enumerate() {
        if lba / 64 % 3 != 1 {
            stamp::fill(block, lba as u64, 1);
        }
    }
    Ok(fs::write(path, image)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_tool_must_say_its_word_and_nothing_bad() {
        let finished = |output: &str| ProgramResult {
            status: Some(ExitStatus::from_raw(0)),
            output: output.to_owned(),
            took: Duration::ZERO,
        };
        let says = ["read 512/512".to_owned()];
        assert_eq!(wrong(&finished("read 512/512 bytes"), &says), None);
        assert!(wrong(&finished("nothing"), &says).is_some());
        assert!(wrong(&finished("Pattern verification failed\nread 512/512"), &says).is_some());
    }
}

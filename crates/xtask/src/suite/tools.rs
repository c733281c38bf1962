//! Foreign initiators against our target: libiscsi's small tools and QEMU's iSCSI driver.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::ProgramResult;
use rawclient::stamp;

use crate::steps::StepTally;

/// Time limit of a tool. None transfers more than some hundred megabytes.
const LIMIT: Duration = Duration::from_secs(60);

/// Size in bytes of the image that QEMU copies.
const IMAGE_BYTES: usize = 48 << 20;

/// A command of a tool of another project, and the texts that the tool must print.
struct InitiatorToolCase {
    name: &'static str,
    command: Command,
    says: Vec<String>,
}

/// Runs iscsi-ls, iscsi-inq, iscsi-readcapacity16, iscsi-perf and our own `forebay ls`.
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

/// A target that requires CHAP, with the CHAP names and secrets of both ends.
pub struct Guarded<'a> {
    /// Address and port of the portal, such as `127.0.0.1:3260`.
    pub portal: &'a str,
    pub target: &'a str,
    /// The name and the secret with which the initiator proves itself.
    pub user: (&'a str, &'a str),
    /// The name and the secret with which the target proves itself.
    pub mutual: (&'a str, &'a str),
}

/// Runs libiscsi's tools with CHAP: with the right secret, a wrong one and none, and with mutual
/// CHAP.
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
            println!("{name}: the login is accepted\n{}", finished.tail(8));
        }
        tally.count(!finished.success());
    }
    // Without authentication, discovery must not list the target.
    let finished = program::run(&mut list(""), LIMIT)?;
    let is_named = finished.output.contains(target);
    if is_named {
        println!("iscsi-ls without a secret: the target is listed\n{}", finished.tail(8));
    }
    tally.count(!is_named);
    Ok(tally)
}

/// Runs qemu-img and qemu-io on the unit `url`, whose content they overwrite.
pub fn qemu(url: &str, folder: &Path) -> Result<StepTally> {
    let [image, back] = ["image.raw", "back.raw"].map(|name| folder.join(name));
    write_image(&image)?;
    let mut cases = qemu_copies(url, &image, &back);
    cases.extend(QEMU_IO.iter().map(|case| case.on(url)));
    let bench = ["bench", "-f", "raw", "-t", "none", "-w", "-c", "4000", "-d", "32", "-s", "4096"];
    let bench = [&bench[..], &["--flush-interval=64", url]].concat();
    cases.push(qemu_img("qemu-img bench", &bench, &["Run completed"]));
    let tally = run(cases)?;
    let copied = fs::metadata(&back).map_or(0, |file| file.len());
    ensure!(copied == IMAGE_BYTES as u64, "the copy has {copied} bytes of {IMAGE_BYTES}");
    Ok(tally)
}

/// Copies an image to the unit, copies the unit to another file, and compares the two files.
fn qemu_copies(url: &str, image: &Path, back: &Path) -> Vec<InitiatorToolCase> {
    let [image, back] = [image, back].map(|path| path.display().to_string());
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "-t", "none", &image, url];
    let count = format!("count={}", IMAGE_BYTES >> 20);
    let (from, to) = (format!("if={url}"), format!("of={back}"));
    let dd = ["dd", "-f", "raw", "-O", "raw", "bs=1M", &count, &from, &to];
    let compare = ["compare", "-f", "raw", "-F", "raw", &image, &back];
    vec![
        qemu_img("qemu-img info", &["info", "-f", "raw", url], &["virtual size"]),
        qemu_img("qemu-img convert to us", &convert, &[]),
        qemu_img("qemu-img dd from us", &dd, &[]),
        qemu_img("qemu-img compare", &compare, &["identical"]),
    ]
}

fn qemu_img(name: &'static str, arguments: &[&str], says: &[&str]) -> InitiatorToolCase {
    let mut command = Command::new("qemu-img");
    command.args(arguments);
    InitiatorToolCase { name, command, says: says.iter().map(|word| (*word).to_owned()).collect() }
}

/// Commands for one run of qemu-io, and the text that it must print.
struct QemuIoCase {
    name: &'static str,
    commands: &'static [&'static str],
    says: &'static str,
}

impl QemuIoCase {
    fn on(&self, url: &str) -> InitiatorToolCase {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none"]);
        for text in self.commands {
            command.args(["-c", text]);
        }
        command.arg(url);
        InitiatorToolCase { name: self.name, command, says: vec![self.says.to_owned()] }
    }
}

const QEMU_IO: [QemuIoCase; 5] = [
    QemuIoCase {
        name: "qemu-io write, flush, read",
        commands: &["write -P 0xa5 1M 3M", "flush", "read -P 0xa5 1M 3M", "read -P 0xa5 2560k 512"],
        says: "read 3145728/3145728",
    },
    QemuIoCase {
        name: "qemu-io discard reads zeros",
        commands: &["discard 1M 1M", "read -P 0 1M 1M", "read -P 0xa5 2M 1M"],
        says: "discard 1048576/1048576",
    },
    QemuIoCase {
        name: "qemu-io write zeros",
        commands: &[
            "write -z 2M 1M",
            "read -P 0 2M 1M",
            "write -z -u 3M 512k",
            "read -P 0 3M 512k",
        ],
        says: "read 524288/524288",
    },
    QemuIoCase {
        name: "qemu-io FUA and odd sizes",
        commands: &["write -f -P 0x11 512 7680", "read -P 0x11 512 7680", "flush"],
        says: "read 7680/7680",
    },
    QemuIoCase {
        name: "qemu-io many at once",
        commands: &[
            "aio_write -P 1 8M 1M",
            "aio_write -P 2 9M 1M",
            "aio_write -P 3 10M 1M",
            "aio_flush",
            "read -P 1 8M 1M",
            "read -P 2 9M 1M",
            "read -P 3 10M 1M",
        ],
        says: "read 1048576/1048576",
    },
];

/// Runs the test cases one after the other, and prints those that have failed.
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
    // Check the output: qemu-io exits with 0 even if it read other data than the pattern.
    let missing = says.iter().find(|word| !finished.output.contains(word.as_str()));
    let bad = ["Pattern verification failed", "failed:"]
        .into_iter()
        .find(|word| finished.output.contains(word));
    missing
        .map(|word| format!("does not print '{word}'"))
        .or(bad.map(|word| format!("prints '{word}'")))
}

/// Writes an image of stamped blocks with ranges of zeros in between.
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
    fn a_tool_must_print_its_success_and_no_error() {
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

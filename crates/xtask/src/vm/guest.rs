//! A booted machine: scripts run in it, its cables are pulled and plugged in.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use program::{ProgramResult, RunningProgram};
use rustix::io::FdFlags;

use crate::vm::host;
use crate::vm::image::VmImage;
use crate::vm::monitor::Monitor;

/// The scripts' common part.
const LIBRARY: &str = include_str!("guest/lib.sh");

/// From start to ready: some 5 s under emulation on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// What the machine needs beyond a script's own limit to say how it ended.
const GRACE: Duration = Duration::from_secs(20);

/// A script that prints more than this is broken.
const MOST_OUTPUT: u64 = 16 << 20;

/// How the machine sees the host over its first and its second network.
pub const HOSTS: [&str; 2] = ["10.0.2.2", "10.0.3.2"];

/// What a machine has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware {
    /// A second way to the host.
    pub second_card: bool,
    /// A port of the host's loopback that leads to port 3260 of the machine.
    pub forwarded: Option<u16>,
}

/// A machine that runs. It is gone when this is dropped, and so is what it wrote on its disk.
pub struct Guest {
    /// Ended with us.
    running: RunningProgram,
    agent: BufReader<UnixStream>,
    monitor: Monitor,
    /// The kernel's release.
    pub release: String,
}

impl Guest {
    /// Boots a machine and waits until it takes scripts. Its console is kept in the folder.
    pub fn boot(image: &VmImage, hardware: Hardware, folder: &Path) -> Result<Guest> {
        let start = Instant::now();
        let (agent, agent_end) = UnixStream::pair()?;
        let (monitor, monitor_end) = UnixStream::pair()?;
        let mut command = Command::new("qemu-system-x86_64");
        machine(&mut command, image, hardware, folder)?;
        channel(&mut command, "agent", agent_end.into());
        channel(&mut command, "monitor", monitor_end.into());
        command.args(["-mon", "chardev=monitor,mode=control"]);
        command.args(["-device", "virtio-serial-pci"]);
        command.args(["-device", "virtserialport,chardev=agent,name=agent"]);
        let errors = fs::File::create(folder.join(ERRORS))?;
        command.stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
        let running = program::start(&mut command)?;
        // It holds the other ends, which must close with QEMU.
        drop(command);
        let told = || fs::read_to_string(folder.join(ERRORS)).unwrap_or_default();
        let monitor = Monitor::open(monitor).with_context(told)?;
        agent.set_read_timeout(Some(BOOT_LIMIT))?;
        let mut agent = BufReader::new(agent);
        let mut line = String::new();
        agent.read_line(&mut line).context("the machine does not get ready")?;
        let mut words = line.split_whitespace();
        let (Some("ready"), Some(release)) = (words.next(), words.next()) else {
            bail!("the machine does not get ready: {line:?} {}", told());
        };
        println!("    booted Linux {release} in {:.1} s", start.elapsed().as_secs_f64());
        Ok(Guest { running, agent, monitor, release: release.to_owned() })
    }

    /// Runs a script and says what it printed; an error if it fails or takes longer than `limit`.
    pub fn run(&mut self, what: &str, limit: Duration, script: &str) -> Result<String> {
        let start = Instant::now();
        let (code, output) = self.ask(limit, script).with_context(|| what.to_owned())?;
        let took = start.elapsed().as_secs_f64();
        println!("    {what}: {took:.1} s");
        match code {
            0 => Ok(output),
            124 | 137 => bail!("{what}: not done after {limit:?}\n{}", last(&output)),
            code => bail!("{what}: failed with {code}\n{}", last(&output)),
        }
    }

    /// Runs a script: its exit code (124 if it ran past its limit) and what it printed.
    pub fn ask(&mut self, limit: Duration, script: &str) -> Result<(i32, String)> {
        let script = format!("{LIBRARY}\n{script}\n");
        let agent = self.agent.get_mut();
        agent.set_read_timeout(Some(limit + GRACE))?;
        // The limit is in whole seconds of the machine.
        let head = format!("{} {}\n", limit.as_secs().max(1), script.len());
        agent.write_all((head + &script).as_bytes())?;
        let mut line = String::new();
        self.agent.read_line(&mut line).context("the machine does not answer any more")?;
        let Some((code, length)) = line.trim().split_once(' ') else { bail!(self.ending()) };
        let (code, length) = (code.parse()?, length.parse::<u64>()?);
        ensure!(length <= MOST_OUTPUT, "a script printed {length} bytes");
        let mut output = vec![0; usize::try_from(length)?];
        self.agent.read_exact(&mut output).context("the machine stopped in an answer")?;
        Ok((code, String::from_utf8_lossy(&output).into_owned()))
    }

    /// How QEMU ended, for one that has closed its end.
    fn ending(&mut self) -> String {
        match self.running.ended(GRACE) {
            Ok(Some(status)) => format!("the machine is gone: QEMU ended with {status}"),
            Ok(None) => "the machine does not take scripts any more".to_owned(),
            Err(error) => format!("the machine is gone: {error:#}"),
        }
    }

    /// Runs commands one after the other, each at most `limit` long, and says how each of them ended.
    pub fn each(
        &mut self,
        what: &str,
        limit: Duration,
        commands: &[String],
    ) -> Result<Vec<ProgramResult>> {
        let mut ended = vec![];
        // Some at a time: so that what is printed stays short and the time that is waited for one
        // answer bounded.
        for commands in commands.chunks(AT_A_TIME) {
            let seconds = limit.as_secs().max(1);
            let script: String = commands.iter().map(|command| marked(command, seconds)).collect();
            let whole = limit * u32::try_from(commands.len())? + GRACE;
            let output = self.run(what, whole, &format!("set +e\n{script}"))?;
            ended.extend(endings(&output));
        }
        ensure!(ended.len() == commands.len(), "{what}: {} of {}", ended.len(), commands.len());
        Ok(ended)
    }

    /// Pulls the cable out of a card, 0 or 1.
    pub fn pull(&mut self, card: usize) -> Result<()> {
        println!("    cable {card} pulled");
        self.monitor.set_link(&format!("net{card}"), false)
    }

    /// Plugs it in again.
    pub fn plug(&mut self, card: usize) -> Result<()> {
        println!("    cable {card} plugged in");
        self.monitor.set_link(&format!("net{card}"), true)
    }
}

/// Commands of one script of [`Guest::each`].
const AT_A_TIME: usize = 20;

/// Stands alone on a line after what a command printed, before its exit code.
const ENDED: &str = "@@@ ended with";

/// A command whose output is followed by a line with its exit code.
fn marked(command: &str, seconds: u64) -> String {
    format!(
        "timeout -k 2 {seconds} bash -c \"$(cat <<'@@@'\n{command}\n@@@\n)\" </dev/null\n\
         code=$?; echo; echo \"{ENDED} $code\"\n"
    )
}

fn endings(output: &str) -> Vec<ProgramResult> {
    let mut ended = vec![];
    let mut text = String::new();
    for line in output.lines() {
        if let Some(code) = line.strip_prefix(ENDED).and_then(|code| code.trim().parse().ok()) {
            // The machine does not report how long each command took.
            let (status, took) = (status(code), Duration::ZERO);
            ended.push(ProgramResult { status, output: std::mem::take(&mut text), took });
        } else {
            text += line;
            text.push('\n');
        }
    }
    ended
}

/// What a shell's exit code says: past its time, killed by a signal, or the program's own.
fn status(code: i32) -> Option<ExitStatus> {
    match code {
        124 | 137 => None,
        129.. => Some(ExitStatus::from_raw(code - 128)),
        code => Some(ExitStatus::from_raw(code << 8)),
    }
}

fn machine(
    command: &mut Command,
    image: &VmImage,
    hardware: Hardware,
    folder: &Path,
) -> Result<()> {
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.args(["-machine", "q35", "-smp", "2", "-m", "768", "-bios"]);
    command.arg(host::firmware().context("no firmware")?);
    if host::has_virtualisation() {
        command.args(["-accel", "kvm", "-cpu", "host"]);
    } else {
        // Page tables of five levels only cost time under emulation.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-la57"]);
    }
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
    // A panic ends QEMU at once (with -no-reboot); names of cards stay eth0 and eth1.
    command.args(["-append", "console=ttyS0 loglevel=6 panic=-1 net.ifnames=0"]);
    command.arg("-serial").arg(option("file:", &folder.join(CONSOLE)));
    command.arg("-drive").arg(option("if=virtio,format=raw,snapshot=on,file=", &image.disk));
    let forward = hardware
        .forwarded
        .map_or(String::new(), |port| format!(",hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:3260"));
    card(command, 0, "10.0.2.0/24", &forward);
    if hardware.second_card {
        card(command, 1, "10.0.3.0/24", "");
    }
    Ok(())
}

fn card(command: &mut Command, number: usize, network: &str, more: &str) {
    command.arg("-netdev").arg(format!("user,id=user{number},net={network},ipv6=off{more}"));
    // Without a ROM to boot from the network.
    let device = format!("virtio-net-pci,netdev=user{number},id=net{number},romfile=");
    command.arg("-device").arg(device);
}

/// QEMU reads a comma in a path as the end of it, unless it is doubled.
fn option(start: &str, path: &Path) -> String {
    format!("{start}{}", path.display().to_string().replace(',', ",,"))
}

/// Gives QEMU one end of a pair of sockets.
fn channel(command: &mut Command, name: &str, end: OwnedFd) {
    command.arg("-chardev").arg(format!("socket,id={name},fd={}", end.as_raw_fd()));
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&end, FdFlags::empty())?));
    }
}

/// The file in a machine's folder with all that its kernel and its first programs said.
const CONSOLE: &str = "console.log";

/// The one with QEMU's own complaints.
const ERRORS: &str = "qemu.log";

/// The last lines of a machine's console, and all that QEMU itself had to say.
pub fn console(folder: &Path) -> Option<String> {
    let text = fs::read(folder.join(CONSOLE)).ok()?;
    let told = fs::read_to_string(folder.join(ERRORS)).unwrap_or_default();
    Some(last(&String::from_utf8_lossy(&text)) + &told)
}

/// Lines that a failure shows of a longer text.
const SHOWN: usize = 40;

fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Where a machine's files are below a scenario's folder.
pub fn folder(of: &Path, number: usize) -> PathBuf {
    of.join(format!("guest{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_is_doubled() {
        assert_eq!(option("file:", Path::new("/a,b/c")), "file:/a,,b/c");
    }

    #[test]
    fn the_ends_of_commands_are_told_apart() {
        let output = "a\n@@@ ended with 0\n\n@@@ ended with 139\nc\n@@@ ended with 124\n";
        let ended = endings(output);
        let texts: Vec<&str> = ended.iter().map(|finished| &*finished.output).collect();
        assert_eq!(texts, ["a\n", "\n", "c\n"]);
        assert!(ended[0].success() && ended[1].code().is_none() && ended[1].status.is_some());
        assert!(ended[2].status.is_none());
    }

    #[test]
    fn the_end_of_a_long_text_is_shown() {
        let text: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let shown = last(&text.join("\n"));
        assert!(shown.starts_with("60\n") && shown.ends_with("\n99"));
    }
}

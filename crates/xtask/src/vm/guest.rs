//! A booted virtual machine. A scenario runs scripts in it, and pulls and plugs its network cables.

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

/// Shell functions that every script can use.
const LIBRARY: &str = include_str!("guest/lib.sh");

/// Time limit from the start of QEMU until the machine accepts scripts. Under emulation this takes
/// about 5 s if the host is idle.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// Time that the machine needs, beyond a script's own limit, to report the script's end.
const GRACE: Duration = Duration::from_secs(20);

/// Upper bound on a script's output in bytes. A script that prints more is broken.
const MOST_OUTPUT: u64 = 16 << 20;

/// The host's addresses in the machine's first and second network.
pub const HOSTS: [&str; 2] = ["10.0.2.2", "10.0.3.2"];

/// Optional hardware of a virtual machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware {
    /// True for a second network card, which gives the machine two paths to the host.
    pub second_card: bool,
    /// A port on the host's loopback interface that is forwarded to port 3260 of the machine.
    pub forwarded: Option<u16>,
}

/// A running machine. Dropping it ends the machine and discards everything that it wrote to its
/// disk.
pub struct Guest {
    /// QEMU. Dropping the field ends the process.
    running: RunningProgram,
    agent: BufReader<UnixStream>,
    monitor: Monitor,
    /// Release of the virtual machine's kernel, such as `6.1.0-31-amd64`.
    pub release: String,
}

impl Guest {
    /// Boots a machine and waits until it accepts scripts. Its console output goes to a file in
    /// `folder`.
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
        // The command holds QEMU's ends of the sockets. Close them here, so that the sockets end
        // when QEMU does.
        drop(command);
        let told = || fs::read_to_string(folder.join(ERRORS)).unwrap_or_default();
        let monitor = Monitor::open(monitor).with_context(told)?;
        agent.set_read_timeout(Some(BOOT_LIMIT))?;
        let mut agent = BufReader::new(agent);
        let mut line = String::new();
        agent.read_line(&mut line).context("the machine did not become ready")?;
        let mut words = line.split_whitespace();
        let (Some("ready"), Some(release)) = (words.next(), words.next()) else {
            bail!("the machine did not become ready: {line:?} {}", told());
        };
        println!("    booted Linux {release} in {:.1} s", start.elapsed().as_secs_f64());
        Ok(Guest { running, agent, monitor, release: release.to_owned() })
    }

    /// Runs a script and returns its output. Fails if the script fails or takes longer than
    /// `limit`.
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

    /// Runs a script. Returns its exit code (124 or 137 if it exceeded its limit) and its output.
    pub fn ask(&mut self, limit: Duration, script: &str) -> Result<(i32, String)> {
        let script = format!("{LIBRARY}\n{script}\n");
        let agent = self.agent.get_mut();
        agent.set_read_timeout(Some(limit + GRACE))?;
        // The machine reads the limit in whole seconds.
        let head = format!("{} {}\n", limit.as_secs().max(1), script.len());
        agent.write_all((head + &script).as_bytes())?;
        let mut line = String::new();
        self.agent.read_line(&mut line).context("the machine has stopped answering")?;
        let Some((code, length)) = line.trim().split_once(' ') else { bail!(self.ending()) };
        let (code, length) = (code.parse()?, length.parse::<u64>()?);
        ensure!(length <= MOST_OUTPUT, "a script printed {length} bytes");
        let mut output = vec![0; usize::try_from(length)?];
        self.agent.read_exact(&mut output).context("the machine stopped during an answer")?;
        Ok((code, String::from_utf8_lossy(&output).into_owned()))
    }

    /// Waits until QEMU has closed its end of the socket, and returns how the process ended.
    fn ending(&mut self) -> String {
        match self.running.ended(GRACE) {
            Ok(Some(status)) => format!("the machine has ended: QEMU ended with {status}"),
            Ok(None) => "the machine has stopped accepting scripts".to_owned(),
            Err(error) => format!("the machine has ended: {error:#}"),
        }
    }

    /// Runs commands one after the other, each for at most `limit`, and returns their results.
    pub fn each(
        &mut self,
        what: &str,
        limit: Duration,
        commands: &[String],
    ) -> Result<Vec<ProgramResult>> {
        let mut ended = vec![];
        // Run the commands in groups: each script then has a short output and ends within a bounded time.
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

    /// Pulls the cable of a network card, 0 or 1.
    pub fn pull(&mut self, card: usize) -> Result<()> {
        println!("    cable {card} pulled");
        self.monitor.set_link(&format!("net{card}"), false)
    }

    /// Connects the cable of a network card again.
    pub fn plug(&mut self, card: usize) -> Result<()> {
        println!("    cable {card} plugged in");
        self.monitor.set_link(&format!("net{card}"), true)
    }
}

/// Number of commands that [`Guest::each`] puts into one script.
const AT_A_TIME: usize = 20;

/// Text at the start of the line that follows a command's output. The exit code follows the text.
const ENDED: &str = "@@@ ended with";

/// Returns shell code that runs a command with a time limit and then prints a line with its exit
/// code.
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
            // `took` is zero: the machine does not report the run time of each command.
            let (status, took) = (status(code), Duration::ZERO);
            ended.push(ProgramResult { status, output: std::mem::take(&mut text), took });
        } else {
            text += line;
            text.push('\n');
        }
    }
    ended
}

/// Converts the exit code of a shell: time limit exceeded, killed by a signal, or the exit code of
/// the program.
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
        // Disable page tables of five levels (`-la57`), which only make emulation slower.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-la57"]);
    }
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
    // panic=-1 with -no-reboot: a kernel panic ends QEMU at once. net.ifnames=0: the network cards
    // are named eth0 and eth1.
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
    // An empty `romfile` disables booting from the network.
    let device = format!("virtio-net-pci,netdev=user{number},id=net{number},romfile=");
    command.arg("-device").arg(device);
}

/// Returns a QEMU option that ends with a path. QEMU takes a single comma as the end of the path,
/// so commas in it are doubled.
fn option(start: &str, path: &Path) -> String {
    format!("{start}{}", path.display().to_string().replace(',', ",,"))
}

/// Passes one end of a socket pair to QEMU as the channel `name`.
fn channel(command: &mut Command, name: &str, end: OwnedFd) {
    command.arg("-chardev").arg(format!("socket,id={name},fd={}", end.as_raw_fd()));
    // SAFETY: between fork and exec the closure makes only one system call, which is
    // async-signal-safe.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&end, FdFlags::empty())?));
    }
}

/// File in a machine's folder with the output of its kernel and its first programs.
const CONSOLE: &str = "console.log";

/// File in a machine's folder with QEMU's own messages.
const ERRORS: &str = "qemu.log";

/// Returns the last lines of a machine's console and all messages of QEMU.
pub fn console(folder: &Path) -> Option<String> {
    let text = fs::read(folder.join(CONSOLE)).ok()?;
    let told = fs::read_to_string(folder.join(ERRORS)).unwrap_or_default();
    Some(last(&String::from_utf8_lossy(&text)) + &told)
}

/// Number of lines that an error message shows of a text: its last ones.
const SHOWN: usize = 40;

fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Returns the folder for the files of machine `number`, below the scenario's folder.
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
    fn the_ways_in_which_commands_end_are_distinguished() {
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

//! QEMU's control channel (QMP), on which each line is a JSON object: an answer or an event.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Time limit for an answer. QEMU answers at once, unless the machine is overloaded.
const LIMIT: Duration = Duration::from_secs(30);

/// A QMP channel that accepts commands.
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Reads QEMU's greeting and enables commands.
    pub fn open(stream: UnixStream) -> Result<Monitor> {
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Monitor { stream: BufReader::new(stream) };
        let greeting = monitor.line()?;
        ensure!(greeting.get("QMP").is_some(), "QEMU greets with {greeting}");
        monitor.command("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Connects the cable of a network card if `up` is true; otherwise disconnects it.
    pub fn set_link(&mut self, card: &str, up: bool) -> Result<()> {
        self.command("set_link", json!({ "name": card, "up": up }))
    }

    fn command(&mut self, name: &str, arguments: Value) -> Result<()> {
        let command = json!({ "execute": name, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{command}\n").as_bytes())?;
        loop {
            let answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {name}: {error}");
            }
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("QEMU does not answer")?;
        ensure!(!line.is_empty(), "QEMU has closed the channel");
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(says: &str) -> Result<Monitor> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(says.as_bytes()).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut monitor = Monitor::open(ours)?;
        monitor.set_link("net0", false)?;
        Ok(monitor)
    }

    #[test]
    fn events_do_not_count_as_answers() {
        assert!(
            monitor("{\"QMP\":{}}\n{\"return\":{}}\n{\"event\":\"X\"}\n{\"return\":{}}\n").is_ok()
        );
    }

    #[test]
    fn a_refused_monitor_command_is_an_error() {
        let refused =
            monitor("{\"QMP\":{}}\n{\"return\":{}}\n{\"error\":{\"desc\":\"no card\"}}\n");
        assert!(format!("{:#}", refused.err().unwrap()).contains("no card"));
        assert!(monitor("{\"QMP\":{}}\n{\"return\":{}}\n").is_err());
    }
}

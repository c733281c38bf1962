//! `forebay detach`: asks the process that serves a device to detach it, and clears a device whose process was killed.

use std::{path::Path, sync::mpsc, time::Duration};

use config::quantity::{TimeSpan, about};
use control::{AttachedVolumeStatus, ControlRequest, ControlResponse, Detached, Failure, LogLeft};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{attachment_lock, device::shell_word};
use crate::{cli::Detach, control_socket, gateway::DrainProgressBar, output::print_line};

/// Detaches the device, mount or volume that the command line names.
pub fn run(args: &Detach) -> Result<(), Failure> {
    let wanted = args.device.canonicalize().unwrap_or_else(|_| args.device.clone());
    let all = attachment_lock::all()?;
    let is_meant = |attached: &AttachedVolumeStatus| {
        attached.device == wanted
            || attached.mount.as_ref() == Some(&wanted)
            || Path::new(&attached.volume) == args.device
            || is_name(&attached.volume, &args.device.to_string_lossy())
    };
    let mut meant = all.into_iter().filter(|(_, attached)| is_meant(attached));
    let Some((socket, attached)) = meant.next() else {
        return clear(&wanted, args.json);
    };
    if let Some((_, other)) = meant.next() {
        let (one, other) = (attached.device.display(), other.device.display());
        let name = args.device.display();
        return Err(Failure::new(format!("{name} is ambiguous: it may be {one} or {other}"))
            .remedy("name the device"));
    }
    let detached = match args.drain {
        true => drain(&socket, &attached, args.timeout)?,
        false => {
            let spinner = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}");
            spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            let answer = ask(&socket, ControlRequest::Detach { force: args.force }, || {
                spinner.set_message(writing_back(&attached));
                spinner.tick();
            });
            spinner.finish_and_clear();
            match answer? {
                ControlResponse::Detached(detached) => detached,
                // An older version of the program serves the device: its answer does not describe the cache.
                ControlResponse::Attachment(attached) => return tell_little(args, &attached),
                other => return Err(other.unexpected()),
            }
        }
    };
    tell(args, &detached)
}

/// Repeats the request until the far volume has all data and the device is detached. Each response reports the
/// progress. If the user interrupts the command between two responses, the device stays attached.
fn drain(
    socket: &Path,
    attached: &AttachedVolumeStatus,
    timeout: Option<TimeSpan>,
) -> Result<Detached, Failure> {
    let device = attached.device.display();
    let mut progress = DrainProgressBar::begin(device.to_string(), timeout);
    loop {
        let answer =
            ask(socket, ControlRequest::DrainAndDetach, || progress.say(&writing_back(attached)));
        match answer.inspect_err(|_| progress.end())? {
            ControlResponse::Cache(standing) => progress.show(&standing).map_err(|failure| {
                let message = format!("{device} is still attached: {}", failure.message);
                Failure { message, ..failure }
            })?,
            answer => {
                progress.end();
                return match answer {
                    ControlResponse::Detached(detached) => Ok(detached),
                    other => Err(other.unexpected()),
                };
            }
        }
        // The process drains while it handles each request. This pause only prevents a busy loop if a request returns
        // at once.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a request, and calls `meanwhile` repeatedly until the response arrives.
fn ask(
    socket: &Path,
    request: ControlRequest,
    mut meanwhile: impl FnMut(),
) -> Result<ControlResponse, Failure> {
    let (answer, answered) = mpsc::channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        // Sending fails if the command has timed out and waits for no response any more.
        let _ = answer.send(control_socket::ask(&socket, request));
    });
    loop {
        match answered.recv_timeout(Duration::from_millis(200)) {
            Ok(answer) => return answer,
            Err(mpsc::RecvTimeoutError::Timeout) => meanwhile(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("no process answers")
                    .remedy("repeat the command; `forebay status` shows what is attached"));
            }
        }
    }
}

/// Reports a detached device whose process did not report whether a cache has data that the far volume lacks.
fn tell_little(args: &Detach, attached: &AttachedVolumeStatus) -> Result<(), Failure> {
    if args.json {
        return print_line(json!({
            "device": attached.device,
            "volume": attached.volume,
            "mount": attached.mount,
            "stable": true,
            "dirty_bytes": null,
        }));
    }
    print_line(format_args!(
        "{} is detached; its process is an older version of forebay, which does not report \
         whether a log has data that the far volume lacks",
        attached.device.display()
    ))
}

/// Reports that a device is detached, and whether the written data is on the far volume or in a log.
fn tell(args: &Detach, detached: &Detached) -> Result<(), Failure> {
    let Detached { attached, log } = detached;
    let device = attached.device.display();
    let dirty = log.as_ref().filter(|log| log.dirty_bytes > 0);
    if args.json {
        print_line(json!({
            "device": attached.device,
            "volume": attached.volume,
            "mount": attached.mount,
            "stable": true,
            "dirty_bytes": dirty.map_or(0, |log| log.dirty_bytes),
            "log": log.as_ref().map(|log| &log.path),
        }))?;
    } else {
        print_line(where_data_is(attached, args.force, dirty))?;
    }
    match dirty {
        // A program wrote to the device after the drain.
        Some(log) if args.drain => Err(Failure::new(format!(
            "{device} is detached, but {} were written after its cache was drained",
            about(log.dirty_bytes)
        ))
        .remedy(format!("destage them: `{}`", send_it_down(log, attached)))),
        _ => Ok(()),
    }
}

/// Describes where the data is that was written to a detached device.
fn where_data_is(
    attached: &AttachedVolumeStatus,
    by_force: bool,
    dirty: Option<&LogLeft>,
) -> String {
    let device = attached.device.display();
    let Some(log) = dirty else {
        return match by_force {
            true => format!("{device} is detached"),
            false => {
                format!("{device} is detached; all data written to it is stable on the far volume")
            }
        };
    };
    let path = log.path.display();
    let stable = if by_force { "" } else { "; all data written to it is stable" };
    format!(
        "{device} is detached{stable}\n{} are only in the log {path}, and not on the far volume \
         yet\n  to destage them: {}",
        about(log.dirty_bytes),
        send_it_down(log, attached)
    )
}

/// Returns the commands that destage the content of a log. They name the settings file as well as the volume, because
/// other settings may have a unit with the same name.
fn send_it_down(log: &LogLeft, attached: &AttachedVolumeStatus) -> String {
    let config = shell_word(&log.config.display().to_string());
    let (unit, volume) = (shell_word(&log.unit), shell_word(&attached.volume));
    format!(
        "forebay attach --background --config {config} {unit} && forebay detach --drain {volume}"
    )
}

/// Describes what an attaching process that has not answered yet is doing.
fn writing_back(attached: &AttachedVolumeStatus) -> String {
    format!("writing back: {} requests in flight", under_way(attached))
}

/// Returns the number of I/O requests to the device that are not answered yet.
fn under_way(attached: &AttachedVolumeStatus) -> u64 {
    let name = attached.device.file_name().unwrap_or_default();
    let file = Path::new("/sys/block").join(name).join("inflight");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse::<u64>().ok()).sum()
}

/// Returns true if `word` of the command line names this volume: `TARGET` or `TARGET/LUN`, of any settings file.
fn is_name(volume: &str, word: &str) -> bool {
    let unit = volume.split_once(" of ").map_or(volume, |(unit, _)| unit);
    unit == word || unit.strip_suffix("/0") == Some(word)
}

/// Clears a device whose process has ended.
fn clear(device: &Path, as_json: bool) -> Result<(), Failure> {
    let nothing = || {
        Failure::new(format!("{} is not attached by forebay", device.display())).remedy(
            "name a device as `forebay attach` gave it, the folder it is mounted on, or the volume",
        )
    };
    let number = device.to_str().and_then(|path| path.strip_prefix("/dev/loop")?.parse().ok());
    let name = number.and_then(attach::backing).ok_or_else(nothing)?;
    attachment_lock::clear_leftovers(&name.volume)?;
    if as_json {
        // The process that was killed may have left unflushed writes, so do not report the data as stable.
        return print_line(json!({ "device": device, "stable": false }));
    }
    print_line(format_args!(
        "{} is cleared; the process that served it had been killed",
        device.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_data_in_the_log_is_reported_with_the_command_that_drains_it() {
        let log = LogLeft {
            path: "/x/gw.log".into(),
            dirty_bytes: 72 << 20,
            config: "/my settings/gw.toml".into(),
            unit: "iqn.a:b/0".to_owned(),
        };
        let attached = AttachedVolumeStatus {
            device: "/dev/loop0".into(),
            volume: "iqn.a:b/0 of /my settings/gw.toml".to_owned(),
            bytes: 1 << 30,
            block_size: 512,
            read_only: false,
            direct_io: true,
            mount: None,
            process: 1,
        };
        let text = where_data_is(&attached, false, Some(&log));
        assert!(
            text.contains("all data written to it is stable\n72.0 MiB are only in the log"),
            "{text}"
        );
        let command = "forebay attach --background --config '/my settings/gw.toml' iqn.a:b/0 && \
                       forebay detach --drain 'iqn.a:b/0 of /my settings/gw.toml'";
        assert!(text.ends_with(command), "{text}");
        let text = where_data_is(&attached, false, None);
        assert!(text.ends_with("all data written to it is stable on the far volume"), "{text}");
        assert!(!where_data_is(&attached, true, Some(&log)).contains("stable"));
    }

    #[test]
    fn a_volume_of_settings_is_named_without_them() {
        assert!(is_name("iqn.a:b/0 of /x.toml", "iqn.a:b"));
        assert!(is_name("iqn.a:b/3 of /x.toml", "iqn.a:b/3"));
        assert!(!is_name("iqn.a:b/3 of /x.toml", "iqn.a:b"));
        assert!(is_name("iscsi://h/iqn.a:b/0", "iscsi://h/iqn.a:b"));
        assert!(!is_name("iscsi://h/iqn.a:b/0", "iscsi://h/iqn.a"));
    }
}

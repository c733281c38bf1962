//! `forebay detach`: asks the process that has a device to take it away, and clears what a killed
//! one has left.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::place;
use crate::{
    attached::Attached,
    cli::Detach,
    control::{self, Request, Response},
    failure::Failure,
    output::print_line,
};

/// Does what the command line says.
pub fn run(args: &Detach) -> Result<(), Failure> {
    let wanted = args.device.canonicalize().unwrap_or_else(|_| args.device.clone());
    let all = place::all()?;
    let is_meant = |attached: &Attached| {
        attached.device == wanted
            || attached.mount.as_ref() == Some(&wanted)
            || Path::new(&attached.volume) == args.device
            || attached.volume == format!("{}/0", args.device.display())
    };
    let Some((socket, attached)) = all.into_iter().find(|(_, attached)| is_meant(attached)) else {
        return clear(&wanted, args.json);
    };
    let request = Request::Detach { force: args.force };
    match ask(socket, request, &attached)? {
        Response::Attachment(attached) if args.json => print_line(json!({
            "device": attached.device,
            "volume": attached.volume,
            "mount": attached.mount,
            "stable": true,
        })),
        Response::Attachment(attached) if args.force => {
            print_line(format_args!("{} is detached", attached.device.display()))
        }
        Response::Attachment(attached) => print_line(format_args!(
            "{} is detached; what was written to it is stable",
            attached.device.display()
        )),
        other => Err(other.unexpected()),
    }
}

/// Asks, and shows how far it is while it takes its time.
fn ask(socket: PathBuf, request: Request, attached: &Attached) -> Result<Response, Failure> {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Whoever waits for it may have gone.
        let _ = tell.send(control::ask(&socket, request));
    });
    loop {
        match told.recv_timeout(Duration::from_millis(200)) {
            Ok(answer) => {
                bar.finish_and_clear();
                return answer;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bar.set_message(format!(
                    "writing back: {} requests under way",
                    under_way(attached)
                ));
                bar.tick();
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("nobody answers"));
            }
        }
    }
}

/// Requests that the device has not answered yet.
fn under_way(attached: &Attached) -> u64 {
    let name = attached.device.file_name().unwrap_or_default();
    let file = Path::new("/sys/block").join(name).join("inflight");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse::<u64>().ok()).sum()
}

/// A device that nobody serves any more.
fn clear(device: &Path, as_json: bool) -> Result<(), Failure> {
    let nothing = || {
        Failure::new(format!("{} is not attached by forebay", device.display())).remedy(
            "name a device as `forebay attach` gave it, the folder it is mounted on, or the volume",
        )
    };
    let number = device.to_str().and_then(|path| path.strip_prefix("/dev/loop")?.parse().ok());
    let name = number.and_then(attach::backing).ok_or_else(nothing)?;
    place::clear_leftovers(&name.volume)?;
    if as_json {
        // Of what it had, nobody knows more.
        return print_line(json!({ "device": device, "stable": false }));
    }
    print_line(format_args!(
        "{} is cleared; the process that served it had been killed",
        device.display()
    ))
}

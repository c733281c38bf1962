//! `forebay volume`: moves volumes between nodes and shows the progress.

use std::{path::Path, time::Duration};

use ::names::VolumeName;
use config::quantity::about;
use control::{
    ControlRequest, ControlResponse, Failure, MoveStage, VolumeMoveProgress, VolumeMoveStatus,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    cli::{ControlCallArgs, VolumeAct},
    control_socket,
    output::{print, print_line},
    table::table,
};

/// Lowest rate of a move in bytes per second. At a lower rate, the other node would assume that the connection is lost.
const LEAST_RATE: u64 = 64 << 10;
/// Default of `--pause`, the longest time that hosts wait for the last pass of the copy.
const PAUSE: Duration = Duration::from_secs(10);
/// Smallest (`LEAST_PAUSE`) and largest (`MOST_PAUSE`) value of `--pause`. A shorter pause would not suffice for any
/// disk. Linux cancels a command after 30 s, and the steps after the last pass need a part of that time.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(20);
/// Interval at which the command requests the progress of a move.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(act: VolumeAct) -> Result<(), Failure> {
    match act {
        VolumeAct::Move { volume, to, rate, pause, told } => {
            let pause = pause.map_or(PAUSE, |pause| pause.0);
            if !(LEAST_PAUSE..=MOST_PAUSE).contains(&pause) {
                let message = "--pause is not between 100ms and 20s";
                return Err(Failure::settings(message).remedy("write, for example, --pause 2s"));
            }
            let rate = rate.map(|rate| rate.0);
            if rate.is_some_and(|rate| rate < LEAST_RATE) {
                let least = about(LEAST_RATE);
                return Err(Failure::settings(format!("--rate is less than {least} per second"))
                    .remedy(
                        "name a higher rate, or leave out --rate: then the rate has no limit",
                    ));
            }
            let path = told.whom.path()?;
            let begun = ask(
                &path,
                ControlRequest::Move { volume, to, rate, pause_ms: pause.as_millis() as u64 },
            )?;
            follow(&path, begun, &told)
        }
        VolumeAct::Cancel { volume, told } => {
            let volume = named(&volume)?;
            let progress = ask(&told.whom.path()?, ControlRequest::CancelMove { volume })?;
            match progress.stage {
                MoveStage::Moved => Err(Failure::new(format!("{} has moved", progress.volume))
                    .remedy(
                        "`forebay names` shows where it is; move it back from there with \
                         `forebay volume move`",
                    )),
                _ if told.json => print_line(serde_json::json!(progress)),
                _ => print_line(format_args!("{} stays here", progress.volume)),
            }
        }
        VolumeAct::List(told) => {
            match control_socket::ask(&told.whom.path()?, ControlRequest::Moves)? {
                ControlResponse::Moves(moves) if told.json => print_line(serde_json::json!(moves)),
                ControlResponse::Moves(moves) => print(for_people(&moves)),
                other => Err(other.unexpected()),
            }
        }
    }
}

/// Parses the name of a volume, which may have the prefix `gln:`.
fn named(text: &str) -> Result<VolumeName, Failure> {
    let name = text.strip_prefix("gln:").unwrap_or(text);
    name.parse().map_err(|error| {
        Failure::settings(format!("`{name}` is {error}"))
            .remedy("name a volume as `forebay names` shows it")
    })
}

fn ask(path: &Path, request: ControlRequest) -> Result<VolumeMoveProgress, Failure> {
    match control_socket::ask(path, request)? {
        ControlResponse::Moving(progress) => Ok(progress),
        other => Err(other.unexpected()),
    }
}

/// Shows the progress of a move until it has ended. The move continues if this command is interrupted.
fn follow(
    path: &Path,
    mut progress: VolumeMoveProgress,
    told: &ControlCallArgs,
) -> Result<(), Failure> {
    let bar = match told.json {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(0),
    };
    let style =
        ProgressStyle::with_template("{spinner} [{bar:30}] {percent:>3} % {elapsed:>4} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    while progress.stage.is_under_way() {
        if told.json {
            print_line(serde_json::json!(progress))?;
        }
        bar.set_length(progress.copied_bytes + progress.left_bytes);
        bar.set_position(progress.copied_bytes);
        bar.set_message(match (&progress.failure, progress.stage) {
            (Some(failure), _) => failure.message.clone(),
            (None, MoveStage::Switching) => "hosts wait".to_owned(),
            (None, _) => format!("{} left, {}/s", about(progress.left_bytes), about(progress.rate)),
        });
        std::thread::sleep(LOOK_EVERY);
        progress = ask(path, ControlRequest::Moving { volume: progress.volume })?;
    }
    bar.finish_and_clear();
    if told.json {
        print_line(serde_json::json!(progress))?;
    }
    let VolumeMoveProgress { volume, to, .. } = &progress;
    match (progress.stage, &progress.failure) {
        (MoveStage::Moved, None) if told.json => Ok(()),
        (MoveStage::Moved, None) => print_line(format_args!(
            "{volume} is on {to} now: {} copied in {:.0} s, hosts waited {:.1} s",
            about(progress.copied_bytes),
            progress.seconds,
            progress.pause_seconds.unwrap_or_default(),
        )),
        (MoveStage::Moved, Some(failure)) => {
            let Failure { message, remedy, code } = failure.clone();
            let message = format!("{volume} is not here any more, and {message}");
            Err(Failure { message, remedy, code })
        }
        (_, failure) => {
            let failure = failure.clone();
            let failure = failure.unwrap_or_else(|| {
                Failure::new("the process does not say why").remedy(
                    "`forebay volume list` shows the state, and the events of that process \
                     show the cause",
                )
            });
            let Failure { message, remedy, code } = failure;
            Err(Failure { message: format!("{volume} stays here: {message}"), remedy, code })
        }
    }
}

fn for_people(moves: &[VolumeMoveStatus]) -> String {
    let mut notes = Vec::new();
    let mut table = table(&["volume", "how", "node", "progress"]);
    for VolumeMoveStatus { volume, how, node, progress, why } in moves {
        let progress = progress.as_ref().map(|progress| {
            let all = (progress.copied_bytes + progress.left_bytes).max(1);
            format!("{} %, {}/s", progress.copied_bytes * 100 / all, about(progress.rate))
        });
        table.add_row([volume.as_str(), how, node, &progress.unwrap_or_default()]);
        let why = why.as_ref().map(|why| format!("{volume}: {why}\n"));
        notes.extend(why);
    }
    format!("{table}\n{}", notes.concat())
}

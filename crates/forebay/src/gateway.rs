//! `forebay gateway`: sends commands to the cache of a running process, and shows their progress.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use config::quantity::{TimeSpan, about};
use control::{
    CacheControlCommand, CacheControlStatus, ControlRequest, ControlResponse, Failure, UnitName,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    cli::{ControlCallArgs, GatewayAct, OfCache, SendDown},
    control_socket, give_up, handover,
    output::{self, print, print_line},
    status::pair_in_words,
};

pub async fn run(act: GatewayAct) -> Result<(), Failure> {
    match act {
        GatewayAct::Flush(SendDown { of, timeout }) => {
            send_down(&of, timeout, CacheControlCommand::Flush { mark: None })
        }
        GatewayAct::Drain(SendDown { of, timeout }) => {
            send_down(&of, timeout, CacheControlCommand::Drain)
        }
        GatewayAct::LogResize { unit, size, timeout, told } => {
            let bytes = size.map(|size| size.0);
            send_down(&OfCache { unit, told }, timeout, CacheControlCommand::LogResize { bytes })
        }
        GatewayAct::Pause(OfCache { unit, told }) => tell(&unit, &told, CacheControlCommand::Pause),
        GatewayAct::Resume(OfCache { unit, told }) => {
            tell(&unit, &told, CacheControlCommand::Resume)
        }
        GatewayAct::Export(args) => handover::export(args).await,
        GatewayAct::Adopt(args) => handover::adopt(args).await,
        GatewayAct::GiveUp(args) => give_up::give_up(args).await,
        GatewayAct::TakeIn(args) => give_up::take_in(args).await,
        GatewayAct::Takeover(OfCache { unit, told }) => take_over(&unit, &told),
        GatewayAct::Rate { unit, rate, told } => {
            tell(&unit, &told, CacheControlCommand::Rate(rate))
        }
        GatewayAct::Renew { unit, half, told } => {
            tell(&unit, &told, CacheControlCommand::Renew { half })
        }
    }
}

fn take_over(unit: &UnitName, told: &ControlCallArgs) -> Result<(), Failure> {
    let request = ControlRequest::TakeOver { unit: unit.clone() };
    match control_socket::ask(&told.whom.path()?, request)? {
        ControlResponse::Pair(pair) if told.json => {
            print_line(serde_json::to_string(&pair).map_err(Failure::new)?)
        }
        ControlResponse::Pair(pair) => {
            print_line(format_args!("{unit}: this gateway is {}", pair_in_words(&pair)))
        }
        other => Err(other.unexpected()),
    }
}

fn tell(
    unit: &UnitName,
    told: &ControlCallArgs,
    order: CacheControlCommand,
) -> Result<(), Failure> {
    let standing = ask(&told.whom.path()?, unit, order)?;
    show(unit, told, &standing)
}

/// Repeats the request for a flush or drain until the cache has completed it, and shows the progress.
fn send_down(
    of: &OfCache,
    timeout: Option<TimeSpan>,
    mut order: CacheControlCommand,
) -> Result<(), Failure> {
    let OfCache { unit, told } = of;
    let path = told.whom.path()?;
    let mut progress = DrainProgressBar::begin(unit.to_string(), timeout);
    loop {
        let standing = ask(&path, unit, order)?;
        if standing.done {
            progress.end();
            return show(unit, told, &standing);
        }
        progress.show(&standing)?;
        if let (CacheControlCommand::Flush { mark }, Some(reached)) = (&mut order, standing.mark) {
            *mark = Some(reached);
        }
        // The process works while it handles the request. This pause only prevents a busy loop if a request returns at
        // once.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Shows the progress of a flush or drain, and fails when the timeout has passed.
pub struct DrainProgressBar {
    /// Name of the unit, which messages about the progress contain.
    unit: String,
    timeout: Option<TimeSpan>,
    bar: ProgressBar,
    begun: Instant,
    told_at: Instant,
    /// Largest number of unsent bytes so far: the progress bar shows them as 100 %.
    most: u64,
}

impl DrainProgressBar {
    /// Starts the timer and the progress bar.
    pub fn begin(unit: String, timeout: Option<TimeSpan>) -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{spinner} [{bar:30}] {elapsed:>4} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        let begun = Instant::now();
        Self { unit, timeout, bar, begun, told_at: begun, most: 0 }
    }

    /// Shows the state of the cache in the progress bar.
    ///
    /// # Errors
    /// If the timeout has passed.
    pub fn show(&mut self, standing: &CacheControlStatus) -> Result<(), Failure> {
        if self.timeout.is_some_and(|timeout| self.begun.elapsed() >= timeout.0) {
            self.end();
            return Err(not_in_time(&self.unit, standing));
        }
        self.most = self.most.max(unsent(standing));
        self.bar.set_length(self.most);
        self.bar.set_position(self.most - unsent(standing));
        self.say(&left(standing));
        Ok(())
    }

    /// Shows `what` instead of the state of the cache.
    pub fn say(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
        if self.bar.is_hidden() && self.told_at.elapsed() >= TOLD_EVERY {
            self.told_at = Instant::now();
            output::tell(format_args!("{}: {what}", self.unit));
        }
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Interval of the progress lines if stderr is not a terminal.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Returns the number of bytes that destage has not sent. Bytes that the current destage round has sent count as dirty
/// until the round ends.
fn unsent(standing: &CacheControlStatus) -> u64 {
    standing.dirty_bytes.saturating_sub(standing.sent_bytes)
}

fn left(standing: &CacheControlStatus) -> String {
    let left = format!("{} left, {}/s", about(unsent(standing)), about(standing.rate));
    match &standing.lower_error {
        Some(error) => format!("{left}; the far volume: {error}"),
        None => left,
    }
}

fn not_in_time(unit: &str, standing: &CacheControlStatus) -> Failure {
    let message = format!("{unit} is not done: {}", left(standing));
    let remedy = match (&standing.lower_error, standing.rate_limit) {
        (Some(error), _) if error.contains("refused the login") => {
            "make the target admit this gateway again (user, secret, certificate, `allow`); \
             destage then continues"
                .to_owned()
        }
        (Some(_), _) => "remove the cause at the target; destage then continues".to_owned(),
        (None, Some(_)) => {
            format!("give it more time, or a higher rate: `forebay gateway rate {unit} unlimited`")
        }
        (None, None) => "give it more time; destage continues".to_owned(),
    };
    Failure::new(message).remedy(remedy)
}

fn ask(
    path: &Path,
    unit: &UnitName,
    order: CacheControlCommand,
) -> Result<CacheControlStatus, Failure> {
    match control_socket::ask(path, ControlRequest::Cache { unit: unit.clone(), order })? {
        ControlResponse::Cache(standing) => Ok(standing),
        other => Err(other.unexpected()),
    }
}

fn show(
    unit: &UnitName,
    told: &ControlCallArgs,
    standing: &CacheControlStatus,
) -> Result<(), Failure> {
    if told.json {
        return print_line(serde_json::to_string(standing).map_err(Failure::new)?);
    }
    let mut text = format!("{unit}: {} not on the far volume", about(standing.dirty_bytes));
    if let Some(since) = &standing.paused_since {
        text += &format!(", destage paused since {since}");
    }
    text += &format!(", a log of {}", about(standing.log_bytes));
    match standing.rate_limit {
        None => {}
        Some(0) => text += ", destage is not permitted at this time",
        Some(rate) => text += &format!(", at most {}/s", about(rate)),
    }
    print(text + "\n")
}

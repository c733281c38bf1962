//! The program `forebay`: its commands, the quickstart, attached volumes and the laboratory.

mod output;
mod table;
mod event_queue;
mod memory_release;
mod open_file_limit;
mod linked;
mod control_socket;
mod events;
mod serve;
mod check;
mod relay_link;
mod lab;
mod cli;
mod manual_pages;
mod status;
mod handover;
mod give_up;
mod forget;
mod gateway;
mod claim;
mod credentials;
mod ls;
mod names_command;
mod volume_command;
mod secret;
mod object;
mod tunnel;
mod attachment;
mod quickstart;

use std::{process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser};
use control::{ControlRequest, ControlResponse, Failure};

use cli::{Cli, ForebayCommand};
use output::{print, print_line};

fn main() -> ExitCode {
    events::end_at_panic();
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => {
            events::flush();
            code
        }
        Err(failure) => {
            events::say_last(&format!("forebay: {failure}"));
            failure.code.into()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let usual = match cli.command {
        ForebayCommand::Serve(_) | ForebayCommand::Tunnel(_) | ForebayCommand::Attach(_) => "info",
        // Quickstart kills processes while others are connected to them, so warnings about that are expected.
        ForebayCommand::Quickstart(_) => "error",
        _ => "warn",
    };
    let events = events::show(cli.log_level.as_deref(), cli.verbose, usual)?;
    let done = match cli.command {
        ForebayCommand::Serve(args) => serve::run(&args.config, args.ready_fd, events),
        ForebayCommand::Check(args) => in_runtime(check::run(&args.config, args.json)),
        // Return at once: the exit code of `forebay status` may report a problem of the queried process although this
        // command has not failed.
        ForebayCommand::Status(args) => return status::run(&args),
        ForebayCommand::Secret(args) => secret::make(&args),
        ForebayCommand::Key(args) => stack::key_file::make(
            &args.file,
            args.secret_file.as_deref(),
            args.secret_env.as_deref(),
        ),
        ForebayCommand::Reload(args) => reload(&args),
        ForebayCommand::Resize(args) => resize(&args),
        ForebayCommand::Gateway(args) => in_runtime(gateway::run(args.act)),
        ForebayCommand::Claim(args) => claim::run(args.act),
        ForebayCommand::Forget(args) => forget::run(&args),
        ForebayCommand::Ls(args) => in_runtime(ls::run(&args)),
        ForebayCommand::Object(args) => in_runtime(object::run(args.act)),
        ForebayCommand::Names(args) => names_command::run(&args),
        ForebayCommand::Volume(args) => volume_command::run(args.act),
        ForebayCommand::Attach(args) => attachment::run(args),
        ForebayCommand::Detach(args) => attachment::detach(&args),
        ForebayCommand::Quickstart(args) => in_runtime(quickstart::run(&args)),
        ForebayCommand::Tunnel(args) => in_runtime(tunnel::run(args)),
        ForebayCommand::Link(args) => in_runtime(link(args)),
        ForebayCommand::Lab(args) => lab::run(&args),
        ForebayCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
            print(&script)
        }
        ForebayCommand::Man(args) => manual_pages::run(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs the work on this thread and on as many others as there are CPUs.
fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

fn reload(args: &cli::Reload) -> Result<(), Failure> {
    match control_socket::ask(&args.whom.path()?, ControlRequest::Reload)? {
        ControlResponse::Changes(changes) if changes.is_empty() => {
            print_line("nothing is different")
        }
        ControlResponse::Changes(changes) => print(changes.for_people()),
        other => Err(other.unexpected()),
    }
}

fn resize(args: &cli::Resize) -> Result<(), Failure> {
    let request = ControlRequest::Resize {
        target: args.target.clone(),
        lun: args.lun,
        bytes: args.size.map(|size| size.0),
    };
    match control_socket::ask(&args.whom.path()?, request)? {
        ControlResponse::Resized { bytes } => {
            print_line(format_args!("{} LUN {} has {bytes} bytes", args.target, args.lun))
        }
        other => Err(other.unexpected()),
    }
}

async fn link(args: cli::LinkArgs) -> Result<(), Failure> {
    let line =
        relay_link::RelayLinkSettings { delay: args.delay.0, rate: args.rate.max(1) * 1_000_000 };
    let link =
        relay_link::RelayLink::open(args.listen, args.to, line).await.map_err(Failure::new)?;
    print_line(format_args!("ready {}", link.address()))?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(Failure::new)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let traffic = link.traffic();
    print_line(serde_json::json!(traffic))
}

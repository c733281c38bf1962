//! `forebay lab wan`: creates a link, changes and shows it through a control socket, and removes it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use control::{ControlRequest, ControlResponse, Failure, LinkEnd, Linked};
use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
};
use wan::{DirectionSettings, Error, Link, LinkOptions, LinkReport, Netem, WanLinkEnd};

use super::{
    arguments::{LabWanChangeArgs, LabWanRunArgs, LabWanStatusArgs, WanLinkNameArgs},
    link_failure::failed,
    link_settings::{LabLinkSetting, words},
};
use crate::{
    control_socket::{self, ControlSocket},
    linked::link_for_people,
    output::{print, print_line},
};

/// Folder of the links' control sockets. The processes of links run as root.
const FOLDER: &str = "/run/forebay-lab";
/// Interval at which the process checks whether its emulated link still exists.
const LOOK: Duration = Duration::from_secs(1);

/// Creates an emulated link, and carries its packets until a signal ends the process.
pub fn run(args: &LabWanRunArgs) -> Result<(), Failure> {
    let mut settings = <[DirectionSettings; 2]>::default();
    args.ways.set(&mut settings)?;
    let options = LinkOptions {
        name: args.named.name.clone(),
        settings,
        seed: args.seed,
        capture: args.pcap.clone(),
    };
    let checked = if args.netem { Netem::check(&options) } else { wan::check(&options) };
    checked.map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let result = runtime.block_on(serve(&options, args.netem, args.json));
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// An emulated link that runs in this process and answers on its control socket.
struct RunningWanLink {
    link: Carried,
    name: String,
    seed: u64,
}

enum Carried {
    /// The packets are carried by Forebay's emulator, in this process.
    Emulated(Link),
    /// The packets are carried by netem of the Linux kernel.
    ByNetem(Netem),
}

impl Carried {
    fn open(options: &LinkOptions, by_netem: bool) -> Result<Self, Error> {
        if by_netem {
            Netem::open(options).map(Self::ByNetem)
        } else {
            Link::open(options).map(Self::Emulated)
        }
    }

    fn settings(&self) -> &[DirectionSettings; 2] {
        match self {
            Self::Emulated(link) => link.settings(),
            Self::ByNetem(link) => link.settings(),
        }
    }

    fn change(&mut self, settings: [DirectionSettings; 2]) -> Result<(), Error> {
        match self {
            Self::Emulated(link) => link.change(settings),
            Self::ByNetem(link) => link.change(settings),
        }
    }

    fn report(&self) -> Result<LinkReport, Error> {
        match self {
            Self::Emulated(link) => link.report(),
            Self::ByNetem(link) => link.report(),
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Self::Emulated(link) => link.is_there(),
            Self::ByNetem(link) => link.is_there(),
        }
    }
}

async fn serve(options: &LinkOptions, by_netem: bool, json: bool) -> Result<(), Failure> {
    let caught = |kind| signal(kind).map_err(Failure::new);
    let mut terminate = caught(SignalKind::terminate())?;
    let mut interrupt = caught(SignalKind::interrupt())?;
    let mut hangup = caught(SignalKind::hangup())?;
    let mut control = ControlSocket::open(&socket(&options.name)).map_err(|failure| Failure {
        remedy: Some("stop that one, or give this one another --name".to_owned()),
        ..failure
    })?;
    let link = Carried::open(options, by_netem).map_err(failed)?;
    let running = RunningWanLink { link, name: options.name.clone(), seed: options.seed };
    let running = Arc::new(Mutex::new(running));
    let asked = Arc::clone(&running);
    let answered = control.serve(move |request| answer(Arc::clone(&asked), request)).await;
    answered.map_err(Failure::new)?;
    let [near, far] = [WanLinkEnd::Near, WanLinkEnd::Far].map(|end| end_of(end, &options.name));
    print_line(format_args!(
        "ready {} {} {} {}",
        near.namespace, near.address, far.namespace, far.address
    ))?;
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => break,
            _ = look.tick() => {
                if !running.lock().link.is_there() {
                    break;
                }
            }
        }
    }
    let linked = running.lock().linked()?;
    print_linked(&linked, json)?;
    control.finish().await;
    Ok(())
}

async fn answer(running: Arc<Mutex<RunningWanLink>>, request: ControlRequest) -> ControlResponse {
    let answered = spawn_blocking(move || match request {
        ControlRequest::Status => running.lock().linked(),
        ControlRequest::Link { near_to_far, far_to_near } => {
            running.lock().change([near_to_far, far_to_near])
        }
        _ => Err(Failure::new("this process carries the packets of a link, and serves nothing")
            .remedy(
                "name the settings of a process of `forebay serve` with --config, or its \
                 socket with --control",
            )),
    });
    match answered.await {
        Ok(Ok(linked)) => ControlResponse::Link(Box::new(linked)),
        Ok(Err(failure)) => ControlResponse::Failure(failure),
        Err(_) => ControlResponse::Failure(
            Failure::new("the process ended before it completed the request")
                .remedy("`forebay lab wan status` shows whether the link is still there"),
        ),
    }
}

impl RunningWanLink {
    /// Applies all given settings to the link, or none of them if one is invalid.
    fn change(&mut self, words: [Vec<String>; 2]) -> Result<Linked, Failure> {
        let mut settings = self.link.settings().clone();
        for (settings, words) in settings.iter_mut().zip(words) {
            for word in words {
                let word: LabLinkSetting = word.parse().map_err(Failure::settings)?;
                word.set(settings).map_err(Failure::settings)?;
            }
        }
        self.link.change(settings).map_err(failed)?;
        self.linked()
    }

    fn linked(&self) -> Result<Linked, Failure> {
        let [near_to_far, far_to_near] = self.link.settings().each_ref().map(words);
        Ok(Linked {
            name: self.name.clone(),
            process: std::process::id(),
            near: end_of(WanLinkEnd::Near, &self.name),
            far: end_of(WanLinkEnd::Far, &self.name),
            seed: self.seed,
            near_to_far,
            far_to_near,
            report: self.link.report().map_err(failed)?,
        })
    }
}

pub fn change(args: &LabWanChangeArgs) -> Result<(), Failure> {
    let [near_to_far, far_to_near] = args.ways.words().map(|words| {
        let words = words.iter().map(LabLinkSetting::to_string);
        words.collect::<Vec<_>>()
    });
    if near_to_far.is_empty() && far_to_near.is_empty() {
        return Err(Failure::settings("no setting to change is named")
            .remedy("give a setting, as in --delay 4ms or --forth loss=2.7%"));
    }
    let linked = ask(&args.named, ControlRequest::Link { near_to_far, far_to_near })?;
    print(link_for_people(&linked))
}

pub fn status(args: &LabWanStatusArgs) -> Result<(), Failure> {
    print_linked(&ask(&args.named, ControlRequest::Status)?, args.json)
}

/// Removes the network namespaces and files that a killed link has left.
pub fn remove(args: &WanLinkNameArgs) -> Result<(), Failure> {
    let there_was = wan::clear(&args.name).map_err(failed)?;
    let name = &args.name;
    print_line(if there_was {
        format!("the remains of {name} are removed")
    } else {
        format!("nothing is left of {name}")
    })
}

fn ask(named: &WanLinkNameArgs, request: ControlRequest) -> Result<Linked, Failure> {
    let name = &named.name;
    let not_running = || {
        Failure::new(format!("no link {name} is running"))
            .remedy(format!("start it with `forebay lab wan run --name {name}`"))
    };
    match control_socket::ask_or(&socket(name), request, not_running)? {
        ControlResponse::Link(linked) => Ok(*linked),
        other => Err(other.unexpected()),
    }
}

fn print_linked(linked: &Linked, json: bool) -> Result<(), Failure> {
    if json {
        print_line(serde_json::to_string(linked).map_err(Failure::new)?)
    } else {
        print(link_for_people(linked))
    }
}

fn end_of(end: WanLinkEnd, link: &str) -> LinkEnd {
    LinkEnd {
        namespace: end.namespace(link),
        address: end.address().to_owned(),
        address6: end.address6().to_owned(),
    }
}

fn socket(link: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{link}.sock"))
}

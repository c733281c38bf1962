//! Creates, changes and removes an emulated link between two network namespaces.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        mpsc::{Sender, channel, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    DirectionSettings, Error, LinkDirection, LinkReport, LinkSettingsError,
    emulator::{Emulator, EmulatorCommand, Lane},
    namespace::{self, LinkNamespace},
    oversleep::Oversleep,
    packet_capture::Capture,
    system_calls,
    timeliness::Timeliness,
};

/// An emulated link. Dropping this removes the link and its network namespaces.
#[derive(Debug)]
pub struct Link {
    settings: [DirectionSettings; 2],
    orders: Sender<EmulatorCommand>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    /// This must be the last field, since fields are dropped in their order: first the thread ends and its devices are
    /// closed, then the namespaces are removed.
    namespaces: [LinkNamespace; 2],
}

#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The name: 1 to 32 letters, digits, `-` and `_`. The namespaces are `NAME-near` and `NAME-far`.
    pub name: String,
    /// Settings of the direction from the near end to the far end, and of the opposite direction.
    pub settings: [DirectionSettings; 2],
    /// The seed of losses and all other random decisions. The same seed selects the same packets again.
    pub seed: u64,
    /// Capture file (pcap) for the packets that arrive at either end; `None` for no capture.
    pub capture: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WanLinkEnd {
    Near,
    Far,
}

/// Name of the network device in both namespaces.
pub const DEVICE: &str = "wan0";
/// Time limit for an answer of the emulator's thread, which reads its commands in each iteration of
/// its loop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Queue length of a device in packets: 60 ms of packets of 1500 bytes at 1 Gbit/s, so that only the link's own queue
/// drops packets.
const DEVICE_QUEUE: usize = 5000;
/// The smallest MTU of IPv6 (RFC 8200, 5).
const IPV6_MTU: u16 = 1280;

impl WanLinkEnd {
    /// Returns the IPv4 address of this end of the link.
    #[must_use]
    pub fn address(self) -> &'static str {
        match self {
            Self::Near => "10.99.0.1",
            Self::Far => "10.99.0.2",
        }
    }

    /// Returns the IPv6 address of the end. The end has it only with an MTU of 1280 or more.
    #[must_use]
    pub fn address6(self) -> &'static str {
        match self {
            Self::Near => "fd99::1",
            Self::Far => "fd99::2",
        }
    }

    #[must_use]
    pub fn namespace(self, link: &str) -> String {
        match self {
            Self::Near => format!("{link}-near"),
            Self::Far => format!("{link}-far"),
        }
    }

    /// Returns the path of the network namespace of this end, which a process can enter.
    #[must_use]
    pub fn path(self, link: &str) -> PathBuf {
        namespace::path(&self.namespace(link))
    }

    /// Returns a command to which a program and its arguments are added to run in the namespace. `None` if there is
    /// no such namespace.
    ///
    /// # Errors
    /// If the name is invalid, or `ip` is not installed.
    pub fn command(self, link: &str) -> Result<Option<Command>, Error> {
        check_name(link)?;
        let namespace = self.namespace(link);
        let is_there = namespace::path(&namespace).exists();
        is_there.then(|| namespace::command(&namespace)).transpose()
    }

    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// The two ends of a link, in the order of all arrays with an element for each end.
pub(crate) const ENDS: [WanLinkEnd; 2] = [WanLinkEnd::Near, WanLinkEnd::Far];

/// Checks whether a link with these options can be made here. Changes nothing.
///
/// # Errors
/// The obstacle: settings, privileges, `/dev/net/tun`, `ip`, or a namespace with the same name.
pub fn check(options: &LinkOptions) -> Result<(), Error> {
    options.settings.iter().try_for_each(DirectionSettings::check)?;
    check_name(&options.name)?;
    check_privilege()?;
    system_calls::open_tun().map_err(Error::NoTun)?;
    vacant(options)
}

/// Checks the link's name and the privileges, and that no running link and no other program has namespaces of this
/// name. Namespaces that are left from a killed emulator are no error.
pub(crate) fn vacant(options: &LinkOptions) -> Result<(), Error> {
    check_name(&options.name)?;
    check_privilege()?;
    namespace::find_ip()?;
    for end in ENDS {
        let namespace = end.namespace(&options.name);
        match namespace::owner(&namespace)? {
            namespace::NamespaceOwner::Absent | namespace::NamespaceOwner::Left => {}
            namespace::NamespaceOwner::Running(process) => {
                return Err(Error::InUse { namespace, process });
            }
            namespace::NamespaceOwner::Other => return Err(Error::Foreign { namespace }),
        }
    }
    Ok(())
}

/// Removes the namespaces that a killed link with this name has left behind. Returns true if there were any.
pub fn clear(name: &str) -> Result<bool, Error> {
    check_name(name)?;
    check_privilege()?;
    let mut cleared = false;
    for end in ENDS {
        cleared |= namespace::clear(&end.namespace(name))?;
    }
    Ok(cleared)
}

impl Link {
    /// Makes the namespaces and devices, and starts to carry packets.
    ///
    /// # Errors
    /// As [`check`], or those of the system; then nothing is left behind.
    pub fn open(options: &LinkOptions) -> Result<Self, Error> {
        check(options)?;
        let capture = options.capture.as_deref().map(open_capture).transpose()?;
        let [near, far] = ENDS.map(|end| LinkNamespace::make(end.namespace(&options.name)));
        let namespaces = [near?, far?];
        let devices = [
            make_device(&namespaces[0], WanLinkEnd::Near, &options.settings[0])?,
            make_device(&namespaces[1], WanLinkEnd::Far, &options.settings[1])?,
        ];
        let now = Instant::now();
        let [forth, back] = options.settings.clone();
        // Use different seeds, so that the directions have different random events.
        let lanes = [
            Lane::new(LinkDirection::new(forth, options.seed, now)?),
            Lane::new(LinkDirection::new(back, !options.seed, now)?),
        ];
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let failed = || Error::system("start the thread that carries packets");
        let wake = Arc::new(wake.map_err(|error| failed()(error.into()))?);
        let (orders, receiver) = channel();
        let emulator = Emulator {
            devices,
            lanes,
            orders: receiver,
            wake: Arc::clone(&wake),
            health: Timeliness::since(0),
            capture,
            is_real_time: false,
            awake: None,
            oversleep: Oversleep::new(std::thread::available_parallelism().map_or(1, usize::from)),
        };
        let thread = std::thread::Builder::new().name("link".to_owned());
        let thread = thread.spawn(move || emulator.run()).map_err(failed())?;
        let settings = options.settings.clone();
        Ok(Self { settings, orders, wake, thread: Some(thread), namespaces })
    }

    /// Returns the present settings of the direction to the far end, and of the opposite direction.
    #[must_use]
    pub fn settings(&self) -> &[DirectionSettings; 2] {
        &self.settings
    }

    /// Changes the settings for packets that are sent from now on.
    ///
    /// # Errors
    /// If a setting is wrong; then nothing is changed. If the link is broken, or a device does not accept the new
    /// MTU.
    pub fn change(&mut self, settings: [DirectionSettings; 2]) -> Result<(), Error> {
        settings.iter().try_for_each(DirectionSettings::check)?;
        crosses_ipv6(&self.settings, &settings)?;
        for ((namespace, old), new) in self.namespaces.iter().zip(&self.settings).zip(&settings) {
            if old.mtu != new.mtu {
                namespace.ip(&["link", "set", DEVICE, "mtu", &new.mtu.to_string()])?;
            }
        }
        self.tell(EmulatorCommand::Change(Box::new(settings.clone())))?;
        self.settings = settings;
        Ok(())
    }

    /// Begins a new measurement of how late packets are delivered and of steal time; reasons to doubt the link (taints)
    /// are derived from these. The other counters continue.
    pub fn judge_from_now(&self) -> Result<(), Error> {
        self.tell(EmulatorCommand::JudgeFromNow)
    }

    /// Returns the counters and the state of the link.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn report(&self) -> Result<LinkReport, Error> {
        let (answer, answered) = sync_channel(1);
        self.tell(EmulatorCommand::Report(answer))?;
        let no_answer = |_| Error::Broken("it does not answer".to_owned());
        answered.recv_timeout(PATIENCE).map_err(no_answer)
    }

    /// Returns true if the link carries packets; false if its devices were removed.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    fn tell(&self, order: EmulatorCommand) -> Result<(), Error> {
        let gone = || Error::Broken("its devices were removed".to_owned());
        self.orders.send(order).map_err(|_| gone())?;
        let woken = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        woken.map(drop).map_err(|_| gone())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Sending fails if the thread has ended by itself.
        let _ = self.tell(EmulatorCommand::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fails if the MTU changes from below 1280 to at least 1280 or back. Below that minimum of IPv6, the kernel removes
/// IPv6 from the device, and does not restore the same addresses later.
pub(crate) fn crosses_ipv6(
    old: &[DirectionSettings; 2],
    new: &[DirectionSettings; 2],
) -> Result<(), LinkSettingsError> {
    let crosses = |(old, new): (&DirectionSettings, &DirectionSettings)| {
        (old.mtu < IPV6_MTU) != (new.mtu < IPV6_MTU)
    };
    if old.iter().zip(new).any(crosses) {
        let reason = format!(
            "the MTU of a link cannot cross {IPV6_MTU}, the minimum of IPv6, while it runs: stop the link and start a new one"
        );
        return Err(LinkSettingsError::Together(reason));
    }
    Ok(())
}

/// Checks that a link can have this name, whether the name is in use or not.
pub fn check_name(name: &str) -> Result<(), Error> {
    let is_sound = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    // A name that begins with a dash would be read as an option by `ip`.
    let is_name =
        (1..=32).contains(&name.len()) && name.bytes().all(is_sound) && !name.starts_with('-');
    if is_name { Ok(()) } else { Err(Error::Name(name.to_owned())) }
}

/// The bits of the capabilities that `ip` needs (capabilities(7)): CAP_NET_ADMIN, CAP_SYS_ADMIN.
const NEEDED: u64 = 1 << 12 | 1 << 21;

fn check_privilege() -> Result<(), Error> {
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(Error::system("read /proc/self/status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    if effective.is_some_and(|bits| bits & NEEDED == NEEDED) {
        Ok(())
    } else {
        Err(Error::Privilege)
    }
}

fn open_capture(path: &Path) -> Result<Capture, Error> {
    Capture::create(path).map_err(Error::system(format!("make {}", path.display())))
}

/// Creates the network device at this end of the link, with its addresses.
fn make_device(
    namespace: &LinkNamespace,
    end: WanLinkEnd,
    settings: &DirectionSettings,
) -> Result<OwnedFd, Error> {
    // The kernel makes a device in the namespace of the calling thread.
    let made = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            namespace.enter()?;
            let tun = system_calls::open_tun().map_err(Error::NoTun)?;
            system_calls::make_tun(tun, DEVICE).map_err(Error::system("make a TUN device"))
        });
        thread.join().expect("making a device does not panic")
    })?;
    namespace.ip_batch(&addresses(end, settings.mtu))?;
    Ok(made)
}

/// Returns the input of `ip -batch` that brings up the device at an end with its addresses.
pub(crate) fn addresses(end: WanLinkEnd, mtu: u16) -> String {
    let (own, other) = (end.address(), end.other().address());
    // Set no link-local addresses, so that only the programs at the ends send packets.
    let mut lines = format!(
        "link set lo up\n\
         link set {DEVICE} addrgenmode none\n\
         link set {DEVICE} mtu {mtu} txqueuelen {DEVICE_QUEUE} up\n\
         addr add {own} peer {other} dev {DEVICE}\n"
    );
    if mtu >= IPV6_MTU && Path::new("/proc/net/if_inet6").exists() {
        let (own, other) = (end.address6(), end.other().address6());
        lines += &format!("addr add {own} peer {other} dev {DEVICE} nodad\n");
    } else {
        lines = lines.replace(&format!("link set {DEVICE} addrgenmode none\n"), "");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_of_letters_and_digits() {
        for good in ["wan", "a", "paper-2_b", &"x".repeat(32)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for wrong in ["", "-n", "a b", "a/b", "../a", "ä", &"x".repeat(33)] {
            assert!(matches!(check_name(wrong), Err(Error::Name(_))), "{wrong}");
        }
    }
}

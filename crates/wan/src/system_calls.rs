//! System calls for which our libraries have no safe function: those for TUN devices and for the scheduler.
//! All unsafe code of this crate is here.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::fs::OpenOptionsExt,
};

/// Opens `/dev/net/tun`, with which [`make_tun`] makes a device.
pub(crate) fn open_tun() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open("/dev/net/tun")
}

/// Makes a TUN device in the namespace of this thread. The device passes IP packets, each with an offload
/// header; they may have incomplete checksums and several TCP segments. The device exists as long as the
/// descriptor is open.
pub(crate) fn make_tun(tun: File, name: &str) -> io::Result<OwnedFd> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
        },
    };
    // Do not fill the last byte of the name: it stays zero and terminates the string.
    let room = request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut();
    room.zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    // SAFETY: the descriptor is open, and the request is one `ifreq`, which the call reads and writes.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: the descriptor is open, and this call takes a number.
    check(unsafe {
        libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload))
    })?;
    Ok(tun.into())
}

/// Gives the calling thread real-time priority over all threads without it.
pub(crate) fn run_first() -> io::Result<()> {
    // The lowest real-time priority is sufficient: this thread need not precede other real-time threads.
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: zero means this thread, and the parameter is read only.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

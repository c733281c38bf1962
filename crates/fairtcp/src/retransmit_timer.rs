//! Shortens the minimum retransmission timeout of members.
//!
//! In the paper, members share the measured round trip time and its variance, so that no connection waits longer than
//! necessary for a retransmission (2.2). A BPF program may not write these values to a socket. Even if it could, this
//! would have no effect, because the values result in timeouts below the kernel's minimum of 200 ms. This module
//! therefore changes the minimum itself.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The least time in microseconds by which a member's retransmission timer exceeds its round trip time. If a single
/// segment is in flight, the tail loss probe (RFC 8985, 7.2) is delayed by the same time. The kernel's default is 200
/// ms. In 200 ms, 10 to 100 commands complete on a link with a delay of some milliseconds. Ten processes of PostMark at
/// 4 ms and 2.7 % loss took 22 to 24 s with the default, and 17 to 19 s with this value (docs/results/laboratory.md).
///
/// Linux delays an acknowledgment for a shorter time than this (40 ms or a round trip time). Other systems delay it for
/// up to 200 ms. A single segment to such a system is sent twice until the variance of the round trip time is known,
/// and the window reduction that this causes is undone.
const LEAST_US: libc::c_int = 50_000;

/// The number of the socket option in linux/tcp.h, which exists since Linux 6.15.
const TCP_RTO_MIN_US: libc::c_int = 45;

/// Shortens the retransmission timer of a TCP socket to [`LEAST_US`] above the round trip time.
///
/// # Errors
/// The error of the kernel; older kernels do not support the option. The socket is unchanged then.
pub(crate) fn shorten(socket: BorrowedFd<'_>) -> io::Result<()> {
    let (least, length) = (LEAST_US, size_of_val(&LEAST_US) as libc::socklen_t);
    // SAFETY: the descriptor is borrowed, and the kernel reads `length` bytes of a value of that length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MIN_US,
            (&raw const least).cast(),
            length,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;

    fn least(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
        let (mut value, mut length): (libc::c_int, libc::socklen_t) = (0, 4);
        // SAFETY: the kernel writes 4 bytes to `value`.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                TCP_RTO_MIN_US,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        (answer == 0).then_some(value)
    }

    #[test]
    fn the_timer_is_shorter_where_the_kernel_knows_how() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = least(socket.as_fd());
        let told = shorten(socket.as_fd());
        match (before, least(socket.as_fd())) {
            (None, None) => assert!(told.is_err()),
            // The kernel rounds the value up to a multiple of its tick, which is at most 10 ms.
            (Some(before), Some(after)) => {
                told.unwrap();
                assert!(before > 100_000 && (LEAST_US..=LEAST_US + 10_000).contains(&after));
            }
            other => panic!("{other:?}"),
        }
    }
}

//! How soon a member takes what it hears nothing of for lost.
//!
//! The paper's block shares round trip time and variance, so that no connection waits longer than what the
//! others have found (2.2). A program in the kernel may not write them to a socket; it need not, since what
//! they give is less than the kernel's least of 200 ms. What can be had is that least.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// By how much at least a member's retransmission timer exceeds its round trip time, in microseconds; where one segment
/// alone is on its way, also the probe of RFC 8985, 7.2, waits so much longer. The kernel's own is 200 ms, which over
/// some milliseconds of distance is what 10 to 100 commands take: ten processes of PostMark at 4 ms and 2.7 % loss
/// took 22 to 24 s with it and 17 to 19 s with this (docs/results/laboratory.md).
///
/// More than Linux delays an acknowledgment, 40 ms or a round trip time. Others delay it for up to 200 ms: to these a segment
/// that is alone goes twice until the variance is known, and what that cut is given back by the undo.
const LEAST_US: libc::c_int = 50_000;

/// linux/tcp.h, since Linux 6.15.
const TCP_RTO_MIN_US: libc::c_int = 45;

/// Shortens the timer of a TCP socket.
///
/// # Errors
/// What the kernel says; an older one does not know the option. The socket is as it was.
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
            // The kernel rounds up to its ticks, 10 ms at most.
            (Some(before), Some(after)) => {
                told.unwrap();
                assert!(before > 100_000 && (LEAST_US..=LEAST_US + 10_000).contains(&after));
            }
            other => panic!("{other:?}"),
        }
    }
}

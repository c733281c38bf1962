//! Decides which errors of the system are worth another attempt, and converts the others to errors of the volume.

use std::io;

use super::ledger::{is_no_space, is_passing};
use crate::{Error, Extent};

/// Number of attempts for an operation that fails with a temporary error.
pub(super) const TRIES: u32 = 100;

/// Returns `Ok` after a temporary error and decrements `tries`, so that the caller tries again. When `tries` is 0, or
/// after another error, returns the error, with the blocks of `extent` if they are known.
pub(super) fn again(
    error: io::Error,
    extent: Option<Extent>,
    tries: &mut u32,
) -> Result<(), Error> {
    *tries -= 1;
    if is_passing(&error) && *tries > 0 {
        return Ok(());
    }
    if is_no_space(&error) {
        return Err(Error::NoSpace);
    }
    Err(match (error.raw_os_error(), extent) {
        (Some(libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO), Some(extent)) => {
            Error::Medium { extent, reason: error.to_string().into() }
        }
        _ => Error::Device(error.to_string().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    #[test]
    fn errors_of_the_system_become_errors_of_the_volume() {
        let extent = Extent { lba: Lba(7), blocks: 2 };
        let error = |code| {
            again(io::Error::from_raw_os_error(code), Some(extent), &mut { TRIES })
                .expect_err("final")
        };
        assert!(matches!(error(libc::ENOSPC), Error::NoSpace));
        assert!(matches!(error(libc::EDQUOT), Error::NoSpace));
        assert!(matches!(error(libc::EIO), Error::Medium { extent: e, .. } if e == extent));
        assert!(matches!(error(libc::ENXIO), Error::Device(_)));
    }

    #[test]
    fn transient_errors_are_retried_a_limited_number_of_times() {
        let mut tries = TRIES;
        let mut results =
            (0..TRIES).map(|_| again(io::Error::from_raw_os_error(libc::EAGAIN), None, &mut tries));
        assert!(results.by_ref().take(TRIES as usize - 1).all(|result| result.is_ok()));
        assert!(results.next().expect("the last").is_err());
    }
}

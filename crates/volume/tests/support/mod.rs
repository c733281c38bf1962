//! Finds out whether the kernel allows io_uring, and makes it refuse io_uring.

#![allow(dead_code, reason = "each test binary uses its part")]

use volume::{EngineKind, FileVolume, FileVolumeOptions};

/// Returns the I/O engines that this kernel allows.
pub fn engines() -> Vec<EngineKind> {
    if uring_is_there() {
        vec![EngineKind::Uring, EngineKind::Psync]
    } else {
        vec![EngineKind::Psync]
    }
}

/// Returns true if the kernel allows io_uring, which containers often do not.
pub fn uring_is_there() -> bool {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("room");
    let options =
        FileVolumeOptions { engine: EngineKind::Uring, ..FileVolumeOptions::new(file.path()) };
    let there = FileVolume::open(&options).is_ok();
    if !there {
        eprintln!("left out: the kernel refuses io_uring");
    }
    there
}

/// Makes the kernel refuse io_uring to this thread and the threads that it starts, as in a
/// container: installs a seccomp filter that returns EPERM.
pub fn refuse_uring() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // Load the number of the system call, which is the first word of `seccomp_data`.
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: program and filter exist until the calls return, and the kernel copies them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

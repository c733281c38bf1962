//! Tests the programs in the running kernel, with TCP over loopback. The tests need a kernel with BTF and congestion
//! control in BPF, and the privilege to load one. Otherwise they print a message and end.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fairtcp::{
    Ensemble, EnsembleControlBlock, EnsembleOptions, Error, Fair, Growth, WindowSharing,
};
use rustix::net::sockopt;

/// Loads the congestion control. Each test must use another name: tests run concurrently, and names are global in the
/// kernel.
fn load(name: &str, options: EnsembleOptions) -> Option<Arc<Fair>> {
    let options = EnsembleOptions { name: name.to_owned(), ..options };
    match Fair::load(&options) {
        Ok(fair) => Some(Arc::new(fair)),
        Err(error @ (Error::NoTypes(_) | Error::NotAllowed(_))) => {
            println!("not run: {error}; {}", error.remedy().unwrap_or_default());
            None
        }
        // An older kernel lacks the feature. On a newer kernel this error would be a bug of this crate.
        Err(error @ Error::Unsupported { .. }) if kernel() < (6, 4) => {
            println!("not run: {error}; {}", error.remedy().unwrap_or_default());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns version and patch level of the kernel.
fn kernel() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|it| it.parse().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let near = TcpStream::connect(listener.local_addr().unwrap()).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    (near, far)
}

fn connections(count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    (0..count).map(|_| connection()).unzip()
}

/// Sends `bytes` bytes from each near end to its far end, on all connections at the same time.
fn transfer(near: &[TcpStream], far: &[TcpStream], bytes: usize) {
    thread::scope(|scope| {
        for (mut near, mut far) in near.iter().zip(far) {
            scope.spawn(move || near.write_all(&vec![0x5a; bytes]).expect("sent"));
            scope.spawn(move || {
                let mut data = vec![0; bytes];
                far.read_exact(&mut data).expect("received");
                assert!(data.iter().all(|&byte| byte == 0x5a), "as sent");
            });
        }
    });
}

fn offered() -> Vec<String> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    list.expect("IPv4").split_whitespace().map(str::to_owned).collect()
}

/// Waits until `is_so` returns true. The kernel does a part of its work with a delay.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the minimum by which the socket's retransmission timer exceeds its round trip time, if the kernel
/// supports the option (TCP_RTO_MIN_US, Linux 6.15).
fn least_timer_us(socket: &TcpStream) -> Option<libc::c_int> {
    let (mut value, mut length): (libc::c_int, libc::socklen_t) = (0, 4);
    let answer = &raw mut value;
    // SAFETY: the kernel writes 4 bytes to `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, 45, answer.cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}

#[test]
fn members_share_a_window_and_leave_it_when_they_are_closed() {
    let Some(fair) = load("fairtest_a", EnsembleOptions::default()) else { return };
    let session = Ensemble::new(&fair).unwrap();
    let block = || session.blocks()[0];
    assert_eq!(block(), EnsembleControlBlock::default());
    let (near, far) = connections(4);
    near.iter().for_each(|socket| session.join(socket).unwrap());
    assert_eq!(block().members, 4);
    assert!(near.iter().all(|it| sockopt::tcp_congestion(it).unwrap() == fair.name()));
    session.join(&near[0]).unwrap();
    assert_eq!(block().members, 4, "a member stays a member, counted once");
    for (member, other) in near.iter().zip(&far) {
        let [member, other] = [least_timer_us(member), least_timer_us(other)];
        assert!(member.is_none() || member < other, "{member:?} and {other:?}");
    }

    transfer(&near, &far, 4 << 20);
    let after = block();
    assert!(after.grown > 0 && after.cwnd >= 8.0, "{after:?}");
    assert!(after.srtt > Duration::ZERO && after.srtt < Duration::from_secs(1), "{after:?}");
    // On loopback, segments are lost only if the receiver's buffer overflows, so the window is rarely reduced.
    assert!(after.ssthresh >= 8.0, "{after:?}");

    sockopt::set_tcp_congestion(&near[0], "reno").unwrap();
    assert_eq!(block().members, 3, "another congestion control: it has left");
    assert!(block().cwnd < after.cwnd, "and its share is removed");
    drop((near, far));
    // Wait, because the last data may still be in flight when the last socket is closed.
    wait_for("all have left", || block().members == 0);
}

#[test]
fn each_connection_is_alone_when_that_is_asked_for() {
    let options = EnsembleOptions {
        sharing: WindowSharing::Connection,
        growth: Growth::PerAck,
        ..EnsembleOptions::default()
    };
    let Some(fair) = load("fairtest_b", options) else { return };
    let session = Ensemble::new(&fair).unwrap();
    assert_eq!(session.blocks(), []);
    let (near, far) = connections(2);
    near.iter().for_each(|socket| session.join(socket).unwrap());
    transfer(&near, &far, 1 << 20);
    let blocks = session.blocks();
    assert_eq!(blocks.iter().map(|it| it.members).collect::<Vec<_>>(), [1, 1]);
    assert!(blocks.iter().all(|it| it.srtt > Duration::ZERO), "acknowledged: {blocks:?}");
}

#[test]
fn ensembles_do_not_share_and_a_block_with_members_is_not_assigned_again() {
    let Some(fair) = load("fairtest_c", EnsembleOptions::default()) else { return };
    let (near, _far) = connections(2);
    let (one, two) = (Ensemble::new(&fair).unwrap(), Ensemble::new(&fair).unwrap());
    one.join(&near[0]).unwrap();
    assert_eq!((one.blocks()[0].members, two.blocks()[0].members), (1, 0));
    // The first session has ended, but its connection still exists and uses the control block.
    drop(one);
    let three = Ensemble::new(&fair).unwrap();
    assert_eq!(three.blocks()[0].members, 0);
    three.join(&near[1]).unwrap();
    assert_eq!(three.blocks()[0].members, 1);
}

#[test]
fn a_socket_that_only_selects_the_congestion_control_shares_no_window() {
    let Some(fair) = load("fairtest_d", EnsembleOptions::default()) else { return };
    let (near, far) = connections(1);
    sockopt::set_tcp_congestion(&near[0], fair.name()).unwrap();
    transfer(&near, &far, 4 << 20);
}

/// A regression test. A socket that uses this congestion control because of the sysctl
/// `net.ipv4.tcp_congestion_control` was considered a member, although it shared nothing.
#[test]
fn a_socket_that_has_the_name_already_becomes_a_member() {
    let Some(fair) = load("fairtest_i", EnsembleOptions::default()) else { return };
    let (one, two) = (Ensemble::new(&fair).unwrap(), Ensemble::new(&fair).unwrap());
    let (near, far) = connections(1);
    sockopt::set_tcp_congestion(&near[0], fair.name()).unwrap();
    one.join(&near[0]).unwrap();
    assert_eq!(one.blocks()[0].members, 1);
    transfer(&near, &far, 1 << 20);
    assert!(one.blocks()[0].srtt > Duration::ZERO, "{:?}", one.blocks());
    one.join(&near[0]).unwrap();
    assert_eq!(one.blocks()[0].members, 1, "a member stays a member, counted once");
    two.join(&near[0]).unwrap();
    assert_eq!((one.blocks()[0].members, two.blocks()[0].members), (0, 1), "it has moved");
}

#[test]
fn only_a_connected_tcp_socket_can_join() {
    let Some(fair) = load("fairtest_e", EnsembleOptions::default()) else { return };
    let session = Ensemble::new(&fair).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let datagrams = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(matches!(session.join(&listener), Err(Error::NotConnected(_))));
    assert!(matches!(session.join(&datagrams), Err(Error::NotConnected(_))));
    assert!(matches!(session.join(&pipe), Err(Error::NotConnected(_))));
    assert_eq!(session.blocks()[0].members, 0);
}

#[test]
fn invalid_names_are_refused() {
    let options = EnsembleOptions { name: "two words".to_owned(), ..EnsembleOptions::default() };
    if load("fairtest_f", EnsembleOptions::default()).is_some() {
        assert!(matches!(Fair::load(&options), Err(Error::Name(_))));
    }
}

/// Another process, which has loaded the congestion control and prints its name. Dropping this value kills the process.
struct Other(Child, String);

impl Other {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "another_process", "--nocapture"])
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut names =
            lines.filter_map(|line| line.ok()?.split("loaded as ").nth(1).map(str::to_owned));
        let name = names.next().expect("it is loaded");
        Self(child, name)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Does nothing in a normal run of the tests. The process that [`Other`] starts runs this code.
#[test]
#[ignore = "part of the test below"]
fn another_process() {
    let Some(fair) = load("fairtest_x", EnsembleOptions::default()) else { return };
    println!("\nloaded as {}", fair.name());
    // End this process when the test ends, which closes the standard input.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn two_processes_have_separate_congestion_controls_and_a_killed_one_leaves_nothing() {
    if load("fairtest_g", EnsembleOptions::default()).is_none() {
        return;
    }
    wait_for("the name is free again", || !offered().contains(&"fairtest_g".to_owned()));
    let (one, two) = (Other::start(), Other::start());
    assert_eq!((&*one.1, &*two.1), ("fairtest_x", "fairtest_x_2"));
    assert!(offered().contains(&one.1) && offered().contains(&two.1));
    // A connection keeps the congestion control when the process that has loaded it is killed.
    let (near, far) = connections(1);
    sockopt::set_tcp_congestion(&near[0], &one.1).unwrap();
    drop(one);
    wait_for("it is offered no more", || !offered().contains(&"fairtest_x".to_owned()));
    assert!(offered().contains(&two.1), "the other's stays");
    transfer(&near, &far, 1 << 20);
    let (new, _) = connection();
    assert!(sockopt::set_tcp_congestion(&new, "fairtest_x").is_err());
    // After the kill, a new process can use the name.
    let again = Other::start();
    assert_eq!(again.1, "fairtest_x");
}

#[test]
fn many_join_and_leave_while_others_transfer() {
    let Some(fair) = load("fairtest_h", EnsembleOptions::default()) else { return };
    let session = Ensemble::new(&fair).unwrap();
    let (near, far) = connections(2);
    near.iter().for_each(|socket| session.join(socket).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let (near, far) = connections(2);
                near.iter().for_each(|socket| session.join(socket).unwrap());
                transfer(&near, &far, 64 << 10);
            }
        });
        transfer(&near, &far, 16 << 20);
    });
    wait_for("the two are left", || session.blocks()[0].members == 2);
    let block = session.blocks()[0];
    assert!(block.cwnd >= 4.0 && block.cwnd < 1e6, "{block:?}");
}

#[test]
fn members_share_a_model_of_the_path() {
    let options = EnsembleOptions { growth: Growth::ByModel, ..EnsembleOptions::default() };
    let Some(fair) = load("fairtest_j", options) else { return };
    let session = Ensemble::new(&fair).unwrap();
    let (near, far) = connections(4);
    near.iter().for_each(|socket| session.join(socket).unwrap());
    assert_eq!(session.blocks()[0].members, 4);
    transfer(&near, &far, 8 << 20);
    let block = session.blocks()[0];
    assert!(block.cwnd >= 8.0 && block.cwnd < 1e6, "{block:?}");
    assert!(block.srtt > Duration::ZERO && block.srtt < Duration::from_secs(1), "{block:?}");
    let path = block.path.expect("a model");
    assert!(path.bandwidth > 100.0 && path.least_rtt > Duration::ZERO, "{path:?}");
    drop((near, far));
    wait_for("all have left", || session.blocks()[0].members == 0);
}

#[test]
fn a_socket_that_only_selects_a_model_shares_no_model() {
    let options = EnsembleOptions { growth: Growth::ByModel, ..EnsembleOptions::default() };
    let Some(fair) = load("fairtest_k", options) else { return };
    let (near, far) = connections(1);
    sockopt::set_tcp_congestion(&near[0], fair.name()).unwrap();
    transfer(&near, &far, 4 << 20);
}

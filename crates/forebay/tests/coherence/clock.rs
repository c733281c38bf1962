//! Clocks that change during operation: only displayed times depend on the time of day.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    BLOCKS, GATEWAY, sharer, sharing,
    support::{Place, connect, content, eventually, forebay, read, write},
};

/// A library that sets the wall clock ten years ahead and twenty back, every second. It does not change other clocks.
const JUMPS: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int ended = syscall(SYS_clock_gettime, clock, now);
    if (ended == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += now->tv_sec % 2 ? 315576000L : -315576000L;
    return ended;
}
"#;

/// Compiles the library that changes the clock; `None` without a compiler.
fn library(place: &Place) -> Option<std::path::PathBuf> {
    let (source, library) = (place.path("jumps.c"), place.path("jumps.so"));
    std::fs::write(&source, JUMPS).expect("written");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ends_no_lease_and_loses_nothing() {
    let place = Place::new();
    let Some(library) = library(&place) else {
        eprintln!("left out: it needs a C compiler");
        return;
    };
    let serve = |name: &str, text: &str| {
        let mut command = forebay();
        command.env("LD_PRELOAD", &library);
        place.try_serve_by(command, name, text).expect("it starts")
    };
    // Use a lease longer than the delays of a busy machine.
    let lease = sharing(&place, 0).replace("share_lease = \"2s\"", "share_lease = \"8s\"");
    let node = serve("node", &lease);
    let text =
        |name, port| format!("{}\ndirty_age = '1s'", sharer(&place, name, node.address, port));
    let (mut near, other) = (serve("a", &text("a", 0)), serve("b", &text("b", 0)));
    let years = || {
        let paused =
            forebay().args(["gateway", "pause", GATEWAY, "--control"]).arg(&other.control).output();
        assert!(paused.expect("it runs").status.success());
        let since =
            other.status()["targets"][0]["units"][0]["layers"][1]["figures"]["paused_since"]
                .clone();
        let resumed = forebay()
            .args(["gateway", "resume", GATEWAY, "--control"])
            .arg(&other.control)
            .output();
        assert!(resumed.expect("it runs").status.success());
        since.as_str().unwrap_or_default().get(..4).and_then(|year| year.parse::<i32>().ok())
    };
    let mut seen = std::collections::BTreeSet::new();
    let begun = Instant::now();
    let mut version = 0;
    let (mut a, b) = (connect(near.address, GATEWAY).await, connect(other.address, GATEWAY).await);
    while begun.elapsed() < Duration::from_secs(6) {
        version += 1;
        for block in BLOCKS {
            let (from, to) = if version % 2 == 0 { (&a, &b) } else { (&b, &a) };
            write(&**from, block, version).await.expect("written");
            assert_eq!(read(&**to, block).await.expect("read"), content(block, version));
        }
        if version % 10 == 0 {
            seen.extend(years());
            for gateway in [&near, &other] {
                let status = gateway.status();
                let figures = &status["targets"][0]["units"][0]["layers"][1]["figures"];
                assert_eq!(figures["share_leased"], true, "{figures}");
            }
        }
    }
    assert!(seen.len() > 1, "it saw the clock jump: {seen:?}");
    // Ages use the monotonic clock, so dirty data is destaged when it is old enough.
    write(&*a, 0, 1000).await.expect("written");
    eventually("it goes down", || near.figure("cache", "dirty_bytes") == 0).await;
    write(&*a, 0, 1001).await.expect("written");
    let port = near.address.port();
    near.kill();
    near = serve("a", &text("a", port));
    a = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*a, 0).await.expect("read"), content(0, 1001));
}

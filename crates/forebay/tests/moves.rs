//! Volumes that move from node to node while hosts use them, and while either node is killed.

mod support;

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use initiator::RemoteVolume;
use serde_json::Value;
use support::{Place, Serving, connect, content, eventually, forebay, read, run, stderr, write};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const PAYROLL: &str = "iqn.2026-11.test:payroll";
const BLOCKS: u64 = 2048;

fn secret(place: &Place) {
    let path = place.path("names");
    std::fs::write(&path, "the secret of all\n").expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

fn names(node: &str, port: u16, seeds: &[SocketAddr]) -> String {
    let quoted: Vec<_> = seeds.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "listen = [\"127.0.0.1:{port}\"]\nstate = \"{node}.state\"\n[names]\nnode = \"{node}\"\n\
         listen = [\"127.0.0.1:0\"]\nseeds = [{}]\nsecret_file = \"names\"\nstale_after = \"5s\"\n",
        quoted.join(", ")
    )
}

/// A seed with something to serve that nobody is told of.
fn seed() -> String {
    format!("{}{}", names("seed", 0, &[]), other("seed"))
}

fn other(node: &str) -> String {
    format!(
        "[[target]]\nname = \"iqn.2026-11.test:{node}\"\n[[target.unit]]\n\
         stack = [ {{ memory = {{ size = \"1MiB\" }} }} ]\n"
    )
}

/// The node that has the volume; `more` of its target.
fn attic(port: u16, seeds: &[SocketAddr], more: &str) -> String {
    format!(
        "{}[[target]]\nname = \"{PAYROLL}\"\n{more}[[target.unit]]\nvolume = \"payroll\"\nlun = 3\n\
         serial = \"PAYROLL-1\"\nstack = [ {{ file = {{ path = \"payroll.img\", size = \"64MiB\" }} }} ]\n",
        names("attic", port, seeds)
    )
}

/// One that takes volumes.
fn cellar(node: &str, seeds: &[SocketAddr], accept: &str) -> String {
    format!("{}{accept}{}", names(node, 0, seeds), other(node))
}

fn accept(node: &str) -> String {
    format!("[accept]\nfolder = \"{node}.moved\"\nsize = \"1GiB\"\n")
}

fn gateway(seeds: &[SocketAddr]) -> String {
    let quoted: Vec<_> = seeds.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        r#"
listen = ["127.0.0.1:0"]
state = "gateway.state"
[names]
seeds = [{}]
secret_file = "names"
stale_after = "5s"
[[target]]
name = "{GATEWAY}"
[[target.unit]]
[[target.unit.stack]]
remote = {{ url = "gln:payroll", give_up_after = "20s" }}
[[target.unit.stack]]
[target.unit.stack.cache]
log = "gateway.log"
log_size = "32MiB"
dram = "8MiB"
"#,
        quoted.join(", ")
    )
}

fn json(of: &Serving, arguments: &[&str]) -> Value {
    let output = forebay()
        .args(arguments)
        .args(["--json", "--control"])
        .arg(&of.control)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

fn naming(of: &Serving) -> SocketAddr {
    let known = json(of, &["names"]);
    known["nodes"][0]["addresses"][0].as_str().expect("an address").parse().expect("an address")
}

fn move_to(of: &Serving, to: &str, more: &[&str]) -> Output {
    forebay()
        .args(["volume", "move", "gln:payroll", "--to", to, "--control"])
        .arg(&of.control)
        .args(more)
        .output()
        .expect("the binary runs")
}

/// Whether a node serves the unit now.
fn serves(of: &Serving) -> bool {
    let status = of.status();
    let targets = status["targets"].as_array().expect("targets").clone();
    targets.iter().any(|target| {
        target["name"] == PAYROLL && !target["units"].as_array().expect("units").is_empty()
    })
}

/// Knows the nodes with these names.
async fn knows(of: &Serving, nodes: &[&str]) {
    eventually("names", || {
        let known = json(of, &["names"]);
        let there = known["nodes"].as_array().expect("nodes");
        nodes.iter().all(|node| there.iter().any(|there| there["node"] == *node))
    })
    .await;
}

async fn connect_to(address: SocketAddr) -> Arc<RemoteVolume> {
    let mut settings = initiator::Settings::new(address.to_string(), PAYROLL, 3);
    settings.give_up_after = Duration::from_secs(20);
    Arc::new(RemoteVolume::connect(settings).await.expect("a login"))
}

/// A host that writes blocks of its own, one after the other, and counts what was acknowledged of each.
struct Load {
    ends: Arc<AtomicBool>,
    versions: Arc<Vec<AtomicU64>>,
    running: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(volume: &Arc<RemoteVolume>, writers: u64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let versions: Arc<Vec<_>> = Arc::new((0..BLOCKS).map(|_| AtomicU64::new(0)).collect());
        let running = (0..writers).map(|writer| {
            let (volume, ends) = (Arc::clone(volume), Arc::clone(&ends));
            let versions = Arc::clone(&versions);
            tokio::spawn(async move {
                let mut round = writer * 7919;
                while !ends.load(Ordering::Relaxed) {
                    round += 1;
                    let block =
                        (round.wrapping_mul(0x9e37_79b9) % (BLOCKS / writers)) * writers + writer;
                    let version = versions[block as usize].load(Ordering::Relaxed) + 1;
                    write(&*volume, block, version).await.expect("no host sees an error");
                    versions[block as usize].store(version, Ordering::Relaxed);
                    if round.is_multiple_of(16) {
                        let found = read(&*volume, block).await.expect("no host sees an error");
                        assert_eq!(found, content(block, version), "{block}");
                    }
                }
            })
        });
        let running = running.collect();
        Self { ends, versions, running }
    }

    fn written(&self) -> u64 {
        self.versions.iter().map(|version| version.load(Ordering::Relaxed)).sum()
    }

    async fn end(self) -> Arc<Vec<AtomicU64>> {
        self.ends.store(true, Ordering::Relaxed);
        for writer in self.running {
            writer.await.expect("no host sees an error");
        }
        self.versions
    }
}

async fn verify(volume: &RemoteVolume, versions: &[AtomicU64], who: &str) {
    for (block, version) in versions.iter().enumerate() {
        let (block, version) = (block as u64, version.load(Ordering::Relaxed));
        assert_eq!(
            read(volume, block).await.expect("read"),
            content(block, version),
            "{who} {block}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_moves_while_a_gateway_and_its_hosts_write_to_it() {
    let place = Place::new();
    secret(&place);
    let seed = place.serve("seed", &seed());
    let seeds = [naming(&seed)];
    let attic_settings = attic(0, &seeds, "");
    let attic = place.serve("attic", &attic_settings);
    let cellar_settings = cellar("cellar", &seeds, &accept("cellar"));
    let cellar = place.serve("cellar", &cellar_settings);
    let near = place.serve("gateway", &gateway(&seeds));
    knows(&attic, &["cellar"]).await;
    let volume = connect(near.address, GATEWAY).await;
    let load = Load::start(&volume, 4);
    eventually("writes", || load.written() > 200).await;
    let output = move_to(&attic, "cellar", &["--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let before = load.written();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let last: Value = serde_json::from_str(told.lines().last().expect("a line")).expect("JSON");
    println!("{last}");
    assert_eq!(last["stage"], "moved");
    assert!(!serves(&attic) && serves(&cellar));
    eventually("writes at the new place", || load.written() > before + 200).await;
    let versions = load.end().await;
    verify(&volume, &versions, "gateway").await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect_to(cellar.address).await;
    assert!(there.identity().contains("naa."));
    verify(&there, &versions, "node").await;
    // A host that knows the old place only is sent to the new one: the same disk.
    let redirected = connect_to(attic.address).await;
    assert_eq!(redirected.identity(), there.identity());
    verify(&redirected, &versions[..16], "redirected").await;
    let listed = json(&attic, &["volume", "list"]);
    assert_eq!((&listed[0]["how"], &listed[0]["volume"]), (&"gone".into(), &"payroll".into()));
    assert_eq!(json(&cellar, &["volume", "list"])[0]["how"], "here");
    // Both remember over a restart, whatever the settings of the old place say, and a reload changes nothing.
    drop((redirected, there));
    let reloaded = run(&["reload", "--control", attic.control.to_str().expect("a path")]);
    assert!(String::from_utf8_lossy(&reloaded.stdout).contains("nothing is different"));
    attic.terminate();
    cellar.terminate();
    let attic = place.serve("attic", &attic_settings);
    let cellar = place.serve("cellar", &cellar_settings);
    assert!(!serves(&attic) && serves(&cellar));
    eventually("the gateway finds it", || {
        near.status()["targets"][0]["units"][0]["layers"][0]["figures"]["link"] == "up"
    })
    .await;
    write(&*volume, 5, 1_000_000).await.expect("taken");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    versions[5].store(1_000_000, Ordering::Relaxed);
    // And back, to the node whose settings have it: it is served from what came, not from what was left.
    let refused = move_to(&cellar, "attic", &[]);
    assert!(stderr(&refused).contains("takes no volumes"), "{}", stderr(&refused));
    let (_, ()) = (attic.terminate(), ());
    let attic_settings =
        attic_settings.replace("[[target]]", &format!("{}[[target]]", accept("attic")));
    let attic = place.serve("attic", &attic_settings);
    eventually("the volume moves", || {
        let output = move_to(&cellar, "attic", &[]);
        output.status.success()
    })
    .await;
    assert!(serves(&attic) && !serves(&cellar));
    assert_eq!(std::fs::read_dir(place.path("cellar.moved")).expect("the folder").count(), 0);
    verify(&volume, &versions, "gateway, after the way back").await;
    let there = connect_to(attic.address).await;
    verify(&there, &versions, "the first node").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_unit_keeps_moves_with_it() {
    let place = Place::new();
    secret(&place);
    let seed = place.serve("seed", &seed());
    let seeds = [naming(&seed)];
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&attic, &["cellar"]).await;
    let near = place.serve("gateway", &gateway(&seeds));
    let claim = |of: &Serving| {
        let status = of.status();
        let targets = status["targets"].as_array().expect("targets").clone();
        targets.iter().find(|t| t["name"] == PAYROLL).expect("it")["units"][0]["claim"].clone()
    };
    eventually("the claim", || claim(&attic)["held"] == true).await;
    let before = claim(&attic);
    let output = move_to(&attic, "cellar", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let after = claim(&cellar);
    for what in ["held", "owner", "log", "generation"] {
        assert_eq!(after[what], before[what], "{what}");
    }
    // Nobody writes past the gateway there either.
    let stranger = connect_to(cellar.address).await;
    assert!(write(&*stranger, 0, 1).await.is_err());
    drop(near);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_moved_is_refused_with_what_to_do_and_stays() {
    let place = Place::new();
    secret(&place);
    let seed = place.serve("seed", &seed());
    let seeds = [naming(&seed)];
    let guarded = "[[target.allow]]\nnetwork = \"127.0.0.0/8\"\n";
    let attic = place.serve("attic", &attic(0, &seeds, guarded));
    let settings = |name: &str, more: &str| cellar(name, &seeds, more);
    let open = place.serve("open", &settings("open", &accept("open")));
    let small =
        accept("small").replace("1GiB", "32MiB") + "[[accept.allow]]\nnetwork = \"127.0.0.0/8\"\n";
    let small = place.serve("small", &settings("small", &small));
    let closed = place.serve("closed", &settings("closed", ""));
    let same = format!(
        "[[target]]\nname = \"{PAYROLL}\"\n[[target.unit]]\nstack = [ {{ memory = {{ size = \"1MiB\" }} }} ]\n"
    );
    let taken = place.serve("taken", &(settings("taken", &accept("taken")) + &same));
    knows(&attic, &["open", "small", "closed", "taken"]).await;
    for (to, expected) in [
        ("nowhere", "no node is known as nowhere"),
        ("attic", "is on that node already"),
        ("closed", "the node takes no volumes"),
        ("small", "raise `size` of its [accept] table"),
        ("taken", "has a target iqn.2026-11.test:payroll already"),
        ("open", "say in `allow` of its [accept] table who may"),
    ] {
        let output = move_to(&attic, to, &[]);
        assert!(!output.status.success());
        let text = stderr(&output);
        assert!(
            text.contains(expected) && (text.contains("remedy") || to == "attic"),
            "{to}: {text}"
        );
        assert!(serves(&attic));
    }
    let output = move_to(&open, "attic", &[]);
    assert!(stderr(&output).contains("it is on the node attic"), "{}", stderr(&output));
    for node in ["open", "small", "closed", "taken"] {
        assert!(!place.path(&format!("{node}.moved/payroll.img")).exists());
    }
    // It goes on as before.
    let volume = connect_to(attic.address).await;
    write(&*volume, 1, 1).await.expect("taken");
    drop((small, closed, taken));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_watched_joined_and_cancelled() {
    let place = Place::new();
    secret(&place);
    let seed = place.serve("seed", &seed());
    let seeds = [naming(&seed)];
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    let third = place.serve("third", &self::cellar("third", &seeds, &accept("third")));
    knows(&attic, &["cellar", "third"]).await;
    let volume = connect_to(attic.address).await;
    for block in 0..BLOCKS {
        write(&*volume, block, 1).await.expect("taken");
    }
    let slow = |to: &str| {
        let mut command = forebay();
        command.args([
            "volume",
            "move",
            PAYROLL,
            "--to",
            to,
            "--rate",
            "1MiB",
            "--json",
            "--control",
        ]);
        command.arg(&attic.control).stdout(std::process::Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let mut first = slow("cellar");
    eventually("it begins", || json(&attic, &["volume", "list"])[0]["how"] == "leaving").await;
    eventually("it arrives", || json(&cellar, &["volume", "list"])[0]["how"] == "arriving").await;
    let output = move_to(&attic, "third", &[]);
    assert!(stderr(&output).contains("is being moved to cellar"), "{}", stderr(&output));
    // The command is no part of it; another one to the same place watches it.
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    let second = slow("cellar");
    write(&*volume, 0, 2).await.expect("hosts go on");
    let cancelled = json(&attic, &["volume", "cancel", "payroll"]);
    assert_eq!(cancelled["stage"], "undone");
    let output = second.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    eventually("nothing is left", || !place.path("cellar.moved/payroll.img").exists()).await;
    assert_eq!(json(&cellar, &["volume", "list"]), Value::Array(vec![]));
    assert_eq!(read(&*volume, 0).await.expect("read"), content(0, 2));
    // And may go anywhere after that.
    let output = move_to(&attic, "third", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(serves(&third) && !serves(&attic));
    assert_eq!(read(&*volume, 0).await.expect("the host was sent there"), content(0, 2));
}

/// `kill -9` of either node at any moment of a move, with a host that writes through a gateway: nothing is lost, no
/// host sees an error, and one node serves in the end, never two at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_in_a_move_loses_nothing() {
    // Rounds of killing; more with FOREBAY_ROUNDS.
    let rounds = std::env::var("FOREBAY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let place = Place::new();
    secret(&place);
    let seed = place.serve("seed", &seed());
    let seeds = [naming(&seed)];
    let attic_settings =
        attic(0, &seeds, "").replace("[[target]]", &format!("{}[[target]]", accept("attic")));
    let texts = [attic_settings, cellar("cellar", &seeds, &accept("cellar"))];
    let node_names = ["attic", "cellar"];
    let mut nodes = [place.serve("attic", &texts[0]), place.serve("cellar", &texts[1])];
    let near = place.serve("gateway", &gateway(&seeds));
    let volume = connect(near.address, GATEWAY).await;
    let load = Load::start(&volume, 2);
    let mut at = 0;
    let mut moved = 0;
    for round in 0..rounds.unwrap_or(6_u64) {
        knows(&nodes[at], &[node_names[1 - at]]).await;
        let written = load.written();
        eventually("writes", || load.written() > written + 50).await;
        let control = nodes[at].control.clone();
        let to = node_names[1 - at];
        let moving = std::thread::spawn(move || {
            forebay()
                .args(["volume", "move", "payroll", "--to", to, "--control"])
                .arg(control)
                .output()
                .expect("the binary runs")
        });
        // Anywhere in it: the whole takes some hundred milliseconds.
        tokio::time::sleep(Duration::from_millis((round * 67 + 40) % 500)).await;
        let victim = ((round / 2 + round) % 2) as usize;
        nodes[victim].kill();
        let _ = moving.join();
        // As long as only one is there it decides nothing that the other does not know.
        nodes[victim] = place.serve(node_names[victim], &texts[victim]);
        let mut both = false;
        eventually("one of them serves", || {
            let is_served = [serves(&nodes[0]), serves(&nodes[1])];
            both |= is_served == [true, true];
            let lists = [0, 1].map(|i: usize| json(&nodes[i], &["volume", "list"]));
            let is_settled = lists
                .iter()
                .flat_map(|list| list.as_array().expect("a list").clone())
                .all(|listed| ["gone", "here"].iter().any(|how| listed["how"] == **how));
            at = usize::from(is_served[1]);
            is_settled && is_served[0] != is_served[1]
        })
        .await;
        assert!(!both, "two serve it at once");
        moved += u64::from(at == 1);
        println!("round {round}: killed {}, served by {}", node_names[victim], node_names[at]);
    }
    println!("{moved} rounds ended at the other node");
    let written = load.written();
    eventually("writes", || load.written() > written + 50).await;
    let versions = load.end().await;
    verify(&volume, &versions, "gateway").await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect_to(nodes[at].address).await;
    verify(&there, &versions, node_names[at]).await;
}

//! Refused moves: the message names the remedy, nothing has been copied, and the volume is unchanged.

use std::net::SocketAddr;

use crate::{
    scene::{
        BLOCKS, PAYROLL, accept, attic, cellar, connect_to, knows, move_to, move_volume, place,
        serves,
    },
    support::{
        Place, Serving, content, eventually, forebay, gateway,
        nodes::{json, names, secret, untold},
        read, run, stderr, write,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_impossible_is_refused_with_a_remedy_and_the_volume_stays() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let settings = |name: &str, more: &str| cellar(name, &seeds, more);
    let small = accept("small").replace("1GiB", "32MiB");
    let small = place.serve("small", &settings("small", &small));
    let closed = place.serve("closed", &settings("closed", ""));
    let same = format!(
        "[[target]]\nname = \"{PAYROLL}\"\n[[target.unit]]\nstack = [ {{ memory = {{ size = \"1MiB\" }} }} ]\n"
    );
    let taken = place.serve("taken", &(settings("taken", &accept("taken")) + &same));
    knows(&attic, &["small", "closed", "taken"]).await;
    for (to, expected) in [
        ("nowhere", "no node is known as nowhere"),
        ("attic", "is on that node already"),
        ("closed", "the node does not accept volumes"),
        ("small", "raise `size` of its [accept] table"),
        ("taken", "has a target iqn.2026-11.test:payroll already"),
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
    let output = move_to(&small, "attic", &[]);
    assert!(stderr(&output).contains("it is on the node attic"), "{}", stderr(&output));
    for node in ["small", "closed", "taken"] {
        assert!(!place.path(&format!("{node}.moved/payroll.img")).exists());
    }
    // The volume is served as before.
    let volume = connect_to(attic.address).await;
    write(&*volume, 1, 1).await.expect("taken");
    drop((closed, taken));
}

/// Settings of a node whose target requires certificates, authentication and more; also used for the destination.
fn guarded(node: &str, seeds: &[SocketAddr], ca: &str, target: &str) -> String {
    let names = names(node, 0, seeds, "names").replacen("listen = [\"127.0.0.1:0\"]\n", "", 1);
    format!(
        "{names}[[user]]\nname = \"alice\"\nsecret_file = \"alice\"\n[[portal]]\naddress = \"127.0.0.1:0\"\n\
         tls = {{ certificate = \"node.pem\", key = \"node.key\", client_ca = \"{ca}.pem\" }}\n\
         [[target]]\nname = \"{PAYROLL}\"\n{target}"
    )
}

/// A moved volume must not become accessible to more initiators, without authentication, or unencrypted.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_gives_no_initiator_access_that_it_did_not_have_before() {
    let (place, _seed, seeds) = place();
    let authority = place.authority("ca");
    place.certificate(&authority, "node", "127.0.0.1");
    place.authority("others");
    for name in ["alice", "storage"] {
        secret(&place, name);
    }
    let allow = "allow = [ { user = \"alice\", network = \"127.0.0.0/8\" } ]\n";
    let mutual = "mutual = { name = \"storage\", secret_file = \"storage\" }\n";
    let unit = "[[target.unit]]\nvolume = \"payroll\"\nlun = 3\n\
                stack = [ { file = { path = \"payroll.img\", size = \"1MiB\" } } ]\n";
    let text = guarded("attic", &seeds, "ca", &format!("{allow}{mutual}{unit}"));
    let attic = place.serve("attic", &text);
    let there = |node: &str, ca: &str, target: &str| {
        let target = format!("{target}redirect = \"127.0.0.1:1\"\n");
        let text = guarded(node, &seeds, ca, &target);
        place.serve(node, &text.replacen("[[user]]", &format!("{}[[user]]", accept(node)), 1))
    };
    let wide = allow.replace("user = \"alice\", ", "");
    let nodes = [
        // The settings of this node do not mention the target, and its `[accept]` admits all initiators.
        place.serve("open", &cellar("open", &seeds, &accept("open"))),
        there("everybody", "ca", mutual),
        there("wide", "ca", &format!("{wide}{mutual}")),
        there("unproved", "ca", allow),
        there("others", "others", &format!("{allow}{mutual}")),
        place.serve("plain", &{
            let target = format!("{allow}{mutual}redirect = \"127.0.0.1:1\"\n");
            let text = guarded("plain", &seeds, "ca", &target);
            let text = text.replacen("[[user]]", &format!("{}[[user]]", accept("plain")), 1);
            format!("listen = [\"127.0.0.1:0\"]\n{text}")
        }),
        there("same", "ca", &format!("{allow}{mutual}")),
    ];
    knows(&attic, &["open", "everybody", "wide", "unproved", "others", "plain", "same"]).await;
    for (to, expected) in [
        ("open", "would not be restricted at the node"),
        ("everybody", "would not be restricted at the node"),
        ("wide", "the node would admit more initiators"),
        ("unproved", "mutual CHAP"),
        ("others", "the node would accept other certificates"),
        ("plain", "could be reached without TLS at the node"),
    ] {
        let text = stderr(&move_to(&attic, to, &[]));
        assert!(text.contains(expected) && text.contains("remedy"), "{to}: {text}");
        assert!(serves(&attic));
    }
    let output = move_to(&attic, "same", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(serves(&nodes[6]) && !serves(&attic));
}

fn target(name: &str, unit: &str, stack: &str) -> String {
    format!(
        "[[target]]\nname = \"iqn.2026-11.test:{name}\"\n[[target.unit]]\n{unit}stack = [ {stack} ]\n"
    )
}

fn keys(place: &Place) {
    let path = |name: &str| place.path(name).to_str().expect("a plain path").to_owned();
    let (secret, key) = (path("volume.secret"), path("volume.key"));
    for arguments in
        [&["secret", &secret, "--characters", "64"][..], &["key", &key, "--secret-file", &secret]]
    {
        let made = run(arguments);
        assert!(made.status.success(), "{}", stderr(&made));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_unsuitable_kinds_are_refused_with_a_remedy() {
    let (place, seed, seeds) = place();
    keys(&place);
    let file = |name: &str| format!("{{ file = {{ path = \"{name}.img\", size = \"4MiB\" }} }}");
    let with = |name: &str, more: &str| {
        target(name, &format!("volume = \"{name}\"\n"), &format!("{}{more}", file(name)))
    };
    let text = [
        names("attic", 0, &seeds, "names"),
        with(
            "encrypted",
            ", { encrypt = { key = \"volume.key\", secret_file = \"volume.secret\" } }",
        ),
        with(
            "cached",
            ", { cache = { log = \"cached.log\", log_size = \"32MiB\", dram = \"8MiB\" } }",
        ),
        with("sealed", ", \"read-only\""),
        target("unnamed", "", &file("unnamed")),
        target("worn", "volume = \"worn\"\ngeneration = 4503599627370495\n", &file("worn")),
        target(
            "far",
            "volume = \"far\"\n",
            &format!("{{ remote = {{ url = \"{}\" }} }}", seed.url("iqn.2026-11.test:seed")),
        ),
        with("several", "")
            + "[[target.unit]]\nlun = 1\nstack = [ { memory = { size = \"1MiB\" } } ]\n",
        target(
            "node",
            "volume = \"shared\"\nshare_grain = \"64KiB\"\n",
            "{ file = { path = \"shared.img\", size = \"64MiB\" } }",
        ),
    ]
    .concat();
    let attic = place.serve("attic", &text);
    let closed = place.serve("closed", &cellar("closed", &seeds, ""));
    let open = place.serve("open", &cellar("open", &seeds, &accept("open")));
    knows(&attic, &["closed", "open"]).await;
    for (volume, expected) in [
        ("encrypted", "its key does not leave the node"),
        ("cached", "it has a cache"),
        ("sealed", "it is read-only"),
        ("iqn.2026-11.test:unnamed", "has no name"),
        ("worn", "its move counter is at its maximum"),
        ("far", "its data is on another node"),
        ("several", "it has several units"),
        ("nothing", "there is no volume nothing here"),
    ] {
        let text = stderr(&move_volume(&attic, volume, "open", &[]));
        assert!(text.contains(expected) && text.contains("remedy"), "{volume}: {text}");
    }
    // A gateway that shares the volume may have a part of the written data in its log.
    let text = gateway(place.folder.path(), attic.address, "share = true");
    let near = place.serve("near", &text);
    eventually("the gateway shares it", || {
        stderr(&move_volume(&attic, "shared", "closed", &[])).contains("several gateways share it")
    })
    .await;
    assert_eq!(json(&open, &["volume", "list"]), serde_json::json!([]));
    drop((near, closed));
}

/// A node with both volumes could serve only one of them under this target name, and would not start.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_a_second_moved_volume_with_the_same_target_name() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let loft = crate::scene::attic(0, &seeds, "")
        .replace("attic", "loft")
        .replace("\"payroll\"", "\"wages\"")
        .replace("payroll.img", "wages.img")
        .replace("PAYROLL-1", "WAGES-1");
    let loft = place.serve("loft", &loft);
    let text = cellar("cellar", &seeds, &accept("cellar"));
    let cellar = place.serve("cellar", &text);
    knows(&attic, &["cellar"]).await;
    knows(&loft, &["cellar"]).await;
    let volume = connect_to(attic.address).await;
    for block in 0..BLOCKS {
        write(&*volume, block, 1).await.expect("taken");
    }
    let refused = |of: &Serving| {
        let text = stderr(&move_volume(of, "wages", "cellar", &[]));
        assert!(text.contains("as the unit of iqn.2026-11.test:payroll"), "{text}");
        assert!(text.contains("remedy: rename one of the two"), "{text}");
        assert!(serves(of) && !place.path("cellar.moved/wages.img").exists());
    };
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| move_to(&attic, "cellar", &["--rate", "2MiB"]));
        // Wait until the first move is in progress.
        while json(&cellar, &["volume", "list"]) == serde_json::json!([]) {
            assert!(!moving.is_finished());
        }
        refused(&loft);
        // A reload must not add a target with the name of the moving volume's target.
        place.write("cellar", &format!("{text}{}", untold("payroll")));
        let said = stderr(&run(&["reload", "--control", cellar.control.to_str().expect("a path")]));
        assert!(
            said.contains("payroll is being moved to the node, and the node has a target"),
            "{said}"
        );
        place.write("cellar", &text);
        let output = moving.join().expect("it ends");
        assert!(output.status.success(), "{}", stderr(&output));
    });
    // After the volume has arrived, another volume whose target has the same name is refused as well.
    let text_of = |of: &Serving| stderr(&move_volume(of, "wages", "cellar", &[]));
    assert!(text_of(&loft).contains("has a target iqn.2026-11.test:payroll already"));
    assert_eq!(read(&*volume, 7).await.expect("it is there"), content(7, 1));
    // While the node was down, its settings were changed so that another unit uses the target name. The node starts,
    // serves everything else, and reports the reason.
    cellar.terminate();
    let cellar = place.serve("cellar", &format!("{text}{}", untold("payroll")));
    assert!(!serves(&cellar));
    let status = cellar.status();
    let units = |name: &str| {
        let targets = status["targets"].as_array().expect("targets");
        let target = targets.iter().find(|target| target["name"] == name).expect("the target");
        target["units"].as_array().expect("units").len()
    };
    assert_eq!((units("iqn.2026-11.test:cellar"), units(PAYROLL)), (1, 0));
    let why = json(&cellar, &["volume", "list"])[0]["why"].to_string();
    assert!(why.contains("has another unit") && why.contains("neither is served"), "{why}");
    place.write("cellar", &text);
    let control = cellar.control.to_str().expect("a path");
    let reloaded = run(&["reload", "--control", control]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    assert!(serves(&cellar));
    // A reload with the conflicting target is refused, and the moved volume stays served.
    place.write("cellar", &format!("{text}{}", untold("payroll")));
    let reloaded = run(&["reload", "--control", control]);
    assert!(stderr(&reloaded).contains("has another unit"), "{}", stderr(&reloaded));
    assert!(serves(&cellar));
}

/// A unit that is not served may get its file back, so no other unit may use its claim, reservations or record.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_not_served_keeps_its_name_its_target_and_its_serial_number() {
    let (place, _seed, seeds) = place();
    let attic = place.serve("attic", &attic(0, &seeds, ""));
    let file = |name: &str| format!("{{ file = {{ path = \"{name}.img\", size = \"4MiB\" }} }}");
    let nodes = [
        ("name", target("a", "volume = \"payroll\"\n", &file("a")), "has a volume payroll already"),
        ("target", target("payroll", "", &file("b")), "has a target iqn.2026-11.test:payroll"),
        ("serial", target("c", "serial = \"PAYROLL-1\"\n", &file("c")), "has the serial number"),
        ("path", target("d", "", &file("path.moved/payroll")), "is the file of"),
    ];
    std::fs::create_dir(place.path("path.moved")).expect("made");
    let mut serving = Vec::new();
    for (node, unit, _) in &nodes {
        let text = cellar(node, &seeds, &accept(node)) + unit;
        // First start without the volume's name, so that no other node learns of a second volume with it.
        let untold = text.replace("volume = \"payroll\"\n", "");
        assert!(place.serve(node, &untold).terminate().0.success());
        for file in ["a.img", "b.img", "c.img", "path.moved/payroll.img"] {
            let _ = std::fs::remove_file(place.path(file));
        }
        serving.push(place.serve(node, &text));
    }
    knows(&attic, &nodes.each_ref().map(|(node, ..)| *node)).await;
    for ((node, _, expected), of) in nodes.iter().zip(&serving) {
        let status = of.status().to_string();
        assert!(status.contains("\"refused\"") && status.contains("is missing"), "{status}");
        let text = stderr(&move_to(&attic, node, &[]));
        assert!(text.contains(expected) && text.contains("remedy"), "{node}: {text}");
        assert!(serves(&attic));
    }
}

/// The node may have 64 connections for naming, and each incoming move occupies one.
#[tokio::test(flavor = "multi_thread")]
async fn a_seventeenth_volume_at_once_is_refused_at_both_ends() {
    let (place, _seed, seeds) = place();
    let slow = "{ memory = { size = \"1MiB\" } }, { delay = { flush = \"3s\" } }";
    let volumes: Vec<_> = (0..17).map(|number| format!("v{number}")).collect();
    let targets: String =
        volumes.iter().map(|name| target(name, &format!("volume = \"{name}\"\n"), slow)).collect();
    let many = place.serve("attic", &(names("attic", 0, &seeds, "names") + &targets));
    let loft = place.serve("loft", &attic(0, &seeds, "").replace("\"attic", "\"loft"));
    let cellar = place.serve("cellar", &cellar("cellar", &seeds, &accept("cellar")));
    knows(&many, &["cellar"]).await;
    knows(&loft, &["cellar"]).await;
    let begin = |volume: &String| {
        forebay()
            .args(["volume", "move", volume, "--to", "cellar", "--json", "--control"])
            .arg(&many.control)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("the binary runs")
    };
    let mut moving: Vec<_> = volumes[..16].iter().map(begin).collect();
    let count = |of: &Serving, how: &str| {
        let listed = json(of, &["volume", "list"]);
        listed.as_array().expect("a list").iter().filter(|listed| listed["how"] == how).count()
    };
    eventually("all leave", || count(&many, "leaving") == 16).await;
    let text = stderr(&move_volume(&many, "v16", "cellar", &[]));
    assert!(text.contains("16 volumes are being moved from here already"), "{text}");
    eventually("all arrive", || count(&cellar, "arriving") == 16).await;
    let text = stderr(&move_to(&loft, "cellar", &[]));
    assert!(text.contains("16 volumes are already being moved to the node"), "{text}");
    for child in &mut moving {
        child.kill().expect("it was running");
        child.wait().expect("it ends");
    }
}

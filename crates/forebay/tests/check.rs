//! `forebay check` of a gateway: what it says of the far side, and of the log over it.

mod support;

use support::{Place, gateway, node, run, stderr};

/// A gateway's settings, of which a log was made over the volume of a node that has stopped.
struct Stopped {
    place: Place,
    address: std::net::SocketAddr,
}

impl Stopped {
    fn new() -> Self {
        let place = Place::new();
        let far = place.serve("node", &node(place.folder.path(), 0));
        let near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
        let address = far.address;
        for serving in [near, far] {
            assert!(serving.terminate().0.success());
        }
        Self { place, address }
    }

    /// The exit code and the lines of `forebay check`.
    fn check(&self) -> (Option<i32>, String) {
        let text = gateway(self.place.folder.path(), self.address, "");
        let config = self.place.write("gateway", &text);
        let output = run(&["check", "--config", config.to_str().expect("plain")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        (output.status.code(), text)
    }
}

#[test]
fn a_far_side_that_is_away_is_no_fault_where_a_log_knows_it() {
    let stopped = Stopped::new();
    let (code, text) = stopped.check();
    assert_eq!(code, Some(0), "{text}");
    let expected = format!("iscsi://{}/iqn.2026-11.test:node/0 is away (", stopped.address);
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains("a start goes on with the log"), "{text}");
    // Without the log nothing could be served.
    std::fs::remove_file(stopped.place.path("gateway.log")).expect("it was made");
    let (code, text) = stopped.check();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot connect") && text.contains("remedy: "), "{text}");
}

#[test]
fn another_volume_than_that_of_the_log_is_named_beside_it() {
    let stopped = Stopped::new();
    let port = stopped.address.port();
    let text = node(stopped.place.folder.path(), port);
    let right = stopped.place.serve("node", &text);
    let (code, text_right) = stopped.check();
    assert_eq!(code, Some(0), "{text_right}");
    assert!(text_right.contains("the volume that the log belongs to"), "{text_right}");
    drop(right);

    let other = text.replace("[[target.unit]]\n", "[[target.unit]]\nserial = 'OTHER'\n");
    let _wrong = stopped.place.serve("node", &other);
    let (code, text) = stopped.check();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("but the log over it belongs to \"naa."), "{text}");
    assert!(text.contains("remedy: point `url` at the volume that the log belongs to"), "{text}");
    assert!(text.contains("1 of these things cannot be used as they are"), "{text}");
}

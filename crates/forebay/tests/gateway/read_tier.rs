//! The second read tier of a gateway in the program: its file, its counters, and the disks that it refuses.

use std::os::unix::fs::FileExt;

use support::{
    Place, Serving, connect, content, eventually, gateway, node, read, run, stderr, write,
};

use crate::support;

/// 16 MiB in blocks of 4 KiB: twice the size of the memory.
const BLOCKS: u64 = 4096;
const TARGET: &str = "iqn.2026-11.test:gateway";

fn figure(serving: &Serving, name: &str) -> u64 {
    serving.figure("cache", name)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_answered_from_the_read_tier_and_survive_its_corruption() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let disk = place.path("tier");
    let more =
        format!("read_ahead = 0\nread_tier = \"{}\"\nread_tier_size = \"64MiB\"", disk.display());
    let settings = gateway(place.folder.path(), far.address, &more);
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, TARGET).await;
    for block in 0..BLOCKS {
        write(&*volume, block, 1).await.expect("written");
    }
    eventually("destage", || figure(&near, "dirty_bytes") == 0).await;
    // Read everything twice: blocks that were dirty when they left memory enter the tier only in the second pass.
    for _ in 0..2 {
        for block in 0..BLOCKS {
            assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
        }
    }
    let (hits, reads) = (figure(&near, "hits_tier"), figure(&near, "reads_tier"));
    assert!(hits > BLOCKS / 4 && hits == reads, "{hits} {reads}");
    assert_eq!(figure(&near, "tier_rotten_slots"), 0);
    assert!(figure(&near, "tier_used_bytes") > BLOCKS * 2048);
    assert!(figure(&near, "tier_bytes") > 60 << 20);

    // Overwrite the whole disk of the read tier. The gateway must never return one of these bytes.
    let file = std::fs::OpenOptions::new().write(true).open(&disk).expect("it is there");
    for at in (1 << 20..64 << 20).step_by(1 << 20) {
        file.write_all_at(&vec![0xee; 1 << 20], at).expect("written");
    }
    for block in 0..BLOCKS {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
    }
    assert!(figure(&near, "tier_rotten_slots") > 0);
    // A write of a host replaces the block that is in the read tier.
    for block in (0..BLOCKS).step_by(3) {
        write(&*volume, block, 2).await.expect("written");
    }
    for _ in 0..2 {
        for block in 0..BLOCKS {
            let version = if block % 3 == 0 { 2 } else { 1 };
            assert_eq!(read(&*volume, block).await.expect("read"), content(block, version));
        }
    }
    drop(volume);
    let status = near.terminate().0;
    assert!(status.success(), "{status}");

    // After a restart the tier is empty.
    let near = place.serve("gateway", &settings);
    let volume = connect(near.address, TARGET).await;
    for block in 0..100 {
        let version = if block % 3 == 0 { 2 } else { 1 };
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, version));
    }
    assert_eq!(figure(&near, "hits_tier"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_with_other_content_is_refused_as_read_tier_and_a_missing_tier_is_not_needed() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let disk = place.path("tier");
    let settings = |path: &std::path::Path| {
        gateway(place.folder.path(), far.address, &format!("read_tier = \"{}\"", path.display()))
    };
    std::fs::write(&disk, vec![7; 4 << 20]).expect("written");
    let refused = place.try_serve("gateway", &settings(&disk)).err().expect("it is refused");
    assert!(refused.contains("other data than a read tier"), "{refused}");
    assert!(std::fs::read(&disk).expect("it is there").iter().all(|byte| *byte == 7));

    let gone = place.path("gone");
    let near = place.serve("gateway", &settings(&gone));
    let volume = connect(near.address, TARGET).await;
    write(&*volume, 0, 1).await.expect("written");
    let status = near.status().to_string();
    assert!(status.contains("tier_error") && status.contains("No such file"), "{status}");
    drop(volume);
    assert!(near.terminate().0.success());
    for (path, why) in [(&gone, "No such file"), (&disk, "other data than a read tier")] {
        let config = place.write("check", &settings(path));
        let checked = run(&["check", "--config", config.to_str().expect("a path")]);
        let told = format!("{}{}", String::from_utf8_lossy(&checked.stdout), stderr(&checked));
        assert!(!checked.status.success() && told.contains(why), "{told}");
    }
}

//! Tests that forebay.example.toml contains every settings key with the default that the code has.

use std::path::Path;

use super::{Settings, layers};

const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../forebay.example.toml"));

/// Returns the example with its defaults enabled: each line `#key = value` loses its `#`. With `marks` = `##`, the
/// example values of keys without a default are enabled, too.
fn uncommented(marks: &str) -> String {
    let is_meant = |rest: &str| {
        let name = rest.split(" = ").next().unwrap_or("");
        let is_name = |c: u8| c.is_ascii_lowercase() || c == b'_' || c == b'2';
        rest.starts_with('[')
            || rest.contains(" = ") && !name.is_empty() && name.bytes().all(is_name)
    };
    let lines = EXAMPLE.lines().map(|line| match line.strip_prefix(marks) {
        Some(rest) if is_meant(rest) => rest,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(text: &str) -> Settings {
    let file = Path::new("forebay.example.toml");
    Settings::parse(file, text).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn the_example_is_right_and_its_defaults_are_the_codes() {
    let (as_it_stands, written_out) = (parse(EXAMPLE), parse(&uncommented("#")));
    assert_ne!(EXAMPLE, uncommented("#"));
    assert_eq!(as_it_stands, written_out);
    let with_examples = parse(&uncommented("##"));
    assert_eq!(with_examples.user.len(), 2);
    assert!(with_examples.control.is_some() && with_examples.initiator_name.is_some());
    assert_eq!((as_it_stands.control, as_it_stands.initiator_name), (None, None));
}

#[test]
fn every_key_is_in_the_example() {
    let example = uncommented("#") + "\n" + &uncommented("##");
    let mut seen = 0;
    for keys in [
        keys_of::<Settings>(),
        keys_of::<super::Iscsi>(),
        keys_of::<super::ChapCredentialSettings>(),
        keys_of::<super::Allow>(),
        keys_of::<super::Discovery>(),
        keys_of::<super::NamingServiceSettings>(),
        keys_of::<super::Accept>(),
        keys_of::<super::PortalSettings>(),
        keys_of::<super::PortalTls>(),
        keys_of::<super::RemoteTls>(),
        keys_of::<super::IscsiTargetSettings>(),
        keys_of::<super::Unit>(),
        keys_of::<super::ObjectDriveSettings>(),
        keys_of::<layers::MemoryLayerSettings>(),
        keys_of::<layers::File>(),
        keys_of::<layers::RemoteLayerSettings>(),
        keys_of::<layers::Slice>(),
        keys_of::<layers::EncryptLayerSettings>(),
        keys_of::<layers::DelayLayerSettings>(),
        keys_of::<layers::DiskLayerSettings>(),
        keys_of::<layers::ObserveLayerSettings>(),
        keys_of::<layers::FaultLayerSettings>(),
        keys_of::<layers::CacheLayerSettings>(),
        keys_of::<layers::PairPartnerSettings>(),
        keys_of::<layers::MirrorLegLayerSettings>(),
        keys_of::<layers::CommonCache>(),
        keys_of::<layers::InCommon>(),
    ] {
        assert!(!keys.is_empty());
        for key in keys {
            let starts = |line: &str| line.starts_with(&format!("{key} = "));
            let heads =
                |line: &str| line.starts_with('[') && line.trim_matches(['[', ']']).ends_with(&key);
            assert!(example.lines().any(|line| starts(line) || heads(line)), "{key} is missing");
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

/// Returns the keys of a table, as serde lists them in the error for an unknown key.
fn keys_of<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let error = toml::from_str::<T>("no_such_key = 1").err().expect("keys are fixed");
    let names = error.message().split('`').skip(3).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn every_layer_is_in_the_example() {
    #[derive(Debug, serde::Deserialize)]
    struct Any {
        #[serde(rename = "layer")]
        _layer: layers::Layer,
    }
    let error = toml::from_str::<Any>("layer = 'none'").expect_err("layers are fixed");
    let names: Vec<_> = error.message().split('`').skip(3).step_by(2).collect();
    assert!(names.len() >= 13, "{error}");
    for name in names {
        let heading = format!("[target.unit.stack.{name}]");
        assert!(EXAMPLE.contains(&heading) || EXAMPLE.contains(&format!("\"{name}\"")), "{name}");
    }
}

/// Returns the error for a stack of one memory volume whose settings begin with `text`.
fn problem(text: &str) -> String {
    match Settings::parse(Path::new("f.toml"), text) {
        Ok(_) => String::from("nothing"),
        Err(problem) => format!("{problem} | {}", problem.remedy),
    }
}

#[test]
fn a_problem_names_line_column_key_and_remedy() {
    let unit = |stack: &str| {
        format!("[[target]]\nname = 'iqn.2026-11.a:b'\n[[target.unit]]\nstack = {stack}\n")
    };
    let cache =
        |keys: &str| unit(&format!("[{{memory={{size=4096}}}}, {{cache={{log='l', {keys}}}}}]"));
    let disk = |keys: &str| unit(&format!("[{{memory={{size=4096}}}}, {{disk={{{keys}}}}}]"));
    for (text, expected) in [
        ("lisen = []".into(), "f.toml:1:1: lisen: unknown field `lisen`, expected one of"),
        ("lisen = []".into(), "| did you mean `listen`?"),
        ("threads = 'x'".into(), "f.toml:1:11: threads: invalid type"),
        ("threads = -1".into(), "f.toml:1:11: threads: invalid value"),
        ("threads = ".into(), "f.toml:1:11: "),
        ("threads = 1\nthreads = 2".into(), "f.toml:2:1: "),
        ("listen = ['me']".into(), "f.toml:1:11: listen[0]: `me` is not an address | write an IP"),
        (String::new(), "there is no target | add a [[target]]"),
        ("[[target]]".into(), "f.toml:1:1: target[0].name: `name` is missing | add name = "),
        ("[[target]]\nname = 'x'".into(), "f.toml:2:8: target[0].name: `x` is not an iSCSI name"),
        (unit("[]"), "f.toml:4:9: target[0].unit[0].stack: the unit has no stack"),
        (unit("[{memory={}}]"), "target[0].unit[0].stack[0].memory.size: `size` is missing"),
        (
            unit("[{memory={size='1 parsec'}}]"),
            "f.toml:4:24: target[0].unit[0].stack[0].memory.size: `1 parsec` is not a size: unknown unit | write a whole",
        ),
        (unit("[{memory={size=513}}]"), "513B is not a whole number of 512B blocks"),
        (unit("[{memori={size=512}}]"), "did you mean `memory`?"),
        (
            unit("[{memory={size=4096}},{file={path='x'}}]"),
            "stack[1]: this layer must be the bottom layer",
        ),
        (unit("['read-only']"), "stack[0]: this layer needs another below it"),
        (unit("[{remote={url='iscsi://h'}}]"), "names no target"),
        (unit("[{remote={url='nbd://h/x'}}]"), "write iscsi://HOST"),
        (disk(""), "disk.model: `model` is missing | add model = \"ibm-dnes\""),
        (
            disk("model='ibm'"),
            "disk.model: there is no model \"ibm\" | write one of null, ibm-dnes",
        ),
        (disk("model='null', arms=0"), "disk.arms: 0 is not between 1 and 64"),
        (disk("model='null', spread=1.5"), "disk.spread: not between 0 and 1"),
        (disk("model='null', media_rate='0'"), "disk.media_rate: 0B is not between 100KiB"),
        (cache("dram='1MiB'"), "nvram_size: 4MiB is not between 64KiB and 512KiB"),
        (cache("report='immediate'"), "report: immediate report needs NVRAM"),
        (cache("accept_loss=true"), "accept_loss: it is not stated that all hosts have unmounted"),
        (cache("nvram_survives='power-loss'"), "nvram_survives: there is no NVRAM"),
        (
            cache("nvram='l'"),
            "cache.nvram: file l is already used at target[0].unit[0].stack[1].cache.log",
        ),
        (cache("destage_threshold=2.0"), "not between 0.05 and 0.9"),
        (
            unit("[{memory={size=4096}}]") + "[[target.unit]]\nlun=0\nstack=[]",
            "f.toml:6:5: target[0].unit[1].lun: LUN 0 is already used by unit[0]",
        ),
        (unit("[{memory={size=4096}}]") + "[iscsi]\nfirst_burst_length='2MiB'", "RFC 7143, 13.14"),
        (
            unit("[{remote={url='iscsi://h/iqn.a:b/0',mutual={name='a',secret_env='A'}}}]"),
            "remote.mutual: the target authenticates itself only to authenticated initiators",
        ),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "expected {expected}\n   found {found}\n{text}");
    }
}

#[test]
fn a_problem_of_users_access_and_limits_names_its_key_and_remedy() {
    for (text, expected) in [
        ("[[user]]\nname='a'", "user[0]: there is no secret | add secret_file = \"FILE\""),
        ("[[user]]\nsecret_env='A'", "user[0].name: `name` is missing"),
        ("[[user]]\nname='a'\nsecret_env='A'\nsecret_file='a'", "there are two secrets"),
        (
            "[[user]]\nname='a'\nsecret_env='A'\n[[user]]\nname='a'\nsecret_env='A'\n",
            "user a is already used at user[0].name",
        ),
        ("[[user]]\nname='a'\nsecret='x'", "unknown field `secret`"),
        (
            "[[discovery.allow]]\nuser='bob'",
            "f.toml:2:6: discovery.allow[0].user: there is no user \"bob\" | add a [[user]]",
        ),
        ("[[discovery.allow]]", "discovery.allow[0]: an entry without conditions"),
        ("[[discovery.allow]]\nnetwork='10.0.0.1/8'", "bits are set after the prefix | write one"),
        ("[[discovery.allow]]\ninitiator='iqn.*:x'", "`iqn.*:x` is not an initiator name"),
        ("[iscsi]\nchap=[]", "iscsi.chap: no hash, or one of them twice"),
        ("[iscsi]\nchap=['sha1']", "iscsi.chap[0]: unknown variant `sha1`"),
        ("[iscsi]\nmax_logins=8", "max_logins_per_address: 64 is not between 1 and 8"),
        (
            "[iscsi]\nmax_discovery_sessions=8",
            "max_discovery_sessions_per_address: 16 is not between 1 and 8",
        ),
        ("[iscsi]\ndiscovery_timeout='0s'", "discovery_timeout: 0s is not between 1s and 1h"),
    ] {
        let found = problem(text);
        assert!(found.contains(expected), "expected {expected}\n   found {found}\n{text}");
    }
}

#[test]
fn portals_groups_and_targets_fit_together() {
    let target = |name: &str, keys: &str| {
        format!(
            "[[target]]\nname='iqn.a:{name}'\n{keys}\n[[target.unit]]\nstack=[{{memory={{size=512}}}}]\n"
        )
    };
    let own = |name: &str, listen: &str| target(name, &format!("listen=[{listen}]"));
    let portal = |keys: &str| format!("[[portal]]\n{keys}\n");
    let same = own("a", "'127.0.0.1'") + &own("b", "'127.0.0.1:3260'");
    for (text, expected) in [
        (same, "nothing"),
        (
            own("a", "'127.0.0.1:1'") + &own("b", "'127.0.0.1:1','127.0.0.1:2'"),
            "target[1].listen[0]: 127.0.0.1:1 is already used at target[0].listen[0]",
        ),
        (
            own("a", "'127.0.0.1'") + &target("b", ""),
            "target[0].listen[0]: 127.0.0.1:3260 is already used at listen[0]",
        ),
        (own("a", "'127.0.0.1:0','127.0.0.1:0'"), "nothing"),
        (own("a", ""), "target[0]: no initiator can reach this target"),
        (
            own("a", "'127.0.0.1:1'") + &own("a", "'127.0.0.1:1'"),
            "target name iqn.a:a is already used at target[0].name",
        ),
        (portal("address='10.0.0.1'\ngroup=2") + &target("a", "groups=[2]"), "nothing"),
        (
            portal("address='10.0.0.1'\ngroup=2") + &target("a", "groups=[1]"),
            "target[0].groups[0]: there is no portal in group 1 | add a [[portal]]",
        ),
        (
            "listen=['127.0.0.1:1']\n".to_owned()
                + &portal("address='10.0.0.1'\ngroup=2")
                + &target("a", "groups=[1]"),
            "portal[0]: no target is reached through portal group 2 | remove the portal",
        ),
        (portal("group=2") + &target("a", ""), "portal[0].address: `address` is missing"),
        (
            portal("address='10.0.0.1'\ngroup=0") + &target("a", ""),
            "portal[0].group: 0 is not between 1 and 65535",
        ),
        (
            portal("address='10.0.0.1'") + &portal("address='10.0.0.1'") + &target("a", ""),
            "portal[1].address: 10.0.0.1:3260 is already used at portal[0].address",
        ),
        (
            portal("address='10.0.0.1'\nadvertise='a b'") + &target("a", ""),
            "portal[0].advertise: `a b` is not a host with a port | write one such as",
        ),
        (
            target("a", "listen=['127.0.0.1']\ngroups=[1]"),
            "target[0].listen: a target with `listen` has only these portals",
        ),
        (
            target("a", "redirect_permanently=true"),
            "target[0].redirect_permanently: there is no `redirect`",
        ),
        ("[[target]]\nname='iqn.a:moved'\nredirect='10.0.0.1'".to_owned(), "nothing"),
        (
            "log_level='='\n".to_owned() + &target("a", ""),
            "f.toml:1:11: log_level: `=` is not a filter of events",
        ),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "expected {expected}\n   found {found}\n{text}");
    }
}

#[test]
fn slices_of_one_file_must_not_overlap() {
    let unit = |name: &str, file: &str, above: &str| {
        let stack = format!("[{{file={{path='p', {file}}}}}{above}]");
        format!("[[target]]\nname='iqn.a:{name}'\n[[target.unit]]\nstack={stack}\n")
    };
    let slice = |keys: &str| format!(", {{slice={{{keys}}}}}");
    let two = |first: &str, second: &str| {
        unit("a", "size='8MiB'", first) + &unit("b", "size='8MiB'", second)
    };
    let (low, high) = (slice("size='4MiB'"), slice("start='4MiB', size='4MiB'"));
    let overlap = "target[1].unit[0].stack[0].file.path: the bytes from 3MiB to the end of p overlap \
                   the bytes from 0B to 4MiB, used at target[0].unit[0].stack[0].file.path | move `start`";
    for (text, expected) in [
        (two(&low, &high), "nothing"),
        (two(&low, &slice("start='4MiB'")), "nothing"),
        (two(&low, &slice("start='3MiB'")), overlap),
        (two(&slice("start='1MiB'"), &high), "overlap the bytes from 1MiB to the end"),
        (two(&low, ""), "file p is already used at target[0]"),
        (two("", &low), "or put a `slice` right above the file in both units"),
        (two(&low, &format!(", 'read-only'{high}")), "file p is already used"),
        (
            unit("a", "size='8MiB'", &low) + &unit("b", "block_size=4096", &high),
            "the keys of file p differ from those at target[0]",
        ),
        (
            unit("a", "", &low)
                + &format!("[[target.unit]]\nlun=1\nstack=[{{file={{path='p'}}}}{low}]\n"),
            "target[0].unit[1].stack[0].file.path: the bytes from 0B to 4MiB of p overlap",
        ),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "expected {expected}\n   found {found}\n{text}");
    }
}

#[test]
fn a_node_that_takes_moved_volumes_needs_no_target() {
    let accept = "state='s'\n[names]\nlisten=['127.0.0.1:1']\nsecret_file='x'\n\
                  [accept]\nfolder='m'\nsize='1GiB'\n";
    let portal = "[[portal]]\naddress='127.0.0.1:2'\ngroup=7\n";
    for (text, expected) in [
        (accept.to_owned(), "nothing"),
        (format!("{accept}{portal}"), "nothing"),
        (format!("listen=[]\n{accept}"), "no initiator can reach the volumes: there is no portal"),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
    let ports = |text: &str| {
        let groups = parse(text).groups().into_iter();
        let ports = groups.flat_map(|group| group.portals).map(|(address, _)| address.0.port());
        ports.collect::<Vec<_>>()
    };
    assert_eq!(ports(accept), [3260]);
    assert_eq!(ports(&format!("{accept}{portal}")), [2]);
    // If all targets have portals of their own, the default of `listen` opens no portal.
    let own = "[[target]]\nname='iqn.a:own'\nredirect='h'\nlisten=['127.0.0.1:4']\n";
    assert_eq!(ports(&format!("{accept}{own}")), [4]);
    assert_eq!(ports(&format!("listen=['127.0.0.1:5']\n{accept}{own}")), [5, 4]);
}

#[test]
fn portal_groups_are_listed_in_order_with_the_targets_reached_through_them() {
    let text = "listen=['127.0.0.1:1']
        [[portal]]\naddress='127.0.0.1:2'\ngroup=7
        [[portal]]\naddress='127.0.0.1:3'
        [[target]]\nname='iqn.a:all'\nredirect='h'
        [[target]]\nname='iqn.a:seven'\nredirect='h'\ngroups=[7]
        [[target]]\nname='iqn.a:own'\nredirect='h'\nlisten=['127.0.0.1:4']";
    let settings = parse(text);
    let groups = settings.groups().into_iter().map(|group| {
        let ports = group.portals.iter().map(|(address, _)| address.0.port());
        let reached = settings.target.iter().filter(|target| target.is_reached_through(&group));
        let names = reached.map(|target| target.name.0[6..].to_owned()).collect::<Vec<_>>();
        (group.tag, ports.collect::<Vec<_>>(), names.join(" "))
    });
    let expected = [
        (1, vec![1, 3], "all".to_owned()),
        (7, vec![2], "all seven".to_owned()),
        (1, vec![4], "own".to_owned()),
    ];
    assert_eq!(groups.collect::<Vec<_>>(), expected);
}

#[test]
fn a_common_cache_is_checked_with_the_units_that_use_it() {
    let unit = |name: &str, more: &str| {
        let stack = format!("[{{memory={{size=4096}}}}, {more}{{common-cache={{name='{name}'}}}}]");
        format!("[[target]]\nname = 'iqn.2026-11.a:b'\n[[target.unit]]\nstack = {stack}\n")
    };
    let cache = |keys: &str| format!("[[common_cache]]\nname='db'\ncache={{log='l'{keys}}}\n");
    let both = |keys: &str| cache(keys) + &unit("db", "");
    for (text, expected) in [
        (both(""), "nothing"),
        (
            cache("") + &unit("d", ""),
            "no unit has db in its stack | put { common-cache = { name = \"db\" } }",
        ),
        (unit("db", ""), "common-cache.name: there is no common cache db | add a [[common_cache]]"),
        (cache("") + &both("").replace("'l'", "'m'"), "common cache db is already used at"),
        (both(", log_mirror='l'"), "file l is already used"),
        (cache("") + &unit("db", "{cache={log='m'}}, "), "the unit has another cache, too"),
        (both(", share=true"), "common_cache[0].cache.share: coherence tokens exist"),
        (
            both(", report='at-flush'"),
            "cache.report: all writes of a common cache must go to its log",
        ),
        (
            both(", report='through'"),
            "cache.report: all writes of a common cache must go to its log",
        ),
        (both(", order='relaxed'"), "cache.order: writes that overtake the log"),
        (both(", on_log_error='write-through'"), "cache.on_log_error: writes that bypass the log"),
        (
            both(", pair={partner={url='iscsi://h/iqn.2026-11.a:p/0'}}"),
            "cache.pair: a pair can hand over the log of one target only | leave `pair` out",
        ),
        (both(", dram='1KiB'"), "common_cache[0].cache.dram: 1KiB is not between"),
        (unit("", ""), "common-cache.name: `name` is missing"),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

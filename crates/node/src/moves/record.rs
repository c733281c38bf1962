//! The records of moved volumes: those that have moved away, and those that have moved here. Each has a file in the
//! folder `moved` of the state folder; `docs/formats/state.md` describes its bytes.
//!
//! The settings may still name volumes that have moved away. The records take precedence, because they are newer
//! than the settings.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use ::names::{Gln, NodeName, VolumeName};
use config::{HostPort, IscsiName, IscsiTargetSettings, Settings, Unit};
use control::Failure;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stack::{atomic_file, state_folder, unit_state};

use super::volume_description::Described;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MoveId(String);

impl MoveId {
    pub fn random() -> Result<Self, Failure> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(Failure::new)?;
        Ok(Self(random.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveRecord {
    /// The volume has moved away: its file here, if one is left, is never served again.
    pub gone: Option<MoveOutRecord>,
    /// The volume is being received, or was received.
    pub come: Option<Come>,
    /// Moves from this node that may have made a complete copy of the volume at another node, the latest one last.
    /// Except for the move in `gone`, the volume has stayed here. If a move is neither in this list nor in `gone`, this
    /// node does not know its outcome.
    #[serde(default)]
    pub tried: Vec<MoveId>,
}

/// Maximum length of `tried` for one volume. For older moves this node does not know the outcome, so the operator has
/// to decide about their copies.
const MOST_TRIED: usize = 16;

impl VolumeMoveRecord {
    /// Returns the record with a further move that may make a complete copy at another node.
    pub fn with_tried(mut self, id: MoveId) -> Self {
        if self.tried.len() >= MOST_TRIED {
            self.tried.remove(0);
        }
        self.tried.push(id);
        self
    }
}

/// A moved volume that these settings do not allow to be served, and the reason.
pub type Blocked = (VolumeName, Failure);

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MoveOutRecord {
    pub id: MoveId,
    /// The iSCSI name of the target that served the volume at this node before the move.
    pub target: String,
    pub lun: u16,
    /// The generation: the number of times that the volume has moved.
    pub generation: u64,
    /// The GLN of the destination node.
    pub to: Gln,
    pub to_node: NodeName,
    /// The address to which initiators are redirected.
    pub redirect: String,
    /// A file that was created for the volume when it had moved here. It is removed when the destination serves the
    /// volume.
    pub left: Option<PathBuf>,
}

/// A volume that is being received, or was received.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Come {
    pub id: MoveId,
    pub stage: CopyStage,
    /// The number of the source node, which decides about the move.
    pub from: Gln,
    pub from_node: NodeName,
    /// The file that holds the copy of the volume.
    pub file: PathBuf,
    pub volume: Described,
}

/// The progress of a volume that moves to this node.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyStage {
    /// The copy is incomplete, and is discarded if the move ends now.
    Arriving,
    /// The copy is complete, but the source node has not decided yet: it must neither be served nor discarded.
    Ready,
    /// The move has taken place: this copy is the volume.
    Here,
}

pub struct Moves {
    /// The folder of the records; `None` without a state folder: then no volume can move.
    folder: Option<PathBuf>,
    kept: Mutex<BTreeMap<VolumeName, VolumeMoveRecord>>,
}

/// The ending of the names of record files.
const ENDING: &str = ".volume";

impl Moves {
    /// Reads the records of moves from the state folder that these settings name.
    pub fn open(settings: &Settings) -> Result<Self, Failure> {
        // A node without [names] reads the records, too, because a volume that has moved away must not be served.
        // This is the first access to the state folder at a start, so first refuse a folder that others may write
        // to.
        let folder = settings.state.as_ref().map(|state| state.join("moved"));
        for folder in [settings.state.as_ref(), folder.as_ref()].into_iter().flatten() {
            state_folder::check(folder)?;
        }
        let mut kept = BTreeMap::new();
        if let Some(folder) = folder.as_ref().filter(|folder| folder.exists()) {
            // Sync the folder before the records are used: a record that can be read may not be stable yet, and other
            // nodes rely on it.
            atomic_file::settle_names(&folder.join("x"))
                .map_err(|error| cannot("settle", folder, &error))?;
            for path in files(folder).map_err(|error| cannot("look for", folder, &error))? {
                let Some(volume) = volume_of(&path) else { continue };
                let bytes =
                    atomic_file::read(&path).map_err(|error| cannot("read", &path, &error))?;
                let found =
                    unit_state::unframed(&bytes).and_then(|json| serde_json::from_slice(json).ok());
                kept.insert(volume, found.ok_or_else(|| damaged(&path))?);
            }
        }
        Ok(Self { folder, kept: Mutex::new(kept) })
    }

    pub fn of(&self, volume: &VolumeName) -> VolumeMoveRecord {
        self.kept.lock().get(volume).cloned().unwrap_or_default()
    }

    pub fn all(&self) -> Vec<(VolumeName, VolumeMoveRecord)> {
        self.kept.lock().iter().map(|(volume, kept)| (volume.clone(), kept.clone())).collect()
    }

    /// Replaces the record of a volume. It is stable on return. If this fails, nothing has changed during the
    /// lifetime of the process; the state after a crash is unknown.
    pub fn keep(&self, volume: &VolumeName, kept: VolumeMoveRecord) -> Result<(), Failure> {
        let folder = self.folder.as_ref().ok_or_else(|| {
            Failure::new("there is no state folder")
                .remedy("name a folder with `state` in the settings, and restart")
        })?;
        let path = folder.join(format!("{volume}{ENDING}"));
        let write = || match kept == VolumeMoveRecord::default() {
            true => match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(()) => atomic_file::settle_names(&path),
            },
            false => {
                let json = serde_json::to_vec(&kept).map_err(io::Error::other)?;
                state_folder::make(folder)?;
                atomic_file::settle_names(folder)?;
                atomic_file::replace(&path, &unit_state::framed(&json))
            }
        };
        write().map_err(|error| cannot("write", &path, &error))?;
        match kept == VolumeMoveRecord::default() {
            true => _ = self.kept.lock().remove(volume),
            false => _ = self.kept.lock().insert(volume.clone(), kept),
        }
        Ok(())
    }

    /// Writes the record next to the present one, which stays in force. Fails if there is no room for it.
    pub fn try_to_keep(&self, volume: &VolumeName, kept: &VolumeMoveRecord) -> Result<(), Failure> {
        let folder = self.folder.as_ref().ok_or_else(|| {
            Failure::new("there is no state folder")
                .remedy("name a folder with `state` in the settings, and restart")
        })?;
        let path = folder.join(format!("{volume}{ENDING}"));
        let write = || {
            state_folder::make(folder)?;
            atomic_file::prepare(&path, &unit_state::framed(&serde_json::to_vec(kept)?))
        };
        write().map_err(|error| cannot("write", &path, &error))
    }

    /// Applies the moves to the settings of the file: removes volumes that have moved away, and adds those that have
    /// moved here. Volumes that cannot be served are left out, with everything that conflicts with their names, and
    /// are returned.
    pub fn apply(&self, settings: &mut Settings) -> Vec<Blocked> {
        let all = self.all();
        let here = |(volume, kept): &(VolumeName, VolumeMoveRecord)| {
            let come = kept.come.as_ref().filter(|come| come.stage == CopyStage::Here)?;
            Some((volume.clone(), come.volume.target.clone()))
        };
        let here: Vec<_> = all.iter().filter_map(here).collect();
        let mut blocked = Vec::new();
        for (volume, kept) in all {
            match kept {
                VolumeMoveRecord {
                    come: Some(come @ Come { stage: CopyStage::Here, .. }), ..
                } => {
                    let is_twin = |(other, target): &&(VolumeName, String)| {
                        *other != volume && *target == come.volume.target
                    };
                    let arrived = match here.iter().find(is_twin) {
                        Some((other, _)) => Err(contested(
                            &volume,
                            &come,
                            &format!("{other} was moved to the same target"),
                        )),
                        None => arrive(settings, &volume, &come),
                    };
                    blocked.extend(arrived.err().map(|failure| (volume, failure)));
                }
                VolumeMoveRecord { gone, come, .. } => {
                    if let Some(gone) = gone {
                        depart(settings, &volume, &gone);
                    }
                    if let Some(come @ Come { stage: CopyStage::Ready, .. }) = come {
                        wait_for(settings, come);
                    }
                }
            }
        }
        blocked
    }
}

/// Removes the unit of a volume that has moved away, and redirects logins to its target.
fn depart(settings: &mut Settings, volume: &VolumeName, gone: &MoveOutRecord) {
    for target in &mut settings.target {
        let is_its = target.name.0 == gone.target;
        let before = target.unit.len();
        target.unit.retain(|unit| {
            let is_it = unit.volume.as_ref() == Some(volume);
            // With a higher generation in the settings, the operator states that this volume is the newer one.
            let is_newer = is_it && unit.generation > gone.generation;
            is_newer || !(is_it || is_its && unit.lun == gone.lun)
        });
        if target.unit.is_empty() && (is_its || before > 0) {
            target.redirect = redirect(gone);
            target.redirect_permanently = false;
        }
    }
    if !settings.target.iter().any(|target| target.name.0 == gone.target) {
        let name = IscsiName(gone.target.clone());
        settings.target.push(IscsiTargetSettings {
            name,
            redirect: redirect(gone),
            ..IscsiTargetSettings::default()
        });
    }
}

/// Returns the redirect, if the address is known; otherwise logins fail with "service unavailable".
fn redirect(gone: &MoveOutRecord) -> Option<HostPort> {
    (!gone.redirect.is_empty()).then(|| HostPort(gone.redirect.clone()))
}

/// Adds the target of a volume whose move is not decided yet, without units and redirect: logins fail with
/// "service unavailable", and initiators try again.
fn wait_for(settings: &mut Settings, come: Come) {
    let Come { volume, file, .. } = come;
    match settings.target.iter_mut().find(|target| target.name.0 == volume.target) {
        Some(target) => target.redirect = None,
        None => settings
            .target
            .push(IscsiTargetSettings { unit: Vec::new(), ..volume.served(file, None) }),
    }
}

/// Changes the settings so that a received volume is served from its new file, even if they name a file that it had
/// here before an earlier move.
fn arrive(settings: &mut Settings, volume: &VolumeName, come: &Come) -> Result<(), Failure> {
    let described = &come.volume;
    let is_its = |target: &IscsiTargetSettings| target.name.0 == described.target;
    let is_it = |unit: &Unit| unit.volume.as_ref() == Some(volume);
    // Find a target that conflicts with the moved volume: the volume's target must have this unit only, and no other
    // target may have the volume.
    let wrong = |target: &&IscsiTargetSettings| {
        target.unit.iter().any(|unit| is_it(unit) != is_its(target))
    };
    if let Some(at) = settings.target.iter().position(|target| wrong(&target)) {
        let target = &mut settings.target[at];
        let what = if is_its(target) { "another unit" } else { "the same volume" };
        let failure = contested(volume, come, &format!("{} has {what}", target.name));
        // Serve neither the moved volume nor the conflicting unit: hosts would find another disk under a name that they
        // know.
        let is_its = is_its(target);
        target.unit.retain(|unit| !is_its && !is_it(unit));
        return Err(failure);
    }
    match settings.target.iter_mut().find(|target| is_its(target)) {
        // Keep the target's settings, but replace its units and its redirect, which are from the time before the volume
        // moved here.
        Some(target) => {
            target.unit = vec![described.unit(come.file.clone())];
            target.redirect = None;
        }
        None => {
            let allow = settings.accept.as_ref().and_then(|accept| accept.allow.clone());
            settings.target.push(described.served(come.file.clone(), allow));
        }
    }
    Ok(())
}

/// Returns the failure for a conflict about the names of a moved volume.
fn contested(volume: &VolumeName, come: &Come, other: &str) -> Failure {
    Failure::settings(format!(
        "the volume {volume} was moved here from {} as the unit of {}; {other}, and neither is served",
        come.from_node, come.volume.target,
    ))
    .remedy("remove one of the two from the settings, or move it away under another name, and reload")
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn volume_of(path: &Path) -> Option<VolumeName> {
    path.file_name()?.to_str()?.strip_suffix(ENDING)?.parse().ok()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {error}", path.display()))
        .remedy("give the user of this process read and write access to the `state` folder, and make room there")
}

fn damaged(path: &Path) -> Failure {
    Failure::new(format!("{} is damaged: it does not say whether the volume is here", path.display())).remedy(
        "restore it from a copy; or find the node that has the volume (`forebay names`), and delete the file \
         only if the volume is here by the settings",
    )
}

#[cfg(test)]
mod tests {
    use super::{super::access_rules::TargetAccessRules, *};

    const SETTINGS: &str = "state = 'state'\n[names]\nlisten = ['127.0.0.1:0']\nsecret_file = 's'\n\
        [[target]]\nname = 'iqn.a:b'\nalias = 'ours'\n[[target.unit]]\nvolume = 'payroll'\nlun = 3\n\
        stack = [ { memory = { size = '1MiB' } } ]\n";

    fn settings(folder: &Path, text: &str) -> Settings {
        let mut settings =
            Settings::parse(Path::new("f.toml"), text).unwrap_or_else(|e| panic!("{e}"));
        settings.state = Some(folder.join("state"));
        settings
    }

    fn described(settings: &Settings) -> Described {
        let target = &settings.target[0];
        let volume = volume::MemVolume::new(volume::Geometry::with_blocks(2048));
        Described::new((target, TargetAccessRules::default()), &target.unit[0], "S", &volume)
            .unwrap()
    }

    fn gone() -> MoveOutRecord {
        MoveOutRecord {
            id: MoveId::random().unwrap(),
            target: "iqn.a:b".into(),
            lun: 3,
            generation: 1,
            to: Gln::new([2; 16]),
            to_node: "cellar".parse().unwrap(),
            redirect: "192.0.2.7:3260".into(),
            left: None,
        }
    }

    fn come(stage: CopyStage, volume: Described) -> Come {
        Come {
            id: MoveId::random().unwrap(),
            stage,
            from: Gln::new([1; 16]),
            from_node: "attic".parse().unwrap(),
            file: "/moved/payroll.img".into(),
            volume,
        }
    }

    fn applied(folder: &Path, text: &str) -> Settings {
        let mut settings = settings(folder, text);
        assert_eq!(Moves::open(&settings).unwrap().apply(&mut settings), []);
        settings
    }

    #[test]
    fn a_volume_that_moved_away_is_not_served_whatever_the_settings_say() {
        let folder = tempfile::tempdir().unwrap();
        let before = settings(folder.path(), SETTINGS);
        let volume = "payroll".parse().unwrap();
        let kept = VolumeMoveRecord { gone: Some(gone()), ..VolumeMoveRecord::default() };
        Moves::open(&before).unwrap().keep(&volume, kept).unwrap();
        let renamed = SETTINGS.replace("'payroll'", "'wages'");
        let elsewhere = SETTINGS.replace("iqn.a:b", "iqn.a:c").replace("lun = 3", "lun = 1");
        let without =
            SETTINGS.replace("'iqn.a:b'", "'iqn.a:other'").replace("'payroll'", "'wages'");
        // Settings of a node that does not take part in the naming service any more.
        let alone = SETTINGS
            .replace("[names]\nlisten = ['127.0.0.1:0']\nsecret_file = 's'\n", "")
            .replace("volume = 'payroll'\n", "");
        for (text, gone_from) in [
            (SETTINGS, "iqn.a:b"),
            (&alone, "iqn.a:b"),
            (&renamed, "iqn.a:b"),
            (&elsewhere, "iqn.a:c"),
            (&without, "iqn.a:b"),
        ] {
            let settings = applied(folder.path(), text);
            let target = settings.target.iter().find(|target| target.name.0 == gone_from).unwrap();
            assert!(target.unit.is_empty(), "{text}");
            assert_eq!(target.redirect.as_ref().unwrap().0, "192.0.2.7:3260");
        }
        assert_eq!(applied(folder.path(), &without).target[0].unit.len(), 1);
        // The volume moves back here, and is served from the file to which it was received.
        let come = |stage| VolumeMoveRecord {
            gone: Some(gone()),
            come: Some(come(stage, described(&before))),
            ..VolumeMoveRecord::default()
        };
        let moves = Moves::open(&before).unwrap();
        for stage in [CopyStage::Arriving, CopyStage::Ready] {
            moves.keep(&volume, come(stage)).unwrap();
            let target = &applied(folder.path(), SETTINGS).target[0];
            assert!(target.unit.is_empty());
            assert_eq!(target.redirect.is_none(), stage == CopyStage::Ready);
        }
        moves.keep(&volume, come(CopyStage::Here)).unwrap();
        let back = applied(folder.path(), SETTINGS);
        assert_eq!(back.target[0].unit, [described(&before).unit("/moved/payroll.img".into())]);
        assert_eq!((back.target.len(), &back.target[0].redirect), (1, &None));
        moves.keep(&volume, VolumeMoveRecord::default()).unwrap();
        assert_eq!(applied(folder.path(), SETTINGS), before);
    }

    #[test]
    fn a_received_volume_is_served_in_addition_to_the_settings_and_never_twice() {
        let folder = tempfile::tempdir().unwrap();
        let from = settings(folder.path(), SETTINGS);
        let other = SETTINGS.replace("iqn.a:b", "iqn.a:other").replace("volume = 'payroll'", "");
        let here = settings(folder.path(), &other);
        let kept = VolumeMoveRecord {
            come: Some(come(CopyStage::Here, described(&from))),
            ..VolumeMoveRecord::default()
        };
        Moves::open(&here).unwrap().keep(&"payroll".parse().unwrap(), kept).unwrap();
        let settings_in_force = applied(folder.path(), &other);
        assert_eq!(settings_in_force.target.len(), 2);
        let unit = &settings_in_force.target[1].unit[0];
        assert_eq!((unit.lun, unit.generation, unit.serial.as_deref()), (3, 1, Some("S")));
        for wrong in [
            SETTINGS.replace("iqn.a:b", "iqn.a:other"),
            SETTINGS.replace("'payroll'", "'wages'"),
            SETTINGS.replace("volume = 'payroll'", ""),
        ] {
            let mut settings = settings(folder.path(), &wrong);
            let blocked = Moves::open(&settings).unwrap().apply(&mut settings);
            assert_eq!(blocked.len(), 1, "{wrong}");
            assert!(settings.target.iter().all(|target| target.unit.is_empty()), "{wrong}");
        }
    }

    /// While the node is down, another program or changed settings cause a conflict between two received volumes.
    /// Neither of the two may be served, but all other volumes must be.
    #[test]
    fn two_received_volumes_with_one_target_are_both_refused_and_all_others_served() {
        let folder = tempfile::tempdir().unwrap();
        let from = settings(folder.path(), SETTINGS);
        let other = SETTINGS.replace("iqn.a:b", "iqn.a:other").replace("volume = 'payroll'", "");
        let mut here = settings(folder.path(), &other);
        let moves = Moves::open(&here).unwrap();
        for volume in ["payroll", "wages"] {
            let come = come(CopyStage::Here, described(&from));
            let kept = VolumeMoveRecord { come: Some(come), ..VolumeMoveRecord::default() };
            moves.keep(&volume.parse().unwrap(), kept).unwrap();
        }
        let blocked = moves.apply(&mut here);
        let told: Vec<_> = blocked.iter().map(|(volume, why)| (volume.as_str(), why)).collect();
        assert!(
            told[0].0 == "payroll"
                && told[0].1.message.contains("wages was moved to the same target"),
            "{told:?}"
        );
        assert!(
            told[1].0 == "wages"
                && told[1].1.message.contains("payroll was moved to the same target"),
            "{told:?}"
        );
        assert_eq!((here.target.len(), here.target[0].unit.len()), (1, 1));
    }

    #[test]
    fn a_higher_generation_in_the_settings_serves_a_volume_that_moved_away() {
        let folder = tempfile::tempdir().unwrap();
        let before = settings(folder.path(), SETTINGS);
        let kept = VolumeMoveRecord { gone: Some(gone()), ..VolumeMoveRecord::default() };
        Moves::open(&before).unwrap().keep(&"payroll".parse().unwrap(), kept).unwrap();
        let generation = |generation: u64| {
            let unit = format!("volume = 'payroll'\ngeneration = {generation}");
            let text = SETTINGS.replace("volume = 'payroll'", &unit);
            applied(folder.path(), &text).target[0].unit.len()
        };
        assert_eq!([0, 1, 2].map(generation), [0, 0, 1]);
    }

    #[test]
    fn a_damaged_record_is_an_error_and_never_treated_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), SETTINGS);
        let volume: VolumeName = "payroll".parse().unwrap();
        let kept = VolumeMoveRecord { gone: Some(gone()), ..VolumeMoveRecord::default() };
        Moves::open(&settings).unwrap().keep(&volume, kept.clone()).unwrap();
        assert_eq!(Moves::open(&settings).unwrap().of(&volume), kept);
        let path = folder.path().join("state/moved/payroll.volume");
        let whole = fs::read(&path).unwrap();
        for at in [0, 9, 20, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(Moves::open(&settings).is_err(), "{at}");
        }
        fs::write(&path, "").unwrap();
        assert!(Moves::open(&settings).is_err());
    }

    #[test]
    fn a_received_description_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let right = described(&settings(folder.path(), SETTINGS));
        right.check().unwrap();
        let refused = |change: &dyn Fn(&mut Described)| {
            let mut wrong = right.clone();
            change(&mut wrong);
            assert!(wrong.check().is_err(), "{wrong:?}");
        };
        refused(&|d| d.target = "disk\n".into());
        refused(&|d| d.generation = u64::MAX);
        refused(&|d| d.serial = String::new());
        refused(&|d| d.block_size = 520);
        refused(&|d| d.blocks = u64::MAX);
        refused(&|d| d.lun = 20_000);
    }
}

//! A node with an object drive that requires signatures, and sessions of its owner.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use initiator::{Credential, KeyChain, RemoteObjects, Settings};
use iscsi::keys::DigestPolicy;
use object::{Command, KeyToSet, ObjectError, ObjectReply, ObjectRequest, ObjectResult};
use osd::security::{Algorithm, SecurityMethod};

use crate::{
    pdu_proxy::PduProxy,
    support::{Place, Serving},
};

const NAME: &str = "iqn.2026-11.test:objects";
pub const PARTITION: u64 = 0x1_0000;

pub struct Scene {
    _place: Place,
    _node: Serving,
    chain: KeyChain,
    pub proxy: PduProxy,
    /// A session that is never cut.
    pub direct: RemoteObjects,
    /// The session through the proxy, at error recovery level 0.
    pub through: RemoteObjects,
}

impl Scene {
    pub async fn new() -> Self {
        let place = Place::new();
        let content = format!("{}\n{}\n", "01".repeat(32), "02".repeat(32));
        let path = place.path("drive.key");
        std::fs::write(&path, &content).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        let chain = KeyChain::parse(content.as_bytes()).expect("a key");
        let node = place.serve(
            "node",
            &format!(
                "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NAME}'\n[[target.unit]]\nkind = 'object'\n\
                 stack = [ {{ memory = {{ size = '256MiB' }} }} ]\n[target.unit.object]\n\
                 security = 'cmdrsp'\nmaster_key_file = 'drive.key'\n"
            ),
        );
        let proxy = PduProxy::start(node.address).await;
        let direct = connect(node.address.to_string(), &chain).await;
        let through = connect(proxy.address.to_string(), &chain).await;
        let scene = Self { _place: place, _node: node, chain, proxy, direct, through };
        scene.prepare().await;
        scene
    }

    /// Formats the drive, and creates a partition with its keys.
    pub async fn prepare(&self) {
        // The root key signs FORMAT OSD.
        self.set_key(KeyToSet::Root).await;
        self.perform(Command::FormatOsd { capacity: 0 }).await.expect("formatted");
        let partition = PARTITION;
        self.set_key(KeyToSet::Root).await;
        self.perform(Command::CreatePartition { requested: partition }).await.expect("created");
        self.set_key(KeyToSet::Partition { partition }).await;
        self.set_key(KeyToSet::Working { partition, version: 0 }).await;
    }

    async fn set_key(&self, key: KeyToSet) {
        self.perform(self.key(key)).await.expect("a key is set");
    }

    /// Returns the command that sets a key.
    pub fn key(&self, key: KeyToSet) -> Command {
        let owner = credential(&self.chain);
        owner.owner().expect("keys").set_key(key)
    }

    pub async fn perform(&self, command: Command) -> Result<ObjectReply, ObjectError> {
        self.request(ObjectRequest::new(command)).await
    }

    pub async fn request(&self, request: ObjectRequest) -> ObjectResult {
        self.direct.request(request).await
    }
}

fn credential(chain: &KeyChain) -> Credential {
    Credential::keys(chain.clone(), SecurityMethod::CmdRsp, Algorithm::HmacSha256, 0)
}

async fn connect(portal: String, chain: &KeyChain) -> RemoteObjects {
    let mut settings = Settings::new(portal, NAME, 0);
    settings.back_off = Duration::from_millis(5);
    // Sessions that end at once are not a reason to wait: the proxy cuts them.
    settings.back_off_max = Duration::from_millis(5);
    settings.error_recovery_level = 0;
    // The proxy finds the ends of PDUs by their headers alone.
    settings.offer.header_digest = DigestPolicy::Off;
    settings.offer.data_digest = DigestPolicy::Off;
    // Small enough that a command of some 100 KiB has several PDUs of each kind.
    settings.offer.first_burst_length = 32 << 10;
    settings.offer.max_burst_length = 64 << 10;
    settings.offer.max_recv_data_segment_length = 32 << 10;
    RemoteObjects::connect(settings, credential(chain), None).await.expect("a drive")
}

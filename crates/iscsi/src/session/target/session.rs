//! What the connections of one session share.

use crate::{
    Bhs, Cid, Isid, Itt, Pdu, Serial, Tsih,
    keys::Parameters,
    login::{Established, SessionType},
    pdu::Numbers,
    window::Window,
};

use super::{
    settings::Settings,
    task::{Task, Tasks},
};

/// One session: command order, tasks, what was agreed on. With several connections it stands
/// behind one lock that each driver takes once for a batch of PDUs.
#[derive(Debug)]
pub struct Session {
    pub(super) settings: Settings,
    pub(super) parameters: Parameters,
    pub(super) discovery: bool,
    pub(super) window: Window<Early>,
    pub(super) tasks: Tasks<Task>,
    /// Entries of `tasks` that take a place in the window.
    pub(super) in_progress: u32,
    /// Entries of `tasks` that are immediate.
    pub(super) immediate: u32,
    initiator_name: String,
    target_name: Option<String>,
    isid: Isid,
    tsih: Tsih,
}

/// A PDU that arrived before its turn.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) pdu: Pdu,
    pub(super) bhs: Bhs,
    /// The connection it came on.
    pub(super) allegiance: Cid,
}

impl Session {
    pub(super) fn new(settings: Settings, login: &Established, tsih: Tsih) -> Self {
        let window = Window::new(login.cmd_sn, settings.window_commands());
        Self {
            settings,
            parameters: login.parameters.clone(),
            discovery: login.session_type == SessionType::Discovery,
            window,
            tasks: Tasks::default(),
            in_progress: 0,
            immediate: 0,
            initiator_name: login.initiator_name.clone(),
            target_name: login.target_name.clone(),
            isid: login.isid,
            tsih,
        }
    }

    /// What was agreed on at login.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Only SendTargets is served.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// The initiator's iSCSI name.
    #[must_use]
    pub fn initiator_name(&self) -> &str {
        &self.initiator_name
    }

    /// The target's iSCSI name; a discovery session may have none.
    #[must_use]
    pub fn target_name(&self) -> Option<&str> {
        self.target_name.as_deref()
    }

    /// The initiator's half of the session's name.
    #[must_use]
    pub fn isid(&self) -> Isid {
        self.isid
    }

    /// Our half of it.
    #[must_use]
    pub fn tsih(&self) -> Tsih {
        self.tsih
    }

    /// Tasks in progress: commands and task management functions.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Sequence numbers for a PDU with this StatSN.
    pub(super) fn numbers(&self, stat_sn: Serial) -> Numbers {
        Numbers {
            stat_sn,
            exp_cmd_sn: self.window.exp_cmd_sn(),
            max_cmd_sn: self.window.max_cmd_sn(),
        }
    }

    /// A task begins. The caller has seen that its tag is free.
    pub(super) fn begin(&mut self, itt: Itt, task: Task) {
        if task.immediate {
            self.immediate += 1;
        } else {
            self.in_progress += 1;
        }
        self.tasks.insert(itt, task);
    }

    /// A task ends; its place in the window is free again.
    pub(super) fn end(&mut self, itt: Itt) -> Option<Task> {
        let task = self.tasks.remove(&itt)?;
        if task.immediate {
            self.immediate -= 1;
        } else {
            self.in_progress -= 1;
        }
        self.window.open(self.in_progress);
        Some(task)
    }
}

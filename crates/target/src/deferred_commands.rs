//! Commands that wait because the initiator does not read the responses on their connection. They have arrived in
//! order, and start as soon as their responses can be queued again.

use std::collections::VecDeque;

use iscsi::{Itt, session::target::ReceivedCommand};

/// Commands that wait until their responses can be queued. The session's command window bounds their number, and
/// `Settings::held_bytes` bounds their data.
#[derive(Default)]
pub(crate) struct Deferred {
    commands: VecDeque<ReceivedCommand>,
    bytes: usize,
}

impl Deferred {
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns the length of the Data-Out of the waiting commands.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, command: ReceivedCommand) {
        self.bytes += data_out(&command);
        self.commands.push_back(command);
    }

    pub(crate) fn pop(&mut self) -> Option<ReceivedCommand> {
        let command = self.commands.pop_front()?;
        self.bytes -= data_out(&command);
        Some(command)
    }

    /// Removes the command `itt`, if it waits in this list.
    pub(crate) fn abort(&mut self, itt: Itt) {
        if let Some(at) = self.commands.iter().position(|command| command.itt == itt) {
            let command = self.commands.remove(at);
            self.bytes -= command.map_or(0, |command| data_out(&command));
        }
    }
}

fn data_out(command: &ReceivedCommand) -> usize {
    command.data_out.iter().map(|piece| piece.len()).sum()
}

//! Commands of connections whose initiator does not read: they have come in their turn, and begin
//! when there is room for their answers again.

use std::collections::VecDeque;

use iscsi::{Itt, session::target::ReceivedCommand};

/// Bounded by the command window of the session, and the data with them by `Settings::held_bytes`.
#[derive(Default)]
pub(crate) struct Deferred {
    commands: VecDeque<ReceivedCommand>,
    bytes: usize,
}

impl Deferred {
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Data-Out that came with them.
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

    /// Forgets a command, if it is here.
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

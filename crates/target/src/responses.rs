//! Writing responses to the connections of a session.

use std::task::Context;

use iscsi::Itt;

use crate::{
    deferred_commands::Deferred, driver::TargetSessionDriver, end_reason::ConnectionEndReason,
};

impl TargetSessionDriver<'_> {
    /// Returns true if the initiator has left so much output of the command's connection unread that the target
    /// prepares no further responses for it.
    pub(crate) fn is_held_back(&self, itt: Itt) -> bool {
        let Some(connection) = self.session.allegiance(itt) else { return false };
        let line = self.lines.iter().find(|line| line.cid == connection.cid());
        line.is_some_and(|line| line.blocked_since.is_some())
            && connection.output().len() > self.server.settings.output_bytes
    }

    /// Returns true if enough commands were answered since the last write to write their responses now, before the rest
    /// of the input is processed.
    pub(crate) fn is_batch(&self) -> bool {
        self.unsent >= self.server.settings.batch_commands as usize * self.lines.len().max(1)
    }

    /// Writes responses while a batch of commands is still being performed. Ignores socket errors, which the next read
    /// or write finds as well.
    pub(crate) fn send_what_goes(&mut self, context: &mut Context<'_>) {
        self.unsent = 0;
        for at in 0..self.lines.len() {
            let _ = self.send_on(at, context);
        }
    }

    pub(crate) fn send_on(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
    ) -> Result<(), ConnectionEndReason> {
        if self.session.is_logged_out() {
            self.leave_units();
        }
        let line = &mut self.lines[at];
        match self.session.connection_mut(line.cid) {
            Some(connection) => line.send(connection.output_mut(), context),
            None => Ok(()),
        }
    }

    /// Ends the nexus at the units before the logout is answered. Once the initiator has the answer, no reservation of
    /// this session and no medium that it has locked may remain.
    fn leave_units(&mut self) {
        self.executions.clear();
        self.deferred = Deferred::default();
        self.nexus_handle = None;
    }
}

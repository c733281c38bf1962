//! Logout of the session, of a connection, and of a connection for recovery (RFC 7143, 11.14,
//! 11.15).

use crate::{
    Cid, Pdu,
    pdu::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult},
};

use super::{retained::Retained, session::Session};

impl Session {
    pub(super) fn handle_logout(&mut self, at: usize, request: LogoutRequest) {
        let own = self.connections[at].cid();
        let (result, time2retain) = match request.reason {
            Ok(LogoutReason::CloseSession) => {
                self.end_all();
                let others = self.connections.iter_mut().filter(|other| other.cid() != own);
                others.for_each(super::connection::Connection::close_at_once);
                (LogoutResult::Closed, 0)
            }
            Ok(LogoutReason::CloseConnection) => (self.log_out(at, request.cid, false), 0),
            Ok(LogoutReason::RemoveConnectionForRecovery) if self.recovers(2) => {
                (self.log_out(at, request.cid, true), self.time2retain())
            }
            Ok(LogoutReason::RemoveConnectionForRecovery) | Err(_) => {
                (LogoutResult::RecoveryNotSupported, 0)
            }
        };
        let time2wait = self.parameters.default_time2wait;
        let itt = request.itt;
        self.send_status(at, |numbers| {
            Pdu::LogoutResponse(LogoutResponse { result, itt, numbers, time2wait, time2retain })
        });
        if result == LogoutResult::Closed
            && (request.cid == own || request.reason == Ok(LogoutReason::CloseSession))
        {
            self.connections[at].closing = true;
        }
        self.check_fences();
        self.resume_transfers();
    }

    /// Logs out the connection `cid`, which may be open or have failed before; `at` is the
    /// connection that received the request. With `for_recovery`, the tasks of the connection are
    /// kept for another connection, otherwise they are aborted.
    fn log_out(&mut self, at: usize, cid: Cid, for_recovery: bool) -> LogoutResult {
        let is_own = self.connections[at].cid() == cid;
        if let Some(meant) = self.index(cid).filter(|meant| !self.connections[*meant].closing) {
            self.log_out_open(meant, for_recovery);
            if !is_own {
                self.connections[meant].close_at_once();
            }
            return LogoutResult::Closed;
        }
        if self.log_out_lost(cid, for_recovery) {
            LogoutResult::Closed
        } else {
            LogoutResult::CidNotFound
        }
    }

    fn log_out_open(&mut self, at: usize, for_recovery: bool) {
        let connection = &mut self.connections[at];
        let instance = connection.instance;
        if for_recovery {
            let empty = Retained::new(connection.stat_sn);
            let retained = std::mem::replace(&mut connection.retained, empty);
            let cid = connection.cid();
            self.suspend(cid, instance, retained, true);
        } else {
            self.terminate(instance);
        }
    }

    /// Logs out a connection that has failed. Returns false if no failed connection has this CID.
    fn log_out_lost(&mut self, cid: Cid, for_recovery: bool) -> bool {
        let deadline = self.deadline();
        let meant: Vec<_> = self.lost.iter().filter(|l| l.cid == cid).map(|l| l.instance).collect();
        if for_recovery {
            for lost in self.lost.iter_mut().filter(|lost| lost.cid == cid) {
                if !lost.is_logged_out {
                    (lost.is_logged_out, lost.deadline) = (true, deadline);
                }
            }
        } else {
            meant.iter().for_each(|instance| self.terminate(*instance));
        }
        !meant.is_empty()
    }

    /// Logs out the connection with this CID, if there is one, because a new connection uses the
    /// CID (RFC 7143, 6.3.4, 11.14).
    pub(super) fn replace_connection(&mut self, cid: Cid) {
        let for_recovery = self.recovers(2);
        if let Some(at) = self.index(cid) {
            if !self.connections[at].closing {
                self.log_out_open(at, for_recovery);
            }
            self.remove_connection(at);
        }
        self.log_out_lost(cid, for_recovery);
    }
}

//! Claims a remote unit: presents the claim, checks from time to time that it is still in force, and finds out the
//! owner if it is refused.

use std::{sync::Arc, time::Duration};

use scsi::{ClaimAction, ClaimReport, ScsiStatus, Sense};
use tokio::{task::AbortHandle, time::sleep};
use volume::{Claim, Data, Holding};

use crate::{
    CommandError, LinkState, PerformedCommand, RemoteSession,
    claim::{self, ClaimOutReply, LOST, knows_no_confirmed},
    reservation::{NextReservationCommand, Reserving, ScsiCommandEnd},
};

impl RemoteSession {
    /// Claims the unit in the current session, if there is one. Every later session presents the claim before any other
    /// command.
    pub(crate) async fn claim(
        &self,
        claim: Claim,
        reserves: bool,
    ) -> Result<Holding, CommandError> {
        let claim = Arc::new(claim);
        self.claimed().set(claim.clone());
        let known = self.claimed().holding();
        if matches!(known, Holding::Refused(_)) || !matches!(self.state(), LinkState::Up) {
            return Ok(known);
        }
        self.present(claim, reserves).await
    }

    /// Presents the claim in the current session and returns the result. Returns `Holding::Waiting` if another claim
    /// has replaced this one meanwhile.
    async fn present(&self, claim: Arc<Claim>, reserves: bool) -> Result<Holding, CommandError> {
        let asked = self.claimed().asked(&claim);
        let told = asked.confirmed.get();
        let answer = loop {
            let (cdb, transfer) = claim::out(ClaimAction::Claim, &asked, self.claimed().list());
            let answer = self.execute(cdb, transfer).await;
            let is_old = matches!(&answer, Err(CommandError::Check(s)) if knows_no_confirmed(s));
            if !(is_old && self.claimed().note_old()) {
                break answer;
            }
        };
        if answer.is_ok() {
            self.claimed().note_advanced(told);
        }
        let holding = match answer {
            Ok(_) => Holding::Held,
            Err(CommandError::Fenced(reason)) => Holding::Refused(reason),
            Err(CommandError::Check(sense)) => match ClaimOutReply::of(sense, &asked) {
                Some(ClaimOutReply::Unsupported) if reserves => self.reserve(&claim).await?,
                Some(ClaimOutReply::Unsupported) => Holding::Unsupported,
                Some(ClaimOutReply::Lost) => Holding::Refused(LOST.into()),
                Some(_) => Holding::Refused(self.who_has_it(sense, &claim).await),
                None => return Err(CommandError::Check(sense)),
            },
            // Give up for now: the watch task or the next session presents the claim again.
            Err(CommandError::Away(_) | CommandError::Unreachable(_) | CommandError::Busy) => {
                Holding::Waiting
            }
            Err(error) => return Err(error),
        };
        let is_current = self.claimed().note(&claim, holding);
        Ok(if is_current { self.claimed().holding() } else { Holding::Waiting })
    }

    async fn reserve(&self, claim: &Claim) -> Result<Holding, CommandError> {
        let mut reserving = Reserving::new(claim);
        loop {
            match reserving.next() {
                NextReservationCommand::Send(cdb, transfer) => {
                    reserving.handle(ended(self.execute(cdb, transfer).await)?);
                }
                NextReservationCommand::Done(holding) => return Ok(holding),
            }
        }
    }

    /// Returns the reason why the claim is refused, with the name of the unit's owner, and records the refusal.
    pub(crate) async fn who_has_it(&self, sense: Sense, claim: &Arc<Claim>) -> Arc<str> {
        if let Holding::Refused(reason) = self.claimed().holding() {
            return reason;
        }
        let report = self.report().await;
        let reason = claim::reason(sense, &self.claimed().asked(claim), report.as_ref());
        self.claimed().note(claim, Holding::Refused(reason.clone()));
        reason
    }

    async fn report(&self) -> Option<ClaimReport> {
        let (cdb, transfer) = claim::r#in();
        let told = self.execute(cdb, transfer).await.ok()?;
        let told: Data = told.data_in.into_iter().collect();
        ClaimReport::from_bytes(&told.into_bytes())
    }

    /// Sends the confirmed number of the log to the unit. If this fails, the next check sends the number again, and so
    /// does the claim of the next session.
    async fn advance(&self, claim: &Claim, confirmed: u64) {
        let list = claim::List::Confirmed;
        let (cdb, transfer) = claim::out(ClaimAction::Advance, claim, list);
        match self.execute(cdb, transfer).await {
            Ok(_) => self.claimed().note_advance(confirmed),
            Err(CommandError::Check(sense)) => {
                tracing::debug!(%sense, "cannot send the confirmed number of the log to the node");
                self.claimed().note_refused_advance(&sense);
            }
            Err(error) => {
                tracing::debug!(%error, "cannot send the confirmed number of the log to the node")
            }
        }
    }

    /// Checks once a second that no other log has claimed the unit. Without the check, a cache that answers only from
    /// memory would not notice that it is fenced.
    ///
    /// Also presents a claim again that the unit has not answered although the session is up: either the unit was busy,
    /// or the claim was requested when the session had already presented its claim.
    async fn watch_claim(self, reserves: bool) {
        let mut is_reported = false;
        loop {
            sleep(LOOK_EVERY).await;
            let Some(claim) = self.claimed().get() else { return };
            let is_waiting = match self.claimed().holding() {
                Holding::Refused(_) | Holding::Unsupported | Holding::Reserved => return,
                Holding::Nothing => continue,
                Holding::Waiting => true,
                Holding::Held => false,
            };
            if !matches!(self.state(), LinkState::Up) {
                continue;
            }
            if is_waiting {
                match self.present(claim, reserves).await {
                    Ok(_) if std::mem::take(&mut is_reported) => {
                        tracing::info!("the claim is answered again");
                    }
                    Ok(_) => {}
                    Err(error) if std::mem::replace(&mut is_reported, true) => {
                        tracing::debug!(%error, "the claim is still not answered");
                    }
                    Err(error) => tracing::warn!(
                        %error, "the claim is not answered: presenting it until it is answered"
                    ),
                }
                continue;
            }
            if let Some(confirmed) = self.claimed().to_advance() {
                self.advance(&claim, confirmed).await;
            }
            let Some(report) = self.report().await else { continue };
            let is_ours = report.is_held
                && report.instance == claim.instance
                && report.generation == claim.generation;
            if !is_ours && self.claimed().holding() == Holding::Held {
                let reason = claim::reason(Sense::CLAIM_FENCED, &claim, Some(&report));
                self.claimed().note(&claim, Holding::Refused(reason));
            }
        }
    }
}

/// Converts the result of a command. A status other than GOOD is no error here, since the state machine of the
/// reservation evaluates it.
fn ended(answer: Result<PerformedCommand, CommandError>) -> Result<ScsiCommandEnd, CommandError> {
    let ended = |status, sense, data| Ok(ScsiCommandEnd { status, sense, data });
    match answer {
        Ok(answer) => ended(ScsiStatus::Good, None, answer.data_in.into_iter().collect()),
        Err(CommandError::Check(sense)) => {
            ended(ScsiStatus::CheckCondition, Some(sense), Data::new())
        }
        Err(CommandError::Status(status)) => ended(status, None, Data::new()),
        Err(error) => Err(error),
    }
}

/// A task that checks the claim of a session periodically. Dropping this value ends the task.
pub(crate) struct ClaimWatchTask(AbortHandle);

impl ClaimWatchTask {
    pub(crate) fn start(session: RemoteSession, reserves: bool) -> Self {
        Self(tokio::spawn(session.watch_claim(reserves)).abort_handle())
    }
}

impl Drop for ClaimWatchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The time between two checks. An operator needs longer than this to adopt a log elsewhere. The check is one command
/// with a CDB of 10 bytes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

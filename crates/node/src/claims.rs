//! Shows and drops the exclusive rights of gateways to write the node's units (claims), for the operator.

use std::sync::Arc;

use config::UNMOUNT_REMEDY;
use control::{ClaimStatus, Failure, UnitName};
use stack::figures;
use unit::{LogicalUnit, NotDropped, Sharer};

use super::Node;

impl Node {
    /// Returns the claim on the unit that was granted last, or the claims of all gateways that share the unit.
    pub fn claims(&self, name: &UnitName) -> Result<Vec<ClaimStatus>, Failure> {
        let unit = self.served_unit(name)?;
        let Some(unit) = unit.abilities().claims else { return Ok(Vec::new()) };
        let sharers = unit.sharers();
        Ok(match sharers.is_empty() {
            true => unit.claim_report().map(figures::claim).into_iter().collect(),
            false => sharers.into_iter().map(figures::sharer).collect(),
        })
    }

    /// Drops a claim. The data that its owner has not destaged is lost, so the caller has to confirm it
    /// with `lose_dirty_data`, and to state with `hosts_unmounted` that no host has the volume mounted.
    pub async fn drop_claim(
        &self,
        name: &UnitName,
        lose_dirty_data: bool,
        hosts_unmounted: bool,
    ) -> Result<Vec<ClaimStatus>, Failure> {
        let unit = self.served_unit(name)?;
        let Some(unit) = unit.abilities().claims else { return Ok(Vec::new()) };
        let Some(claim) = unit.claim_report().map(figures::claim) else { return Ok(Vec::new()) };
        if !claim.held {
            return Err(Failure::new(format!("{name} has no claim in force: {claim}")).remedy(
                "nothing has to be done: any initiator that `allow` admits may write to it",
            ));
        }
        let sharers = unit.sharers();
        if !sharers.is_empty()
            && sharers.iter().all(|sharer| sharer.claim.is_present || !sharer.claim.is_held)
        {
            let failure = Failure::new(format!("all gateways that share {name} are present"));
            return Err(failure.remedy(
                "stop the gateway whose data is to be discarded; after `share_lease` it counts as absent",
            ));
        }
        if claim.dirty && !lose_dirty_data {
            return Err(would_lose(name, &claim));
        }
        if claim.dirty && !hosts_unmounted {
            let command = format!("forebay claim drop {name} --lose-dirty-data --hosts-unmounted");
            return Err(stack::hosts_may_be_mounted(name, &command));
        }
        unit.drop_claim().await.map_err(|error| not_dropped(name, &error))?;
        match sharers.is_empty() {
            true => Ok(vec![claim]),
            false => {
                let gone = |sharer: &Sharer| sharer.claim.is_held && !sharer.claim.is_present;
                Ok(sharers.into_iter().filter(gone).map(figures::sharer).collect())
            }
        }
    }

    fn served_unit(&self, name: &UnitName) -> Result<Arc<dyn LogicalUnit>, Failure> {
        let inner = self.inner.lock();
        let served = inner.targets.iter().find(|served| served.name == name.target);
        let unit = served.and_then(|served| served.units.iter().find(|unit| unit.lun == name.lun));
        unit.map(|unit| Arc::clone(&unit.unit)).ok_or_else(|| {
            Failure::new(format!("there is no {name} here"))
                .remedy("`forebay status` shows the targets and units")
        })
    }
}

/// Returns the message and the remedy for a claim that could not be dropped.
fn not_dropped(unit: &UnitName, error: &NotDropped) -> Failure {
    let first = match error {
        NotDropped::NotRolledBack(_) => "check the log of the unit's cache",
        NotDropped::NotSaved => {
            "make room in the `state` folder, and give the user of this process write access to it"
        }
    };
    Failure::new(format!(
        "the claim on {unit} cannot be dropped: {error}; it is still in force, and its owner may be fenced"
    ))
    .remedy(format!("{first}, and repeat the command"))
}

/// Explains what is lost with a claim, if the caller has not confirmed the loss.
fn would_lose(unit: &UnitName, claim: &ClaimStatus) -> Failure {
    Failure::new(format!(
        "{unit} is claimed by {}, whose log {} (generation {}) may have acknowledged writes that exist nowhere \
         else: they would be lost",
        claim.owner, claim.log, claim.generation
    ))
    .remedy(format!(
        "drain and stop that gateway, or adopt its log on another host (`forebay gateway adopt`); if it is \
         lost, {UNMOUNT_REMEDY}; then `forebay claim drop {unit} --lose-dirty-data \
         --hosts-unmounted`, and check the file systems"
    ))
}

//! The units of a common cache, which are opened together: the layers below the cache in each unit, one cache over all
//! of them, and the layers above it in each unit.

use std::sync::Arc;

use cache::CommonMember;
use config::{CacheLayerSettings, IscsiTargetSettings, Layer, Unit};
use control::Failure;

use crate::{
    cache_log::open_recorded_log,
    layers::CacheLayer,
    not_opened::NotOpened,
    opened_stack::OpenedStack,
    opening::{OpeningStack, StackContext, StackInput},
    plan::{StackPlan, known_as, known_by},
};

/// Opens all units of a common cache, bottom first. The stacks are in the order of `units`.
///
/// # Errors
/// A layer cannot be opened, or two units have the same volume.
pub async fn open_common(
    settings: &CacheLayerSettings,
    units: &[(&IscsiTargetSettings, &Unit)],
    context: &StackContext<'_>,
) -> Result<Vec<OpenedStack>, NotOpened> {
    let name = units.iter().find_map(|(_, unit)| unit.in_common()).unwrap_or_default();
    let recorder = context.records.recorder(format!("common cache {name}")).in_common();
    let log = open_recorded_log(settings, &recorder).await?;
    let mut stacks = Vec::new();
    for (target, unit) in units {
        let plan = StackPlan::of(&target.name, unit, context.initiator_name, Some(&settings.log));
        let recorder =
            context.records.recorder(format!("{}/{}", target.name, unit.lun)).in_common();
        let keeps_size = plan.below_cache.iter().all(Layer::keeps_size);
        let known = keeps_size.then(|| log.known_by(known_by(target, unit))).flatten();
        let mut stack = OpeningStack::in_common(&target.name, unit, context, recorder, known);
        stack.open_bottom(plan.bottom, StackInput::Nothing).await?;
        stack.add_filters(plan.below_cache)?;
        stack.identity = known_as(&stack.identity, log.names());
        stacks.push(stack);
    }
    refuse_twins(&stacks)?;
    let members = stacks.iter().zip(units).map(|(stack, (target, unit))| CommonMember {
        name: stack.identity.clone(),
        key: known_by(target, unit),
        lower: stack.top(),
    });
    let owner = &context.initiator_name.0;
    let (cache, above) = CacheLayer::open_common(settings, members.collect(), log, owner).await?;
    let cache = Arc::new(cache);
    let names: Vec<_> = stacks.iter().map(|stack| stack.identity.as_str()).collect();
    cache.watch(names.join(", "), stacks.iter().flat_map(OpeningStack::links).collect());
    let mut opened = Vec::new();
    for (mut stack, volume) in stacks.into_iter().zip(above) {
        let name = stack.unit.in_common().unwrap_or_default();
        let on = format!("{} (common cache {name})", settings.log.display());
        stack.put_cache(Arc::clone(&cache), volume, on);
        let plan =
            StackPlan::of(stack.target, stack.unit, context.initiator_name, Some(&settings.log));
        stack.add_caches(plan.from_cache.get(1..).unwrap_or_default(), None).await?;
        opened.push(stack.finish());
    }
    Ok(opened)
}

/// Fails if two units of a common cache have the same volume.
fn refuse_twins(stacks: &[OpeningStack<'_>]) -> Result<(), Failure> {
    for (at, stack) in stacks.iter().enumerate() {
        if let Some(same) = stacks[..at].iter().find(|other| other.identity == stack.identity) {
            let name = |stack: &OpeningStack<'_>| format!("{}/{}", stack.target, stack.unit.lun);
            let (one, other) = (name(same), name(stack));
            let what = format!("{one} and {other} are the same volume ({})", stack.identity);
            return Err(Failure::new(what).remedy("remove one of them from the common cache"));
        }
    }
    Ok(())
}

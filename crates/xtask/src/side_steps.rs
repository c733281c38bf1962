//! Runs steps concurrently. Most steps need little CPU time: they wait for a process to end, for a
//! pause or for the answer of a server.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::tally::StepTally;

/// What a step needs to run concurrently with others: the number of places that it takes, and the kinds of steps that
/// may not run at the same time. The run has a fixed number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepNeed {
    /// Number of places that the step takes: one, or more if it keeps several processors busy.
    places: usize,
    /// The step measures how long something takes, so no other step may run at the same time.
    is_alone: bool,
    /// The change that the step makes to kernel state which all processes share; `None` without such a change.
    kernel: Option<KernelChange>,
}

/// A change to kernel state that all processes share, so that some steps cannot run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelChange {
    /// Mounts file systems on block devices.
    Mounts,
    /// Creates mount namespaces. Each new namespace keeps a copy of the mounts that other steps have made, so that the
    /// devices of these mounts stay in use.
    Namespaces,
    /// Does both of these, or creates network links or loads congestion controls with names that
    /// other steps use, too.
    Several,
}

impl KernelChange {
    /// Returns true if a step with this change must not run at the same time as one with the change `other`.
    fn disturbs(self, other: KernelChange) -> bool {
        self != other || self == KernelChange::Several
    }
}

impl StepNeed {
    /// The need of most steps: one place to run, and other steps may run at the same time.
    pub const PLACE: StepNeed = StepNeed { places: 1, is_alone: false, kernel: None };
    /// The need of a step that keeps the processors busy: two places.
    pub const BUSY: StepNeed = StepNeed { places: 2, ..StepNeed::PLACE };
    /// The need of a step that measures times: no other step runs at the same time.
    pub const MACHINE: StepNeed = StepNeed { is_alone: true, ..StepNeed::PLACE };

    /// Returns the same need for a step that also makes this change to kernel state.
    pub const fn changing(self, kernel: KernelChange) -> StepNeed {
        StepNeed { kernel: Some(kernel), ..self }
    }
}

/// A step that can run concurrently with others. It runs in a thread and prints nothing.
pub struct SideStep {
    /// The name of the step in the table of results.
    pub name: String,
    need: StepNeed,
    run: Box<dyn FnOnce() -> SideStepResult + Send>,
}

pub struct SideStepResult {
    pub tally: Result<StepTally>,
    /// The text that the step printed, as complete lines.
    pub output: String,
}

pub enum SideStepEvent {
    /// The step with this name has started.
    Begun(String),
    Ended(EndedSideStep),
}

pub struct EndedSideStep {
    pub name: String,
    pub took: Duration,
    pub tally: Result<StepTally>,
    /// The text that the step printed, as complete lines.
    pub output: String,
}

impl SideStep {
    /// Creates a step that takes one of the places for concurrent steps, as most steps do.
    pub fn new(name: &str, run: impl FnOnce() -> SideStepResult + Send + 'static) -> SideStep {
        SideStep { name: name.to_owned(), need: StepNeed::PLACE, run: Box::new(run) }
    }

    /// Returns true if the step may have to wait for others because of its change to the kernel.
    pub fn changes_kernel(&self) -> bool {
        self.need.kernel.is_some()
    }

    pub fn needs(mut self, need: StepNeed) -> SideStep {
        self.need = need;
        self
    }
}

/// Runs the steps. Starts each, in the given order, when enough places are free for it. Steps with `is_alone` run last,
/// one after the other. Calls `report` on the calling thread. Returns when all steps have ended.
pub fn run(steps: Vec<SideStep>, places: usize, mut report: impl FnMut(SideStepEvent)) {
    let (alone, beside): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.need.is_alone);
    let state = ScheduleState { waiting: beside.into(), running: vec![] };
    let schedule = StepSchedule { state: Mutex::new(state), changed: Condvar::new(), places };
    let (events, received) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..places {
            let (schedule, events) = (&schedule, events.clone());
            scope.spawn(move || {
                while let Some(step) = schedule.next() {
                    let need = step.need;
                    // Cannot fail: the receiver lives until all steps have ended.
                    let _ = events.send(SideStepEvent::Begun(step.name.clone()));
                    let _ = events.send(SideStepEvent::Ended(run_one(step)));
                    schedule.end(need);
                }
            });
        }
        drop(events);
        received.iter().for_each(&mut report);
    });
    for step in alone {
        report(SideStepEvent::Begun(step.name.clone()));
        report(SideStepEvent::Ended(run_one(step)));
    }
}

fn run_one(step: SideStep) -> EndedSideStep {
    let begun = Instant::now();
    let SideStepResult { tally, output } = (step.run)();
    EndedSideStep { name: step.name, took: begun.elapsed(), tally, output }
}

/// The steps that wait, the needs of those that run, and the number of places.
struct StepSchedule {
    state: Mutex<ScheduleState>,
    /// Notified whenever a step has ended.
    changed: Condvar,
    /// Total number of places for running steps.
    places: usize,
}

struct ScheduleState {
    waiting: VecDeque<SideStep>,
    running: Vec<StepNeed>,
}

impl ScheduleState {
    /// Returns true if enough places are free for a step and no running step disturbs it. A step
    /// that needs more places than there are starts when no other step runs.
    fn has_room(&self, need: StepNeed, places: usize) -> bool {
        let taken: usize = self.running.iter().map(|running| running.places).sum();
        let changes = |need: StepNeed| {
            self.running.iter().filter_map(move |other| Some((need.kernel?, other.kernel?)))
        };
        (taken == 0 || taken + need.places <= places)
            && !changes(need).any(|(change, other)| change.disturbs(other))
    }
}

impl StepSchedule {
    fn lock(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a step can start and returns it; None if no step is left.
    fn next(&self) -> Option<SideStep> {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            let has_room = |step: &SideStep| state.has_room(step.need, self.places);
            if let Some(at) = state.waiting.iter().position(has_room) {
                let step = state.waiting.remove(at)?;
                state.running.push(step.need);
                return Some(step);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn end(&self, need: StepNeed) {
        let mut state = self.lock();
        if let Some(at) = state.running.iter().position(|running| *running == need) {
            state.running.remove(at);
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Runs steps with these needs; each waits until `expected` steps run concurrently. Returns the largest number that
    /// ran concurrently, and the largest number among those with the first need.
    fn most_at_once(places: usize, needs: &[StepNeed], expected: usize) -> (usize, usize) {
        // The number of running steps and the largest number so far: of all steps, and of those
        // with the first need.
        let counts = Arc::new((Mutex::new([(0, 0); 2]), Condvar::new()));
        let step = |need: &StepNeed| {
            let counts = Arc::clone(&counts);
            let of = if *need == needs[0] { 0..2 } else { 0..1 };
            let run = move || {
                let (counts, changed) = &*counts;
                let mut now = counts.lock().expect("no step panics");
                for (running, most) in &mut now[of.clone()] {
                    *running += 1;
                    *most = (*most).max(*running);
                }
                changed.notify_all();
                let is_short = |now: &mut [(usize, usize); 2]| now[0].1 < expected;
                let limit = Duration::from_secs(10);
                let (mut now, _) =
                    changed.wait_timeout_while(now, limit, is_short).expect("no step panics");
                for (running, _) in &mut now[of] {
                    *running -= 1;
                }
                SideStepResult { tally: Ok(StepTally::one()), output: String::new() }
            };
            SideStep::new("step", run).needs(*need)
        };
        let mut ended = 0;
        run(needs.iter().map(step).collect(), places, |event| {
            ended += usize::from(matches!(event, SideStepEvent::Ended(_)));
        });
        assert_eq!(ended, needs.len());
        let counts = counts.0.lock().expect("no step panics");
        (counts[0].1, counts[1].1)
    }

    #[test]
    fn a_step_has_room_if_places_are_free_and_no_running_step_disturbs_it() {
        let check = |running: &[StepNeed], need: StepNeed, places: usize| {
            let state = ScheduleState { waiting: VecDeque::new(), running: running.to_vec() };
            state.has_room(need, places)
        };
        assert!(check(&[StepNeed::PLACE; 2], StepNeed::PLACE, 3));
        assert!(!check(&[StepNeed::PLACE; 3], StepNeed::PLACE, 3));
        assert!(!check(&[StepNeed::BUSY], StepNeed::BUSY, 3));
        assert!(check(&[], StepNeed::BUSY, 1), "a step that needs more places than there are");
        let changing = |kernel| StepNeed::PLACE.changing(kernel);
        let (mounts, several) = (changing(KernelChange::Mounts), changing(KernelChange::Several));
        assert!(check(&[mounts], mounts, 3));
        assert!(!check(&[mounts], changing(KernelChange::Namespaces), 3));
        assert!(!check(&[several], several, 3));
    }

    #[test]
    fn no_more_steps_run_at_once_than_there_are_places() {
        assert_eq!(most_at_once(3, &[StepNeed::PLACE; 8], 3), (3, 3));
        assert_eq!(most_at_once(4, &[StepNeed::BUSY; 5], 2), (2, 2));
        assert_eq!(most_at_once(1, &[StepNeed::BUSY; 3], 1), (1, 1));
    }

    #[test]
    fn steps_that_disturb_each_other_take_turns_and_others_run_concurrently() {
        let several = StepNeed::PLACE.changing(KernelChange::Several);
        let mut needs = vec![several; 3];
        needs.extend([StepNeed::PLACE; 3]);
        assert_eq!(most_at_once(4, &needs, 4), (4, 1));
        let mounts = StepNeed::PLACE.changing(KernelChange::Mounts);
        assert_eq!(most_at_once(4, &[mounts; 3], 3), (3, 3));
        let namespaces = StepNeed::PLACE.changing(KernelChange::Namespaces);
        assert_eq!(most_at_once(4, &[mounts, namespaces, mounts, namespaces], 2), (2, 2));
    }

    #[test]
    fn a_step_that_measures_runs_alone_after_the_others() {
        let mut order = vec![];
        let step = |name: &str, pause: u64, need| {
            let run = move || {
                std::thread::sleep(Duration::from_millis(pause));
                SideStepResult { tally: Ok(StepTally::one()), output: String::new() }
            };
            SideStep::new(name, run).needs(need)
        };
        let steps = vec![step("alone", 0, StepNeed::MACHINE), step("long", 50, StepNeed::PLACE)];
        run(steps, 2, |event| match event {
            SideStepEvent::Begun(name) => order.push(format!("{name} begins")),
            SideStepEvent::Ended(end) => order.push(end.name),
        });
        assert_eq!(order, ["long begins", "long", "alone begins", "alone"]);
    }
}

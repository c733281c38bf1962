//! Steps that run side by side. Most steps wait more than they compute: for processes to end, for a pause or for a far side.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::tally::StepTally;

/// What a step needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepNeed {
    /// So many places beside other steps: one, or more if it keeps the processors busy.
    places: usize,
    /// It measures how long something takes, so nothing runs beside it.
    is_alone: bool,
    /// What it changes for all processes.
    kernel: Option<KernelChange>,
}

/// What a step changes in the kernel for all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelChange {
    /// It mounts file systems on block devices.
    Mounts,
    /// It makes mount namespaces. Each keeps a copy of the mounts of other steps, and their devices stay in use.
    Namespaces,
    /// Both, or links or congestion controls with names that other steps use, too.
    Several,
}

impl KernelChange {
    /// Whether steps with these changes disturb each other.
    fn disturbs(self, other: KernelChange) -> bool {
        self != other || self == KernelChange::Several
    }
}

impl StepNeed {
    /// One place.
    pub const PLACE: StepNeed = StepNeed { places: 1, is_alone: false, kernel: None };
    /// Two places, for a step that keeps the processors busy.
    pub const BUSY: StepNeed = StepNeed { places: 2, ..StepNeed::PLACE };
    /// The whole machine.
    pub const MACHINE: StepNeed = StepNeed { is_alone: true, ..StepNeed::PLACE };

    /// The same with a change in the kernel.
    pub const fn changing(self, kernel: KernelChange) -> StepNeed {
        StepNeed { kernel: Some(kernel), ..self }
    }
}

/// A step that can run beside others. It runs in a thread and prints nothing.
pub struct SideStep {
    /// The name for the table.
    pub name: String,
    need: StepNeed,
    run: Box<dyn FnOnce() -> SideStepResult + Send>,
}

/// What a step found, and its output.
pub struct SideStepResult {
    /// Its counts.
    pub tally: Result<StepTally>,
    /// Its output, with an end of line.
    pub output: String,
}

/// What happened to a step.
pub enum SideStepEvent {
    /// The step of this name has begun.
    Begun(String),
    /// A step has ended.
    Ended(EndedSideStep),
}

/// A step that has ended.
pub struct EndedSideStep {
    /// Its name.
    pub name: String,
    /// How long it ran.
    pub took: Duration,
    /// Its counts.
    pub tally: Result<StepTally>,
    /// Its output, with an end of line.
    pub output: String,
}

impl SideStep {
    /// A step that needs one place.
    pub fn new(name: &str, run: impl FnOnce() -> SideStepResult + Send + 'static) -> SideStep {
        SideStep { name: name.to_owned(), need: StepNeed::PLACE, run: Box::new(run) }
    }

    /// Whether it waits for others because of what it changes in the kernel.
    pub fn changes_kernel(&self) -> bool {
        self.need.kernel.is_some()
    }

    /// The same step with other needs.
    pub fn needs(mut self, need: StepNeed) -> SideStep {
        self.need = need;
        self
    }
}

/// Runs steps in this order as far as there are places for them, and those that need the machine alone at the end. Returns
/// when all have ended. Reports what happens on the calling thread.
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
                    // The receiver lives until all have ended.
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

/// The steps that wait, and the places.
struct StepSchedule {
    state: Mutex<ScheduleState>,
    /// Woken when a step has ended.
    changed: Condvar,
    /// All places.
    places: usize,
}

struct ScheduleState {
    waiting: VecDeque<SideStep>,
    /// The needs of the steps that run.
    running: Vec<StepNeed>,
}

impl ScheduleState {
    /// Whether a step can run beside those that run. One that needs more places than there are runs when no other does.
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

    /// Waits until there is room for a step; none if no step is left.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Runs steps with these needs. Each waits until `expected` steps have run at once, and then some milliseconds for one
    /// too many. Returns how many ran at once at most, and how many of those with the first need.
    fn most_at_once(places: usize, needs: &[StepNeed], expected: usize) -> (usize, usize) {
        let counts = Arc::new([(); 2].map(|()| (AtomicUsize::new(0), AtomicUsize::new(0))));
        let step = |need: &StepNeed| {
            let counts = Arc::clone(&counts);
            // The first count is of all steps, the second of those with the first need.
            let of = if *need == needs[0] { 0..2 } else { 0..1 };
            let run = move || {
                for (now, most) in &counts[of.clone()] {
                    let now = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                }
                let begun = Instant::now();
                while counts[0].1.load(Ordering::SeqCst) < expected
                    && begun.elapsed() < Duration::from_secs(10)
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(20));
                for (now, _) in &counts[of] {
                    now.fetch_sub(1, Ordering::SeqCst);
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
        (counts[0].1.load(Ordering::SeqCst), counts[1].1.load(Ordering::SeqCst))
    }

    #[test]
    fn no_more_steps_run_at_once_than_there_are_places() {
        assert_eq!(most_at_once(3, &[StepNeed::PLACE; 8], 3), (3, 3));
        assert_eq!(most_at_once(4, &[StepNeed::BUSY; 5], 2), (2, 2));
        assert_eq!(most_at_once(1, &[StepNeed::BUSY; 3], 1), (1, 1));
    }

    #[test]
    fn steps_that_disturb_each_other_take_turns_and_others_run_beside_them() {
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

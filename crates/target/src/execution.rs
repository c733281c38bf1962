//! Commands that could not finish at once, and the effects of task management: futures that a
//! driver holds.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    mem::transmute,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, Aborted},
    stream::FuturesUnordered,
};
use iscsi::{Itt, pdu::TaskFunction};
use unit::{Completion, LogicalUnit, Task, UnitReply};

use crate::command_times::{Started, StopWatch};

/// What came of one of them.
pub(crate) enum FinishedExecution {
    Command(Itt, Completion),
    /// A task management function has taken effect.
    Management(Itt, TaskFunction),
}

/// A command at a unit, with the unit: a target may let go of a unit while sessions use it.
pub(crate) struct Execution {
    /// Borrows from `_unit`, and goes before it: fields are dropped in their order.
    future: UnitReply<'static>,
    _unit: Arc<dyn LogicalUnit>,
}

impl Execution {
    /// Begins a command. `Err`: it is not done at once.
    pub(crate) fn begin(
        unit: &Arc<dyn LogicalUnit>,
        task: Task,
        context: &mut Context<'_>,
    ) -> Result<Completion, Self> {
        let mut answer = match unit.execute(task).now() {
            Ok(completion) => return Ok(completion),
            Err(answer) => answer,
        };
        if let Poll::Ready(completion) = answer.poll_unpin(context) {
            return Ok(completion);
        }
        // SAFETY: the future borrows nothing but the unit, which is behind an `Arc` that is kept
        // beside it: the unit does not move, cannot be borrowed mutably, and is dropped after it.
        let future = unsafe { transmute::<UnitReply<'_>, UnitReply<'static>>(answer) };
        Err(Self { future, _unit: Arc::clone(unit) })
    }
}

/// Memory that commands in progress take, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct InFlightBytes {
    /// Data-Out that came with them.
    pub(crate) data_out: usize,
    /// What they may return.
    pub(crate) data_in: usize,
}

/// As many as the session has tasks in progress, hence bounded by its command window.
pub(crate) struct Executions {
    running: FuturesUnordered<Abortable<RunningExecution>>,
    commands: HashMap<Itt, (AbortHandle, InFlightBytes, Started)>,
    /// Of all `commands` together.
    held: InFlightBytes,
    /// Finished, and not yet taken.
    finished: VecDeque<FinishedExecution>,
    pub(crate) watch: StopWatch,
}

impl Executions {
    pub(crate) fn new(watch: StopWatch) -> Self {
        Self {
            running: FuturesUnordered::new(),
            commands: HashMap::new(),
            held: InFlightBytes::default(),
            finished: VecDeque::new(),
            watch,
        }
    }

    /// Holds a command that was polled and is not done.
    pub(crate) fn hold(
        &mut self,
        itt: Itt,
        held: InFlightBytes,
        started: Started,
        execution: Execution,
    ) {
        let (handle, registration) = AbortHandle::new_pair();
        self.commands.insert(itt, (handle, held, started.waits()));
        self.held.data_out += held.data_out;
        self.held.data_in += held.data_in;
        self.running.push(Abortable::new(RunningExecution::Command(itt, execution), registration));
    }

    /// Holds the effects of a task management function until they are there.
    pub(crate) fn hold_management(
        &mut self,
        itt: Itt,
        function: TaskFunction,
        effects: impl Future<Output = ()> + Send + 'static,
    ) {
        let (_, registration) = AbortHandle::new_pair(); // nobody aborts these
        let effects = RunningExecution::Management(itt, function, Box::pin(effects));
        self.running.push(Abortable::new(effects, registration));
    }

    /// What the commands that are not done take.
    pub(crate) fn held(&self) -> InFlightBytes {
        self.held
    }

    fn forget(&mut self, itt: Itt) -> Option<(AbortHandle, Started)> {
        let (handle, held, started) = self.commands.remove(&itt)?;
        self.held.data_out -= held.data_out;
        self.held.data_in -= held.data_in;
        Some((handle, started))
    }

    /// Drops a command, if it is here: when this returns, its future is gone.
    pub(crate) fn abort(&mut self, itt: Itt, context: &mut Context<'_>) {
        let is_other = |done: &FinishedExecution| !matches!(done, FinishedExecution::Command(done, _) if *done == itt);
        self.finished.retain(is_other);
        let Some((handle, _)) = self.forget(itt) else { return };
        handle.abort();
        // `abort` has woken it, so it comes up here; whatever comes before is kept.
        loop {
            match self.running.poll_next_unpin(context) {
                Poll::Ready(Some(Err(Aborted)) | None) => return,
                Poll::Ready(Some(Ok(finished))) => self.note(finished),
                Poll::Pending => {} // it yields after a while though more of them are woken
            }
        }
    }

    /// Drops everything that is in progress, and what has finished but was not taken.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
        self.commands.clear();
        self.held = InFlightBytes::default();
        self.finished.clear();
    }

    /// One that has finished.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Option<FinishedExecution> {
        if self.finished.is_empty()
            && let Poll::Ready(Some(Ok(finished))) = self.running.poll_next_unpin(context)
        {
            self.note(finished);
        }
        self.finished.pop_front()
    }

    fn note(&mut self, finished: FinishedExecution) {
        if let FinishedExecution::Command(itt, _) = &finished
            && let Some((_, started)) = self.forget(*itt)
        {
            self.watch.done(started);
        }
        self.finished.push_back(finished);
    }
}

enum RunningExecution {
    Command(Itt, Execution),
    Management(Itt, TaskFunction, Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Future for RunningExecution {
    type Output = FinishedExecution;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FinishedExecution> {
        match &mut *self {
            Self::Command(itt, execution) => execution
                .future
                .poll_unpin(context)
                .map(|done| FinishedExecution::Command(*itt, done)),
            Self::Management(itt, function, effects) => {
                let (itt, function) = (*itt, *function);
                effects
                    .as_mut()
                    .poll(context)
                    .map(|()| FinishedExecution::Management(itt, function))
            }
        }
    }
}

//! Commands that did not complete at once, and task management functions in progress: futures that a driver polls.

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

/// A command or task management function that has completed.
pub(crate) enum FinishedExecution {
    Command(Itt, Completion),
    /// A task management function has taken effect.
    Management(Itt, TaskFunction),
}

/// A command in progress, together with its unit: the target may drop the unit while sessions still use it.
pub(crate) struct Execution {
    /// Borrows from `_unit`. Fields are dropped in the order of their declaration, so the future is dropped first.
    future: UnitReply<'static>,
    _unit: Arc<dyn LogicalUnit>,
}

/// A command whose execution in its unit has begun.
pub(crate) enum BegunExecution {
    Done(Completion),
    Waiting(Execution),
}

impl Execution {
    pub(crate) fn begin(
        unit: &Arc<dyn LogicalUnit>,
        task: Task,
        context: &mut Context<'_>,
    ) -> BegunExecution {
        let mut answer = match unit.execute(task).now() {
            Ok(completion) => return BegunExecution::Done(completion),
            Err(answer) => answer,
        };
        if let Poll::Ready(completion) = answer.poll_unpin(context) {
            return BegunExecution::Done(completion);
        }
        // SAFETY: the future borrows only the unit. The `Arc` next to it keeps the unit alive until the future is
        // dropped; the unit does not move and cannot be borrowed mutably meanwhile.
        let future = unsafe { transmute::<UnitReply<'_>, UnitReply<'static>>(answer) };
        BegunExecution::Waiting(Self { future, _unit: Arc::clone(unit) })
    }
}

/// Memory of commands in progress, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct InFlightBytes {
    /// Data-Out that was received with the commands.
    pub(crate) data_out: usize,
    /// Data-In that the commands may return.
    pub(crate) data_in: usize,
}

/// The commands and functions in progress of one session. Their number is bounded by its command window.
pub(crate) struct Executions {
    running: FuturesUnordered<Abortable<RunningExecution>>,
    commands: HashMap<Itt, (AbortHandle, InFlightBytes, Started)>,
    /// The memory of all `commands` together.
    held: InFlightBytes,
    /// The commands and functions that have completed and that the driver has not taken yet.
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

    /// Keeps a command that was polled and has not completed.
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

    /// Keeps a task management function in progress until the future `effects` completes.
    pub(crate) fn hold_management(
        &mut self,
        itt: Itt,
        function: TaskFunction,
        effects: impl Future<Output = ()> + Send + 'static,
    ) {
        let (_, registration) = AbortHandle::new_pair(); // task management is never aborted
        let effects = RunningExecution::Management(itt, function, Box::pin(effects));
        self.running.push(Abortable::new(effects, registration));
    }

    /// Returns the memory that commands in progress hold.
    pub(crate) fn held(&self) -> InFlightBytes {
        self.held
    }

    fn forget(&mut self, itt: Itt) -> Option<(AbortHandle, Started)> {
        let (handle, held, started) = self.commands.remove(&itt)?;
        self.held.data_out -= held.data_out;
        self.held.data_in -= held.data_in;
        Some((handle, started))
    }

    /// Aborts a command if it is in progress. The command's future has been dropped when this returns.
    pub(crate) fn abort(&mut self, itt: Itt, context: &mut Context<'_>) {
        let is_other = |done: &FinishedExecution| !matches!(done, FinishedExecution::Command(done, _) if *done == itt);
        self.finished.retain(is_other);
        let Some((handle, _)) = self.forget(itt) else { return };
        handle.abort();
        // Poll until the set returns the aborted future, which `abort` has woken. Keep the completions of other
        // commands that the set returns before it.
        loop {
            match self.running.poll_next_unpin(context) {
                Poll::Ready(Some(Err(Aborted)) | None) => return,
                Poll::Ready(Some(Ok(finished))) => self.note(finished),
                Poll::Pending => {} // the set yields now and then although more futures are ready
            }
        }
    }

    /// Drops all commands in progress, and the completions that the driver has not taken yet.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
        self.commands.clear();
        self.held = InFlightBytes::default();
        self.finished.clear();
    }

    /// Returns the next completed command, if there is one.
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

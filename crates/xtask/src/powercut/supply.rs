//! The simulated power of several machines. It counts the operations of their file systems and
//! fails at the chosen operation. Instead of a power failure, the cut can be a `kill -9` of the
//! processes alone.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Whether a simulated machine and its disk have power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The machine has power, and its disk completes every call.
    On,
    /// The disk has no power and completes no call, but the processes are still running.
    Failing,
    /// The disk has no power, and all processes have been killed.
    Off,
    /// All processes are killed; the disk has power and serves every call.
    Killed,
}

impl Phase {
    /// Returns true if the disk performs and completes calls in this phase.
    pub fn has_disk(self) -> bool {
        matches!(self, Phase::On | Phase::Killed)
    }

    fn has_processes(self) -> bool {
        matches!(self, Phase::On | Phase::Failing)
    }
}

/// Sends the reply to a FUSE call. Replies are held back while the power fails.
type HeldFuseReply = Box<dyn FnOnce() + Send>;

/// The power of all simulated machines, indexed by their numbers.
pub struct Supply {
    state: Mutex<PowerSupplyState>,
    changed: Condvar,
}

struct PowerSupplyState {
    machines: Vec<PoweredMachine>,
    /// Number of writes, changes of names and syncs of all machines since a failure was planned last (`cut`).
    operations: u64,
    cut: Option<Cut>,
}

struct PoweredMachine {
    phase: Phase,
    /// Handles (pidfd) of the processes. The kernel reuses a process id after a wait, but a handle
    /// never refers to another process, so a kill cannot hit a foreign process.
    processes: Vec<OwnedFd>,
    held: Vec<HeldFuseReply>,
}

/// A planned failure: the operation at which it begins, the machines that fail, and the kind of failure.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The number of the operation during which the failure begins.
    pub operation: u64,
    /// Numbers of the machines whose processes the failure ends.
    pub machines: Vec<usize>,
    pub ending: MachineEnding,
}

/// How a planned failure ends the processes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEnding {
    /// The power of the machine fails, and its processes continue to run for a short time (lag).
    Power {
        /// How long the processors keep running after the disks have stopped.
        lag: Duration,
    },
    /// The processes are killed (`kill -9`), but the machine keeps running, and its disk keeps all writes.
    Kill,
}

impl Supply {
    /// Creates the power supply of `machines` machines, all of which have power.
    pub fn new(machines: usize) -> Arc<Supply> {
        let machine = || PoweredMachine { phase: Phase::On, processes: vec![], held: vec![] };
        let machines = (0..machines).map(|_| machine()).collect();
        let state = PowerSupplyState { machines, operations: 0, cut: None };
        Arc::new(Supply { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Adds a process to a machine. The caller must not have waited (waitpid) for the end of the process yet: after
    /// that, the id may belong to another process. If the machine has failed already, the process is killed at once.
    pub fn runs(&self, machine: usize, process: Pid) -> Result<()> {
        let process = pidfd_open(process, PidfdFlags::empty()).context("pidfd_open")?;
        let mut state = self.lock();
        let machine = &mut state.machines[machine];
        if !machine.phase.has_processes() {
            kill(&process);
        }
        machine.processes.push(process);
        Ok(())
    }

    /// Plans a cut, and starts counting operations at zero.
    pub fn arm(&self, cut: Cut) {
        let mut state = self.lock();
        state.operations = 0;
        state.cut = Some(cut);
    }

    /// Returns true if no failure is planned: the last planned one has begun, or there was none.
    pub fn is_cut(&self) -> bool {
        self.lock().cut.is_none()
    }

    /// Begins the planned failure at once, unless it has begun already.
    pub fn cut_now(self: &Arc<Supply>) {
        let mut state = self.lock();
        if let Some(cut) = state.cut.take() {
            self.begin(&mut state, cut);
        }
    }

    /// Waits until the armed cut has begun, but at most `limit`.
    pub fn wait_cut(&self, limit: Duration) {
        let state = self.lock();
        let is_armed = |state: &mut PowerSupplyState| state.cut.is_some();
        drop(self.changed.wait_timeout_while(state, limit, is_armed));
    }

    /// Waits until the processes of a machine are killed.
    pub fn wait_off(&self, machine: usize) -> Result<()> {
        let deadline = Instant::now() + OFF_LIMIT;
        let mut state = self.lock();
        while state.machines[machine].phase.has_processes() {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "machine {machine} keeps its power for {OFF_LIMIT:?}");
            state = self.changed.wait_timeout(state, left).expect("no panic in here").0;
        }
        Ok(())
    }

    /// Restores the power of a machine, or allows new processes on it after a kill.
    pub fn restore(&self, machine: usize) {
        let mut state = self.lock();
        let machine = &mut state.machines[machine];
        machine.phase = Phase::On;
        machine.processes.clear();
    }

    /// Counts an operation of a machine, begins the planned failure if this is its operation, and returns the state of
    /// the power.
    pub fn spend(self: &Arc<Supply>, machine: usize) -> Phase {
        let mut state = self.lock();
        state.operations += 1;
        let operations = state.operations;
        if let Some(cut) = state.cut.take_if(|cut| operations >= cut.operation) {
            self.begin(&mut state, cut);
        }
        state.machines[machine].phase
    }

    /// Returns whether a machine and its disk have power.
    pub fn phase(&self, machine: usize) -> Phase {
        self.lock().machines[machine].phase
    }

    /// Delays the reply to a FUSE call until the machine is off, or sends it at once if the power
    /// is not failing. The reply must be sent eventually: even a killed process does not end while
    /// it waits for a FUSE call.
    pub fn hold(&self, machine: usize, answer: HeldFuseReply) {
        let mut state = self.lock();
        if state.machines[machine].phase == Phase::Failing {
            return state.machines[machine].held.push(answer);
        }
        drop(state);
        answer();
    }

    fn begin(self: &Arc<Supply>, state: &mut PowerSupplyState, cut: Cut) {
        match cut.ending {
            MachineEnding::Kill => {
                for machine in &cut.machines {
                    state.machines[*machine].processes.iter().for_each(kill);
                    state.machines[*machine].phase = Phase::Killed;
                }
            }
            MachineEnding::Power { lag } => {
                for machine in &cut.machines {
                    state.machines[*machine].phase = Phase::Failing;
                }
                let supply = Arc::clone(self);
                std::thread::spawn(move || {
                    std::thread::sleep(lag);
                    supply.end(&cut.machines);
                });
            }
        }
        self.changed.notify_all();
    }

    fn end(&self, machines: &[usize]) {
        let mut held = Vec::new();
        let mut state = self.lock();
        for machine in machines {
            let machine = &mut state.machines[*machine];
            machine.processes.iter().for_each(kill);
            machine.phase = Phase::Off;
            held.append(&mut machine.held);
        }
        drop(state);
        held.into_iter().for_each(|answer| answer());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PowerSupplyState> {
        self.state.lock().expect("no panic in here")
    }
}

/// Kills a process. Errors are ignored: the process may have ended by itself.
fn kill(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Time limit of [`Supply::wait_off`]. The lag is a few milliseconds; a busy machine needs longer.
const OFF_LIMIT: Duration = Duration::from_secs(20);

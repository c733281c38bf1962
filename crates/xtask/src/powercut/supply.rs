//! The power of several machines: it counts what their file systems do, and fails at the chosen
//! moment. Instead of the power, the processes alone can end then (`kill -9`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The state of one machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Every call is served.
    On,
    /// The disk has lost its power and answers nothing; the processor still runs.
    Failing,
    /// The disk has lost its power, and all processes are killed.
    Off,
    /// All processes are killed; the disk has power and serves every call.
    Killed,
}

impl Phase {
    /// Whether the disk carries out calls and answers them.
    pub fn has_disk(self) -> bool {
        matches!(self, Phase::On | Phase::Killed)
    }

    fn has_processes(self) -> bool {
        matches!(self, Phase::On | Phase::Failing)
    }
}

/// Answers a call that is held back while the power fails.
type Answer = Box<dyn FnOnce() + Send>;

/// The power of several machines, by number.
pub struct Supply {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    machines: Vec<Machine>,
    /// Writes, changes of names and syncs of all machines since the last cut.
    operations: u64,
    cut: Option<Cut>,
}

struct Machine {
    phase: Phase,
    /// A handle never means another process, even when its process was waited for and the number is used
    /// again.
    processes: Vec<OwnedFd>,
    held: Vec<Answer>,
}

/// The end of processes that is to come.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The number of the operation during which it comes.
    pub operation: u64,
    /// The machines whose processes end.
    pub machines: Vec<usize>,
    pub ending: Ending,
}

/// How the processes of a machine end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power fails.
    Power {
        /// So long the processors run on after the disks have stopped.
        lag: Duration,
    },
    /// `kill -9`: the machine goes on, and its disk keeps what was written.
    Kill,
}

impl Supply {
    /// The power of so many machines is on.
    pub fn new(machines: usize) -> Arc<Supply> {
        let machine = || Machine { phase: Phase::On, processes: vec![], held: vec![] };
        let machines = (0..machines).map(|_| machine()).collect();
        let state = State { machines, operations: 0, cut: None };
        Arc::new(Supply { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Names a process that runs on a machine. Nobody may have waited for it yet.
    /// The process is killed at once if its machine's processes ended before it was named.
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

    /// Lets the power fail later; operations are counted from now on.
    pub fn arm(&self, cut: Cut) {
        let mut state = self.lock();
        state.operations = 0;
        state.cut = Some(cut);
    }

    /// Whether the armed cut has begun, or none is armed.
    pub fn is_cut(&self) -> bool {
        self.lock().cut.is_none()
    }

    /// Lets the power fail now, unless the armed cut has begun already.
    pub fn cut_now(self: &Arc<Supply>) {
        let mut state = self.lock();
        if let Some(cut) = state.cut.take() {
            self.begin(&mut state, cut);
        }
    }

    /// Waits until the armed cut has begun, at most so long.
    pub fn wait_cut(&self, limit: Duration) {
        let state = self.lock();
        let is_armed = |state: &mut State| state.cut.is_some();
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

    /// The power of a machine is back, or new processes may start there after a kill.
    pub fn restore(&self, machine: usize) {
        let mut state = self.lock();
        let machine = &mut state.machines[machine];
        machine.phase = Phase::On;
        machine.processes.clear();
    }

    /// Counts an operation of a machine and says whether it still has power for it.
    pub fn spend(self: &Arc<Supply>, machine: usize) -> Phase {
        let mut state = self.lock();
        state.operations += 1;
        let operations = state.operations;
        if let Some(cut) = state.cut.take_if(|cut| operations >= cut.operation) {
            self.begin(&mut state, cut);
        }
        state.machines[machine].phase
    }

    /// The state of a machine's power.
    pub fn phase(&self, machine: usize) -> Phase {
        self.lock().machines[machine].phase
    }

    /// Keeps a call without an answer until the machine is off. A process that waits for a call of
    /// FUSE does not end before the call is answered, even when it was killed.
    pub fn hold(&self, machine: usize, answer: Answer) {
        let mut state = self.lock();
        if state.machines[machine].phase == Phase::Failing {
            return state.machines[machine].held.push(answer);
        }
        drop(state);
        answer();
    }

    fn begin(self: &Arc<Supply>, state: &mut State, cut: Cut) {
        match cut.ending {
            Ending::Kill => {
                for machine in &cut.machines {
                    state.machines[*machine].processes.iter().for_each(kill);
                    state.machines[*machine].phase = Phase::Killed;
                }
            }
            Ending::Power { lag } => {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in here")
    }
}

/// Kills a process. It may have ended by itself.
fn kill(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// The lag before the processes are killed is a few milliseconds; a crowded machine needs more.
const OFF_LIMIT: Duration = Duration::from_secs(20);

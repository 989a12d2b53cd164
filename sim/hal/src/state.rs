//! The one simulated host of a process, behind a lock.
//!
//! A forked child has no driver, as on a device: the mapping of the shared range is not inherited there, and every call of
//! the child answers INVALID_HANDLE.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hostview_sim::{DrvError, SimHost, VirtualTime};

use crate::config::Config;

pub(crate) struct State {
    pub(crate) host: SimHost,
    config: Config,
    logged: usize,
    journalled: usize,
    process: u32,
}

static STATE: OnceLock<Result<Mutex<State>, String>> = OnceLock::new();

fn state() -> Result<MutexGuard<'static, State>, DrvError> {
    let made = STATE.get_or_init(|| {
        let made = Config::from_environment().map(|config| {
            let mut host = SimHost::new(&config.profile);
            for fault in &config.faults {
                host.plan_fault(*fault);
            }
            Mutex::new(State { host, config, logged: 0, journalled: 0, process: std::process::id() })
        });
        if let Err(message) = &made {
            eprintln!("hostview (libascend_hal.so): {message}");
        }
        made
    });
    match made {
        Ok(state) => Ok(state.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(_) => Err(DrvError::InvalidHandle),
    }
}

/// Runs a call: with the host locked, its log and journal written, and the modelled time taken where that was asked for.
pub(crate) fn with_host<T>(call: impl FnOnce(&mut SimHost) -> Result<T, DrvError>) -> Result<T, DrvError> {
    let started = Instant::now();
    let mut guard = state()?;
    let state = &mut *guard;
    if state.process != std::process::id() {
        return Err(DrvError::InvalidHandle);
    }
    let before = state.host.now();
    let result = call(&mut state.host);
    state.write_lines();
    if state.config.pace {
        wait(started, state.host.now() - before);
    }
    result
}

impl State {
    fn write_lines(&mut self) {
        // A log that cannot be written is no reason to fail a driver call.
        if let Some(sink) = &mut self.config.log {
            for line in &self.host.log()[self.logged..] {
                let _ = writeln!(sink, "{line}");
            }
        }
        self.logged = self.host.log().len();
        if let Some(sink) = &mut self.config.journal {
            for event in &self.host.journal()[self.journalled..] {
                let _ = writeln!(sink, "{:?} -> {:?} ({})", event.call, event.outcome, event.cost);
            }
        }
        self.journalled = self.host.journal().len();
    }
}

/// Waits until the modelled time has passed since the call began. The lock is still held: calls do not overlap in the model.
fn wait(started: Instant, modelled: VirtualTime) {
    let until = Duration::from_secs_f64(modelled.micros() / 1e6);
    while started.elapsed() < until {
        std::hint::spin_loop();
    }
}

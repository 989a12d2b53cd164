//! The one simulated host of a process, behind a lock.
//!
//! A forked child has no driver, as on a device: the mapping of the shared range is not inherited there, and every call of
//! the child answers INVALID_HANDLE.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hostview_sim::{DrvError, Profile, SimHost, VirtualTime};

use crate::config::Config;

pub(crate) struct State {
    pub(crate) host: SimHost,
    config: Config,
    logged: usize,
    journalled: usize,
    process: u32,
}

/// Nothing before the first call; then a host, or none where the environment is wrong.
static STATE: Mutex<Option<Result<State, ()>>> = Mutex::new(None);

impl State {
    fn new(mut config: Config) -> Self {
        if let Some(sink) = &mut config.journal {
            let _ = writeln!(sink, "{}", config.title);
        }
        let mut host = SimHost::new(&config.profile);
        for fault in &config.faults {
            host.plan_fault(*fault);
        }
        Self { host, config, logged: 0, journalled: 0, process: std::process::id() }
    }

    fn from_environment() -> Result<Self, ()> {
        Config::from_environment().map(Self::new).map_err(|message| eprintln!("hostview (libascend_hal.so): {message}"))
    }
}

fn lock() -> MutexGuard<'static, Option<Result<State, ()>>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a fresh host of this profile in the place of the one that was. Of the environment nothing holds for it.
pub(crate) fn renew(profile: Profile) {
    let mut state = lock();
    // The old one leaves the driver's addresses first.
    *state = None;
    *state = Some(Ok(State::new(Config::plain(profile))));
}

/// Runs a call: with the host locked, its log and journal written, and the modelled time taken where that was asked for.
pub(crate) fn with_host<T>(call: impl FnOnce(&mut SimHost) -> Result<T, DrvError>) -> Result<T, DrvError> {
    with_state(|state| call(&mut state.host))
}

/// The same, for a call that the journal has something to say of.
pub(crate) fn with_state<T>(call: impl FnOnce(&mut State) -> Result<T, DrvError>) -> Result<T, DrvError> {
    let started = Instant::now();
    let mut guard = lock();
    let state = guard.get_or_insert_with(State::from_environment).as_mut().map_err(|()| DrvError::InvalidHandle)?;
    if state.process != std::process::id() {
        return Err(DrvError::InvalidHandle);
    }
    let before = state.host.now();
    let result = call(state);
    state.write_lines();
    if state.config.pace {
        wait(started, state.host.now() - before);
    }
    result
}

impl State {
    /// Closes a device. The journal says so: no call of the driver's does.
    pub(crate) fn close_device(&mut self, device: u32) {
        self.host.close_device(device);
        self.write_lines();
        if let Some(sink) = &mut self.config.journal {
            let _ = writeln!(sink, "{}", serde_json::json!({ "closed": device }));
        }
    }

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
                if let Ok(line) = serde_json::to_string(event) {
                    let _ = writeln!(sink, "{line}");
                }
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

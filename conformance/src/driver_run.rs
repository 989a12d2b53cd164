//! Running a case against the driver: each step is a call of the platform.

use std::collections::HashMap;

use hostview_sim::{Access, DeviceAddr, HostAddr, PlannedFault, RegisterCall, RegisterFlags};

use crate::case::{By, Op, Step, bytes_of_hex};
use crate::code::ErrorCode;
use crate::expect::{Came, Context, Mismatch, judge};
use crate::explain::Told;
use crate::platform::{Loss, Platform};

/// An address of the shared range that no allocation ever gets: 1 GiB below its end, 5 TiB behind the first heap.
pub const NOWHERE: DeviceAddr = DeviceAddr::new(0x17ff_c000_0000);

/// What a name stands for.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    base: DeviceAddr,
    bytes: u64,
    /// The host address that shows the base, once a registration gave one.
    view: Option<HostAddr>,
}

/// Runs steps against a platform.
pub struct DriverRun<'a> {
    platform: &'a mut dyn Platform,
    names: HashMap<String, Named>,
    logged: usize,
    /// The access of the step that ran last, by its rule.
    accessed: Option<Told>,
}

impl std::fmt::Debug for DriverRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverRun").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Context for DriverRun<'_> {
    fn log(&self) -> &[String] {
        self.platform.log()
    }

    fn keeps_log(&self) -> bool {
        self.platform.keeps_log()
    }

    fn address_of(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|named| named.base.get())
    }
}

impl<'a> DriverRun<'a> {
    /// A run from the platform as it stands.
    pub fn new(platform: &'a mut dyn Platform) -> Self {
        let mut names = HashMap::new();
        names.insert("null".to_owned(), Named::default());
        names.insert("nowhere".to_owned(), Named { base: NOWHERE, bytes: 0, view: None });
        let logged = platform.log().len();
        Self { platform, names, logged, accessed: None }
    }

    /// Why the platform answers no more.
    #[must_use]
    pub fn lost(&self) -> Option<Loss> {
        self.platform.lost()
    }

    /// The last line that the driver wrote in the step that ran last.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        self.platform.log()[self.logged..].last().cloned()
    }

    /// Runs one step: what about it is not as it must be.
    pub fn step(&mut self, step: &Step) -> Option<Mismatch> {
        self.logged = self.platform.log().len();
        if let Some(fail) = &step.fail
            && let Some(error) = hostview_sim::DrvError::from_name(&fail.error)
            && let Err(unsupported) =
                self.platform.plan_fault(PlannedFault { call: fail.call, nth: fail.nth, error, lasting: fail.lasting })
        {
            return Some(Mismatch { expected: "a fault to be injected".to_owned(), came: unsupported.to_string() });
        }
        // An allocation's expectation may name what its own name stood for before.
        let before = step.name.as_ref().and_then(|name| self.names.get(name)).copied();
        let begun = self.platform.virtual_time();
        let (mut came, named) = self.call(step);
        came.cost_ns = begun.zip(self.platform.virtual_time()).map(|(begun, ended)| (ended - begun).nanos());
        let mismatch = match self.platform.lost() {
            Some(loss) => Some(Mismatch { expected: "an answer".to_owned(), came: loss.to_string() }),
            None => {
                if let Some(text) = &step.expect.0.log {
                    self.platform.await_log(text);
                }
                judge(step, &came, &With { run: self, before, name: step.name.as_deref() })
            }
        };
        self.learn(step, named);
        mismatch
    }

    /// How many calls a simulated platform has seen.
    pub(crate) fn calls(&self) -> usize {
        self.platform.simulated().map_or(0, |host| host.journal().len())
    }

    /// What a simulated platform did after its first calls, and by which rules.
    pub(crate) fn told_since(&mut self, calls: usize) -> Vec<Told> {
        let events = self.platform.simulated().map_or(&[][..], |host| &host.journal()[calls..]);
        let told = events.iter().copied().map(Told::Called);
        told.chain(self.accessed.take()).collect()
    }

    /// Runs one step, whatever it is expected to come to: what came.
    pub fn perform(&mut self, step: &Step) -> Came {
        self.logged = self.platform.log().len();
        let (came, named) = self.call(step);
        self.learn(step, named);
        match self.platform.lost() {
            Some(loss) => Came { refused: Some(loss.to_string()), ..Came::default() },
            None => came,
        }
    }

    fn learn(&mut self, step: &Step, named: Option<Named>) {
        if let (Some(name), Some(named)) = (&step.name, named) {
            self.names.insert(name.clone(), named);
        }
    }

    fn call(&mut self, step: &Step) -> (Came, Option<Named>) {
        let target = step.target.as_ref().and_then(|name| self.names.get(name)).copied().unwrap_or_default();
        let bytes = step.bytes.unwrap_or_else(|| target.bytes.saturating_sub(step.offset));
        let view = target.view.unwrap_or_else(|| HostAddr::new(target.base.get()));
        let host = view.wrapping_add(step.offset);
        let device = match step.by {
            Some(By::View) => DeviceAddr::new(host.get()),
            None => target.base.wrapping_add(step.offset),
        };
        let came = match step.op {
            Op::Alloc => return self.alloc(step, bytes),
            Op::Free => done(self.platform.free(device, step.via)),
            Op::Register => self.register(step, device, bytes),
            Op::Unregister => done(match step.flags {
                Some(flags) => self.platform.unregister_ex(device, step.device, flags),
                None => self.platform.unregister(device, step.device),
            }),
            Op::Read => {
                self.accessed = Told::access(&*self.platform, host, bytes, Access::Read);
                let mut into = vec![0; len(bytes)];
                match self.platform.host_read(host, &mut into) {
                    Ok(()) => Came { bytes: Some(into), ..Came::default() },
                    Err(fault) => Came { fault: Some(fault), ..Came::default() },
                }
            }
            Op::Write => {
                self.accessed = Told::access(&*self.platform, host, bytes, Access::Write);
                let fault = self.platform.host_write(host, &payload(step, bytes)).err();
                Came { fault, ..Came::default() }
            }
            Op::CopyIn => done(self.platform.copy_in(device, &payload(step, bytes))),
            Op::CopyOut => {
                let mut into = vec![0; len(bytes)];
                match self.platform.copy_out(device, &mut into) {
                    Ok(()) => Came { bytes: Some(into), ..Came::default() },
                    Err(error) => Came { error: Some(error), ..Came::default() },
                }
            }
            Op::Acquire | Op::Release | Op::Finalize => {
                Came { refused: Some("a cache's operation".to_owned()), ..Came::default() }
            }
        };
        (came, None)
    }

    fn alloc(&mut self, step: &Step, bytes: u64) -> (Came, Option<Named>) {
        match self.platform.alloc(step.device, bytes, step.policy, step.via) {
            Ok(base) => {
                let memory = step.expect.0.on_device.and_then(|_| self.platform.memory_at(base));
                let on_device = memory.and_then(|memory| memory.device);
                let came = Came { address: Some(base.get()), on_device, ..Came::default() };
                (came, Some(Named { base, bytes, view: None }))
            }
            Err(error) => (Came { error: Some(error), ..Came::default() }, Some(Named::default())),
        }
    }

    fn register(&mut self, step: &Step, address: DeviceAddr, bytes: u64) -> Came {
        let flags = match step.flags {
            Some(word) => RegisterFlags(word),
            None if step.read_only => RegisterFlags::READ_ONLY_VIEW,
            None => RegisterFlags::VIEW,
        };
        let call = RegisterCall { flags, device: step.device, ..RegisterCall::view(address, bytes) };
        match self.platform.register(call) {
            Ok(view) => {
                if let Some(named) = step.target.as_ref().and_then(|name| self.names.get_mut(name)) {
                    named.view = Some(HostAddr::new(view.get().wrapping_sub(step.offset)));
                }
                Came { pages: self.pages_from(address), ..Came::default() }
            }
            Err(error) => Came { error: Some(error), ..Came::default() },
        }
    }

    /// How many pages the registration that begins at an address covers in its first kernel block.
    fn pages_from(&self, address: DeviceAddr) -> Option<u64> {
        let registration =
            self.platform.registrations()?.into_iter().find(|registration| registration.base == address)?;
        Some(self.platform.pages(&registration))
    }
}

/// The run as an expectation sees it, while the step's own name still stands for what it did before.
struct With<'a, 'b> {
    run: &'a DriverRun<'b>,
    before: Option<Named>,
    name: Option<&'a str>,
}

impl Context for With<'_, '_> {
    fn log(&self) -> &[String] {
        self.run.log()
    }

    fn keeps_log(&self) -> bool {
        self.run.keeps_log()
    }

    fn address_of(&self, name: &str) -> Option<u64> {
        if self.name == Some(name) { self.before.map(|named| named.base.get()) } else { self.run.address_of(name) }
    }
}

fn done(result: Result<(), ErrorCode>) -> Came {
    Came { error: result.err(), ..Came::default() }
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}

/// What a write or copy step moves.
pub(crate) fn payload(step: &Step, bytes: u64) -> Vec<u8> {
    match (&step.data, step.fill) {
        (Some(hex), _) => bytes_of_hex(hex).unwrap_or_default(),
        (None, fill) => vec![fill.unwrap_or(0); len(bytes)],
    }
}

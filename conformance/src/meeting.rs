//! Two calls of a subject at once, each in a thread of its own.
//!
//! The threads never run side by side: one of them stands still while the other runs, and which one that is a [`Pause`] says,
//! so that the same pause gives the same history. The suite's own thread makes every call of the platform for them, and
//! has the subject's lock ([`PlatformTable::enter`]), so that it knows which thread waits.
//!
//! A subject that has locks of its own is watched: a thread that sleeps while the other stands still waits for it, and from then
//! on both run, as they would in the field.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use crate::cache_run::Outcome;
use crate::case::Pause;
use crate::recorder::{Endless, PlatformTable, Recorder};
use crate::subject::{Subject, SubjectError};

/// A call of a subject.
pub(crate) type Work<'a> = Box<dyn FnOnce(&mut dyn Subject, &mut dyn PlatformTable) -> Outcome + Send + 'a>;

/// What came of a meeting.
#[derive(Debug)]
pub(crate) enum Met {
    /// The first call was done before it came to its pause; the second was not made.
    Alone(Outcome),
    /// Both were made.
    Both([Outcome; 2]),
    /// They did not come to an end, for this reason.
    Never(String),
}

/// What a thread asks of the platform.
#[derive(Debug)]
enum Wish {
    Alloc { device: u32, bytes: u64, policy: PagePolicy },
    Free { base: DeviceAddr },
    Register { device: u32, base: DeviceAddr, bytes: u64 },
    Unregister { device: u32, base: DeviceAddr },
    CopyIn { to: DeviceAddr, from: Vec<u8> },
    CopyOut { from: DeviceAddr, len: usize },
    Store { view: HostAddr, from: Vec<u8> },
    Load { view: HostAddr, len: usize },
    Enter,
    Leave,
}

/// What it is answered.
#[derive(Debug)]
enum Answer {
    Device(Result<DeviceAddr, SubjectError>),
    Host(Result<HostAddr, SubjectError>),
    Done(Result<(), SubjectError>),
    Bytes(Result<Vec<u8>, SubjectError>),
}

/// What a thread says.
#[derive(Debug)]
enum News {
    Asks(usize, Wish),
    Ends(usize, Outcome),
}

/// The platform as a thread sees it.
struct Relay {
    who: usize,
    news: Sender<News>,
    answers: Receiver<Answer>,
}

impl Relay {
    fn ask(&self, wish: Wish) -> Answer {
        let sent = self.news.send(News::Asks(self.who, wish));
        match sent.ok().and_then(|()| self.answers.recv().ok()) {
            Some(answer) => answer,
            // The meeting is over, and this thread not at its end.
            None => resume_unwind(Box::new(Endless::Left)),
        }
    }

    fn done(&self, wish: Wish) -> Result<(), SubjectError> {
        match self.ask(wish) {
            Answer::Done(done) => done,
            other => unreachable!("{other:?} for an act"),
        }
    }

    fn bytes(&self, wish: Wish, into: &mut [u8]) -> Result<(), SubjectError> {
        match self.ask(wish) {
            Answer::Bytes(bytes) => bytes.map(|bytes| into.copy_from_slice(&bytes)),
            other => unreachable!("{other:?} for bytes"),
        }
    }
}

impl PlatformTable for Relay {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<DeviceAddr, SubjectError> {
        match self.ask(Wish::Alloc { device, bytes, policy }) {
            Answer::Device(base) => base,
            other => unreachable!("{other:?} for an allocation"),
        }
    }

    fn free(&mut self, base: DeviceAddr) -> Result<(), SubjectError> {
        self.done(Wish::Free { base })
    }

    fn register(&mut self, device: u32, base: DeviceAddr, bytes: u64) -> Result<HostAddr, SubjectError> {
        match self.ask(Wish::Register { device, base, bytes }) {
            Answer::Host(view) => view,
            other => unreachable!("{other:?} for a registration"),
        }
    }

    fn unregister(&mut self, device: u32, base: DeviceAddr) -> Result<(), SubjectError> {
        self.done(Wish::Unregister { device, base })
    }

    fn copy_in(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        self.done(Wish::CopyIn { to, from: from.to_vec() })
    }

    fn copy_out(&mut self, from: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        self.bytes(Wish::CopyOut { from, len: into.len() }, into)
    }

    fn store(&mut self, view: HostAddr, from: &[u8]) -> Result<(), SubjectError> {
        self.done(Wish::Store { view, from: from.to_vec() })
    }

    fn load(&mut self, view: HostAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        self.bytes(Wish::Load { view, len: into.len() }, into)
    }

    fn enter(&mut self) {
        self.ask(Wish::Enter);
    }

    fn leave(&mut self) {
        self.ask(Wish::Leave);
    }
}

/// Makes two calls of a subject, the second while the first stands still.
pub(crate) fn meet(
    recorder: &mut Recorder,
    subject: &mut dyn Subject,
    [first, second]: [Work<'_>; 2],
    pause: Pause,
) -> Met {
    let (Some(one), Some(other)) = (subject.twin(), subject.twin()) else {
        return Met::Alone(first(subject, recorder));
    };
    let ids = [const { AtomicI32::new(0) }; 2];
    let watched = (!subject.locks_by_the_platform()).then_some(&ids);
    std::thread::scope(|scope| {
        let (sender, news) = channel();
        let mut host = Host {
            recorder,
            news,
            watched,
            pause: Some(pause),
            calls: 0,
            lock: None,
            threads: [const { Thread::NotStarted }; 2],
            answers: [None, None],
        };
        host.answers[0] = Some(start(scope, (0, &ids[0]), sender.clone(), one, first));
        host.threads[0] = Thread::Runs;
        let mut second = Some((other, second));
        host.run(|| second.take().map(|(other, second)| start(scope, (1, &ids[1]), sender.clone(), other, second)))
    })
}

fn start<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    (who, id): (usize, &'env AtomicI32),
    news: Sender<News>,
    mut subject: Box<dyn Subject>,
    work: Work<'env>,
) -> Sender<Answer> {
    let (answer, answers) = channel();
    scope.spawn(move || {
        id.store(own_id(), Ordering::Relaxed);
        let mut relay = Relay { who, news: news.clone(), answers };
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut *subject, &mut relay)));
        let outcome = outcome.unwrap_or_else(|payload| Outcome::NeverReturned(Endless::describe(&*payload)));
        let _ = news.send(News::Ends(who, outcome));
    });
    answer
}

/// Where a thread is.
enum Thread {
    NotStarted,
    /// It runs, and will be heard of.
    Runs,
    /// It stands still before a call.
    Before(Wish),
    /// It stands still after a call, whose answer this is.
    After(Answer),
    /// It waits for the lock.
    Waits,
    /// Its call returned.
    Ended(Outcome),
}

/// The suite's thread.
struct Host<'a> {
    recorder: &'a mut Recorder,
    news: Receiver<News>,
    /// The threads, as the system numbers them, where the subject's locks cannot be seen.
    watched: Option<&'a [AtomicI32; 2]>,
    pause: Option<Pause>,
    /// How many calls of the platform the first thread asked for.
    calls: u32,
    /// Who has the subject's lock.
    lock: Option<usize>,
    threads: [Thread; 2],
    answers: [Option<Sender<Answer>>; 2],
}

impl Host<'_> {
    fn run(mut self, mut begin: impl FnMut() -> Option<Sender<Answer>>) -> Met {
        let met = loop {
            let on = match self.hear() {
                Ok(News::Ends(who, Outcome::NeverReturned(why))) => break Met::Never(format!("{}{why}", name(who))),
                Ok(News::Ends(0, outcome)) if matches!(self.threads[1], Thread::NotStarted) => {
                    break Met::Alone(outcome);
                }
                Ok(News::Ends(who, outcome)) => {
                    self.threads[who] = Thread::Ended(outcome);
                    1 - who
                }
                Ok(News::Asks(who, wish)) => match self.serve(who, wish) {
                    Ok(true) => continue,
                    Ok(false) => 1 - who,
                    Err(why) => break Met::Never(format!("{}{why}", name(who))),
                },
                Err(_) => break Met::Never("both threads are gone".to_owned()),
            };
            if let [Thread::Ended(first), Thread::Ended(second)] = &self.threads {
                break Met::Both([first.clone(), second.clone()]);
            }
            if matches!(self.threads[on], Thread::NotStarted) {
                self.answers[1] = begin();
                self.threads[1] = Thread::Runs;
                continue;
            }
            match self.resume(on) {
                Ok(true) => {}
                Ok(false) => break Met::Never("each of two threads waits for the other".to_owned()),
                Err(why) => break Met::Never(format!("{}{why}", name(on))),
            }
        };
        // Whoever still asks is told that nobody is there.
        self.answers = [None, None];
        met
    }

    /// The next that is heard of a thread. One that waits for the other lets that go on first.
    fn hear(&mut self) -> Result<News, RecvTimeoutError> {
        let stands = |thread: &Thread| matches!(thread, Thread::Before(_) | Thread::After(_));
        if let (Some(ids), Some(still)) = (self.watched, self.threads.iter().position(stands)) {
            let id = &ids[1 - still];
            let (begun, mut asleep) = (Instant::now(), 0);
            while asleep < ASLEEP && begun.elapsed() < AWAKE {
                match self.news.recv_timeout(GLANCE) {
                    Err(RecvTimeoutError::Timeout) => asleep = if sleeps(id) { asleep + 1 } else { 0 },
                    heard => return heard,
                }
            }
            if let Err(why) = self.resume(still) {
                return Ok(News::Ends(still, Outcome::NeverReturned(why)));
            }
        }
        self.news.recv().map_err(|_| RecvTimeoutError::Disconnected)
    }

    /// Does what a thread asks for. Whether it goes on; the other is to, where not.
    fn serve(&mut self, who: usize, wish: Wish) -> Result<bool, String> {
        match wish {
            Wish::Enter => {
                if self.lock.is_some() {
                    self.threads[who] = Thread::Waits;
                    return Ok(false);
                }
                self.lock = Some(who);
                self.answer(who, Answer::Done(Ok(())));
                return Ok(true);
            }
            Wish::Leave => {
                if self.lock == Some(who) {
                    self.lock = None;
                }
                self.answer(who, Answer::Done(Ok(())));
                return Ok(true);
            }
            _ => {}
        }
        self.calls += u32::from(who == 0);
        let here = |pause: Pause| who == 0 && self.pause == Some(pause);
        if here(Pause::Before(self.calls)) {
            self.pause = None;
            self.threads[who] = Thread::Before(wish);
            return Ok(false);
        }
        let after = here(Pause::After(self.calls));
        let answer = self.call(wish)?;
        if after {
            self.pause = None;
            self.threads[who] = Thread::After(answer);
            return Ok(false);
        }
        self.answer(who, answer);
        Ok(true)
    }

    fn call(&mut self, wish: Wish) -> Result<Answer, String> {
        let recorder = &mut *self.recorder;
        catch_unwind(AssertUnwindSafe(|| match wish {
            Wish::Alloc { device, bytes, policy } => Answer::Device(recorder.alloc(device, bytes, policy)),
            Wish::Free { base } => Answer::Done(recorder.free(base)),
            Wish::Register { device, base, bytes } => Answer::Host(recorder.register(device, base, bytes)),
            Wish::Unregister { device, base } => Answer::Done(recorder.unregister(device, base)),
            Wish::CopyIn { to, from } => Answer::Done(recorder.copy_in(to, &from)),
            Wish::CopyOut { from, len } => {
                let mut into = vec![0; len];
                Answer::Bytes(recorder.copy_out(from, &mut into).map(|()| into))
            }
            Wish::Store { view, from } => Answer::Done(recorder.store(view, &from)),
            Wish::Load { view, len } => {
                let mut into = vec![0; len];
                Answer::Bytes(recorder.load(view, &mut into).map(|()| into))
            }
            Wish::Enter | Wish::Leave => Answer::Done(Ok(())),
        }))
        .map_err(|payload| Endless::describe(&*payload))
    }

    fn answer(&mut self, who: usize, answer: Answer) {
        self.threads[who] = Thread::Runs;
        if let Some(sender) = &self.answers[who] {
            let _ = sender.send(answer);
        }
    }

    /// Lets a thread go on. False where nothing ever will; why it is left, where its call is one too many.
    fn resume(&mut self, who: usize) -> Result<bool, String> {
        match std::mem::replace(&mut self.threads[who], Thread::Runs) {
            Thread::Before(wish) => {
                let answer = self.call(wish)?;
                self.answer(who, answer);
            }
            Thread::After(answer) => self.answer(who, answer),
            Thread::Waits if self.lock.is_none() => {
                self.lock = Some(who);
                self.answer(who, Answer::Done(Ok(())));
            }
            waits @ Thread::Waits => {
                self.threads[who] = waits;
                return Ok(false);
            }
            // It is on its way already, and will be heard of.
            Thread::Runs | Thread::NotStarted => {}
            ended @ Thread::Ended(_) => {
                self.threads[who] = ended;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How often a thread is looked at that may wait.
const GLANCE: Duration = Duration::from_micros(300);
/// It waits when it sleeps each of so many times.
const ASLEEP: u32 = 3;
/// It waits, awake, when nothing is heard of it for so long.
const AWAKE: Duration = Duration::from_millis(50);

/// This thread, as the system numbers it.
#[allow(unsafe_code, reason = "asks the system for a number")]
fn own_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

/// Whether a thread of this process sleeps, where the system tells.
fn sleeps(id: &AtomicI32) -> bool {
    let stat = format!("/proc/self/task/{}/stat", id.load(Ordering::Relaxed));
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // The name before the state may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn name(who: usize) -> &'static str {
    if who == 0 { "" } else { "the step behind it " }
}

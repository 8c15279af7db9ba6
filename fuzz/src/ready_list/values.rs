//! Keys, tasks and group states that count their drops, and user code that panics where the input says so.

use std::{
    cell::{Cell, RefCell},
    hash::{Hash, Hasher},
    panic::resume_unwind,
};

use bgrp::{Failure, GroupHandle, Outcome};

use super::{TASKS, model};
use crate::{bytes::Bytes, witness::Witness};

/// Keys are below this.
pub(super) const KEYS: u8 = 12;

/// In how many calls from now each kind of user code panics; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arms {
    pub(super) eq: u8,
    pub(super) open: u8,
    pub(super) drop: u8,
}

thread_local! {
    static ARMS: Cell<Arms> = const { Cell::new(Arms { eq: 0, open: 0, drop: 0 }) };
    /// A worker runs: drops of tasks may panic.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
    static MADE: Cell<u32> = const { Cell::new(0) };
    /// What the policy took out of tasks that failed.
    static DEAD: RefCell<Vec<Witness>> = const { RefCell::new(Vec::new()) };
    /// Live handles, by key: handlers submit through them.
    static HANDLES: RefCell<[Option<GroupHandle<Key, Task>>; KEYS as usize]> =
        const { RefCell::new([const { None }; KEYS as usize]) };
}

/// Forgets the run before.
pub(super) fn start() {
    ARMS.set(Arms::default());
    AT_WORK.set(false);
    MADE.set(0);
}

/// Runs `f` with the panics of user code armed.
pub(super) fn at_work<R>(arms: Arms, f: impl FnOnce() -> R) -> R {
    ARMS.set(arms);
    AT_WORK.set(true);
    let result = f();
    AT_WORK.set(false);
    ARMS.set(Arms::default());
    result
}

/// A panic that is wanted. It passes by the panic hook, in which every other one ends the process.
pub(super) fn wanted_panic() -> ! {
    resume_unwind(Box::new("wanted"))
}

/// This call panics if the input says so.
fn armed(of: fn(&mut Arms) -> &mut u8) -> bool {
    let mut arms = ARMS.get();
    let left = of(&mut arms);
    if *left == 0 {
        return false;
    }
    *left -= 1;
    let now = *left == 0;
    ARMS.set(arms);
    now
}

/// Gives the values back that user code has put away.
pub(super) fn bury() {
    DEAD.take();
}

pub(super) fn with_handles<R>(
    f: impl FnOnce(&mut [Option<GroupHandle<Key, Task>>; KEYS as usize]) -> R,
) -> R {
    HANDLES.with_borrow_mut(f)
}

pub(super) fn is_pinned(key: u8) -> bool {
    HANDLES.with_borrow(|handles| handles[key as usize].is_some())
}

/// A key. Two of the same number are equal, and are different values.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) n: u8,
    _witness: Witness,
}

impl Key {
    pub(super) fn new(n: u8) -> Self {
        Self { n: n % KEYS, _witness: Witness::new() }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        if armed(|arms| &mut arms.eq) {
            wanted_panic();
        }
        self.n == other.n
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.n.hash(state);
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if armed(|arms| &mut arms.drop) {
            wanted_panic();
        }
    }
}

/// What is to become of a task, and what its handler does on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// As often, then done.
    Retry(u32),
    /// The same, after so many milliseconds each.
    RetryAfter(u32, u32),
    /// Retried until this attempt, which fails for good.
    Fail(u32),
    /// The handler panics as often, then it is done.
    Panic(u32),
    /// Done, and its drop panics.
    BadDrop,
    /// Done; its handler submits another task to the handle of this key.
    Submits(u8),
    /// Of a batch: the handler answers with one outcome too many.
    WrongCount,
}

/// What the policy does with a task whose attempts are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Burial {
    Skip,
    /// As often, for so many milliseconds; then skip.
    Hold(u32, u32),
    HaltGroup,
    HaltEngine,
    /// Takes the payload out of the task.
    DeadLetter,
    Panic,
}

/// A task: who it is, by which way it came (0: in the common order; else a lane of its own), and its script.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: u32,
    pub(super) source: u16,
    script: u8,
    pub(super) held: u32,
    payload: Option<Witness>,
}

impl Task {
    /// `None`: this input has made enough of them.
    pub(super) fn new(source: u16, script: u8) -> Option<Self> {
        let id = MADE.get();
        if id >= TASKS {
            return None;
        }
        MADE.set(id + 1);
        Some(Self { id, source, script, held: 0, payload: Some(Witness::new()) })
    }

    pub(super) fn read(bytes: &mut Bytes<'_>, source: u16) -> Option<Self> {
        let script = bytes.u8();
        Self::new(source, script)
    }

    pub(super) fn fate(&self) -> Fate {
        let (n, x) = (u32::from(self.script >> 3 & 3), u32::from(self.script >> 5));
        match self.script & 7 {
            0 | 1 => Fate::Done,
            2 => Fate::Retry(n + 1),
            3 => Fate::RetryAfter(n + 1, 2 * x + 1),
            4 if n == 3 && x == 7 => Fate::WrongCount,
            4 => Fate::Fail(n + 1),
            5 => Fate::Panic(n + 1),
            6 => Fate::BadDrop,
            _ => Fate::Submits(x as u8),
        }
    }

    pub(super) fn burial(&self) -> Burial {
        let (n, x) = (u32::from(self.script >> 3 & 3), self.script >> 5);
        match x {
            0 | 1 => Burial::Skip,
            2 | 3 => Burial::Hold(n + 1, 3),
            4 => Burial::HaltGroup,
            5 => Burial::Panic,
            6 => Burial::DeadLetter,
            _ => Burial::HaltEngine,
        }
    }

    /// What the handler answers at this attempt, if it does not panic.
    pub(super) fn answer(&self, attempt: u32) -> Outcome {
        let failure = || Failure::new("as written");
        match self.fate() {
            Fate::Retry(n) if attempt <= n => Outcome::Retry(failure()),
            Fate::RetryAfter(n, ms) if attempt <= n => {
                Outcome::RetryAfter(std::time::Duration::from_millis(ms.into()), failure())
            }
            Fate::Fail(n) if attempt < n => Outcome::Retry(failure()),
            Fate::Fail(_) | Fate::WrongCount => Outcome::Fail(failure()),
            _ => Outcome::Done,
        }
    }

    /// The handler sees the task: it must be whole, and does what its script says.
    pub(super) fn handle(&self) {
        assert!(self.payload.is_some(), "task {} comes again after its end", self.id);
        if let Fate::Submits(key) = self.fate() {
            submit_inside(key);
        }
    }

    /// The policy takes the payload.
    pub(super) fn take_payload(&mut self) {
        DEAD.with_borrow_mut(|dead| dead.extend(self.payload.take()));
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if AT_WORK.get() && self.fate() == Fate::BadDrop && !std::thread::panicking() {
            wanted_panic();
        }
    }
}

/// From inside a handler: one more task, if there is a handle.
fn submit_inside(key: u8) {
    let Some(task) = Task::new(0, 0) else { return };
    let id = task.id;
    let submitted = HANDLES.with_borrow(|handles| {
        handles[key as usize].as_ref().map(|handle| handle.try_submit(task))
    });
    match submitted {
        Some(Ok(())) => model::with(|model| model.accept(key, 0, id)),
        Some(Err(error)) => {
            assert_eq!(error.task.id, id);
            model::with(|model| model.refuse_inside(key, error.reason));
        }
        None => {}
    }
}

/// The handler panics at this attempt.
pub(super) fn panics(task: &Task, attempt: u32) -> bool {
    matches!(task.fate(), Fate::Panic(n) if attempt <= n)
}

/// The state of a group.
#[derive(Debug)]
pub(super) struct State {
    pub(super) key: u8,
    _witness: Witness,
}

impl State {
    pub(super) fn open(key: &Key) -> Self {
        if armed(|arms| &mut arms.open) {
            model::with(|model| model.open_failed(key.n));
            wanted_panic();
        }
        model::with(|model| model.opened(key.n));
        Self { key: key.n, _witness: Witness::new() }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        model::with(|model| model.state_dropped(self.key, is_pinned(self.key)));
        if armed(|arms| &mut arms.drop) {
            wanted_panic();
        }
    }
}

//! The one thread that talks to all processes. It sleeps in `poll` on the guardian, the workers' channels and pipes, and the wake of other
//! threads; nothing in it waits for anything else.
//!
//! A round: leases that came are laid in line; workers with room get the next ones; what is due is done; then it sleeps until a
//! descriptor is ready or the next time is due.

use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bgrp::{Engine, Lease};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};

use super::{
    builder::Builder,
    ends,
    hand::Judge,
    item::{Item, Key},
    memory::Looks,
    results::Outlet,
    starts::{After, Starts},
    wake::Wake,
    watch::Asked,
    worker::{Source, State, Worker},
};
use crate::{
    guardian::{Event, Guardian, Spawn},
    result::{Ended, TaskResult},
};

/// How long the pipes of a worker that has ended are read on, while something that it started holds them.
pub(super) const LINGER: Duration = Duration::from_millis(200);
/// How long a worker without tasks that was told to end may take.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// While others wait, a key has a worker for so long at a time, or for one task.
const SLICE: Duration = Duration::from_millis(50);

/// What other threads leave for the reactor.
pub(super) struct Post {
    pub(super) wake: Wake,
    leases: Mutex<Vec<Lease<Key, Item>>>,
    orders: Mutex<Orders>,
    asked: Mutex<Vec<Asked>>,
}

/// What it is to do, and how it went.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    /// Stop all workers now, and give back what they have.
    pub(super) stop: bool,
    /// There will be no more leases: end.
    pub(super) end: bool,
    /// Why the run cannot go on.
    pub(super) failed: Option<String>,
}

impl Post {
    pub(super) fn new(wake: Wake) -> Self {
        Self { wake, leases: Mutex::default(), orders: Mutex::default(), asked: Mutex::default() }
    }

    pub(super) fn lease(&self, lease: Lease<Key, Item>) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
        self.wake.call();
    }

    pub(super) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.call();
    }

    pub(super) fn ask(&self, asked: Asked) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        self.wake.call();
    }

    pub(super) fn orders(&self) -> Orders {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// See the module text.
pub(super) struct Reactor {
    pub(super) settings: Builder,
    pub(super) judge: Judge,
    pub(super) post: Arc<Post>,
    pub(super) outlet: Arc<Outlet>,
    pub(super) guardian: Guardian,
    pub(super) workers: Vec<Worker>,
    /// Leases that no worker has yet, in the order in which they came.
    pub(super) line: VecDeque<Lease<Key, Item>>,
    pub(super) starts: Starts,
    /// Workers so far.
    started: u32,
    /// Results of this round.
    pub(super) results: Vec<TaskResult>,
    /// The last line of a worker that was not ready.
    pub(super) last_line: String,
    /// Starts nothing more once the run has failed.
    engine: Arc<Engine<Key, Item>>,
    pub(super) looks: Looks,
    /// No worker is started, nothing is sent: stop, or the run has failed.
    pub(super) stopped: bool,
}

impl Reactor {
    pub(super) fn new(
        settings: Builder,
        judge: Judge,
        post: Arc<Post>,
        outlet: Arc<Outlet>,
        guardian: Guardian,
        engine: Arc<Engine<Key, Item>>,
    ) -> Self {
        let starts = Starts::new(settings.starts);
        let looks = Looks::new(settings.memory, guardian.protections().memory, Instant::now());
        Self {
            settings,
            judge,
            post,
            outlet,
            guardian,
            workers: Vec::new(),
            line: VecDeque::new(),
            starts,
            started: 0,
            results: Vec::new(),
            last_line: String::new(),
            engine,
            looks,
            stopped: false,
        }
    }

    /// Until there is nothing left to do.
    pub(super) fn run(mut self) {
        let mut ready = Vec::new();
        loop {
            let orders = self.post.orders();
            let mut leases = self.post.leases.lock().unwrap_or_else(PoisonError::into_inner);
            self.line.extend(leases.drain(..));
            drop(leases);
            if orders.stop && !self.stopped {
                self.stop_all();
            }
            if self.stopped {
                self.line.drain(..).for_each(ends::not_run);
            }
            let now = Instant::now();
            let asked = std::mem::take(
                &mut *self.post.asked.lock().unwrap_or_else(PoisonError::into_inner),
            );
            self.tell(asked, now);
            if !self.stopped {
                // At the end a worker that goes is not replaced.
                if !orders.end {
                    self.start_workers(now);
                }
                self.feed(now);
            }
            if orders.end && self.line.is_empty() {
                self.retire(now);
            }
            let due = self.tend(now);
            self.outlet.push(std::mem::take(&mut self.results));
            if orders.end && self.workers.is_empty() {
                return;
            }
            self.sleep(due, now, &mut ready);
        }
    }

    /// A worker for each lease that would wait, up to the bound; and the least number always.
    fn start_workers(&mut self, now: Instant) {
        let (least, most) = (*self.settings.workers.start(), *self.settings.workers.end());
        let usable = || self.workers.iter().filter(|worker| worker.is_usable());
        let live = usable().count();
        let busy = usable().filter(|worker| !worker.hand.is_empty()).count();
        let wanted = (busy + self.line.len()).clamp(least, most);
        // Those that are being stopped count: the system has them still.
        let free = most.saturating_sub(self.workers.len());
        let missing = wanted.saturating_sub(live).min(free);
        if missing == 0 || self.starts.wait(now).is_some() {
            return;
        }
        // After a failure one is tried before all are.
        let missing =
            if self.starts.in_doubt() { usize::from(self.none_starts()) } else { missing };
        for _ in 0..missing {
            self.start_worker(now);
        }
    }

    fn none_starts(&self) -> bool {
        !self.workers.iter().any(|worker| matches!(worker.state, State::Starting(_)))
    }

    fn start_worker(&mut self, now: Instant) {
        self.started += 1;
        let number = self.started;
        let (worker, fds) = match Worker::new(number, now + self.settings.start_timeout) {
            Ok(made) => made,
            Err(error) => return self.start_failed(format!("its channel: {error}"), now),
        };
        let program = &self.settings.program;
        let worker_number = number.to_string();
        let mut spawn = Spawn::new(&program.argv[0]);
        spawn.args = program.argv[1..].iter().map(AsRef::as_ref).collect();
        let set = program.env.iter().map(|(name, value)| (name.as_ref(), Some(value.as_ref())));
        spawn.env = set
            .chain(
                [("BGRP_FD", "3"), ("BGRP_CELL", "4"), ("BGRP_WORKER", &worker_number)]
                    .map(|(name, value)| (name.as_ref(), Some(value.as_ref()))),
            )
            .collect();
        spawn.cwd = program.directory.as_deref();
        spawn.fds = fds;
        spawn.memory = self.settings.memory;
        match self.guardian.spawn(number.into(), spawn) {
            Ok(()) => self.workers.push(worker),
            Err(error) => self.start_failed(error.to_string(), now),
        }
    }

    /// A worker never got ready.
    pub(super) fn start_failed(&mut self, why: String, now: Instant) {
        let after = self.starts.failed(now);
        self.go_on(after, why);
    }

    /// A worker was ready, and ended before it was of any use.
    pub(super) fn was_useless(&mut self, why: String, now: Instant) {
        let after = self.starts.useless(now);
        self.go_on(after, why);
    }

    fn go_on(&mut self, after: After, why: String) {
        if let After::GiveUp(times) = after {
            let program = self.settings.program.argv[0].to_string_lossy().into_owned();
            self.fail(format!("{program} does not start as a worker ({times} times): {why}"));
        }
    }

    /// The run cannot go on: what is with workers is given back, and everything that waits.
    pub(super) fn fail(&mut self, why: String) {
        self.post.order(|orders| {
            orders.failed.get_or_insert(why);
        });
        self.engine.halt();
        self.stop_all();
    }

    /// Hands out what waits, to the workers with the least to do first.
    fn feed(&mut self, now: Instant) {
        if self.outlet.is_full() {
            return;
        }
        let frame = self.settings.frame;
        let life = self.settings.recycle.unwrap_or(u64::MAX);
        loop {
            let (judge, window) = (&self.judge, self.settings.window as usize);
            let room = |worker: &Worker| {
                let batch = if worker.can.batch { frame } else { 1 };
                let window = if worker.can.batch { window } else { 1 };
                if !worker.is_ready() || worker.frames() >= window {
                    return 0;
                }
                let left = life.saturating_sub(worker.sent).min(batch.into()) as u32;
                if left == 0 { 0 } else { worker.pace.next(left, worker.hand.open()) }
            };
            let next = self.workers.iter_mut().filter(|worker| room(worker) > 0);
            // Who has something to send of what it holds, or may take more.
            let line = !self.line.is_empty();
            let next = next.filter(|worker| line || worker.hand.unsent(judge) > 0);
            let Some(worker) = next.min_by_key(|worker| worker.hand.open()) else { return };
            let room = room(worker);
            if line {
                worker.hand.give_way(now, SLICE);
            }
            while worker.hand.unsent(judge) < room as usize
                && let Some(lease) = self.line.pop_front()
            {
                worker.hand.take(lease, now);
            }
            let limit = self.settings.timeout;
            let tasks = super::wire::send_tasks(worker, room, judge, limit, now, &mut self.results);
            worker.write();
            if tasks == 0 {
                return;
            }
        }
    }

    /// Workers without tasks end; those that are not ready yet, at once.
    fn retire(&mut self, now: Instant) {
        for worker in self.workers.iter_mut().filter(|worker| worker.hand.is_empty()) {
            match worker.state {
                State::Ready => worker.drain(now),
                State::Starting(_) => {
                    ends::stop(worker, &mut self.guardian, None, now, self.settings.grace);
                }
                State::Draining(_) | State::Stopping(_) => {}
            }
        }
    }

    /// Sleeps until something is there, and takes it in.
    fn sleep(&mut self, due: Option<Instant>, now: Instant, ready: &mut Vec<(usize, Source)>) {
        ready.clear();
        let due = [due, self.starts.wait(now).map(|wait| now + wait)].into_iter().flatten().min();
        let (guardian, wake);
        {
            let mut names = vec![];
            let mut fds = vec![
                poll_fd(self.post.wake.fd(), false),
                poll_fd(self.guardian.fd(), self.guardian.wants_write()),
            ];
            for (at, worker) in self.workers.iter().enumerate() {
                for (source, fd, write) in worker.fds() {
                    names.push((at, source));
                    fds.push(poll_fd(fd, write));
                }
            }
            let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
            // An error is a signal that came between: the next round sleeps again.
            let _ = poll(&mut fds, timeout.as_ref());
            wake = !fds[0].revents().is_empty();
            guardian = !fds[1].revents().is_empty();
            let came = names.into_iter().zip(&fds[2..]);
            ready.extend(came.filter(|(_, fd)| !fd.revents().is_empty()).map(|(name, _)| name));
        }
        self.post.wake.hear(wake);
        for (worker, source) in ready.drain(..) {
            self.take_in(worker, source);
        }
        if guardian || self.guardian.wants_write() {
            self.hear_guardian();
        }
    }

    fn hear_guardian(&mut self) {
        let mut events = Vec::new();
        let heard = self.guardian.io(&mut events);
        let now = Instant::now();
        for event in events {
            let at = |token: u64| self.workers.iter().position(|w| u64::from(w.number) == token);
            match event {
                Event::Started { token, pid } => {
                    if let Some(at) = at(token) {
                        self.workers[at].pid = Some(pid);
                    }
                }
                Event::NotStarted { token, error } => {
                    if let Some(at) = at(token) {
                        drop(self.workers.swap_remove(at));
                        self.start_failed(error.to_string(), now);
                    }
                }
                Event::Exited { token, status, usage } => {
                    if let Some(at) = at(token) {
                        let worker = &mut self.workers[at];
                        worker.exited = Some(status);
                        worker.oom = usage.oom_killed;
                        worker.gone_at = Some(now + LINGER);
                        // Whatever it started goes with it.
                        self.guardian.sweep(token);
                    }
                }
                Event::Swept { token, survivors } => {
                    if let Some(at) = at(token) {
                        self.workers[at].swept = Some(survivors);
                    }
                }
            }
        }
        if let Err(error) = heard {
            // Its children died with it.
            for worker in &mut self.workers {
                worker.exited.get_or_insert_default();
                worker.swept.get_or_insert_default();
                worker.gone_at.get_or_insert(now);
            }
            self.fail(error.to_string());
        }
    }

    fn stop_all(&mut self) {
        self.stopped = true;
        let now = Instant::now();
        for worker in &mut self.workers {
            worker.hand.give_back_unsent();
            let grace = self.settings.grace;
            ends::stop(worker, &mut self.guardian, None, now, grace);
        }
    }

    /// A worker is to end at once, with everything that it started.
    pub(super) fn kill(&mut self, at: usize) {
        let token = self.workers[at].number.into();
        self.guardian.signal(token, Signal::KILL);
        self.guardian.sweep(token);
    }

    /// How long one attempt of it may run.
    pub(super) fn timeout_of(&self, item: &Item) -> Option<Duration> {
        item.timeout.or(self.settings.timeout)
    }
}

fn poll_fd(fd: BorrowedFd<'_>, write: bool) -> PollFd<'_> {
    let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    PollFd::from_borrowed_fd(fd, flags)
}

/// What a task ends with whose worker went over its time.
pub(super) fn timed_out(limit: Duration) -> Ended {
    Ended::Timeout { limit, survivors: Vec::new() }
}

//! What the guardian does all its life: requests in, answers out, exits seen, sweeps carried on.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::child::Spawner;
use super::end;
use super::setup::Setup;
use super::sweep::Sweeps;
use super::table::{Leader, Table};
use crate::guardian::wire::{self, Answer, Request};
use crate::guardian::{Event, Usage};

/// No request is read while more bytes of answers wait.
const BACKLOG: usize = 1 << 20;

/// The guardian at work.
pub(super) struct Server {
    setup: Setup,
    spawner: Spawner,
    table: Table,
    sweeps: Sweeps,
}

impl Server {
    pub(super) fn new(setup: Setup) -> Self {
        let sweeps = Sweeps::new(&setup.run);
        Self { setup, spawner: Spawner::new(), table: Table::default(), sweeps }
    }

    /// Queues an answer and writes what can be written.
    pub(super) fn say(&mut self, answer: &Answer) {
        self.setup.channel.push(&wire::answer(answer), Vec::new(), 0);
        // A runner that is gone is seen by the next read.
        let _ = self.setup.channel.flush();
    }

    fn queue(&mut self, event: Event) {
        self.setup.channel.push(&wire::answer(&Answer::Event(event)), Vec::new(), 0);
    }

    /// Serves until the runner is gone.
    pub(super) fn serve(&mut self) {
        self.say(&Answer::Hello { protections: self.setup.protections });
        loop {
            let ready = self.wait();
            if ready.runner_gone {
                return;
            }
            if ready.exits {
                self.reap();
            }
            if ready.socket && !self.requests() {
                return;
            }
            for (token, survivors) in
                self.sweeps.carry_on(Instant::now(), &mut self.table, self.setup.tree)
            {
                self.queue(Event::Swept { token, survivors });
            }
            if self.setup.channel.flush().is_err() {
                return;
            }
        }
    }

    fn wait(&self) -> Ready {
        let channel = &self.setup.channel;
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, channel.backlog() < BACKLOG);
        flags.set(PollFlags::OUT, channel.wants_write());
        let mut fds = vec![
            PollFd::from_borrowed_fd(channel.fd(), flags),
            PollFd::new(&self.setup.exits, PollFlags::IN),
        ];
        fds.extend(self.setup.runner.as_ref().map(|runner| PollFd::new(runner, PollFlags::IN)));
        let time = self.sweeps.next().map(|next| {
            let left = next.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        // Whatever keeps poll from answering keeps it for a moment only.
        if poll(&mut fds, time.as_ref()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            return Ready { socket: true, exits: true, runner_gone: false };
        }
        let any = |at: usize, flags: PollFlags| {
            fds.get(at).is_some_and(|fd| fd.revents().intersects(flags))
        };
        let gone = PollFlags::HUP | PollFlags::ERR;
        Ready {
            socket: any(0, PollFlags::IN | gone),
            exits: any(1, PollFlags::IN),
            runner_gone: any(2, PollFlags::IN),
        }
    }

    /// Reads and carries out what is asked; answers whether the runner is still there.
    fn requests(&mut self) -> bool {
        let Ok(open) = self.setup.channel.fill() else { return false };
        let mut answers = Vec::new();
        while let Some((frame, arrivals)) = self.setup.channel.next_with_fds() {
            // Both sides are the same program.
            let Some(request) = wire::request(frame) else {
                panic!("a request of the runner that makes no sense")
            };
            match request {
                Request::Spawn(order) => {
                    let fds = if order.fds.contains(&true) {
                        arrivals.pop_front().unwrap_or_default()
                    } else {
                        Vec::new()
                    };
                    let (run, env) = (&self.setup.run, &self.setup.env);
                    let token = order.token;
                    answers.push(
                        match self.spawner.spawn(&order, fds, run, env, self.setup.cgroups.as_ref())
                        {
                            Ok((pid, cgroup)) => {
                                self.table.enter(pid, Leader { token, cgroup });
                                let pid = pid.as_raw_nonzero().get().unsigned_abs();
                                Event::Started { token, pid }
                            }
                            Err(error) => Event::NotStarted { token, error },
                        },
                    );
                }
                Request::Signal { token, signal } => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.table.signal(token, signal);
                    }
                }
                Request::Sweep { token } => self.sweeps.begin(token),
            }
        }
        for event in answers {
            self.queue(event);
        }
        open
    }

    /// Reaps whoever has ended: leaders with an answer, orphans that came here without.
    fn reap(&mut self) {
        drain(&self.setup.exits);
        while let Some((pid, status, usage)) = end::reap_one() {
            if let Some((token, oom_killed)) = self.table.reaped(pid) {
                let usage = Usage { oom_killed, ..usage };
                self.queue(Event::Exited { token, status: ExitStatus::from_raw(status), usage });
                self.sweeps.hurry(token);
            }
        }
    }

    /// The runner is gone: nothing of the run stays.
    pub(super) fn end(&mut self) {
        for token in self.table.tokens() {
            self.table.kill_cgroup(token);
            self.table.signal(token, Signal::KILL);
        }
        end::kill_everything(self.setup.tree);
        // Empty now, so they can be removed; the directory of the run last.
        drop(std::mem::take(&mut self.table));
        self.setup.cgroups = None;
    }
}

struct Ready {
    socket: bool,
    exits: bool,
    runner_gone: bool,
}

/// Takes what the descriptor of signals has to tell, so that it is only readable at the next one.
fn drain(exits: &OwnedFd) {
    let mut told = [0; 512];
    while rustix::io::read(exits, &mut told).is_ok() {}
}

//! Results on their way. They are sent many at a time: when enough wait, when a frame of tasks is done, and after a few milliseconds by a
//! thread of its own, which sleeps while nothing runs. That thread also says that the worker lives while a long task runs.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::frame::{self, Encoding, Reply, Type};

/// Results are sent when so many wait.
const MANY: usize = 512;
/// Or when they have so many bytes.
const LARGE: usize = 64 * 1024;
/// A task that took longer is answered at once.
const LONG: Duration = Duration::from_micros(50);

struct State {
    replies: Vec<Reply<'static>>,
    bytes: usize,
    /// The frame that is written; kept for its memory.
    frame: Vec<u8>,
    busy: bool,
    /// The watching thread sleeps until it is called. It is called at the first task after a pause, not at each frame: that would
    /// wake it as often as there are frames.
    asleep: bool,
    lost: bool,
}

/// See the module text.
pub(super) struct Outbox {
    socket: OwnedFd,
    encoding: Encoding,
    state: Mutex<State>,
    changed: Condvar,
}

impl Outbox {
    pub(super) fn start(
        socket: OwnedFd,
        encoding: Encoding,
        flush: Duration,
        heartbeat: Duration,
    ) -> io::Result<Arc<Self>> {
        let state = State {
            replies: Vec::new(),
            bytes: 0,
            frame: Vec::new(),
            busy: false,
            asleep: false,
            lost: false,
        };
        let outbox =
            Arc::new(Self { socket, encoding, state: Mutex::new(state), changed: Condvar::new() });
        let theirs = outbox.clone();
        std::thread::Builder::new()
            .name("bgrp-outbox".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || theirs.watch(flush, heartbeat))?;
        Ok(outbox)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tasks run from now on, or no more.
    pub(super) fn busy(&self, busy: bool) {
        let mut state = self.lock();
        if !busy {
            self.flush(&mut state);
        }
        state.busy = busy;
        if busy && state.asleep {
            state.asleep = false;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// A task that took so long is answered.
    pub(super) fn push(&self, reply: Reply<'static>, size: usize, took: Duration) {
        let mut state = self.lock();
        state.replies.push(reply);
        state.bytes += size;
        if state.replies.len() >= MANY || state.bytes >= LARGE || took >= LONG {
            self.flush(&mut state);
        }
    }

    /// Some other frame, behind the results that wait.
    pub(super) fn say(&self, kind: Type, body: &impl serde::Serialize) {
        let mut state = self.lock();
        self.flush(&mut state);
        self.write(&mut state, kind, body);
    }

    /// As [`Outbox::say`], in JSON whatever was agreed on.
    pub(super) fn say_json(&self, kind: Type, body: &impl serde::Serialize) {
        let mut state = self.lock();
        self.write_in(&mut state, kind, Encoding::Json, body);
    }

    /// The runner has closed its end.
    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost
    }

    fn flush(&self, state: &mut State) {
        if state.replies.is_empty() {
            return;
        }
        state.bytes = 0;
        let replies = frame::Results(std::mem::take(&mut state.replies));
        self.write(state, Type::Results, &replies);
        state.replies = replies.0;
        state.replies.clear();
    }

    fn write(&self, state: &mut State, kind: Type, body: &impl serde::Serialize) {
        self.write_in(state, kind, self.encoding, body);
    }

    fn write_in(
        &self,
        state: &mut State,
        kind: Type,
        encoding: Encoding,
        body: &impl serde::Serialize,
    ) {
        state.frame.clear();
        if !frame::write(&mut state.frame, kind, encoding, body) {
            state.lost = true;
            return;
        }
        let mut rest = &state.frame[..];
        while !rest.is_empty() {
            match rustix::net::send(self.socket.as_fd(), rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    state.lost = true;
                    return;
                }
            }
        }
    }

    fn watch(&self, flush: Duration, heartbeat: Duration) {
        let mut said = Instant::now();
        let mut state = self.lock();
        loop {
            if !state.busy {
                state.asleep = true;
                while state.asleep {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                said = Instant::now();
                continue;
            }
            let woken = self.changed.wait_timeout(state, flush);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            self.flush(&mut state);
            if state.busy && said.elapsed() >= heartbeat {
                self.write(&mut state, Type::Heartbeat, &[0u8; 0]);
                said = Instant::now();
            }
        }
    }
}

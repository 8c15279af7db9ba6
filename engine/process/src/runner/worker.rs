//! One worker process, as the runner sees it: its channel, its pipes, what it has, and how far its end has come.
//!
//! The states are those of docs/design/process.md. What happens to it is decided by the reactor; here is what each state means for
//! bytes and tasks.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::ExitStatus,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{PipeFlags, pipe_with},
};

use super::{cell::Cell, hand::Hand, lines::Lines, pace::Pace};
use crate::{
    clock::monotonic_ns,
    frame::{Decoder, Encoding},
    guardian::Fds,
    result::Ended,
};

/// Bytes that are read from a descriptor at a time.
const CHUNK: usize = 64 * 1024;

/// How far a worker is.
#[derive(Debug)]
pub(super) enum State {
    /// It was asked for, and has not said that it is ready. Gives up at this time.
    Starting(Instant),
    Ready,
    /// It gets no more, and ends by itself, or is stopped at this time.
    Draining(Instant),
    /// It is being stopped.
    Stopping(Stop),
}

/// A stop that is under way.
#[derive(Debug)]
pub(super) struct Stop {
    /// What becomes of the task that ran, and its number.
    pub(super) blamed: Option<(u64, Ended)>,
    /// KILL, and everything that it started, at this time; `None`: that was done.
    pub(super) kill_at: Option<Instant>,
}

/// One of its two streams.
pub(super) struct Stream {
    pub(super) pipe: Option<OwnedFd>,
    pub(super) lines: Lines,
}

/// See the module text.
pub(super) struct Worker {
    pub(super) number: u32,
    pub(super) pid: Option<u32>,
    pub(super) state: State,
    pub(super) socket: Option<OwnedFd>,
    pub(super) decoder: Decoder,
    pub(super) encoding: Encoding,
    /// Frames that are not written yet.
    pub(super) out: Vec<u8>,
    written: usize,
    /// Standard output and standard error.
    pub(super) streams: [Stream; 2],
    pub(super) cell: Cell,
    pub(super) hand: Hand,
    pub(super) pace: Pace,
    /// What it can, as it said.
    pub(super) can: Can,
    /// The frames of tasks that it has: the number of the last task in each.
    frames: VecDeque<u64>,
    /// When it was last seen to get on with its tasks.
    pub(super) moved: Instant,
    /// Tasks answered since then.
    answered: u32,
    /// Tasks that it was sent so far.
    pub(super) sent: u64,
    /// The task that it says runs, and since when, where it has no use for the cell.
    pub(super) said: Option<(u64, Instant)>,
    pub(super) exited: Option<ExitStatus>,
    /// Its end was announced, or found by reading.
    pub(super) gone_at: Option<Instant>,
    pub(super) oom: bool,
    /// Survivors of the sweep; `None` until it was done.
    pub(super) swept: Option<Vec<u32>>,
}

/// What a worker can, as it said when it was ready.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Can {
    pub(super) cell: bool,
    pub(super) batch: bool,
}

impl Worker {
    /// A worker that is about to be asked for, and its ends of everything.
    pub(super) fn new(number: u32, give_up: Instant) -> io::Result<(Self, Fds)> {
        let (socket, three) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (cell, four) = Cell::new()?;
        let (out, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (err, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        for fd in [socket.as_fd(), out.as_fd(), err.as_fd()] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let stream = |pipe| Stream { pipe: Some(pipe), lines: Lines::default() };
        let worker = Self {
            number,
            pid: None,
            state: State::Starting(give_up),
            socket: Some(socket),
            decoder: Decoder::new(),
            encoding: Encoding::Json,
            out: Vec::new(),
            written: 0,
            streams: [stream(out), stream(err)],
            cell,
            hand: Hand::new(),
            pace: Pace::default(),
            can: Can::default(),
            frames: VecDeque::new(),
            moved: Instant::now(),
            answered: 0,
            sent: 0,
            said: None,
            exited: None,
            gone_at: None,
            oom: false,
            swept: None,
        };
        let fds = Fds {
            stdin: None,
            stdout: Some(stdout),
            stderr: Some(stderr),
            three: Some(three),
            four: Some(four),
        };
        Ok((worker, fds))
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// It has tasks or may get some.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.state, State::Starting(_) | State::Ready)
    }

    /// Frames of tasks that it has not answered wholly.
    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn wants_write(&self) -> bool {
        self.written < self.out.len()
    }

    /// A frame of `tasks` was queued; `last` is the number of the last one.
    pub(super) fn sent_frame(&mut self, tasks: u32, last: u64, now: Instant) {
        if self.hand.open() == tasks {
            self.moved = now;
        }
        self.sent += u64::from(tasks);
        self.frames.push_back(last);
    }

    /// Tasks were answered: `numbers` of them, up to this one at least.
    pub(super) fn has_answered(&mut self, tasks: u32, now: Instant) {
        self.answered += tasks;
        let oldest = self.hand.oldest().unwrap_or(u64::MAX);
        let before = self.frames.len();
        while self.frames.front().is_some_and(|last| *last < oldest) {
            self.frames.pop_front();
        }
        if self.frames.len() < before {
            self.pace.learn(self.answered, now.duration_since(self.moved));
            (self.moved, self.answered) = (now, 0);
        }
    }

    /// The task that runs now, and for how long.
    pub(super) fn runs(&self, now: Instant) -> Option<(u64, Duration)> {
        if let Some((number, began)) = self.cell.read()
            && self.hand.find(number).is_some()
        {
            return Some((number, Duration::from_nanos(monotonic_ns().saturating_sub(began))));
        }
        if let Some((number, since)) = self.said
            && self.hand.find(number).is_some()
        {
            return Some((number, now.duration_since(since)));
        }
        // One task at a time, or a worker that says nothing: the first one, since it was sent or the one before it was answered.
        let number = self.hand.oldest().filter(|_| !self.can.cell)?;
        Some((number, now.duration_since(self.moved)))
    }

    /// Writes what the socket takes. An error is found by the next read.
    pub(super) fn write(&mut self) {
        let Some(socket) = &self.socket else { return self.out.clear() };
        while self.written < self.out.len() {
            match rustix::net::send(
                socket,
                &self.out[self.written..],
                rustix::net::SendFlags::NOSIGNAL,
            ) {
                Ok(count) => self.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        self.out.clear();
        self.written = 0;
    }

    /// Reads what there is from the socket. `false`: there will be no more.
    pub(super) fn read(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        match rustix::io::read(socket, self.decoder.room(CHUNK)) {
            Ok(0) => {}
            Ok(count) => {
                self.decoder.filled(count);
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => {}
        }
        self.socket = None;
        false
    }

    /// What is to be polled of it, with the events that are wanted.
    pub(super) fn fds(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>, bool)> {
        let socket =
            self.socket.as_ref().map(|fd| (Source::Socket, fd.as_fd(), self.wants_write()));
        let streams = self.streams.iter().enumerate().filter_map(|(at, stream)| {
            stream.pipe.as_ref().map(|fd| (Source::Stream(at), fd.as_fd(), false))
        });
        socket.into_iter().chain(streams)
    }
}

/// One of a worker's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Socket,
    Stream(usize),
}

impl Stream {
    /// Reads what there is; `line` gets whole lines. Closes the pipe at its end.
    pub(super) fn read(&mut self, mut line: impl FnMut(Vec<u8>)) {
        let mut chunk = [0; CHUNK];
        let Some(pipe) = &self.pipe else { return };
        match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => self.close(line),
            Ok(count) => self.lines.push(&chunk[..count], line),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.close(&mut line),
        }
    }

    /// Whatever still has the other end is not waited for.
    pub(super) fn close(&mut self, mut line: impl FnMut(Vec<u8>)) {
        self.pipe = None;
        self.lines.end().into_iter().for_each(&mut line);
    }
}

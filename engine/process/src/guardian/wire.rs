//! The frames between runner and guardian as bytes. Both are the same program, so nothing here is for others, and
//! whatever does not fit is a bug, which ends the guardian.
//!
//! Numbers are little endian; strings end with their NUL, so that the guardian can give them to exec where they are.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;

use super::channel::{MOST_BYTES, MOST_FDS};
use super::{Event, Protections, Spawn, SpawnError, Stage, Usage};

const SPAWN: u8 = 1;
const SIGNAL: u8 = 2;
const SWEEP: u8 = 3;
const HELLO: u8 = 4;
const STARTED: u8 = 5;
const NOT_STARTED: u8 = 6;
const EXITED: u8 = 7;
const SWEPT: u8 = 8;
const FAULT: u8 = 9;

/// What the runner asks.
#[derive(Debug)]
pub(super) enum Request<'a> {
    Spawn(Order<'a>),
    Signal { token: u64, signal: i32 },
    Sweep { token: u64 },
}

/// A [`Spawn`] as the guardian sees it.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) token: u64,
    /// Which of the descriptors 0 to 4 come with it.
    pub(super) fds: [bool; MOST_FDS],
    pub(super) nice: i32,
    pub(super) memory: Option<u64>,
    pub(super) address_space: Option<u64>,
    pub(super) cwd: Option<&'a CStr>,
    pub(super) program: &'a CStr,
    /// With the first.
    pub(super) args: Vec<&'a CStr>,
    /// `NAME=value`.
    pub(super) set: Vec<&'a CStr>,
    pub(super) remove: Vec<&'a CStr>,
}

/// What the guardian answers.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Hello {
        protections: Protections,
    },
    Event(Event),
    /// It gives up, and why.
    Fault(String),
}

/// Puts a frame together.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn string(mut self, text: &[u8]) -> Self {
        self.0.extend(text);
        self.0.push(0);
        self
    }

    fn end(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Takes a frame apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Option<&'a CStr> {
        let text = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = &self.0[text.count_bytes() + 1..];
        Some(text)
    }

    fn strings(&mut self, count: u32) -> Option<Vec<&'a CStr>> {
        (0..count).map(|_| self.string()).collect()
    }
}

/// `u64::MAX` stands for no limit.
fn limit(value: Option<u64>) -> [u8; 8] {
    value.unwrap_or(u64::MAX).to_le_bytes()
}

fn from_limit(value: u64) -> Option<u64> {
    (value != u64::MAX).then_some(value)
}

/// The frame of a spawn; which descriptors go with it is `fds`.
pub(super) fn spawn(
    token: u64,
    spawn: &Spawn<'_>,
    fds: [bool; MOST_FDS],
) -> Result<Vec<u8>, SpawnError> {
    let nul = SpawnError::new(Stage::Arguments, Errno::INVAL);
    let plain = |text: &OsStr| !text.as_bytes().contains(&0);
    let name = |name: &OsStr| plain(name) && !name.is_empty() && !name.as_bytes().contains(&b'=');
    if !(plain(spawn.program)
        && spawn.arg0.is_none_or(plain)
        && spawn.args.iter().all(|arg| plain(arg))
        && spawn.cwd.is_none_or(|cwd| plain(cwd.as_os_str()))
        && spawn.env.iter().all(|(n, value)| name(n) && value.is_none_or(plain)))
    {
        return Err(nul);
    }
    let set = spawn.env.iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    let removed = spawn.env.iter().filter(|(_, value)| value.is_none());
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
    let mask = fds.iter().enumerate().fold(0, |mask, (at, &sent)| mask | (u8::from(sent) << at));
    let mut frame = Writer::new(SPAWN)
        .put(token.to_le_bytes())
        .put([mask])
        .put(spawn.nice.to_le_bytes())
        .put(limit(spawn.memory))
        .put(limit(spawn.address_space))
        .put([u8::from(spawn.cwd.is_some())])
        .put(count(spawn.args.len() + 1))
        .put(count(set.clone().count()))
        .put(count(removed.clone().count()))
        .string(spawn.program.as_bytes())
        .string(spawn.arg0.unwrap_or(spawn.program).as_bytes());
    for arg in &spawn.args {
        frame = frame.string(arg.as_bytes());
    }
    for (name, value) in set {
        frame.0.extend(name.as_bytes());
        frame.0.push(b'=');
        frame = frame.string(value.as_bytes());
    }
    for (name, _) in removed {
        frame = frame.string(name.as_bytes());
    }
    if let Some(cwd) = spawn.cwd {
        frame = frame.string(cwd.as_os_str().as_bytes());
    }
    if frame.0.len() > MOST_BYTES {
        return Err(SpawnError::new(Stage::Exec, Errno::TOOBIG));
    }
    Ok(frame.end())
}

pub(super) fn signal(token: u64, signal: i32) -> Vec<u8> {
    Writer::new(SIGNAL).put(token.to_le_bytes()).put(signal.to_le_bytes()).end()
}

pub(super) fn sweep(token: u64) -> Vec<u8> {
    Writer::new(SWEEP).put(token.to_le_bytes()).end()
}

pub(super) fn request(frame: &[u8]) -> Option<Request<'_>> {
    let mut frame = Reader(frame);
    let kind = frame.u8()?;
    let token = frame.u64()?;
    Some(match kind {
        SPAWN => {
            let mask = frame.u8()?;
            let nice = frame.i32()?;
            let memory = from_limit(frame.u64()?);
            let address_space = from_limit(frame.u64()?);
            let has_cwd = frame.u8()? != 0;
            let (args, set, remove) = (frame.u32()?, frame.u32()?, frame.u32()?);
            Request::Spawn(Order {
                token,
                fds: std::array::from_fn(|at| mask & (1 << at) != 0),
                nice,
                memory,
                address_space,
                program: frame.string()?,
                args: frame.strings(args)?,
                set: frame.strings(set)?,
                remove: frame.strings(remove)?,
                cwd: if has_cwd { Some(frame.string()?) } else { None },
            })
        }
        SIGNAL => Request::Signal { token, signal: frame.i32()? },
        SWEEP => Request::Sweep { token },
        _ => return None,
    })
}

fn nanoseconds(time: Duration) -> [u8; 8] {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

pub(super) fn answer(answer: &Answer) -> Vec<u8> {
    match answer {
        Answer::Hello { protections: p } => {
            let bits = [p.subreaper, p.descendants, p.pidfd, p.memory, p.cgroup_kill];
            Writer::new(HELLO).put(bits.map(u8::from)).end()
        }
        Answer::Event(Event::Started { token, pid }) => {
            Writer::new(STARTED).put(token.to_le_bytes()).put(pid.to_le_bytes()).end()
        }
        Answer::Event(Event::NotStarted { token, error }) => Writer::new(NOT_STARTED)
            .put(token.to_le_bytes())
            .put([error.stage as u8])
            .put(error.errno.to_le_bytes())
            .end(),
        Answer::Event(Event::Exited { token, status, usage }) => Writer::new(EXITED)
            .put(token.to_le_bytes())
            .put(status.into_raw().to_le_bytes())
            .put(nanoseconds(usage.user))
            .put(nanoseconds(usage.system))
            .put(usage.max_rss.to_le_bytes())
            .put([u8::from(usage.oom_killed)])
            .end(),
        Answer::Event(Event::Swept { token, survivors }) => {
            let mut frame = Writer::new(SWEPT).put(token.to_le_bytes());
            for pid in survivors {
                frame = frame.put(pid.to_le_bytes());
            }
            frame.end()
        }
        Answer::Fault(text) => {
            let mut frame = Writer::new(FAULT);
            frame.0.extend(text.as_bytes());
            frame.end()
        }
    }
}

pub(super) fn read_answer(frame: &[u8]) -> Option<Answer> {
    let mut frame = Reader(frame);
    let event = match frame.u8()? {
        HELLO => {
            let [subreaper, descendants, pidfd, memory, cgroup_kill] =
                frame.take::<5>()?.map(|bit| bit != 0);
            let protections = Protections { subreaper, descendants, pidfd, memory, cgroup_kill };
            return Some(Answer::Hello { protections });
        }
        FAULT => return Some(Answer::Fault(String::from_utf8_lossy(frame.0).into_owned())),
        STARTED => Event::Started { token: frame.u64()?, pid: frame.u32()? },
        NOT_STARTED => Event::NotStarted {
            token: frame.u64()?,
            error: SpawnError {
                stage: *Stage::ALL.get(usize::from(frame.u8()?))?,
                errno: frame.i32()?,
            },
        },
        EXITED => Event::Exited {
            token: frame.u64()?,
            status: ExitStatus::from_raw(frame.i32()?),
            usage: Usage {
                user: Duration::from_nanos(frame.u64()?),
                system: Duration::from_nanos(frame.u64()?),
                max_rss: frame.u64()?,
                oom_killed: frame.u8()? != 0,
            },
        },
        SWEPT => {
            let token = frame.u64()?;
            let mut survivors = Vec::new();
            while !frame.0.is_empty() {
                survivors.push(frame.u32()?);
            }
            Event::Swept { token, survivors }
        }
        _ => return None,
    };
    Some(Answer::Event(event))
}

//! What the guardian is asked to start, and why it could not.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The descriptors 0 to 4 of a new process. What is `None` is `/dev/null` for 0, 1 and 2, and closed for 3 and 4.
/// Nothing else is open in it.
#[derive(Debug, Default)]
pub struct Fds {
    /// Descriptor 0.
    pub stdin: Option<OwnedFd>,
    /// Descriptor 1.
    pub stdout: Option<OwnedFd>,
    /// Descriptor 2.
    pub stderr: Option<OwnedFd>,
    /// Descriptor 3, the channel of a worker.
    pub three: Option<OwnedFd>,
    /// Descriptor 4, the cell of a worker.
    pub four: Option<OwnedFd>,
}

impl Fds {
    /// By number.
    pub(super) fn into_array(self) -> [Option<OwnedFd>; 5] {
        [self.stdin, self.stdout, self.stderr, self.three, self.four]
    }
}

/// A process to start: leader of a group of its own, all signals as they are by default, no core dumps, killed with
/// the guardian.
///
/// Its environment is that of the program when the guardian started, with the changes, and with `BGRP_TOKEN`, the
/// mark by which whatever it starts is found again.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// What to execute: a path if it holds a slash (after `cwd`, if it is a relative one), else looked for in the
    /// `PATH` that the process gets. Never through a shell.
    pub program: &'a OsStr,
    /// Its first argument, where that is not to be `program`.
    pub arg0: Option<&'a OsStr>,
    /// The arguments that follow.
    pub args: Vec<&'a OsStr>,
    /// Variables to set, or with `None` to remove.
    pub env: Vec<(&'a OsStr, Option<&'a OsStr>)>,
    /// Where it starts; the directory of the program when the guardian started if `None`.
    pub cwd: Option<&'a Path>,
    /// Its descriptors. Ours are closed as soon as they are on their way.
    pub fds: Fds,
    /// Added to the niceness.
    pub nice: i32,
    /// The most memory, in bytes, that it and all it starts may use together: `memory.max` of a cgroup of its own,
    /// which the system kills as a whole when it goes over. Without effect where
    /// [`Protections::memory`](super::Protections::memory) is not.
    pub memory: Option<u64>,
    /// The largest address space, in bytes, of each of its processes (`RLIMIT_AS`). Programs fail in odd ways at
    /// this limit, so only on request.
    pub address_space: Option<u64>,
}

impl<'a> Spawn<'a> {
    /// `program` without arguments, everything else as it is by default.
    #[must_use]
    pub fn new(program: &'a OsStr) -> Self {
        Self {
            program,
            arg0: None,
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            fds: Fds::default(),
            nice: 0,
            memory: None,
            address_space: None,
        }
    }
}

/// Where on the way to a new process it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing was tried: an argument, a name or a value holds a NUL byte, or there are too many bytes.
    Arguments,
    /// The descriptors did not reach the guardian.
    Transfer,
    /// No process could be made.
    Fork,
    /// The group, the descriptors or the cgroup of the new process.
    Prepare,
    /// The working directory.
    Chdir,
    /// Niceness or limits.
    Limit,
    /// The program itself.
    Exec,
}

impl Stage {
    pub(super) const ALL: [Self; 7] = [
        Self::Arguments,
        Self::Transfer,
        Self::Fork,
        Self::Prepare,
        Self::Chdir,
        Self::Limit,
        Self::Exec,
    ];
}

/// Why a process did not start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpawnError {
    /// Where it failed.
    pub stage: Stage,
    /// What the system answered.
    pub errno: i32,
}

impl SpawnError {
    pub(crate) fn new(stage: Stage, errno: rustix::io::Errno) -> Self {
        Self { stage, errno: errno.raw_os_error() }
    }

    /// Whether the same can succeed later, because the system was short of something: processes, memory or
    /// descriptors. All else is final.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        use rustix::io::Errno;
        [
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::MFILE,
            Errno::NFILE,
            Errno::TOOMANYREFS,
            Errno::NOBUFS,
            // A program that is being written just now; fork and exec of a large parent at the limit.
            Errno::TXTBSY,
        ]
        .iter()
        .any(|errno| errno.raw_os_error() == self.errno)
    }

    /// The answer of the system as an error of the standard library.
    #[must_use]
    pub fn io(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.stage {
            Stage::Arguments if self.errno == rustix::io::Errno::INVAL.raw_os_error() => {
                return f.write_str(
                    "an argument or a variable holds a NUL byte, which no program can be given",
                );
            }
            Stage::Arguments => "the arguments cannot be given to a program",
            Stage::Transfer => "its descriptors could not be handed over",
            Stage::Fork => "no process could be made for it",
            Stage::Prepare => "its process could not be prepared",
            Stage::Chdir => "its working directory could not be entered",
            Stage::Limit => "its niceness or limits could not be set",
            Stage::Exec => "the program could not be executed",
        };
        write!(f, "{what}: {}", self.io())
    }
}

impl fmt::Debug for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.stage, self.io())
    }
}

impl std::error::Error for SpawnError {}

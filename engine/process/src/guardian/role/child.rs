//! From an order to a running program.
//!
//! The new process shares the guardian's memory, and the guardian stands still, until exec or exit (as `vfork` does):
//! no page table is copied, and what failed is left in memory instead of being sent through a pipe. On the way there
//! only system calls are made, on a stack of its own.
//!
//! | step | stage it fails with |
//! |---|---|
//! | clone | Fork |
//! | group, death signal, cgroup, descriptors | Prepare |
//! | niceness, address space | Limit |
//! | working directory | Chdir |
//! | signal mask, exec by each place of `PATH` | Exec |

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::cgroup::{Cgroup, Cgroups};
use super::env::BaseEnv;
use crate::guardian::channel::MOST_FDS;
use crate::guardian::wire::Order;
use crate::guardian::{SpawnError, Stage, TOKEN};

/// Enough for what the child does before exec, also with the vector registers of large machines.
const STACK: usize = 64 << 10;

/// Starts processes.
pub(super) struct Spawner {
    stack: Vec<u128>,
    own: c_int,
}

/// All that the child needs, as it is given to system calls.
struct Plan {
    own: c_int,
    fds: [RawFd; MOST_FDS],
    cgroup: RawFd,
    nice: i32,
    address_space: Option<u64>,
    cwd: *const c_char,
    paths: *const *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    failed: Option<(Stage, c_int)>,
}

impl Spawner {
    pub(super) fn new() -> Self {
        Self {
            stack: vec![0; STACK / size_of::<u128>()],
            own: rustix::process::getpid().as_raw_nonzero().get(),
        }
    }

    /// Starts the program of an order, with the descriptors that came with it.
    pub(super) fn spawn(
        &mut self,
        order: &Order<'_>,
        fds: Vec<OwnedFd>,
        run: &str,
        base: &BaseEnv,
        cgroups: Option<&Cgroups>,
    ) -> Result<(Pid, Option<Cgroup>), SpawnError> {
        if fds.len() != order.fds.iter().filter(|&&sent| sent).count() {
            return Err(SpawnError::new(Stage::Transfer, Errno::MFILE));
        }
        let mut numbers = fds.iter().map(AsRawFd::as_raw_fd);
        let fds_by_number =
            order.fds.map(|sent| if sent { numbers.next().unwrap_or(-1) } else { -1 });
        let cgroup = match (order.memory, cgroups) {
            (Some(most), Some(cgroups)) => {
                Some(cgroups.make(order.token, most).map_err(|error| prepare(&error))?)
            }
            _ => None,
        };
        let join = match &cgroup {
            Some(cgroup) => Some(cgroup.door().map_err(|error| prepare(&error))?),
            None => None,
        };
        // A number has no NUL in it, and the run's name neither.
        let mark = CString::new(format!("{TOKEN}={run}-{}", order.token)).unwrap_or_default();
        let env = base.with(&order.set, &order.remove, &mark);
        let paths = places(order.program, base.path(&order.set, &order.remove));
        let list = |strings: &mut dyn Iterator<Item = *const c_char>| -> Vec<*const c_char> {
            strings.chain(std::iter::once(std::ptr::null())).collect()
        };
        let path_list = list(&mut paths.iter().map(|path| path.as_ptr()));
        let args = list(&mut order.args.iter().map(|arg| arg.as_ptr()));
        let mut plan = Plan {
            own: self.own,
            fds: fds_by_number,
            cgroup: join.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            nice: order.nice,
            address_space: order.address_space,
            cwd: order.cwd.map_or(std::ptr::null(), CStr::as_ptr),
            paths: path_list.as_ptr(),
            args: args.as_ptr(),
            env: env.pointers.as_ptr(),
            failed: None,
        };
        let started = self.clone_child(&mut plan);
        if let (Ok(pid), Some(_)) = (started, plan.failed) {
            // It has ended already, or does just now. Then nobody is in its cgroup, which is dropped.
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
        match (started, plan.failed) {
            (Err(errno), _) => Err(SpawnError::new(Stage::Fork, errno)),
            (Ok(_), Some((stage, errno))) => Err(SpawnError { stage, errno }),
            (Ok(pid), None) => Ok((pid, cgroup)),
        }
    }

    fn clone_child(&mut self, plan: &mut Plan) -> Result<Pid, Errno> {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let top = self.stack.as_mut_ptr_range().end.cast::<c_void>();
        // SAFETY: the child runs `child` on a stack that nobody else uses, with a plan that outlives it: this thread
        // stands still until the child has executed a program or ended. Nothing else runs in this process. The end of
        // the stack is aligned to 16 bytes, as it grows down from there. By libc, because rustix has no clone.
        let pid = unsafe { libc::clone(child, top, flags, std::ptr::from_mut(plan).cast()) };
        // Only a number of a process may be asked for one; -1 is the failure.
        if pid < 0 { None } else { Pid::from_raw(pid) }.ok_or_else(|| {
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN)
        })
    }
}

fn prepare(error: &std::io::Error) -> SpawnError {
    SpawnError { stage: Stage::Prepare, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// Where a program may be: itself, or in each place of `path`.
fn places(program: &CStr, path: &[u8]) -> Vec<CString> {
    let name = program.to_bytes();
    if name.contains(&b'/') || name.is_empty() {
        return vec![program.to_owned()];
    }
    path.split(|&byte| byte == b':')
        .filter_map(|place| {
            // An empty one is the working directory.
            let place = if place.is_empty() { b"." } else { place };
            CString::new([place, b"/", name].concat()).ok()
        })
        .collect()
}

/// The last error of a call of the C library.
fn errno() -> c_int {
    // SAFETY: the C library's own place for it. The child shares it with the guardian, which stands still.
    unsafe { *libc::__errno_location() }
}

/// The child's way to exec. System calls only: nothing is allocated, locked or dropped.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: the plan of `clone_child`, whose frame waits for us.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    // SAFETY: pointers in the plan are to strings, and lists of them that end with null, which outlive this process's
    // use of the memory; descriptors are open and higher than those that they are put on (I5 of the module above).
    plan.failed = Some(unsafe { become_program(plan) });
    // SAFETY: ends this process only, without any handler.
    unsafe { libc::_exit(127) }
}

unsafe fn become_program(plan: &Plan) -> (Stage, c_int) {
    // SAFETY: see the caller; each call is given what its manual page asks for.
    unsafe {
        if libc::setpgid(0, 0) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0
        {
            return (Stage::Prepare, errno());
        }
        // Killed before the signal was asked for.
        if libc::getppid() != plan.own {
            return (Stage::Prepare, libc::ESRCH);
        }
        if plan.cgroup >= 0 && libc::write(plan.cgroup, c"0".as_ptr().cast(), 1) != 1 {
            return (Stage::Prepare, errno());
        }
        for (number, &fd) in (0..).zip(&plan.fds) {
            if fd >= 0 && libc::dup2(fd, number) < 0 {
                return (Stage::Prepare, errno());
            }
        }
        if plan.nice != 0 {
            // By getpriority and setpriority: `nice` cannot tell -1 from an error.
            let now = libc::getpriority(libc::PRIO_PROCESS, 0);
            if libc::setpriority(libc::PRIO_PROCESS, 0, now + plan.nice) != 0 {
                return (Stage::Limit, errno());
            }
        }
        if let Some(most) = plan.address_space {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            if libc::setrlimit(libc::RLIMIT_AS, &limit) != 0 {
                return (Stage::Limit, errno());
            }
        }
        if !plan.cwd.is_null() && libc::chdir(plan.cwd) != 0 {
            return (Stage::Chdir, errno());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        (Stage::Exec, execute(plan))
    }
}

/// Tries each place, as `execvp` does; only returns if none has the program. One that may not be executed counts if
/// no other is found.
unsafe fn execute(plan: &Plan) -> c_int {
    let mut answer = libc::ENOENT;
    let mut at = plan.paths;
    // SAFETY: see `child`.
    unsafe {
        while !(*at).is_null() {
            libc::execve(*at, plan.args, plan.env);
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => answer = libc::EACCES,
                // Also a place on a network that is away just now.
                error @ (libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT) => answer = error,
                error => return error,
            }
            at = at.add(1);
        }
    }
    answer
}

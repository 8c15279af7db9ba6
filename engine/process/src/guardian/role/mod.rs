//! The guardian's own side: a process with one thread and some 2 MB, which never sees the program's `main`.
//!
//! ```text
//! constructor ─> setup ─> serve: poll(socket, SIGCHLD, runner, time of the next sweep)
//!                           │       requests ─> child.rs: clone, exec      exits ─> answers
//!                           └─ the runner is gone ─> end.rs: kill and reap until there is no child ─> _exit
//! ```
//!
//! I1: it is the only parent, and reaps in the same thread that signals. A leader is in the table from its start
//! until it is reaped, and only groups in the table are signalled by number; so a number is never another's.
//!
//! I2: it is the subreaper: every descendant's line of parents leads to it. So "no child is left" proves that no
//! descendant is.
//!
//! I3: it never blocks on the runner: answers wait in memory, and while there are too many, no request is read.
//!
//! I4: all its signals are blocked, and have their default action, which is what its children start with; their mask
//! is emptied.
//!
//! I5: its descriptors 0 to 4 are `/dev/null`; all others are closed on exec. So a child has what it was sent.

mod cgroup;
mod child;
mod end;
mod env;
mod serve;
mod setup;
mod sweep;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::wire::Answer;
use super::{GUARDIAN, ROLE};

/// Runs before `main` of every program that links this library. The library is linked for its other parts, so this
/// is a look at one variable.
#[ctor::ctor(unsafe)]
fn constructor() {
    enter();
}

/// Becomes the guardian, if that is what this process was executed for; returns if not.
pub(super) fn enter() {
    // Before anything else is touched: the variable as the system gave it.
    if std::env::var_os(ROLE).is_none_or(|role| role != GUARDIAN) {
        return;
    }
    let code = match catch_unwind(AssertUnwindSafe(guard)) {
        Ok(code) => code,
        // Said by the hook, as far as it can be said. What was started is not left alone.
        Err(_) => {
            end::kill_everything(super::tree::Tree::new());
            70
        }
    };
    // SAFETY: ends the process; handlers of the program that expect its main to have run are left out.
    unsafe { libc::_exit(code) }
}

/// The life of the guardian; answers its exit code.
fn guard() -> i32 {
    let setup = match setup::take_over() {
        Ok(setup) => setup,
        Err(text) => {
            // Standard error is where somebody sees it who set the variable by hand.
            eprintln!("{ROLE}={GUARDIAN} is how this program starts a part of itself: {text}");
            return 71;
        }
    };
    let mut server = serve::Server::new(setup);
    let ended = catch_unwind(AssertUnwindSafe(|| server.serve()));
    if let Err(panic) = &ended {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic");
        server.say(&Answer::Fault(text.to_owned()));
    }
    server.end();
    i32::from(ended.is_err()) * 70
}

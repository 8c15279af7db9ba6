//! How other threads wake the reactor, which sleeps in `poll`: one write for however many calls before it looks.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::event::{EventfdFlags, eventfd};

/// See the module text.
#[derive(Debug)]
pub(super) struct Wake {
    fd: OwnedFd,
    called: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, called: AtomicBool::new(false) })
    }

    /// The reactor looks again, some time after this. What the caller did before, it sees then.
    pub(super) fn call(&self) {
        // ORDERING: AcqRel; the Release half pairs with `hear`. Who finds it set relies on the one who set it: the reactor clears it
        // before it looks, so it looks after this read.
        if !self.called.swap(true, Ordering::AcqRel) {
            // Full: then it is readable, which is all that is wanted.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Reactor, awake, before it looks. `readable`: `poll` says so. (A call that was heard may write after that.)
    pub(super) fn hear(&self, readable: bool) {
        if readable || self.called.load(Ordering::Relaxed) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            // ORDERING: AcqRel; the Acquire half pairs with `call`. After the read: a call in between writes again.
            self.called.swap(false, Ordering::AcqRel);
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn no_call_is_lost() {
        let wake = Arc::new(Wake::new().expect("a descriptor"));
        let said = Arc::new(Mutex::new(0u32));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (wake, said) = (wake.clone(), said.clone());
                std::thread::spawn(move || {
                    for _ in 0..2_000 {
                        *said.lock().expect("no panic") += 1;
                        wake.call();
                    }
                })
            })
            .collect();
        let mut heard = 0;
        while heard < 8_000 {
            let mut fds = [PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)];
            poll(&mut fds, None).expect("poll");
            wake.hear(true);
            heard = *said.lock().expect("no panic");
        }
        callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
    }
}

//! The memory of workers, where the system offers no limit for it: looked at now and then, and a worker that has too much is ended.
//!
//! Only the worker itself is counted, not what it starts, and what it takes between two looks is seen late. A cgroup does both
//! ([`Protections::memory`](crate::guardian::Protections)).

use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// When memory is looked at.
#[derive(Debug)]
pub(super) struct Looks {
    /// The limit, if it is to be watched from here.
    limit: Option<u64>,
    next: Instant,
}

impl Looks {
    /// Watches this limit, unless the system does.
    pub(super) fn new(limit: Option<u64>, system: bool, now: Instant) -> Self {
        Self { limit: limit.filter(|_| !system), next: now }
    }

    /// The limit, if it is time to look; and when it is again.
    pub(super) fn due(&mut self, now: Instant) -> (Option<u64>, Option<Instant>) {
        let Some(limit) = self.limit else { return (None, None) };
        if now < self.next {
            return (None, Some(self.next));
        }
        self.next = now + LOOK;
        (Some(limit), Some(self.next))
    }
}

/// What this process holds in memory, in bytes; `None`: it is gone, or nothing tells.
pub(super) fn resident(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_some() {
        let held = resident(std::process::id()).expect("it runs");
        assert!(held > 100_000, "{held}");
        assert_eq!(resident(u32::MAX), None);
    }

    #[test]
    fn it_is_looked_at_now_and_then_where_the_system_does_not() {
        let now = Instant::now();
        assert_eq!(Looks::new(Some(5), true, now).due(now), (None, None));
        assert_eq!(Looks::new(None, false, now).due(now), (None, None));
        let mut looks = Looks::new(Some(5), false, now);
        assert_eq!(looks.due(now), (Some(5), Some(now + LOOK)));
        assert_eq!(looks.due(now), (None, Some(now + LOOK)));
        assert_eq!(looks.due(now + LOOK), (Some(5), Some(now + 2 * LOOK)));
    }
}

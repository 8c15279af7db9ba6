//! Tickets: each tells once what happened to its task, to whoever asks and whoever awaits it.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    time::Duration,
};

use bgrp::{Ended, Ticket, WaitError};

use super::{End, Oracle, Script};

/// Numbers of the tickets whose wakers were called.
pub(super) type Woken = Arc<Mutex<BTreeSet<u32>>>;

struct Waiter(u32, Woken);

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic under it").insert(self.0);
    }
}

fn same(ended: &Ended, end: End) -> bool {
    match (ended, end) {
        (Ended::Done, End::Done) | (Ended::GivenBack, End::GivenBack) => true,
        (Ended::Failed { attempts, .. }, End::Failed(n)) => *attempts == n,
        _ => false,
    }
}

impl Oracle {
    /// The ticket of a task that was accepted; `polled`: somebody awaits it.
    pub(in super::super) fn ticket(&mut self, id: u32, mut ticket: Ticket, polled: bool) {
        if polled {
            assert!(!poll(&mut ticket, id, &self.woken), "task {id} is over before it ran");
        }
        self.tickets.push((id, polled, ticket));
    }

    /// Each ticket says what has become of its task. `exactly`: what was answered is settled.
    pub(in super::super) fn check_tickets(&mut self, exactly: bool) {
        for (id, polled, ticket) in &mut self.tickets {
            let (told, end) = (ticket.ended(), self.ends.get(id).copied());
            match (&told, end) {
                (None, None) => {}
                (None, Some(_)) => assert!(!exactly, "task {id}: {end:?}, its ticket is silent"),
                (Some(_), None) => {
                    panic!("task {id}: its ticket says {told:?}, and it is not over")
                }
                (Some(ended), Some(end)) => assert!(same(ended, end), "{id}: {ended:?}, {end:?}"),
            }
            assert_eq!(ticket.is_over(), told.is_some(), "ticket {id}");
            let mut woken = self.woken.lock().expect("no panic under it");
            if *polled && told.is_some() {
                assert!(woken.contains(id), "nobody woke who awaits task {id}");
            } else if *polled && woken.remove(id) {
                // Something around it has changed, and it looks again, as an executor does.
                drop(woken);
                assert!(!poll(ticket, *id, &self.woken), "task {id} is not over");
            }
        }
    }

    /// A thread that is no worker waits, and has no time.
    pub(in super::super) fn wait_outside(&self, nth: usize) {
        let Some((id, _, ticket)) = self.tickets.get(nth % self.tickets.len().max(1)) else {
            return;
        };
        match ticket.wait_timeout(Duration::ZERO) {
            Ok(ended) => assert!(self.ends.get(id).is_some_and(|end| same(&ended, *end))),
            Err(refused) => assert_eq!(refused, WaitError::TimedOut(Duration::ZERO), "task {id}"),
        }
    }

    /// The handler of a task waits for the ticket of another. On workers that are stepped by hand every such wait is refused:
    /// for its own group, for one that stands, and because no worker is left.
    pub(in super::super) fn wait_inside(&self, key: u8, script: &Script) {
        let nth = script.id.wrapping_mul(7) as usize;
        let Some((id, _, ticket)) = self.tickets.get(nth % self.tickets.len().max(1)) else {
            return;
        };
        let of = |(_, group): &(&u8, &super::Group)| {
            group.queue.iter().any(|task| task.script.id == *id)
        };
        let home = self.groups.iter().find(of);
        let told = ticket.wait_timeout(Duration::ZERO);
        let Some((home, group)) = home else {
            let right = told.as_ref().is_ok_and(|ended| same(ended, self.ends[id]));
            assert!(right, "task {id} is over, and its ticket says {told:?}");
            return;
        };
        let refused = told.expect_err("a task that is not over");
        match &refused {
            WaitError::Cycle(_) => {
                assert_eq!(*home, key, "no cycle: {refused}");
                assert_eq!(refused.keys(), [key.to_string()], "{refused}");
            }
            WaitError::GroupHalted { key: named } => {
                assert!(*home != key && group.stands(), "{refused}");
                assert_eq!(*named, home.to_string());
            }
            WaitError::AllWorkersWait(_) => assert_ne!(*home, key, "{refused}"),
            other => panic!("{other}"),
        }
    }
}

/// One poll of a ticket that somebody awaits; `true`: it is over.
fn poll(ticket: &mut Ticket, id: u32, woken: &Woken) -> bool {
    let waker = Waker::from(Arc::new(Waiter(id, woken.clone())));
    Pin::new(ticket).poll(&mut Context::from_waker(&waker)).is_ready()
}

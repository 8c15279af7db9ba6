//! actix: an actor for each key, spread over one arbiter (a thread) for each worker, `try_send` into a mailbox bounded at
//! [`BOUND`] messages. An actor stays with its arbiter, so a key whose task blocks holds up every key of that arbiter.

use std::{sync::Arc, time::Duration};

use ::actix::{Actor, Addr, Arbiter, Context, Handler, Message, dev::SendError};

use super::{
    System,
    done::{Done, Kept, Opened, tasks},
};
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::KeyState,
    workload::{Stream, Work, Workload},
};

/// Messages that wait in a mailbox before the producer has to try again.
pub const BOUND: usize = 1_024;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct ActorPerKey;

struct Key {
    state: KeyState,
    work: Work,
    done: Arc<Done>,
}

struct Run(u32);

impl Message for Run {
    type Result = ();
}

impl Actor for Key {
    type Context = Context<Self>;
}

impl Handler<Run> for Key {
    type Result = ();

    fn handle(&mut self, Run(number): Run, _context: &mut Context<Self>) {
        self.state.run(number, self.work);
        self.done.add(1);
    }
}

fn send(actor: &Addr<Key>, number: u32) {
    let mut message = Run(number);
    loop {
        match actor.try_send(message) {
            Ok(()) => return,
            // There is no blocking send; by the end of the nap the actor is still far from idle.
            Err(SendError::Full(back)) => message = back,
            Err(SendError::Closed(_)) => panic!("an actor ended early"),
        }
        std::thread::sleep(Duration::from_micros(1));
    }
}

fn run(workload: &Workload, streams: &[Stream]) -> Timed {
    // Arbiters belong to the system of their thread; it has nothing to run itself.
    let _system = ::actix::System::new();
    let arbiters: Vec<Arbiter> = (0..workload.workers).map(|_| Arbiter::new()).collect();
    let handles: Vec<_> = arbiters.iter().map(Arbiter::handle).collect();
    let (done, kept) = (Arc::new(Done::default()), Kept::default());
    let timed = timed(|| {
        each_producer(streams, |stream| {
            let mut actors = Opened::new(workload.keys);
            for item in &stream.0 {
                let actor = actors.of(item.key, || {
                    let (work, done) = (workload.work, done.clone());
                    let arbiter = &handles[item.key as usize % handles.len()];
                    Key::start_in_arbiter(arbiter, move |context| {
                        context.set_mailbox_capacity(BOUND);
                        Key { state: KeyState::default(), work, done }
                    })
                });
                send(actor, item.number);
            }
            kept.keep(actors);
        });
        done.wait(tasks(streams));
    });
    drop(kept);
    // An arbiter drops its actors, and with them the states, when it ends.
    for arbiter in arbiters {
        arbiter.stop();
        arbiter.join().expect("an arbiter does not panic");
    }
    timed
}

impl System for ActorPerKey {
    fn name(&self) -> &'static str {
        "actix"
    }

    fn isolates(&self) -> bool {
        false
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        // On a thread of its own: the system stays registered with the thread that made it.
        std::thread::scope(|scope| {
            scope.spawn(|| run(workload, streams)).join().expect("the run does not panic")
        })
    }
}

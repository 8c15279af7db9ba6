//! kameo: an actor for each key, `tell` into a mailbox bounded at [`BOUND`] messages.

use std::sync::Arc;

use ::kameo::{
    actor::{Actor, ActorRef, Spawn},
    error::{Infallible, SendError},
    mailbox,
    message::{Context, Message},
};

use super::{
    System,
    done::{Done, Kept, Opened, tasks},
    tokio::runtime,
};
use crate::{
    measure::{Timed, each_producer, timed},
    oracle::KeyState,
    workload::{Stream, Work, Workload},
};

/// Messages that wait in a mailbox before the producer blocks.
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

impl Actor for Key {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(key: Self, _own: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(key)
    }
}

impl Message<Run> for Key {
    type Reply = ();

    async fn handle(&mut self, Run(number): Run, _context: &mut Context<Self, ()>) {
        self.state.run(number, self.work);
        self.done.add(1);
    }
}

impl System for ActorPerKey {
    fn name(&self) -> &'static str {
        "kameo"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let runtime = runtime(workload);
        let (done, kept) = (Arc::new(Done::default()), Kept::default());
        let timed = timed(|| {
            each_producer(streams, |stream| {
                let _inside = runtime.enter();
                let mut actors = Opened::new(workload.keys);
                for item in &stream.0 {
                    let actor: &ActorRef<Key> = actors.of(item.key, || {
                        let key = Key {
                            state: KeyState::default(),
                            work: workload.work,
                            done: done.clone(),
                        };
                        Key::spawn_with_mailbox(key, mailbox::bounded(BOUND))
                    });
                    match actor.tell(Run(item.number)).try_send() {
                        Ok(()) => {}
                        Err(SendError::MailboxFull(run)) => {
                            actor.tell(run).blocking_send().expect("the actor lives");
                        }
                        Err(error) => panic!("an actor ended early: {error}"),
                    }
                }
                kept.keep(actors);
            });
            done.wait(tasks(streams));
        });
        drop(kept);
        // Joins the threads and drops the actors, and with them the states.
        drop(runtime);
        timed
    }
}

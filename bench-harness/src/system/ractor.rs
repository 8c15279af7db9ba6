//! ractor: an actor for each key, `send_message`. Its mailboxes have no bound; the window of
//! [`super::done::WINDOW`] tasks under way stands in for it.

use std::sync::Arc;

use ::ractor::{Actor, ActorProcessingErr, ActorRef, ActorRuntime};

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

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct ActorPerKey;

struct Key {
    work: Work,
    done: Arc<Done>,
}

impl Actor for Key {
    type Msg = u32;
    type State = KeyState;
    type Arguments = ();

    async fn pre_start(&self, _own: ActorRef<u32>, (): ()) -> Result<KeyState, ActorProcessingErr> {
        Ok(KeyState::default())
    }

    async fn handle(
        &self,
        _own: ActorRef<u32>,
        number: u32,
        state: &mut KeyState,
    ) -> Result<(), ActorProcessingErr> {
        state.run(number, self.work);
        self.done.add(1);
        Ok(())
    }
}

impl System for ActorPerKey {
    fn name(&self) -> &'static str {
        "ractor"
    }

    fn run(&self, workload: &Workload, streams: &[Stream]) -> Timed {
        let runtime = runtime(workload);
        let (done, kept) = (Arc::new(Done::default()), Kept::default());
        let timed = timed(|| {
            each_producer(streams, |stream| {
                let _inside = runtime.enter();
                let mut actors = Opened::new(workload.keys);
                done.within_window(stream, |item| {
                    let actor: &ActorRef<u32> = actors.of(item.key, || {
                        let key = Key { work: workload.work, done: done.clone() };
                        // Does not wait for the start: messages queue until then.
                        ActorRuntime::spawn_instant(None, key, ()).expect("no name is taken").0
                    });
                    actor.send_message(item.number).expect("the actor lives");
                });
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

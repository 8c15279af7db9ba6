//! Row E2, from inside: tasks that submit into their own engine, own it, or own a handle of it, lose and double nothing.

mod common;

use std::{
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use bgrp::{Engine, GroupHandle, Retry, Workers};
use common::{Count, Counted, LONG, Latch, MS, Tally, lock, scale, watch, watchdog};

#[test]
fn a_handler_may_submit_into_its_own_engine() {
    /// Spawns two children down to depth 0.
    struct Spawn(u32);
    let engine: Arc<OnceLock<Engine<u64, Spawn>>> = Arc::default();
    let inner = Arc::downgrade(&engine);
    let ran = Arc::new(AtomicU64::new(0));
    let count = ran.clone();
    let built = Engine::builder()
        .workers(Workers::fixed(3))
        .capacity(1 << 12)
        .task_handler(move |_, task: &mut bgrp::Task<'_, u64, Spawn>| {
            count.fetch_add(1, SeqCst);
            let Some(engine) = inner.upgrade() else { return };
            let engine = engine.get().expect("set before the first submit");
            if task.0 > 0 {
                for child in 1..=2 {
                    engine
                        .submit(task.key() * 2 + child, Spawn(task.0 - 1))
                        .expect("open, with room");
                }
            }
        })
        .build()
        .expect("valid settings");
    assert!(engine.set(built).is_ok());
    let _watch = watchdog("spawn", String::new);
    let engine = engine.get().expect("just set");
    engine.submit(0, Spawn(9)).expect("open");
    // Drained means: the children too, since each is accepted before its parent ends.
    assert!(engine.wait_drain(LONG));
    assert_eq!(ran.load(SeqCst), 1023);
    assert_eq!(engine.close(LONG).done, 1023);
}

#[test]
fn the_last_owner_of_the_engine_may_be_dropped_inside_a_task() {
    struct Owns(Counted, #[allow(dead_code)] Mutex<Option<Arc<Engine<u64, Owns>>>>, Arc<Count>);
    impl Drop for Owns {
        fn drop(&mut self) {
            self.2.add(1);
        }
    }
    for workers in [1, 3] {
        for round in 0..scale(30, 200) {
            let tally = Tally::new(200);
            let dropped = Count::new();
            let go = Latch::new();
            let gate = go.clone();
            let engine = Engine::<u64, Owns>::builder()
                .workers(Workers::fixed(workers))
                .retry(Retry::fixed(MS).attempts(2))
                .task_handler(move |_, task| {
                    gate.wait();
                    task.0.run();
                    // The owner goes here, in the middle of the handler.
                    drop(lock(&task.1).take());
                    if task.attempt() == 1 && task.0.id % 50 == 3 {
                        Err("once more")
                    } else {
                        Ok(())
                    }
                })
                .build()
                .expect("valid settings");
            let engine = Arc::new(engine);
            let _watch = watchdog("last owner", String::new);
            for id in 0..200usize {
                let owner = (id as u64 == round % 200).then(|| engine.clone());
                let task = Owns(tally.task(id), Mutex::new(owner), dropped.clone());
                assert!(engine.submit(id as u64 % 7, task).is_ok());
            }
            drop(engine);
            go.open();
            dropped.wait_for(200);
            // The last task is dropped; its `Counted` goes an instant later.
            while (0..200).any(|id| tally.drops[id].load(SeqCst) == 0) {
                thread::yield_now();
            }
            tally.all_dropped_once();
            assert!((0..200).all(|id| tally.runs(id) == 1 + u32::from(id % 50 == 3)));
        }
    }
}

#[test]
fn a_task_whose_drop_submits_loses_nothing() {
    /// Submits its successor when it is dropped.
    struct Chain {
        left: u32,
        engine: Weak<Engine<u64, Chain>>,
        ran: Arc<AtomicU32>,
    }
    impl Drop for Chain {
        fn drop(&mut self) {
            let Some(engine) = self.engine.upgrade() else { return };
            if self.left > 0 {
                let (left, ran) = (self.left - 1, self.ran.clone());
                let next = Chain { left, engine: self.engine.clone(), ran };
                if let Err(mut error) = engine.try_submit(u64::from(left % 5), next) {
                    error.task.left = 0;
                }
            }
        }
    }
    for batched in [false, true] {
        let ran = Arc::new(AtomicU32::new(0));
        let builder = Engine::<u64, Chain>::builder().workers(Workers::fixed(2));
        let configured = if batched {
            builder.handler(|(), batch| {
                batch.iter().for_each(|task| {
                    task.ran.fetch_add(1, SeqCst);
                });
            })
        } else {
            builder.task_handler(|(), task| {
                task.ran.fetch_add(1, SeqCst);
            })
        };
        let engine = Arc::new(configured.build().expect("valid settings"));
        let _watch = watch("drop submits", &engine);
        for key in 0..4 {
            let task = Chain { left: 500, engine: Arc::downgrade(&engine), ran: ran.clone() };
            assert!(engine.submit(key, task).is_ok());
        }
        assert!(engine.wait_drain(LONG));
        assert_eq!(ran.load(SeqCst), 4 * 501);
        assert_eq!(engine.close(LONG).done, 4 * 501);
    }
}

#[test]
fn a_task_may_own_a_handle_to_its_own_group() {
    struct Holds(#[allow(dead_code)] Option<GroupHandle<u64, Holds>>, Counted);
    let tally = Tally::new(100);
    let engine = Engine::<u64, Holds>::builder()
        .workers(Workers::fixed(2))
        .idle_groups(0)
        .task_handler(|_, task| task.1.run())
        .build()
        .expect("valid settings");
    for id in 0..100 {
        let key = id as u64 % 9;
        assert!(engine.submit(key, Holds(Some(engine.group(key)), tally.task(id))).is_ok());
    }
    assert_eq!(engine.close(LONG).done, 100);
    tally.all_dropped_once();
}

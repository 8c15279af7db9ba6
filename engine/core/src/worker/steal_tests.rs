//! S12: a thief whose find fails at once.
//!
//! No user code runs while units move from one deque to another: a unit is a pointer, it has no drop, and the two calls
//! of `crossbeam-deque` allocate nothing within the limit. So a thief cannot panic in the middle of a steal. The nearest
//! case is a panic in the first thing that it does with what it stole.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::{Engine, Retry, Workers};

#[test]
fn cats_effect_4674_thieves_that_fail_at_once_leave_nobody_searching() {
    // A thief that died left the number of searching workers too high: nobody was woken any more.
    const TASKS: u64 = 600;
    let bound = Instant::now() + Duration::from_secs(50);
    let until = |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < bound, "{what}");
            std::thread::yield_now();
        }
    };
    for (workers, attempts) in [(2, 1), (4, 1), (4, 3), (9, 2)] {
        let ran = Arc::new(AtomicU64::new(0));
        let count = ran.clone();
        let engine = Engine::<u64, u64>::builder()
            .workers(Workers::fixed(workers))
            .batch_size(2)
            .retry(Retry::fixed(Duration::ZERO).attempts(attempts))
            .task_handler(move |(), task| {
                count.fetch_add(1, SeqCst);
                if **task % 3 != 0 {
                    // No hook is called: what is under test is the unwinding.
                    std::panic::resume_unwind(Box::new("wanted"));
                }
            })
            .build()
            .expect("valid settings");
        let idle = &engine.front.ready.idle;
        for round in 0..20 {
            for n in 0..TASKS {
                engine.submit(n % 150, n).expect("open");
            }
            assert!(engine.wait_drain(Duration::from_secs(50)));
            // Asleep, all of them, and nobody counted as searching.
            until("workers go to sleep", &|| idle.sleepers() == workers);
            assert_eq!(idle.searchers(), 0, "round {round}");
        }
        let report = engine.close(Duration::from_secs(50));
        assert_eq!((report.done, report.failed), (20 * TASKS / 3, 20 * TASKS * 2 / 3));
        let tries = 20 * (TASKS / 3 + TASKS * 2 / 3 * u64::from(attempts));
        assert_eq!(ran.load(SeqCst), tries);
    }
}

#[test]
fn rustsec_2021_0093_a_deque_at_its_limit_under_two_thieves_gives_each_element_once() {
    // The two calls that the engine relies on, with the engine's own limits, on elements whose drops are counted.
    use super::GRAB;
    use crate::ready::{deque::Deque, overflow::DEQUE_LIMIT};

    struct Element(usize, Arc<Vec<AtomicU64>>);
    impl Drop for Element {
        fn drop(&mut self) {
            self.1[self.0].fetch_add(1, SeqCst);
        }
    }
    let elements = 40_000;
    let drops: Arc<Vec<AtomicU64>> = Arc::new((0..elements).map(|_| AtomicU64::new(0)).collect());
    let done = std::sync::atomic::AtomicBool::new(false);
    let owner = Deque::<Element>::new_fifo();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (stealer, done) = (owner.stealer(), &done);
            scope.spawn(move || {
                let own = Deque::new_fifo();
                let mut last = None;
                while !done.load(SeqCst) {
                    let stolen = stealer.steal_batch_with_limit_and_pop(&own, GRAB);
                    let mut next = stolen.success().or_else(|| own.pop());
                    while let Some(element) = next {
                        assert!(last < Some(element.0), "a thief sees them in order");
                        last = Some(element.0);
                        next = own.pop();
                    }
                    std::thread::yield_now();
                }
            });
        }
        let mut next = 0;
        while next < elements {
            while owner.len() < DEQUE_LIMIT && next < elements {
                owner.push(Element(next, drops.clone()));
                next += 1;
            }
            if next % 3 == 0 {
                std::thread::yield_now();
            }
            for _ in 0..next % 7 {
                drop(owner.pop());
            }
        }
        while owner.pop().is_some() {}
        done.store(true, SeqCst);
    });
    assert!(drops.iter().all(|drops| drops.load(SeqCst) == 1), "each once");
}

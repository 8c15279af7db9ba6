//! Loom models of the lock-free protocols. Each drives the code of the engine itself, with tiny capacities, and each
//! line of an ordering table has a mutant: the same code with that line weakened. A model that still passes with a
//! mutant proves nothing about the line, so `.ci/mutants` asks for the failure of every pair below.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p bgrp-engine --lib models
//! BGRP_MUTANT=ring-publish-relaxed ...the same...
//! ```
//!
//! What loom does not do: it treats SeqCst accesses as AcqRel (see `seqcst_for_loom` in sync.rs), it knows no time, it
//! forgets loads (sync/seen.rs does not let it), and it explores up to a number of preemptions (`LOOM_MAX_PREEMPTIONS` sets another one).

mod close;
mod deque;
mod gate;
mod hand;
mod held;
mod idle;
mod inbox;
mod lane;
mod lease;
mod reclaim;
mod ring;
mod row;
mod run_flag;
mod segments;
mod tickets;
mod timers;
mod tiny;
mod watch;

/// Every mutant of the crate with the models that must fail with it. `.ci/mutants` reads this list.
#[rustfmt::skip]
const MUTANTS: &[(&str, &str)] = &[
    ("ring-publish-relaxed", "models::ring::order"),
    ("ring-read-relaxed", "models::ring::order"),
    ("ring-head-relaxed", "models::ring::order"),
    ("ring-full-relaxed", "models::ring::order"),
    ("ring-full-relaxed", "models::ring::lap"),
    ("ring-close-by-store", "models::ring::close"),
    ("ring-reserve-relaxed", "models::ring::idle"),
    ("flag-rest-relaxed", "models::ring::idle"),
    ("flag-no-second-look", "models::ring::idle"),
    ("flag-ring-no-cas", "models::ring::idle"),
    ("barrier-light-missing", "models::ring::idle_gap"),
    ("barrier-heavy-missing", "models::ring::idle_gap"),
    ("publish-relaxed", "models::run_flag::turns"),
    ("settle-relaxed", "models::run_flag::turns"),
    ("load-relaxed", "models::run_flag::turns"),
    ("activate-busy", "models::run_flag::turns"),
    ("publish-skips-rmw", "models::run_flag::turns"),
    ("halt-by-load", "models::held::halt"),
    ("call-by-load", "models::held::pause"),
    ("called-is-idle", "models::held::"),
    ("free-by-store", "models::held::pause"),
    ("linger-relaxed", "models::run_flag::linger_again"),
    ("linger-any-sequence", "models::run_flag::linger"),
    ("end-linger-no-cas", "models::run_flag::linger"),
    ("linger-told-late", "models::timers::a_linger_that_is_told_late"),
    ("inbox-push-relaxed", "models::inbox::"),
    ("inbox-take-relaxed", "models::inbox::"),
    ("row-no-ask", "models::row::thief"),
    ("row-fill-unlocked", "models::row::refill"),
    ("barrier-light-missing", "models::row::thief"),
    ("barrier-heavy-missing", "models::row::thief"),
    ("wake-no-fence", "models::idle::one_sleeper"),
    ("sleep-no-fence", "models::idle::one_sleeper"),
    ("sleep-no-recheck", "models::idle::one_sleeper"),
    ("wake-no-unpark", "models::idle::one_sleeper"),
    ("refill-no-wake", "models::idle::long_task"),
    ("sleep-no-resume", "models::idle::long_task_apart"),
    ("search-no-chain", "models::idle::long_task"),
    ("gate-no-fence-submitter", "models::gate::room"),
    ("gate-no-fence-claim", "models::gate::room"),
    ("gate-no-lock", "models::gate::room"),
    ("full-no-second-look", "models::gate::full"),
    ("timer-no-fence-add", "models::timers::"),
    ("timer-no-fence-keep", "models::timers::"),
    ("timer-no-fence-unkeep", "models::timers::"),
    ("drain-no-fence-notify", "models::watch::drain"),
    ("drain-no-fence-wait", "models::watch::drain"),
    ("drain-no-number", "models::watch::drain"),
    ("drain-asks-under-lock", "models::watch::drain_and_claim"),
    ("starve-no-fence", "models::watch::starved"),
    ("sleep-no-fence", "models::watch::starved"),
    ("hand-take-relaxed", "models::hand::"),
    ("hand-lay-relaxed", "models::hand::"),
    ("barrier-light-missing", "models::hand::"),
    ("barrier-heavy-missing", "models::hand::"),
    ("stolen-no-wake", "models::deque::hand_over"),
    ("unpin-at-once", "models::reclaim::stale_handle"),
    ("reclaim-pinned", "models::reclaim::stale_handle"),
    ("collect-leaves-gap", "models::close::halt_and_submit"),
    ("settle-relaxed", "models::segments::of_an_idle_group"),
    ("load-relaxed", "models::segments::of_an_idle_group"),
    ("publish-relaxed", "models::segments::used_up"),
    ("track-not-set", "models::tickets::told"),
    ("untrack-unlocked", "models::tickets::told"),
    ("lane-publish-relaxed", "models::lane::order"),
    ("lane-read-relaxed", "models::lane::order"),
    ("lane-head-relaxed", "models::lane::order"),
    ("lane-full-relaxed", "models::lane::order"),
    ("lane-retire-relaxed", "models::lane::retire"),
    ("lane-end-relaxed", "models::lane::close"),
    ("barrier-light-missing", "models::lane::close"),
    ("barrier-heavy-missing", "models::lane::close"),
    ("fenced-no-fence", "models::lane::idle_fenced"),
    ("rest-no-fence", "models::lane::idle_fenced"),
    ("barrier-light-missing", "models::lane::idle"),
    ("barrier-heavy-missing", "models::lane::idle"),
    ("lease-place-relaxed", "models::lease::close"),
    ("lease-no-fence", "models::lease::wait"),
    ("lease-no-notify", "models::lease::wait"),
];

/// No bound: every execution that loom can tell from the others.
const ALL: usize = usize::MAX;

/// Explores `model` with at most `preemptions` preemptions in one execution.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() && preemptions != ALL {
        builder.preemption_bound = Some(preemptions);
    }
    builder.max_branches = 10_000;
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    let start = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    println!("{runs} executions in {:.1} s", start.elapsed().as_secs_f64());
}

/// As [`check`], with SeqCst accesses that are not fences: for models of the barriers that stand beside them.
fn check_plain(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    crate::sync::SEQCST_IS_PLAIN.set(true);
    check(preemptions, model);
    crate::sync::SEQCST_IS_PLAIN.set(false);
}

/// As [`check`], with every load seen (sync/seen.rs).
fn check_seen(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let before = crate::sync::SEEN.replace(true);
    check(preemptions, model);
    crate::sync::SEEN.set(before);
}

#[test]
fn every_mutant_in_the_sources_is_in_the_list_and_the_other_way_round() {
    fn collect(dir: &std::path::Path, names: &mut std::collections::BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                // Split so that this line is not one of them.
                for part in text.split(concat!("mutant", "(\"")).skip(1) {
                    names.extend(part.split('"').next().map(str::to_owned));
                }
            }
        }
    }
    let mut used = std::collections::BTreeSet::new();
    collect(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut used);
    // Those that no model is for are for the fuzz targets: `.ci/fuzz-mutants` runs them.
    let for_fuzz = include_str!("../../../../fuzz/mutants.txt").lines();
    let for_fuzz = for_fuzz.filter_map(|line| line.split_whitespace().nth(1));
    // And those of whole steps for the scenarios under shuttle: `.ci/shuttle mutants` runs them.
    let for_shuttle = include_str!("../../tests/shuttle_engine.rs").lines();
    let for_shuttle =
        for_shuttle.filter_map(|line| line.strip_prefix("    (\"")?.split('"').next());
    let listed = MUTANTS.iter().map(|(name, _)| *name).chain(for_fuzz).chain(for_shuttle);
    let listed = listed.map(str::to_owned).collect();
    assert_eq!(used, listed);
}

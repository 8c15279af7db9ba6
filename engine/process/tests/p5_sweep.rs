//! Contract row P5: what a task has started is found and killed, wherever it went.

mod common;

use std::fs;
use std::io::BufRead;

use bgrp_process::guardian::Guardian;
use common::{Alone, exited, is_alive, living, numbers, shell, started, swept};

#[test]
fn p5_a_sweep_finds_whatever_one_task_has_started_and_nothing_else() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let mut other = shell(&mut guardian, 12, "setsid sleep 300 & echo $!; echo $$; wait");
    let others = numbers(&mut other, 2);
    // One that was emptied of its mark and left its group while its parent lived: found by its line of parents.
    let mut out = shell(
        &mut guardian,
        1,
        "echo $$; setsid sleep 300 & echo $!; setsid env -i /bin/sleep 300 & echo $!; \
         sh -c 'setsid sleep 300 & echo $!'; sh -c 'env -i /bin/sleep 300 & echo $!'; wait",
    );
    let pids = numbers(&mut out, 5);
    guardian.sweep(1);
    assert_eq!(exited(&mut guardian, 1), 9);
    assert_eq!(swept(&mut guardian, 1), [0u32; 0]);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    // After the end of the leader: orphans with the mark, and those of its group without.
    let mut out =
        shell(&mut guardian, 2, "setsid sleep 300 & echo $!; env -i /bin/sleep 300 & echo $!");
    let pids = numbers(&mut out, 2);
    assert_eq!(exited(&mut guardian, 2), 0);
    guardian.sweep(2);
    assert_eq!(swept(&mut guardian, 2), [0u32; 0]);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    // What is not there is swept at once.
    guardian.sweep(99);
    assert_eq!(swept(&mut guardian, 99), [0u32; 0]);
    assert!(others.iter().all(|&pid| is_alive(pid)));
}

/// Many that start others, also while they are killed: 50 at the most at a time.
#[test]
fn p5_a_family_that_keeps_growing_is_swept() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    // Each waits for one that it starts anew when that ends, in a session of its own.
    let script = "i=0; while [ $i -lt 25 ]; do \
                  setsid sh -c 'while :; do sleep 300; done' & i=$((i+1)); done; echo 0; \
                  while :; do wait; sleep 0; done";
    let mut out = shell(&mut guardian, 1, script);
    let pid = i32::try_from(started(&mut guardian, 1)).unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let guardian_pid = guardian.pid();
    guardian.sweep(1);
    assert_eq!(swept(&mut guardian, 1), [0u32; 0]);
    assert!(!is_alive(pid));
    common::assert_childless(guardian_pid);
}

/// Neither mark nor group tells whose these are, only the line of parents, as long as their parent lives; and it makes
/// more of them while it is swept. So the family is stopped before it is killed.
#[test]
fn p5_a_family_without_a_mark_is_swept_while_it_grows() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    for token in 0..10 {
        let grow = "i=0; while [ $i -lt 300 ]; do /bin/sleep 300 & i=$((i+1)); [ $i = 5 ] && echo 0; done; wait";
        let script = format!("setsid env -i /bin/sh -c '{grow}' & wait");
        let mut out = shell(&mut guardian, token, &script);
        out.read_line(&mut String::new()).unwrap();
        guardian.sweep(token);
        assert_eq!(swept(&mut guardian, token), [0u32; 0]);
        let left = living(guardian.pid());
        assert_eq!(left, [0i32; 0], "{token}");
    }
}

/// One that is never there when it is looked for: each of its processes starts the next, in a session of its own, and
/// ends at once.
#[test]
fn p5_a_process_that_keeps_changing_its_number_is_swept() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let hop = dir.path().join("hop");
    // After so many, which take many seconds, it stands still and would be found by the check at the end.
    let script = "[ $1 -gt 20000 ] && exec sleep 300\n setsid sh $0 $(($1+1)) &\n";
    fs::write(&hop, script).unwrap();
    for token in 0..5 {
        let start = format!("sh {} 0", hop.display());
        drop(shell(&mut guardian, token, &start));
        assert_eq!(exited(&mut guardian, token), 0);
        guardian.sweep(token);
        assert_eq!(swept(&mut guardian, token), [0u32; 0]);
        assert_eq!(
            common::with_text(&format!("BGRP_TOKEN={}-{token}\0", guardian.run())),
            [0i32; 0]
        );
    }
    let left = living(guardian.pid());
    assert_eq!(left, [0i32; 0], "without a mark");
}

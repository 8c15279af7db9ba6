//! Contract row P6 and below: what the guardian starts, how it tells, and that nothing of it is left.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use bgrp_process::guardian::{Event, Fds, Guardian, Spawn, Stage};
use common::{Alone, os, wait_for};

/// Starts a shell script with a pipe as its standard output; the read end.
fn shell(guardian: &mut Guardian, token: u64, script: &str) -> File {
    let (read, write) = std::io::pipe().unwrap();
    let mut spawn = Spawn::new(os("sh"));
    spawn.args = vec![os("-c"), os(script)];
    spawn.fds = Fds { stdout: Some(write.into()), ..Fds::default() };
    guardian.spawn(token, spawn).unwrap();
    File::from(OwnedFd::from(read))
}

fn exited(token: u64) -> impl FnMut(&Event) -> Option<i32> {
    move |event| match event {
        Event::Exited { token: t, status, .. } if *t == token => {
            use std::os::unix::process::ExitStatusExt;
            Some(status.into_raw())
        }
        Event::NotStarted { error, .. } => panic!("{error}"),
        _ => None,
    }
}

#[test]
fn p6_a_command_runs_and_its_exit_is_told() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    println!("{guardian:?}");
    let mut out = shell(&mut guardian, 1, "echo hi; exit 7");
    assert_eq!(wait_for(&mut guardian, "exit", exited(1)), 7 << 8);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hi\n");
    let mut spawn = Spawn::new(os("/no/such"));
    spawn.args = vec![os("x")];
    guardian.spawn(2, spawn).unwrap();
    let error = wait_for(&mut guardian, "failure", |event| match event {
        Event::NotStarted { token: 2, error } => Some(*error),
        _ => None,
    });
    assert_eq!((error.stage, error.is_passing()), (Stage::Exec, false), "{error}");
}

//! Contract row P6: whatever is killed, nothing of a run is left. And what a process of the guardian is given.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bgrp_process::guardian::{Event, Fds, Guardian, Spawn, SpawnError, Stage};
use common::{Alone, children_of, eventually, fds_of, is_alive, os, processes, wait_for, within};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// What tasks leave behind if they are let: sessions of their own, orphans, without environment, deaf to signals,
/// and one that starts anew whatever dies. Each tells its number.
const WILD: &str = "\
    echo $$; \
    sh -c 'echo $$; exec sleep 300' & \
    setsid sh -c 'echo $$; exec sleep 300' & \
    setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 300\" & exit 0' & \
    env -i /bin/sh -c 'trap \"\" TERM HUP INT; echo $$; while :; do sleep 300; done' & \
    setsid env -i /bin/sh -c '/bin/sh -c \"echo \\$\\$; exec /bin/sleep 300\" & exit 0' & \
    setsid sh -c 'echo $$; while :; do sleep 300 & wait; done' & \
    wait; sleep 300";
/// How many it tells.
const WILD_COUNT: usize = 7;

/// Starts a shell script with a pipe as its standard output; the read end.
fn shell(guardian: &mut Guardian, token: u64, script: &str) -> BufReader<File> {
    let (read, write) = std::io::pipe().unwrap();
    let mut spawn = Spawn::new(os("sh"));
    spawn.args = vec![os("-c"), os(script)];
    spawn.fds = Fds { stdout: Some(write.into()), ..Fds::default() };
    guardian.spawn(token, spawn).unwrap();
    BufReader::new(File::from(OwnedFd::from(read)))
}

fn started(guardian: &mut Guardian, token: u64) -> u32 {
    wait_for(guardian, "start", |event| match event {
        Event::Started { token: t, pid } if *t == token => Some(*pid),
        Event::NotStarted { error, .. } => panic!("{error}"),
        _ => None,
    })
}

fn not_started(guardian: &mut Guardian, token: u64) -> SpawnError {
    wait_for(guardian, "failure", |event| match event {
        Event::NotStarted { token: t, error } if *t == token => Some(*error),
        Event::Started { token: t, .. } if *t == token => panic!("it has started"),
        _ => None,
    })
}

fn exited(guardian: &mut Guardian, token: u64) -> i32 {
    wait_for(guardian, "exit", |event| match event {
        Event::Exited { token: t, status, .. } if *t == token => Some(status.into_raw()),
        Event::NotStarted { error, .. } => panic!("{error}"),
        _ => None,
    })
}

fn swept(guardian: &mut Guardian, token: u64) -> Vec<u32> {
    wait_for(guardian, "end of the sweep", |event| match event {
        Event::Swept { token: t, survivors } if *t == token => Some(survivors.clone()),
        _ => None,
    })
}

/// Reads the numbers that a script tells.
fn numbers(out: &mut impl BufRead, count: usize) -> Vec<i32> {
    let lines = out.lines().take(count);
    let numbers: Vec<i32> = lines.map(|line| line.unwrap().trim().parse().unwrap()).collect();
    assert_eq!(numbers.len(), count);
    for &pid in &numbers {
        assert!(is_alive(pid), "{pid}");
    }
    numbers
}

fn gone(time: Duration, pids: &[i32]) {
    within(time, "still there", || {
        let left: Vec<_> = pids.iter().filter(|&&pid| is_alive(pid)).collect();
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    });
}

#[test]
fn p6_a_command_runs_and_its_exit_is_told() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let mut out = shell(&mut guardian, 1, "echo hi; exit 7");
    assert_eq!(exited(&mut guardian, 1), 7 << 8);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hi\n");
    drop(shell(&mut guardian, 2, "kill -9 $$"));
    assert_eq!(exited(&mut guardian, 2), 9);
    drop(shell(&mut guardian, 3, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"));
    let usage = wait_for(&mut guardian, "exit", |event| match event {
        Event::Exited { token: 3, usage, .. } => Some(*usage),
        _ => None,
    });
    assert!(usage.user > Duration::from_millis(1) && usage.max_rss > 100_000, "{usage:?}");
}

/// The ignored test that other tests start as a process of its own.
#[test]
#[ignore = "not a test: the helper process of the others"]
fn helper() {
    if common::role().as_deref() == Some("scheduler") {
        let mut guardian = Guardian::start().unwrap();
        println!("@{}", guardian.pid());
        for token in 0..2 {
            let mut out = shell(&mut guardian, token, WILD);
            started(&mut guardian, token);
            for pid in numbers(&mut out, WILD_COUNT) {
                println!("@{pid}");
            }
            std::mem::forget(out);
        }
        // A fork that does not execute anything holds our end of the socket open, as daemons do.
        // SAFETY: the child only sleeps and ends.
        let fork = unsafe { libc::fork() };
        if fork == 0 {
            // SAFETY: as above.
            unsafe {
                libc::sleep(300);
                libc::_exit(0);
            }
        }
        println!("@{fork}");
        loop {
            std::thread::park();
        }
    }
}

/// loky PR #360: the scheduler is killed, and two seconds later nothing of its run is left.
#[test]
fn p6_nothing_is_left_when_the_scheduler_is_killed() {
    let _alone = Alone::new();
    let mut child = common::helper("scheduler").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pids: Vec<i32> =
        common::told(&mut out, 2 + 2 * WILD_COUNT).iter().map(|pid| pid.parse().unwrap()).collect();
    let fork = pids.pop().unwrap();
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    gone(Duration::from_secs(2), &pids);
    common::kill(fork.unsigned_abs());
}

#[test]
fn p6_nothing_is_left_when_the_handle_is_dropped() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let mut out = shell(&mut guardian, 1, WILD);
    let mut pids = numbers(&mut out, WILD_COUNT);
    pids.push(i32::try_from(guardian.pid()).unwrap());
    drop(guardian);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
}

/// The guardian itself is killed: what it started dies with it, what those started and carries the mark is swept
/// from our side, and the handle says so.
#[test]
fn p6_the_handle_says_when_the_guardian_was_killed() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let script =
        "echo $$; setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 300\" & exit 0' & wait; sleep 300";
    let mut out = shell(&mut guardian, 1, script);
    let pids = numbers(&mut out, 2);
    common::kill(guardian.pid());
    let mut events = Vec::new();
    let error = eventually("no error", || match guardian.io(&mut events) {
        Ok(()) => Err(format!("{events:?}")),
        Err(error) => Ok(error),
    });
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
    gone(common::LONG, &pids);
    assert!(guardian.io(&mut events).is_err());
}

/// A program that never looks at its children has no zombies, and learns everything when it does look.
#[test]
fn p6_no_zombies_while_nobody_looks() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    for token in 0..30 {
        drop(shell(&mut guardian, token, "exit 3"));
    }
    let pid = guardian.pid();
    let mut ended = 0;
    let mut events = Vec::new();
    while ended < 30 {
        eventually("processes or zombies", || {
            let left = children_of(pid);
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        });
        guardian.io(&mut events).unwrap();
        ended += events.drain(..).filter(|event| matches!(event, Event::Exited { .. })).count();
    }
}

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
    assert_eq!(children_of(guardian_pid), [0i32; 0]);
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
    assert_eq!(children_of(guardian.pid()), [0i32; 0]);
}

fn hostile() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "",
        " ",
        "-",
        "--help",
        "-rf /",
        "a b",
        "tab\there",
        "line\nbreak",
        "it's",
        "\"double\"",
        "$(echo x)",
        "`echo x`",
        "${HOME}",
        "*",
        "?",
        "[a-z]",
        "~",
        "a;b",
        "a|b",
        "a&b",
        "a>b",
        "\\",
        "\\n",
        "%s%n",
        "!",
        "{}",
        "ünïcödé",
        "日本語",
        "🙂",
        "\u{202e}rtl",
        "=",
        "A=B",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    names.push(vec![0xFF, 0xFE, 0x80]);
    names.push((1..=255).collect());
    names.push(vec![b'x'; 100_000]);
    names
}

#[test]
fn p2_arguments_and_environment_arrive_byte_for_byte() {
    let _alone = Alone::new();
    let names = hostile();
    let mut guardian = Guardian::start().unwrap();
    let (mut read, write) = std::io::pipe().unwrap();
    let mut spawn = Spawn::new(os("sh"));
    let script = "cat /proc/$$/cmdline; printf @@; cat /proc/$$/environ";
    spawn.args = vec![os("-c"), os(script)];
    spawn.args.extend(names.iter().map(|name| OsStr::from_bytes(name)));
    let vars: Vec<(String, &OsStr)> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (format!("HOSTILE {at}\n"), OsStr::from_bytes(name)))
        .collect();
    spawn.env = vars.iter().map(|(name, value)| (os(name), Some(*value))).collect();
    spawn.env.push((os("PATH"), Some(os("/usr/bin:/bin"))));
    spawn.env.push((os("CARGO_MANIFEST_DIR"), None));
    spawn.fds = Fds { stdout: Some(write.into()), ..Fds::default() };
    guardian.spawn(1, spawn).unwrap();
    let mut got = Vec::new();
    read.read_to_end(&mut got).unwrap();
    assert_eq!(exited(&mut guardian, 1), 0);
    let mut expected: Vec<u8> = format!("sh\0-c\0{script}\0").into_bytes();
    for name in &names {
        expected.extend([name.as_slice(), b"\0"].concat());
    }
    expected.extend(b"@@");
    let from = expected.len();
    // What this process has, but for what was changed. The order of variables says nothing.
    let own = fs::read("/proc/self/environ").unwrap();
    let mut vars_expected: Vec<Vec<u8>> = own
        .split_inclusive(|&byte| byte == 0)
        .filter(|var| {
            let name = var.split(|&byte| byte == b'=').next().unwrap();
            ![&b"PATH"[..], b"CARGO_MANIFEST_DIR", b"BGRP_TOKEN"].contains(&name)
        })
        .map(<[u8]>::to_vec)
        .collect();
    vars_expected.push(format!("BGRP_TOKEN={}-1\0", guardian.run()).into_bytes());
    for (name, value) in &vars {
        vars_expected.push([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
    }
    vars_expected.push(b"PATH=/usr/bin:/bin\0".to_vec());
    vars_expected.sort();
    expected.extend(vars_expected.concat());
    let mut vars_got: Vec<&[u8]> = got[from..].split_inclusive(|&byte| byte == 0).collect();
    vars_got.sort_unstable();
    let got = [&got[..from], &vars_got.concat()].concat();
    let same = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
    let rest = |bytes: &[u8]| bytes[same..].escape_ascii().take(200).collect::<Vec<u8>>();
    assert!(
        got == expected,
        "after {same} bytes: {} instead of {}",
        String::from_utf8_lossy(&rest(&got)),
        String::from_utf8_lossy(&rest(&expected))
    );
}

#[test]
fn p6_a_process_has_the_descriptors_that_it_was_sent_and_no_other() {
    let _alone = Alone::new();
    // Open in the program and not closed on exec.
    let leak = File::open("/dev/zero").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let mut guardian = Guardian::start().unwrap();
    let full = || Some(OwnedFd::from(File::open("/dev/full").unwrap()));
    for (token, count) in [(1, 0), (2, 5), (3, 4)] {
        let mut spawn = Spawn::new(os("sleep"));
        spawn.args = vec![os("300")];
        if count > 0 {
            spawn.fds =
                Fds { stdin: full(), stdout: full(), stderr: full(), three: None, four: full() };
        }
        if count == 5 {
            spawn.fds.three = full();
        }
        guardian.spawn(token, spawn).unwrap();
        let pid = started(&mut guardian, token);
        let expected: Vec<String> = match count {
            0 => (0..3).map(|fd| format!("{fd} /dev/null")).collect(),
            5 => (0..5).map(|fd| format!("{fd} /dev/full")).collect(),
            _ => [0, 1, 2, 4].map(|fd| format!("{fd} /dev/full")).to_vec(),
        };
        assert_eq!(fds_of(pid), expected);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for none in ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"] {
            assert!(status.contains(none), "{status}");
        }
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    }
    // The guardian holds its nulls, the socket, the exits and the runner; nothing of what passed through.
    let held = fds_of(guardian.pid());
    assert!(held.len() == 8 && !held.iter().any(|fd| fd.contains("/dev/full")), "{held:?}");
    assert!(!held.iter().any(|fd| fd.contains("/dev/zero")), "{held:?}");
}

#[test]
fn p6_directory_niceness_and_address_space_are_set() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (mut read, write) = std::io::pipe().unwrap();
    let mut spawn = Spawn::new(os("sh"));
    spawn.args = vec![os("-c"), os("pwd; nice; ulimit -v; kill -TERM $$")];
    spawn.cwd = Some(&dir);
    spawn.nice = 3;
    spawn.address_space = Some(1 << 30);
    spawn.fds = Fds { stdout: Some(write.into()), ..Fds::default() };
    guardian.spawn(1, spawn).unwrap();
    let mut got = String::new();
    read.read_to_string(&mut got).unwrap();
    let nice = rustix::process::getpriority_process(None).unwrap() + 3;
    assert_eq!(got, format!("{}\n{nice}\n{}\n", dir.display(), 1 << 20));
    assert_eq!(exited(&mut guardian, 1), 15);
}

#[test]
fn p4_what_cannot_start_says_where_and_whether_to_try_again() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8], mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let plain = file("plain", b"text", 0o644);
    let nothing = file("nothing", b"\x01\x02\x03\x04", 0o755);
    let interpreter = file("interpreter", b"#!/no/such\n", 0o755);
    let mut token = 0;
    let mut fails = |program: &OsStr, change: &dyn Fn(&mut Spawn<'_>)| {
        token += 1;
        let mut spawn = Spawn::new(program);
        change(&mut spawn);
        guardian
            .spawn(token, spawn)
            .map_or_else(|error| error, |()| not_started(&mut guardian, token))
    };
    let same = |_: &mut Spawn<'_>| ();
    let final_error = |stage, errno| SpawnError { stage, errno };
    let exec = |errno| final_error(Stage::Exec, errno);
    assert_eq!(fails(os("/no/such"), &same), exec(libc::ENOENT));
    assert_eq!(fails(os("no-such-program"), &same), exec(libc::ENOENT));
    assert_eq!(fails(os(""), &same), exec(libc::ENOENT));
    assert_eq!(fails(plain.as_os_str(), &same), exec(libc::EACCES));
    assert_eq!(fails(os("/"), &same), exec(libc::EACCES));
    assert_eq!(fails(nothing.as_os_str(), &same), exec(libc::ENOEXEC));
    assert_eq!(fails(interpreter.as_os_str(), &same), exec(libc::ENOENT));
    let long: &'static [u8] = vec![b'x'; 10 << 20].leak();
    let long = OsStr::from_bytes(long);
    assert_eq!(fails(os("true"), &|spawn| spawn.args.push(long)), exec(libc::E2BIG));
    assert_eq!(fails(os("true"), &|spawn| spawn.args.extend([long, long])), exec(libc::E2BIG));
    let away = |spawn: &mut Spawn<'_>| spawn.cwd = Some(Path::new("/no/such"));
    assert_eq!(fails(os("true"), &away), final_error(Stage::Chdir, libc::ENOENT));
    let nul = fails(os("true"), &|spawn| spawn.args.push(os("a\0b")));
    assert_eq!(nul.stage, Stage::Arguments);
    assert!(nul.to_string().contains("NUL"), "{nul}");
    let name = fails(os("true"), &|spawn| spawn.env.push((os("A=B"), None)));
    assert_eq!(name.stage, Stage::Arguments);
    for error in [nul, name, exec(libc::ENOENT), exec(libc::E2BIG), exec(libc::EACCES)] {
        assert!(!error.is_passing(), "{error}");
    }
    // So few descriptors that those of a spawn do not come through: passing, and the next that needs none starts.
    let pid = Pid::from_raw(i32::try_from(guardian.pid()).unwrap());
    let most = rustix::process::getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(9), ..most };
    let before = prlimit(pid, Resource::Nofile, few).unwrap();
    for token in 1000..1020 {
        let mut spawn = Spawn::new(os("true"));
        let null = || Some(OwnedFd::from(File::open("/dev/null").unwrap()));
        spawn.fds =
            Fds { stdin: null(), stdout: null(), stderr: null(), three: null(), four: null() };
        guardian.spawn(token, spawn).unwrap();
        let error = not_started(&mut guardian, token);
        assert_eq!((error.stage, error.is_passing()), (Stage::Transfer, true), "{error}");
    }
    assert_eq!(fds_of(guardian.pid()).len(), 8);
    prlimit(pid, Resource::Nofile, before).unwrap();
    drop(shell(&mut guardian, 2000, "exit 0"));
    assert_eq!(exited(&mut guardian, 2000), 0);
}

/// Signals that a terminal sends to its foreground group do not reach the guardian or its processes; those that are
/// sent to it directly do not end it.
#[test]
fn p6_signals_of_the_terminal_do_not_reach_the_guardian() {
    let _alone = Alone::new();
    let mut guardian = Guardian::start().unwrap();
    let own = rustix::process::getpgrp();
    let pid = Pid::from_raw(i32::try_from(guardian.pid()).unwrap()).unwrap();
    assert_ne!(rustix::process::getpgid(Some(pid)).unwrap(), own);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1] {
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
    let mut out = shell(&mut guardian, 1, "echo $$; exec sleep 300");
    let child = numbers(&mut out, 1)[0];
    let group = rustix::process::getpgid(Pid::from_raw(child)).unwrap();
    assert_eq!(group.as_raw_nonzero().get(), child);
    // A signal to the group of one; and one that is for nobody any more.
    guardian.signal(1, rustix::process::Signal::INT);
    assert_eq!(exited(&mut guardian, 1), libc::SIGINT);
    guardian.signal(1, rustix::process::Signal::KILL);
    guardian.signal(77, rustix::process::Signal::KILL);
    drop(shell(&mut guardian, 2, "exit 0"));
    assert_eq!(exited(&mut guardian, 2), 0);
    assert!(processes().iter().any(|&(number, ..)| number == pid.as_raw_nonzero().get()));
}

//! Contract rows P5, P6 and P7 for single commands: deadlines, what they leave behind, output of any size, limits.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bgrp_process::command::{
    Capture, Command, Commands, Ended, Output, RunError, Stage, StdStream,
};
use common::{Alone, children_of, eventually, fds_of, is_alive};
use rustix::process::{Resource, Rlimit, setrlimit};

fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}

/// Runs commands, and gives what became of each in the order of asking.
fn run_all(commands: &mut Commands, jobs: Vec<Command>) -> Vec<Result<Ended, RunError>> {
    let mut all: Vec<Option<Result<Ended, RunError>>> = jobs.iter().map(|_| None).collect();
    let mut jobs = jobs.into_iter();
    let report = commands.run(
        || jobs.next(),
        |index, ended| {
            let place = &mut all[usize::try_from(index).unwrap()];
            assert!(place.replace(ended).is_none(), "{index} ended twice");
        },
    );
    assert_eq!(report.unwrap().done, all.len() as u64);
    all.into_iter().map(|ended| ended.expect("each ends")).collect()
}

fn run(commands: &mut Commands, job: Command) -> Ended {
    run_all(commands, vec![job]).remove(0).unwrap()
}

fn bytes(mut capture: Capture) -> Vec<u8> {
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;
    let mut file = tempfile::tempfile().unwrap();
    capture.write_to(file.as_fd()).unwrap();
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn numbers(capture: Capture) -> Vec<i32> {
    let text = String::from_utf8(bytes(capture)).unwrap();
    text.lines().map(|line| line.trim().parse().unwrap()).collect()
}

fn raw(ended: &Ended) -> i32 {
    ended.status.unwrap().into_raw()
}

#[test]
fn p2_streams_status_and_input_are_the_commands_own() {
    let _alone = Alone::new();
    let mut commands = Commands::start(2).unwrap();
    let ended = run(&mut commands, shell("printf '\\377\\376\\000'; echo e >&2; exit 7"));
    assert_eq!((raw(&ended), ended.success()), (7 << 8, false));
    assert_eq!((bytes(ended.stdout), bytes(ended.stderr)), (vec![0xFF, 0xFE, 0], b"e\n".to_vec()));
    let input: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    let mut echo = shell("cat");
    echo.stdin = Some(input.clone());
    let mut deaf = shell("exec <&-; exit 0");
    deaf.stdin = Some(input.clone());
    let mut empty = shell("cat; echo end");
    empty.stdin = Some(Vec::new());
    let mut ended =
        run_all(&mut commands, vec![echo, deaf, empty, shell("cat; echo null")]).into_iter();
    let mut next = || ended.next().unwrap().unwrap();
    assert!(bytes(next().stdout) == input);
    assert!(next().success());
    assert_eq!(bytes(next().stdout), b"end\n");
    assert_eq!(bytes(next().stdout), b"null\n");
}

/// temporalio/deputy #175, and one that hears no TERM.
#[test]
fn p5_a_deadline_stops_what_left_the_group_too() {
    let _alone = Alone::new();
    let mut commands = Commands::start(2).unwrap();
    let mut polite = shell("echo $$; setsid sleep 300 & echo $!; sleep 300 & echo $!; wait");
    polite.timeout = Some(Duration::from_millis(500));
    let mut deaf = shell(
        "trap '' TERM; echo $$; setsid sh -c 'sleep 300 & echo $!; wait' & while :; do sleep 300; done",
    );
    deaf.timeout = Some(Duration::from_millis(500));
    deaf.grace = Duration::from_millis(100);
    let mut ended = run_all(&mut commands, vec![polite, deaf]).into_iter();
    for (signal, count) in [(15, 3), (9, 2)] {
        let ended = ended.next().unwrap().unwrap();
        assert_eq!((raw(&ended), ended.timed_out, ended.success()), (signal, true, false));
        assert_eq!(ended.survivors, [0u32; 0]);
        assert!(ended.wall >= Duration::from_millis(500), "{:?}", ended.wall);
        let pids = numbers(ended.stdout);
        assert_eq!(pids.len(), count);
        assert!(!pids.iter().any(|&pid| is_alive(pid)));
    }
    assert_eq!(children_of(commands.guardian_pid()), [0i32; 0]);
}

/// cpython #76116: something that is left behind holds the pipes open.
#[test]
fn p7_a_grandchild_does_not_hold_the_task() {
    let _alone = Alone::new();
    let mut commands = Commands::start(1).unwrap();
    let from = Instant::now();
    let ended = run(&mut commands, shell("sleep 30 & echo hi"));
    assert!(ended.success());
    assert_eq!(bytes(ended.stdout), b"hi\n");
    assert!(from.elapsed() < Duration::from_secs(15), "it waited for the grandchild");
    // It may be meant to stay, as long as the run lasts.
    assert_eq!(children_of(commands.guardian_pid()).len(), 1);
    let mut clean = shell("setsid sleep 30 & sleep 30 & echo hi");
    clean.clean = true;
    let ended = run(&mut commands, clean);
    assert!(ended.success() && ended.survivors.is_empty());
    assert_eq!(children_of(commands.guardian_pid()).len(), 1);
}

/// rust-lang #27152: both pipes full in turn.
#[test]
fn p7_much_on_both_streams_does_not_lock_up() {
    let _alone = Alone::new();
    let mut commands = Commands::start(2).unwrap();
    let script = "i=0; while [ $i -lt 10 ]; do head -c 1000000 /dev/zero; \
                  head -c 1000000 /dev/zero >&2; i=$((i+1)); done";
    for ended in run_all(&mut commands, vec![shell(script), shell(script)]) {
        let ended = ended.unwrap();
        assert!(ended.success());
        assert_eq!(bytes(ended.stdout).len(), 10_000_000);
        assert_eq!(bytes(ended.stderr).len(), 10_000_000);
    }
}

/// pgbackrest #97: long lines on both streams of many at once are not mixed.
#[test]
fn p7_lines_are_whole_whatever_their_length() {
    const LENGTH: usize = 3_000_000;
    let _alone = Alone::new();
    let mut commands = Commands::start(8).unwrap();
    let seen: Arc<Mutex<Vec<(usize, StdStream, Vec<u8>)>>> = Arc::default();
    let jobs = (0..30).map(|index| {
        let letter = char::from(b'a' + u8::try_from(index % 26).unwrap());
        let line = format!("head -c {LENGTH} /dev/zero | tr '\\0' {letter}");
        let mut job = shell(&format!("{line}; echo; {line} >&2; echo >&2; echo x; printf last"));
        let seen = Arc::clone(&seen);
        job.output = Output::Lines(Box::new(move |stream, line| {
            seen.lock().unwrap().push((index, stream, line.to_vec()));
        }));
        job
    });
    for ended in run_all(&mut commands, jobs.collect()) {
        assert!(ended.unwrap().success());
    }
    let seen = seen.lock().unwrap();
    for index in 0..30usize {
        let letter = b'a' + u8::try_from(index % 26).unwrap();
        let long = [vec![letter; LENGTH], b"\n".to_vec()].concat();
        let of = |which| {
            seen.iter()
                .filter(move |(i, stream, _)| *i == index && *stream == which)
                .map(|(_, _, line)| line.as_slice())
                .collect::<Vec<_>>()
        };
        assert!(of(StdStream::Out) == [long.as_slice(), b"x\n", b"last"], "{index}");
        assert!(of(StdStream::Err) == [long.as_slice()], "{index}");
    }
}

/// tokio #2685: thousands of deadlines leave no zombie and no descriptor.
#[test]
fn p6_two_thousand_deadlines_leave_nothing() {
    let _alone = Alone::new();
    let mut commands = Commands::start(16).unwrap();
    assert!(run(&mut commands, shell("exit 0")).success());
    let pid = commands.guardian_pid();
    let before = (common::fds().len(), fds_of(pid).len());
    let jobs = (0..2000).map(|_| {
        let mut job = Command::new(["sleep", "300"]);
        job.timeout = Some(Duration::from_millis(10));
        job
    });
    for ended in run_all(&mut commands, jobs.collect()) {
        let ended = ended.unwrap();
        assert!(ended.timed_out && ended.survivors.is_empty());
        assert_eq!(raw(&ended), 15);
    }
    assert_eq!((common::fds().len(), fds_of(pid).len()), before);
    assert_eq!(children_of(pid), [0i32; 0]);
}

/// concurrently #155: the first stop starts nothing new, the second asks, the third kills; nothing is left.
#[test]
fn p6_a_stop_goes_in_three_stages() {
    let _alone = Alone::new();
    let mut commands = Commands::start(3).unwrap();
    let pid = commands.guardian_pid();
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let started = Arc::new(Mutex::new(0));
    let stopper = commands.stopper();
    let mut jobs = vec![
        shell(&format!("echo up; while ! [ -e {} ]; do sleep 0.01; done", go.display())),
        shell("echo up; exec sleep 300"),
        shell("trap '' TERM; echo up; setsid sleep 300 & while :; do sleep 300; done"),
        shell("echo never"),
    ];
    for job in &mut jobs {
        let started = Arc::clone(&started);
        job.grace = Duration::from_secs(300);
        job.output = Output::Lines(Box::new(move |_, _| *started.lock().unwrap() += 1));
    }
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            eventually("three run", || match *started.lock().unwrap() {
                3 => Ok(()),
                count => Err(count.to_string()),
            });
            let next = |stage| {
                stopper.raise(stage);
                if stage == Stage::Draining {
                    std::fs::write(&go, "").unwrap();
                }
                told.recv_timeout(common::LONG).unwrap()
            };
            assert_eq!([Stage::Draining, Stage::Asked, Stage::Killed].map(next), [0, 1, 2]);
        });
        let mut jobs = jobs.into_iter();
        let report = commands.run(
            || jobs.next(),
            |index, how| {
                let how = how.unwrap();
                ended.push((index, raw(&how), how.asked));
                tell.send(index).unwrap();
            },
        );
        assert_eq!(report.unwrap().done, 3);
    });
    assert_eq!(ended, [(0, 0, false), (1, 15, true), (2, 9, true)]);
    assert_eq!(children_of(pid), [0i32; 0]);
}

#[test]
fn p4_what_never_starts_says_so_and_costs_nothing_else() {
    let _alone = Alone::new();
    let mut commands = Commands::start(3).unwrap();
    let jobs = vec![
        shell("echo a"),
        Command::new(["/no/such/program"]),
        Command::new(["sh", "a\0b"]),
        Command::new(Vec::<Vec<u8>>::new()),
        shell("echo b"),
    ];
    let mut ended = run_all(&mut commands, jobs).into_iter();
    let mut next = || ended.next().unwrap();
    assert_eq!(bytes(next().unwrap().stdout), b"a\n");
    for _ in 0..3 {
        assert!(matches!(next(), Err(RunError::NotStarted(error)) if !error.is_passing()));
    }
    assert_eq!(bytes(next().unwrap().stdout), b"b\n");
}

#[test]
fn p6_commands_say_when_the_guardian_was_killed() {
    let _alone = Alone::new();
    let mut commands = Commands::start(3).unwrap();
    let pid = commands.guardian_pid();
    let mut asked = 0;
    let mut failed = 0;
    let report = commands.run(
        || {
            asked += 1;
            // The third comes when two run.
            if asked == 3 {
                eventually("two run", || match children_of(pid).len() {
                    2 => Ok(()),
                    count => Err(count.to_string()),
                });
                common::kill(pid);
            }
            Some(Command::new(["sleep", "300"]))
        },
        |_, ended| failed += u32::from(matches!(ended, Err(RunError::Guardian(_)))),
    );
    assert!(report.is_err());
    assert_eq!(failed, 3);
}

/// The ignored test that other tests start as a process of its own.
#[test]
#[ignore = "not a test: the helper process of the others"]
fn helper() {
    let role = common::role();
    let Some(role) = role.as_deref() else { return };
    if role == "processes" && rustix::process::getuid().is_root() {
        // Root has no limit of processes. Someone else, who has none yet.
        let uid = 60_000 + std::process::id() % 5000;
        // SAFETY: plain calls; this process has nobody else's files open for others to read.
        assert_eq!(unsafe { libc::setgid(uid) | libc::setuid(uid) }, 0);
    }
    let (resource, limit) = match role {
        "descriptors" => (Resource::Nofile, 64),
        // Root in a namespace or not, this many processes and threads are there already or can be had.
        _ => (Resource::Nproc, threads_of_this_user() + 5),
    };
    setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let mut commands = Commands::start(50).unwrap();
    let guardian = commands.guardian_pid();
    let count = |pid| common::fds_of(pid).len();
    let before = (count(std::process::id()), count(guardian));
    let jobs = if role == "descriptors" { 1000 } else { 60 };
    let mut left = jobs;
    let mut good = 0;
    let report = commands.run(
        || {
            left -= 1;
            (left >= 0).then(|| {
                let mut job =
                    Command::new(["sleep", if role == "descriptors" { "300" } else { "0.02" }]);
                job.timeout = (role == "descriptors").then_some(Duration::from_millis(10));
                job
            })
        },
        |index, ended| match ended {
            Ok(ended) if ended.success() || ended.timed_out => good += 1,
            other => println!("{index}: {other:?}"),
        },
    );
    let report = report.unwrap();
    println!("@{}", good == jobs);
    println!("@{}", report.fewest);
    println!("@{}", report.message().unwrap_or_default());
    println!("@{}", before == (count(std::process::id()), count(guardian)));
}

/// Processes and threads of the user who runs this.
fn threads_of_this_user() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::getuid().as_raw();
    let threads = common::processes().into_iter().filter_map(|(pid, ..)| {
        let tasks = std::path::PathBuf::from(format!("/proc/{pid}/task"));
        (tasks.metadata().ok()?.uid() == own).then(|| std::fs::read_dir(tasks).ok())?
    });
    threads.map(|tasks| tasks.count() as u64).sum()
}

/// perl5 #12178, halmos #527: a small limit of processes or descriptors means fewer at once, and is said.
#[test]
fn p9_small_limits_mean_fewer_at_once() {
    let _alone = Alone::new();
    for (role, unit) in [("descriptors", "ulimit -n"), ("processes", "ulimit -u")] {
        let out = common::helper(role).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{role}: {text} {}", String::from_utf8_lossy(&out.stderr));
        let told = common::told(&mut out.stdout.as_slice(), 4);
        assert_eq!((told[0].as_str(), told[3].as_str()), ("true", "true"), "{role}: {text}");
        let fewest: usize = told[1].parse().unwrap();
        assert!((1..50).contains(&fewest), "{role}: {text}");
        assert!(
            told[2].contains(unit) && told[2].contains(&format!("{fewest} at once instead of 50")),
            "{text}"
        );
    }
}

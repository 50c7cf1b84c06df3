// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_health::{DynamicWeight, Outcome, Word};
use portolan_model::check::{Check, ExecProbe, Probe, WeightFrom};
use portolan_probe::{Context, Names, Target, probe};

use crate::rig::{check, failure};

struct Script {
    directory: tempfile::TempDir,
    probe: Probe,
}

impl Script {
    fn new(text: &str, weight_from: WeightFrom) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("check");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let program = program.to_str().unwrap().to_owned();
        let at = directory.path().to_str().unwrap().to_owned();
        let probe = Probe::Exec(ExecProbe {
            // Not the script itself: another thread may start a child while it is open for writing.
            command: vec!["/bin/sh".to_owned(), program, at],
            weight_from,
        });
        Self { directory, probe }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

async fn run(check: &Check) -> Outcome {
    let mut target = Target::at("10.0.0.1:8080".parse().unwrap());
    target.names = Some(Names {
        name: "default/web".into(),
        frontend: "TCP/192.0.2.10:80".into(),
    });
    probe(check, &target, &Context::default()).await
}

async fn told(text: &str, weight_from: WeightFrom) -> Outcome {
    let script = Script::new(text, weight_from);
    run(&check(script.probe.clone())).await
}

async fn until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_exit_code_decides() {
    let none = WeightFrom::None;
    assert_eq!(told("exit 0", none).await, Outcome::pass());
    assert_eq!(failure(&told("exit 3", none).await), "exit code 3");
    let killed = told("kill -9 $$", none).await;
    assert!(
        failure(&killed).starts_with("the program ended by signal: 9"),
        "{killed:?}"
    );
}

#[tokio::test]
async fn weights_come_from_the_exit_code_or_the_output() {
    let code = WeightFrom::ExitCode;
    let absolute = |weight| Outcome::Pass {
        weight: Some(DynamicWeight::Absolute(weight)),
    };
    assert_eq!(told("exit 0", code).await, Outcome::pass());
    assert_eq!(failure(&told("exit 1", code).await), "exit code 1");
    assert_eq!(told("exit 2", code).await, absolute(0));
    assert_eq!(told("exit 255", code).await, absolute(253));
    let word = Word {
        up: Some(true),
        weight: Some(DynamicWeight::Percent(30)),
        ..Word::default()
    };
    // More output than a pipe holds, and none of it breaks the program.
    let long = "echo 30%; head -c 300000 /dev/zero; echo end";
    assert_eq!(told(long, WeightFrom::Stdout).await, Outcome::Word(word));
    let failed = told("echo up; exit 1", WeightFrom::Stdout).await;
    assert_eq!(failure(&failed), "exit code 1");
}

#[tokio::test]
async fn a_program_is_told_what_it_checks_and_nothing_else() {
    let script = Script::new("env > $1/seen", WeightFrom::None);
    assert_eq!(run(&check(script.probe.clone())).await, Outcome::pass());
    let seen = fs::read_to_string(script.path("seen")).unwrap();
    let mut names: Vec<_> = seen
        .lines()
        .filter(|line| !line.starts_with("PWD="))
        .collect();
    names.sort_unstable();
    let expected = [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PORTOLAN_ADDRESS=10.0.0.1",
        "PORTOLAN_FRONTEND=TCP/192.0.2.10:80",
        "PORTOLAN_NAME=default/web",
        "PORTOLAN_PORT=8080",
    ];
    let names: Vec<_> = names
        .into_iter()
        .filter(|line| !line.starts_with("_="))
        .collect();
    assert_eq!(names, expected);
}

/// A check that ends when a program has had time to start.
fn late(probe: Probe) -> Check {
    let mut check = check(probe);
    check.timers.timeout = Duration::from_secs(5);
    check
}

fn is_running(pid: &str) -> bool {
    // A zombie has ended; who inherits it is not for us.
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

#[tokio::test]
async fn a_late_program_ends_with_its_children() {
    let text = "echo $$ > $1/parent; sleep 100 & echo $! > $1/child; wait";
    let script = Script::new(text, WeightFrom::None);
    let outcome = run(&late(script.probe.clone())).await;
    assert_eq!(failure(&outcome), "not done within 5s");
    for name in ["parent", "child"] {
        let pid = fs::read_to_string(script.path(name)).unwrap();
        until(|| !is_running(pid.trim())).await;
    }
}

#[tokio::test]
async fn a_program_that_ignores_the_request_to_end_is_killed() {
    let text = "trap '' TERM; echo $$ > $1/parent; while :; do sleep 1; done";
    let script = Script::new(text, WeightFrom::None);
    let outcome = run(&late(script.probe.clone())).await;
    let ended = Instant::now();
    assert_eq!(failure(&outcome), "not done within 5s");
    let pid = fs::read_to_string(script.path("parent")).unwrap();
    assert!(is_running(pid.trim()), "the grace is not waited for");
    until(|| !is_running(pid.trim())).await;
    assert!(ended.elapsed() > Duration::from_secs(1), "it had its grace");
}

#[tokio::test]
async fn a_dropped_probe_kills_its_program() {
    let script = Script::new("echo $$ > $1/parent; exec sleep 100", WeightFrom::None);
    let check = check(script.probe.clone());
    let probe = tokio::spawn(async move { run(&check).await });
    let path = script.path("parent");
    until(|| fs::read_to_string(&path).is_ok_and(|pid| pid.ends_with('\n'))).await;
    probe.abort();
    let pid = fs::read_to_string(path).unwrap();
    until(|| !is_running(pid.trim())).await;
}

#[tokio::test]
async fn a_program_that_cannot_run_is_our_fault() {
    let script = Script::new("exit 0", WeightFrom::None);
    let program = script.path("check");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o757)).unwrap();
    let probe = Probe::Exec(ExecProbe {
        command: vec![program.display().to_string()],
        weight_from: WeightFrom::None,
    });
    let outcome = run(&check(probe.clone())).await;
    let Outcome::NoVerdict(reason) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(reason.ends_with("everybody may write it"), "{reason}");
    fs::remove_file(program).unwrap();
    let outcome = run(&check(probe)).await;
    assert!(matches!(outcome, Outcome::NoVerdict(_)), "{outcome:?}");
}

// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use portolan_director::{Hooks, records};
use portolan_health::{Administrative, BackendStatus, State, Verdicts};
use portolan_model::NodeTable;

use super::*;

const FILE: &str = "apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{addresses: [192.0.2.10], port: 80}, {addresses: [192.0.2.10], port: 443}]
  backends: [{address: 10.0.0.1, port: 8080}]
  hooks: {onQuorum: [PROGRAM, q], onBackend: [PROGRAM, b]}
";

const DEADLINE: Duration = Duration::from_secs(30);

fn status(state: State) -> BackendStatus {
    BackendStatus {
        state,
        since: Duration::ZERO,
        administrative: Administrative::Enabled,
        commanded: None,
        said: Administrative::Enabled,
        reason: None,
        is_kept: false,
        changes: 0,
        flap_factor: 1,
    }
}

/// Ends of the inputs, and the hooks at work.
struct Rig {
    _directory: tempfile::TempDir,
    output: std::path::PathBuf,
    hooks: watch::Sender<Arc<HooksOf>>,
    health: watch::Sender<Health>,
    keys: Vec<RecordKey>,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    token: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Rig {
    /// Hooks that run a script.
    fn new(script: impl FnOnce(&Path) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("hook");
        let script = format!("#!/bin/sh\n{}\n", script(directory.path()));
        std::fs::write(&program, script).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        // Not the script itself: another thread may start a child while it is open for writing.
        let text = FILE.replace("PROGRAM", &format!("/bin/sh, {}", program.display()));
        let file = portolan_director::File {
            name: "lb.yaml",
            text: &text,
        };
        let generation = portolan_director::parse(&[file], &Default::default()).unwrap();
        let balancers = &generation.load_balancers;
        let all = records(
            balancers.iter().map(|balancer| &**balancer),
            Some(&Default::default()),
            &"".into(),
        );
        let keys = all.keys().cloned().collect();
        let table = NodeTable {
            records: all,
            ..NodeTable::default()
        };
        let of_files: BTreeMap<ObjectName, Hooks> = balancers
            .iter()
            .map(|balancer| (balancer.name.clone(), balancer.hooks.clone()))
            .collect();
        let subscribed = Arc::new(Subscribed::new((0, 1), Arc::new(table)));
        let (tables_out, tables) = watch::channel(Some(subscribed));
        let (hooks_out, hooks) = watch::channel(Arc::default());
        let (health_out, health) = watch::channel(Health::new());
        let inputs = HookInputs {
            hooks,
            tables,
            health,
            programs: Programs::default(),
        };
        let token = CancellationToken::new();
        let task = tokio::spawn(run(inputs, token.clone()));
        hooks_out.send_replace(Arc::new(of_files));
        Self {
            output: directory.path().join("output"),
            _directory: directory,
            hooks: hooks_out,
            health: health_out,
            keys,
            tables: tables_out,
            token,
            task,
        }
    }

    /// Publishes the state of the backend, behind both frontends.
    fn publish(&self, state: State) {
        let address: SocketAddr = "10.0.0.1:8080".parse().unwrap();
        let verdicts = Arc::new(Verdicts {
            quorum: state.is_up(),
            states: [(address, status(state))].into(),
            ..Verdicts::default()
        });
        let all = self.keys.iter();
        let all = all.map(|key| (key.clone(), Arc::clone(&verdicts)));
        self.health.send_replace(all.collect());
    }

    /// The lines that the programs have written, once there are so many, sorted.
    async fn lines(&self, number: usize) -> Vec<String> {
        let read = async {
            loop {
                let text = std::fs::read_to_string(&self.output).unwrap_or_default();
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                if lines.len() >= number {
                    lines.sort();
                    return lines;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, read).await.unwrap()
    }
}

fn writes(directory: &Path) -> String {
    let output = directory.join("output");
    format!(
        "echo $1 $PORTOLAN_NAME $PORTOLAN_STATE $PORTOLAN_FRONTEND $PORTOLAN_ADDRESS $PORTOLAN_PORT \
         >>{}",
        output.display()
    )
}

#[tokio::test]
async fn programs_are_told_of_backends_and_of_each_frontends_quorum() {
    let rig = Rig::new(writes);
    rig.publish(State::Probing);
    rig.publish(State::Up);
    let up = [
        "b default/web up 10.0.0.1 8080",
        "q default/web up TCP/192.0.2.10:443",
        "q default/web up TCP/192.0.2.10:80",
    ];
    assert_eq!(rig.lines(3).await, up);
    // The states of a reload are the same ones.
    rig.hooks.send_modify(|_| ());
    rig.publish(State::Ramping);
    rig.publish(State::Down);
    let all = rig.lines(6).await;
    let down: Vec<_> = all.iter().filter(|line| line.contains("down")).collect();
    assert_eq!((all.len(), down.len()), (6, 3), "{all:?}");
    rig.token.cancel();
    rig.task.await.unwrap();
}

#[tokio::test]
async fn programs_are_told_of_a_load_balancer_whose_verdicts_come_before_its_table() {
    let rig = Rig::new(writes);
    let table = rig.tables.send_replace(None);
    rig.publish(State::Up);
    // The hooks run on this thread: they have their turn now, and see the verdicts without the table.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    rig.tables.send_replace(table);
    assert_eq!(rig.lines(3).await.len(), 3);
    rig.token.cancel();
    rig.task.await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_agent_ends_programs() {
    let rig = Rig::new(|directory| {
        let (output, fifo) = (directory.join("output"), directory.join("fifo"));
        // It waits for a writer that never comes.
        format!(
            "mkfifo {0}; echo $$ >>{1}; read line <{0}",
            fifo.display(),
            output.display()
        )
    });
    rig.publish(State::Up);
    let id = rig.lines(1).await.remove(0);
    // One program of an object at a time.
    assert_eq!(
        std::fs::read_to_string(&rig.output)
            .unwrap()
            .lines()
            .count(),
        1
    );
    rig.token.cancel();
    rig.task.await.unwrap();
    let process = format!("/proc/{id}/stat");
    let gone = async {
        // A killed program may be a zombie for a moment.
        let runs = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
        while runs() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.unwrap();
}

// SPDX-License-Identifier: Apache-2.0

use portolan_runtime::Readiness;

use super::*;

/// A manager's socket in a directory, and the agent's side of it.
pub(crate) fn manager(limit: Option<Duration>) -> (tempfile::TempDir, StdDatagram, ServiceManager) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = StdDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let manager = ServiceManager::at(path.as_os_str(), limit).unwrap();
    (directory, socket, manager)
}

fn next(socket: &StdDatagram) -> String {
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

/// The number of messages that have arrived since the last call.
pub(crate) fn arrived(socket: &StdDatagram) -> usize {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 512];
    let count = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
    socket.set_nonblocking(false).unwrap();
    count
}

fn report(revision: u64, errors: usize) -> Report {
    Report {
        epoch: 1,
        revision,
        duration: Duration::ZERO,
        errors: vec![(None, "refused".to_owned()); errors],
        checked: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_said_once_after_the_first_table_and_stopping_at_the_end() {
    let (_directory, socket, manager) = manager(None);
    let readiness = Readiness::default();
    let block = readiness.block("first table");
    let (reports, receiver) = watch::channel(None);
    let ending = CancellationToken::new();
    let task = manager.follow(readiness.subscribe(), receiver, ending.clone());
    let task = tokio::spawn(task);
    assert_eq!(next(&socket), "STATUS=waits for first table");
    reports.send_replace(Some(report(1, 0)));
    drop(block);
    let ready = "READY=1\nSTATUS=the kernel has revision 1 of the table";
    assert_eq!(next(&socket), ready);
    reports.send_replace(Some(report(2, 3)));
    let errors = "STATUS=the kernel has revision 2 of the table, but for 3 errors";
    assert_eq!(next(&socket), errors);
    let block = readiness.block("a kernel that can be programmed");
    assert_eq!(
        next(&socket),
        "STATUS=waits for a kernel that can be programmed"
    );
    drop(block);
    assert_eq!(next(&socket), errors, "READY=1 is sent once");
    ending.cancel();
    assert!(next(&socket).starts_with("STOPPING=1\n"));
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_are_as_rare_as_the_limit_allows() {
    let (_directory, socket, manager) = manager(Some(Duration::from_secs(60)));
    let mut watchdog = manager.watchdog();
    assert_eq!(watchdog.interval(Duration::from_secs(10)).as_secs(), 10);
    assert_eq!(watchdog.interval(Duration::from_secs(100)).as_secs(), 30);
    let start = Instant::now();
    for (second, expected) in [(0, 1), (1, 0), (14, 0), (15, 1), (29, 0), (40, 1)] {
        watchdog.alive(start + Duration::from_secs(second));
        assert_eq!(arrived(&socket), expected, "{second}");
    }
}

/// A manager that hangs must not stop the loop that gives the signs.
#[tokio::test]
async fn a_full_queue_is_not_waited_for() {
    let (_directory, socket, manager) = manager(Some(Duration::from_secs(60)));
    let (mut watchdog, start) = (manager.watchdog(), Instant::now());
    for minute in 0..2_000 {
        watchdog.alive(start + Duration::from_secs(60 * minute));
    }
    let queue = arrived(&socket);
    assert!(queue < 2_000, "the queue has no end");
    watchdog.alive(start + Duration::from_secs(60 * 2_000));
    assert_eq!(arrived(&socket), 1);
}

#[tokio::test]
async fn nothing_is_sent_unless_the_manager_asks() {
    let (_directory, socket, manager) = manager(None);
    manager.watchdog().alive(Instant::now());
    assert_eq!(arrived(&socket), 0);
    assert_eq!(
        Watchdog::default()
            .interval(Duration::from_secs(10))
            .as_secs(),
        10
    );
}

#[tokio::test]
async fn abstract_addresses_are_understood() {
    let name = format!("portolan-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = StdDatagram::bind_addr(&address).unwrap();
    let manager = ServiceManager::at(OsStr::new(&format!("@{name}")), None).unwrap();
    manager.send("READY=1").await;
    assert_eq!(next(&socket), "READY=1");
    assert!(ServiceManager::at(OsStr::new("/nonexistent/notify"), None).is_err());
}

#[test]
fn the_limit_counts_for_its_own_process() {
    let text = |text: &str| Some(OsString::from(text));
    let minute = Some(Duration::from_secs(60));
    let own = std::process::id().to_string();
    for (usec, pid, expected) in [
        (text("60000000"), None, minute),
        (text("60000000"), text(&own), minute),
        (text("60000000"), text("1"), None),
        (text("0"), None, None),
        (text("soon"), None, None),
        (None, None, None),
    ] {
        assert_eq!(
            limit(usec.clone(), pid.clone()),
            expected,
            "{usec:?} {pid:?}"
        );
    }
}

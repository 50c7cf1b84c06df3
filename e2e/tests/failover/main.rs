// SPDX-License-Identifier: Apache-2.0

//! A pair of directors of which one dies under load: connections lost with synchronised connections, with stateless
//! failover, and with neither; real keepalived, which moves the address between them; and real BIRD, which tells a router
//! of it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod bgp;
mod pair;
mod vrrp;

use std::thread;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Load, LoadConfig};
use portolan_e2e::wait::wait_for;

use pair::{LONG, Pair, Survival, TIMEOUT, first_answer, vip};

/// Result of a failover under load.
struct Failover {
    /// Lost ones of the long connections.
    long: usize,
    /// Lost ones of the short connections.
    short: usize,
    /// Number of short connections.
    of: u64,
    /// Time from the death of one director to the first answer of the other.
    first_answer: Duration,
}

/// Kills the first director under load, and has the second one answer.
fn fail_over(survival: Survival) -> Failover {
    let pair = Pair::start(survival, "vips: {interface: eth0, role: Command}");
    pair.command(0, "active");
    let mut long = pair.connect();
    pair.wait_until_synchronised(1);
    // About 200 new connections a second.
    let short = LoadConfig {
        workers: 2,
        pause: Duration::from_millis(10),
        timeout: TIMEOUT,
        ..LoadConfig::default()
    };
    let load = Load::start(pair.client(), &[vip()], short).unwrap();
    let more = |answered: u64| {
        wait_for("the load", PATIENT, || {
            (load.answered() > answered).then_some(())
        })
    };
    more(200).unwrap();

    // A host that dies takes its announcements and its packets with it.
    pair.rig
        .node(0)
        .exec(&["ip", "link", "set", "eth0", "down"])
        .unwrap();
    let (client, from) = (pair.client(), Instant::now());
    let first_answer = thread::scope(|scope| {
        let asking = scope.spawn(|| first_answer(client, from));
        pair.command(1, "active");
        asking.join().unwrap()
    });
    more(load.answered() + 200).unwrap();
    let report = load.stop();
    let mut lost = 0;
    for (connection, name) in &mut long {
        // The one that answered before, or the connection is another one.
        lost += usize::from(!matches!(connection.ask(), Ok(answer) if answer.name == *name));
    }
    Failover {
        long: lost,
        short: report.failures.len(),
        of: report.requests,
        first_answer,
    }
}

fn count(survival: Survival, test: &str) -> Option<usize> {
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return None;
    }
    let Failover {
        long,
        short,
        of,
        first_answer,
    } = fail_over(survival);
    let name = format!("{survival:?}").to_lowercase();
    println!("{name}: {long} of {LONG} long and {short} of {of} short connections lost");
    figure(
        &format!("failover_{name}_long_lost"),
        long as f64,
        "connections",
        None,
    );
    figure(
        &format!("failover_{name}_short_lost"),
        short as f64,
        "connections",
        None,
    );
    figure(
        &format!("failover_{name}_first_answer"),
        first_answer.as_secs_f64() * 1000.0,
        "ms",
        None,
    );
    Some(long)
}

#[test]
fn synchronised_connections_outlive_their_director() {
    let lost = count(
        Survival::Synchronised,
        "synchronised_connections_outlive_their_director",
    );
    assert!(lost.is_none_or(|lost| lost == 0), "{lost:?} lost");
}

#[test]
fn stateless_failover_keeps_connections_that_nobody_told_of() {
    let lost = count(
        Survival::Stateless,
        "stateless_failover_keeps_connections_that_nobody_told_of",
    );
    assert!(lost.is_none_or(|lost| lost == 0), "{lost:?} lost");
}

/// Without it the tests above would prove nothing.
#[test]
fn connections_end_with_their_director_otherwise() {
    let lost = count(
        Survival::Neither,
        "connections_end_with_their_director_otherwise",
    );
    assert!(lost.is_none_or(|lost| lost == LONG), "only {lost:?} lost");
}

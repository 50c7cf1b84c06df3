// SPDX-License-Identifier: Apache-2.0

//! The cost of 5,000 backends, half with tcp and half with http checks, each probed every 5 s.
//!
//! Run by `cargo run --profile measure -p portolan-probe --example checks_cost`; takes 40 s. The engine
//! has a thread of its own, whose processor time counts. Each figure is one line.

#![allow(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "its purpose is to print figures, which are far below 2^52"
)]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use portolan_health::{Administrative, Assigned, Backend, LoadBalancer};
use portolan_model::check::{Check, HealthPolicy, Probe, TcpProbe};
use portolan_probe::{
    BUCKETS, Clock, Context, Counts, Engine, Inputs, Limits, Overrides, ResultKind, Wanted,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Backends of each kind of check.
const BACKENDS: u16 = 2_500;
/// Backends of one load balancer.
const EACH: u16 = 10;
/// The time in which first probes are spread, which is not measured.
const WARM: Duration = Duration::from_secs(10);
/// The measured time.
const MEASURED: Duration = Duration::from_secs(30);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn main() -> std::io::Result<()> {
    let port = serve()?;
    let engine = thread::spawn(move || measure(port));
    let (cpu, before, after) = engine
        .join()
        .map_err(|_| std::io::Error::other("the engine ended"))??;
    let probes = total(&after) - total(&before);
    let passes = |counts: &Counts| -> u64 {
        let those = counts
            .checks
            .iter()
            .filter(|((_, result), _)| *result == ResultKind::Pass);
        those.map(|(_, count)| count).sum()
    };
    let other = probes - (passes(&after) - passes(&before));
    let expected = u64::from(BACKENDS) * 2 * MEASURED.as_secs() / 5;
    println!("figure health_checks {probes} probes");
    goal(
        "health_checks_share",
        probes as f64 / expected as f64,
        "x",
        ">=",
        0.95,
    );
    goal(
        "health_checks_without_pass",
        other as f64,
        "probes",
        "<=",
        0.0,
    );
    goal(
        "health_check_cpu",
        cpu.as_secs_f64() / MEASURED.as_secs_f64(),
        "cores",
        "<=",
        0.5,
    );
    goal(
        "health_check_lateness_p99",
        p99(&before, &after),
        "ms",
        "<=",
        100.0,
    );
    Ok(())
}

fn goal(name: &str, value: f64, unit: &str, operator: &str, bound: f64) {
    let met = match operator {
        "<=" => value <= bound,
        _ => value >= bound,
    };
    let verdict = if met { "ok" } else { "short" };
    println!("figure {name} {value:.3} {unit} goal {operator} {bound} {verdict}");
}

fn total(counts: &Counts) -> u64 {
    counts.checks.values().sum()
}

/// The upper bound of the bucket that has the 99th percentile, in milliseconds.
fn p99(before: &Counts, after: &Counts) -> f64 {
    let (old, new) = (before.lateness.buckets, after.lateness.buckets);
    let all = after.lateness.count() - before.lateness.count();
    let mut seen = 0;
    for (index, bound) in BUCKETS.iter().enumerate() {
        seen += new[index] - old[index];
        if seen * 100 >= all * 99 {
            return *bound as f64;
        }
    }
    f64::INFINITY
}

/// Servers for all loopback addresses, in threads of their own: they answer a request, or wait for the
/// end of the connection.
fn serve() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    for _ in 0..8 {
        let listener = listener.try_clone()?;
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                // A tcp probe ends the connection without a byte.
                if stream.read(&mut [0; 1_024]).is_ok_and(|length| length > 0) {
                    let _ = stream.write_all(ANSWER);
                }
            }
        });
    }
    Ok(port)
}

type Measured = (Duration, Counts, Counts);

fn measure(port: u16) -> std::io::Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (_wanted, wanted) = watch::channel(wanted(port));
        let (_overrides, overrides) = watch::channel(Overrides::new());
        let clock = Clock::new("", Duration::ZERO);
        let (_, suspended) = watch::channel(false);
        let (_, limits) = watch::channel(Limits::default());
        let inputs = Inputs {
            wanted,
            overrides,
            suspended,
            limits,
        };
        let (engine, handle) = Engine::new(Context::default(), None, clock, inputs, None);
        let token = CancellationToken::new();
        let engine = tokio::spawn(engine.run(token.clone()));
        tokio::time::sleep(WARM).await;
        let (cpu, before) = (cpu(), handle.counts());
        tokio::time::sleep(MEASURED).await;
        let spent = self::cpu().saturating_sub(cpu);
        let after = handle.counts();
        token.cancel();
        engine.await.map_err(std::io::Error::other)?;
        Ok((spent, before, after))
    })
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn wanted(port: u16) -> Wanted<u16> {
    let tcp = Check::new(Probe::Tcp(TcpProbe::default()));
    let http = Check::new(Probe::Http(Box::default()));
    let kinds: [Arc<[Assigned]>; 2] = [tcp, http].map(|check| [Assigned::direct(check)].into());
    let numbers = (0..BACKENDS * 2 / EACH).map(|number| (number, &kinds[usize::from(number % 2)]));
    let balancer = |(number, checks): (u16, &Arc<[Assigned]>)| {
        let backends = (number * EACH..(number + 1) * EACH).map(|index| {
            let [high, low] = index.to_be_bytes();
            let address = IpAddr::from([127, 1, high, low]);
            let backend = Backend {
                weight: 1,
                checks: Arc::clone(checks),
                administrative: Administrative::Enabled,
                serves_already: false,
            };
            (SocketAddr::new(address, port), backend)
        });
        let balancer = LoadBalancer {
            name: format!("default/lb-{number}").into(),
            frontend: "TCP/192.0.2.10:80".into(),
            policy: HealthPolicy::default(),
            has_sorry_server: false,
            backends: backends.collect(),
        };
        (number, Arc::new(balancer))
    };
    numbers.map(balancer).collect()
}

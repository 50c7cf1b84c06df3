// SPDX-License-Identifier: Apache-2.0

//! Schedulers that hash an address: clients of a backend that drains or is down get another one. Shares by weight.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Host, Protocol, RequestError};
use portolan_e2e::wait::wait_for;

use super::packets::ask_from;
use super::world::{CHECKS, PORT, VIP, World, balancer, serve, vip};

/// Schedulers that hash the client's address, with the virtual address of each.
const BY_CLIENT: [(&str, &str); 2] = [("sh", "192.0.2.100"), ("mh", "192.0.2.101")];
/// The scheduler that hashes the virtual address; it has [`addresses`].
const BY_ADDRESS: &str = "dh";

/// Addresses of the client.
fn sources() -> impl Iterator<Item = Ipv4Addr> {
    (100..140).map(|last| Ipv4Addr::new(192, 168, 77, last))
}

/// Virtual addresses whose hashes differ.
fn addresses() -> impl Iterator<Item = String> {
    (110..142).map(|last| format!("192.0.2.{last}"))
}

fn file(reals: &[&Host]) -> String {
    let backend = |real: &&Host| format!("  - {{address: {}}}\n", real.v4());
    let backends: String = reals.iter().map(backend).collect();
    let by_client = BY_CLIENT.map(|(scheduler, address)| (scheduler, address.to_owned(), ""));
    // It refuses the clients of weight 0.
    let remove = "  health: {onFailure: Remove}\n";
    let all: Vec<_> = addresses().collect();
    let by_address = [(BY_ADDRESS, all.join(", "), remove)];
    let mut text = String::new();
    for (scheduler, addresses, health) in by_client.into_iter().chain(by_address) {
        let _ = write!(
            text,
            "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {scheduler}}}\nspec:\n  \
             frontends: [{{addresses: [{addresses}], port: {PORT}}}]\n  scheduler: {scheduler}\n  \
             sourceNat: true\n  checks: {CHECKS}\n{health}  backends:\n{backends}"
        );
    }
    text
}

/// The server of a client, or the reason why it has none.
fn name(asked: Result<String, RequestError>) -> String {
    asked.unwrap_or_else(|error| error.to_string())
}

/// Servers of all clients, by the schedulers that hash the client's address.
fn by_client(world: &World) -> BTreeMap<&'static str, BTreeSet<String>> {
    let ask = |(scheduler, address)| {
        let client = world.client();
        let names = sources().map(|source| name(ask_from(client, source.into(), vip(address))));
        (scheduler, names.collect())
    };
    BY_CLIENT.into_iter().map(ask).collect()
}

/// The same with the scheduler that hashes the virtual address.
fn all(world: &World) -> BTreeMap<&'static str, BTreeSet<String>> {
    let ask = |address: String| {
        let answer = world.client().request(Protocol::Tcp, vip(&address), PROMPT);
        name(answer.map(|answer| answer.name))
    };
    let mut all = by_client(world);
    all.insert(BY_ADDRESS, addresses().map(ask).collect());
    all
}

/// Waits until all clients are answered, by these servers, and remains so.
fn wait_for_all(world: &World, expected: &[&Host]) {
    let names: BTreeSet<_> = expected.iter().map(|host| host.name().to_owned()).collect();
    let mut last = BTreeMap::new();
    let mut is_so = || {
        last = all(world);
        last.values().all(|servers| *servers == names)
    };
    let waited = wait_for("the right servers", PATIENT, || is_so().then_some(()));
    let stays = waited.is_ok() && (0..2).all(|_| is_so());
    assert!(stays, "{last:?}, expected {names:?}: {}", world.ipvsadm());
}

/// Changes the state of a backend by command.
fn command(world: &World, verb: &str, scheduler: &str, host: &Host) -> (Option<i32>, String) {
    let backend = format!("{scheduler}/{}", host.v4());
    world.ask_agent(&["backend", verb, &backend])
}

/// Ends the clients' asking, also if the test panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn no_client_is_refused_while_one_backend_drains_and_one_is_down() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(4);
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| world.real(number));
    let _serving = [a, b, d].map(serve);
    let serving_c = serve(c);
    let added = sources().map(|source| format!("address add {source}/24 dev eth0"));
    let added: Vec<_> = added.collect();
    world.client().namespace().ip(&added).unwrap();
    world.write(&file(&[a, b, c, d]));
    let _agent = world.start_agent();
    wait_for_all(&world, &[a, b, c, d]);

    // Clients ask all the time while the drain begins.
    let is_over = AtomicBool::new(false);
    let (drained, seen) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !is_over.load(Ordering::Acquire) {
                seen.extend(by_client(&world).into_values().flatten());
            }
            seen
        });
        let over = Over(&is_over);
        let drained = BY_CLIENT.map(|(scheduler, _)| command(&world, "drain", scheduler, d));
        let is_without = |servers: &BTreeSet<String>| !servers.contains(d.name());
        let is_drained = || by_client(&world).values().all(is_without).then_some(());
        wait_for("the drain", PATIENT, is_drained).unwrap();
        drop(over);
        (drained, asking.join().unwrap())
    });
    for (code, text) in drained {
        assert_eq!(code, Some(0), "{text}");
    }
    let names: BTreeSet<_> = [a, b, c, d].map(|host| host.name().to_owned()).into();
    assert!(!seen.is_empty(), "nobody asked");
    assert!(seen.is_subset(&names), "{seen:?}");
    // With this scheduler a drained backend is no real server any more.
    let (code, text) = command(&world, "drain", BY_ADDRESS, d);
    assert_eq!(code, Some(0), "{text}");
    wait_for_all(&world, &[a, b, c]);

    drop(serving_c);
    wait_for_all(&world, &[a, b]);
    for (scheduler, _) in BY_CLIENT.into_iter().chain([(BY_ADDRESS, "")]) {
        let (code, text) = command(&world, "enable", scheduler, d);
        assert_eq!(code, Some(0), "{text}");
    }
    wait_for_all(&world, &[a, b, d]);
}

#[test]
fn shares_of_four_thousand_connections_are_those_of_the_weights() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let _serving = [serve(a), serve(b)];
    let text = balancer("  scheduler: wlc\n", &[(a, ""), (b, ", weight: 3")]);
    world.write(&text);
    let _agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    for scheduler in ["wlc", "wrr"] {
        world.write(&text.replace("wlc", scheduler));
        let is_set = || {
            let server = format!("-A -t {VIP}:{PORT} -s {scheduler}");
            world.ipvsadm().contains(&server).then_some(())
        };
        wait_for("the scheduler", PATIENT, is_set).unwrap();
        let counts = world.count(4000);
        assert_eq!(counts.values().sum::<usize>(), 4000, "{counts:?}");
        let of_a = counts[a.name()];
        assert!((950..=1050).contains(&of_a), "{scheduler}: {counts:?}");
        assert_eq!(of_a + counts[b.name()], 4000, "{counts:?}");
    }
}

// SPDX-License-Identifier: Apache-2.0

use super::*;

const COSTS: Costs = Costs {
    work_in_ns: 100,
    relay_in_ns: 200,
    relay_wait_ns: 50,
    send_ns: 10,
    agent_ns: 5,
    hop_ns: 1_000,
};

fn shape(relays: &[u32], agents: u32) -> Shape {
    Shape {
        relays: relays.to_vec(),
        agents,
    }
}

#[test]
fn a_root_alone_sends_one_after_another() {
    let arrival = spread(&shape(&[], 100), COSTS, Machines::Own);
    assert_eq!(arrival.last_ns, 100 + 100 * 10 + 1_000 + 5);
    assert_eq!(arrival.median_ns, 100 + 50 * 10 + 1_000 + 5);
    assert_eq!((arrival.root_ns, arrival.relays_ns), (1_100, 0));
}

#[test]
fn relays_divide_the_work_of_the_root() {
    let two_tiers = shape(&[2, 4], 100);
    assert_eq!(two_tiers.agents(), 800);
    let arrival = spread(&two_tiers, COSTS, Machines::Own);
    let relay = |streams: u64| 50 + 200 + streams * 10 + 1_000;
    assert_eq!(
        arrival.last_ns,
        100 + 2 * 10 + 1_000 + relay(4) + relay(100) + 5
    );
    assert_eq!(arrival.root_ns, 120);
    assert_eq!(arrival.relays_ns, 2 * 240 + 8 * 1_200);
    // The root's cost does not depend on the agents.
    let more = spread(&shape(&[2, 4], 10_000), COSTS, Machines::Own);
    assert_eq!(more.root_ns, arrival.root_ns);
}

#[test]
fn on_a_shared_machine_all_work_is_done_by_its_processors() {
    let shape = shape(&[2, 4], 100);
    let work = |arrival: Arrival| arrival.root_ns + arrival.relays_ns + 800 * COSTS.agent_ns;
    let one = spread(&shape, COSTS, Machines::Shared(1));
    assert!(one.last_ns >= work(one));
    let two = spread(&shape, COSTS, Machines::Shared(2));
    assert!(two.last_ns >= work(two) / 2 && two.last_ns < one.last_ns);
    // With a processor for each process nothing waits for another.
    let many = spread(&shape, COSTS, Machines::Shared(1_000));
    assert_eq!(many.last_ns, spread(&shape, COSTS, Machines::Own).last_ns);
    assert_eq!(
        spread(&shape, COSTS, Machines::Shared(2)),
        two,
        "deterministic"
    );
}

#[test]
fn a_table_is_limited_by_processor_or_network() {
    let costs = TableCosts {
        empty_bytes: 1e6,
        endpoint_bytes: 100.0,
        stream_bytes: 1e4,
        wire_bytes: 10.0,
        send_ns: 8.0,
    };
    let slow = table(costs, 1e6, 1_000.0, 2.0, 1e9);
    assert_eq!(slow.resident_bytes, 1e6 + 1e8 + 1e7);
    assert_eq!(slow.snapshot_bytes, 1e7);
    assert_eq!(slow.all_new_seconds, 80.0, "the network");
    let fast = table(costs, 1e6, 1_000.0, 2.0, 1e11);
    assert_eq!(fast.all_new_seconds, 4.0, "the processor");
}

// SPDX-License-Identifier: Apache-2.0

//! Frontends with ranges of ports, and with marks.

use super::*;

/// A load balancer with ranges of ports at two addresses, and a mark.
fn marked() -> Record {
    let mut direct = profile(ForwardingMethod::Direct);
    direct.checks.clear();
    let mut record = balanced(&[("10.0.0.1:0", direct)], &[VIP, "192.0.2.11"]);
    for frontend in &mut record.frontends {
        frontend.kind = FrontendKind::BalancedRanges;
        frontend.port = 0;
        frontend.ranges = [(21, 21), (2000, 2001)]
            .map(|(first, last)| portolan_model::PortRange { first, last })
            .into();
    }
    let address = FrontendAddress::Mark {
        family: Family::V6,
        mark: 7,
    };
    let by_mark = Frontend::new(FrontendKind::Balanced, address, 0);
    record.frontends.push(by_mark);
    record
}

#[test]
fn ranges_of_ports_are_one_virtual_server_by_a_mark_that_stays() {
    let desired = desired(&marked(), None, &KernelState::default());
    let keys: Vec<_> = desired.state.virtual_servers.keys().copied().collect();
    let theirs = VirtualServerKey::Mark {
        family: Family::V6,
        mark: 7,
    };
    let [VirtualServerKey::Mark { family, mark }, last] = keys[..] else {
        panic!("{keys:?}");
    };
    assert_eq!((family, last), (Family::V4, theirs));
    let mask = Config::default().short_circuit_mask;
    assert!(mask.contains(mark), "{mark:#x}");
    for server in desired.state.virtual_servers.values() {
        assert_eq!(
            server.real_servers.len(),
            usize::from(server == &desired.state.virtual_servers[&keys[0]])
        );
    }
    let entries = &desired.state.sets["KUBE-BALANCED-MARK"].entries;
    let expected = [VIP, "192.0.2.11"].iter().flat_map(|vip| {
        let ip = vip.parse().unwrap();
        [21, 2000, 2001].map(|port| SetEntry::IpPortMark(ip, Protocol::Tcp, port, mark))
    });
    assert_eq!(*entries, expected.collect());
    let routes: Vec<_> = desired.state.routes.keys().map(IpAddr::to_string).collect();
    assert_eq!(routes, [VIP, "192.0.2.11"]);

    // Another record whose hash comes first does not take it, and the kernel's entries lead to the same one.
    let mut state = KernelState::default();
    plan(&desired, &state.clone(), &Config::default())
        .iter()
        .for_each(|step| state.advance(step));
    let again = crate::desire(
        &table_with(&marked(), None),
        &facts(),
        &Config::default(),
        &state,
    );
    assert_eq!(again.state.virtual_servers, desired.state.virtual_servers);
    assert_eq!(plan(&again, &state, &Config::default()), []);
    // The operator's mark is not given to ranges of ports.
    let mut taken = marked();
    if let Some(last) = taken.frontends.last_mut() {
        last.address = FrontendAddress::Mark {
            family: Family::V4,
            mark,
        };
    }
    let other = crate::desire(
        &table_with(&taken, None),
        &facts(),
        &Config::default(),
        &state,
    );
    let entries = &other.state.sets["KUBE-BALANCED-MARK"].entries;
    let leads = |entry: &SetEntry| matches!(entry, SetEntry::IpPortMark(.., of) if *of == mark);
    assert!(!entries.is_empty() && !entries.iter().any(leads));
}

#[test]
fn all_ports_of_two_addresses_take_no_time_by_their_square() {
    let mut record = marked();
    for frontend in &mut record.frontends {
        if !frontend.ranges.is_empty() {
            let (first, last) = (1, 65_535);
            frontend.ranges = [portolan_model::PortRange { first, last }].into();
        }
    }
    let begin = std::time::Instant::now();
    let desired = desired(&record, None, &KernelState::default());
    // The square took minutes.
    assert!(begin.elapsed() < std::time::Duration::from_secs(20));
    let entries = &desired.state.sets["KUBE-BALANCED-MARK"].entries;
    assert_eq!(entries.len(), 2 * 65_535);
}

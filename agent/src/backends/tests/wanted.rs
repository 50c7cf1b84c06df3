// SPDX-License-Identifier: Apache-2.0

use portolan_model::ipvs::Tunnel;

use super::*;

#[test]
fn a_backend_that_no_frontend_is_in_front_of_counts_for_nothing() {
    let mut record = balanced("web");
    let other: SocketAddr = "[fd00::1]:80".parse().unwrap();
    record.destinations.push(Destination::new(other));
    let forward = |record: &mut Record, forwarding| {
        let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
        balancing.profile_of = vec![0; 3];
        balancing.profiles[0].forwarding = forwarding;
    };
    let backends = |record: &Record| {
        let record = (record.key.clone(), Arc::new(record.clone()));
        let records: ByRecord<Record> = [record].into_iter().collect();
        let balancers = load_balancers(&records);
        balancers[0].backends.keys().copied().collect::<Vec<_>>()
    };
    forward(&mut record, ForwardingMethod::Masquerade);
    assert_eq!(backends(&record), [backend(1), backend(2)]);
    forward(&mut record, ForwardingMethod::Tunnel(Tunnel::Ipip));
    assert_eq!(backends(&record), [backend(1), backend(2), other]);
    forward(&mut record, ForwardingMethod::Masquerade);
    let address = FrontendAddress::Vip("2001:db8::1".parse().unwrap());
    let frontend = Frontend::new(FrontendKind::Balanced, address, 80);
    record.frontends.push(frontend);
    assert_eq!(backends(&record), [backend(1), backend(2), other]);
}

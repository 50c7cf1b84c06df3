// SPDX-License-Identifier: Apache-2.0

//! The ports of Services in plans.

use super::rules::World;
use super::*;
use crate::PlanBook;

#[test]
fn a_plan_of_a_service_has_as_many_ports_as_an_export() {
    let ports = (1..=300).map(|port: u16| ServicePort {
        name: format!("p{port:03}").into(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    });
    let wide = Service {
        ports: ports.collect(),
        ..service("b", "web")
    };
    let mut world = World::new("{}", &[]);
    world.apply([put(Object::Service(wide))]);
    let mut book = PlanBook::new("a".into());
    let changes = world
        .pipeline()
        .plan_changes(&mut book, &mut Default::default());
    let mut services = changes.services.iter();
    let of_b = services.find(|(name, _)| *name.cluster == *"b");
    let plan = of_b.and_then(|(_, plan)| plan.as_ref()).unwrap();
    assert_eq!(plan.ports.len(), ServiceExport::MAX_PORTS);
    let last = plan.ports.keys().next_back().unwrap();
    assert_eq!(last.number, 256, "not the first ones");
}

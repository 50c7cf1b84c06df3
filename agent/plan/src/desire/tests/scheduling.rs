// SPDX-License-Identifier: Apache-2.0

//! Schedulers, flags and persistence of virtual servers.

use super::*;

/// Configurations of a record's virtual servers by address and by mark.
fn configs(
    record: &Record,
    config: &Config,
    facts: &NodeFacts,
) -> (VirtualServerConfig, VirtualServerConfig) {
    let desired = desire(
        &table(vec![record.clone()]),
        facts,
        config,
        &KernelState::default(),
    );
    let of = |marked: bool| {
        let mut servers = desired.state.virtual_servers.iter();
        let (_, server) = servers
            .find(|(key, _)| key.mark().is_some() == marked)
            .unwrap();
        VirtualServerConfig::clone(&server.config)
    };
    (of(false), of(true))
}

fn does(scheduler: &str, flags: u32, persistence: Option<u32>) -> VirtualServerConfig {
    VirtualServerConfig {
        scheduler: scheduler.to_owned().into(),
        flags: Flags(flags),
        persistence,
        ..VirtualServerConfig::round_robin()
    }
}

#[test]
fn service_takes_precedence_over_agent_and_default() {
    let plain = record(
        "svc",
        Protocol::Tcp,
        vec![vip(FrontendKind::ExternalIp, "198.51.100.1", false)],
    );
    let mut affine = plain.clone();
    affine.affinity = Some(Affinity {
        timeout_seconds: 60,
    });
    let mut named = affine.clone();
    named.scheduling = Scheduling {
        scheduler: Some("lc".into()),
        flags: Some(Flags(Flags::SCHED1 | 0x1000)),
    };
    let told = |scheduler| Config {
        scheduler: Some(scheduler),
        ..Config::default()
    };
    let with = facts();
    let without = NodeFacts {
        missing_schedulers: ["mh".to_owned()].into(),
        ..facts()
    };
    let default = Config::default();
    let mut flagged = affine.clone();
    flagged.scheduling = Scheduling {
        scheduler: Some("mh".into()),
        flags: Some(Flags(Flags::SCHED2)),
    };
    let mut hashed = affine.clone();
    hashed.scheduling.scheduler = Some("sh".into());
    let cases = [
        // Record, agent, node: by address, by mark.
        (&plain, &default, &with, ("rr", 0, None), ("rr", 0)),
        (&plain, &told("lc"), &with, ("lc", 0, None), ("lc", 0)),
        (&plain, &told("sh"), &with, ("sh", 8, None), ("sh", 8)),
        (&plain, &told("mh"), &with, ("mh", 0x18, None), ("mh", 0x18)),
        (&affine, &default, &with, ("rr", 0, Some(60)), ("mh", 8)),
        (&affine, &default, &without, ("rr", 0, Some(60)), ("rr", 0)),
        (
            &affine,
            &told("wrr"),
            &with,
            ("wrr", 0, Some(60)),
            ("mh", 8),
        ),
        (&affine, &told("mh"), &with, ("mh", 8, Some(60)), ("mh", 8)),
        (
            &affine,
            &told("sh"),
            &without,
            ("sh", 8, Some(60)),
            ("sh", 8),
        ),
        (&hashed, &told("mh"), &with, ("sh", 8, Some(60)), ("sh", 8)),
        // The Service's flags count, but affinity by mark is a hash without the port.
        (&named, &told("mh"), &with, ("lc", 8, Some(60)), ("mh", 8)),
        (&flagged, &default, &with, ("mh", 0x10, Some(60)), ("mh", 0)),
    ];
    for (index, (record, config, facts, address, mark)) in cases.into_iter().enumerate() {
        let expected = (
            does(address.0, address.1, address.2),
            does(mark.0, mark.1, None),
        );
        assert_eq!(configs(record, config, facts), expected, "case {index}");
    }
    let notes = |record: &Record, facts: &NodeFacts| {
        let records = table(vec![record.clone()]);
        desire(&records, facts, &default, &KernelState::default()).notes
    };
    assert_eq!(notes(&affine, &without), [Note::NoMaglev].into());
    assert!(notes(&affine, &with).is_empty());
    assert!(notes(&hashed, &without).is_empty());
    for frontend in &mut affine.frontends {
        *frontend = vip(FrontendKind::ExternalIp, "198.51.100.1", true);
    }
    assert!(notes(&affine, &without).is_empty());
}

#[test]
fn unknown_scheduler_is_never_requested() {
    let frontends = vec![vip(FrontendKind::ExternalIp, "198.51.100.1", false)];
    let mut hostile = record("svc", Protocol::Tcp, frontends);
    hostile.affinity = Some(Affinity {
        timeout_seconds: 60,
    });
    for name in ["nosuch", "", "RR", "rr\0"] {
        hostile.scheduling.scheduler = Some(name.into());
        let records = table(vec![hostile.clone()]);
        let config = Config::default();
        let desired = desire(&records, &facts(), &config, &KernelState::default());
        for server in desired.state.virtual_servers.values() {
            assert!(["rr", "mh"].contains(&&*server.config.scheduler), "{name}");
        }
        let [refused] = &desired.refused[..] else {
            panic!("{:?}", desired.refused);
        };
        let expected =
            format!("ns/svc/TCP: scheduler: {name:?} is not a scheduler of IPVS (rr, wrr, lc");
        assert!(refused.to_string().contains(&expected), "{refused}");
    }
}

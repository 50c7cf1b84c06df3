// SPDX-License-Identifier: Apache-2.0

//! Annotations of Services.

use portolan_model::ipvs::Flags;

use super::*;

fn annotated(annotations: Value) -> (catalog::Service, Vec<Found>) {
    let mut value = service_value(json!({}));
    value["metadata"]["annotations"] = annotations;
    service_of(&value)
}

fn field(name: &str) -> String {
    format!("metadata.annotations[{name}]: invalid_value")
}

#[test]
fn a_scheduler_has_a_name_of_ours_and_an_alias() {
    let (ours, alias) = ("portolan.dev/scheduler", "kube-router.io/service.scheduler");
    for name in ["rr", "twos", "lblcr", " lc "] {
        for annotation in [ours, alias] {
            let (service, problems) = annotated(json!({annotation: name}));
            assert_eq!(service.scheduling.scheduler.as_deref(), Some(name.trim()));
            assert_problems(&problems, &[]);
        }
    }
    for name in ["", "RR", "r r", "rr;", "../rr", "nosuch", "ftp", "pe_sip"] {
        for annotation in [ours, alias] {
            let (service, problems) = annotated(json!({annotation: name}));
            assert_eq!(service.scheduling.scheduler, None);
            assert_eq!(service.ports.len(), 1);
            assert_problems(&problems, &[(&field(annotation), "expected a scheduler")]);
        }
    }
    let (service, problems) = annotated(json!({ours: "lc", alias: "rr"}));
    assert_eq!(service.scheduling.scheduler.as_deref(), Some("lc"));
    assert_problems(&problems, &[]);
    let (service, problems) = annotated(json!({ours: "?", alias: "rr"}));
    assert_eq!(service.scheduling.scheduler, None);
    assert_problems(&problems, &[(&field(ours), "\"?\"")]);
}

#[test]
fn flags_are_the_kernels() {
    let (ours, alias) = (
        "portolan.dev/scheduler-flags",
        "kube-router.io/service.schedflags",
    );
    let cases = [
        ("flag-1", 0x08),
        ("flag-2", 0x10),
        ("flag-3", 0x20),
        ("sh-fallback", 0x08),
        ("sh-port", 0x10),
        ("mh-fallback,mh-port", 0x18),
        (" flag-3 , flag-1 ,", 0x28),
        ("", 0),
        (" , ", 0),
    ];
    for (text, expected) in cases {
        for annotation in [ours, alias] {
            let (service, problems) = annotated(json!({annotation: text}));
            assert_eq!(service.scheduling.flags, Some(Flags(expected)), "{text}");
            assert_problems(&problems, &[]);
        }
    }
    assert_eq!(annotated(json!({})).0.scheduling.flags, None);
    let (service, problems) = annotated(json!({ours: "flag-4,flag-1"}));
    assert_eq!(service.scheduling.flags, Some(Flags(Flags::SCHED1)));
    assert_problems(&problems, &[(&field(ours), "\"flag-4\" is not a flag")]);
    let (service, problems) = annotated(json!({ours: "ops"}));
    assert_eq!(service.scheduling.flags, None);
    assert_problems(&problems, &[(&field(ours), "\"ops\" is not a flag")]);
}

#[test]
fn a_flag_of_another_scheduler_is_left_out() {
    let (name, flags) = ("portolan.dev/scheduler", "portolan.dev/scheduler-flags");
    let (service, problems) = annotated(json!({name: "mh", flags: "sh-port,mh-fallback"}));
    assert_eq!(service.scheduling.flags, Some(Flags(Flags::SCHED1)));
    let what = "\"sh-port\" is a flag of scheduler sh, and this is mh";
    assert_problems(&problems, &[(&field(flags), what)]);
}

#[test]
fn a_drain_timeout_is_in_seconds_or_has_a_unit() {
    let name = "portolan.dev/drain-timeout";
    let cases = [
        (json!("0"), 0),
        (json!("45"), 45),
        (json!(45), 45),
        (json!("30s"), 30),
        (json!("5m"), 300),
        (json!(" 1h "), 3600),
        (json!("4294967295"), u32::MAX),
    ];
    for (value, expected) in cases {
        let (service, problems) = annotated(json!({name: value}));
        assert_eq!(service.drain_seconds, Some(expected));
        assert_problems(&problems, &[]);
    }
    let bad = [
        "",
        "s",
        "-1",
        "+1",
        "1.5h",
        "1h30m",
        "5 m",
        "5d",
        "4294967296",
        "1193047h",
    ];
    for value in bad {
        let (service, problems) = annotated(json!({name: value}));
        assert_eq!(service.drain_seconds, None, "{value}");
        assert_eq!(service.ports.len(), 1);
        assert_problems(
            &problems,
            &[(&field(name), &format!("{value:?}: expected seconds"))],
        );
    }
    assert_eq!(annotated(json!({})).0.drain_seconds, None);
}

#[test]
fn unsupported_annotations_are_reported_by_name() {
    let (service, problems) = annotated(json!({
        "kube-router.io/service.dsr": "tunnel",
        "kube-router.io/service.hairpin": "",
        "kube-router.io/service.local": null,
        "kube-router.io/service.advertise.externalip": "true",
        "kube-router.io/service.scheduler": "lc",
        "portolan.dev/shceduler": "rr",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }));
    assert_eq!(service.scheduling.scheduler.as_deref(), Some("lc"));
    let unsupported = |name: &str| format!("metadata.annotations[{name}]: unsupported");
    let expected = [
        "kube-router.io/service.dsr",
        "kube-router.io/service.hairpin",
        "kube-router.io/service.local",
        "portolan.dev/shceduler",
    ];
    let expected = expected.map(unsupported);
    let expected: Vec<_> = expected
        .iter()
        .map(|f| (f.as_str(), "not supported"))
        .collect();
    assert_problems(&problems, &expected);
}

#[test]
fn an_annotation_that_is_no_text_at_all_is_malformed() {
    let mut value = service_value(json!({}));
    value["metadata"]["annotations"] = json!({"portolan.dev/scheduler": ["rr"]});
    let problems = refused(Kind::Service, &value, Some("Service prod/web"));
    let field = "metadata.annotations.portolan.dev/scheduler: malformed";
    assert_problems(&problems, &[(field, "expected a string")]);
}

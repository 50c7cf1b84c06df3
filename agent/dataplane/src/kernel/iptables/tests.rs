use portolan_model::NodeInfo;
use portolan_plan::{Config, rules};

use super::*;

fn saved(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn ours() -> Rules {
    rules(Family::V4, &Config::default(), &NodeInfo::default())
}

#[test]
fn a_jump_is_found_with_kube_proxys_comment_and_only_in_its_table() {
    let saved = saved(
        "*nat\n-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         *filter\n-A INPUT -j KUBE-SERVICES-OTHER",
    );
    let rules = ours();
    let found = |chain| {
        let jump = rules
            .jumps
            .iter()
            .find(|j| j.chain == chain && j.table == "nat")
            .unwrap();
        jump_line(jump, &saved).is_some()
    };
    assert!(found("PREROUTING"));
    assert!(!found("OUTPUT"));
}

#[test]
fn counters_and_other_peoples_rules_leave_the_fingerprint_as_it_is() {
    let text =
        "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\n-A PREROUTING -j KUBE-SERVICES";
    let touched = text.replace("[0:0]", "[7:9]") + "\n-A PREROUTING -j DOCKER\n:DOCKER - [0:0]";
    let before = fingerprint_of(&ours(), &saved(text));
    assert_eq!(before.len(), 3);
    assert_eq!(before, fingerprint_of(&ours(), &saved(&touched)));
    for change in [
        ("-j RETURN", "-j DROP"),
        ("-A PREROUTING -j KUBE-SERVICES", ""),
    ] {
        let changed = text.replace(change.0, change.1);
        assert_ne!(
            before,
            fingerprint_of(&ours(), &saved(&changed)),
            "{change:?}"
        );
    }
}

#[test]
fn removal_takes_what_there_is_and_nothing_else() {
    let saved = saved(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-OTHER - [0:0]\n\
         -A PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n-A PREROUTING -j DOCKER\n*filter",
    );
    assert_eq!(
        removal(&ours(), &saved),
        "*nat\n:KUBE-SERVICES - [0:0]\n\
         -D PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n-X KUBE-SERVICES\nCOMMIT\n"
    );
    assert_eq!(removal(&ours(), &[]), "");
}

#[test]
fn removal_takes_what_an_earlier_version_left() {
    let saved =
        saved("*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n-A OUTPUT -j KUBE-PROXY-FIREWALL\n*nat");
    assert_eq!(
        removal(&ours(), &saved),
        "*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n\
         -D OUTPUT -j KUBE-PROXY-FIREWALL\n-X KUBE-PROXY-FIREWALL\nCOMMIT\n"
    );
}

#[test]
fn of_two_jumps_with_one_aim_ours_goes_and_a_single_one_stays() {
    let saved = saved(
        "*nat\n-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A PREROUTING -j DOCKER\n*filter",
    );
    assert_eq!(
        second_jumps(&ours(), &saved),
        "*nat\n-D PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
    );
    assert_eq!(second_jumps(&ours(), &saved[2..]), "");
}

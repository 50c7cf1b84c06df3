// SPDX-License-Identifier: Apache-2.0

use super::*;

const MASQUERADE: u32 = 0x4000;

fn users(saved: &str) -> MarkUsers {
    let saved: Vec<String> = saved.lines().map(str::to_owned).collect();
    let ours = ["KUBE-SHORT-CIRCUIT-END", "KUBE-MARK-MASQ"].map(str::to_owned);
    let mut users = MarkUsers::default();
    users.scan(&saved, &ours.into());
    users
}

fn chosen(saved: &str, asked: Option<u32>) -> Result<u32, String> {
    let mask = users(saved).choose(asked, MASQUERADE);
    mask.map(MarkMask::bits).map_err(|error| error.to_string())
}

/// A part of the rules of Felix 3.28.
const CALICO: &str = "*mangle\n:cali-PREROUTING - [0:0]\n:cali-from-host-endpoint - [0:0]\n\
        -A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING\n\
        -A cali-PREROUTING -m comment --comment \"cali:x\" -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
        -A cali-PREROUTING -j MARK --set-xmark 0x0/0xe0000\nCOMMIT";

#[test]
fn default_mask_is_kept_without_other_users() {
    let own = "*mangle\n:KUBE-SHORT-CIRCUIT-END - [0:0]\n\
            -A KUBE-SHORT-CIRCUIT-END -m mark ! --mark 0x0/0x3fff0000 -j MARK --set-xmark 0x0/0x3fff0000\n\
            -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
            -A OTHER -m mark --mark 0x1/0x1 -j ACCEPT";
    assert_eq!(chosen("", None), Ok(0x3fff_0000));
    assert_eq!(chosen(own, None), Ok(0x3fff_0000));
}

#[test]
fn free_bits_are_chosen_beside_known_programs() {
    assert_eq!(chosen(CALICO, None), Ok(0x3fff));
    let cilium = ":CILIUM_PRE_mangle - [0:0]\n\
            -A CILIUM_PRE_mangle -m socket -j MARK --set-xmark 0x200/0xffffffff";
    assert_eq!(chosen(cilium, None), Ok(0x30ff));
    let router = "-A KUBE-POD-FW-X -m mark ! --mark 0x10000/0x10000 -j REJECT";
    assert_eq!(chosen(router, None), Ok(0xfffc_0000));
}

#[test]
fn too_few_free_bits_are_refused_with_the_users_names() {
    let crowded = format!("{CALICO}\n:CILIUM_INPUT - [0:0]\n-A X -m mark --mark 0x0/0x30ff -j Y");
    let error = chosen(&crowded, None).unwrap_err();
    assert!(error.contains("Calico, Cilium, the chain X"), "{error}");
    assert!(error.contains("--short-circuit-mask"), "{error}");
}

#[test]
fn mask_that_was_asked_for_gives_way_to_rules_only() {
    // Calico was given other bits than its default.
    let moved = ":cali-INPUT - [0:0]\n-A cali-INPUT -m mark --mark 0x100000/0x100000 -j ACCEPT";
    assert_eq!(chosen(moved, Some(0x000f_0000)), Ok(0x000f_0000));
    assert_eq!(
        chosen(CALICO, Some(0x3fff_0000)).unwrap_err(),
        "--short-circuit-mask 0x3fff0000: Calico uses the bits 0xf0000 of packet marks on this \
             node: set --short-circuit-mask to 0x3fff, which nobody uses, or change its \
             iptablesMarkMask (FelixConfiguration)"
    );
    let error = chosen("", Some(0xff00)).unwrap_err();
    assert!(
        error.starts_with("--short-circuit-mask 0xff00: "),
        "{error}"
    );
}

#[test]
fn bits_of_rules_are_those_that_they_read_or_write() {
    for (rule, bits) in [
        ("-m mark --mark 0x10000/0x30000 -j ACCEPT", 0x30000),
        ("-m mark ! --mark 0x0/0x1000 -j ACCEPT", 0x1000),
        ("-j MARK --set-xmark 0x200/0xffffffff", 0x200),
        ("-j MARK --or-mark 0x80", 0x80),
        ("-j MARK --and-mark 0xfffffffe", 1),
        (
            "-j CONNMARK --save-mark --nfmask 0x80 --ctmask 0x100",
            0x180,
        ),
        ("-m connmark --mark 5 -j X", 5),
        ("-m comment --comment \"--mark\" -j X", 0),
        ("-j MARK --set-mark", 0),
    ] {
        assert_eq!(bits_of(rule), bits, "{rule}");
    }
}

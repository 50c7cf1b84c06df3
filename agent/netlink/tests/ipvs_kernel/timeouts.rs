// SPDX-License-Identifier: Apache-2.0

//! IPVS's own timeouts.

use portolan_netlink::ipvs::{Ipvs, Timeouts};

use crate::LANES;
use crate::common::in_netns;

#[test]
fn timeouts_are_set_one_by_one() {
    let test = "timeouts_are_set_one_by_one";
    in_netns(test, LANES, Ipvs::open, |mut ipvs| {
        let before = ipvs.timeouts().expect("timeouts");
        assert!(
            before.tcp > 0 && before.tcp_fin > 0 && before.udp > 0,
            "{before:?}"
        );
        let only_udp = Timeouts {
            udp: before.udp + 7,
            ..Timeouts::default()
        };
        ipvs.set_timeouts(&only_udp).expect("set");
        let expected = Timeouts {
            udp: before.udp + 7,
            ..before
        };
        assert_eq!(ipvs.timeouts(), Ok(expected));
        let all = Timeouts {
            tcp: 3600,
            tcp_fin: 60,
            udp: 30,
        };
        ipvs.set_timeouts(&all).expect("set");
        assert_eq!(ipvs.timeouts(), Ok(all));
    });
}

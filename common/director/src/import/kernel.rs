// SPDX-License-Identifier: Apache-2.0

//! State of IPVS in the kernel: virtual servers, timeouts and sync daemons.

use std::collections::BTreeMap;

use portolan_model::ipvs::{SyncDaemon, SyncRole};

use super::{Class, Draft, Import, Origin, ipvsadm};
use crate::document::{DirectorSpec, Period, SyncDocument, TimeoutsDocument};
use crate::generation::File;

/// State that was read from the kernel.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// The virtual servers as commands of `ipvsadm`, with thresholds.
    pub commands: String,
    /// Objects that `ipvsadm` has no options for, such as protocols of its own.
    pub unknown: usize,
    /// The timeouts of TCP, of closing TCP and of UDP, in seconds.
    pub timeouts: [u32; 3],
    /// The sync daemons.
    pub daemons: BTreeMap<SyncRole, SyncDaemon>,
}

/// The timeouts of a kernel that nobody has changed (`net/netfilter/ipvs/ip_vs_proto_tcp.c`, `ip_vs_proto_udp.c`).
const DEFAULT_TIMEOUTS: [u32; 3] = [900, 120, 300];

/// Reads what a kernel has into objects of the director of a name. With `merge`, services that differ in nothing but
/// their addresses and ports become one object.
#[must_use]
pub fn import(kernel: &Kernel, director: &str, merge: bool) -> Import {
    let mut draft = Draft::default();
    let origin = Origin::whole("kernel");
    let file = File {
        name: "kernel",
        text: &kernel.commands,
    };
    ipvsadm::read(&mut draft, file, merge);
    if kernel.unknown > 0 {
        let message = format!(
            "{} virtual or real servers of a kind that is not known here",
            kernel.unknown
        );
        draft.note(&origin, Class::LeftOut, "virtual servers", message);
    }
    if kernel.timeouts != DEFAULT_TIMEOUTS {
        draft.note(&origin, Class::Same, "--set", "");
        timeouts(draft.director(director), kernel.timeouts);
    }
    daemons(&mut draft, &origin, director, &kernel.daemons);
    draft.finish()
}

fn timeouts(spec: &mut DirectorSpec, timeouts: [u32; 3]) {
    let [tcp, tcp_fin, udp] = timeouts.map(|seconds| Some(Period::seconds(seconds.into())));
    spec.timeouts = Some(TimeoutsDocument { tcp, tcp_fin, udp });
}

/// A director runs both daemons, with equal settings.
fn daemons(
    draft: &mut Draft,
    origin: &Origin,
    director: &str,
    daemons: &BTreeMap<SyncRole, SyncDaemon>,
) {
    let Some(daemon) = daemons.values().next() else {
        return;
    };
    let (class, message) = match daemons.values().nth(1) {
        None => (Class::Nearest, "one of master and backup ran: both will"),
        Some(other) if other == daemon => (Class::Same, ""),
        Some(_) => (
            Class::Nearest,
            "master and backup differ: the master's settings",
        ),
    };
    draft.note(origin, class, "--start-daemon", message);
    draft.director(director).sync = Some(SyncDocument {
        interface: daemon.interface.clone(),
        id: daemon.id.into(),
        group: Some(daemon.group),
        port: Some(daemon.port),
        ttl: Some(daemon.ttl),
        max_length: Some(daemon.max_length),
        ..SyncDocument::default()
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const COMMANDS: &str = "-A -t 192.0.2.10:80 -s wrr -p 600\n\
        -a -t 192.0.2.10:80 -r 10.0.0.1:80 -g -w 3 -x 100 -y 50\n\
        -A -f 7 -6 -s mh -b flag-1\n\
        -a -f 7 -6 -r [fd00::1]:0 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum\n";

    fn daemon(id: u8) -> SyncDaemon {
        SyncDaemon {
            interface: "eth1".into(),
            id,
            max_length: 1472,
            group: [224, 0, 0, 81].into(),
            port: 8848,
            ttl: 1,
        }
    }

    fn kernel() -> Kernel {
        Kernel {
            commands: COMMANDS.to_owned(),
            timeouts: DEFAULT_TIMEOUTS,
            ..Kernel::default()
        }
    }

    #[test]
    fn all_of_a_kernel_becomes_objects() {
        let full = Kernel {
            timeouts: [900, 60, 300],
            daemons: SyncRole::ALL.map(|role| (role, daemon(7))).into(),
            ..kernel()
        };
        let import = import(&full, "lb1", false);
        assert_eq!(import.exit_code(), 0, "{}", import.report());
        let [first, second] = &import.generation.load_balancers[..] else {
            panic!("{}", import.to_yaml());
        };
        let thresholds = first.backends[0].thresholds;
        assert_eq!((thresholds.maximum, thresholds.resume), (100, 50));
        assert!(second.frontends[0].packets.is_marked());
        let director = &import.generation.directors[0];
        assert_eq!(director.name, "lb1");
        assert_eq!(director.timeouts.tcp_fin, Some(Duration::from_secs(60)));
        let sync = director.sync.as_ref().unwrap();
        assert_eq!((&*sync.interface, sync.id), ("eth1", 7));
    }

    #[test]
    fn what_is_not_the_same_is_told() {
        let plain = import(&kernel(), "lb1", false);
        assert!(plain.generation.directors.is_empty());
        assert_eq!(plain.exit_code(), 0);
        let half = Kernel {
            daemons: [(SyncRole::Backup, daemon(0))].into(),
            unknown: 2,
            ..kernel()
        };
        let half = import(&half, "lb1", false);
        assert_eq!(half.exit_code(), 2);
        let report = half.report();
        for part in ["2 virtual or real servers", "one of master and backup ran"] {
            assert!(report.contains(part), "{report}");
        }
    }
}

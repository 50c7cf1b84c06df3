// SPDX-License-Identifier: Apache-2.0

//! Questions for the names of the objects, with neighbouring names.

use std::collections::BTreeSet;

use hickory_proto::rr::RecordType;

use crate::ask::Question;

const SERVICES: &str = "svc1 svc6 dual many unnamed outside down proxied hdls1 zoned portless unready nothing set late early \
    orphan svc0 external external-to-service external-to-nothing external-twice external-to-headless loop-a loop-b \
    external-address external-to-itself external-to-no-address external-to-servers external-to-pod external-to-apex \
    external-to-second external-to-no-second external-missing external-to-nobody dotted any-port name-servers SVC1 \
    Hdls1";

const BELOW: &str = "ep1a.svc1 shared.svc1 172-16-0-3.svc1 172-16-0-4.svc1 x.svc1 x.ep1a.svc1 10-96-1-1.svc1 \
    ep6.svc6 fd00-99--6.svc6 pair.dual x.dual 172-16-1-2.hdls1 172-16-1-3.hdls1 dup-name.hdls1 shared.hdls1 \
    upper-case.hdls1 UPPER-CASE.hdls1 5678-abcd--1.hdls1 5678-abcd--2.hdls1 fd00-0-0-1--0.hdls1 x.hdls1 \
    172-16-2-20.portless 172-16-2-1.unready set-0.set set-1.set 10-240-1-10.set 10-240-1-20.late 10-240-1-21.early \
    172-16-9-9.orphan x.external x.external-to-service x.svc0 early-0.early set-0.set 10-240-1-30.dotted \
    dotted.name-0.dotted 172-16-2-30.any-port one.any-port 172-16-2-31.any-port";

const PORTS: &str = "_http._tcp.svc1 _http._tcp.svc6 _http._tcp.down _http._tcp.dual _http._tcp.many _https._tcp.many _dns._udp.many \
    _sctp._sctp.many _http._udp.svc1 _x._tcp.svc1 _http._tcp.unnamed _http._tcp.hdls1 _http._tcp.portless \
    _http._tcp.unready _http._tcp.set _http._tcp.late _http._tcp.early _http._tcp.nothing _http._udp.hdls1 \
    _http._tcp.external _http._tcp.svc0 _tcp.svc1 _tcp.hdls1 _http._tcp.orphan _any._tcp.any-port \
    _http._tcp.any-port _x._udp.any-port";

/// Names that only the plugin, and servers compatible with it, accept.
const ODD: &str = "http.tcp.svc1 _http.tcp.many HTTPS._TCP.many _._tcp.many _._udp.many _._sctp.many _https._.many \
    _._.many _._tcp.unnamed _._.unnamed _._.hdls1 _._tcp.hdls1 _._.portless _._tcp.portless _._tcp.any-port \
    _any._.any-port _._udp.svc1 _._.external _._.svc0 __http._tcp.svc1 _http._tcp.x.svc1";

/// Names of topology zones, which the plugin serves with `zonal`, and neighbouring names.
const ZONAL: &str = "west-2a.pin._zone.zoned west-2b.pin._zone.zoned corp.example.test.pin._zone.zoned \
    east.pin._zone.zoned west-2a.prefer._zone.zoned east.prefer._zone.zoned west-2a.other._zone.zoned \
    _zone.zoned pin._zone.zoned prefer._zone.zoned _http._tcp.west-2a.pin._zone.zoned a.pin._zone.nothing \
    a.prefer._zone.nothing a.pin._zone.unready a.pin._zone.hdls1 a.prefer._zone.hdls1 a.pin._zone.svc1 \
    a.prefer._zone.svc1 a.pin._zone.external a.pin._zone.svc0 a.pin._zone.orphan";

const OTHERS: &str = "@ svc pod testns.svc emptyns.svc podns.svc nons.svc kube-system.svc testns.pod emptyns.pod \
    nons.pod svc1.emptyns.svc svc1.nons.svc kubernetes.default.svc _https._tcp.kubernetes.default.svc x foo.x dns \
    ns.dns x.dns dns-version x.dns-version 10-240-0-1.podns.pod 10-240-0-1.testns.pod 10-240-1-10.testns.pod \
    fd00-240--6.podns.pod 172-16-0-1.podns.pod 10-240-0-1.nons.pod blah.podns.pod 10-240-0.podns.pod \
    10-240-0-9.podns.pod 10-240-0-7.podns.pod fd00-240--7.podns.pod";

const ODD_OTHERS: &str = "x.10-240-0-1.podns.pod x.y.10-240-0-9.podns.pod x.y.z.10-240-0-1.podns.pod --1.podns.pod \
    0--1.podns.pod fd00--.podns.pod fd00--0.podns.pod --ffff-a00-1.podns.pod 010-240-0-1.podns.pod \
    1-2-3-4-5-6-7-8.podns.pod Svc Dns-Version apex.dns";

const ODD_REVERSE: &str = "in-addr.arpa ip6.arpa svc.in-addr.arpa pod.ip6.arpa x.svc.in-addr.arpa ns.dns.in-addr.arpa \
    dns-version.ip6.arpa 01.1.96.10.in-addr.arpa x.1.1.96.10.in-addr.arpa \
    x.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa \
    x.y.z.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa \
    w.x.y.z.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa";

const REVERSE: &str = "1.1.96.10.in-addr.arpa 3.1.96.10.in-addr.arpa 9.1.96.10.in-addr.arpa 1.0.96.10.in-addr.arpa \
    2.1.16.172.in-addr.arpa 4.1.16.172.in-addr.arpa 1.0.16.172.in-addr.arpa 4.0.16.172.in-addr.arpa \
    99.0.16.172.in-addr.arpa 1.2.16.172.in-addr.arpa 9.9.16.172.in-addr.arpa 7.100.51.198.in-addr.arpa \
    10.1.240.10.in-addr.arpa 20.1.240.10.in-addr.arpa 21.1.240.10.in-addr.arpa 1.0.240.10.in-addr.arpa \
    1.0.0.127.in-addr.arpa 8.1.96.10.in-addr.arpa 1.4.16.172.in-addr.arpa 1.16.172.in-addr.arpa 53.1.96.10.in-addr.arpa 30.1.240.10.in-addr.arpa \
    30.2.16.172.in-addr.arpa 9.0.240.10.in-addr.arpa \
    6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa \
    3.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa \
    1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa \
    9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa";

const KINDS: [RecordType; 9] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::CNAME,
    RecordType::TXT,
    RecordType::PTR,
    RecordType::MX,
    RecordType::SOA,
    RecordType::NS,
];

/// Types that no name has, or that are not answered by name.
const MORE_KINDS: [RecordType; 5] = [
    RecordType::ANY,
    RecordType::HTTPS,
    RecordType::NAPTR,
    RecordType::AXFR,
    RecordType::IXFR,
];

fn absolute(lists: &[&str], below: &str) -> Vec<String> {
    let names = lists.iter().flat_map(|list| list.split_whitespace());
    let names = names.map(|name| match name {
        "@" => below.to_owned(),
        name => format!("{name}.{below}"),
    });
    names.collect()
}

fn each(names: &[String], kinds: &[RecordType]) -> BTreeSet<Question> {
    let with_kinds = names.iter().flat_map(|name| {
        kinds.iter().map(|kind| Question {
            name: name.clone(),
            kind: *kind,
        })
    });
    with_kinds.collect()
}

fn names(zone: &str) -> Vec<String> {
    let services = format!("testns.svc.{zone}");
    let of_services = absolute(&[SERVICES, BELOW, PORTS], &services);
    [of_services, absolute(&[OTHERS], zone)].concat()
}

/// Queries for all names of a zone, and for many that do not exist, each with every type.
pub(crate) fn of_zone(zone: &str) -> BTreeSet<Question> {
    let odd = absolute(&[ODD, ZONAL], &format!("testns.svc.{zone}"));
    let listed = [names(zone), odd, absolute(&[ODD_OTHERS], zone)].concat();
    around(&listed)
}

/// The same for the whole reverse tree.
fn of_addresses() -> BTreeSet<Question> {
    let mut listed = absolute(&[REVERSE, ODD_REVERSE], ".");
    listed.iter_mut().for_each(|name| _ = name.pop());
    around(&listed)
}

/// Names with their neighbours: a name below, and the same in capitals.
fn around(listed: &[String]) -> BTreeSet<Question> {
    let mut all = each(listed, &[&KINDS[..], &MORE_KINDS].concat());
    let below: Vec<_> = listed.iter().map(|name| format!("x.{name}")).collect();
    let capitals: Vec<_> = listed.iter().map(|name| name.to_uppercase()).collect();
    all.extend(each(&below, &KINDS));
    all.extend(each(&capitals, &KINDS));
    all
}

/// All queries to servers that are compatible with the plugin.
pub(crate) fn all() -> BTreeSet<Question> {
    let mut all = of_zone("cluster.local.");
    all.extend(of_addresses());
    all
}

/// The queries to zone files and to etcd: names of the specification.
pub(crate) fn of_exports() -> BTreeSet<Question> {
    let mut reverse = absolute(&[REVERSE], ".");
    reverse.iter_mut().for_each(|name| _ = name.pop());
    each(&[names("cluster.local."), reverse].concat(), &KINDS)
}

/// Names below a namespace of the clusterset's zone, with neighbours that do not exist.
const IMPORTED: &str = "@ web api db sleepy plain unnamed private nothing w.eu-1.web eu-1.web w.web us-1.db eu-1.db db-0.db \
    db-0.eu-1.db db-0.us-1.db db-3.eu-1.db 10-1-0-2.eu-1.db 10-2-0-2.us-1.db 10-1-0-2.us-1.db fd00-2--9.us-1.db \
    10-2-0-7.us-1.plain 10-1-0-4.eu-1.sleepy _http._tcp.web _dns._udp.web _http._udp.web _tcp.web _db._tcp.db \
    _db._udp.db _db.db _grpc._tcp.api x.db-0.eu-1.db db-0.eu-1.nothing";
/// Spellings that CoreDNS reads in its own way.
const ODD_IMPORTED: &str = "http._tcp.web _http.tcp.web http.tcp.web _._tcp.web _http._.web _._.web db._tcp.db _._tcp.db \
    _._.db _eu-1.db-0.db _db-0.eu-1.db db-0._eu-1.db";
const AROUND_IMPORTED: &str = "@ svc pod emptyns.svc nons.svc web.nons.svc web.emptyns.svc dns-version ns.dns dns foo \
    10-1-0-1.testns.pod testns.pod";

/// Queries for the names of imported Services, and for many that do not exist, each with every type.
pub(crate) fn of_clusterset(zone: &str) -> BTreeSet<Question> {
    let services = absolute(&[IMPORTED, ODD_IMPORTED], &format!("testns.svc.{zone}"));
    around(&[services, absolute(&[AROUND_IMPORTED], zone)].concat())
}

/// The queries to zone files and to etcd: names of the specification.
pub(crate) fn of_clusterset_exports(zone: &str) -> BTreeSet<Question> {
    let services = absolute(&[IMPORTED], &format!("testns.svc.{zone}"));
    let names = [services, absolute(&[AROUND_IMPORTED], zone)].concat();
    each(&names, &KINDS)
}

//! The zone of the tests, and what is asked of it.

use portolan_dns::{
    Change, Endpoint, Kind, Name, Port, RecordType, Service, ServiceKey, Slice, SliceKey, Zone,
    ZoneConfig,
};

use crate::Result;

/// Services of every kind, with and without endpoints.
pub(crate) fn zone() -> Result<Zone> {
    let http = Port {
        name: "http".to_owned(),
        protocol: "TCP".parse()?,
        number: Some(80),
    };
    let service = |name: &str, kind| {
        Change::Service(Service {
            key: ServiceKey::new("default", name),
            kind,
            ports: vec![http.clone()],
            publish_not_ready: false,
        })
    };
    let endpoint = |ip: &str, hostname: Option<&str>| -> Result<Endpoint> {
        Ok(Endpoint {
            addresses: vec![ip.parse()?],
            ready: true,
            hostname: hostname.map(str::to_owned),
            pod: None,
            zone: None,
        })
    };
    let slice = |service: &str, endpoints| {
        Change::Slice(Slice {
            key: SliceKey {
                namespace: "default".to_owned(),
                name: format!("{service}-1"),
            },
            service: service.to_owned(),
            endpoints,
            ports: vec![http.clone()],
        })
    };
    let inside = "web.default.svc.cluster.local".to_owned();
    let ips = vec!["10.0.0.1".parse()?, "fd00::1".parse()?];
    let web = vec![
        endpoint("10.1.0.1", None)?,
        endpoint("10.1.0.9", Some("both"))?,
    ];
    let db = vec![
        endpoint("10.1.0.2", Some("db-0"))?,
        endpoint("10.1.0.3", Some("db-1"))?,
        endpoint("10.1.0.4", None)?,
        endpoint("10.1.0.9", Some("both"))?,
        endpoint("fd00:1::4", None)?,
    ];
    let mut zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    for change in [
        Change::Namespace("default".to_owned()),
        Change::Namespace("empty".to_owned()),
        service("web", Kind::ClusterIp { ips }),
        slice("web", web),
        service("db", Kind::Headless),
        slice("db", db),
        service("none", Kind::Headless),
        service("alias", Kind::ExternalName { target: inside }),
        Change::Synced,
    ] {
        zone.apply(change);
    }
    Ok(zone)
}

const NAMES: &str = "web.default.svc db.default.svc none.default.svc alias.default.svc x.default.svc \
    10-1-0-1.web.default.svc x.web.default.svc db-0.db.default.svc 10-1-0-4.db.default.svc x.db.default.svc \
    fd00-1--4.db.default.svc _http._tcp.web.default.svc _http._tcp.db.default.svc _x._tcp.db.default.svc \
    _http._udp.db.default.svc default.svc empty.svc x.svc web.x.svc svc pod x dns-version";

const REVERSE: &str =
    "1.0.0.10.in-addr.arpa 2.0.1.10.in-addr.arpa 4.0.1.10.in-addr.arpa 99.0.0.10.in-addr.arpa";

/// Each name, with the types that are answered alike in all three ways.
pub(crate) fn questions() -> Result<Vec<(Name, RecordType)>> {
    let mut questions = Vec::new();
    for name in NAMES.split_whitespace() {
        let absolute = Name::from_ascii(format!("{name}.cluster.local."))?;
        let mut kinds = vec![RecordType::A, RecordType::AAAA];
        if name.starts_with("_http") {
            kinds = vec![RecordType::SRV];
        } else if name == "dns-version" {
            kinds = vec![RecordType::TXT];
        } else if name.starts_with("alias") {
            kinds.push(RecordType::CNAME);
        }
        questions.extend(kinds.into_iter().map(|kind| (absolute.clone(), kind)));
    }
    for name in REVERSE.split_whitespace() {
        questions.push((Name::from_ascii(format!("{name}."))?, RecordType::PTR));
    }
    Ok(questions)
}

/// What the etcd plugin does not do: see the module `skydns`, and it has names of ports for any
/// type.
pub(crate) fn more_questions() -> Result<Vec<(Name, RecordType)>> {
    let mut questions = vec![(Name::from_ascii("9.0.1.10.in-addr.arpa.")?, RecordType::PTR)];
    for name in NAMES.split_whitespace() {
        let name = Name::from_ascii(format!("{name}.cluster.local."))?;
        for kind in [
            RecordType::SRV,
            RecordType::TXT,
            RecordType::PTR,
            RecordType::MX,
            RecordType::A,
        ] {
            questions.push((name.clone(), kind));
        }
    }
    questions.push((
        Name::from_ascii("_tcp.db.default.svc.cluster.local.")?,
        RecordType::A,
    ));
    questions.push((Name::from_ascii("1.10.in-addr.arpa.")?, RecordType::PTR));
    questions.push((Name::from_ascii("cluster.local.")?, RecordType::NS));
    Ok(questions)
}

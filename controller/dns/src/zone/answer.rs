//! From a question to an answer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::Zone;
use super::lookup::{Node, Origin};
use crate::name;
use crate::records::Srv;

/// How long the schema's version may be kept, in seconds.
pub(crate) const VERSION_TTL: u32 = 28_800;

/// The longest that an SOA record may be kept, in seconds, as in CoreDNS.
const MAX_SOA_TTL: u32 = 300;

/// How many CNAME records are followed, as in CoreDNS.
pub(crate) const MAX_ALIASES: usize = 10;

/// The sections of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// NOERROR, NXDOMAIN, SERVFAIL or REFUSED.
    pub code: ResponseCode,
    /// The answer itself.
    pub answers: Vec<Record>,
    /// The zone's SOA if there is no such record, or no such name.
    pub authorities: Vec<Record>,
    /// The addresses of the names in SRV and NS records.
    pub additionals: Vec<Record>,
    /// The name outside of the zones that the last CNAME leads to, where the answer goes on.
    pub elsewhere: Option<Name>,
}

impl Answer {
    pub(crate) fn of(code: ResponseCode) -> Self {
        Self {
            code,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            elsewhere: None,
        }
    }
}

impl Zone {
    /// Answers a question of class IN. Names are spelled as in the question. REFUSED outside of
    /// the zones, and for whole zones (AXFR, IXFR).
    #[must_use]
    pub fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let Some(origin) = self.origin(name) else {
            return Answer::of(ResponseCode::Refused);
        };
        if matches!(kind, RecordType::AXFR | RecordType::IXFR) {
            return Answer::of(ResponseCode::Refused);
        }
        if !self.synced {
            return Answer::of(ResponseCode::ServFail);
        }
        self.resolve(name, origin, kind)
    }

    fn resolve(&self, name: &Name, origin: Origin, kind: RecordType) -> Answer {
        let mut answer = Answer::of(ResponseCode::NoError);
        let (mut name, mut origin) = (name.clone(), origin);
        let mut seen = BTreeSet::from([name.clone()]);
        loop {
            let Some(node) = self.find(&name, &origin) else {
                return self.negative(answer, ResponseCode::NXDomain, &origin);
            };
            let target = node
                .set
                .alias
                .as_ref()
                .filter(|_| kind != RecordType::CNAME);
            let Some(target) = target else {
                self.fill(&mut answer, &name, &origin, &node, kind);
                return if answer.answers.last().is_some_and(|last| last.name == name) {
                    answer
                } else {
                    self.negative(answer, ResponseCode::NoError, &origin)
                };
            };
            let data = RData::CNAME(CNAME(target.clone()));
            answer
                .answers
                .push(Record::from_rdata(name, self.config.ttl, data));
            if !seen.insert(target.clone()) || seen.len() > MAX_ALIASES + 1 {
                return answer;
            }
            name = target.clone();
            match self.origin(&name) {
                Some(next) => origin = next,
                None => {
                    answer.elsewhere = Some(name);
                    return answer;
                }
            }
        }
    }

    fn negative(&self, mut answer: Answer, code: ResponseCode, origin: &Origin) -> Answer {
        answer.code = code;
        answer.authorities.extend(self.soa(&origin.zone));
        answer
    }

    /// The SOA record of a zone.
    pub(crate) fn soa(&self, zone: &Name) -> Option<Record> {
        let data = SOA::new(
            name::below("ns.dns", zone)?,
            name::below("hostmaster", zone)?,
            self.serial,
            7200,
            1800,
            86_400,
            self.config.ttl,
        );
        let ttl = self.config.ttl.min(MAX_SOA_TTL);
        Some(Record::from_rdata(zone.clone(), ttl, RData::SOA(data)))
    }

    fn fill(
        &self,
        answer: &mut Answer,
        name: &Name,
        origin: &Origin,
        node: &Node<'_>,
        kind: RecordType,
    ) {
        let ttl = self.config.ttl;
        let set = &node.set;
        let mut push = |ttl, data| {
            answer
                .answers
                .push(Record::from_rdata(name.clone(), ttl, data));
        };
        match kind {
            RecordType::SOA if origin.labels.is_empty() => answer.answers.extend(self.soa(name)),
            RecordType::NS if origin.labels.is_empty() => self.name_servers(answer, name, origin),
            RecordType::A | RecordType::AAAA => {
                let data = set.addresses.iter().map(|address| address_data(*address));
                data.filter(|data| data.record_type() == kind)
                    .for_each(|data| push(ttl, data));
            }
            RecordType::SRV => self.targets(answer, name, &origin.zone, node),
            RecordType::PTR => {
                let zone = self.config.zones.first();
                let names = set.pointers.iter().filter_map(|to| name::below(to, zone?));
                names.for_each(|name| push(ttl, RData::PTR(PTR(name))));
            }
            RecordType::CNAME => {
                let target = set.alias.iter().cloned();
                target.for_each(|target| push(ttl, RData::CNAME(CNAME(target))));
            }
            RecordType::TXT => {
                let text = set.text.iter().map(|text| TXT::new(vec![text.clone()]));
                text.for_each(|text| push(VERSION_TTL, RData::TXT(text)));
            }
            _ => {}
        }
    }

    fn targets(&self, answer: &mut Answer, name: &Name, zone: &Name, node: &Node<'_>) {
        let Some(service) = node.service else {
            return;
        };
        let ttl = self.config.ttl;
        let mut glue = BTreeSet::new();
        for srv in &node.set.srv {
            let Some(target) = name::below(&service.target(srv), zone) else {
                continue;
            };
            if glue.insert(&srv.host) {
                let own = service.names.get(&*srv.host);
                let addresses = own.map(|own| own.addresses.as_slice()).unwrap_or_default();
                answer
                    .additionals
                    .extend(address_records(&target, ttl, addresses));
            }
            let data = RData::SRV(srv_data(srv, target));
            answer
                .answers
                .push(Record::from_rdata(name.clone(), ttl, data));
        }
    }

    fn name_servers(&self, answer: &mut Answer, name: &Name, origin: &Origin) {
        let ttl = self.config.ttl;
        if let Some((host, addresses)) = self.name_server_host(&origin.zone) {
            let data = RData::NS(NS(host.clone()));
            answer
                .answers
                .push(Record::from_rdata(name.clone(), ttl, data));
            answer
                .additionals
                .extend(address_records(&host, ttl, &addresses));
        }
    }

    /// The zone's name server with its addresses: the name servers' Service while it exists, or
    /// else `ns.dns.<zone>`. Zones of the reverse tree have those of the first zone.
    pub(crate) fn name_server_host(&self, zone: &Name) -> Option<(Name, Vec<IpAddr>)> {
        let zone = match self.config.zones.first() {
            Some(first) if name::is_reverse(zone) => first,
            _ => zone,
        };
        let service = self.name_server_records().and_then(|records| {
            let addresses = records.names.get("")?.addresses.clone();
            Some((name::below(&records.base, zone)?, addresses))
        });
        service.or_else(|| Some((name::below("ns.dns", zone)?, Vec::new())))
    }
}

pub(crate) fn srv_data(srv: &Srv, target: Name) -> SRV {
    SRV::new(0, srv.weight, srv.port, target)
}

pub(crate) fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn address_records(name: &Name, ttl: u32, addresses: &[IpAddr]) -> Vec<Record> {
    let data = addresses.iter().map(|address| address_data(*address));
    data.map(|data| Record::from_rdata(name.clone(), ttl, data))
        .collect()
}

// SPDX-License-Identifier: Apache-2.0

//! From a question to an answer.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::Zone;
use super::lookup::{Node, Origin};
use crate::name;
use crate::records::{RecordSet, join};

/// TTL of the record with the schema's version, in seconds.
pub(crate) const VERSION_TTL: u32 = 28_800;

/// The longest that an SOA record may be kept, in seconds, as in CoreDNS.
const MAX_SOA_TTL: u32 = 300;

/// Number of CNAME records that are followed at most, as in CoreDNS.
pub(crate) const MAX_ALIASES: usize = 10;

/// The sections of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// NOERROR, NXDOMAIN, SERVFAIL or REFUSED.
    pub code: ResponseCode,
    /// The answer itself.
    pub answers: Vec<Record>,
    /// The zone's SOA, for NODATA and NXDOMAIN.
    pub authorities: Vec<Record>,
    /// The addresses of the names in SRV and NS records.
    pub additionals: Vec<Record>,
    /// The name outside of the zones that the last CNAME leads to, where the answer may go on.
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

/// The aliases on the way to an answer.
#[derive(Debug, Default)]
struct Way {
    targets: Vec<Name>,
    elsewhere: Option<Name>,
}

impl Zone {
    /// Answers a question of class IN as CoreDNS's kubernetes plugin does. Names are spelled as in
    /// the question. REFUSED outside of the zones, and for whole zones (AXFR, IXFR).
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
        self.resolve(name, &origin, kind)
    }

    fn resolve(&self, name: &Name, origin: &Origin, kind: RecordType) -> Answer {
        let mut answer = Answer::of(ResponseCode::NoError);
        if self.fill(&mut answer, name, origin, kind).is_none() {
            answer.code = ResponseCode::NXDomain;
        }
        if answer.answers.is_empty() {
            answer.authorities.extend(self.soa(&origin.zone));
        }
        answer
    }

    /// Adds the records; `None` for NXDOMAIN. The existence of a name depends on the type, as in
    /// CoreDNS.
    fn fill(
        &self,
        answer: &mut Answer,
        name: &Name,
        origin: &Origin,
        kind: RecordType,
    ) -> Option<()> {
        let is_apex = origin.labels.is_empty();
        match kind {
            RecordType::SOA if is_apex => answer.answers.extend(self.soa(name)),
            // It does not look further.
            RecordType::SOA => {}
            RecordType::NS if is_apex && origin.is_lower() => self.servers(answer, name),
            RecordType::TXT => return self.text(answer, name, origin),
            RecordType::PTR => return self.pointers(answer, name, origin),
            RecordType::A | RecordType::AAAA => {
                let mut way = Way::default();
                answer.answers = self.addresses_at(name, origin, kind, &mut way)?;
                answer.elsewhere = way.elsewhere;
            }
            RecordType::CNAME => {
                let alias = self.find(origin)?.set.alias.clone();
                let alias = alias.map(|target| self.record(name, RData::CNAME(CNAME(target))));
                answer.answers.extend(alias);
            }
            RecordType::SRV => self.targets(answer, name, &origin.zone, &self.find(origin)?),
            _ => drop(self.find(origin)?),
        }
        Some(())
    }

    fn record(&self, name: &Name, data: RData) -> Record {
        Record::from_rdata(name.clone(), self.config.ttl, data)
    }

    /// Names with records in CoreDNS exist for TXT too, as do topology zones' names. Names between
    /// two others do not.
    fn text(&self, answer: &mut Answer, name: &Name, origin: &Origin) -> Option<()> {
        if origin.labels == ["dns-version"] {
            let text = TXT::new(vec![self.config.kind.schema_version().to_owned()]);
            let text = Record::from_rdata(name.clone(), VERSION_TTL, RData::TXT(text));
            answer.answers.push(text);
            return Some(());
        }
        let node = self.find_object(origin)?;
        (node.zonal || *node.set != RecordSet::default()).then_some(())
    }

    fn pointers(&self, answer: &mut Answer, name: &Name, origin: &Origin) -> Option<()> {
        let address = name::pointed_at(name).filter(|_| origin.reverse);
        let Some(address) = address else {
            return self.find_object(origin).map(drop);
        };
        let zone = self.config.zones.first()?;
        let names = self.pointers_of(address);
        let records = names.filter_map(|to| {
            let target = name::below(to, zone)?;
            Some(self.record(name, RData::PTR(PTR(target))))
        });
        answer.answers.extend(records);
        (!answer.answers.is_empty()).then_some(())
    }

    /// The addresses of a name, and the aliases that lead to them. An alias that leads to nothing
    /// inside of its zone is left out, as CoreDNS does; of one that leads outside that is not known.
    fn addresses_at(
        &self,
        name: &Name,
        origin: &Origin,
        kind: RecordType,
        way: &mut Way,
    ) -> Option<Vec<Record>> {
        let node = self.find(origin)?;
        let Some(target) = &node.set.alias else {
            let data = node.set.addresses.iter().copied().map(address_data);
            let data = data.filter(|data| data.record_type() == kind);
            return Some(data.map(|data| self.record(name, data)).collect());
        };
        let is_loop = name.zone_of(target) || way.targets.contains(target);
        if is_loop || way.targets.len() > MAX_ALIASES {
            return Some(Vec::new());
        }
        way.targets.push(target.clone());
        let mut answers = vec![self.record(name, RData::CNAME(CNAME(target.clone())))];
        if let Some(labels) = name::relative(target, &origin.zone) {
            let inside = Origin {
                labels,
                ..origin.clone()
            };
            let more = self.addresses_at(target, &inside, kind, way);
            let more = more.unwrap_or_default();
            if more.is_empty() {
                return Some(more);
            }
            answers.extend(more);
        } else if let Some(other) = self.origin(target) {
            let more = self.addresses_at(target, &other, kind, way);
            answers.extend(more.unwrap_or_default());
        } else {
            way.elsewhere = Some(target.clone());
        }
        Some(answers)
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

    fn targets(&self, answer: &mut Answer, name: &Name, zone: &Name, node: &Node<'_>) {
        let mut told = BTreeSet::new();
        for srv in &node.set.srv {
            let Some(target) = name::below(&join(&srv.host, &node.base), zone) else {
                continue;
            };
            if told.insert(&srv.host) {
                let addresses = node.addresses_of(&srv.host);
                let addresses =
                    addresses.map(|address| self.record(&target, address_data(address)));
                answer.additionals.extend(addresses);
            }
            let data = RData::SRV(SRV::new(0, srv.weight, srv.port, target));
            answer.answers.push(self.record(name, data));
        }
    }

    fn servers(&self, answer: &mut Answer, name: &Name) {
        for (host, addresses) in self.name_servers(name) {
            let data = addresses.into_iter().map(address_data);
            let addresses = data.map(|data| self.record(&host, data));
            answer.additionals.extend(addresses);
            answer.answers.push(self.record(name, RData::NS(NS(host))));
        }
    }
}

pub(crate) fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

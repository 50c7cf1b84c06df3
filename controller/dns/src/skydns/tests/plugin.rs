// SPDX-License-Identifier: Apache-2.0

//! The model of the plugin.

use super::*;

/// Name -> address, alias, or SRV target and port.
pub(super) type Answer = (ResponseCode, BTreeSet<String>);

pub(super) struct Plugin {
    pub(super) keys: Keys,
}

impl Plugin {
    /// All messages below a name, or the one at it; of the topmost group.
    pub(super) fn services(
        &self,
        name: &Name,
        exact: bool,
        text: bool,
    ) -> Option<Vec<(String, Message)>> {
        let key = layout().key(name);
        let below = format!("{key}/");
        let mut found: Vec<_> = self
            .keys
            .iter()
            .filter(|(k, _)| !exact && k.starts_with(&below))
            .collect();
        if found.is_empty() {
            found = self.keys.iter().filter(|(k, _)| **k == key).collect();
        }
        if found.is_empty() {
            return None;
        }
        found.retain(|(_, m)| !m.host.is_empty() || text && !m.text.is_empty());
        let depth = |key: &str| key.matches('/').count();
        let Some(top) = found.iter().min_by_key(|(key, _)| depth(key)) else {
            return Some(Vec::new());
        };
        let (slashes, group) = (depth(top.0), top.1.group.clone());
        let disagree = found
            .iter()
            .any(|(key, m)| depth(key) == slashes && !m.group.is_empty() && m.group != group);
        if !group.is_empty() && !disagree {
            found.retain(|(_, m)| m.group.is_empty() || m.group == group);
        }
        Some(
            found
                .into_iter()
                .map(|(key, m)| (key.clone(), m.clone()))
                .collect(),
        )
    }

    pub(super) fn addresses(&self, name: &Name, kind: RecordType, apex: &Name) -> Answer {
        let asked = if name == apex {
            crate::name::below("apex.dns", apex).unwrap()
        } else {
            name.clone()
        };
        let Some(services) = self.services(&asked, false, false) else {
            return (ResponseCode::NXDomain, BTreeSet::new());
        };
        let mut answers = BTreeSet::new();
        for (_, message) in services {
            match message.host.parse::<IpAddr>() {
                Ok(ip) if ip.is_ipv4() == (kind == RecordType::A) => {
                    answers.insert(format!("{name} {ip}"));
                }
                Ok(_) => {}
                Err(_) => {
                    let target = absolute(&message.host).unwrap();
                    if name.zone_of(&target) {
                        continue;
                    }
                    if apex.zone_of(&target) {
                        let (_, more) = self.addresses(&target, kind, apex);
                        if more.is_empty() {
                            continue;
                        }
                        answers.extend(more);
                    }
                    answers.insert(format!("{name} {target}"));
                }
            }
        }
        (ResponseCode::NoError, answers)
    }

    pub(super) fn srv(&self, name: &Name) -> Answer {
        let Some(services) = self.services(name, false, false) else {
            return (ResponseCode::NXDomain, BTreeSet::new());
        };
        let with_port = services.into_iter().filter(|(_, m)| m.port != -1);
        let answers = with_port.map(|(key, m)| {
            let target = match m.host.parse::<IpAddr>() {
                Ok(_) => {
                    let labels: Vec<_> = key.split('/').skip(2).collect();
                    let kept = labels.len() - usize::from(m.target_strip);
                    Name::from_labels(labels[..kept].iter().rev().map(|l| l.as_bytes())).unwrap()
                }
                Err(_) => absolute(&m.host).unwrap(),
            };
            format!("{name} {} {target}", m.port)
        });
        (ResponseCode::NoError, answers.collect())
    }

    pub(super) fn exact(&self, name: &Name) -> Answer {
        let Some(services) = self.services(name, true, false) else {
            return (ResponseCode::NXDomain, BTreeSet::new());
        };
        let names = services
            .into_iter()
            .filter(|(_, m)| m.host.parse::<IpAddr>().is_err());
        let answers = names.map(|(_, m)| format!("{name} {}", absolute(&m.host).unwrap()));
        (ResponseCode::NoError, answers.collect())
    }

    pub(super) fn text(&self, name: &Name) -> Answer {
        let Some(services) = self.services(name, false, true) else {
            return (ResponseCode::NXDomain, BTreeSet::new());
        };
        let texts = services.into_iter().filter(|(_, m)| m.host.is_empty());
        (
            ResponseCode::NoError,
            texts.map(|(_, m)| format!("{name} {}", m.text)).collect(),
        )
    }

    pub(super) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let apex = absolute("cluster.local").unwrap();
        match kind {
            RecordType::A | RecordType::AAAA => self.addresses(name, kind, &apex),
            RecordType::SRV => self.srv(name),
            RecordType::TXT => self.text(name),
            _ => self.exact(name),
        }
    }
}

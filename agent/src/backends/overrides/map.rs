// SPDX-License-Identifier: Apache-2.0

//! States that operators gave backends, and what they come to for the backends of a table. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use portolan_health::Administrative;
use portolan_model::{AdministrativeState, ByRecord, Record, RecordKey};
use portolan_probe::Overrides;

use crate::args::{BackendCommand, BackendName};
use crate::backends::wanted::is_served;

/// Overrides at one time, at most. One takes some 200 bytes on disk.
const MAX_OVERRIDES: usize = 10_000;

/// Load balancers or backends that an error names, at most.
const MAX_NAMES: usize = 16;

/// The state that an operator gave a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Override {
    /// The state.
    pub(crate) state: Administrative,
    /// When it ends, as time since boot; `None` for never.
    pub(crate) until: Option<Duration>,
}

/// The overrides by the names that operators used. A name with a port is stronger than one without.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OverrideMap(BTreeMap<BackendName, Override>);

/// A backend of one frontend.
pub(crate) type Place = (RecordKey, SocketAddr);

/// Reason why a command cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The table has no load balancer of the name.
    #[error("no load balancer {name}: there {}", listed(names))]
    NoBalancer {
        /// The name.
        name: String,
        /// Those that exist.
        names: Vec<String>,
    },
    /// The load balancer has no backend of the address.
    #[error("no backend {name}: there {}", listed(names))]
    NoBackend {
        /// The name.
        name: BackendName,
        /// Those that exist.
        names: Vec<String>,
    },
    /// There are too many overrides.
    #[error(
        "{MAX_OVERRIDES} backends are drained, disabled or enabled by command: enable some first"
    )]
    TooMany,
}

/// `is none`, `is a`, `are a, b, and 3 more`.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMES).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match (names.len(), names.len().saturating_sub(MAX_NAMES)) {
        (0, _) => "is none".to_owned(),
        (1, _) => format!("is {shown}"),
        (_, 0) => format!("are {shown}"),
        (_, more) => format!("are {shown}, and {more} more"),
    }
}

impl FromIterator<(BackendName, Override)> for OverrideMap {
    fn from_iter<I: IntoIterator<Item = (BackendName, Override)>>(overrides: I) -> Self {
        Self(overrides.into_iter().collect())
    }
}

impl OverrideMap {
    /// The overrides in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&BackendName, &Override)> {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The override of one backend of a load balancer (`NAMESPACE/NAME`).
    pub(crate) fn of(&self, balancer: &str, address: SocketAddr) -> Option<&Override> {
        let mut name = BackendName {
            balancer: balancer.to_owned(),
            ip: address.ip(),
            port: Some(address.port()),
        };
        let exact = self.0.get(&name);
        exact.or_else(|| {
            name.port = None;
            self.0.get(&name)
        })
    }

    /// The overrides of the backends of records.
    pub(crate) fn of_records(&self, records: &ByRecord<Record>) -> Overrides<RecordKey> {
        if self.is_empty() {
            return Overrides::new();
        }
        let of_record = |record: &'_ Record| {
            let balancer = balancer_name(&record.key);
            let states = addresses(record).filter_map(|(address, _)| {
                let found = self.of(&balancer, address)?;
                Some(((record.key.clone(), address), found.state))
            });
            states.collect::<Vec<_>>()
        };
        records
            .values()
            .flat_map(|record| of_record(record))
            .collect()
    }

    /// Removes what has ended at a time since boot; tells whether anything had.
    pub(crate) fn expire(&mut self, now: Duration) -> bool {
        let before = self.0.len();
        self.0
            .retain(|_, each| each.until.is_none_or(|until| until > now));
        self.0.len() < before
    }

    /// When the next override ends, as time since boot.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        self.0.values().filter_map(|each| each.until).min()
    }

    /// Follows a command about backends of the records, and gives these. `said` is the state that a backend asks
    /// for itself, or that its maintenance asks for.
    ///
    /// Draining and disabling replace whatever was commanded about the same backends. Enabling takes that back;
    /// if the file, the backend itself or its maintenance still asks for another state, it is overridden.
    ///
    /// # Errors
    /// If there is no such backend, except for enabling one that has an override; or if there are too many.
    pub(crate) fn command(
        &mut self,
        command: BackendCommand,
        name: &BackendName,
        until: Option<Duration>,
        records: &ByRecord<Record>,
        said: impl Fn(&Place) -> Administrative,
    ) -> Result<Vec<Place>, Refused> {
        let places = places(name, records);
        let mut new = self.clone();
        new.0.retain(|each, _| !is_within(each, name));
        let takes_back = command == BackendCommand::Enable && new.0.len() < self.0.len();
        if places.is_empty() && !takes_back {
            return Err(unknown(name, records));
        }
        let state = match command {
            BackendCommand::Drain => Some(Administrative::Drain),
            BackendCommand::Disable => Some(Administrative::Disabled),
            BackendCommand::Enable => {
                let is_out = |((key, address), configured): &(Place, Administrative)| {
                    let broader = new.of(&name.balancer, *address).map(|each| each.state);
                    let asked = || said(&(key.clone(), *address)).max(*configured);
                    broader.unwrap_or_else(asked) != Administrative::Enabled
                };
                places.iter().any(is_out).then_some(Administrative::Enabled)
            }
        };
        if let Some(state) = state {
            if new.0.len() >= MAX_OVERRIDES {
                return Err(Refused::TooMany);
            }
            new.0.insert(name.clone(), Override { state, until });
        }
        *self = new;
        Ok(places.into_iter().map(|(place, _)| place).collect())
    }
}

/// Returns `true` if all backends of one name are those of another.
fn is_within(inner: &BackendName, outer: &BackendName) -> bool {
    inner.balancer == outer.balancer
        && inner.ip == outer.ip
        && (outer.port.is_none() || outer.port == inner.port)
}

/// The backends of a name, with the states that the records give them.
fn places(name: &BackendName, records: &ByRecord<Record>) -> Vec<(Place, Administrative)> {
    let named = of_name(&name.balancer, records);
    let covered = named.flat_map(|record| {
        let addresses = addresses(record).filter(|(address, _)| name.covers(*address));
        addresses.map(|(address, state)| ((record.key.clone(), address), state))
    });
    covered.collect()
}

fn of_name<'a>(
    name: &'a str,
    records: &'a ByRecord<Record>,
) -> impl Iterator<Item = &'a Record> + use<'a> {
    let records = records.values().map(|record| &**record);
    records.filter(move |record| record.balancing.is_some() && balancer_name(&record.key) == name)
}

/// The addresses of a load balancer's backends, with the states that the record gives them. Those that no frontend is
/// in front of have no health.
pub(crate) fn addresses(
    record: &Record,
) -> impl Iterator<Item = (SocketAddr, Administrative)> + use<'_> {
    let balancing = record.balancing.as_deref();
    let destinations = record.destinations.iter().enumerate();
    destinations.filter_map(move |(index, destination)| {
        let profile = balancing?.profile(index)?;
        if !is_served(record, destination.address, profile.forwarding) {
            return None;
        }
        let state = match profile.administrative_state {
            AdministrativeState::Enabled => Administrative::Enabled,
            AdministrativeState::Drain => Administrative::Drain,
            AdministrativeState::Disabled => Administrative::Disabled,
        };
        Some((destination.address, state))
    })
}

fn unknown(name: &BackendName, records: &ByRecord<Record>) -> Refused {
    let mut backends: Vec<_> = of_name(&name.balancer, records)
        .flat_map(addresses)
        .map(|(address, _)| address)
        .collect();
    if of_name(&name.balancer, records).next().is_some() {
        backends.sort_unstable();
        backends.dedup();
        return Refused::NoBackend {
            name: name.clone(),
            names: backends.iter().map(ToString::to_string).collect(),
        };
    }
    let balanced = records.values().filter(|record| record.balancing.is_some());
    let mut names: Vec<_> = balanced.map(|record| balancer_name(&record.key)).collect();
    names.dedup();
    Refused::NoBalancer {
        name: name.balancer.clone(),
        names,
    }
}

/// `NAMESPACE/NAME` of a record's load balancer.
pub(crate) fn balancer_name(key: &RecordKey) -> String {
    format!("{}/{}", key.namespace, key.service)
}

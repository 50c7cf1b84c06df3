// SPDX-License-Identifier: Apache-2.0

//! Rules about the objects of all files together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::balancer::LoadBalancer;
use crate::director::{DEFAULT_MARKS, Director};
use crate::document::SchedulerName;
use crate::frontend::{Claim, Packets};
use crate::problem::{Position, Problem};
use crate::read::{Node, Path, Value};

/// Virtual servers that objects from elsewhere have, and whose they are: `Service prod/web`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Already {
    /// The owners.
    pub claims: BTreeMap<Claim, String>,
}

/// An object and its document.
#[derive(Debug)]
pub(crate) struct Placed<T> {
    pub(crate) object: T,
    pub(crate) file: String,
    pub(crate) document: Node,
}

impl<T> Placed<T> {
    /// An object whose document was not parsed, and has no places.
    pub(crate) fn unparsed(object: T, file: &str) -> Self {
        let (at, value) = (Position::default(), Value::Null);
        Self {
            object,
            file: file.to_owned(),
            document: Node { at, value },
        }
    }

    pub(crate) fn problem(&self, path: &Path, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.clone(),
            at: self.document.locate(path.as_str()),
            field: path.as_str().to_owned(),
            message: message.into(),
        }
    }

    /// `FILE:LINE` of a field.
    fn place(&self, path: &Path) -> String {
        let Position { line, .. } = self.document.locate(path.as_str());
        format!("{}:{line}", self.file)
    }
}

/// All problems between objects. Names and claims are the first's in file order.
pub(crate) fn together(
    balancers: &[Placed<Arc<LoadBalancer>>],
    directors: &[Placed<Director>],
    already: &Already,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let named = |object: &Arc<LoadBalancer>| format!("LoadBalancer {}", object.name);
    same_names(balancers, named, &mut problems);
    same_names(
        directors,
        |object| format!("Director {}", object.name),
        &mut problems,
    );
    claims(balancers, already, &mut problems);
    marks(balancers, directors, &mut problems);
    for director in directors {
        synchronised(director, balancers, &mut problems);
        stateless(director, balancers, &mut problems);
    }
    problems
}

fn same_names<T>(objects: &[Placed<T>], name: impl Fn(&T) -> String, problems: &mut Vec<Problem>) {
    let path = Path::default().field("metadata").field("name");
    let mut first: HashMap<String, &Placed<T>> = HashMap::new();
    for placed in objects {
        let name = name(&placed.object);
        match first.get(&name) {
            Some(other) => {
                let at = other.place(&path);
                problems
                    .push(placed.problem(&path, format!("{name} is at {at} too: expected once")));
            }
            None => {
                first.insert(name, placed);
            }
        }
    }
}

/// Key that overlapping claims share.
type Group = (
    Option<std::net::IpAddr>,
    Option<portolan_model::Protocol>,
    Option<(u32, portolan_model::Family)>,
);

/// The virtual servers that are taken, and whose they are. No two overlap.
#[derive(Debug, Clone, Default)]
pub struct Claims(HashMap<Group, Vec<(Claim, String)>>);

impl From<&Already> for Claims {
    fn from(already: &Already) -> Self {
        let mut claims = Self::default();
        for (claim, owner) in &already.claims {
            claims.take(*claim, owner.clone());
        }
        claims
    }
}

impl Claims {
    /// The owner of a virtual server that overlaps this one.
    #[must_use]
    pub fn owner(&self, claim: &Claim) -> Option<&str> {
        let group = self.0.get(&claim.group())?;
        let found = group.iter().find(|(other, _)| other.overlaps(claim));
        found.map(|(_, owner)| owner.as_str())
    }

    /// Takes a virtual server, which nobody has.
    pub fn take(&mut self, claim: Claim, owner: String) {
        let group = self.0.entry(claim.group()).or_default();
        group.push((claim, owner));
    }
}

/// Returns the message for the claim of a virtual server that has an owner already.
#[must_use]
pub fn taken(claim: &Claim, owner: &str) -> String {
    format!("{claim} is of {owner} already: expected once")
}

fn claims(balancers: &[Placed<Arc<LoadBalancer>>], already: &Already, problems: &mut Vec<Problem>) {
    let mut claims = Claims::from(already);
    for placed in balancers {
        for (index, frontend) in placed.object.frontends.iter().enumerate() {
            let path = Path::default().field("spec").field("frontends").item(index);
            let owner = format!("{} ({})", placed.object.name, placed.place(&path));
            for claim in frontend.claims() {
                match claims.owner(&claim) {
                    Some(owner) => problems.push(placed.problem(&path, taken(&claim, owner))),
                    None => claims.take(claim, owner.clone()),
                }
            }
        }
    }
}

/// Marks of the operator must not have bits that the agent uses.
fn marks(
    balancers: &[Placed<Arc<LoadBalancer>>],
    directors: &[Placed<Director>],
    problems: &mut Vec<Problem>,
) {
    let mut masks: Vec<u32> = directors
        .iter()
        .map(|director| director.object.marks)
        .collect();
    if masks.is_empty() {
        masks.push(DEFAULT_MARKS);
    }
    for placed in balancers {
        for (index, frontend) in placed.object.frontends.iter().enumerate() {
            let Packets::Mark { mark, .. } = frontend.packets else {
                continue;
            };
            if let Some(mask) = masks.iter().find(|mask| **mask & mark != 0) {
                let path = Path::default().field("spec").field("frontends").item(index);
                let message = format!(
                    "{mark} has bits of the agent's marks {mask:#010x}: expected none of them"
                );
                problems.push(placed.problem(&path.field("mark"), message));
            }
        }
    }
}

fn synchronised(
    director: &Placed<Director>,
    balancers: &[Placed<Arc<LoadBalancer>>],
    problems: &mut Vec<Problem>,
) {
    if director.object.sync.is_none() {
        return;
    }
    let path = Path::default().field("spec").field("sync");
    for placed in balancers {
        if let Some(address) = placed.object.of_mixed_families().next() {
            let object = &placed.object;
            let frontend = object
                .frontends
                .first()
                .map_or("", |frontend| &frontend.name);
            let message = format!(
                "{}/{frontend} has a Tunnel backend of the other family ({address}): \
                 excludes the sync daemon",
                object.name.name
            );
            problems.push(director.problem(&path, message));
        }
    }
}

fn stateless(
    director: &Placed<Director>,
    balancers: &[Placed<Arc<LoadBalancer>>],
    problems: &mut Vec<Problem>,
) {
    if !director.object.stateless_failover {
        return;
    }
    let path = Path::default().field("spec").field("statelessFailover");
    for placed in balancers {
        let scheduler = placed.object.scheduler;
        if scheduler != SchedulerName::Mh {
            let message = format!(
                "{} has scheduler \"{scheduler}\": expected mh",
                placed.object.name
            );
            problems.push(director.problem(&path, message));
        }
    }
}

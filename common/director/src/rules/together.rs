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

/// Objects from elsewhere, which those of the files must fit. Problems among them alone are not told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Already {
    /// The virtual servers that they have, and whose they are: `Service prod/web`.
    pub claims: BTreeMap<Claim, String>,
    /// The load balancers that Directors of the files must fit.
    pub load_balancers: Vec<Arc<LoadBalancer>>,
    /// The Directors that load balancers of the files must fit.
    pub directors: Vec<Director>,
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
    marks(balancers, directors, already, &mut problems);
    for director in directors {
        let of_files = balancers.iter().map(|placed| &placed.object);
        for balancer in of_files.chain(&already.load_balancers) {
            let found = unfit(&director.object, balancer).into_iter();
            problems.extend(found.map(|it| it.of_director(director)));
        }
    }
    for balancer in balancers {
        for director in &already.directors {
            let found = unfit(director, &balancer.object).into_iter();
            problems.extend(found.map(|it| it.of_balancer(balancer)));
        }
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
    already: &Already,
    problems: &mut Vec<Problem>,
) {
    let of_files = directors.iter().map(|director| &director.object);
    let all = of_files.chain(&already.directors);
    let mut masks: Vec<u32> = all.map(|director| director.marks).collect();
    if masks.is_empty() {
        masks.push(DEFAULT_MARKS);
    }
    let spec = Path::default().field("spec");
    for placed in balancers {
        for (index, mark) in marks_of(&placed.object) {
            if let Some(mask) = masks.iter().find(|mask| **mask & mark != 0) {
                let path = spec.field("frontends").item(index);
                let message = format!(
                    "{mark} has bits of the agent's marks {mask:#010x}: expected none of them"
                );
                problems.push(placed.problem(&path.field("mark"), message));
            }
        }
    }
    for placed in directors {
        let mask = placed.object.marks;
        for balancer in &already.load_balancers {
            for (_, mark) in marks_of(balancer).filter(|(_, mark)| mask & mark != 0) {
                let name = &balancer.name;
                let message =
                    format!("{mask:#010x} has bits of the mark {mark} of {name}: expected none");
                problems.push(placed.problem(&spec.field("marks"), message));
            }
        }
    }
}

/// The marks of the frontends that have one, with the frontends' indices.
fn marks_of(balancer: &LoadBalancer) -> impl Iterator<Item = (usize, u32)> {
    let frontends = balancer.frontends.iter().enumerate();
    frontends.filter_map(|(index, frontend)| match frontend.packets {
        Packets::Mark { mark, .. } => Some((index, mark)),
        _ => None,
    })
}

/// A setting of a Director that excludes a load balancer: path and message for each of the two.
struct Unfit {
    director: (Path, String),
    balancer: (Path, String),
}

impl Unfit {
    fn of_director(&self, placed: &Placed<Director>) -> Problem {
        let (path, message) = &self.director;
        placed.problem(path, message.as_str())
    }

    fn of_balancer(&self, placed: &Placed<Arc<LoadBalancer>>) -> Problem {
        let (path, message) = &self.balancer;
        placed.problem(path, message.as_str())
    }
}

/// All settings of a Director that exclude a load balancer. Node selectors are no matter: the labels that they ask for
/// may change at any time.
fn unfit(director: &Director, balancer: &LoadBalancer) -> Vec<Unfit> {
    let found = [
        synchronised(director, balancer),
        stateless(director, balancer),
    ];
    found.into_iter().flatten().collect()
}

fn synchronised(director: &Director, balancer: &LoadBalancer) -> Option<Unfit> {
    director.sync.as_ref()?;
    let address = balancer.of_mixed_families().next()?;
    let first = balancer.frontends.first();
    let frontend = first.map_or("", |frontend| &frontend.name);
    let spec = Path::default().field("spec");
    let mut backends = balancer.backends.iter();
    let of_server = match backends.position(|backend| backend.address == address) {
        Some(index) => spec.field("backends").item(index),
        None => spec.field("sorryServer"),
    };
    let of_director = format!(
        "{}/{frontend} has a Tunnel backend of the other family ({address}): \
         excludes the sync daemon",
        balancer.name.name
    );
    let of_balancer = format!(
        "{address} is behind a tunnel of the other family: excluded by spec.sync of Director {}",
        director.name
    );
    Some(Unfit {
        director: (spec.field("sync"), of_director),
        balancer: (of_server.field("address"), of_balancer),
    })
}

fn stateless(director: &Director, balancer: &LoadBalancer) -> Option<Unfit> {
    let scheduler = balancer.scheduler;
    if !director.stateless_failover || scheduler == SchedulerName::Mh {
        return None;
    }
    let spec = Path::default().field("spec");
    let of_director = format!(
        "{} has scheduler \"{scheduler}\": expected mh",
        balancer.name
    );
    let of_balancer = format!(
        "\"{scheduler}\": expected mh, by spec.statelessFailover of Director {}",
        director.name
    );
    Some(Unfit {
        director: (spec.field("statelessFailover"), of_director),
        balancer: (spec.field("scheduler"), of_balancer),
    })
}

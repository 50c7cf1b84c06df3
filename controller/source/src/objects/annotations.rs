// SPDX-License-Identifier: Apache-2.0

//! Annotations: scheduling and draining of a Service's virtual servers, and weights of endpoints.
//!
//! Each setting has a Portolan name and maybe kube-router's, which counts if the former is absent.

use portolan_catalog::{MAX_WEIGHT, Reason};
use portolan_model::Scheduling;
use portolan_model::ipvs::{self, Flags, SCHEDULERS};

use super::Metadata;
use super::problems::Problems;

const OURS: &str = "portolan.dev/";
const KUBE_ROUTERS: &str = "kube-router.io/service.";
/// kube-router's BGP advertisements, which are no task of a service proxy.
const ADVERTISEMENT: &str = "kube-router.io/service.advertise.";

const SCHEDULER: [&str; 2] = ["portolan.dev/scheduler", "kube-router.io/service.scheduler"];
const SCHEDULER_FLAGS: [&str; 2] = [
    "portolan.dev/scheduler-flags",
    "kube-router.io/service.schedflags",
];
const DRAIN_TIMEOUT: [&str; 1] = ["portolan.dev/drain-timeout"];
/// Of Nodes and Pods.
pub(super) const WEIGHT: [&str; 1] = ["portolan.dev/weight"];

/// Flags by name: the scheduler that the name is about, if it is about one, and the flag
/// (kernel: `ip_vs_sh.c`, `ip_vs_mh.c`).
const FLAGS: [(&str, Option<&str>, u32); 7] = [
    ("flag-1", None, Flags::SCHED1),
    ("flag-2", None, Flags::SCHED2),
    ("flag-3", None, Flags::SCHED3),
    ("sh-fallback", Some("sh"), Flags::SCHED1),
    ("sh-port", Some("sh"), Flags::SCHED2),
    ("mh-fallback", Some("mh"), Flags::SCHED1),
    ("mh-port", Some("mh"), Flags::SCHED2),
];

#[cfg(test)]
mod reference;

/// An annotation that is there.
struct Found<'m> {
    name: &'m str,
    value: &'m str,
}

impl<'m> Found<'m> {
    /// The first of these names that is present. A bad value does not make an alias count.
    fn first(metadata: &'m Metadata, names: &[&'m str]) -> Option<Self> {
        names.iter().find_map(|name| {
            let value = metadata.annotation(name)?.trim();
            Some(Self { name, value })
        })
    }

    fn field(&self) -> String {
        format!("metadata.annotations[{}]", self.name)
    }

    /// Reports a value that is not as `expected`, and the outcome.
    fn is_bad(&self, expected: &str, outcome: &str, problems: &mut Problems) {
        let message = format!("{:?}: expected {expected}; {outcome}", self.value);
        problems.invalid(self.field(), message);
    }
}

/// Returns the scheduling of the virtual servers of a Service.
pub(super) fn scheduling(metadata: &Metadata, problems: &mut Problems) -> Scheduling {
    let scheduler = scheduler(metadata, problems);
    Scheduling {
        flags: flags(metadata, scheduler, problems),
        scheduler: scheduler.map(Into::into),
    }
}

/// One of the kernel's own schedulers: any other name would make nodes look for a module of it.
fn scheduler(metadata: &Metadata, problems: &mut Problems) -> Option<&'static str> {
    let found = Found::first(metadata, &SCHEDULER)?;
    let scheduler = ipvs::scheduler(found.value);
    if scheduler.is_none() {
        let expected = format!("a scheduler of IPVS ({})", SCHEDULERS.join(", "));
        found.is_bad(&expected, "the agent's default is used", problems);
    }
    scheduler
}

/// A list of flags; an empty one stands for none. A bad flag is left out; a list of bad flags only
/// is ignored.
fn flags(metadata: &Metadata, scheduler: Option<&str>, problems: &mut Problems) -> Option<Flags> {
    let found = Found::first(metadata, &SCHEDULER_FLAGS)?;
    let texts = found.value.split(',').map(str::trim);
    let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    let mut flags = texts.is_empty().then_some(0);
    for text in texts {
        match FLAGS.iter().find(|(name, ..)| *name == text) {
            None => {
                let names = FLAGS.map(|(name, ..)| name).join(", ");
                let message = format!("{text:?} is not a flag: expected some of {names}; left out");
                problems.invalid(found.field(), message);
            }
            Some((_, Some(of), _)) if scheduler.is_some_and(|name| name != *of) => {
                let message = format!(
                    "{text:?} is a flag of scheduler {of}, and this is {}; left out",
                    scheduler.unwrap_or_default()
                );
                problems.invalid(found.field(), message);
            }
            Some((_, _, flag)) => flags = Some(flags.unwrap_or_default() | flag),
        }
    }
    flags.map(Flags)
}

/// Returns the time for which a destination that went away keeps its connections, in seconds.
pub(super) fn drain_seconds(metadata: &Metadata, problems: &mut Problems) -> Option<u32> {
    let found = Found::first(metadata, &DRAIN_TIMEOUT)?;
    let seconds = seconds(found.value);
    if seconds.is_none() {
        let expected = "seconds, or a time like 30s, 5m or 1h";
        found.is_bad(expected, "the agent's own timeout holds", problems);
    }
    seconds
}

fn seconds(text: &str) -> Option<u32> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let (number, unit) = units
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
        .unwrap_or((text, 1));
    whole(number)?.checked_mul(unit)
}

/// A number in digits; Rust would take a plus sign too.
fn whole(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// The weight of a Node's or Pod's endpoints: `Ok(None)` if it has no such annotation, an error if
/// it has a bad one, which is then a problem.
pub(super) fn weight(metadata: &Metadata, problems: &mut Problems) -> Result<Option<u32>, ()> {
    let Some(found) = Found::first(metadata, &WEIGHT) else {
        return Ok(None);
    };
    let weight = whole(found.value).filter(|weight| *weight <= MAX_WEIGHT);
    if weight.is_none() {
        found.is_bad(&format!("0 to {MAX_WEIGHT}"), "ignored", problems);
    }
    weight.map(Some).ok_or(())
}

/// Reports unsupported settings of a Service.
pub(super) fn unsupported(metadata: &Metadata, problems: &mut Problems) {
    let known = [&SCHEDULER[..], &SCHEDULER_FLAGS, &DRAIN_TIMEOUT].concat();
    let is_asked_of_us = |name: &&str| {
        name.starts_with(OURS)
            || (name.starts_with(KUBE_ROUTERS) && !name.starts_with(ADVERTISEMENT))
    };
    for name in metadata.annotation_names().filter(is_asked_of_us) {
        if !known.contains(&name) {
            problems.add(
                format!("metadata.annotations[{name}]"),
                Reason::Unsupported,
                "not supported on a Service; ignored",
            );
        }
    }
}

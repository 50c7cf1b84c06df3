// SPDX-License-Identifier: Apache-2.0

//! Comparisons of two name servers, question by question.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::ask::{Question, Seen, ask};
use crate::differences;
use crate::programs::local;
use crate::world::{COPIED, EXPORTED, NO_ENDPOINTS, Ports, WAYS};

pub(crate) type Why = fn(&Question, &Seen, &Seen) -> Option<&'static str>;
pub(crate) type Reduce = fn(Seen) -> Seen;

/// Two name servers whose answers are compared.
#[derive(Clone)]
pub(crate) struct Comparison {
    pub(crate) what: String,
    pub(crate) ours: SocketAddr,
    pub(crate) theirs: SocketAddr,
    pub(crate) why: Why,
    pub(crate) reduce: Reduce,
}

impl Comparison {
    /// Asks both all questions. A recent change may take until `deadline` to arrive at both.
    /// Prints the counts; returns how many answers were equal.
    pub(crate) fn run(&self, questions: &BTreeSet<Question>, deadline: Instant) -> usize {
        let mut equal = 0;
        let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
        let mut unexplained = Vec::new();
        for question in questions {
            let one = |server| ask(server, question, Duration::from_secs(10)).map(self.reduce);
            let (ours, theirs, why) = loop {
                let (ours, theirs) = (one(self.ours).unwrap(), one(self.theirs).unwrap());
                let why = (self.why)(question, &ours, &theirs);
                if ours == theirs || why.is_some() || Instant::now() > deadline {
                    break (ours, theirs, why);
                }
            };
            if ours == theirs {
                equal += 1;
            } else if let Some(why) = why {
                *explained.entry(why).or_default() += 1;
            } else {
                unexplained.push(format!("{question}\n  ours   {ours}\n  theirs {theirs}"));
            }
        }
        println!(
            "{}: {} questions, {equal} equal",
            self.what,
            questions.len()
        );
        for (why, count) in explained {
            println!("  {count} differ: {why}");
        }
        assert!(
            unexplained.is_empty(),
            "{}: {} differ without a reason:\n{}",
            self.what,
            unexplained.len(),
            unexplained.join("\n")
        );
        equal
    }
}

/// Removes the parts that differ with etcd: TTLs, weights, glue, and the SOA's numbers.
pub(crate) fn data_only(mut seen: Seen) -> Seen {
    let shorten = |line: &String| {
        let mut words: Vec<_> = line.split(' ').collect();
        if words.len() == 8 && words[3] == "SRV" {
            words.drain(4..6);
        }
        words.remove(1);
        words.join(" ")
    };
    seen.answers = seen.answers.iter().map(shorten).collect();
    seen.authorities.clear();
    seen.additionals.clear();
    seen
}

/// With the kubernetes plugin: there must be no difference at all, but for addresses that only
/// CoreDNS knows.
pub(crate) fn with_plugin(ports: &Ports) -> Vec<Comparison> {
    let with = |index: usize, what: &str, ours: u16| Comparison {
        what: format!("kubernetes plugin and {what}, {}", WAYS[index].name),
        ours: local(ours),
        theirs: local(ports.plugin[index]),
        why: match index {
            NO_ENDPOINTS => differences::without_endpoints,
            _ => |_, _, _| None,
        },
        reduce: |seen| seen,
    };
    let grpc = ports.grpc.iter().enumerate();
    let mut all: Vec<_> = grpc
        .map(|(index, ours)| with(index, "grpc", *ours))
        .collect();
    all.push(with(COPIED, "grpc of an agent", ports.agent));
    all
}

/// Comparisons of zone files and of etcd with the gRPC answers of the same controller.
pub(crate) fn of_exports(ports: &Ports) -> Vec<Comparison> {
    let mut all = Vec::new();
    all.push(Comparison {
        what: "zone files and grpc".to_owned(),
        ours: local(ports.grpc[EXPORTED]),
        theirs: local(ports.files),
        why: differences::from_files,
        // The file plugin names the zone's servers in answers, and adds addresses in its own way.
        reduce: |mut seen| {
            seen.additionals.clear();
            if !seen.answers.is_empty() {
                seen.authorities.clear();
            }
            seen
        },
    });
    all.push(Comparison {
        what: "etcd and grpc".to_owned(),
        ours: local(ports.grpc[EXPORTED]),
        theirs: local(ports.etcd),
        why: differences::from_etcd,
        reduce: data_only,
    });
    all
}

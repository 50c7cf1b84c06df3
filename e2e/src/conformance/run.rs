// SPDX-License-Identifier: Apache-2.0

//! Runs rows with packets and reports the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::expect::{Expectation, Seen, expect};
use super::objects::Target;
use super::row::{Row, Source};
use super::situation::Place;
use super::stage::Stage;
use crate::figure::{Goal, figure};
use crate::lane;
use crate::rig::{Answer, Connection, Protocol, RequestError, evidence};

/// The source ports of requests: none is a node port or an ephemeral port.
const PORTS: Range<u16> = 11_000..30_000;

/// Timeouts, and numbers of requests.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The time that an answer may take.
    pub answer: Duration,
    /// The time without an answer that counts as silence.
    pub silence: Duration,
    /// The time that a refusal may take. More than a second: the kernel of the node may only notice the refusal
    /// of its own connection when it repeats the packet, after a second.
    pub refusal: Duration,
    /// The fewest requests before the set of answering endpoints counts as complete.
    pub least: usize,
    /// The most requests until all expected endpoints have answered.
    pub most: usize,
}

impl Patience {
    /// The values for the lane.
    #[must_use]
    pub fn of_lane() -> Self {
        // Emulated CPUs may stand still for seconds when the machine has other work.
        let (answer, silence) = match lane::lane().as_str() {
            "debian" => (30, 4),
            _ => (10, 2),
        };
        Self {
            answer: Duration::from_secs(answer),
            silence: Duration::from_secs(silence),
            refusal: Duration::from_secs(5),
            least: 4,
            most: 40,
        }
    }
}

/// The observed result of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The endpoints that answered, with the sources that they saw.
    pub answers: BTreeMap<Place, BTreeSet<Seen>>,
    /// The error that ended the requests.
    pub error: Option<RequestError>,
    /// The kernels' state of a request without its expected answer.
    pub evidence: Vec<String>,
}

/// A row with its expected and observed results.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The row.
    pub row: Row,
    /// The expected result.
    pub expected: Expectation,
    /// The observed result.
    pub observed: Observation,
}

impl Outcome {
    /// True if the observation is as expected.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.row.judge(&self.expected, &self.observed)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (row, expected, observed) = (&self.row, &self.expected, &self.observed);
        write!(f, "{row} -> expected: {expected}; seen: {observed}")?;
        let mut evidence = observed.evidence.iter();
        evidence.try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = Expectation::Answers(self.answers.clone());
        match &self.error {
            None => write!(f, "{answers}"),
            Some(error) if self.answers.is_empty() => write!(f, "{error}"),
            Some(error) => write!(f, "{answers}, but also {error}"),
        }
    }
}

impl Row {
    /// True if the observation is as expected.
    #[must_use]
    pub fn judge(&self, expected: &Expectation, observed: &Observation) -> bool {
        let silent = observed.error == Some(RequestError::TimedOut);
        let refused = observed.error == Some(RequestError::Refused);
        // SCTP passes over messages that a port is closed, and tries on.
        let refused = refused || (self.protocol == Protocol::Sctp && silent);
        let nobody = observed.answers.is_empty();
        match expected {
            Expectation::Dropped => nobody && silent,
            Expectation::Refused => nobody && refused,
            Expectation::Answers(expected) => {
                observed.error.is_none()
                    && expected.keys().eq(observed.answers.keys())
                    && expected
                        .values()
                        .zip(observed.answers.values())
                        .all(|(allowed, seen)| seen.is_subset(allowed))
            }
        }
    }
}

impl Stage {
    /// Runs rows; those of different clients run concurrently.
    pub fn play(&self, rows: &[Row], patience: Patience) -> Result<Vec<Outcome>> {
        let outcomes = Mutex::new(Vec::with_capacity(rows.len()));
        thread::scope(|scope| {
            let play = |source| {
                let rows: Vec<_> = rows.iter().filter(|row| row.source == source).collect();
                let outcomes = &outcomes;
                scope.spawn(move || self.play_for(source, &rows, patience, outcomes))
            };
            let threads = Source::ALL.map(play);
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let mut outcomes = outcomes
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        outcomes.sort_by_key(|outcome: &Outcome| outcome.row);
        Ok(outcomes)
    }

    fn play_for(
        &self,
        source: Source,
        rows: &[&Row],
        patience: Patience,
        outcomes: &Mutex<Vec<Outcome>>,
    ) -> Result<()> {
        let is_answered = |row: &&&Row| matches!(expect(row), Expectation::Answers(_));
        // Rows without an answer mostly wait, so many can run concurrently.
        let (busy, waiting): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(is_answered);
        let queues = [(4, Mutex::new(busy)), (24, Mutex::new(waiting))];
        self.asker(source).namespace().run(|| {
            thread::scope(|scope| {
                for (workers, queue) in &queues {
                    for _ in 0..*workers {
                        // A thread inherits the namespace of its creator.
                        scope.spawn(|| self.work(queue, patience, outcomes));
                    }
                }
            });
        })
    }

    fn work(&self, queue: &Mutex<Vec<&Row>>, patience: Patience, done: &Mutex<Vec<Outcome>>) {
        let next = || {
            let mut rows = queue.lock().unwrap_or_else(PoisonError::into_inner);
            rows.pop().copied()
        };
        while let Some(row) = next() {
            let expected = expect(&row);
            let observed = self.observe(&row, &expected, patience);
            let outcome = Outcome {
                row,
                expected,
                observed,
            };
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push(outcome);
        }
    }

    /// Sends requests until all expected endpoints have answered, or another result shows.
    fn observe(&self, row: &Row, expected: &Expectation, patience: Patience) -> Observation {
        let node = self.node_port_address(row.source, row.family);
        let to = Target::of(row).socket_at(row, node);
        let (count, timeout) = match expected {
            Expectation::Answers(places) => (places.len(), patience.answer),
            Expectation::Dropped => (0, patience.silence),
            Expectation::Refused => (0, patience.refusal),
        };
        let mut observed = Observation::default();
        let mut is_repeated = false;
        for asked in 0..patience.most {
            if asked >= patience.least && observed.answers.len() >= count {
                break;
            }
            let port = next_port();
            match ask(port, row.protocol, to, timeout) {
                Ok(answer) => self.note(row, &answer, &mut observed),
                // Once: by chance a node gives one in thousands of requests the port of another one.
                Err(RequestError::TimedOut)
                    if count > 0 && !is_repeated && has_port_of_another(port) =>
                {
                    is_repeated = true;
                }
                Err(error) => {
                    observed.error = Some(error);
                    if count > 0 {
                        observed.evidence = evidence::of_port(port);
                    }
                }
            }
            if observed.error.is_some() {
                break;
            }
        }
        observed
    }

    fn note(&self, row: &Row, answer: &Answer, observed: &mut Observation) {
        match self.place_of(&answer.name) {
            Some(place) => {
                let seen = self.seen(row.source, answer.source);
                observed.answers.entry(place).or_default().insert(seen);
            }
            None => {
                let what = format!("answered by {:?}", answer.name);
                observed.error = Some(RequestError::Other(what));
            }
        }
    }
}

/// Returns `true` if IPVS confuses a request with another one, which this prints.
fn has_port_of_another(port: u16) -> bool {
    let is_confused = evidence::has_port_of_another(port).unwrap_or(false);
    if is_confused {
        let lines = evidence::of_port(port).join("\n    ");
        let _ = writeln!(
            io::stdout(),
            "repeated, since IPVS has another connection from its port:\n    {lines}"
        );
    }
    is_confused
}

/// The source port of a request. All Services have the same endpoints, and IPVS matches answers by the endpoint and
/// the client's port, so it confuses connections from one port through two Services. Masquerade replaces it by a random
/// one, which may be that of another request.
fn next_port() -> u16 {
    static ASKED: AtomicU16 = AtomicU16::new(0);
    let nth = ASKED.fetch_add(1, Ordering::Relaxed);
    PORTS.start + nth % (PORTS.end - PORTS.start)
}

fn ask(
    port: u16,
    protocol: Protocol,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Answer, RequestError> {
    Connection::open_from(port, protocol, to, timeout)?.ask()
}

/// Prints the number of right rows, for the summary of all lanes. Returns a line for each wrong
/// row.
#[must_use]
pub fn report(outcomes: &[Outcome]) -> Vec<String> {
    let wrong = outcomes.iter().filter(|outcome| !outcome.is_right());
    let wrong: Vec<_> = wrong.map(ToString::to_string).collect();
    let (all, failed) = (outcomes.len(), wrong.len());
    let passed = all - failed;
    let _ = writeln!(
        io::stdout(),
        "conformance: {all} rows, {passed} passed, {failed} failed"
    );
    let count = u32::try_from(passed).unwrap_or(u32::MAX);
    figure(
        "conformance_rows",
        count.into(),
        "rows",
        Some(Goal::AtLeast(60.0)),
    );
    wrong
}

// SPDX-License-Identifier: Apache-2.0

//! Changes of state that programs are told of: one program at a time for each load balancer, and the newest state
//! wins. Load balancers take turns, and changes of a quorum come before those of backends. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_director::{Hooks, ObjectName};
use portolan_source::file::HooksOf;

/// Subject that a program is told about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The quorum of a frontend: `TCP/192.0.2.10:80`.
    Quorum(Arc<str>),
    /// A backend.
    Backend(SocketAddr),
}

impl Subject {
    /// The command for it; empty for none.
    fn command<'h>(&self, hooks: &'h Hooks) -> &'h [String] {
        match self {
            Self::Quorum(_) => &hooks.on_quorum,
            Self::Backend(_) => &hooks.on_backend,
        }
    }
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) object: ObjectName,
    pub(super) subject: Subject,
    pub(super) is_up: bool,
    pub(super) command: Vec<String>,
}

/// A subject's states: whether it is up, `None` for unknown.
#[derive(Debug, Clone, Copy, Default)]
struct States {
    now: Option<bool>,
    told: Option<bool>,
}

/// States of the subjects of all load balancers with hooks: up, down, or unknown.
pub(super) type Seen = BTreeMap<(ObjectName, Subject), Option<bool>>;

/// A load balancer's place in the line: whether a backend is the next thing to tell, and its last turn.
type Place = (bool, u64, ObjectName);

/// States that programs were told, and states that they are to be told.
#[derive(Debug, Default)]
pub(super) struct Queue {
    hooks: Arc<HooksOf>,
    states: BTreeMap<(ObjectName, Subject), States>,
    /// Subjects with news for a program, by load balancer. A quorum is before backends.
    due: BTreeMap<ObjectName, BTreeSet<Subject>>,
    running: BTreeSet<ObjectName>,
    /// Load balancers with something due and without a program that runs.
    line: BTreeSet<Place>,
    /// The last turn of each load balancer that had one.
    turns: BTreeMap<ObjectName, u64>,
    /// The last turn of all.
    turn: u64,
}

impl Queue {
    /// Takes the newest states. An unknown one is not told, and the last told one stays in mind.
    pub(super) fn see(&mut self, hooks: &Arc<HooksOf>, seen: Seen) {
        self.hooks = Arc::clone(hooks);
        let before = std::mem::take(&mut self.states);
        let states = seen.into_iter().map(|(key, now)| {
            let told = before.get(&key).and_then(|states| states.told);
            (key, States { now, told })
        });
        self.states = states.collect();
        let is_due = |((object, subject), states): &(&(ObjectName, Subject), &States)| {
            let hooks = self.hooks.get(object);
            let has_command = hooks.is_some_and(|hooks| !subject.command(hooks).is_empty());
            has_command && states.now.is_some() && states.now != states.told
        };
        let mut due: BTreeMap<ObjectName, BTreeSet<Subject>> = BTreeMap::new();
        for ((object, subject), _) in self.states.iter().filter(is_due) {
            let subjects = due.entry(object.clone()).or_default();
            subjects.insert(subject.clone());
        }
        self.due = due;
        self.turns.retain(|object, _| hooks.contains_key(object));
        let is_free = |object: &&ObjectName| !self.running.contains(*object);
        let free = self.due.keys().filter(is_free);
        self.line = free.filter_map(|object| self.place(object)).collect();
    }

    /// The place of a load balancer without a program that runs; `None` if nothing is due.
    fn place(&self, object: &ObjectName) -> Option<Place> {
        let first = self.due.get(object)?.first()?;
        let turn = self.turns.get(object).copied().unwrap_or_default();
        Some((matches!(first, Subject::Backend(_)), turn, object.clone()))
    }

    /// The next program to run.
    pub(super) fn next(&mut self) -> Option<Job> {
        let (_, _, object) = self.line.pop_first()?;
        let subject = self.due.get_mut(&object)?.pop_first()?;
        self.turn += 1;
        self.turns.insert(object.clone(), self.turn);
        let key = (object, subject);
        let states = self.states.get_mut(&key)?;
        let is_up = states.now?;
        states.told = states.now;
        let (object, subject) = key;
        let command = subject.command(self.hooks.get(&object)?).to_vec();
        self.running.insert(object.clone());
        Some(Job {
            object,
            subject,
            is_up,
            command,
        })
    }

    /// Notes the end of a load balancer's program.
    pub(super) fn ended(&mut self, object: &ObjectName) {
        self.running.remove(object);
        let place = self.place(object);
        self.line.extend(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName {
            namespace: "default".into(),
            name: name.into(),
        }
    }

    fn backend(last: u8) -> Subject {
        Subject::Backend(SocketAddr::from(([10, 0, 0, last], 80)))
    }

    fn quorum() -> Subject {
        Subject::Quorum("TCP/192.0.2.10:80".into())
    }

    fn hooks(commands: &[(&str, [&str; 2])]) -> Arc<HooksOf> {
        let command = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let hooks = commands.iter().map(|(object, [on_quorum, on_backend])| {
            let hooks = Hooks {
                on_quorum: command(on_quorum),
                on_backend: command(on_backend),
            };
            (name(object), hooks)
        });
        Arc::new(hooks.collect())
    }

    fn seen(states: &[(&str, Subject, Option<bool>)]) -> Seen {
        let states = states.iter().cloned();
        states
            .map(|(object, subject, state)| ((name(object), subject), state))
            .collect()
    }

    /// All programs that may run now, in words.
    fn take(queue: &mut Queue) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(job) = queue.next() {
            let state = if job.is_up { "up" } else { "down" };
            let subject = match job.subject {
                Subject::Quorum(_) => "quorum".to_owned(),
                Subject::Backend(address) => address.to_string(),
            };
            taken.push(format!(
                "{} {subject} {state}: {}",
                job.object.name,
                job.command.join(" ")
            ));
        }
        taken
    }

    #[test]
    fn newest_state_wins_and_one_program_of_an_object_runs_at_a_time() {
        let hooks = hooks(&[("web", ["/q", "/b"]), ("dns", ["/q2", ""])]);
        let mut queue = Queue::default();
        let states = |web: bool, backend_2: Option<bool>| {
            seen(&[
                ("web", quorum(), Some(web)),
                ("web", backend(1), Some(web)),
                ("web", backend(2), backend_2),
                ("dns", quorum(), Some(true)),
                ("dns", backend(9), Some(true)),
            ])
        };
        queue.see(&hooks, states(true, None));
        assert_eq!(
            take(&mut queue),
            ["dns quorum up: /q2", "web quorum up: /q"]
        );
        // It goes down and comes back while the first program runs.
        queue.see(&hooks, states(false, None));
        assert_eq!(take(&mut queue), [""; 0]);
        queue.see(&hooks, states(true, Some(false)));
        queue.ended(&name("web"));
        assert_eq!(take(&mut queue), ["web 10.0.0.1:80 up: /b"]);
        queue.ended(&name("web"));
        assert_eq!(take(&mut queue), ["web 10.0.0.2:80 down: /b"]);
        queue.ended(&name("web"));
        assert_eq!(take(&mut queue), [""; 0], "each state is told once");
    }

    #[test]
    fn load_balancers_take_turns_and_quorums_come_first() {
        let both = ["/q", "/b"];
        let hooks = hooks(&[("a", both), ("b", both), ("c", both)]);
        let states = |quorum_of_c: bool| {
            seen(&[
                ("a", backend(1), Some(true)),
                ("a", backend(2), Some(true)),
                ("a", backend(3), Some(true)),
                ("b", backend(4), Some(true)),
                ("b", backend(5), Some(true)),
                ("c", quorum(), Some(quorum_of_c)),
            ])
        };
        // As if programs of others took all other places.
        let served = |queue: &mut Queue, number: usize| -> Vec<String> {
            let one = |_| {
                let job = queue.next()?;
                queue.ended(&job.object);
                Some(job.object.name)
            };
            (0..number).filter_map(one).collect()
        };
        let mut queue = Queue::default();
        queue.see(&hooks, states(true));
        assert_eq!(served(&mut queue, 4), ["c", "a", "b", "a"]);
        queue.see(&hooks, states(false));
        assert_eq!(served(&mut queue, 4), ["c", "b", "a"], "all are told");
    }

    #[test]
    fn unknown_states_are_not_told_and_forgotten_subjects_are_new_again() {
        let hooks = hooks(&[("web", ["", "/b"])]);
        let mut queue = Queue::default();
        let tell = |queue: &mut Queue, state: Option<Option<bool>>| {
            let states = state.map(|state| ("web", backend(1), state));
            queue.see(&hooks, seen(states.as_slice()));
            let taken = take(queue);
            queue.ended(&name("web"));
            taken
        };
        assert_eq!(tell(&mut queue, Some(None)), [""; 0]);
        assert_eq!(tell(&mut queue, Some(Some(true))).len(), 1);
        assert_eq!(tell(&mut queue, Some(None)), [""; 0]);
        assert_eq!(tell(&mut queue, Some(Some(true))), [""; 0], "as told");
        assert_eq!(tell(&mut queue, None), [""; 0]);
        assert_eq!(tell(&mut queue, Some(Some(true))).len(), 1, "a new backend");
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The times at which all agents have a revision.

/// Counts, for each revision after the first, the agents that have it.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    first: u64,
    of: Vec<Arrival>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Arrival {
    agents: usize,
    last_ns: u64,
}

impl Arrivals {
    /// Starts over: every agent has this revision.
    pub(super) fn begin(&mut self, revision: u64) {
        self.first = revision + 1;
        self.of.clear();
    }

    /// Records that an agent went from one revision to another, and so reached all between them.
    pub(super) fn reached(&mut self, from: u64, to: u64, now_ns: u64) {
        for revision in from.max(self.first - 1) + 1..=to {
            let arrival = self.arrival(revision);
            arrival.agents += 1;
            arrival.last_ns = now_ns;
        }
    }

    /// The time at which the last of `agents` agents reached a revision, or `None` if some have
    /// not. 0 for a revision from before the start.
    pub(super) fn all(&self, revision: u64, agents: usize) -> Option<u64> {
        if revision < self.first {
            return Some(0);
        }
        let arrival = self.of.get(usize::try_from(revision - self.first).ok()?)?;
        (arrival.agents == agents).then_some(arrival.last_ns)
    }

    fn arrival(&mut self, revision: u64) -> &mut Arrival {
        let index = usize::try_from(revision - self.first).unwrap_or_default();
        if self.of.len() <= index {
            self.of.resize(index + 1, Arrival::default());
        }
        &mut self.of[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_has_arrived_when_the_last_agent_has_it_or_a_later_one() {
        let mut arrivals = Arrivals::default();
        arrivals.begin(5);
        assert_eq!(arrivals.all(5, 2), Some(0));
        arrivals.reached(5, 6, 100);
        assert_eq!(arrivals.all(6, 2), None);
        arrivals.reached(5, 8, 200);
        assert_eq!(arrivals.all(6, 2), Some(200));
        assert_eq!(arrivals.all(7, 2), None);
        arrivals.reached(6, 7, 300);
        assert_eq!((arrivals.all(7, 2), arrivals.all(8, 2)), (Some(300), None));
    }
}

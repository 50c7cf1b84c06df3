//! When all agents had a revision.

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
    /// Begins anew: every agent has this revision.
    pub(super) fn begin(&mut self, revision: u64) {
        self.first = revision + 1;
        self.of.clear();
    }

    /// An agent that had one revision now has another, and so all between them.
    pub(super) fn reached(&mut self, from: u64, to: u64, now_ns: u64) {
        for revision in from.max(self.first - 1) + 1..=to {
            let arrival = self.arrival(revision);
            arrival.agents += 1;
            arrival.last_ns = now_ns;
        }
    }

    /// When the last of so many agents had it, if all have it. 0 if it is of before the beginning.
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

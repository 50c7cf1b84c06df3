// SPDX-License-Identifier: Apache-2.0

//! Accepted connections that wait for a task, shared fairly between sources.
//!
//! The kernel has one queue of new connections for all. Connections that leave it without a task wait here, where each
//! source has its turn, and where what is too much of the source with most is closed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan_runtime::Source;
use tokio::sync::Notify;

/// Connections of type `T` that wait.
#[derive(Debug)]
pub(crate) struct WaitingRoom<T> {
    slots: usize,
    state: Mutex<State<T>>,
    arrived: Notify,
}

/// Each source of `turns` has connections, and each source with connections is in `turns` once.
#[derive(Debug)]
struct State<T> {
    sources: HashMap<Source, VecDeque<T>>,
    turns: VecDeque<Source>,
    waiting: usize,
}

impl<T> WaitingRoom<T> {
    /// A room for `slots` connections, at least one.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            state: Mutex::new(State {
                sources: HashMap::new(),
                turns: VecDeque::new(),
                waiting: 0,
            }),
            arrived: Notify::new(),
        }
    }

    /// Puts a connection into the room. Returns the one that is too much: the newest of the source with most.
    pub(crate) fn put(&self, source: Source, connection: T) -> Option<T> {
        let refused = {
            let mut state = self.state();
            state.put(source, connection);
            (state.waiting > self.slots).then(|| state.refuse_one())
        };
        self.arrived.notify_one();
        refused.flatten()
    }

    /// Takes the connection that has waited longest, of the source whose turn it is. Cancel safe. For one caller at a
    /// time.
    pub(crate) async fn take(&self) -> T {
        loop {
            if let Some(connection) = self.state().take() {
                return connection;
            }
            self.arrived.notified().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn put(&mut self, source: Source, connection: T) {
        let of_source = self.sources.entry(source).or_default();
        if of_source.is_empty() {
            self.turns.push_back(source);
        }
        of_source.push_back(connection);
        self.waiting += 1;
    }

    fn take(&mut self) -> Option<T> {
        let source = self.turns.pop_front()?;
        let of_source = self.sources.get_mut(&source)?;
        let connection = of_source.pop_front()?;
        if of_source.is_empty() {
            self.sources.remove(&source);
        } else {
            self.turns.push_back(source);
        }
        self.waiting -= 1;
        Some(connection)
    }

    fn refuse_one(&mut self) -> Option<T> {
        let (source, most) = self.sources.iter_mut().max_by_key(|(_, of)| of.len())?;
        let (source, refused) = (*source, most.pop_back()?);
        if most.is_empty() {
            self.sources.remove(&source);
            self.turns.retain(|turn| *turn != source);
        }
        self.waiting -= 1;
        Some(refused)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn source(last: u8) -> Source {
        IpAddr::from([192, 0, 2, last]).into()
    }

    fn take(room: &WaitingRoom<(u8, u32)>) -> Option<(u8, u32)> {
        room.take().now_or_never()
    }

    #[test]
    fn sources_take_turns_and_the_one_with_most_is_refused() {
        let room = WaitingRoom::new(4);
        for number in 0..4 {
            assert_eq!(room.put(source(1), (1, number)), None);
        }
        assert_eq!(room.put(source(1), (1, 4)), Some((1, 4)));
        assert_eq!(room.put(source(2), (2, 0)), Some((1, 3)));
        let taken: Vec<_> = std::iter::from_fn(|| take(&room)).collect();
        assert_eq!(taken, [(1, 0), (2, 0), (1, 1), (1, 2)]);
    }

    #[tokio::test]
    async fn a_connection_ends_the_wait() {
        let room = std::sync::Arc::new(WaitingRoom::new(1));
        let waiting = tokio::spawn({
            let room = std::sync::Arc::clone(&room);
            async move { room.take().await }
        });
        tokio::task::yield_now().await;
        assert_eq!(room.put(source(1), 7), None);
        assert_eq!(waiting.await.unwrap(), 7);
    }

    proptest! {
        /// Every connection is taken or refused once; the room keeps its limit; a source with fewer than its share is
        /// not refused.
        #[test]
        fn nothing_is_lost(slots in 1_usize..12, steps in prop::collection::vec(prop::option::of(0_u8..6), 0..80)) {
            let room = WaitingRoom::new(slots);
            let mut left: HashMap<u8, usize> = HashMap::new();
            let (mut put, mut ended) = (0, 0);
            for (number, step) in (0..).zip(steps) {
                let Some(from) = step else {
                    if let Some((from, _)) = take(&room) {
                        *left.get_mut(&from).unwrap() -= 1;
                        ended += 1;
                    }
                    continue;
                };
                *left.entry(from).or_default() += 1;
                put += 1;
                if let Some((refused, _)) = room.put(source(from), (from, number)) {
                    let most = left.values().max().copied();
                    prop_assert_eq!(left.get(&refused).copied(), most);
                    *left.get_mut(&refused).unwrap() -= 1;
                    ended += 1;
                }
                prop_assert!(left.values().sum::<usize>() <= slots);
            }
            while take(&room).is_some() {
                ended += 1;
            }
            prop_assert_eq!(put, ended);
            prop_assert!(room.state().sources.is_empty() && room.state().turns.is_empty());
        }
    }
}

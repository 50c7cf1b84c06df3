// SPDX-License-Identifier: Apache-2.0

//! A connection and its streams in one task.
//!
//! A stream passes a change to its connection, which writes it to the socket. With a task for each,
//! as servers of many streams have, waking the second task is a good part of the cost of a small
//! change. Here one task has two halves, the connection and its streams. Both are polled in one
//! turn, each only if it was woken.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use hyper::rt::Executor;

/// Rounds of polling both halves before other tasks have their turn.
const ROUNDS: usize = 4;

type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Streams that the connection has begun and that are not polled yet.
#[derive(Clone, Default)]
pub(crate) struct Begun(Arc<Mutex<Vec<BoxedTask>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, stream: F) {
        self.lock().push(Box::pin(stream));
    }
}

impl Begun {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<BoxedTask>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection and its streams. The task ends with the connection.
pub(crate) struct ConnectionTask<I> {
    connection: BoxedTask,
    streams: Vec<BoxedTask>,
    begun: Begun,
    /// Called when neither half was woken. Returns whether the connection has work again.
    idle: I,
    task: Arc<Task>,
    of_connection: Half,
    of_streams: Half,
}

/// The state of the task that both halves share.
#[derive(Default)]
struct Task {
    /// Whether the task is being polled. It then checks both halves before its turn ends.
    polled: AtomicBool,
    waker: AtomicWaker,
}

/// The waker of a half, and the flag that it sets.
struct Half {
    flag: Arc<Flag>,
    waker: Waker,
}

struct Flag {
    woken: AtomicBool,
    task: Arc<Task>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Each side writes its own flag and then reads the other's, so at least one of them sees
        // the change.
        let was_woken = self.woken.swap(true, Ordering::SeqCst);
        if !was_woken && !self.task.polled.load(Ordering::SeqCst) {
            self.task.waker.wake();
        }
    }
}

impl Half {
    fn new(task: &Arc<Task>) -> Self {
        let flag = Arc::new(Flag {
            woken: AtomicBool::new(true),
            task: Arc::clone(task),
        });
        Self {
            waker: Waker::from(Arc::clone(&flag)),
            flag,
        }
    }

    fn is_woken(&self) -> bool {
        self.flag.woken.load(Ordering::SeqCst)
    }

    fn take_wake_up(&self) -> bool {
        self.is_woken() && self.flag.woken.swap(false, Ordering::SeqCst)
    }
}

impl<I: FnMut() -> bool> ConnectionTask<I> {
    pub(crate) fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        begun: Begun,
        idle: I,
    ) -> Self {
        let task = Arc::default();
        Self {
            connection: Box::pin(connection),
            streams: Vec::new(),
            begun,
            idle,
            of_connection: Half::new(&task),
            of_streams: Half::new(&task),
            task,
        }
    }

    /// Polls the halves that were woken. Streams are first, so that the connection sends their
    /// output in the same round.
    fn round(&mut self) -> Poll<()> {
        if self.of_streams.take_wake_up() {
            let mut context = Context::from_waker(&self.of_streams.waker);
            self.streams
                .retain_mut(|stream| stream.as_mut().poll(&mut context).is_pending());
        }
        if self.of_connection.take_wake_up() {
            let mut context = Context::from_waker(&self.of_connection.waker);
            if self.connection.as_mut().poll(&mut context).is_ready() {
                return Poll::Ready(());
            }
            let mut begun = self.begun.lock();
            if !begun.is_empty() {
                self.streams.append(&mut begun);
                self.of_streams.flag.woken.store(true, Ordering::SeqCst);
            }
        }
        Poll::Pending
    }

    fn is_woken(&self) -> bool {
        self.of_streams.is_woken() || self.of_connection.is_woken()
    }
}

impl<I: FnMut() -> bool + Unpin> Future for ConnectionTask<I> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.task.waker.register(context.waker());
        this.task.polled.store(true, Ordering::SeqCst);
        for _ in 0..ROUNDS {
            if this.round().is_ready() {
                return Poll::Ready(());
            }
            if this.is_woken() {
                continue;
            }
            if !(this.idle)() {
                break;
            }
            this.of_connection.flag.woken.store(true, Ordering::SeqCst);
        }
        this.task.polled.store(false, Ordering::SeqCst);
        if this.is_woken() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio::sync::{Notify, mpsc};
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// A channel from a stream to its connection, which each item wakes.
    #[derive(Default)]
    struct Pipe {
        items: Mutex<VecDeque<u32>>,
        connection: AtomicWaker,
        polls: AtomicUsize,
    }

    impl Pipe {
        fn give(&self, item: u32) {
            self.items.lock().unwrap().push_back(item);
            self.connection.wake();
        }

        /// Takes items until `last`, and sends them to `out`.
        async fn take_items(self: Arc<Self>, out: mpsc::Sender<u32>, last: u32) {
            poll_fn(|context| {
                self.polls.fetch_add(1, Ordering::Relaxed);
                self.connection.register(context.waker());
                let items = std::mem::take(&mut *self.items.lock().unwrap());
                for item in items {
                    out.try_send(item).unwrap();
                    if item == last {
                        return Poll::Ready(());
                    }
                }
                Poll::Pending
            })
            .await;
        }
    }

    #[tokio::test]
    async fn output_of_a_stream_is_taken_in_the_same_turn() {
        let (pipe, asked) = (Arc::new(Pipe::default()), Arc::new(Notify::new()));
        let begun = Begun::default();
        let (given, stream_asked) = (Arc::clone(&pipe), Arc::clone(&asked));
        begun.execute(async move {
            for item in 1..=3 {
                stream_asked.notified().await;
                given.give(item);
            }
            std::future::pending::<()>().await;
        });
        let (out, mut taken) = mpsc::channel(16);
        let task = tokio::spawn(ConnectionTask::new(
            Arc::clone(&pipe).take_items(out, 3),
            begun,
            || false,
        ));
        yield_now().await;
        for item in 1..=3 {
            let before = pipe.polls.load(Ordering::Relaxed);
            asked.notify_one();
            assert_eq!(taken.recv().await, Some(item));
            assert_eq!(pipe.polls.load(Ordering::Relaxed), before + 1);
        }
        task.await.unwrap();
    }

    /// Other threads wake both halves at any time, and no wake-up is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn no_wake_is_lost() {
        const ITEMS: u32 = 20_000;
        let pipe = Arc::new(Pipe::default());
        let begun = Begun::default();
        let (sender, mut receiver) = mpsc::channel(2);
        let given = Arc::clone(&pipe);
        begun.execute(async move {
            while let Some(item) = receiver.recv().await {
                given.give(item);
            }
        });
        let (out, mut taken) = mpsc::channel(ITEMS as usize + 1);
        let connection_task = tokio::spawn(ConnectionTask::new(
            Arc::clone(&pipe).take_items(out, ITEMS),
            begun,
            || false,
        ));
        tokio::spawn(async move {
            for item in 1..=ITEMS {
                sender.send(item).await.unwrap();
            }
        });
        timeout(Duration::from_secs(20), connection_task)
            .await
            .expect("not stuck")
            .unwrap();
        for item in 1..=ITEMS {
            assert_eq!(taken.recv().await, Some(item));
        }
    }

    #[tokio::test]
    async fn a_task_that_always_wakes_itself_leaves_others_their_turn() {
        let restless = poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let task = tokio::spawn(ConnectionTask::new(restless, Begun::default(), || false));
        for _ in 0..100 {
            yield_now().await;
        }
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}

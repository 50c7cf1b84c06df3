// SPDX-License-Identifier: Apache-2.0

//! A disk that is slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;

impl OverrideStore {
    /// The same store with another way to the disk.
    fn saving_by(self, save: Save) -> Self {
        let inner = Arc::try_unwrap(self.0).unwrap();
        Self(Arc::new(Inner { save, ..inner }))
    }
}

/// A disk that takes nothing while this is held.
static DISK: Mutex<()> = Mutex::new(());
/// `true` once something is written there.
static WRITES: AtomicBool = AtomicBool::new(false);

#[test]
fn a_slow_disk_stops_nobody_but_commands() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path()).saving_by(|directory, overrides, now| {
        WRITES.store(true, Ordering::SeqCst);
        drop(DISK.lock());
        saved::save(directory, overrides, now)
    });
    let is_slow = DISK.lock().unwrap();
    let (drain, web) = (BackendCommand::Drain, name("web/10.0.0.1"));
    let other = store.clone();
    let commanding = thread::spawn(move || other.command(drain, &web, None, &Now::read()));
    while !WRITES.load(Ordering::SeqCst) && !commanding.is_finished() {
        thread::yield_now();
    }
    // In a thread, so that a test that fails ends.
    let (sender, answers) = mpsc::channel();
    let other = store.clone();
    thread::spawn(move || {
        other.follow(&records());
        sender.send(other.all().is_empty())
    });
    let is_empty = answers.recv_timeout(Duration::from_secs(20));
    drop(is_slow);
    assert_eq!(is_empty, Ok(true), "not in force before it is saved");
    assert_eq!(commanding.join().unwrap().unwrap().len(), 2);
    assert_eq!(store.in_force().borrow().len(), 2);
}

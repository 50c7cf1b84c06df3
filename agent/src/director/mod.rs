// SPDX-License-Identifier: Apache-2.0

//! The `Director` of this host: its settings, and its role, which operators and keepalived change while it runs.
//!
//! ```text
//! files or controller
//!       ──► Director ─┐
//! flags ──────────────┼──► Host ──► sync loop ──► kernel, neighbours
//! command ──► role ───┘
//! ```

mod announcer;
mod command;
mod host;
pub(crate) mod metrics;
mod saved;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use portolan_director::{CheckLimits, Director, Role, Scripts};
use portolan_plan::host::{Host, HostState, Owned};
use portolan_probe::{Limits, Programs};
use tokio::sync::{mpsc, watch};

use crate::backends::CheckControls;

pub(crate) use announcer::{Announcement, Announcements, announce};
pub(crate) use command::actions;
pub use command::ask;
pub(crate) use host::{HostFlags, host_of, overridden};
pub(crate) use metrics::DirectorCollector;
pub use saved::Activity;
pub(crate) use saved::{load_owned, load_role, save_owned};

/// Announcements that may wait; the sender does not.
const ANNOUNCEMENTS: usize = 16;

/// Desired settings of the host, with a number that grows.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The number.
    pub number: u64,
    /// The settings.
    pub host: Arc<Host>,
}

/// Outcome of the settings with a number.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// The number of the last settings that were tried.
    pub number: u64,
    /// Errors in the settings, and of their programming.
    pub errors: Vec<String>,
    /// The kernel's settings afterwards; `None` if the director asks for none.
    pub state: Option<HostState>,
}

/// The director of this host. Clones are the same one.
#[derive(Debug, Clone)]
pub struct HostDirector(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    flags: HostFlags,
    state_dir: PathBuf,
    programs: Programs,
    checks: CheckControls,
    state: Mutex<State>,
    asked: watch::Sender<Option<Asked>>,
    done: watch::Sender<Done>,
    /// The directory of backends in maintenance, if there is one; `None` until that is known.
    maintenance: watch::Sender<Option<Option<PathBuf>>>,
}

#[derive(Debug)]
struct State {
    /// The object; `None` until the files were read.
    director: Option<Arc<Director>>,
    activity: Activity,
    /// Fields of the director that flags hide, to be told once.
    overridden: Vec<String>,
    /// The last text from a controller; `None` before its first table.
    sent: Option<Option<Arc<str>>>,
}

/// The sync loop's ends.
#[derive(Debug)]
pub struct HostLink {
    /// The settings.
    pub(crate) asked: watch::Receiver<Option<Asked>>,
    /// Their outcome.
    pub(crate) done: watch::Sender<Done>,
    /// Addresses to announce.
    pub(crate) announcements: mpsc::Sender<Announcement>,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
}

/// Reason why a role cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error(
        "no Director is in force: the files have not been read, or the controller has none for this host"
    )]
    NoDirector,
    #[error("the Director's role is Always: set spec.vips.role to Command")]
    Always,
    #[error("the role cannot be saved: {0}")]
    Disk(std::io::Error),
}

/// Sets the rules for programs.
pub(crate) fn follow_scripts(programs: &Programs, scripts: &Scripts) {
    let directories = scripts.directories.iter().map(PathBuf::from);
    programs.set(scripts.user.clone(), directories.collect());
}

impl HostDirector {
    /// The director of a host whose files are not read yet. It rules the start of programs, and controls
    /// the checks of backends.
    pub(crate) fn new(
        flags: HostFlags,
        state_dir: &Path,
        programs: Programs,
        checks: CheckControls,
    ) -> Self {
        Self(Arc::new(Inner {
            flags,
            state_dir: state_dir.to_owned(),
            programs,
            checks,
            state: Mutex::new(State {
                director: None,
                activity: saved::adopt_role(state_dir),
                overridden: Vec::new(),
                sent: None,
            }),
            asked: watch::Sender::new(None),
            done: watch::Sender::default(),
            maintenance: watch::Sender::new(None),
        }))
    }

    /// The directory whose files name backends to drain, if there is one; `None` until that is known.
    pub(crate) fn maintenance(&self) -> watch::Receiver<Option<Option<PathBuf>>> {
        self.0.maintenance.subscribe()
    }

    /// The ends for the sync loop and for the sender of announcements.
    pub(crate) fn link(&self) -> (HostLink, Announcements) {
        let (announcements, waiting) = mpsc::channel(ANNOUNCEMENTS);
        let link = HostLink {
            asked: self.0.asked.subscribe(),
            done: self.0.done.clone(),
            announcements,
            state_dir: self.0.state_dir.clone(),
        };
        let asked = self.0.asked.subscribe();
        (link, Announcements { waiting, asked })
    }

    /// Follows the object in the files; returns whether anything is asked for that was not.
    pub(crate) fn follow(&self, director: Arc<Director>) -> bool {
        follow_scripts(&self.0.programs, &director.scripts);
        let mut state = self.lock();
        let hidden = overridden(&director, &self.0.flags);
        if hidden != state.overridden {
            hidden.iter().for_each(|text| tracing::warn!("{text}"));
            state.overridden = hidden;
        }
        let directory = director.maintenance_directory.as_ref().map(PathBuf::from);
        set(&self.0.maintenance, Some(directory));
        set(&self.0.checks.limits, limits_of(&director.checks));
        set(&self.0.checks.defaults, director.checks.defaults.clone());
        state.director = Some(director);
        self.ask(&state)
    }

    /// Follows the Director in a table of a controller. Without one nothing is asked for, unless there was one, also in an
    /// earlier run: then the host goes back to the defaults. A table from disk takes no settings away: it may be older
    /// than they are.
    pub(crate) fn follow_sent(&self, sent: Option<&Arc<str>>, is_from_disk: bool, host: &str) {
        if sent.is_none() && is_from_disk {
            return;
        }
        {
            let mut state = self.lock();
            if state.sent.as_ref().map(Option::as_ref) == Some(sent) {
                return;
            }
            state.sent = Some(sent.cloned());
        }
        let director = match sent {
            Some(text) => Director::from_sent(text.as_bytes(), host),
            None if self.lock().director.is_none()
                && load_owned(&self.0.state_dir) == Owned::default() =>
            {
                // Nothing is asked for, so no backend is in maintenance any more.
                set(&self.0.maintenance, Some(None));
                return;
            }
            None => Ok(Director::new(host)),
        };
        match director {
            Ok(director) => _ = self.follow(Arc::new(director)),
            // A table never has one that cannot be read.
            Err(why) => tracing::error!("{why}; the last one stays in force"),
        }
    }

    /// Takes a role; returns the number of the settings that have it.
    pub(crate) fn take(&self, activity: Activity) -> Result<u64, RoleError> {
        let mut state = self.lock();
        let director = state.director.as_ref().ok_or(RoleError::NoDirector)?;
        if director.vips.role != Role::Command {
            return Err(RoleError::Always);
        }
        // An agent that is killed now comes back in the new role.
        saved::save_role(&self.0.state_dir, activity).map_err(RoleError::Disk)?;
        state.activity = activity;
        self.ask(&state);
        drop(state);
        Ok(self.number())
    }

    /// The role, and whether it is chosen by command.
    pub(crate) fn role(&self) -> Result<(Activity, Role), RoleError> {
        let state = self.lock();
        let director = state.director.as_ref().ok_or(RoleError::NoDirector)?;
        let role = director.vips.role;
        Ok((activity(role, state.activity), role))
    }

    fn number(&self) -> u64 {
        self.0
            .asked
            .borrow()
            .as_ref()
            .map_or(0, |asked| asked.number)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, state: &State) -> bool {
        let Some(director) = &state.director else {
            return false;
        };
        let host = host_of(director, &self.0.flags, state.activity);
        let suspends = !director.checks_on_standby && !host.is_active;
        set(&self.0.checks.suspended, suspends);
        self.0.asked.send_if_modified(|asked| {
            if asked.as_ref().is_some_and(|asked| *asked.host == host) {
                return false;
            }
            let number = asked.as_ref().map_or(1, |asked| asked.number + 1);
            let host = Arc::new(host);
            *asked = Some(Asked { number, host });
            true
        })
    }
}

/// The engine's limits of a director.
fn limits_of(checks: &CheckLimits) -> Limits {
    let count = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    Limits {
        concurrency: count(checks.concurrency),
        per_second: checks.per_second,
        program_concurrency: count(checks.exec_concurrency),
    }
}

/// Sends a value if it is another one.
fn set<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|before| {
        let is_other = *before != value;
        *before = value;
        is_other
    });
}

/// A role by command is the commanded one, on standby before the first command.
fn activity(role: Role, commanded: Activity) -> Activity {
    match role {
        Role::Always => Activity::Active,
        Role::Command => commanded,
    }
}

impl HostLink {
    /// Ends of a host without a director.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            asked: watch::channel(None).1,
            done: watch::Sender::default(),
            announcements: mpsc::channel(1).0,
            state_dir: PathBuf::from("/proc/portolan-none"),
        }
    }

    /// Waits for other settings; for ever without a director.
    pub(crate) async fn changed(&mut self) {
        if self.asked.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Saves what is ours if it differs from what is saved. A failure is logged: the next run may then take a
    /// sync daemon of this one for an operator's.
    pub(crate) async fn save_owned(&self, before: &Owned, now: &Owned) {
        if before == now {
            return;
        }
        let (directory, owned) = (self.state_dir.clone(), now.clone());
        let saved = tokio::task::spawn_blocking(move || save_owned(&directory, &owned)).await;
        if let Ok(Err(error)) = saved {
            tracing::warn!(%error, "what the director owns in the kernel cannot be saved");
        }
    }

    /// Tells neighbours of new addresses.
    pub(crate) fn announce(&self, host: &Host, new: std::collections::BTreeSet<std::net::IpAddr>) {
        let Some(interface) = host.interface.clone().filter(|_| !new.is_empty()) else {
            return;
        };
        let announcement = Announcement {
            interface,
            addresses: new,
            count: host.announcements,
            interval: host.announcement_interval,
        };
        if self.announcements.try_send(announcement).is_err() {
            tracing::warn!(
                "too many announcements wait: neighbours are not told of some addresses"
            );
        }
    }
}

#[cfg(test)]
mod tests;

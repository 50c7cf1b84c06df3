// SPDX-License-Identifier: Apache-2.0

//! The state of one cluster.

use std::time::Duration;

use super::drain::{Moving, target};
use super::{FULL, LONGEST_RETURN, LOSS_MEMORY, Phase, SILENCE, Settings, Status};
use crate::Moment;

/// Contact with a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// There was none ever.
    New,
    /// There was some before this process began.
    Connecting,
    /// There is.
    Ready,
    /// There is none since [`SILENCE`].
    Stale {
        /// The time that counts towards `staleTTL`.
        waited: Duration,
    },
    /// There was none for `staleTTL`.
    Lost {
        /// The time since when there is one again.
        held: Duration,
    },
    /// There is one again: the step rises.
    Returning,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) settings: Option<Settings>,
    pub(super) reach: Reach,
    /// The phase at the end of the last [`Fleet::advance`](super::Fleet::advance).
    pub(super) shown: Phase,
    /// Whether all kinds of objects were listed at the last contact.
    listed: bool,
    /// Whether there was a contact since the last tick.
    heard: bool,
    /// The time since the last contact, as far as this process was there to hear it.
    silence: Duration,
    step: Moving,
    drain: Moving,
    last_contact: Option<Moment>,
    recent_losses: Vec<Moment>,
    losses: u64,
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings: Some(settings),
            reach: Reach::New,
            shown: Phase::Connecting,
            listed: false,
            heard: false,
            silence: Duration::ZERO,
            step: Moving::at(FULL),
            drain: Moving::at(target(settings.drain)),
            last_contact: None,
            recent_losses: Vec::new(),
            losses: 0,
        }
    }

    pub(super) fn resumed(status: &Status) -> Self {
        let was_known = status.last_contact.is_some();
        let reach = match status.phase {
            _ if status.reach_step == 0 => Reach::Lost {
                held: Duration::ZERO,
            },
            Phase::Stale => Reach::Stale {
                waited: status.stale_for,
            },
            _ if was_known => Reach::Connecting,
            _ => Reach::New,
        };
        Self {
            settings: None,
            reach,
            shown: status.phase,
            listed: false,
            heard: false,
            silence: Duration::ZERO,
            step: Moving::at(status.reach_step),
            drain: Moving::at(status.drain_step),
            last_contact: status.last_contact,
            recent_losses: status.recent_losses.clone(),
            losses: status.losses,
        }
    }

    /// Moves times after `now`, which a clock that was ahead noted, back to `now`.
    pub(super) fn keep_to(&mut self, now: Moment) {
        let last = self.last_contact.iter_mut();
        for noted in last.chain(&mut self.recent_losses) {
            *noted = now.min(*noted);
        }
    }

    pub(super) fn contact(&mut self, listed: bool, now: Moment) {
        self.heard = true;
        self.silence = Duration::ZERO;
        self.listed = listed;
        self.last_contact = Some(now);
        // At once, and without a ramp: nothing was withdrawn.
        if let Reach::Stale { .. } = self.reach {
            self.reach = self.in_contact();
        }
    }

    /// The state of a cluster whose endpoints were never withdrawn, or are back in part.
    fn in_contact(&self) -> Reach {
        if !self.listed {
            Reach::Connecting
        } else if self.step.step < FULL {
            Reach::Returning
        } else {
            Reach::Ready
        }
    }

    /// Takes what another replica decided. The last contact stays that of this replica, if it had one.
    pub(super) fn follow(&mut self, status: &Status) {
        let was_known = status.last_contact.is_some();
        self.reach = match status.phase {
            _ if status.reach_step == 0 => Reach::Lost {
                held: Duration::ZERO,
            },
            Phase::Stale => Reach::Stale {
                waited: status.stale_for,
            },
            Phase::Connecting if was_known => Reach::Connecting,
            Phase::Connecting => Reach::New,
            _ if status.reach_step < FULL => Reach::Returning,
            _ => Reach::Ready,
        };
        self.step = Moving::at(status.reach_step);
        self.drain = Moving::at(status.drain_step);
        self.last_contact = self.last_contact.or(status.last_contact);
        self.recent_losses.clone_from(&status.recent_losses);
        self.losses = status.losses;
    }

    /// Goes on from what another replica decided.
    pub(super) fn take_over(&mut self) {
        if !self.listed && matches!(self.reach, Reach::Ready | Reach::Returning) {
            self.reach = Reach::Connecting;
        }
    }

    /// Notes the time without contact.
    pub(super) fn hear(&mut self, tick: Duration) {
        if std::mem::take(&mut self.heard) {
            self.silence = Duration::ZERO;
        } else {
            self.silence = self.silence.saturating_add(tick);
        }
    }

    /// Notes the time without contact, and that a cluster is out of contact.
    pub(super) fn listen(&mut self, tick: Duration) {
        self.hear(tick);
        let is_known = matches!(
            self.reach,
            Reach::Connecting | Reach::Ready | Reach::Returning
        );
        if is_known && self.silence >= SILENCE {
            let waited = Duration::ZERO;
            self.reach = Reach::Stale { waited };
        }
    }

    /// Lets the time pass for loss and return.
    pub(super) fn advance(&mut self, tick: Duration, now: Moment) {
        let Some(settings) = self.settings else {
            return;
        };
        let is_silent = self.silence >= SILENCE;
        match &mut self.reach {
            Reach::New | Reach::Connecting if self.listed => self.reach = self.in_contact(),
            Reach::Stale { waited } => {
                // The tick in which it became stale counts, so the time is over at the next one.
                let is_over = !settings.stale_ttl.is_zero() && *waited >= settings.stale_ttl;
                *waited += tick;
                if is_over && !tick.is_zero() {
                    self.lose(now);
                }
            }
            Reach::Lost { held } => {
                *held = if is_silent || !self.listed {
                    Duration::ZERO
                } else {
                    *held + tick
                };
                let held = *held;
                // Without a wait, a silent cluster would be back at once, and any cluster while self-preservation
                // stops the clocks.
                let may_return = !is_silent && self.listed && !tick.is_zero();
                if may_return && held >= self.return_after(settings) {
                    self.reach = Reach::Returning;
                    self.step = Moving::at(1);
                    self.rise(settings, Duration::ZERO);
                }
            }
            Reach::Returning => self.rise(settings, tick),
            Reach::New | Reach::Connecting | Reach::Ready => {}
        }
    }

    fn lose(&mut self, now: Moment) {
        self.reach = Reach::Lost {
            held: Duration::ZERO,
        };
        self.step = Moving::at(0);
        self.losses += 1;
        self.recent_losses.push(now);
        self.recent_losses
            .retain(|loss| now.since(*loss) < LOSS_MEMORY);
    }

    /// Steps 1 to 20 take the time of the ramp.
    fn rise(&mut self, settings: Settings, tick: Duration) {
        self.step.advance(FULL, FULL - 1, settings.ramp_up, tick);
        if self.step.step == FULL {
            self.reach = Reach::Ready;
        }
    }

    /// The wait before it returns: doubled by each further loss within an hour.
    fn return_after(&self, settings: Settings) -> Duration {
        let last = self.recent_losses.last().copied().unwrap_or_default();
        let recent = self.recent_losses.iter();
        let recent = recent.filter(|loss| last.since(**loss) < LOSS_MEMORY);
        let doublings = u32::try_from(recent.count().saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        let most = LONGEST_RETURN.max(settings.return_after);
        settings.return_after.saturating_mul(factor).min(most)
    }

    /// Lets the time pass for the operator's drain, which goes on in every state.
    pub(super) fn advance_drain(&mut self, tick: Duration) {
        let Some(settings) = self.settings else {
            return;
        };
        let to = target(settings.drain);
        match settings.drain {
            Some(drain) if self.drain.step > to => {
                self.drain.advance(to, FULL - to, drain.over, tick);
            }
            _ => self.drain.advance(to, FULL, settings.ramp_up, tick),
        }
    }

    /// Returns `true` if it says anything about contact in general: not if it is lost already, or
    /// was never in contact.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.reach, Reach::New | Reach::Lost { .. })
    }

    pub(super) fn phase(&self) -> Phase {
        let drain = self.settings.and_then(|settings| settings.drain);
        match self.reach {
            Reach::New | Reach::Connecting => Phase::Connecting,
            Reach::Stale { .. } => Phase::Stale,
            Reach::Lost { .. } => Phase::Lost,
            Reach::Returning => Phase::Returning,
            Reach::Ready => {
                let to = target(drain);
                match self.drain.step {
                    step if step > to => Phase::Draining,
                    step if step < to => Phase::Returning,
                    _ if drain.is_some() => Phase::Drained,
                    _ => Phase::Ready,
                }
            }
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            phase: self.phase(),
            step: self.step.step.min(self.drain.step),
            reach_step: self.step.step,
            drain_step: self.drain.step,
            drained: self
                .settings
                .is_some_and(|settings| settings.drain.is_some()),
            last_contact: self.last_contact,
            stale_for: match self.reach {
                Reach::Stale { waited } => waited,
                _ => Duration::ZERO,
            },
            recent_losses: self.recent_losses.clone(),
            losses: self.losses,
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Other users of packet marks on this node, and the choice of bits that collide with none of them.
//!
//! Two programs that use the same bits of the mark break each other without a trace: a packet that
//! Calico has accepted would go to the virtual server of a short circuit. Users are known by the names
//! of their chains and by the masks in their rules, both taken from `iptables-save`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{InvalidMask, MarkMask};

/// Fewest bits of a mask that is chosen without being asked for: 255 marks.
const FEWEST_BITS: u32 = 8;

/// Programs that are known by the prefix of their chains: prefix, name, the bits that their default
/// configuration reserves, and the setting that moves them.
const KNOWN: [(&str, &str, u32, &str); 4] = [
    (
        "cali-",
        "Calico",
        0xffff_0000,
        "its iptablesMarkMask (FelixConfiguration)",
    ),
    // `MARK_MAGIC_HOST_MASK`, and identities in the upper half.
    ("CILIUM_", "Cilium", 0xffff_0f00, ""),
    ("ts-", "Tailscale", 0x00ff_0000, ""),
    ("WEAVE", "Weave Net", 0x0007_0000, ""),
];

/// One program that uses bits of the mark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MarkUser {
    /// Bits that its rules match or write.
    seen: u32,
    /// Bits that its default configuration may use besides.
    reserved: u32,
    /// The setting that gives it other bits; empty if there is none.
    setting: &'static str,
}

/// Packet marks in use by others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkUsers(BTreeMap<String, MarkUser>);

/// Reason why no mask for short circuits can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// The mask cannot be used on any node.
    #[error("--short-circuit-mask {mask:#x}: {error}")]
    Invalid {
        /// The mask.
        mask: u32,
        /// The reason.
        error: InvalidMask,
    },
    /// The mask was given, and another program uses some of its bits.
    #[error(
        "--short-circuit-mask {mask:#x}: {user} uses the bits {shared:#x} of packet marks on this \
         node: set --short-circuit-mask to {}{}",
        advice(*free),
        other_way(setting)
    )]
    Shared {
        /// The mask.
        mask: u32,
        /// The other program.
        user: String,
        /// The bits that both use.
        shared: u32,
        /// The bits that nobody uses.
        free: u32,
        /// The setting that gives the other program other bits.
        setting: &'static str,
    },
    /// No mask was given, and the others leave too few bits.
    #[error(
        "packet marks: {users} use the bits {used:#x} on this node, which leaves fewer than \
         {FEWEST_BITS} for short circuits: set --short-circuit-mask to bits that none of them uses in \
         fact, for example {}",
        advice(*free)
    )]
    TooFew {
        /// The other programs.
        users: String,
        /// The bits that they use.
        used: u32,
        /// The bits that nobody uses.
        free: u32,
    },
}

fn advice(free: u32) -> String {
    match free {
        0 => "bits that are free after one of the programs was given fewer".to_owned(),
        free => format!("{free:#x}, which nobody uses"),
    }
}

fn other_way(setting: &str) -> String {
    match setting {
        "" => String::new(),
        setting => format!(", or change {setting}"),
    }
}

impl MarkUsers {
    /// Adds the users that a ruleset shows, as `iptables-save` prints it. Rules in the chains of `ours`
    /// are left out.
    pub fn scan(&mut self, saved: &[String], ours: &BTreeSet<String>) {
        for line in saved {
            if let Some(declared) = line.strip_prefix(':') {
                let chain = declared.split(' ').next().unwrap_or_default();
                if let Some((_, name, reserved, setting)) = known(chain) {
                    let user = self.0.entry((*name).to_owned()).or_default();
                    (user.reserved, user.setting) = (*reserved, setting);
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap_or((rule, ""));
                let bits = if ours.contains(chain) {
                    0
                } else {
                    bits_of(rule)
                };
                if bits != 0 {
                    let name = known(chain).map_or_else(
                        || format!("the chain {chain}"),
                        |(_, name, ..)| (*name).to_owned(),
                    );
                    self.0.entry(name).or_default().seen |= bits;
                }
            }
        }
    }

    /// The mask for short circuits. A mask that was `asked` for is taken unless rules of another program
    /// use one of its bits. Otherwise it is the default, or as many bits that nobody is known to use.
    ///
    /// # Errors
    /// If the mask that was asked for cannot be used, or there are too few free bits.
    pub fn choose(&self, asked: Option<u32>, masquerade_mark: u32) -> Result<MarkMask, MaskError> {
        let own = masquerade_mark | MarkMask::DROP;
        let used = self
            .0
            .values()
            .fold(0, |all, user| all | user.seen | user.reserved);
        let free = !(used | own);
        let valid = |mask| {
            MarkMask::new(mask, masquerade_mark).map_err(|error| MaskError::Invalid { mask, error })
        };
        if let Some(mask) = asked {
            let shares = |(_, user): &(&String, &MarkUser)| user.seen & mask != 0;
            return match self.0.iter().find(shares) {
                None => valid(mask),
                Some((name, user)) => Err(MaskError::Shared {
                    mask,
                    user: name.clone(),
                    shared: user.seen & mask,
                    free,
                    setting: user.setting,
                }),
            };
        }
        let default = MarkMask::default().bits() & !own;
        if default & used == 0 {
            return valid(default);
        }
        let mask = highest_bits(free, MarkMask::default().bits().count_ones());
        if mask.count_ones() < FEWEST_BITS {
            let users: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return Err(MaskError::TooFew {
                users: users.join(", "),
                used,
                free,
            });
        }
        valid(mask)
    }

    /// The other programs, with the bits that each is taken to use.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        let users = self.0.iter();
        users.map(|(name, user)| (name.as_str(), user.seen | user.reserved))
    }
}

fn known(chain: &str) -> Option<&'static (&'static str, &'static str, u32, &'static str)> {
    KNOWN.iter().find(|(prefix, ..)| chain.starts_with(prefix))
}

/// At most so many bits of a mask, the highest ones: low bits are what people choose by hand.
fn highest_bits(bits: u32, most: u32) -> u32 {
    let mut left = bits;
    while left.count_ones() > most {
        left &= left - 1;
    }
    left
}

/// Options after which a value, or a value and a mask, of a mark stands.
const MARK_OPTIONS: [&str; 9] = [
    "--mark",
    "--set-mark",
    "--set-xmark",
    "--or-mark",
    "--xor-mark",
    "--nfmask",
    "--ctmask",
    "--mask",
    "--restore-skmark",
];

/// The bits of marks that a rule reads or writes.
fn bits_of(rule: &str) -> u32 {
    let mut words = rule.split_ascii_whitespace();
    let mut bits = 0;
    while let Some(word) = words.next() {
        if MARK_OPTIONS.contains(&word) {
            bits |= words.next().and_then(bits_of_value).unwrap_or_default();
        } else if word == "--and-mark" {
            // Bits that are cleared are in use.
            bits |= words.next().and_then(number).map_or(0, |kept| !kept);
        }
    }
    bits
}

/// The bits that `VALUE` or `VALUE/MASK` is about. A value alone is one of many that its user may take,
/// within the bits up to its highest one.
fn bits_of_value(text: &str) -> Option<u32> {
    let Some((value, mask)) = text.split_once('/') else {
        return number(text);
    };
    let (value, mask) = (number(value)?, number(mask)?);
    // `--set-xmark 0x1/0xffffffff` sets all of the mark.
    Some(if mask == u32::MAX {
        value
    } else {
        value | mask
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests;

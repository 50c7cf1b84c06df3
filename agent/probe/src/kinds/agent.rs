// SPDX-License-Identifier: Apache-2.0

//! HAProxy's agent check: one line.

use std::time::Duration;

use portolan_health::{Administrative, DynamicWeight, Outcome, Word};
use portolan_model::check::AgentProbe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::fault::{Checked, Stop, within};
use crate::{Target, socket};

/// The longest line, in bytes.
const MAX_LINE: usize = 512;

/// An agent that does not answer is no news: another check tells whether its backend serves.
pub(crate) async fn run(probe: &AgentProbe, target: &Target, limit: Duration) -> Checked<Outcome> {
    match within(Instant::now(), limit, ask(probe, target)).await {
        Ok(line) => Ok(Outcome::Word(word(&line))),
        Err(Stop::Fails(_)) => Ok(Outcome::Word(Word::default())),
        Err(ours) => Err(ours),
    }
}

async fn ask(probe: &AgentProbe, target: &Target) -> Checked<String> {
    let mut stream = socket::connect(target, true).await?;
    if let Some(bytes) = &probe.send {
        stream.write_all(bytes).await?;
    }
    let mut line = Vec::with_capacity(MAX_LINE);
    let mut limited = stream.take(MAX_LINE as u64);
    while !line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        if limited.read_buf(&mut line).await? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The meaning of a text's first line: words in any order, parted by spaces, tabs or commas. Unknown
/// words mean nothing.
pub(crate) fn word(text: &str) -> Word {
    let line = text.split(['\n', '\r']).next().unwrap_or_default();
    let (words, reason) = match line.split_once('#') {
        None => (line, None),
        Some((words, reason)) => (words, Some(reason.trim())),
    };
    let mut word = Word::default();
    for each in words.split([' ', '\t', ',']) {
        match each.to_ascii_lowercase().as_str() {
            "up" => word.up = Some(true),
            "down" | "failed" | "stopped" => {
                word.up = Some(false);
                let reason = reason.filter(|reason| !reason.is_empty());
                word.reason = Some(reason.unwrap_or(each).into());
            }
            "ready" => word.administrative = Some(Administrative::Enabled),
            "drain" => word.administrative = Some(Administrative::Drain),
            "maint" => word.administrative = Some(Administrative::Disabled),
            other => word.weight = percent(other).or(word.weight),
        }
    }
    word
}

fn percent(word: &str) -> Option<DynamicWeight> {
    let digits = word.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse().unwrap_or(u16::MAX));
    number.map(DynamicWeight::Percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_haproxy() {
        assert_eq!(word("75%\n").weight, Some(DynamicWeight::Percent(75)));
        assert_eq!(
            word("up ready,50%\r\nrest"),
            Word {
                up: Some(true),
                weight: Some(DynamicWeight::Percent(50)),
                administrative: Some(Administrative::Enabled),
                reason: None,
            }
        );
        assert_eq!(word("drain").administrative, Some(Administrative::Drain));
        assert_eq!(word("MAINT").administrative, Some(Administrative::Disabled));
        for down in ["down", "failed", "stopped"] {
            let told = word(&format!("{down} # disk full \n"));
            assert_eq!(
                (told.up, told.reason.as_deref()),
                (Some(false), Some("disk full"))
            );
        }
        assert_eq!(word("stopped").reason.as_deref(), Some("stopped"));
    }

    #[test]
    fn other_words_mean_nothing() {
        for other in [
            "",
            "\n",
            "%",
            "-5%",
            "5",
            "+5%",
            "maxconn:30",
            "upp",
            "# up",
            "\nup",
        ] {
            assert_eq!(word(other), Word::default(), "{other:?}");
        }
        assert_eq!(
            word("99999999%").weight,
            Some(DynamicWeight::Percent(u16::MAX))
        );
    }
}

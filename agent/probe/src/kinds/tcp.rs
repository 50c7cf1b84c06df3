// SPDX-License-Identifier: Apache-2.0

//! A connection over TCP, and a conversation.

use portolan_health::Outcome;
use portolan_model::check::{Step, TcpProbe};
use regex::bytes::Regex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fault::{Checked, Stop};
use crate::{Context, Target, socket};

/// An answer must match within this number of bytes.
const MAX_ANSWER: usize = 64 << 10;

pub(crate) async fn run(probe: &TcpProbe, target: &Target, context: &Context) -> Checked<Outcome> {
    if probe.steps.is_empty() {
        context.connects().connect(target).await?;
        return Ok(Outcome::pass());
    }
    let mut conversation = Conversation {
        stream: socket::connect(target, true).await?,
        unread: Vec::new(),
    };
    for step in &probe.steps {
        conversation.step(step, context).await?;
    }
    Ok(Outcome::pass())
}

struct Conversation {
    stream: TcpStream,
    /// Bytes that came after the last match.
    unread: Vec<u8>,
}

impl Conversation {
    async fn step(&mut self, step: &Step, context: &Context) -> Checked<()> {
        if let Some(bytes) = &step.send {
            self.stream.write_all(bytes).await?;
        }
        match &step.expect {
            None => Ok(()),
            Some(pattern) => self.expect(&context.patterns().get(pattern)?).await,
        }
    }

    async fn expect(&mut self, pattern: &Regex) -> Checked<()> {
        loop {
            if let Some(found) = pattern.find(&self.unread) {
                let end = found.end();
                self.unread.drain(..end);
                return Ok(());
            }
            let room = MAX_ANSWER.saturating_sub(self.unread.len());
            if room == 0 {
                let text = format_args!("no match of {:?} in 64 KiB", pattern.as_str());
                return Err(Stop::fails(text));
            }
            let mut limited = (&mut self.stream).take(room.try_into().unwrap_or(u64::MAX));
            if limited.read_buf(&mut self.unread).await? == 0 {
                let text = format_args!("closed before a match of {:?}", pattern.as_str());
                return Err(Stop::fails(text));
            }
        }
    }
}

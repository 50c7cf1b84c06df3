// SPDX-License-Identifier: Apache-2.0

//! One thin agent: its state and its connection.

use std::sync::Arc;

use anyhow::{Result, bail};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::{VERSION, v1::AgentMessage};
use prost::Message as _;
use rustls::ClientConfig;

use super::h2::{self, Event, Reader};
use super::io::Io;
use super::message::{Heard, Messages};
use crate::words::Speak;

/// The identity of an agent's table, as its Hello states it. The table itself is not kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    epoch: u64,
    pub(super) revision: u64,
    records_hash: Vec<u8>,
    own_hash: Vec<u8>,
}

/// An open connection.
pub(super) struct Link {
    pub(super) io: Io,
    speak: Speak,
    acks: bool,
    reader: Reader,
    messages: Messages,
    epoch: u64,
    /// Bytes received since the last window update.
    taken: u32,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Whether the first Commit has come.
    pub(super) synced: bool,
}

/// The result of a read.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The revisions before and after, if a newer one was committed.
    pub(super) reached: Option<(u64, u64)>,
    /// The first Commit arrived.
    pub(super) synced: bool,
    /// The number of buckets that the server asked for.
    pub(super) asked: Option<u32>,
    /// The reason why the connection ended, if it did.
    pub(super) ended: Option<&'static str>,
}

impl Link {
    /// Connects, and sends a Hello with the identity of the agent's table, if it has one.
    pub(super) fn open(
        port: u16,
        speak: Speak,
        tls: Option<Arc<ClientConfig>>,
        acks: bool,
        node: &str,
        held: &Held,
    ) -> Result<Self> {
        let mut link = Self {
            io: Io::connect(port, tls)?,
            speak,
            acks,
            reader: Reader::default(),
            messages: Messages::default(),
            epoch: 0,
            taken: 0,
            received: 0,
            sent: 0,
            synced: matches!(speak, Speak::Bare(_)),
        };
        if matches!(speak, Speak::Bare(_)) {
            return Ok(link);
        }
        let hello = v1::Hello {
            version: VERSION,
            node: node.to_owned(),
            agent_version: "bench".to_owned(),
            epoch: held.epoch,
            revision: held.revision,
            records_hash: held.records_hash.clone(),
            own_hash: held.own_hash.clone(),
            ..v1::Hello::default()
        };
        let mut out = Vec::new();
        h2::open(&mut out, speak == Speak::Tls);
        message(&mut out, Message::Hello(hello))?;
        link.write(&out)?;
        Ok(link)
    }

    /// Answers an AskBuckets.
    pub(super) fn answer(&mut self, hashes: Vec<u8>) -> Result<()> {
        let mut out = Vec::new();
        message(&mut out, Message::Buckets(v1::Buckets { hashes }))?;
        self.write(&out)
    }

    /// Reads and handles the bytes that have arrived.
    pub(super) fn read(&mut self, buffer: &mut [u8], held: &mut Held) -> Result<Outcome> {
        if let Speak::Bare(bytes) = self.speak {
            return self.read_bare(buffer, held, bytes.into());
        }
        let mut outcome = Outcome::default();
        let (mut out, mut heard) = (Vec::new(), Vec::new());
        let Self {
            io,
            reader,
            messages,
            taken,
            received,
            ..
        } = self;
        let open = io.read(buffer, |bytes| {
            *received += bytes.len() as u64;
            reader.feed(bytes, |event| {
                match event {
                    Event::Data(data) => {
                        *taken += u32::try_from(data.len())?;
                        messages.feed(data, &mut heard)?;
                    }
                    Event::Settings => h2::settings_ack(&mut out),
                    Event::Ping(opaque) => h2::pong(&mut out, opaque),
                    Event::Ended(why) => outcome.ended = Some(why),
                }
                Ok(())
            })
        })?;
        if !open {
            outcome.ended = outcome.ended.or(Some("closed"));
        }
        for heard in heard {
            self.hear(heard, held, &mut outcome, &mut out)?;
        }
        h2::make_room(&mut out, &mut self.taken);
        if !out.is_empty() && outcome.ended.is_none() {
            self.write(&out)?;
        }
        Ok(outcome)
    }

    fn hear(
        &mut self,
        heard: Heard,
        held: &mut Held,
        outcome: &mut Outcome,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match heard {
            Heard::Welcome { epoch } => self.epoch = epoch,
            Heard::AskBuckets { count } => outcome.asked = Some(count),
            Heard::Commit(commit) => {
                let from = outcome.reached.map_or(held.revision, |(from, _)| from);
                outcome.reached = Some((from, commit.revision));
                outcome.synced |= !std::mem::replace(&mut self.synced, true);
                held.epoch = self.epoch;
                held.revision = commit.revision;
                held.records_hash = commit.records_hash;
                if !commit.own_hash.is_empty() {
                    held.own_hash = commit.own_hash;
                }
                if self.acks {
                    acknowledge(out, held)?;
                }
            }
        }
        Ok(())
    }

    fn read_bare(&mut self, buffer: &mut [u8], held: &mut Held, bytes: u64) -> Result<Outcome> {
        let Self { io, received, .. } = self;
        let open = io.read(buffer, |bytes| {
            *received += bytes.len() as u64;
            Ok(())
        })?;
        if !open {
            bail!("the bare server has closed");
        }
        let revision = self.received / bytes;
        let from = std::mem::replace(&mut held.revision, revision);
        Ok(Outcome {
            reached: (from != revision).then_some((from, revision)),
            ..Outcome::default()
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sent += bytes.len() as u64;
        self.io.write(bytes)
    }
}

fn acknowledge(out: &mut Vec<u8>, held: &Held) -> Result<()> {
    let received = v1::Received {
        revision: held.revision,
        ..v1::Received::default()
    };
    message(out, Message::Received(received))?;
    let programmed = v1::Programmed {
        revision: held.revision,
        records_hash: held.records_hash.clone(),
        own_hash: held.own_hash.clone(),
        duration_us: 1_000,
        ..v1::Programmed::default()
    };
    message(out, Message::Programmed(programmed))
}

fn message(out: &mut Vec<u8>, message: Message) -> Result<()> {
    let message = AgentMessage {
        message: Some(message),
    };
    h2::message(out, &message.encode_to_vec())
}

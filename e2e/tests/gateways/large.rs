// SPDX-License-Identifier: Apache-2.0

//! A server of large questions and answers over TCP.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::rig::Pod;

/// The length of a large question, and of a large answer, in bytes.
const LENGTH: u32 = 100_000;

/// Serves on the port of an echo pod for as long as the process lives: the lengths of question and answer, the question,
/// then the answer and the end.
pub(crate) fn serve(pod: &Pod) {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, EchoPod::PORT));
    let listener = pod.namespace().run(listen).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One that hangs holds up no other, and a client that goes away is its own affair.
            thread::spawn(move || drop(answer(stream)));
        }
    });
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENT))?;
    stream.set_write_timeout(Some(PATIENT))?;
    let mut lengths = [[0; 4]; 2];
    for length in &mut lengths {
        stream.read_exact(length)?;
    }
    let [question, answer] = lengths.map(|length| u32::from_be_bytes(length) as usize);
    stream.read_exact(&mut vec![0; question])?;
    stream.write_all(&content(answer))?;
    stream.shutdown(Shutdown::Write)
}

/// Large part of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Large {
    Question,
    Answer,
}

/// Asks once, over a new connection, and reads to the end. An error if nothing comes for so long.
pub(crate) fn ask(
    from: &Pod,
    target: SocketAddr,
    large: Large,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let lengths = match large {
        Large::Question => [LENGTH, 1],
        Large::Answer => [1, LENGTH],
    };
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&target, PATIENT)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(&lengths.map(u32::to_be_bytes).concat())?;
        stream.write_all(&content(lengths[0] as usize))?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    from.namespace().run(ask).map_err(io::Error::other)?
}

pub(crate) fn is_whole(answer: &[u8], large: Large) -> bool {
    answer
        == content(match large {
            Large::Question => 1,
            Large::Answer => LENGTH as usize,
        })
}

fn content(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

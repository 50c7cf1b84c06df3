// SPDX-License-Identifier: Apache-2.0

//! A server with large answers over TCP.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::rig::Pod;

/// The length of an answer in bytes.
const LENGTH: usize = 100_000;

/// Serves on the port of an echo pod for as long as the process lives: a line, then the answer, then the end.
pub(crate) fn serve(pod: &Pod) {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, EchoPod::PORT));
    let listener = pod.namespace().run(listen).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is its own affair.
            let _ = answer(stream);
        }
    });
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENT))?;
    stream.set_write_timeout(Some(PATIENT))?;
    stream.read_exact(&mut [0])?;
    stream.write_all(&content())?;
    stream.shutdown(Shutdown::Write)
}

/// Asks once, over a new connection, and reads to the end.
pub(crate) fn ask(from: &Pod, target: SocketAddr) -> io::Result<Vec<u8>> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&target, PATIENT)?;
        stream.set_read_timeout(Some(PATIENT))?;
        stream.write_all(b"?")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    from.namespace().run(ask).map_err(io::Error::other)?
}

pub(crate) fn is_whole(answer: &[u8]) -> bool {
    answer == content()
}

fn content() -> Vec<u8> {
    (0..=250).cycle().take(LENGTH).collect()
}

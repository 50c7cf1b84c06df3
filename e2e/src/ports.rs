// SPDX-License-Identifier: Apache-2.0

//! Ports that no other process and no other test takes between the choice and the use.
//!
//! Programs under test are told their port before they bind it. A port that the kernel chose for a socket
//! that is closed again may be any connection's next local port. These are below the range of local ports
//! and in a block that this process alone holds.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result};

/// The first port of the first block; the last block ends below 32768, where Linux' local ports begin.
const FIRST: u16 = 10_000;
const BLOCK: u16 = 128;
const BLOCKS: u16 = 170;

/// The block of this process, and the file whose lock keeps it until the process ends.
struct Block {
    first: u16,
    _lock: File,
}

static OWN: OnceLock<Block> = OnceLock::new();
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Different ports for TCP and UDP that are free at every IPv4 address of the calling thread's namespace.
///
/// # Errors
/// If other processes hold all blocks, or all ports of the own one are in use.
pub fn reserve<const N: usize>() -> Result<[u16; N]> {
    let first = own_block()?;
    let mut ports = [0; N];
    for port in &mut ports {
        *port = (0..BLOCK)
            .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % BLOCK)
            .find(|port| is_free(*port))
            .with_context(|| format!("no free port from {first} on"))?;
    }
    Ok(ports)
}

fn is_free(port: u16) -> bool {
    let everywhere = (Ipv4Addr::UNSPECIFIED, port);
    TcpListener::bind(everywhere).is_ok() && UdpSocket::bind(everywhere).is_ok()
}

fn own_block() -> Result<u16> {
    if let Some(block) = OWN.get() {
        return Ok(block.first);
    }
    let block = (0..BLOCKS)
        .find_map(claim)
        .context("other processes hold all blocks of ports")?;
    // Another thread may be first; its block counts and this one is released.
    Ok(OWN.get_or_init(|| block).first)
}

fn claim(number: u16) -> Option<Block> {
    let path = std::env::temp_dir().join(format!("portolan-ports-{number}.lock"));
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .ok()?;
    lock.try_lock().ok()?;
    Some(Block {
        first: FIRST + number * BLOCK,
        _lock: lock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_and_can_be_bound() {
        let ports: [u16; 8] = reserve().unwrap();
        let listeners = ports.map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
        let more: [u16; 100] = reserve().unwrap();
        assert!(more.iter().all(|port| !ports.contains(port)), "{more:?}");
        drop(listeners);
    }

    #[test]
    fn a_block_has_one_holder() {
        let own = own_block().unwrap();
        assert!(claim((own - FIRST) / BLOCK).is_none());
    }
}

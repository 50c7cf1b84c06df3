// SPDX-License-Identifier: Apache-2.0

//! Against the generic netlink of any kernel, without privileges: requests of a family that does
//! not exist are refused with `ENOENT`, no-operations are not.

use super::*;

/// A generic netlink family that no kernel has.
const NO_FAMILY: u16 = 0x7ffe;

fn socket() -> Socket {
    Socket::open(Bus::Generic).unwrap()
}

fn push(batch: &mut Batch<'_>, kind: u16) -> Result<(), SocketError> {
    batch.push(kind, 0, |writer| writer.raw(&[1, 1, 0, 0]))
}

#[test]
fn tells_exactly_which_requests_were_refused() {
    let mut socket = socket();
    for (count, size) in [(1, 1 << 18), (5_000, 1 << 18), (40_000, 1 << 16)] {
        let bad = |index: usize| index % 7 == 3;
        let mut batch = socket.batch(size);
        for index in 0..count {
            push(&mut batch, if bad(index) { NO_FAMILY } else { wire::NOOP }).unwrap();
        }
        let refused = batch.finish().unwrap();
        let indices: Vec<usize> = refused.iter().map(|refused| refused.index).collect();
        assert_eq!(
            indices,
            (0..count).filter(|index| bad(*index)).collect::<Vec<_>>()
        );
        assert!(refused.iter().all(|refused| refused.errno == Errno::ENOENT));
    }
}

#[test]
fn skipped_requests_count() {
    let mut socket = socket();
    let mut batch = socket.batch(1 << 18);
    batch.skip();
    push(&mut batch, NO_FAMILY).unwrap();
    batch.skip();
    assert_eq!(
        batch.finish().unwrap().first().map(|refused| refused.index),
        Some(1)
    );
    assert_eq!(socket.batch(1).finish().unwrap(), []);
}

#[test]
fn sequence_numbers_wrap() {
    let mut socket = socket();
    socket.sequence = u32::MAX - 2;
    let mut batch = socket.batch(1 << 18);
    for _ in 0..6 {
        push(&mut batch, NO_FAMILY).unwrap();
    }
    let indices: Vec<usize> = batch.finish().unwrap().iter().map(|r| r.index).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn lost_answers_are_an_error_and_the_socket_recovers() {
    let mut socket = socket();
    sys::set_option(&socket.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    let mut batch = socket.batch(1 << 18);
    for _ in 0..1_000 {
        push(&mut batch, NO_FAMILY).unwrap();
    }
    assert_eq!(batch.finish(), Err(SocketError::Overrun));

    let mut batch = socket.batch(1 << 18);
    push(&mut batch, wire::NOOP).unwrap();
    push(&mut batch, NO_FAMILY).unwrap();
    let indices: Vec<usize> = batch.finish().unwrap().iter().map(|r| r.index).collect();
    assert_eq!(indices, [1]);
}

#[test]
fn answers_to_an_earlier_batch_are_discarded() {
    let mut socket = socket();
    let mut writer = Writer::default();
    let sequence = socket.next_sequence();
    writer.message(
        Header {
            kind: NO_FAMILY,
            flags: wire::REQUEST,
            sequence,
        },
        |_| {},
    );
    socket.send(writer.as_bytes()).unwrap();

    let mut batch = socket.batch(1 << 18);
    push(&mut batch, wire::NOOP).unwrap();
    assert_eq!(batch.finish().unwrap(), []);
}

#[test]
fn a_missing_answer_is_a_timeout() {
    let mut socket = socket();
    sys::set_receive_timeout(&socket.fd, Duration::from_millis(20)).unwrap();
    assert_eq!(socket.receive(), Err(SocketError::Timeout));
}

/// Any other kind of socket is one that does not work any more.
fn replaced(socket: &mut Socket) -> OwnedFd {
    let (this, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    socket.fd = this.into();
    sys::set_receive_timeout(&socket.fd, Duration::from_millis(20)).unwrap();
    other.into()
}

#[test]
fn after_an_error_of_its_own_there_is_a_new_socket() {
    let mut socket = socket();
    socket.check_strictly();
    let fill = |writer: &mut Writer| writer.raw(&[3, 1, 0, 0]);
    let count = |count: &mut usize, _: &[u8]| {
        *count += 1;
        Ok(())
    };
    let requests = socket.requests();
    // No answer.
    let other = replaced(&mut socket);
    assert_eq!(socket.dump(16, fill, count), Err(SocketError::Timeout));
    assert!(socket.dump(16, fill, count).unwrap() >= 1);
    drop(other);

    // The peer is closed.
    drop(replaced(&mut socket));
    let mut batch = socket.batch(1 << 18);
    push(&mut batch, NO_FAMILY).unwrap();
    let failed = batch.finish().unwrap_err();
    assert!(matches!(failed, SocketError::Send(_)), "{failed}");
    let mut batch = socket.batch(1 << 18);
    push(&mut batch, NO_FAMILY).unwrap();
    assert_eq!(batch.finish().unwrap().len(), 1);

    // A malformed answer.
    let other = std::os::unix::net::UnixDatagram::from(replaced(&mut socket));
    other.send(&[0xff; 20]).unwrap();
    let failed = socket.dump(16, fill, count).unwrap_err();
    assert!(matches!(failed, SocketError::Malformed(_)), "{failed}");
    assert!(socket.dump(16, fill, count).unwrap() >= 1);
    // New sockets continue the count.
    assert_eq!(socket.requests(), requests + 6);
    let mut strict = [0; 4];
    let name = libc::NETLINK_GET_STRICT_CHK;
    sys::get_option(&socket.fd, libc::SOL_NETLINK, name, &mut strict).unwrap();
    assert_eq!(i32::from_ne_bytes(strict), 1);
}

/// The controller family (16), `CTRL_CMD_GETFAMILY` (3) of everything.
#[test]
fn dumps_and_refuses() {
    let mut socket = socket();
    let fill = |writer: &mut Writer| writer.raw(&[3, 1, 0, 0]);
    let count = |count: &mut usize, _: &[u8]| {
        *count += 1;
        Ok(())
    };
    assert!(socket.dump(16, fill, count).unwrap() >= 1);
    let refused = Err(SocketError::Refused(Errno::ENOENT));
    assert_eq!(socket.request(NO_FAMILY, fill, count), refused);
    assert_eq!(socket.dump(NO_FAMILY, fill, count), refused);

    let broken = |_: &mut (), _: &[u8]| Err(Malformed::Missing { kind: 1 });
    let malformed = Err(SocketError::Malformed(Malformed::Missing { kind: 1 }));
    assert_eq!(socket.dump(16, fill, broken), malformed);
    assert!(
        socket.dump(16, fill, count).is_ok(),
        "the broken dump is not running any more"
    );
}

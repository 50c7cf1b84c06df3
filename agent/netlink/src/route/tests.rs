// SPDX-License-Identifier: Apache-2.0

use super::*;

const MARK: Mark = Mark {
    protocol: 99,
    metric: 1099,
};

#[test]
fn a_route_is_written_as_the_kernel_reads_it() {
    let mut writer = Writer::default();
    let (vip, node) = ([10, 96, 0, 1].into(), [192, 0, 2, 1].into());
    write(&mut writer, MARK, vip, Some(node));
    let expected = [
        &[2, 32, 0, 0, 255, 99, 254, 2, 0, 0, 0, 0][..],
        &[8, 0, 1, 0, 10, 96, 0, 1],
        &[8, 0, 4, 0, 1, 0, 0, 0],
        &[8, 0, 6, 0, 0x4b, 4, 0, 0],
        &[8, 0, 7, 0, 192, 0, 2, 1],
    ];
    if cfg!(target_endian = "little") {
        assert_eq!(writer.as_bytes(), expected.concat());
    }
}

#[test]
fn a_route_is_read_as_it_is_written() {
    for (address, source) in [("10.96.0.1", Some("192.0.2.1")), ("fd00:96::1", None)] {
        let address: IpAddr = address.parse().unwrap();
        let source: Option<IpAddr> = source.map(|source| source.parse().unwrap());
        let family = Family::of(address);
        let mut writer = Writer::default();
        write(&mut writer, MARK, address, source);
        let bytes = writer.as_bytes();
        let ours = Route::Ours { address, source };
        assert_eq!(read(bytes, family, 99), Ok(Some(ours)));
        for cut in 0..HEADER_LEN {
            assert_eq!(read(&bytes[..cut], family, 99), Err(Malformed::Truncated));
        }
    }
}

#[test]
fn of_others_only_routes_of_one_address_in_the_same_table_are_shown() {
    for address in ["10.96.0.1", "fd00:96::1"] {
        let address: IpAddr = address.parse().unwrap();
        let family = Family::of(address);
        let mut writer = Writer::default();
        write(&mut writer, MARK, address, None);
        let changed = |at: usize, to: u8| {
            let mut bytes = writer.as_bytes().to_vec();
            bytes[at] = to;
            read(&bytes, family, 99)
        };
        let foreign = Ok(Some(Route::Foreign { address }));
        // Another protocol; a type that takes packets elsewhere: `RTN_BLACKHOLE`.
        assert_eq!(changed(5, 42), foreign);
        assert_eq!(changed(7, 6), foreign);
        // Another family, length and table; the kernel's own of an address.
        for (at, to) in [(0, 7), (1, 24), (4, 254), (5, PROTOCOL_KERNEL)] {
            assert_eq!(changed(at, to), Ok(None), "{at}");
        }
    }
}

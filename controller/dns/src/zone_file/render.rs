// SPDX-License-Identifier: Apache-2.0

//! From a zone to the text of a zone file.

use std::fmt::Write;
use std::net::IpAddr;

use hickory_proto::rr::{Name, RData};

use crate::input::Subject;
use crate::name;
use crate::records::RecordSet;
use crate::walk::{ReadZone, addresses, in_pieces, objects};
use crate::zone::{NameEntry, VERSION_TTL, Zone};

/// The text of the file of one of the zones, with a serial. Equal content gives equal text.
#[must_use]
pub fn render(zone: &impl ReadZone, origin: &Name, serial: u32) -> String {
    let mut text = apex(&zone.guard(), origin, serial);
    match name::is_reverse(origin) {
        true => text.extend(in_pieces(zone, addresses(zone, origin), entries(origin))),
        false => {
            let subjects = std::iter::once(Subject::Apex).chain(objects(zone));
            text.extend(in_pieces(zone, subjects, entries(origin)));
        }
    }
    text
}

fn apex(zone: &Zone, origin: &Name, serial: u32) -> String {
    let mut file = File::new(zone);
    file.apex(zone, origin, serial);
    file.text
}

/// The lines of a subject.
fn entries(origin: &Name) -> impl Fn(&Zone, &Subject) -> Option<String> {
    |zone, subject| {
        let mut file = File::new(zone);
        for entry in zone.entries_of(origin, subject) {
            file.entry(origin, &entry);
        }
        Some(file.text)
    }
}

/// A part of a file.
struct File<'a> {
    text: String,
    /// Where PTR records lead.
    pointers: Option<&'a Name>,
}

impl<'a> File<'a> {
    fn new(zone: &'a Zone) -> Self {
        Self {
            text: String::new(),
            pointers: zone.config().zones.first(),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    fn apex(&mut self, zone: &Zone, origin: &Name, serial: u32) {
        let ttl = zone.config().ttl;
        self.line(format_args!("$ORIGIN {}", absolute(origin)));
        self.line(format_args!("$TTL {ttl}"));
        if let Some(RData::SOA(soa)) = zone.soa(origin).map(|record| record.data) {
            let (refresh, retry, expire) = (soa.refresh, soa.retry, soa.expire);
            let minimum = soa.minimum;
            self.line(format_args!(
                "@ SOA ns.dns hostmaster {serial} {refresh} {retry} {expire} {minimum}"
            ));
        }
        for (host, addresses) in zone.name_servers(origin) {
            let host = absolute(&host);
            self.line(format_args!("@ NS {host}"));
            if name::is_reverse(origin) {
                // In the forward zone these names are there by themselves.
                self.addresses(&host, &addresses);
                self.addresses("ns.dns", &addresses);
            }
        }
    }

    fn addresses(&mut self, owner: &str, addresses: &[IpAddr]) {
        for address in addresses {
            match address {
                IpAddr::V4(v4) => self.line(format_args!("{owner} A {v4}")),
                IpAddr::V6(v6) => self.line(format_args!("{owner} AAAA {v6}")),
            }
        }
    }

    /// The lines of a name. Names that are too long are left out: with one of them no server loads the file.
    fn entry(&mut self, origin: &Name, entry: &NameEntry<'_>) {
        if !fits(&entry.owner, origin) {
            return;
        }
        let owner = &relative(&entry.owner);
        let set = &*entry.set;
        if *set == RecordSet::default() && fits(&format!("_.{}", entry.owner), origin) {
            // Something has to be below a name that is to exist without records. No object can
            // have this name.
            self.line(format_args!("_.{owner} TXT \"\""));
        }
        self.addresses(owner, &set.addresses);
        for srv in &set.srv {
            let (weight, port, target) = (srv.weight, srv.port, entry.target(srv));
            if fits(&target, origin) {
                let target = relative(&target);
                self.line(format_args!("{owner} SRV 0 {weight} {port} {target}"));
            }
        }
        if let Some(target) = &set.alias {
            self.line(format_args!("{owner} CNAME {}", absolute(target)));
        }
        for pointer in &set.pointers {
            if let Some(target) = self.pointers.and_then(|zone| name::below(pointer, zone)) {
                self.line(format_args!("{owner} PTR {}", absolute(&target)));
            }
        }
        if let Some(text) = &set.text {
            self.line(format_args!("{owner} {VERSION_TTL} TXT \"{text}\""));
        }
    }
}

/// Returns `true` if a name below the origin is one: 255 bytes at most.
fn fits(relative: &str, origin: &Name) -> bool {
    name::below(relative, origin).is_some()
}

/// A name below the origin, with all special bytes of zone files escaped but the dots between
/// labels. `@` is the origin itself.
pub(super) fn relative(name: &str) -> String {
    let mut text = String::new();
    match name {
        "@" => text.push('@'),
        _ => name.bytes().for_each(|byte| match byte {
            b'.' => text.push('.'),
            _ => push_escaped(&mut text, byte),
        }),
    }
    text
}

/// An absolute name, with all special bytes of zone files escaped.
fn absolute(name: &Name) -> String {
    let mut text = String::new();
    for label in name.iter() {
        for byte in label {
            push_escaped(&mut text, *byte);
        }
        text.push('.');
    }
    text
}

fn push_escaped(text: &mut String, byte: u8) {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(char::from(byte)),
        _ => {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\{byte:03}");
        }
    }
}

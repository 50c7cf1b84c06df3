// SPDX-License-Identifier: Apache-2.0

//! Accepted differences and their reasons.

use std::collections::BTreeSet;

use hickory_proto::op::ResponseCode::{NXDomain, NoError};
use hickory_proto::rr::RecordType;

use crate::ask::{Question, Seen};

const ZONES: [&str; 2] = ["cluster.local.", "clusterset.local."];

/// The name below the zone.
fn relative(question: &Question) -> &str {
    let mut below = ZONES.iter().filter_map(|zone| {
        let below = question.name.strip_suffix(zone)?;
        below.strip_suffix('.')
    });
    below.next().unwrap_or_default()
}

fn is_apex(question: &Question) -> bool {
    ZONES.contains(&&*question.name)
}

/// The reason why the file plugin's answer may differ from Portolan's over gRPC, which equals the
/// kubernetes plugin's. A zone file cannot express such answers: its names exist or do not,
/// whatever the type. `None` if the answers must be equal.
pub(crate) fn from_files(question: &Question, grpc: &Seen, files: &Seen) -> Option<&'static str> {
    let relative = relative(question);
    let reverse = question.name.ends_with(".arpa.");
    let (denied, exists) = (grpc.is_nothing(NXDomain), files.is_nothing(NoError));
    let between = relative == "dns" || relative.starts_with("_tcp.");
    if denied && exists && (between || is_upper_reverse(question)) {
        return Some("a name with others below it exists (RFC 8020)");
    }
    let fixed = ["dns-version", "ns.dns"].contains(&relative);
    if denied && exists && (reverse || fixed || question.kind == RecordType::TXT) {
        return Some("a name exists for every type (spec 7.1: no such type, NODATA)");
    }
    if question.kind == RecordType::SOA && grpc.is_nothing(NoError) && files.is_nothing(NXDomain) {
        return Some("an unknown name is unknown for SOA too (spec 7.1: NXDOMAIN)");
    }
    let alias = files.answers.iter().any(is_alias);
    let beyond = grpc.answers == files.answers && files.code == NXDomain;
    if alias && (grpc.is_nothing(NoError) || grpc.code == NoError && beyond) {
        return Some("an alias is told whatever it leads to (RFC 1034)");
    }
    let spelled = question.name != question.name.to_lowercase();
    if spelled && grpc.code == files.code && lower(grpc) == lower(files) {
        return Some("the file plugin spells names in lower case");
    }
    None
}

/// The reason why Portolan's answer may differ from the kubernetes plugin's with `noendpoints`,
/// which then names the addresses of its machine instead of its own Service. `None` if the answers
/// must be equal.
pub(crate) fn without_endpoints(
    question: &Question,
    ours: &Seen,
    theirs: &Seen,
) -> Option<&'static str> {
    let name = question.name.to_lowercase();
    let glue = question.kind == RecordType::NS && ours.answers == theirs.answers;
    let address = [RecordType::A, RecordType::AAAA].contains(&question.kind)
        && (name.starts_with("ns.dns.") || name.starts_with("external-to-servers."));
    (glue || address).then_some("only CoreDNS knows the addresses of its machine")
}

fn is_alias(line: impl AsRef<str>) -> bool {
    line.as_ref().contains(" CNAME ")
}

fn is_upper_reverse(question: &Question) -> bool {
    let labels = question.name.matches('.').count();
    question.name.ends_with(".in-addr.arpa.") && labels < 6
        || question.name.ends_with(".ip6.arpa.") && labels < 34
}

fn lower(seen: &Seen) -> BTreeSet<String> {
    let lines = seen.answers.iter();
    lines.map(|line| line.to_lowercase()).collect()
}

/// The reason why the etcd plugin's answer may differ. The plugin reads one key, or all below it,
/// whatever the type. `None` if the answers must be equal.
pub(crate) fn from_etcd(question: &Question, grpc: &Seen, etcd: &Seen) -> Option<&'static str> {
    listed_of_etcd(question, grpc, etcd).or_else(|| more_of_etcd(question, grpc, etcd))
}

/// Differences at names of the specification.
fn listed_of_etcd(question: &Question, grpc: &Seen, etcd: &Seen) -> Option<&'static str> {
    let relative = relative(question);
    if question.kind == RecordType::SOA && etcd.answers.iter().all(|line| line.contains(" SOA ")) {
        return Some("SOA at any name (spec 7.2)");
    }
    let pointer = question.kind == RecordType::PTR;
    let one = grpc.answers.len() > 1 && etcd.answers.len() == 1;
    if pointer && one && etcd.answers.is_subset(&grpc.answers) {
        return Some("one PTR record of an address (spec 7.2)");
    }
    let is_namespace = relative.ends_with(".svc") && relative.matches('.').count() == 1;
    if is_namespace && grpc.answers.is_empty() && etcd.answers.iter().any(is_alias) {
        return Some("a Namespace shows its ExternalName Services (spec 7.2)");
    }
    if is_apex(question) && question.kind == RecordType::SRV {
        return Some("SRV of the apex reads the whole zone (spec 7.2)");
    }
    None
}

/// Differences at names outside the specification, which no layout of keys can serve.
fn more_of_etcd(question: &Question, grpc: &Seen, etcd: &Seen) -> Option<&'static str> {
    let relative = relative(question);
    let reverse = question.name.ends_with(".arpa.");
    let denied = grpc.is_nothing(NXDomain) && etcd.code == NoError;
    let of_ports = relative.starts_with('_');
    if denied && reverse && question.kind != RecordType::PTR {
        return Some("a PTR record, and what is below a name, is read for every type");
    }
    if denied && (relative == "dns" || of_ports) {
        return Some("a name between names has what is below it");
    }
    if denied && etcd.answers.is_empty() {
        return Some("a name exists for every type");
    }
    let text = question.kind == RecordType::TXT;
    if is_apex(question) && text {
        return Some("TXT of the apex reads the whole zone");
    }
    if is_apex(question) && question.kind == RecordType::NS {
        return Some("the name server is the key that says so, ns.dns");
    }
    let pointers = |line: &String| line.contains(" PTR ");
    if grpc.is_nothing(NoError) && etcd.answers.iter().all(pointers) {
        return Some("an alias is a PTR record too");
    }
    if grpc.is_nothing(NoError) && text && etcd.answers.iter().any(is_alias) {
        return Some("an alias is told for TXT");
    }
    // An alias leads to all addresses of an endpoint's name, and a port of any number has no message.
    let (ours, theirs) = (addresses(grpc), addresses(etcd));
    let nested = theirs.is_subset(&ours) || ours.is_subset(&theirs);
    if of_ports && grpc.code == etcd.code && nested {
        return Some("a port of a headless Service has aliases to its endpoints");
    }
    None
}

/// The addresses in an answer.
fn addresses(seen: &Seen) -> BTreeSet<&str> {
    let lines = seen.answers.iter().filter(|line| !is_alias(line));
    lines.filter_map(|line| line.rsplit(' ').next()).collect()
}

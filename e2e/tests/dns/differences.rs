//! What may differ, and why.

use std::collections::BTreeSet;

use hickory_proto::op::ResponseCode::{NXDomain, NoError};
use hickory_proto::rr::RecordType;

use crate::ask::{Question, Seen};

const ZONE: &str = ".cluster.local.";

/// The name below the zone.
fn relative(question: &Question) -> &str {
    question.name.strip_suffix(ZONE).unwrap_or_default()
}

fn is_port(question: &Question) -> bool {
    question.name.starts_with('_') && question.name.matches("._").count() == 1
}

/// Why our answer may be another than the kubernetes plugin's: where that contradicts the DNS
/// standards, as the crate's documentation lists it. `None` if it must not.
pub(crate) fn from_plugin(question: &Question, ours: &Seen, plugin: &Seen) -> Option<&'static str> {
    let relative = relative(question);
    let address = matches!(question.kind, RecordType::A | RecordType::AAAA);
    let exists = ours.is_nothing(NoError) && plugin.is_nothing(NXDomain);
    let between = relative == "dns" || relative.starts_with("_tcp.");
    let upper = ["svc", "pod"].contains(&relative) || relative.matches('.').count() == 1;
    let reverse = question.name.ends_with(".arpa.");
    let name_server = relative == "ns.dns" || question.name == "cluster.local.";
    if exists && (between || reverse && question.kind == RecordType::PTR) {
        return Some("a name with others below it exists");
    }
    let upper = upper || question.name == "cluster.local.";
    if exists && upper && question.kind == RecordType::TXT {
        return Some("a Namespace's name exists for TXT too");
    }
    if exists && (relative == "dns-version" || relative == "ns.dns" || reverse) {
        return Some("a name of another type exists");
    }
    if is_port(question) && ours.is_nothing(NoError) && address && plugin.code == NoError {
        return Some("the name of a port has no addresses");
    }
    let alias = |line: &String| line.contains(" CNAME ");
    if plugin.is_nothing(NoError) && ours.answers.iter().any(alias) {
        return Some("an alias is part of the answer");
    }
    if question.kind == RecordType::SOA && ours.is_nothing(NXDomain) && plugin.is_nothing(NoError) {
        return Some("a name that does not exist does not exist for SOA either");
    }
    let below_pod = relative.ends_with(".pod") && relative.matches('.').count() == 3;
    if below_pod && ours.is_nothing(NXDomain) && plugin.code == NoError {
        return Some("there are no names below a Pod's");
    }
    let of_pod = relative.ends_with(".pod") && question.kind == RecordType::SRV;
    if of_pod
        && ours.is_nothing(NoError)
        && plugin
            .answers
            .iter()
            .all(|line| line.contains(" SRV 0 100 0 "))
    {
        return Some("the name of a Pod has no ports");
    }
    let orphan = |line: &String| line.contains(".orphan.testns.");
    if ours.is_nothing(NXDomain) && plugin.answers.iter().any(orphan) {
        return Some("a slice without its Service has no names");
    }
    let outside = relative == "external.testns.svc" && ours.authorities != plugin.authorities;
    if outside && ours.answers == plugin.answers && ours.answers.iter().all(alias) {
        return Some("the SOA of the zone outside is handed on");
    }
    if twice(question, ours, plugin) {
        return Some("an endpoint that is in two slices weighs once");
    }
    if name_server && ours.code == NoError && (address || question.kind == RecordType::NS) {
        return Some("the plugin says that it is the name server itself");
    }
    None
}

/// As [`from_plugin`], after the Service svc1 was deleted and its slices were not: the plugin looks
/// for addresses in slices alone.
pub(crate) fn from_plugin_without_svc1(
    question: &Question,
    ours: &Seen,
    plugin: &Seen,
) -> Option<&'static str> {
    let orphan = |line: &String| line.ends_with(".svc1.testns.svc.cluster.local.");
    let (gone, left): (BTreeSet<_>, BTreeSet<_>) = plugin.answers.iter().cloned().partition(orphan);
    let has_rest = ours.answers == left && (!left.is_empty() || ours.is_nothing(NXDomain));
    if question.kind == RecordType::PTR && !gone.is_empty() && has_rest {
        return Some("a slice without its Service has no names");
    }
    from_plugin(question, ours, plugin)
}

/// Whether but for weights the SRV records of the Service with an endpoint in two slices are equal.
fn twice(question: &Question, ours: &Seen, plugin: &Seen) -> bool {
    let without = |seen: &Seen| -> BTreeSet<String> {
        let lines = seen.answers.iter();
        lines.map(|line| drop_word(line, 5)).collect()
    };
    let asked = question.kind == RecordType::SRV && question.name.to_lowercase().contains("hdls1.");
    asked && without(ours) == without(plugin) && ours.additionals == plugin.additionals
}

fn drop_word(line: &str, index: usize) -> String {
    let mut words: Vec<_> = line.split(' ').collect();
    if index < words.len() {
        words.remove(index);
    }
    words.join(" ")
}

/// The same of the file plugin's answers against ours over gRPC.
pub(crate) fn from_files(question: &Question, grpc: &Seen, files: &Seen) -> Option<&'static str> {
    let lower = |seen: &Seen| -> BTreeSet<String> {
        let lines = seen.answers.iter();
        lines.map(|line| line.to_lowercase()).collect()
    };
    let spelled = question.name != question.name.to_lowercase();
    if spelled && grpc.code == files.code && lower(grpc) == lower(files) {
        return Some("the file plugin spells names in lower case");
    }
    let alias = |line: &String| line.contains(" CNAME ");
    let only = !grpc.answers.is_empty() && grpc.answers.iter().all(alias);
    if only && files.answers.iter().all(alias) {
        return Some("an alias that leads to nothing");
    }
    None
}

/// The same of etcd's answers against ours over gRPC, by what the specification says of etcd.
pub(crate) fn from_etcd(question: &Question, grpc: &Seen, etcd: &Seen) -> Option<&'static str> {
    let relative = relative(question);
    let alias = |line: &String| line.contains(" CNAME ");
    let is_namespace = relative.ends_with(".svc") && relative.matches('.').count() == 1;
    if question.kind == RecordType::PTR
        && grpc.answers.len() > 1
        && etcd.answers.len() == 1
        && etcd.answers.is_subset(&grpc.answers)
    {
        return Some("one PTR record of an address");
    }
    if is_namespace && grpc.is_nothing(NoError) && etcd.answers.iter().any(alias) {
        return Some("a Namespace shows its ExternalName Services");
    }
    let whole = matches!(question.kind, RecordType::SRV | RecordType::TXT);
    if question.name == "cluster.local." && whole {
        return Some("SRV and TXT of the apex read the whole zone");
    }
    let pointer = |line: &String| line.contains(" PTR ");
    let aliases = !grpc.answers.is_empty() && grpc.answers.iter().all(alias);
    if question.kind == RecordType::PTR && aliases && etcd.answers.iter().all(pointer) {
        return Some("an alias is a PTR record too");
    }
    let reverse = question.name.ends_with(".arpa.") && question.kind != RecordType::PTR;
    if reverse && grpc.is_nothing(NoError) && etcd.code == NoError {
        return Some("a PTR record shows for other types");
    }
    let exact = matches!(question.kind, RecordType::PTR | RecordType::CNAME);
    let upper = question.name.ends_with(".arpa.") && grpc.is_nothing(NoError);
    if exact && upper && etcd.is_nothing(NXDomain) {
        return Some("the upper labels of the reverse tree are no keys");
    }
    if question.kind == RecordType::SRV
        && etcd.is_nothing(NoError)
        && relative.matches('.').count() == 3
    {
        return Some("the name of an endpoint has no SRV record");
    }
    if relative.starts_with("x.") && grpc.is_nothing(NXDomain) && etcd.code == NoError {
        return Some("a key below a name has a name itself");
    }
    if relative.starts_with('_') && grpc.is_nothing(NoError) && etcd.code == NoError {
        return Some("the name of a port or protocol has addresses");
    }
    if etcd.is_nothing(NoError) && grpc.answers.iter().any(alias) {
        return Some("an alias that leads to nothing is left out");
    }
    None
}

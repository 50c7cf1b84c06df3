// SPDX-License-Identifier: Apache-2.0

//! Importers: what they make of the texts in `import`, and their notes.
//!
//! `import/NAME.yaml` has the objects and `import/NAME.notes` all notes and the report; `REVIEW=1`
//! writes them anew, to be read before they are committed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use portolan_director::import::{Class, Import, ipvsadm, keepalived, ldirectord};
use portolan_director::{Already, DeclaredCheck, File, parse};
use portolan_model::check::Probe;

const KEEPALIVED: File<'_> = File {
    name: "keepalived.conf",
    text: include_str!("import/keepalived.conf"),
};

fn keepalived(text: &str) -> Import {
    keepalived_of(text, &|_, _| Vec::new(), None)
}

fn keepalived_of(text: &str, include: &keepalived::Include<'_>, config_id: Option<&str>) -> Import {
    let options = keepalived::Options {
        include,
        config_id,
        director: "lb1",
    };
    let file = File { text, ..KEEPALIVED };
    keepalived::import(file, &options)
}

fn ldirectord(text: &str, allow_partial: bool) -> Import {
    let options = ldirectord::Options {
        allow_partial,
        director: "lb1",
    };
    let file = File {
        name: "ldirectord.cf",
        text,
    };
    ldirectord::import(file, options)
}

fn ipvsadm(text: &str, merge: bool) -> Import {
    let file = File {
        name: "rules",
        text,
    };
    ipvsadm::import(file, merge)
}

/// Compares a file, or writes it anew.
fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/import")
        .join(name);
    if std::env::var_os("REVIEW").is_some() {
        fs::write(&path, found).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), found, "{name}");
}

/// Compares objects and notes, and that the objects survive reading.
fn compare_all(name: &str, import: &Import) {
    let mut notes = String::new();
    for note in &import.notes {
        let _ = writeln!(notes, "{note}");
    }
    compare(&format!("{name}.notes"), &(notes + "\n" + &import.report()));
    let text = import.to_yaml();
    compare(&format!("{name}.yaml"), &text);
    let file = File {
        name: "import.yaml",
        text: &text,
    };
    let read = parse(&[file], &Already::default()).unwrap();
    assert_eq!(read.load_balancers, import.generation.load_balancers);
    assert_eq!(read.to_yaml(), text);
}

#[test]
fn keepalived_with_all_that_maps() {
    let import = keepalived(KEEPALIVED.text);
    compare_all("keepalived", &import);
    assert_eq!(import.exit_code(), 2);
}

#[test]
fn a_virtual_host_of_keepalived_is_a_server_name_without_its_port() {
    let import = keepalived(
        "virtual_server 192.0.2.10 443 {\n  real_server 10.0.0.1 443 {\n    SSL_GET {\n      enable_sni\n      \
         virtualhost www.example.org:8443\n      url {\n        path /\n      }\n    }\n  }\n}\n",
    );
    assert_eq!(errors(&import), [""; 0]);
    let yaml = import.to_yaml();
    assert!(yaml.contains("host: www.example.org:8443"), "{yaml}");
    assert!(yaml.contains("serverName: www.example.org\n"), "{yaml}");
}

#[test]
fn ldirectord_with_all_that_maps() {
    let import = ldirectord(include_str!("import/ldirectord.cf"), false);
    compare_all("ldirectord", &import);
    assert_eq!(import.exit_code(), 2);
}

#[test]
fn ipvsadm_with_all_options() {
    let import = ipvsadm(include_str!("import/rules.ipvsadm"), false);
    compare_all("ipvsadm", &import);
    assert_eq!(import.exit_code(), 2);
}

#[test]
fn equal_services_of_ipvsadm_are_joined_on_request() {
    let text = "-A -t 192.0.2.10:80 -s rr\n-a -t 192.0.2.10:80 -r 10.0.0.1 -m -w 1\n\
                -A -t 192.0.2.10:443 -s rr\n-a -t 192.0.2.10:443 -r 10.0.0.1 -m -w 1\n\
                -A -t 192.0.2.11:80 -s wrr\n-a -t 192.0.2.11:80 -r 10.0.0.1 -m -w 1\n";
    assert_eq!(ipvsadm(text, false).generation.load_balancers.len(), 3);
    let merged = ipvsadm(text, true);
    assert_eq!(
        merged.generation.load_balancers.len(),
        2,
        "{}",
        merged.report()
    );
    assert_eq!(merged.generation.load_balancers[0].frontends.len(), 2);
}

/// Errors by text: nothing is imported, and the exit code is 1.
fn is_refused(import: &Import, expected: &str) {
    assert_eq!(errors(import), [expected]);
    assert_eq!(import.exit_code(), 1);
    assert_eq!(import.to_yaml(), "");
}

#[test]
fn what_ipvsadm_never_saves_is_refused() {
    is_refused(
        &ipvsadm("-D -t 192.0.2.1:80\n", false),
        "rules:1: error: -D: expected -A or -a, as ipvsadm -Sn prints",
    );
    is_refused(
        &ipvsadm("-A -t 192.0.2.1:80 -s none\n", false),
        "rules:1: error: -s: unknown scheduler \"none\"",
    );
    is_refused(
        &ipvsadm("-A -t 192.0.2.1:80 -s rr -p 60 -M 255.0.255.0\n", false),
        "rules:1: error: -M: 255.0.255.0 has holes or is empty: no prefix length is equal to it",
    );
    is_refused(
        &ipvsadm("-a -t 192.0.2.1:80 -r 10.0.0.1:80 -m\n", false),
        "rules:1: error: -a: expected after the -A of its service",
    );
}

#[test]
fn sequences_and_open_blocks_of_keepalived_are_refused() {
    is_refused(
        &keepalived("\n~SEQ(i, 1, 3) virtual_server 192.0.2.$i 80 {\n"),
        "keepalived.conf:2: error: ~SEQ, ~LST: expected written out",
    );
    is_refused(
        &keepalived("global_defs {\n  router_id a\n"),
        "keepalived.conf:1: error: {: not closed: expected }",
    );
    is_refused(
        &keepalived("}\n"),
        "keepalived.conf:1: error: }: closes no block",
    );
    is_refused(
        &keepalived("router_id \"a\n"),
        "keepalived.conf:1: error: quotes: not closed: expected a closing quote in the same line",
    );
}

#[test]
fn a_regular_expression_that_looks_around_is_refused() {
    let text = "virtual_server 192.0.2.1 80 {\n protocol TCP\n real_server 10.0.0.1 80 {\n HTTP_GET { \
                url { path /\n regex \"(?=a)\" } } } }\n";
    let import = keepalived(text);
    let error = import
        .notes
        .iter()
        .find(|note| note.class == Class::Error)
        .unwrap();
    assert!(error.message.contains("look-around"), "{error}");
    assert_eq!((error.line, import.exit_code()), (1, 1));
}

#[test]
fn included_files_and_conditions_of_keepalived_are_read() {
    let include = |_: &str, pattern: &str| match pattern {
        "conf.d/*.conf" => vec![
            (
                "conf.d/a.conf".to_owned(),
                Ok("$P=80\nglobal_defs { router_id x }\n".to_owned()),
            ),
            ("conf.d/b.conf".to_owned(), Ok("bogus\n".to_owned())),
        ],
        "self" => vec![("self".to_owned(), Ok("include self\n".to_owned()))],
        _ => Vec::new(),
    };
    let text = "include conf.d/*.conf\nvirtual_server 192.0.2.1 ${P} {\n  @a protocol TCP\n  \
                @^a protocol UDP\n  @b lb_algo rr\n  real_server 10.0.0.1 80\n}\n";
    let import = keepalived_of(text, &include, Some("a"));
    let notes: Vec<String> = import.notes.iter().map(ToString::to_string).collect();
    assert!(
        notes.contains(&"conf.d/b.conf:1: w: bogus: unknown here".to_owned()),
        "{notes:#?}"
    );
    let balancer = &import.generation.load_balancers[0];
    assert_eq!(balancer.frontends[0].name, "tcp-80");
    assert_eq!(balancer.scheduler.as_str(), "wlc");
    is_refused(
        &keepalived_of("include self\n", &include, None),
        "self:1: error: include: files include each other without end",
    );
    assert_eq!(
        keepalived_of("include nothing\n", &include, None).exit_code(),
        2
    );
}

/// The errors of an import, each with its place.
fn errors(import: &Import) -> Vec<String> {
    let errors = import.notes.iter();
    let errors = errors.filter(|note| note.class == Class::Error);
    errors.map(ToString::to_string).collect()
}

#[test]
fn blocks_of_keepalived_are_nested_to_a_limit() {
    let nested = |depth: usize| "a {\n".repeat(depth) + &"}\n".repeat(depth);
    assert_eq!(errors(&keepalived(&nested(32))), [""; 0]);
    let expected = "keepalived.conf:33: error: {: in 32 other blocks: expected at most 31";
    assert_eq!(errors(&keepalived(&nested(100_000))), [expected]);
    let open = errors(&keepalived(&"a {\n".repeat(100_000)));
    assert_eq!(open.len(), 34);
    assert!(open.contains(&expected.to_owned()), "{open:#?}");
}

#[test]
fn files_that_include_each_other_many_times_are_refused() {
    let include = |_: &str, pattern: &str| {
        let next = pattern.parse::<u32>().map_or(0, |number| number + 1);
        let text = if next < 8 {
            format!("include {next}\n").repeat(50)
        } else {
            String::new()
        };
        vec![(pattern.to_owned(), Ok(text))]
    };
    let import = keepalived_of("include 0\n", &include, None);
    assert_eq!(
        errors(&import),
        ["6:9: error: include: more than 4096 files are included"]
    );
    let itself = |_: &str, _: &str| vec![("self".to_owned(), Ok("include self\n".repeat(50)))];
    let import = keepalived_of("include self\n", &itself, None);
    let endless = "self:1: error: include: files include each other without end";
    assert_eq!(errors(&import), [endless]);
}

#[test]
fn included_text_and_values_of_variables_are_limited() {
    let expected = "included files and values of variables have more than 4 MiB";
    let include = |_: &str, _: &str| vec![("big".to_owned(), Ok(" ".repeat(1 << 20)))];
    let import = keepalived_of(&"include big\n".repeat(5), &include, None);
    let found = format!("keepalived.conf:5: error: include: {expected}");
    assert_eq!(errors(&import), [found]);
    let doubled = (1..100).map(|n| format!("$V{n}=$V{0}$V{0}\n", n - 1));
    let text = format!("$V0=ab\n{}", doubled.collect::<String>());
    let found = format!("keepalived.conf:22: error: $: {expected}");
    assert_eq!(errors(&keepalived(&text)), [found]);
}

#[test]
fn checks_that_ldirectord_has_alone_need_a_word() {
    let text = "virtual = 192.0.2.1:3306\n real = 10.0.0.1:3306 masq\n";
    is_refused(
        &ldirectord(text, false),
        "ldirectord.cf:1: error: virtual: service mysql: no such check",
    );
    let partial = ldirectord(text, true);
    assert_eq!(partial.exit_code(), 2);
    assert!(
        partial.to_yaml().contains("/bin/false"),
        "{}",
        partial.to_yaml()
    );
}

#[test]
fn an_import_without_warnings_ends_with_0() {
    let text = "quiescent = yes\nvirtual = 192.0.2.1:80\n real = 10.0.0.1:80 masq\n";
    let import = ldirectord(text, false);
    assert_eq!(import.exit_code(), 0, "{}", import.report());
    assert_eq!(import.report(), "1 object: 3 =, 0 i, 0 ~, 0 w, 0 error\n");
}

#[test]
fn ports_that_direct_routing_cannot_translate_are_told() {
    let text = "virtual = 192.0.2.1:80\n real = 10.0.0.1:8080 gate\n checktype = ping\n \
                quiescent = yes\n";
    let import = ldirectord(text, false);
    assert_eq!(import.exit_code(), 2);
    let first = import.report().lines().next().unwrap().to_owned();
    assert_eq!(
        first,
        "ldirectord.cf:2: ~: real: its port became the frontend's, as ipvsadm has it"
    );
    assert_eq!(import.generation.load_balancers[0].backends[0].port, None);
}

#[test]
fn a_mark_with_direct_routing_is_checked_at_the_port_of_its_servers() {
    for (real, settings) in [
        ("10.0.0.1:80", "service = http"),
        ("10.0.0.1:80", "service = https\n checktype = connect"),
        ("10.0.0.1:0", "service = http"),
        ("10.0.0.1", "service = http\n checktype = connect"),
    ] {
        let text = format!("virtual = 1\n real = {real} gate\n {settings}\n quiescent = yes\n");
        let import = ldirectord(&text, false);
        assert_eq!(import.exit_code(), 0, "{text}{}", import.report());
        let backend = &import.generation.load_balancers[0].backends[0];
        let ports = |own: &[DeclaredCheck]| own.iter().map(|check| check.port).collect::<Vec<_>>();
        assert_eq!(backend.port, None, "{text}");
        assert_eq!(
            backend.checks.as_deref().map(ports),
            Some(vec![Some(80)]),
            "{text}"
        );
    }
    // A port for all servers goes before theirs, and a check without a port gets none.
    for (setting, port) in [("checkport = 81", Some(81)), ("checktype = ping", None)] {
        let text = format!("virtual = 1\n real = 10.0.0.1:80 gate\n service = http\n {setting}\n");
        let import = ldirectord(&text, false);
        let balancer = &import.generation.load_balancers[0];
        assert_eq!(balancer.backends[0].checks, None, "{text}");
        assert_eq!(balancer.checks[0].port, port, "{text}");
    }
}

#[test]
fn a_port_that_direct_routing_cannot_translate_is_checked_all_the_same() {
    let text = "virtual = 192.0.2.1:80\n real = 10.0.0.1:8080 gate\n real = 10.0.0.2:80 gate\n";
    let import = ldirectord(text, false);
    let backends = &import.generation.load_balancers[0].backends;
    let own = backends[0].checks.as_ref().unwrap();
    assert_eq!(own[0].port, Some(8080));
    assert_eq!(backends[1].checks, None);
}

/// A service with one server, which a program checks.
fn with_program(misc_path: &str) -> Import {
    keepalived(&format!(
        "virtual_server 192.0.2.1 80 {{\n protocol TCP\n real_server 10.0.0.1 80 {{\n MISC_CHECK {{\n \
         misc_path {misc_path}\n }}\n }}\n}}\n"
    ))
}

#[test]
fn an_external_check_of_ldirectord_gets_addresses_and_ports() {
    let import = ldirectord(
        "virtual = 192.0.2.10:80\n real = 10.0.0.1:8080 masq\n checktype = external\n \
         checkcommand = /bin/echo check\n",
        false,
    );
    assert_eq!(errors(&import), [""; 0]);
    let Probe::Exec(exec) = &import.generation.load_balancers[0].checks[0].probe else {
        panic!("{}", import.to_yaml());
    };
    for (frontend, address, arguments) in [
        ("TCP/192.0.2.10:80", "10.0.0.1", "192.0.2.10 80 10.0.0.1"),
        // IPv6 addresses are in brackets, as ldirectord has them.
        ("UDP/[fd00::9]:53", "fd00::1", "[fd00::9] 53 [fd00::1]"),
        // A mark has no port: its argument is empty.
        ("FWM/7/IPv6", "fd00::1", "7  [fd00::1]"),
    ] {
        let mut shell = std::process::Command::new(&exec.command[0]);
        shell.args(&exec.command[1..]);
        shell.env("PORTOLAN_FRONTEND", frontend);
        shell.env("PORTOLAN_ADDRESS", address);
        shell.env("PORTOLAN_PORT", "8080");
        let output = shell.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("check {arguments} 8080\n"));
    }
}

#[test]
fn quotes_in_a_command_of_keepalived_group_words() {
    for (misc_path, arguments) in [
        (r#""/bin/a --expect 'all good'""#, "--expect|all good"),
        (r#"'/bin/a  "a b"c \d'"#, r"a bc|\d"),
        (r#""/bin/a it\'s""#, "it's"),
        (r#"/bin/a "all good""#, "all good"),
        (r#""/bin/a b c""#, "b|c"),
    ] {
        let import = with_program(misc_path);
        assert_eq!(errors(&import), [""; 0]);
        let Probe::Exec(exec) = &import.generation.load_balancers[0].checks[0].probe else {
            panic!("{}", import.to_yaml());
        };
        let expected = format!("/bin/a|{arguments}");
        assert_eq!(exec.command.join("|"), expected, "{misc_path}");
    }
    is_refused(
        &with_program("\"/usr/lib/check --expect 'all good\""),
        "keepalived.conf:5: error: misc_path: a quote is not closed: expected a closing one",
    );
}

#[test]
fn a_comment_of_keepalived_begins_within_a_word() {
    let import = keepalived(
        "$V=192.0.2.1 # main\nvirtual_server $V 80 {!web\n protocol TCP#\n lvs_method NAT\n real_server 10.0.0.1 8080#web1\n {\n \
         weight 3!old\n MISC_CHECK {\n misc_path /usr/lib/check a\\#b c\\!d \"e#f\" g\\\\#h\n }\n }\n}\n",
    );
    assert_eq!(errors(&import), [""; 0]);
    let balancer = &import.generation.load_balancers[0];
    let backend = &balancer.backends[0];
    assert_eq!((backend.port, backend.weight), (Some(8080), 3));
    let Probe::Exec(exec) = &balancer.checks[0].probe else {
        panic!("{}", import.to_yaml());
    };
    let expected = ["/usr/lib/check", "a#b", "c!d", "e#f", "g\\\\"];
    assert_eq!(exec.command, expected);
}

#[test]
fn a_program_of_keepalived_has_an_interval_of_time() {
    let import = keepalived(
        "virtual_server 192.0.2.1 80 {\n protocol TCP\n delay_loop 30\n connect_timeout 3\n \
         real_server 10.0.0.1 80 {\n MISC_CHECK {\n misc_path /bin/a\n }\n TCP_CHECK\n }\n}\n",
    );
    assert_eq!(errors(&import), [""; 0]);
    let checks = &import.generation.load_balancers[0].checks;
    let timeouts: Vec<_> = checks.iter().map(|check| check.timers.timeout).collect();
    let expected = [30, 3].map(|seconds| Some(Duration::from_secs(seconds)));
    assert_eq!(timeouts, expected);
}

#[test]
fn a_persistence_of_no_time_is_left_out() {
    let import = keepalived(
        "virtual_server 192.0.2.1 80 {\n protocol TCP\n persistence_timeout 0\n real_server 10.0.0.1 80\n}\n",
    );
    assert_eq!(import.exit_code(), 2, "{}", import.report());
    assert_eq!(import.generation.load_balancers[0].persistence, None);
    let note = "keepalived.conf:3: ~: persistence_timeout: 0: no persistence, as keepalived has it";
    assert!(import.report().contains(note), "{}", import.report());
}

#[test]
fn a_comment_of_keepalived_may_have_a_sequence() {
    let import = keepalived(
        "virtual_server 192.0.2.1 80 {\n protocol TCP\n # real_server 10.0.0.~SEQ(1,9) 80\n \
         real_server 10.0.0.1 80 ! no ~LST\n}\n",
    );
    assert_eq!(errors(&import), [""; 0]);
    assert_eq!(import.generation.load_balancers[0].backends.len(), 1);
}

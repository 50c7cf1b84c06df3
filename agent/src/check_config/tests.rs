// SPDX-License-Identifier: Apache-2.0

use clap::Parser as _;

use super::*;

fn errors(args: &[String]) -> Vec<String> {
    let program = std::iter::once("portolan-agent".to_owned());
    let all = program.chain(args.iter().cloned());
    check_config(&Cli::try_parse_from(all).unwrap())
}

fn end(args: &[&str]) -> Option<Ending> {
    let all = [&["portolan-agent"], args].concat();
    early_end(&Cli::try_parse_from(all).unwrap())
}

#[test]
fn a_check_ends_each_command_that_accepts_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("--file={}", directory.path().display());
    let commands = [
        &["run"][..],
        &["prepare"],
        &["plan"],
        &["apply", "--once"],
        &["export", "ipvsadm"],
    ];
    let node = "--node-name=a";
    let check = |command: &[&str]| end(&[command, &[node, CHECK, &file]].concat());
    for command in commands {
        let good = check(command).unwrap();
        assert_eq!((good.errors, good.code), (Vec::new(), 0), "{command:?}");
        let without = end(&[command, &[node, &file]].concat());
        assert_eq!(without, None, "{command:?}");
        let bad = check(&[command, &["--name-prefix=a b"]].concat()).unwrap();
        assert_eq!((bad.errors.len(), bad.code), (1, BAD_CONFIG), "{bad:?}");
    }
    std::fs::write(directory.path().join("x.yaml"), "kind: [").unwrap();
    for command in commands {
        let found = check(command).unwrap();
        let reads_files = command != ["prepare"];
        let expected = if reads_files { BAD_CONFIG } else { 0 };
        assert_eq!(found.code, expected, "{command:?}: {found:?}");
    }
}

#[test]
fn flags_that_cannot_be_used_end_a_command_with_usage() {
    let files = ["--source=file", "--file=/dev/null", "--node-name=a"];
    assert_eq!(end(&files), None);
    for (bad, part) in [
        ("--dns-bind-address=[::1]:53", "needs --source controller"),
        ("--admin-listen=x", "--admin-listen \"x\""),
        ("--debug-listen=x", "--debug-listen \"x\""),
        ("--otlp-endpoint=https://a:1", "needs --otlp-ca"),
        ("--name-prefix=a b", "--name-prefix"),
        ("--node-port-addresses=eth0", "--node-port-addresses"),
    ] {
        let found = end(&[&files[..], &[bad]].concat()).unwrap();
        assert_eq!(found.code, USAGE, "{bad}");
        assert_eq!(found.errors.len(), 1, "{bad}: {found:?}");
        assert!(found.errors[0].contains(part), "{bad}: {found:?}");
    }
    for (bad, part) in [
        (&["--node-name=a"][..], "needs --controller"),
        (&["plan"], "needs --file"),
        (&["plan", "--file=a", "--dataplane=auto"], "ipvs alone"),
        (&["export", "nft", "--full"], "--full is for ipvsadm"),
        (&["export", "env", "--address=x"], "--address \"x\""),
        (&["prepare", "--dataplane=userspace"], "no preparation"),
        (&["run", "--file=a", "--dataplane=ipvs"], "run needs"),
        (&["cleanup", "--node-ip=192.0.2.1,192.0.2.2"], "--node-ip"),
        (&["reload", "--address=x"], "--address \"x\""),
        (&["import", "kernel", "--director="], "--director is"),
    ] {
        let found = end(bad).unwrap();
        assert_eq!(found.code, USAGE, "{bad:?}");
        assert!(found.errors[0].contains(part), "{bad:?}: {found:?}");
    }
    let run = ["run", "--file=a", "--userspace-zone=."];
    let commands: [&[&str]; 2] = [&[], &["--", "true"]];
    for command in commands {
        let found = end(&[&run[..], command].concat()).unwrap();
        assert!(found.errors[0].contains("--userspace-zone"), "{found:?}");
    }
}

/// A missing file may be there a moment later.
#[test]
fn files_are_no_matter_of_flags() {
    let missing = "--file=/nowhere/at/all";
    for command in [&["run"][..], &["plan"], &["apply", "--once"]] {
        let args = [command, &["--node-name=a", missing]].concat();
        assert_eq!(end(&args), None, "{command:?}");
    }
    let token = "--debug-token-file=/nowhere/at/all";
    let agent = ["--source=file", missing, token, "--node-name=a"];
    assert_eq!(end(&agent), None);
}

#[test]
fn a_check_keeps_its_exit_code_for_flags_that_cannot_be_parsed() {
    let code = |args: &[&str]| {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        unparsed_code(&args)
    };
    assert_eq!(code(&["portolan-agent", "--no-such-flag"]), USAGE);
    assert_eq!(code(&["portolan-agent", "--x", CHECK]), BAD_CONFIG);
    let of_command = ["portolan-agent", "run", "--x", "--", "a", CHECK];
    assert_eq!(code(&of_command), USAGE);
}

#[test]
fn each_error_of_a_flag_is_reported() {
    let flags = [
        "--node-name=a",
        "--admin-listen=x",
        "--healthz-listen=y",
        "--controller=z",
        "--detect-local-mode=BridgeInterface",
    ];
    let found = errors(&flags.map(str::to_owned)).join("\n");
    for part in [
        "--admin-listen \"x\"",
        "--healthz-listen \"y\"",
        "\"z\": expected host:port",
        "needs --pod-bridge-interface",
        "no security configured",
    ] {
        assert!(found.contains(part), "{part}\n{found}");
    }
    assert_eq!(
        found.matches("--pod-bridge-interface").count(),
        1,
        "{found}"
    );
}

#[test]
fn files_are_checked_if_they_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let flags = [
        "--node-name=a".to_owned(),
        format!("--controller-file={}", path("controllers")),
        format!("--tls-ca={}", path("ca.crt")),
        format!("--token-file={}", path("token")),
    ];
    assert_eq!(errors(&flags), Vec::<String>::new());
    for (file, content, part) in [
        ("controllers", "a:1\nb\n", "controllers: line 2: \"b\""),
        ("ca.crt", "x", "ca.crt: no certificate in PEM"),
    ] {
        std::fs::write(dir.path().join(file), content).unwrap();
        let found = errors(&flags).join("\n");
        assert!(found.contains(part), "{found}");
    }
}

#[test]
fn files_of_a_collector_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let collector = dir.path().join("collector.crt");
    let objects = tempfile::tempdir().unwrap();
    let flags = [
        "--node-name=a".to_owned(),
        "--source=file".to_owned(),
        format!("--file={}", objects.path().display()),
        "--otlp-endpoint=https://a:1".to_owned(),
        format!("--otlp-ca={}", collector.display()),
    ];
    for content in [None, Some("no certificate")] {
        if let Some(content) = content {
            std::fs::write(&collector, content).unwrap();
        }
        let found = errors(&flags);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("collector.crt"), "{found:?}");
    }
}

#[test]
fn files_of_objects_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        "--node-name=a".to_owned(),
        "--source=file".to_owned(),
        format!("--file={}", dir.path().display()),
    ];
    assert_eq!(errors(&flags), Vec::<String>::new());
    std::fs::write(dir.path().join("x.yaml"), "kind: [").unwrap();
    let found = errors(&flags).join("\n");
    assert!(found.contains("x.yaml:"), "{found}");
    let missing = "--file=/nowhere/at/all".to_owned();
    let found = errors(&[&flags[..2], &[missing]].concat()).join("\n");
    assert!(found.contains("/nowhere/at/all"), "{found}");
}

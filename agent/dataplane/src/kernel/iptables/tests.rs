// SPDX-License-Identifier: Apache-2.0

use std::time::{Duration, Instant};

use portolan_model::NodeInfo;
use portolan_plan::{Config, rules};

use super::*;

fn saved(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn ours() -> Rules {
    rules(Family::V4, &Config::default(), &NodeInfo::default())
}

#[test]
fn jump_is_found_with_a_comment_and_only_in_its_table() {
    let saved = saved(
        "*nat\n-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         *filter\n-A INPUT -j KUBE-SERVICES-OTHER",
    );
    let rules = ours();
    let found = |chain| {
        let jump = rules
            .jumps
            .iter()
            .find(|j| j.chain == chain && j.table == "nat")
            .unwrap();
        jump_line(jump, &saved).is_some()
    };
    assert!(found("PREROUTING"));
    assert!(!found("OUTPUT"));
}

#[test]
fn counters_and_foreign_rules_leave_the_fingerprint_unchanged() {
    let text =
        "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\n-A PREROUTING -j KUBE-SERVICES";
    let touched = text.replace("[0:0]", "[7:9]") + "\n-A PREROUTING -j DOCKER\n:DOCKER - [0:0]";
    let before = fingerprint_of(&ours(), &saved(text));
    assert_eq!(before.len(), 3);
    assert_eq!(before, fingerprint_of(&ours(), &saved(&touched)));
    for change in [
        ("-j RETURN", "-j DROP"),
        ("-A PREROUTING -j KUBE-SERVICES", ""),
    ] {
        let changed = text.replace(change.0, change.1);
        assert_ne!(
            before,
            fingerprint_of(&ours(), &saved(&changed)),
            "{change:?}"
        );
    }
}

#[test]
fn removal_deletes_our_existing_chains_and_jumps_only() {
    let saved = saved(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-OTHER - [0:0]\n\
         -A PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n-A PREROUTING -j DOCKER\n*filter",
    );
    assert_eq!(
        removal(&ours(), &saved),
        "*nat\n:KUBE-SERVICES - [0:0]\n\
         -D PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n-X KUBE-SERVICES\nCOMMIT\n"
    );
    assert_eq!(removal(&ours(), &[]), "");
}

#[test]
fn removal_deletes_all_jumps_to_a_chain() {
    // A kube-proxy that ran beside the agent has left its own.
    let saved = saved(
        "*nat\n:KUBE-SERVICES - [0:0]\n\
         -A PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\n*filter",
    );
    assert_eq!(
        removal(&ours(), &saved),
        "*nat\n:KUBE-SERVICES - [0:0]\n\
         -D PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n\
         -D PREROUTING -j KUBE-SERVICES\n-X KUBE-SERVICES\nCOMMIT\n"
    );
}

#[test]
fn removal_deletes_jumps_of_earlier_versions() {
    let saved =
        saved("*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n-A OUTPUT -j KUBE-PROXY-FIREWALL\n*nat");
    assert_eq!(
        removal(&ours(), &saved),
        "*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n\
         -D OUTPUT -j KUBE-PROXY-FIREWALL\n-X KUBE-PROXY-FIREWALL\nCOMMIT\n"
    );
}

#[test]
fn removal_leaves_a_chain_that_rules_of_others_use() {
    let portmap = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         -A PREROUTING -j KUBE-SERVICES\n-A CNI-DN-x -j KUBE-MARK-MASQ\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
         -A KUBE-SERVICES -j KUBE-MARK-MASQ\n";
    let removed = removal(&ours(), &saved(portmap));
    assert_eq!(
        removed,
        "*nat\n:KUBE-SERVICES - [0:0]\n-D PREROUTING -j KUBE-SERVICES\n-X KUBE-SERVICES\nCOMMIT\n"
    );
    // Nothing else is left: nothing is done.
    let left = saved(
        "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A CNI-DN-x -j KUBE-MARK-MASQ\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n",
    );
    assert_eq!(removal(&ours(), &left), "");
}

#[test]
fn a_chain_that_stays_is_emptied_if_it_needs_what_goes() {
    let used =
        "*nat\n:KUBE-NODE-PORT - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A OTHER -g KUBE-NODE-PORT\n";
    let emptied =
        "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-NODE-PORT - [0:0]\n-X KUBE-MARK-MASQ\nCOMMIT\n";
    for rule in [
        "-j KUBE-MARK-MASQ",
        "-m set --match-set KUBE-NODE-PORT-TCP dst -j RETURN",
    ] {
        let saved = saved(&format!("{used}-A KUBE-NODE-PORT {rule}\n"));
        assert_eq!(removal(&ours(), &saved), emptied);
    }
}

#[test]
fn our_jump_goes_next_to_a_foreign_one_and_a_single_one_stays() {
    let saved = saved(
        "*nat\n-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A PREROUTING -j DOCKER\n*filter",
    );
    assert_eq!(
        second_jumps(&ours(), &saved),
        "*nat\n-D PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
    );
    assert_eq!(second_jumps(&ours(), &saved[2..]), "");
}

/// Writes a program in a child: one that another thread starts meanwhile would inherit the open file, and Linux runs no
/// program that is open for writing.
pub(super) fn write_program(path: &Path, text: &str) {
    let write = r#"printf '%s' "$2" >"$1" && chmod 755 "$1""#;
    let mut shell = std::process::Command::new("sh");
    let written = shell.args(["-c", write, "sh"]).arg(path).arg(text).status();
    assert!(written.unwrap().success());
}

/// Scripts in place of the tools: restored rules are printed as saved. While a file `hang` exists they do
/// not end, and write their process number to `hanging`.
fn scripts() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().display();
    let hang = format!("[ -e {here}/hang ] && {{ echo $$ >{here}/hanging; exec sleep 600; }}");
    for (name, deed) in [
        (
            "iptables-save",
            format!("cat {here}/rules 2>/dev/null || true"),
        ),
        ("iptables-restore", format!("cat >{here}/rules")),
    ] {
        let path = directory.path().join(name);
        write_program(&path, &format!("#!/bin/sh\n{hang}\n{deed}\n"));
    }
    directory
}

const PROMPT: Duration = Duration::from_secs(2);

async fn write(iptables: &mut Iptables) -> Result<(), DataplaneError> {
    let mut written = iptables.write(&[(Family::V4, &ours())]).await;
    written.pop().unwrap()
}

#[tokio::test]
async fn hanging_tool_is_killed_and_not_started_for_a_while() {
    let directory = scripts();
    let flag = directory.path().join("hang");
    std::fs::write(&flag, "").unwrap();
    let mut iptables = Iptables::with(Tools::of(directory.path(), PROMPT), None);
    let error = write(&mut iptables).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "iptables-save: not finished in 2s: killed"
    );
    let number = std::fs::read_to_string(directory.path().join("hanging")).unwrap();
    let process = format!("/proc/{}/cmdline", number.trim());
    let sleeps = || std::fs::read_to_string(&process).is_ok_and(|text| text.contains("sleep"));
    while sleeps() {
        tokio::task::yield_now().await;
    }
    // A tool that would no longer hang has to wait too.
    std::fs::remove_file(flag).unwrap();
    let start = Instant::now();
    let again = write(&mut iptables).await.unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    assert!(start.elapsed() < PROMPT / 2);
}

#[tokio::test]
async fn tool_that_works_has_more_time() {
    let directory = scripts();
    let save = directory.path().join("iptables-save");
    // Without a program of its own: the time of a child counts when it has ended.
    let works = "#!/bin/sh\nread began _ </proc/uptime\nnow=$began\n\
        while [ $((${now%.*} - ${began%.*})) -lt 4 ]; do read now _ </proc/uptime; done\necho '*nat'\n";
    write_program(&save, works);
    let mut tools = Tools::of(directory.path(), PROMPT);
    let start = Instant::now();
    assert_eq!(tools.save(Family::V4).await.unwrap(), ["*nat"]);
    assert!(start.elapsed() > PROMPT);
}

#[tokio::test]
async fn unreadable_rules_count_as_unchanged() {
    let directory = scripts();
    let flag = directory.path().join("hang");
    // New tools for each reading, without the memory of hanging ones.
    let renew = |iptables: &mut Iptables| iptables.tools = Tools::of(directory.path(), PROMPT);
    let in_place = BTreeMap::from([(Family::V4, ours())]);
    let mut iptables = Iptables::with(Tools::of(directory.path(), PROMPT), None);
    write(&mut iptables).await.unwrap();
    std::fs::write(&flag, "").unwrap();
    iptables.settle().await.unwrap_err();
    assert_eq!(iptables.observe().await, in_place, "they were just written");
    std::fs::remove_file(&flag).unwrap();
    renew(&mut iptables);
    iptables.settle().await.unwrap();
    assert_eq!(iptables.observe().await, in_place);

    std::fs::write(&flag, "").unwrap();
    assert_eq!(iptables.observe().await, in_place);
    std::fs::remove_file(&flag).unwrap();
    renew(&mut iptables);
    assert_eq!(iptables.observe().await, in_place);
    let rules = directory.path().join("rules");
    let changed = std::fs::read_to_string(&rules).unwrap() + "-A KUBE-SERVICES -j DROP\n";
    std::fs::write(
        &rules,
        changed.replace("*nat\n", "*nat\n-A KUBE-SERVICES -j DROP\n"),
    )
    .unwrap();
    assert_eq!(iptables.observe().await, BTreeMap::new());
    std::fs::write(&flag, "").unwrap();
    assert_eq!(iptables.observe().await, BTreeMap::new(), "they were not");
    std::fs::remove_file(&flag).unwrap();
    renew(&mut iptables);
    write(&mut iptables).await.unwrap();
    iptables.settle().await.unwrap();
    assert_eq!(iptables.observe().await, in_place);
}

/// A kernel without `xt_TCPMSS` refuses the table with the rule about imports, and nothing else is lost by that.
#[tokio::test]
async fn rules_do_without_the_one_that_the_kernel_refuses() {
    let directory = scripts();
    let (restore, refusal) = (
        directory.path().join("iptables-restore"),
        "no target TCPMSS",
    );
    let works = std::fs::read_to_string(&restore).unwrap();
    let here = directory.path().display();
    let refuses = format!(
        "#!/bin/sh\ncat >{here}/input\nif grep -q TCPMSS {here}/input; then echo {refusal} >&2; exit 1; fi\n\
         mv {here}/input {here}/rules\n"
    );
    write_program(&restore, &refuses);
    let record = directory.path().join("rules.json");
    let tools = || Tools::of(directory.path(), PROMPT);
    let mut iptables = Iptables::with(tools(), Some(record.clone()));
    write(&mut iptables).await.unwrap();
    iptables.settle().await.unwrap();
    let rules = std::fs::read_to_string(directory.path().join("rules")).unwrap();
    assert!(rules.contains(":KUBE-SHORT-CIRCUIT-END ") && rules.contains("*filter"));
    assert!(!rules.contains("REMOTE"), "{rules}");
    let in_place = BTreeMap::from([(Family::V4, ours())]);
    assert_eq!(
        iptables.observe().await,
        in_place,
        "nothing is to be written"
    );
    // The next run tries again.
    let mut next = Iptables::with(tools(), Some(record));
    assert_eq!(next.observe().await, BTreeMap::new());
    write_program(&restore, &works);
    write(&mut next).await.unwrap();
    next.settle().await.unwrap();
    let rules = std::fs::read_to_string(directory.path().join("rules")).unwrap();
    assert!(rules.contains("--match-set KUBE-REMOTE dst,dst -j TCPMSS --clamp-mss-to-pmtu"));
    assert_eq!(next.observe().await, in_place);
    // Other refusals are failures.
    write_program(
        &restore,
        &format!("#!/bin/sh\necho {refusal} >&2; exit 1\n"),
    );
    let error = write(&mut next).await.unwrap_err().to_string();
    assert!(error.ends_with(refusal), "{error}");
}

/// A lock that another program holds for a while is no missing `xt_TCPMSS`.
#[tokio::test]
async fn a_write_that_fails_once_costs_no_rule() {
    let directory = scripts();
    let here = directory.path().display();
    let locked = format!(
        "#!/bin/sh\ncat >{here}/input\nif [ ! -e {here}/tried ]; then touch {here}/tried\n\
         echo 'Another app is currently holding the xtables lock' >&2; exit 4; fi\nmv {here}/input {here}/rules\n"
    );
    write_program(&directory.path().join("iptables-restore"), &locked);
    let mut iptables = Iptables::with(Tools::of(directory.path(), PROMPT), None);
    write(&mut iptables).await.unwrap();
    iptables.settle().await.unwrap();
    let rules = std::fs::read_to_string(directory.path().join("rules")).unwrap();
    assert!(rules.contains("TCPMSS"), "{rules}");
    assert_eq!(
        iptables.observe().await,
        BTreeMap::from([(Family::V4, ours())])
    );
}

/// A lock that another program holds at both writes of all rules is no missing `xt_TCPMSS` either.
#[tokio::test]
async fn a_rule_that_a_lock_kept_out_is_asked_for_again() {
    let directory = scripts();
    let here = directory.path().display();
    let waits = "Another app is currently holding the xtables lock";
    let locked = format!(
        "#!/bin/sh\ncat >{here}/input\nif [ -e {here}/locked ] && grep -q TCPMSS {here}/input; then\n\
         echo '{waits}. Stopped waiting after 4s.' >&2; exit 4; fi\nmv {here}/input {here}/rules\n"
    );
    write_program(&directory.path().join("iptables-restore"), &locked);
    let (lock, rules) = (
        directory.path().join("locked"),
        directory.path().join("rules"),
    );
    std::fs::write(&lock, "").unwrap();
    let mut iptables = Iptables::with(Tools::of(directory.path(), PROMPT), None);
    let error = write(&mut iptables).await.unwrap_err().to_string();
    assert!(error.contains(waits), "{error}");
    iptables.settle().await.unwrap();
    let written = std::fs::read_to_string(&rules).unwrap();
    assert!(written.contains("*filter") && !written.contains("TCPMSS"));
    assert_eq!(iptables.observe().await, BTreeMap::new());

    std::fs::remove_file(&lock).unwrap();
    write(&mut iptables).await.unwrap();
    iptables.settle().await.unwrap();
    let written = std::fs::read_to_string(&rules).unwrap();
    assert!(written.contains("TCPMSS"), "{written}");
    assert_eq!(
        iptables.observe().await,
        BTreeMap::from([(Family::V4, ours())])
    );
}

#[test]
fn a_lock_that_was_waited_for_and_had_leaves_a_refusal() {
    let failed = |message: &str| DataplaneError::Command {
        command: "iptables-restore".to_owned(),
        message: message.to_owned(),
    };
    let waits = "Another app is currently holding the xtables lock";
    assert!(is_refusal(&failed("no target TCPMSS")) && is_refusal(&failed("")));
    let late = format!("{waits}; still 3s 0us time ahead\niptables-restore: line 9 failed");
    assert!(is_refusal(&failed(&late)));
    assert!(!is_refusal(&failed(&format!(
        "{waits}; still 1s 0us\n{waits}."
    ))));
    let killed = DataplaneError::Hangs {
        command: "iptables-restore".to_owned(),
        deadline: PROMPT,
    };
    assert!(!is_refusal(&killed));
}

/// Scripts of both variants that note their runs in a file, with the default as links to one of them.
fn noting(directory: &Path) {
    let runs = directory.join("runs");
    for variant in ["nft", "legacy"] {
        for family in ["iptables", "ip6tables"] {
            for deed in ["save", "restore"] {
                let name = format!("{family}-{variant}-{deed}");
                let path = directory.join(&name);
                let script = format!(
                    "#!/bin/sh\n[ {deed} = save ] || cat >/dev/null\necho {name} >>{}\n",
                    runs.display()
                );
                write_program(&path, &script);
                if variant == "nft" {
                    let link = directory.join(format!("{family}-{deed}"));
                    std::os::unix::fs::symlink(&path, link).unwrap();
                }
            }
        }
    }
}

/// The programs that ran since the last call, sorted.
fn ran(directory: &Path) -> Vec<String> {
    let runs = directory.join("runs");
    let text = std::fs::read_to_string(&runs).unwrap_or_default();
    let _ = std::fs::remove_file(runs);
    let mut names: Vec<_> = text.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test]
async fn tools_run_when_they_are_needed_and_no_question_is_asked_twice() {
    let directory = tempfile::tempdir().unwrap();
    noting(directory.path());
    let mut iptables = Iptables::with(Tools::undecided(directory.path()), None);
    assert_eq!(iptables.observe().await, BTreeMap::new());
    assert_eq!(ran(directory.path()), [""; 0], "nothing is written");

    iptables.choose().await.unwrap();
    let read = [
        "ip6tables-legacy-save",
        "ip6tables-nft-save",
        "iptables-legacy-save",
        "iptables-nft-save",
    ];
    // One more: the trial of the chosen variant, whose name is the default's.
    let names = ran(directory.path());
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(read.iter().all(|name| names.contains(&(*name).to_owned())));

    for family in Family::ALL {
        iptables.write_trial(family, "SET").await.unwrap();
        assert_eq!(iptables.save_all_variants(family).await.len(), 2);
    }
    let names = ran(directory.path());
    assert_eq!(names.len(), 2, "a trial of each family: {names:?}");
    // They were read for the choice: whoever asks later gets new ones.
    iptables.save_all_variants(Family::V4).await;
    assert!(!ran(directory.path()).is_empty());
}

// SPDX-License-Identifier: Apache-2.0

//! The status page in a real browser: a controller with 10,000 Services and 5,000 agents.

#![allow(clippy::unwrap_used, reason = "a test")]

mod agents;
mod axe;
mod chromium;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::programs::program;
use portolan_e2e::wait::wait_for;
use portolan_e2e::{lane, ports};
use portolan_runtime::raise_descriptor_limit;
use serde_json::Value;

use chromium::Browser;

const SERVICES: usize = 10_000;
const AGENTS: usize = 5_000;
/// Services of one file.
const PER_FILE: usize = 250;
const LIMIT: Duration = Duration::from_secs(180);
/// The goal of the first content of a page, and of a change.
const SECOND_MS: f64 = 1_000.0;
/// Loads of a slow page, of which the quickest counts: other work of the machine makes a load slower, never quicker.
const LOADS: usize = 5;
/// The pages, and something that each must show.
const PAGES: [(&str, &str); 8] = [
    ("", "5000 of 5000 connected nodes"),
    ("nodes?sort=lag&order=descending", "5000 in all"),
    ("node?name=node-0007", "Changes that the kernel lacks"),
    ("services?sort=destinations", "10007 in all"),
    (
        "service?namespace=shop&name=web-00007&node=node-0007",
        "1 destination on node-0007",
    ),
    (
        "ask?address=10.96.0.8:80&protocol=TCP&node=node-0007",
        "1 of 1 endpoints answer",
    ),
    ("clusters", "5000 of 5000"),
    ("problems", "spec.externalIPs[0]"),
];

/// A controller that ends with the test.
struct Controller {
    child: Child,
    agents: SocketAddr,
    admin: SocketAddr,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Controller {
    fn start(directory: &Path) -> Self {
        let [agents, admin] = ports::reserve().unwrap();
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let log = fs::File::create(directory.join("controller.log")).unwrap();
        let child = Command::new(program("portolan-controller").unwrap())
            .args([
                "--source=file",
                "--plaintext",
                "--file-poll=100ms",
                "--debug-listen=",
            ])
            .arg(format!("--listen={}", local(agents)))
            .arg(format!("--admin-listen={}", local(admin)))
            .arg("--file")
            .arg(directory.join("objects"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let this = Self {
            child,
            agents: local(agents),
            admin: local(admin),
        };
        wait_for("the controller", LIMIT, || this.is_ready().then_some(())).unwrap();
        this
    }

    fn is_ready(&self) -> bool {
        let asked = TcpStream::connect(self.admin).and_then(|mut stream| {
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        asked.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    fn page(&self, path: &str) -> String {
        format!("http://{}/status/{path}", self.admin)
    }
}

/// A Service with one endpoint.
fn service(number: usize) -> String {
    let (high, low) = (number / 250, number % 250 + 1);
    let name = format!("web-{number:05}");
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.{high}.{low}, ports: [{{name: http, port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\n\
         endpoints: [{{addresses: [10.244.{high}.{low}], conditions: {{ready: true}}}}]\n---\n"
    )
}

/// Writes the objects: all Services, and one with a bad field of hostile text.
fn write_objects(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for first in (0..SERVICES).step_by(PER_FILE) {
        let text: String = (first..first + PER_FILE).map(service).collect();
        fs::write(directory.join(format!("{first:05}.yaml")), text).unwrap();
    }
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: shop}\n\
        spec: {clusterIP: 10.97.0.1, externalIPs: [\"<img src=x onerror=alert(1)>\"], ports: [{port: 80}]}\n";
    fs::write(directory.join("bad.yaml"), bad).unwrap();
}

/// Opens each page, and measures the time to its first content.
fn pages_load_fast(browser: &mut Browser, controller: &Controller) {
    browser.look(1_280, "light").unwrap();
    let mut slowest: f64 = 0.0;
    for (path, part) in PAGES {
        slowest = slowest.max(quickest_content(browser, &controller.page(path)));
        let text = browser.evaluate("document.body.innerText").unwrap();
        let text = text.as_str().unwrap();
        assert!(text.contains(part), "{path}: {part:?} is not in {text}");
        let rows = browser
            .evaluate("document.querySelectorAll('tbody tr').length")
            .unwrap();
        assert!(rows.as_u64() <= Some(100), "{path}: {rows} rows");
        assert_eq!(browser.complaints(), [""; 0], "{path}");
    }
    let goal = Some(Goal::AtMost(SECOND_MS));
    figure("status_page_first_content", slowest, "ms", goal);
    assert!(slowest <= SECOND_MS, "{slowest} ms until the first content");
}

/// Opens a page, again if it is slower than the goal. Returns the quickest time to the first content, in milliseconds.
fn quickest_content(browser: &mut Browser, page: &str) -> f64 {
    let mut quickest = f64::INFINITY;
    for _ in 0..LOADS {
        browser.open(page).unwrap();
        let content = browser.evaluate(FIRST_CONTENT).unwrap();
        quickest = quickest.min(content.as_f64().unwrap());
        if quickest <= SECOND_MS {
            break;
        }
    }
    quickest
}

/// The time from the request to the first content that is drawn, in milliseconds.
const FIRST_CONTENT: &str = "new Promise((resolve) => {
    const seen = (list) => {
        const entry = list.find((it) => it.name === 'first-contentful-paint');
        if (entry) resolve(entry.startTime);
    };
    new PerformanceObserver((list) => seen(list.getEntries())).observe({ type: 'paint', buffered: true });
})";

/// Changes whose times are measured. The median is not that of a moment in which the browser had no processor.
const CHANGES: usize = 5;

/// Publishes Services while the overview is shown, and measures from the last acknowledgement until the page shows that
/// all nodes have each.
fn changes_appear(
    browser: &mut Browser,
    controller: &Controller,
    objects: &Path,
    progress: &agents::Progress,
) {
    browser.open(&controller.page("")).unwrap();
    let mut took: Vec<f64> = (0..CHANGES)
        .map(|number| a_change_appears(browser, objects, progress, number))
        .collect();
    took.sort_by(f64::total_cmp);
    let median = took[CHANGES / 2];
    let goal = Some(Goal::AtMost(SECOND_MS));
    figure("status_page_change", median, "ms", goal);
    assert!(median <= SECOND_MS, "{took:?} ms until changes were shown");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The time in milliseconds until a change is shown.
fn a_change_appears(
    browser: &mut Browser,
    objects: &Path,
    progress: &agents::Progress,
    number: usize,
) -> f64 {
    let newest = "Number(document.querySelector('#main tbody td').textContent)";
    let before = browser.evaluate(newest).unwrap().as_u64().unwrap();
    let expression = format!(
        "new Promise((resolve) => {{
            const look = () => {{
                const rows = [...document.querySelectorAll('#main tbody tr')];
                const row = rows.find((it) => Number(it.cells[0].textContent) > {before});
                if (row && row.cells[5].textContent !== '–') resolve(Date.now());
            }};
            new MutationObserver(look).observe(document.body, {{ childList: true, subtree: true }});
        }})"
    );
    let shown = browser.begin(&expression).unwrap();
    let goal = progress.acknowledged.load(Ordering::Relaxed) + AGENTS as u64;
    let file = objects.join(format!("later-{number}.yaml"));
    fs::write(file, service(SERVICES + 2 + number)).unwrap();
    wait_for("acknowledgements of all agents", LIMIT, || {
        (progress.acknowledged.load(Ordering::Relaxed) >= goal).then_some(())
    })
    .unwrap();
    let shown = browser.value(shown).unwrap().as_f64().unwrap();
    shown - progress.last_ms.load(Ordering::Relaxed) as f64
}

/// The means of the test find what they are to find: words on the console, scripts that the policy forbids, and pages
/// that not all can use.
fn faults_are_found(browser: &mut Browser, controller: &Controller, axe: &str) {
    browser.open(&controller.page("")).unwrap();
    browser.evaluate("console.error('a fault')").unwrap();
    assert_eq!(browser.complaints().len(), 1);
    let inline = "document.body.append(Object.assign(document.createElement('script'),
        { textContent: 'window.hit = true' })); typeof window.hit";
    assert_eq!(browser.evaluate(inline).unwrap(), "undefined");
    wait_for("a word about the policy", LIMIT, || {
        browser.evaluate("1").unwrap();
        let said = browser.complaints();
        said.iter()
            .any(|it| it.contains("Content Security Policy"))
            .then_some(())
    })
    .unwrap();
    let image = "document.getElementById('main').append(new Image(9, 9)); 0";
    browser.evaluate(image).unwrap();
    let found = violations(browser, axe);
    assert!(
        found.len() == 1 && found[0].contains("image-alt"),
        "{found:?}"
    );
}

/// Looks at each page in both themes, on a telephone and on a wide screen, with axe-core.
fn pages_can_be_used_by_all(browser: &mut Browser, controller: &Controller, axe: &str) {
    for (width, theme) in [(360, "light"), (3_840, "dark"), (1_280, "dark")] {
        browser.look(width, theme).unwrap();
        for (path, _) in PAGES {
            browser.open(&controller.page(path)).unwrap();
            let overflow = "document.documentElement.scrollWidth - window.innerWidth";
            let overflow = browser.evaluate(overflow).unwrap();
            assert!(
                overflow.as_i64() <= Some(0),
                "{path}: {overflow} px too wide at {width}"
            );
            browser.evaluate(&format!("{axe};0")).unwrap();
            let found = browser
                .evaluate("axe.run().then((it) => it.violations)")
                .unwrap();
            let found: Vec<String> = found.as_array().unwrap().iter().map(violation).collect();
            assert_eq!(found, [""; 0], "{path} at {width} px, {theme}");
            assert_eq!(browser.complaints(), [""; 0], "{path}");
        }
    }
}

/// Returns the violations that axe-core finds in the page that is shown.
fn violations(browser: &mut Browser, axe: &str) -> Vec<String> {
    browser.evaluate(&format!("{axe};0")).unwrap();
    let found = browser
        .evaluate("axe.run().then((it) => it.violations)")
        .unwrap();
    found.as_array().unwrap().iter().map(violation).collect()
}

fn violation(found: &Value) -> String {
    let nodes = found["nodes"].as_array().unwrap().iter();
    let nodes: Vec<_> = nodes.map(|node| node["html"].to_string()).take(3).collect();
    format!("{}: {}: {}", found["id"], found["help"], nodes.join(" "))
}

/// The page works without JavaScript: its table is in the first answer, and links sort it.
fn pages_work_without_scripts(browser: &mut Browser, controller: &Controller) {
    let off = |value: bool| serde_json::json!({ "value": value });
    browser
        .call("Emulation.setScriptExecutionDisabled", &off(true))
        .unwrap();
    browser.open(&controller.page("nodes")).unwrap();
    let rows = browser
        .evaluate("document.querySelectorAll('tbody tr').length")
        .unwrap();
    assert_eq!(rows, 100);
    let link = browser
        .evaluate("document.querySelector('thead a').href")
        .unwrap();
    browser.open(link.as_str().unwrap()).unwrap();
    let sorted = browser
        .evaluate("document.querySelector('thead th').ariaSort")
        .unwrap();
    assert_eq!(sorted, "ascending");
    browser
        .call("Emulation.setScriptExecutionDisabled", &off(false))
        .unwrap();
}

#[test]
fn the_status_page_in_a_browser() {
    let test = "the_status_page_in_a_browser";
    if !chromium::is_installed() {
        return lane::missing(test, "no chromium");
    }
    let axe = match axe::script() {
        Ok(axe) => axe,
        Err(error) => return lane::missing(test, &format!("no axe-core: {error:#}")),
    };
    // Each agent has a connection.
    raise_descriptor_limit();
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    write_objects(&objects);
    let controller = Controller::start(directory.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let started = runtime.block_on(agents::start(controller.agents, AGENTS, LIMIT));
    let (progress, _streams) = started.unwrap();

    let mut browser = Browser::start(directory.path()).unwrap();
    // The first change gives the overview a row to begin with.
    fs::write(objects.join("first.yaml"), service(SERVICES + 1)).unwrap();
    let goal = 2 * AGENTS as u64;
    wait_for("acknowledgements of all agents", LIMIT, || {
        (progress.acknowledged.load(Ordering::Relaxed) >= goal).then_some(())
    })
    .unwrap();
    faults_are_found(&mut browser, &controller, &axe);
    changes_appear(&mut browser, &controller, &objects, &progress);
    pages_load_fast(&mut browser, &controller);
    pages_work_without_scripts(&mut browser, &controller);
    pages_can_be_used_by_all(&mut browser, &controller, &axe);
}

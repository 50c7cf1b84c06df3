// SPDX-License-Identifier: Apache-2.0

//! Chromium without a window, driven by its debugging protocol over two named pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// The deadline of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Flags beside those of the pipes. Root has no sandbox, and containers have a small /dev/shm.
const FLAGS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --disable-component-update --disable-extensions --mute-audio";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: File,
    messages: Receiver<Value>,
    session: String,
    next: u64,
    /// Messages of the page on its console, and errors of loading.
    complaints: Vec<String>,
}

/// Returns `true` if there is a Chromium.
pub(crate) fn is_installed() -> bool {
    let version = Command::new("chromium").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

impl Browser {
    /// Starts a browser whose files are in a directory.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        let [to, from] = ["to", "from"].map(|name| directory.join(name));
        for pipe in [&to, &from] {
            let made = Command::new("mkfifo").arg(pipe).status()?;
            anyhow::ensure!(made.success(), "mkfifo");
        }
        let both = || OpenOptions::new().read(true).write(true).clone();
        // Opened for both directions, so that neither open waits for the browser.
        let (commands, answers) = (both().open(&to)?, both().open(&from)?);
        let script = format!(
            "exec chromium {FLAGS} --remote-debugging-pipe --user-data-dir={} about:blank 3<{} 4>{}",
            directory.join("profile").display(),
            to.display(),
            from.display()
        );
        let log = File::create(directory.join("chromium.log"))?;
        let child = Command::new("bash")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("chromium")?;
        let mut this = Self {
            child,
            commands,
            messages: reader(answers),
            session: String::new(),
            next: 0,
            complaints: Vec::new(),
        };
        let target = this.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = this.call("Target.attachToTarget", &attach)?;
        this.session = attached["sessionId"]
            .as_str()
            .context("no session")?
            .to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            this.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(this)
    }

    /// Opens an address and waits until it is loaded.
    pub(crate) fn open(&mut self, address: &str) -> Result<()> {
        let opened = self.call("Page.navigate", &json!({ "url": address }))?;
        if let Some(error) = opened["errorText"].as_str() {
            bail!("{address}: {error}");
        }
        self.until(|message| message["method"] == "Page.loadEventFired")
            .map(drop)
    }

    /// The value of an expression. A promise is awaited.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let id = self.begin(expression)?;
        self.value(id)
    }

    /// Begins to evaluate an expression; [`Self::value`] has its value.
    pub(crate) fn begin(&mut self, expression: &str) -> Result<u64> {
        let parameters = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        self.send("Runtime.evaluate", &parameters)
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, id: u64) -> Result<Value> {
        let mut result = self.answer(id)?;
        if !result["exceptionDetails"].is_null() {
            bail!("{}", result["exceptionDetails"]);
        }
        Ok(result["result"]["value"].take())
    }

    /// Sets the size of the window, and the theme that the reader prefers.
    pub(crate) fn look(&mut self, width: u32, theme: &str) -> Result<()> {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let theme = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        self.call("Emulation.setEmulatedMedia", &theme).map(drop)
    }

    /// Returns the complaints of the page since the last call.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Calls a method; its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        let id = self.send(method, parameters)?;
        self.answer(id).with_context(|| method.to_owned())
    }

    fn send(&mut self, method: &str, parameters: &Value) -> Result<u64> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let text = format!("{message}\0");
        self.commands.write_all(text.as_bytes())?;
        Ok(self.next)
    }

    fn answer(&mut self, id: u64) -> Result<Value> {
        let mut answer = self.until(|message| message["id"] == id)?;
        if !answer["error"].is_null() {
            bail!("{}", answer["error"]["message"]);
        }
        Ok(answer["result"].take())
    }

    /// Reads messages until one fits.
    fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left).context("no answer")?;
            self.complaints.extend(complaint(&message));
            if fits(&message) {
                return Ok(message);
            }
        }
    }
}

/// Returns the complaint of a message about something wrong in the page.
fn complaint(message: &Value) -> Option<String> {
    let parameters = &message["params"];
    let is_wrong = match message["method"].as_str()? {
        "Runtime.exceptionThrown" => true,
        "Runtime.consoleAPICalled" => ["error", "warning", "assert"]
            .iter()
            .any(|it| parameters["type"] == *it),
        "Log.entryAdded" => parameters["entry"]["level"] == "error",
        _ => false,
    };
    is_wrong.then(|| parameters.to_string())
}

/// Reads messages, each of which ends with a zero byte.
fn reader(answers: File) -> Receiver<Value> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let mut text = Vec::new();
        while answers
            .read_until(0, &mut text)
            .is_ok_and(|length| length > 0)
        {
            text.pop();
            let message = serde_json::from_slice(&text).unwrap_or_default();
            text.clear();
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    messages
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser's processes are a group of their own.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}

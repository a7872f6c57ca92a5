//! A throw-away Chromium without a window, driven over its own pipe: pages as people see them, with their scripts run.
//!
//! The Chrome `DevTools` protocol: messages of JSON, each ended by a zero byte, in on file 3 and out on file 4.
//!
//! # Caveats
//! - One page a browser. It runs without its sandbox, which containers don't allow: for the tests' own pages alone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::front::find;
use crate::process::wait_until;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long it may take to end.
const CLOSING: Duration = Duration::from_secs(10);

/// A running browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    sent: u64,
    complaints: Vec<String>,
    folder: TempDir,
}

impl Browser {
    /// Starts one, with an empty page.
    pub fn start() -> Result<Browser> {
        let program = find("chromium").context("the page is tested with Chromium: apt-get install chromium")?;
        let folder = tempfile::Builder::new().prefix("headwater-browser-").tempdir()?;
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2", "sh"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"])
            .args(["--remote-debugging-pipe", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .env("TMPDIR", folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting Chromium")?;
        let input = process.stdin.take().context("its input is piped")?;
        let mut output = BufReader::new(process.stdout.take().context("its output is piped")?);
        let (send, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while matches!(output.read_until(0, &mut message), Ok(read) if read > 0) {
                let text = message.strip_suffix(&[0]).unwrap_or(&message);
                if serde_json::from_slice(text).is_ok_and(|message| send.send(message).is_err()) {
                    return;
                }
                message.clear();
            }
        });
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser = Browser { process, input, messages, session, sent: 0, complaints, folder };
        let targets = browser.call("Target.getTargets", &json!({}))?;
        let pages = targets["targetInfos"].as_array().map(Vec::as_slice).unwrap_or_default();
        let page = pages.iter().find(|target| target["type"] == "page").context("Chromium has no page")?;
        let params = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &params)?;
        attached["sessionId"].as_str().context("a session")?.clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Goes to a URL; one of the same page but for what is behind its `#` loads nothing.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let gone = self.call("Page.navigate", &json!({ "url": url }))?;
        ensure!(gone["errorText"].is_null(), "{url}: {}", gone["errorText"]);
        Ok(())
    }

    /// What an expression comes to in the page; promises are waited for.
    pub fn eval(&mut self, script: &str) -> Result<Value> {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let mut done = self.call("Runtime.evaluate", &params)?;
        if !done["exceptionDetails"].is_null() {
            bail!("{script}: {}", done["exceptionDetails"]);
        }
        Ok(done["result"]["value"].take())
    }

    /// Waits until an expression is true; for as long as a page is being loaded it need not be one.
    pub fn wait_for(&mut self, script: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.eval(script).is_ok_and(|value| value == true) {
            if Instant::now() > end {
                let page = self.eval("document.body.innerText").unwrap_or_default();
                bail!("it did not come to {script} within {PATIENCE:?}; {:?}: {page}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Types a text where the focus is.
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", &json!({ "text": text })).map(drop)
    }

    /// Presses a key where the focus is: `Tab`, `Enter`, `ArrowRight`.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "ArrowRight" => (39, ""),
            _ => bail!("no key is called {key}"),
        };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        self.call("Input.dispatchKeyEvent", &params)?;
        let params = json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", &params).map(drop)
    }

    /// The size of the window, and whether the page is asked to be dark.
    pub fn window(&mut self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &features).map(drop)
    }

    /// Writes the page as it is seen to a PNG file.
    pub fn picture(&mut self, path: &Path) -> Result<()> {
        let picture = self.call("Page.captureScreenshot", &json!({ "format": "png" }))?;
        let bytes = STANDARD.decode(picture["data"].as_str().unwrap_or_default())?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())
    }

    /// What the page's scripts failed with, and what the browser refused, until now.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).context("Chromium is gone")?;
        loop {
            let mut message =
                self.messages.recv_timeout(PATIENCE).with_context(|| format!("Chromium does not answer {method}"))?;
            if message["id"] == self.sent {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].take());
            }
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.complaints.push(message["params"].to_string()),
                Some("Log.entryAdded") => self.complaints.push(message["params"]["entry"]["text"].to_string()),
                _ => {}
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.call("Browser.close", &json!({}));
        // Cut off, it leaves helpers behind that write to its folder.
        wait_until(CLOSING, || !matches!(self.process.try_wait(), Ok(None)));
        let group = format!("kill -KILL -{}", self.process.id());
        let _ = Command::new("sh").args(["-c", &group]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
        let folder = self.folder.path();
        wait_until(CLOSING, || std::fs::remove_dir_all(folder).is_ok() || !folder.exists());
    }
}

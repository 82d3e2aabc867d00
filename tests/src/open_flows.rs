//! Flows inside a sandbox that go on until something ends them: the subjects of every change of policy.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::connection_probes::ROOTS;
use crate::until;

/// Keeps one connection: reads the drops of an URL, or sends and reads back at an echo; never connects twice.
const KEEP: &str = r#"
import os, socket, ssl, sys, time, urllib.request
name, where, roots = sys.argv[1:4]
def tell(text):
    with open("/tmp/flow.new." + name, "w") as f: f.write(text)
    os.rename("/tmp/flow.new." + name, "/tmp/flow." + name)
n = 0
try:
    if where.startswith("http"):
        c = ssl.create_default_context(cafile=roots)
        r = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=c)).open(where, timeout=60)
        while r.readline(): n += 1; tell(str(n))
    else:
        host, port = where.rsplit(":", 1)
        s = socket.create_connection((host, int(port)), 60)
        s.settimeout(60)
        while True:
            s.sendall(b"x" * 64)
            if not s.recv(4096): break
            n += 1; tell(str(n)); time.sleep(0.02)
    tell("ended after %d" % n)
except Exception as e: tell("ended after %d: %r" % (n, e))
"#;

/// One connection that is kept.
#[derive(Clone)]
pub struct Flow {
    client: Client,
    sandbox: String,
    name: String,
}

impl Flow {
    /// Starts to read `https://NAME/drip` or to talk to `ADDRESS:7`, and waits until it flows.
    pub async fn start(client: &Client, sandbox: &str, name: &str, to: &str) -> Self {
        let argv = json!(["python3", "-c", KEEP, name, to, ROOTS]);
        client.try_exec(sandbox, json!({ "argv": argv, "detach": true })).await.ok();
        let flow = Self { client: client.clone(), sandbox: sandbox.to_owned(), name: name.to_owned() };
        until(&format!("{to} flows"), async || {
            let said = flow.said().await;
            assert!(!said.starts_with("ended"), "{to}: {said}");
            (flow.count().await? > 2).then_some(())
        })
        .await;
        flow
    }

    /// What it last told.
    pub async fn said(&self) -> String {
        let line = format!("cat /tmp/flow.{} 2>/dev/null", self.name);
        self.client.sh(&self.sandbox, &line).await.stdout
    }

    /// How many pieces came; none once it ended.
    pub async fn count(&self) -> Option<u64> {
        self.said().await.parse().ok()
    }

    /// Fails unless the same connection still carries something new.
    pub async fn goes_on(&self) {
        let before = self.count().await;
        assert!(before.is_some(), "{} ended: {}", self.name, self.said().await);
        until(&format!("{} goes on", self.name), async || {
            let said = self.said().await;
            assert!(!said.starts_with("ended"), "{}: {said}", self.name);
            (self.count().await > before).then_some(())
        })
        .await;
    }

    /// Fails unless nothing comes any more, ended or not.
    pub async fn stands_still(&self) {
        let mut last = self.said().await;
        until(&format!("{} stands still", self.name), async || {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = self.said().await;
            let same = now == last;
            last = now;
            same.then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(self.said().await, last, "{} went on", self.name);
    }
}

/// Tries forbidden things for ever, as often as it can; what it reaches is the witness's to tell.
const HAMMER: &str = r#"
import socket, sys, threading, time
target, name, end = sys.argv[1], sys.argv[2], time.time() + float(sys.argv[3])
def streams():
    while time.time() < end:
        s = socket.socket(); s.settimeout(0.3)
        try:
            s.connect((target, 80)); s.sendall(b"GET /hammer HTTP/1.1\r\nHost: " + name.encode() + b"\r\n\r\n"); s.recv(100)
        except OSError: time.sleep(0.003)
        s.close()
def datagrams():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while time.time() < end:
        try: s.sendto(b"hammer", (target, 443))
        except OSError: pass
        time.sleep(0.003)
def kept():
    s = None
    while time.time() < end:
        try:
            if s is None: s = socket.create_connection((target, 7), 0.3)
            s.settimeout(0.3); s.sendall(b"x" * 32); s.recv(100); time.sleep(0.003)
        except OSError:
            if s: s.close()
            s = None; time.sleep(0.003)
def asking():
    while time.time() < end:
        try: socket.getaddrinfo(name, 80)
        except OSError: pass
        time.sleep(0.01)
threads = [threading.Thread(target=f, daemon=True) for f in (streams, datagrams, kept, asking)]
[t.start() for t in threads]; [t.join() for t in threads]
"#;

/// Starts to try `target` and `name` for some seconds.
pub async fn hammer(
    client: &Client,
    sandbox: &str,
    target: impl ToString,
    name: &str,
    seconds: u32,
) -> Value {
    let argv = json!(["python3", "-c", HAMMER, target.to_string(), name, seconds.to_string()]);
    client.try_exec(sandbox, json!({ "argv": argv, "detach": true })).await.ok()
}

//! The web page in a real browser, Debian's Chromium, against a real server: `tests/web/` holds the flows.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use atoll_model::{Lease, Phase, SandboxId};
use atoll_store::{NewLease, SqliteStore, Store};
use atoll_tests::{Client, Options, World, json, run, run_with, until};
use nix::sys::signal::Signal;
use reqwest::Method;

const CHROMIUM: &str = "/usr/bin/chromium";

/// Each leaves no sandbox behind.
const SUITES: [&str; 6] = [
    "page.test.mjs",
    "offers.test.mjs",
    "providers_threads.test.mjs",
    "owner_and_traffic.test.mjs",
    "wake_page.test.mjs",
    "bars.test.mjs",
];

fn here(path: &str) -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join(path)
}

/// Node and the folder with Playwright, as `scripts/get-playwright` gives them; `None` where they or the browser cannot be had,
/// which on CI is a failure.
fn playwright() -> Option<(PathBuf, PathBuf)> {
    let mut said = String::new();
    if Path::new(CHROMIUM).exists() {
        let got = Command::new(here("../scripts/get-playwright")).output().expect("the script");
        if got.status.success() {
            let text = String::from_utf8_lossy(&got.stdout).into_owned();
            let (node, modules) = text.trim().split_once('\n').expect("two lines");
            return Some((node.into(), modules.into()));
        }
        said.push_str(&String::from_utf8_lossy(&got.stderr));
    } else {
        said.push_str("there is no /usr/bin/chromium; scripts/install-deps test installs it");
    }
    assert!(std::env::var_os("CI").is_none(), "the browser cannot be had: {said}");
    eprintln!("not run: the web page in a browser: {said}");
    None
}

/// Stops and starts the server when the suite asks for it, then waits for good.
async fn restart_when_asked(world: &World, folder: &Path) {
    let asked = folder.join("restart");
    while !asked.exists() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.stop_server(Signal::SIGTERM).await;
    world.start_server().await;
    std::fs::write(folder.join("restarted"), "").unwrap();
    std::future::pending::<()>().await;
}

/// Attack N10: a page of another origin gets no answer that it may read, and acts for nobody: a key in a cookie counts nowhere.
#[test]
fn a_foreign_page_cannot_act_for_a_viewer() {
    run(async |world| {
        let base = world.admin().base().to_owned();
        let cookie = format!("atoll.key={0}; authorization={0}", world.admin().key());
        let client = reqwest::Client::new();
        for origin in ["https://evil.test", "null"] {
            let send = async |method: Method, path: &str| {
                let request = client.request(method, format!("{base}{path}"));
                let request =
                    request.header("origin", origin).header("cookie", &cookie).header("accept", "text/html");
                let asks = [
                    ("access-control-request-method", "POST"),
                    ("access-control-request-headers", "authorization"),
                ];
                let request =
                    asks.iter().fold(request, |request, (name, value)| request.header(*name, *value));
                let answer = request.header("content-type", "text/plain").body("{}").send().await.unwrap();
                assert!(
                    !answer.headers().contains_key("access-control-allow-origin"),
                    "{path} from {origin}"
                );
                assert!(!answer.headers().contains_key("set-cookie"), "{path} from {origin}");
                answer
            };
            assert_eq!(send(Method::GET, "/v1/sandboxes").await.status(), 401);
            assert_eq!(send(Method::POST, "/v1/sandboxes").await.status(), 401);
            send(Method::OPTIONS, "/v1/sandboxes").await;
            let page = send(Method::GET, "/").await;
            assert_eq!(page.headers()["x-frame-options"], "DENY");
            let policy = page.headers()["content-security-policy"].to_str().unwrap();
            assert!(
                policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'none'"),
                "{policy}"
            );
        }
        assert!(world.admin().get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().is_empty());
    });
}

#[test]
fn without_the_page_a_browser_gets_the_documentation() {
    run_with(Options::default().env("ATOLL_NO_UI", "true"), async |world| {
        let base = world.admin().base().to_owned();
        let browser = reqwest::Client::new().get(&base).header("accept", "text/html").send().await.unwrap();
        assert!(browser.url().path() == "/docs" && browser.status() == 200, "{browser:?}");
        assert_eq!(reqwest::get(format!("{base}/ui/icon.svg")).await.unwrap().status(), 404);
    });
}

/// Programs of `tests/web` for a world, with the packages that they use beside them.
struct BrowserSuite {
    node: PathBuf,
    folder: PathBuf,
}

impl BrowserSuite {
    fn new(world: &World, (node, modules): (PathBuf, PathBuf)) -> Self {
        let folder = world.folder().join("web");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(here("web/world.mjs"), folder.join("world.mjs")).unwrap();
        std::os::unix::fs::symlink(modules, folder.join("node_modules")).unwrap();
        Self { node, folder }
    }

    /// The command that runs these programs with the key of a tenant.
    fn command(&self, world: &World, names: &[&str], tenant: &Client) -> Command {
        let mut suite = Command::new(&self.node);
        suite
            .args(["--test", "--test-reporter=spec", "--test-concurrency=1"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", world.folder())
            .env("ATOLL_URL", tenant.base())
            .env("ATOLL_API_KEY", tenant.key())
            .env("CHROMIUM", CHROMIUM)
            .env("FOLDER", &self.folder);
        for name in names {
            std::fs::copy(here("web").join(name), self.folder.join(name)).unwrap();
            suite.arg(self.folder.join(name));
        }
        suite
    }
}

fn succeeded(done: &Output) {
    eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "the suite failed ({})", done.status);
}

/// Attack N12 is one of its flows: names, labels, files, output, logs and titles that try to be more than text.
#[test]
fn the_page_shows_and_does_everything_in_a_real_browser() {
    let Some(browser) = playwright() else { return };
    let options = Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() };
    run_with(options.env("ATOLL_ALLOW_LOCAL", "true"), async |world| {
        let suite = BrowserSuite::new(world, browser);
        // A suite makes the server wait by a file.
        let hold_at = format!("@{}", suite.folder.join("hold-at").display());
        world.crash_server_with(&[("ATOLL_FAIL_AT", &hold_at)]).await;
        let (tenant, other) = (world.tenant("web").await, world.tenant("other").await);
        // While one works on a suite, the others can be left out.
        let only = std::env::var("ATOLL_WEB_SUITE").ok();
        let names: Vec<&str> =
            SUITES.into_iter().filter(|name| only.as_ref().is_none_or(|only| name.contains(only))).collect();
        let mut command = suite.command(world, &names, &tenant);
        command.env("ATOLL_OTHER_KEY", other.key()).env("ATOLL_ADMIN_KEY", world.admin().key());
        let done = tokio::select! {
            done = world.output(command) => done,
            () = restart_when_asked(world, &suite.folder) => unreachable!("it never ends"),
        };
        succeeded(&done);
        // The name of this server at the vendor that the page added and removed.
        std::fs::remove_dir_all(world.data().join("providers")).unwrap();
        let left = until("every sandbox of the suite is gone", async || {
            let page = tenant.get("/v1/sandboxes").await.ok();
            page["items"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
        left.await;
    });
}

/// Stores sandboxes beside a stopped one, as if they had been created by its key. A third of them has failed, a fifth has a thread.
async fn store_rows(world: &World, sample: &str, count: u16) {
    let store = SqliteStore::open(&world.data()).unwrap();
    let live = store.live().await.unwrap();
    let (sample, _) = live.into_iter().find(|(lease, _)| lease.id.as_str() == sample).unwrap();
    let rows = (0..count).map(|at| {
        let mut entropy = [0; 20];
        // Each byte becomes one of 36 characters.
        for (place, byte) in entropy[1..4].iter_mut().enumerate() {
            *byte = u8::try_from(at / [1_296, 36, 1][place] % 36).unwrap();
        }
        let lease = Lease {
            id: SandboxId::from_entropy(entropy),
            name: Some(format!("box-{at}")),
            phase: if at % 3 == 0 { Phase::Failed } else { Phase::Stopped },
            thread: (at % 5 == 0).then(|| format!("thread-{at}")),
            generation: 1,
            instance: None,
            ..sample.clone()
        };
        store.insert(NewLease { lease, idempotency: None })
    });
    for inserted in futures::future::join_all(rows).await {
        inserted.unwrap();
    }
    store.close().await;
}

#[test]
fn five_thousand_sandboxes_of_a_server_are_filtered_and_scrolled() {
    let Some(browser) = playwright() else { return };
    // There is no end with an audit: it would delete them one by one.
    run_with(Options { audit: false, ..Options::default() }, async |world| {
        let suite = BrowserSuite::new(world, browser);
        let tenant = world.tenant("web").await;
        let sample = tenant.create(json!({ "name": "sample" })).await;
        let key = tenant.sandbox(&sample).await["created_by_key"]["id"].as_str().unwrap().to_owned();
        tenant.act(&sample, "stop").await.ok();
        world.stop_server(Signal::SIGTERM).await;
        store_rows(world, &sample, 5_000).await;
        world.start_server().await;
        tenant.remove(&sample).await;
        let mut command = suite.command(world, &["rows.test.mjs"], &tenant);
        command.env("ATOLL_KEY_ID", key);
        succeeded(&world.output(command).await);
    });
}

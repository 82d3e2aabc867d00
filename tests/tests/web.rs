//! The web page in a real browser, Debian's Chromium, against a real server: `tests/web/` holds the flows.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use atoll_tests::{Options, World, run, run_with, until};
use nix::sys::signal::Signal;
use reqwest::Method;

const CHROMIUM: &str = "/usr/bin/chromium";

/// Each leaves no sandbox behind.
const SUITES: [&str; 4] =
    ["page.test.mjs", "providers_threads.test.mjs", "wake_page.test.mjs", "bars.test.mjs"];

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

/// Attack N12 is one of its flows: names, labels, files, output, logs and titles that try to be more than text.
#[test]
fn the_page_shows_and_does_everything_in_a_real_browser() {
    let Some((node, modules)) = playwright() else { return };
    let options = Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() };
    run_with(options, async |world| {
        let folder = world.folder().join("web");
        std::fs::create_dir_all(&folder).unwrap();
        // Packages are looked for beside the programs.
        std::fs::copy(here("web/world.mjs"), folder.join("world.mjs")).unwrap();
        for name in SUITES {
            std::fs::copy(here("web").join(name), folder.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(&modules, folder.join("node_modules")).unwrap();
        let (tenant, other) = (world.tenant("web").await, world.tenant("other").await);
        let mut suite = Command::new(&node);
        suite
            .args(["--test", "--test-reporter=spec", "--test-concurrency=1"])
            .args(SUITES.map(|name| folder.join(name)))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", world.folder())
            .env("ATOLL_URL", tenant.base())
            .env("ATOLL_API_KEY", tenant.key())
            .env("ATOLL_OTHER_KEY", other.key())
            .env("ATOLL_ADMIN_KEY", world.admin().key())
            .env("CHROMIUM", CHROMIUM)
            .env("FOLDER", &folder);
        let done = tokio::select! {
            done = world.output(suite) => done,
            () = restart_when_asked(world, &folder) => unreachable!("it never ends"),
        };
        eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "the suite failed ({})", done.status);
        let left = until("every sandbox of the suite is gone", async || {
            let page = tenant.get("/v1/sandboxes").await.ok();
            page["items"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
        left.await;
    });
}

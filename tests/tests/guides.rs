//! Programs in the call forms of the guides (`tests/guides`), against a real server; a second server is the vendor.
//! `forms.tsv` lists every form and the program that has it.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "shows what a program said")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_tests::namespaces::HOST_ADDRESS;
use atoll_tests::world::program as atoll_program;
use atoll_tests::{Client, Options, Value, World, json, run_with, template, until};
use reqwest::Method;
use tokio::net::TcpStream;

use crate::remote_server::{RemoteService, SERVICE, objects};
use crate::{leap0, sdk_python};

/// Where the repository of `agents/daytona.py` is served, at the host and on every address of the internet.
const GIT_PORT: u16 = 9418;

fn folder() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("guides")
}

/// The rows of `forms.tsv`: a program and a form.
fn forms() -> Vec<(String, String)> {
    let table = std::fs::read_to_string(folder().join("forms.tsv")).expect("the table");
    let row = |line: &str| line.split_once('\t').map(|(program, form)| (program.to_owned(), form.to_owned()));
    table.lines().map(|line| row(line).unwrap_or_else(|| panic!("no tab in {line:?}"))).collect()
}

/// Text with one space for every run of spaces and line breaks, and none inside brackets.
fn plain(text: &str) -> String {
    let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ");
    spaced.replace("( ", "(").replace(",)", ")").replace(", )", ")")
}

/// The programs of a guide, in their order.
fn programs(guide: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder().join(guide))
        .unwrap_or_else(|cause| panic!("{guide}: {cause}"))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "py" || kind == "ts"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_call_form_of_the_guides_is_in_a_program() {
    let forms = forms();
    let mut missing = Vec::new();
    for (program, form) in &forms {
        let text = std::fs::read_to_string(folder().join(program)).unwrap_or_default();
        if !plain(&text).contains(&plain(form)) {
            missing.push(format!("{program}: {form}"));
        }
    }
    assert!(missing.is_empty(), "forms that no program has:\n{}", missing.join("\n"));
    let listed: BTreeSet<PathBuf> = forms.iter().map(|(program, _)| folder().join(program)).collect();
    for guide in ["leon", "leap0", "toolkits", "agents", "daytona"] {
        let found = programs(guide);
        assert!(!found.is_empty(), "no program for {guide}");
        for program in found {
            assert!(listed.contains(&program), "{} is not in forms.tsv", program.display());
        }
    }
}

fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
}

/// Runs every program of a guide; each leaves no sandbox.
async fn run_programs(
    world: &World,
    guide: &str,
    command: impl AsyncFn() -> Command,
    left: impl AsyncFn() -> Vec<Value>,
) {
    let mut failed = BTreeMap::new();
    for path in programs(guide) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut program = command().await;
        program.arg(&path).current_dir(world.folder());
        let done = world.output(program).await;
        eprintln!("{guide}/{name}: {}", done.status);
        if !done.status.success() {
            let said = [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
            failed.insert(name, said.concat());
            continue;
        }
        until(&format!("{guide}/{name} leaves no sandbox"), async || left().await.is_empty().then_some(()))
            .await;
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The Python SDK as a user of the first tenant has it.
async fn python(world: &World, python: &Path, client: &Client) -> Command {
    let mut command = sdk_python::with_sdk(world, python).await;
    command.env("ATOLL_API_KEY", client.key());
    command
}

#[test]
fn programs_of_the_guide_of_leon_run() {
    let Some(interpreter) = sdk_python::tool("python") else { return };
    run_with(options().env("ATOLL_ALLOW_LOCAL", "true"), async |world| {
        let client = world.first_tenant().await;
        let command = async || {
            let mut command = python(world, &interpreter, &client).await;
            command.env("ATOLL_DATA", world.data()).env("ATOLL_ADMIN_KEY", world.admin().key());
            command
        };
        run_programs(world, "leon", command, async || objects(&world.admin()).await).await;
        // Providers keep their owner label and their address.
        std::fs::remove_dir_all(world.data().join("providers")).unwrap_or_default();
    });
}

#[test]
fn programs_of_the_guide_of_leap0_run() {
    let Some(interpreter) = leap0::python() else { return };
    run_with(Options { tls: true, ..options() }, async |world| {
        until("the TLS port is open", async || TcpStream::connect("127.0.0.1:7443").await.ok()).await;
        let client = world.first_tenant().await;
        let command = async || {
            let mut command = leap0::sdk(world, &interpreter).await;
            command.env("LEAP0_API_KEY", client.key());
            command
        };
        run_programs(world, "leap0", command, async || objects(&world.admin()).await).await;
    });
}

#[test]
fn programs_of_the_guide_of_daytona_run() {
    let Some(interpreter) = sdk_python::tool("python") else { return };
    run_with(options(), async |world| {
        let client = world.first_tenant().await;
        let command = async || python(world, &interpreter, &client).await;
        run_programs(world, "daytona", command, async || objects(&world.admin()).await).await;
    });
}

#[test]
fn programs_of_the_guide_of_an_agents_back_end_run() {
    let Some(interpreter) = sdk_python::tool("python") else { return };
    run_with(options(), async |world| {
        let service_templates = world.folder().join("service/templates");
        for name in ["code-interpreter-slim", "debian"] {
            template::link(&service_templates, name);
        }
        let service = RemoteService::start(world, "busybox").await;
        let account = service.account().await;
        // The guide's image, without a registry.
        let (built, log) = account
            .build(json!({ "template": "python:3.11-slim", "dockerfile": "FROM debian\n" }), None)
            .await;
        assert_eq!(built["status"], "ready", "{built} {log}");
        configure(world, &account).await;
        let repository = serve_repository(world).await;
        let client = world.first_tenant().await;
        let command = async || {
            let mut command = python(world, &interpreter, &client).await;
            command
                .env("VENDOR_URL", format!("http://{SERVICE}"))
                .env("DAYTONA_API_KEY", account.key())
                .env("GUIDE_REPOSITORY", &repository.url);
            command
        };
        let left = async || {
            let mut left = objects(&world.admin()).await;
            left.extend(objects(&account).await);
            left
        };
        run_programs(world, "agents", command, left).await;
        world.end_adopted(repository.server);
        for name in ["e2b", "daytona"] {
            world.admin().delete(&format!("/v1/providers/{name}/settings")).await.ok();
        }
        // A provider keeps its owner label and its address.
        std::fs::remove_dir_all(world.data().join("providers")).unwrap();
        service.uninstall().await;
    });
}

/// Programs that are killed before they clean up, and how many sandboxes each may leave.
const UNFINISHED: [(&str, usize); 7] = [
    ("coding_cli", 0),
    ("daytona_server", 1),
    ("factory", 1),
    ("mcp_http", 3),
    ("mcp_stdio", 1),
    ("session", 1),
    ("session_kept", 1),
];

/// Whether a sandbox ends by itself, or belongs to a thread that its user can end.
fn has_end(sandbox: &Value) -> bool {
    let is_set = |timer: &str| sandbox[timer].as_i64().is_some_and(|seconds| seconds >= 0);
    let is_idle_ended = is_set("auto_stop_s") && is_set("auto_delete_s");
    sandbox["timeout_at"].is_string() || is_idle_ended || sandbox["thread"].is_string()
}

#[test]
fn what_a_killed_helper_leaves_has_an_end() {
    let Some(interpreter) = sdk_python::tool("python") else { return };
    run_with(options(), async |world| {
        let client = world.first_tenant().await;
        let found = programs("unfinished");
        assert_eq!(found.len(), UNFINISHED.len(), "{found:?}");
        for (path, (name, count)) in found.iter().zip(UNFINISHED) {
            assert_eq!(path.file_stem().unwrap(), name);
            let mut program = python(world, &interpreter, &client).await;
            program.arg(path).env("ATOLL_BIN", atoll_program()).current_dir(world.folder());
            let done = world.output(program).await;
            let said = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.signal(), Some(9), "{name}: {said}");
            let left = until(&format!("{name} leaves {count}"), async || {
                let left = objects(&world.admin()).await;
                (left.len() == count).then_some(left)
            })
            .await;
            for sandbox in left {
                assert!(has_end(&sandbox), "{name} leaves a sandbox without an end: {sandbox}");
                world.admin().remove(sandbox["id"].as_str().unwrap()).await;
            }
        }
    });
}

/// The vendors `e2b` and `daytona` with their defaults, at the second server.
async fn configure(world: &World, account: &Client) {
    let (admin, service, key) = (world.admin(), format!("http://{SERVICE}"), account.key());
    let e2b = json!({ "api_key": key, "api_url": format!("{service}/e2b"), "sandbox_url": service,
        "template": "code-interpreter-slim" });
    let daytona = json!({ "api_key": key, "api_url": format!("{service}/daytona/api") });
    for (name, settings) in [("e2b", e2b), ("daytona", daytona)] {
        let settings = json!({ "provider": name, name: settings });
        admin.send(Method::PUT, &format!("/v1/providers/{name}/settings"), Some(&settings)).await.ok();
        until(&format!("{name} is open"), async || {
            let listed = admin.get("/v1/providers").await.ok();
            let is_open = |item: &Value| item["name"] == name && item["problem"].is_null();
            listed["items"].as_array().unwrap().iter().any(is_open).then_some(())
        })
        .await;
    }
}

/// A repository that sandboxes reach through the internet of the world.
struct Repository {
    url: String,
    server: i32,
}

async fn serve_repository(world: &World) -> Repository {
    let site = world.folder().join("site");
    let script = "git init -q -b main work && cd work && echo 'of the repository' >README && git add README \
        && git -c user.name=a -c user.email=a@b.test commit -qm first && cd .. && git clone -q --bare work app.git \
        && git -C app.git update-server-info";
    std::fs::create_dir(&site).unwrap();
    let mut git = Command::new("sh");
    git.args(["-c", script]).current_dir(&site).env("HOME", world.folder());
    let made = world.output(git).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let front: SocketAddr = format!("{HOST_ADDRESS}:{GIT_PORT}").parse().unwrap();
    let server = Command::new("python3")
        .args(["-m", "http.server", &GIT_PORT.to_string(), "--bind", HOST_ADDRESS, "--directory"])
        .arg(&site)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let server = world.adopt(server);
    until("the repository is served", async || TcpStream::connect(front).await.ok()).await;
    world.internet.relays(GIT_PORT, front).await;
    Repository { url: format!("http://{}:{GIT_PORT}/app.git", atoll_tests::internet::PUBLIC), server }
}

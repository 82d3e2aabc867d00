//! The Daytona front under the vendor's own SDKs, unmodified, against a real server: `tests/daytona/` holds the cases, `examples/daytona/`
//! the programs of the documentation.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::internet::{NAME, PUBLIC};
use atoll_tests::{Options, World, run_with};
use nix::mount::{MsFlags, mount, umount};

/// A part of the SDKs as `scripts/get-daytona-sdk` gives it; `None` where it cannot be had, which on CI is a failure.
fn sdk(part: &str) -> Option<PathBuf> {
    let script = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../scripts/get-daytona-sdk");
    let got = Command::new(script).arg(part).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the Daytona SDK cannot be had: {said}");
    eprintln!("not run: the Daytona SDK: {said}");
    None
}

/// A program with the variables that `atoll env daytona` prints, the keys of three tenants, and no others.
async fn program(world: &World, program: &Path, keys: &[String; 3]) -> Command {
    program_with(world, &[], program, keys).await
}

/// The same with more arguments of `atoll env daytona`.
async fn program_with(world: &World, more: &[&str], program: &Path, keys: &[String; 3]) -> Command {
    let mut env = world.command();
    env.args(["env", "daytona", "--json"]).args(more);
    let said = world.output(env).await;
    assert!(said.status.success(), "atoll env: {}", String::from_utf8_lossy(&said.stderr));
    let variables: BTreeMap<String, String> = serde_json::from_slice(&said.stdout).expect("variables");
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables)
        .env("DAYTONA_API_KEY", &keys[0])
        .env("DAYTONA_OTHER_KEY", &keys[1])
        .env("DAYTONA_FIRST_KEY", &keys[2])
        .env("DAYTONA_SITE", format!("http://{NAME}/"))
        .env("DAYTONA_SITE_ADDRESS", PUBLIC);
    command
}

async fn keys(world: &World) -> [String; 3] {
    let clients = [world.tenant("daytona").await, world.tenant("other").await, world.first_tenant().await];
    clients.map(|client| client.key().to_owned())
}

fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
}

fn here(path: &str) -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join(path)
}

/// Runs it and shows what it said.
async fn passes(world: &World, what: &str, command: Command) {
    let done = world.output(command).await;
    eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{what} failed ({})", done.status);
    assert!(!world.log().contains("s3cr3t-canary"), "a secret is in the server's log");
}

/// The value of a secret arrived where `tests/daytona/python/test_secrets.py` says, and nowhere else.
fn secrets_arrived(world: &World) {
    const VALUE: &str = "s3cr3t-canary";
    let requests = world.internet.requests();
    let header = |path: &str, name: &str| {
        let found = requests.iter().rev().find(|request| request.target() == path);
        found.unwrap_or_else(|| panic!("{path} was not seen: {requests:#?}")).header(name)
    };
    let (bearer, rotated) = (format!("Bearer {VALUE}"), format!("Bearer {VALUE}-rotated"));
    for (path, name, value) in [
        ("/daytona-filled-bearer", "authorization", bearer.as_str()),
        ("/daytona-filled-key", "x-api-key", VALUE),
        ("/daytona-filled-basic", "authorization", "Basic Z2l0OnMzY3IzdC1jYW5hcnk="),
        ("/daytona-filled-python", "x-api-key", VALUE),
        ("/daytona-filled-attached", "authorization", bearer.as_str()),
        ("/daytona-filled-rotated", "authorization", rotated.as_str()),
        ("/daytona-filled-moved", "authorization", rotated.as_str()),
        ("/daytona-filled-restarted", "authorization", rotated.as_str()),
    ] {
        assert_eq!(header(path, name).as_deref(), Some(value), "{path}");
    }
    let kept: Vec<_> =
        requests.iter().filter(|request| request.target().starts_with("/daytona-kept")).collect();
    assert!(kept.len() >= 9, "{kept:#?}");
    let holds = |request: &atoll_tests::internet::Request| format!("{request:?}").contains(VALUE);
    assert!(!kept.iter().any(|request| holds(request)), "{kept:#?}");
    let others = requests.iter().filter(|request| holds(request));
    let at = |path: &str| path.starts_with("/daytona-filled") || path.starts_with("/redirect?");
    assert!(others.into_iter().all(|request| at(request.target())), "{requests:#?}");
    assert!(!requests.iter().any(|request| request.target() == "/daytona-never"));
    assert!(kept.iter().any(|request| format!("{request:?}").contains("atoll_secret_")), "{kept:#?}");
}

#[test]
fn the_official_python_sdk_does_all_that_it_offers() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let mut suite = program(world, &python, &keys(world).await).await;
        suite.arg(here("daytona/python/run.py"));
        let only = std::env::var("DAYTONA_ONLY");
        suite.args(only.iter().flat_map(|only| only.split(' ')));
        passes(world, "the Python SDK", suite).await;
        if only.as_deref().unwrap_or("SecretsInSandboxes") == "SecretsInSandboxes" {
            secrets_arrived(world);
        }
    });
}

#[test]
fn the_official_typescript_sdk_does_all_that_it_offers() {
    let (Some(node), Some(modules)) = (sdk("node"), sdk("modules")) else { return };
    run_with(options(), async |world| {
        let mut suite = program(world, &node, &keys(world).await).await;
        suite.env("DAYTONA_MODULES", modules).args([
            "--test",
            "--test-concurrency=2",
            "--test-reporter=spec",
        ]);
        if let Ok(only) = std::env::var("DAYTONA_ONLY") {
            suite.arg(format!("--test-name-pattern={only}"));
        }
        for file in ["process", "files", "life"] {
            suite.arg(here(&format!("daytona/ts/{file}.test.mjs")));
        }
        passes(world, "the TypeScript SDK", suite).await;
    });
}

#[test]
fn the_programs_of_the_documentation_run_as_they_are() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let keys = keys(world).await;
        for (example, says) in [
            ("create_and_run", "the answer is 42"),
            ("git_workflow", "second commit"),
            ("sessions_and_logs", "step 3"),
            ("preview", "hello from inside"),
            ("auto_stop_and_archive", "kept: precious"),
        ] {
            let mut command = program(world, &python, &keys).await;
            command.arg(here(&format!("../examples/daytona/{example}.py")));
            let done = world.output(command).await;
            let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            assert!(done.status.success() && out.contains(says), "{example} ({}): {out}{err}", done.status);
        }
    });
}

/// What a program does with a link that it got over TLS: the variables of `atoll env daytona` vouch for it.
const BY_TLS: &str = r#"
import os, socket, ssl, urllib.parse, urllib.request
import requests
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig
plain, tls = os.environ["DAYTONA_API_URL"], "https://127.0.0.1:7443/daytona/api"
assert requests.get(tls + "/health", timeout=60).status_code == 200
assert urllib.request.urlopen(tls + "/config", timeout=60).status == 200
box = Daytona().create(CreateSandboxFromSnapshotParams(snapshot="debian"))
try:
    same = Daytona(DaytonaConfig(api_url=tls)).get(box.id)
    assert same.process.exec("echo over tls").result == "over tls\n"
    for sandbox, scheme in ((box, "http"), (same, "https")):
        for url in (sandbox.get_preview_link(3000).url, sandbox.create_signed_preview_url(3000).url):
            assert url.startswith(scheme + "://"), url
    parts = urllib.parse.urlsplit(url)
    context = ssl.create_default_context()
    with context.wrap_socket(socket.create_connection(("127.0.0.1", parts.port)), server_hostname=parts.hostname) as s:
        assert s.getpeercert()
finally:
    box.delete()
print("verified")
"#;

#[test]
fn after_tls_init_links_can_be_used_and_verified() {
    let Some(python) = sdk("python") else { return };
    run_with(Options { tls: true, ..options() }, async |world| {
        let keys = keys(world).await;
        atoll_tests::until("TLS is open", async || {
            tokio::net::TcpStream::connect("127.0.0.1:7443").await.ok()
        })
        .await;
        for (what, arguments, says) in [
            ("by TLS", vec!["-c".into(), BY_TLS.into()], "verified"),
            (
                "preview.py",
                vec![here("../examples/daytona/preview.py").into_os_string()],
                "hello from inside",
            ),
        ] {
            let mut command = program(world, &python, &keys).await;
            for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
                assert!(command.get_envs().any(|(set, _)| set == name), "{name}");
            }
            command.args(arguments);
            let done = world.output(command).await;
            let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            assert!(done.status.success() && out.contains(says), "{what} ({}): {out}{err}", done.status);
        }
    });
}

/// Files of the client in an image: Python's SDK refuses plain HTTP for them and reads the system's store of authorities only.
const CONTEXT: &str = r#"
import os, tempfile
from daytona import CreateSandboxFromImageParams, Daytona, Image
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "local.txt"), "w") as file:
    file.write("from the client")
image = Image.base("debian").add_local_file(os.path.join(folder, "local.txt"), "/srv/local.txt")
box = Daytona().create(CreateSandboxFromImageParams(image=image), timeout=300)
try:
    print("inside:", box.fs.download_file("/srv/local.txt").decode())
finally:
    box.delete()
"#;

#[test]
fn files_of_the_client_reach_an_image_over_tls_with_the_authority_in_the_systems_store() {
    let Some(python) = sdk("python") else { return };
    run_with(Options { tls: true, ..options() }, async |world| {
        let keys = keys(world).await;
        atoll_tests::until("TLS is open", async || {
            tokio::net::TcpStream::connect("127.0.0.1:7443").await.ok()
        })
        .await;
        let ask = async |trusted: bool| {
            // The store is replaced in a mount namespace of the program's own.
            let store = match trusted {
                true => "mount --bind \"$SSL_CERT_FILE\" /etc/ssl/certs/ca-certificates.crt && exec \"$@\"",
                false => "exec \"$@\"",
            };
            let program = program_with(world, &["--tls"], Path::new("/usr/bin/unshare"), &keys).await;
            let mut command = program;
            command.args(["--mount", "--propagation", "private", "sh", "-c", store, "sh"]);
            command.arg(&python).args(["-c", CONTEXT]);
            world.output(command).await
        };
        let (done, refused) = (ask(true).await, ask(false).await);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(
            done.status.success() && out.contains("inside: from the client"),
            "({}): {out}{err}",
            done.status
        );
        assert!(!refused.status.success(), "the page says that SSL_CERT_FILE does not suffice");
    });
}

/// An archive that fails, and the files afterwards.
const ARCHIVE: &str = r#"
import os
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaError
box = Daytona().create(CreateSandboxFromSnapshotParams(snapshot="debian"))
try:
    big = os.urandom(3_000_000)
    box.fs.upload_file(big, "/tmp/big")
    box.stop()
    try:
        box.archive()
        print("archived")
    except DaytonaError as error:
        print("refused:", error.status_code, error)
    box.refresh_data()
    print("now", box.state.value)
    box.start()
    assert box.fs.download_file("/tmp/big") == big
finally:
    box.delete()
"#;

#[test]
fn a_failed_archive_is_an_error_of_the_sdk() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let place = world.folder().join("small-place");
        std::fs::create_dir(&place).unwrap();
        mount(Some("tmpfs"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=2m")).unwrap();
        world.crash_server_with(&[("ATOLL_ARCHIVE", place.to_str().unwrap())]).await;
        let mut command = program(world, &python, &keys(world).await).await;
        command.args(["-c", ARCHIVE]);
        let done = world.output(command).await;
        world.crash_server_with(&[("ATOLL_ARCHIVE", "")]).await;
        umount(&place).unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{out}{err}");
        assert!(out.contains("refused: 503") && out.contains("now stopped"), "{out}{err}");
    });
}

#[test]
fn an_example_whose_preview_fails_says_so() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let keys = keys(world).await;
        // Instead of the app nothing listens.
        let text = std::fs::read_to_string(here("../examples/daytona/preview.py")).unwrap();
        let broken =
            text.replace("exec python3 -m http.server 3000", "true").replace("within=60.0", "within=1.0");
        assert_ne!(text, broken);
        let path = world.folder().join("preview.py");
        std::fs::write(&path, broken).unwrap();
        let mut command = program(world, &python, &keys).await;
        command.arg(path);
        let done = world.output(command).await;
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && err.contains("HTTP Error 503"), "{}: {err}", done.status);
    });
}

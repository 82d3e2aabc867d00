//! Moves between real providers: from a container of this server to this machine, to Docker, and back, with files that a tar
//! can spoil, and with a server that is killed in the middle.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Output;

use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::{Client, Options, Value, World, json, run_with, until};

use crate::docker_server;
use crate::remote_server::{self as service, RemoteService};

/// Files, modes, links, owners and odd names in the home; one file outside.
const WRITE: &str = r#"
set -e
cd ~
mkdir -p project/deep/er empty .hidden
chmod 0711 empty
printf 'one' > project/a.txt
chmod 0600 project/a.txt
ln project/a.txt project/second-name
ln -s a.txt project/link
ln -s /does/not/exist dangling
mkfifo pipe
printf 'odd' > "$(printf 'new\nline')"
printf 'dash' > ./-rf
printf 'bytes' > "$(printf 'not\377utf8')"
printf '#!/bin/sh\n' > setuid
chmod 4755 setuid
printf 'group' > shared
dd if=/dev/zero of=sparse bs=1 count=1 seek=1000000 2>/dev/null
dd if=/dev/urandom of=project/deep/er/large bs=1M count=24 2>/dev/null
touch -t 200102030405 project/deep
"#;

/// What only root may do.
const AS_ROOT: &str =
    "printf outside > /etc/own.conf; cd /home/user && chown 0:1001 shared && chmod 2644 shared";

/// Everything about the files in the home that a move keeps, in one text.
const DESCRIBE: &str = r#"
cd ~ && find . -mindepth 1 | LC_ALL=C sort | while IFS= read -r path; do
  [ -e "$path" ] || [ -h "$path" ] || { echo "part of a name: $path"; continue; }
  stat -c '%n %f %u:%g' "$path"
  if [ -h "$path" ]; then readlink "$path"; elif [ -f "$path" ]; then stat -c '%s %h' "$path"; [ ! -r "$path" ] || sha256sum < "$path"; fi
done"#;

pub(crate) async fn atoll(w: &World, words: &[&str]) -> Output {
    let mut command = w.command();
    command.args(words);
    w.output(command).await
}

/// Makes all files.
async fn write(client: &Client, id: &str) {
    client.sh(id, WRITE).await;
    client.try_exec(id, json!({ "argv": ["sh", "-c", AS_ROOT], "user": "root" })).await.ok();
}

async fn create(client: &Client, name: &str) -> String {
    let body = json!({
        "name": name, "provider": "container", "labels": { "team": "a" }, "env": { "OWN": "kept" },
        "thread": format!("thread of {name}"), "timeout_s": 3600,
    });
    client.create(body).await
}

/// A description of files without the numbers of their owners.
fn without_owners(described: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((rest, owner)) if owner.contains(':') => rest.to_owned(),
        _ => line.replace("part of a name:", "part of a name"),
    };
    described.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Checks that a sandbox is whole at a provider, under its name and thread.
async fn is_at(client: &Client, id: &str, provider: &str, described: &str) -> Value {
    let about = until("the move is over", async || {
        let about = client.sandbox(id).await;
        (about["phase"] == "running" && about["moving"] == Value::Null).then_some(about)
    })
    .await;
    assert_eq!((&about["provider"], &about["labels"]["team"]), (&json!(provider), &json!("a")), "{about}");
    let thread =
        client.get(&format!("/v1/threads/{}", about["thread"].as_str().unwrap().replace(' ', "%20"))).await;
    assert_eq!(thread.ok()["provider"], provider);
    let found = client.sh(id, DESCRIBE).await.text().to_owned();
    match described.contains(':') {
        true => assert_eq!(found, described),
        false => assert_eq!(without_owners(&found), described),
    }
    assert_eq!(client.sh(id, "echo $OWN; pwd").await.text().lines().next(), Some("kept"));
    about
}

#[test]
fn a_container_moves_to_this_machine_and_back() {
    let options = Options::default().env("ATOLL_ALLOW_LOCAL", "true");
    run_with(options, async |w| {
        let client = w.first_tenant().await;
        let id = create(&client, "box").await;
        write(&client, &id).await;
        let described = client.sh(&id, DESCRIBE).await.text().to_owned();
        assert!(
            described.contains("./shared 85a4 0:1001") && described.contains("./setuid 89ed"),
            "{described}"
        );
        refusals(w, &client, &id).await;

        let moved = atoll(w, &["move", "box", "--to", "local"]).await;
        let said = String::from_utf8_lossy(&moved.stderr).into_owned();
        assert!(moved.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&moved.stdout), "box\n");
        assert!(
            said.contains("moved from container to local") && said.contains("left behind, processes"),
            "{said}"
        );
        assert!(said.contains("/etc/own.conf"), "{said}");
        let about = is_at(&client, &id, "local", &described).await;
        assert_eq!((&about["isolation"], &about["id"]), (&json!("none"), &json!(id)), "{about}");
        let workspace = w.data().join("local").join(&id).join("workspace");
        assert_eq!(std::fs::read(workspace.join("project/a.txt")).unwrap(), b"one");

        let back = atoll(w, &["move", "box", "--to", "container", "--json"]).await;
        let text = String::from_utf8_lossy(&back.stdout).into_owned();
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{back:?}"));
        assert_eq!(
            (&answer["provider"], &answer["last_move"]["from"]),
            (&json!("container"), &json!("local"))
        );
        is_at(&client, &id, "container", &described).await;
        assert!(!workspace.exists(), "nothing is left on this machine");
        client.remove(&id).await;
    });
}

/// A sparse file of a terabyte fits into any limit of the source. Its copy has the same holes, whatever is between the two.
#[test]
fn holes_of_a_terabyte_stay_holes_in_a_move_and_the_limit_counts_data() {
    let options = Options { disk_mib: Some(4_000), ..Options::default() };
    let options = options.env("ATOLL_ALLOW_LOCAL", "true").env("ATOLL_DISK_RESERVE", "128m");
    run_with(options, async |w| {
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "container", "disk_mib": 128 })).await;
        client.sh(&id, HOLES).await.text();
        let described = client.sh(&id, DESCRIBE_HOLES).await.text().to_owned();
        let free = free_bytes(w);
        let path = format!("/v1/sandboxes/{id}/move");
        for provider in ["local", "container"] {
            let begun = std::time::Instant::now();
            move_whole(&client, &id, provider).await;
            assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
            assert_eq!(client.sh(&id, DESCRIBE_HOLES).await.text(), described, "{provider}");
        }
        disk_is_free(w, free, "a move");

        // At this machine nothing limits the sandbox; what the limit does not allow elsewhere is refused before it is written.
        move_whole(&client, &id, "local").await;
        client.sh(&id, "head -c 200000000 /dev/urandom > ~/large").await;
        let refused = client.post(&path, json!({ "provider": "container" })).await.refused(507, "disk_full");
        assert!(refused["message"].as_str().unwrap().contains("128 MiB"), "{refused}");
        let about = until("it runs again where it was", async || {
            let about = client.sandbox(&id).await;
            (about["phase"] == "running").then_some(about)
        })
        .await;
        assert_eq!(about["provider"], "local", "{about}");
        client.remove(&id).await;
        disk_is_free(w, free, "a refused move");
    });
}

/// Docker has no limit for the files of a container.
#[test]
fn holes_of_a_terabyte_stay_holes_in_a_move_to_docker() {
    run_with(docker_server::options(), async |w| {
        let docker = docker_server::docker(w).await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "container", "disk_mib": 128 })).await;
        client.sh(&id, HOLES).await.text();
        let described = client.sh(&id, DESCRIBE_HOLES).await.text().to_owned();
        let free = free_bytes(w);
        let path = format!("/v1/sandboxes/{id}/move");
        for provider in ["docker", "container"] {
            move_whole(&client, &id, provider).await;
            assert_eq!(client.sh(&id, DESCRIBE_HOLES).await.text(), described, "{provider}");
        }
        disk_is_free(w, free, "a move");

        move_whole(&client, &id, "docker").await;
        client.sh(&id, "head -c 200000000 /dev/urandom > ~/large").await;
        let refused = client.post(&path, json!({ "provider": "container" })).await.refused(507, "disk_full");
        assert!(refused["message"].as_str().unwrap().contains("128 MiB"), "{refused}");
        until("it runs again where it was", async || {
            (client.sandbox(&id).await["phase"] == "running").then_some(())
        })
        .await;
        client.remove(&id).await;
        until("the container is removed", async || {
            docker_server::containers(&docker).is_empty().then_some(())
        })
        .await;
        disk_is_free(w, free, "a refused move");
    });
}

/// A terabyte with data at both ends, a hole without data, and a file without a hole.
pub(crate) const HOLES: &str = "cd ~ && printf begin > holes && truncate -s 1024G holes && printf end >> holes && truncate -s 1024G hole \
                     && head -c 300000 /dev/urandom > whole";

/// Sizes, data, and that it needs little space.
pub(crate) const DESCRIBE_HOLES: &str = "cd ~ && stat -c '%n %s' holes hole whole && head -c 5 holes && tail -c 3 holes && sha256sum < whole \
                              && [ $(du -k holes | cut -f 1) -lt 1024 ] && [ $(du -k hole | cut -f 1) -lt 1024 ] && echo sparse";

/// Moves, and waits until nothing of the move is left to do.
pub(crate) async fn move_whole(client: &Client, id: &str, provider: &str) {
    client.post(&format!("/v1/sandboxes/{id}/move"), json!({ "provider": provider })).await.ok();
    let about = until("the move is over", async || {
        let about = client.sandbox(id).await;
        (about["phase"] == "running" && about["moving"] == Value::Null).then_some(about)
    })
    .await;
    assert_eq!(about["provider"], provider, "{about}");
}

/// On a disk that others write to as well, only what a terabyte would take is noticed.
pub(crate) fn disk_is_free(w: &World, before: u64, what: &str) {
    let disk = nix::sys::statvfs::statvfs(&w.data()).unwrap();
    let noise = (disk.blocks() * disk.fragment_size() / 4).min(4 << 30);
    let taken = before.saturating_sub(free_bytes(w));
    assert!(taken < noise, "{what} took {taken} bytes of the host's disk");
}

pub(crate) fn free_bytes(w: &World) -> u64 {
    let disk = nix::sys::statvfs::statvfs(&w.data()).unwrap();
    disk.blocks_available() * disk.fragment_size()
}

async fn refusals(w: &World, client: &Client, id: &str) {
    let path = format!("/v1/sandboxes/{id}/move");
    let to = |provider: &str| json!({ "provider": provider });
    client.post(&path, to("nowhere")).await.refused(404, "provider_not_found");
    client.post(&path, to("container")).await.refused(400, "invalid_request");
    let template = json!({ "provider": "local", "template": "no-such-template" });
    client.post(&path, template).await.refused(404, "template_not_found");
    client.post(&path, json!({ "provider": "local", "what": 1 })).await.refused(400, "invalid_request");
    let other = w.tenant("acme").await;
    other.post(&path, to("local")).await.refused(404, "sandbox_not_found");
    let own = other.create(json!({})).await;
    other.post(&format!("/v1/sandboxes/{own}/move"), to("local")).await.refused(403, "provider_not_allowed");
    other.remove(&own).await;
    assert_eq!(client.sandbox(id).await["phase"], "running");
}

#[test]
fn a_container_moves_to_docker_and_back() {
    run_with(docker_server::options(), async |w| {
        let docker = docker_server::docker(w).await;
        let client = w.first_tenant().await;
        let id = create(&client, "box").await;
        write(&client, &id).await;
        // The user of commands has another number in that image.
        let described = without_owners(client.sh(&id, DESCRIBE).await.text());
        let path = format!("/v1/sandboxes/{id}/move");
        let policy = json!({ "network": { "mode": "custom", "allow_domains": ["pypi.org"] } });
        client.patch(&format!("/v1/sandboxes/{id}"), policy).await.ok();
        let refused = client.post(&path, json!({ "provider": "docker" })).await.refused(501, "unsupported");
        assert!(refused["message"].as_str().unwrap().contains("egress"), "{refused}");
        let open = json!({ "network": { "mode": "allow-all" } });
        client.patch(&format!("/v1/sandboxes/{id}"), open).await.ok();

        let moved = client.post(&path, json!({ "provider": "docker" })).await.ok();
        assert_eq!(moved["last_move"]["failure"], Value::Null, "{moved}");
        let left = moved["last_move"]["left_behind"].as_array().unwrap();
        assert!(
            left.iter().all(|one| one["kind"] != "owners"),
            "the user's files are the user's there too: {moved}"
        );
        let owners = client
            .sh(&id, "cd ~; [ $(stat -c %u project/a.txt) = $(id -u) ] && echo own; stat -c %u shared")
            .await;
        assert_eq!(owners.text(), "own\n0");
        let about = is_at(&client, &id, "docker", &described).await;
        assert_eq!(about["template"], "atoll-test/busybox:latest");
        assert_eq!(docker_server::containers(&docker).len(), 1);
        client.sh(&id, "mkdir -p /workspace && echo there > /workspace/made").await;
        client.post(&path, json!({ "provider": "container" })).await.ok();
        is_at(&client, &id, "container", &described).await;
        until("the container is removed", async || {
            docker_server::containers(&docker).is_empty().then_some(())
        })
        .await;
        client.remove(&id).await;

        // Docker's own working directory travels beside the home.
        let made = client.create(json!({ "provider": "docker", "name": "second" })).await;
        client.sh(&made, "echo work > /workspace/file; echo home > ~/file").await;
        client.post(&format!("/v1/sandboxes/{made}/move"), json!({ "provider": "container" })).await.ok();
        assert_eq!(client.sh(&made, "pwd; cat file ~/file").await.text(), "/workspace\nwork\nhome");
        client.remove(&made).await;
    });
}

#[test]
fn a_server_that_is_killed_during_a_move_leaves_one_whole_sandbox() {
    // Instances of a server that was killed are counted by the audit of its own tests.
    let options = Options { audit: false, ..Options::default() }.env("ATOLL_ALLOW_LOCAL", "true");
    run_with(options, async |w| {
        let client = w.first_tenant().await;
        let id = create(&client, "box").await;
        write(&client, &id).await;
        client.sh(&id, "dd if=/dev/urandom of=~/larger bs=1M count=150 2>/dev/null").await;
        let described = client.sh(&id, DESCRIBE).await.text().to_owned();
        for step in ["preparing", "copying", "comparing"] {
            let begun =
                client.post(&format!("/v1/sandboxes/{id}/move?wait=0"), json!({ "provider": "local" })).await;
            assert_eq!(begun.ok()["moving"]["stage"], "copying");
            until("the step is reached", async || {
                let about = client.sandbox(&id).await;
                let is_there = about["moving"]["step"] == step || about["moving"]["stage"] != "copying";
                is_there.then_some(())
            })
            .await;
            w.crash_server().await;
            let about = until("it runs again", async || {
                let about = client.sandbox(&id).await;
                (about["phase"] == "running" && about["moving"] == Value::Null).then_some(about)
            })
            .await;
            let provider = about["provider"].as_str().unwrap().to_owned();
            is_at(&client, &id, &provider, &described).await;
            assert_eq!(w.data().join("local").join(&id).exists(), provider == "local", "{about}");
            if provider == "local" {
                client
                    .post(&format!("/v1/sandboxes/{id}/move"), json!({ "provider": "container" }))
                    .await
                    .ok();
                is_at(&client, &id, "container", &described).await;
            }
        }
        client.remove(&id).await;
    });
}

/// A vendor has no agent of ours: its own `tar` packs and unpacks.
#[test]
fn a_container_moves_to_a_vendor_that_loses_a_reply_and_back() {
    to_a_vendor_and_back(&service::E2B);
}

/// Its only user is root, whose number is not that of the user of the container.
#[test]
fn a_container_moves_to_a_vendor_with_one_user_and_back() {
    to_a_vendor_and_back(&service::DAYTONA);
}

fn to_a_vendor_and_back(kind: &'static service::ServerKind) {
    // The audit would find the settings of the provider.
    run_with(Options { audit: false, ..Options::debian() }, async |w| {
        let vendor = RemoteService::start(w, "debian").await;
        let account = vendor.account().await;
        let proxy = FaultProxy::start(service::SERVICE.parse().unwrap()).await;
        service::configure(w, kind, &proxy, account.key(), "debian").await;
        let client = w.first_tenant().await;
        let id = create(&client, "box").await;
        // A sandbox of a thread is paused at the end of the server by default, which not every vendor can do.
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "on_exit": "keep" })).await.ok();
        client.sh(&id, VENDOR_FILES).await;
        let described = client.sh(&id, DESCRIBE).await.text().to_owned();
        let mut is_first = true;
        proxy.set_rule(move |method, path| {
            let loses = method == "POST" && path.ends_with(kind.create_path) && std::mem::take(&mut is_first);
            if loses { Fault::LoseReply } else { Fault::None }
        });
        let path = format!("/v1/sandboxes/{id}/move");
        client.post(&path, json!({ "provider": "cloud" })).await.ok();
        let about = client.sandbox(&id).await;
        let folder = about["workdir"].as_str().unwrap().to_owned();
        assert_eq!((&about["provider"], &about["isolation"]), (&json!("cloud"), &json!("vendor")), "{about}");
        let there = client.sh(&id, &DESCRIBE.replace("cd ~", &format!("cd {folder}"))).await;
        assert_eq!(without_owners(there.text()), without_owners(&described));
        let owner = format!("[ $(stat -c %u:%g {folder}/project/a.txt) = $(id -u):$(id -g) ] && echo own");
        assert_eq!(client.sh(&id, &owner).await.text(), "own", "{about}");
        assert_eq!(service::objects(&account).await.len(), 1, "one object, although a reply was lost");
        client.post(&path, json!({ "provider": "container" })).await.ok();
        is_at(&client, &id, "container", &described).await;
        until("the vendor's object is removed", async || {
            service::objects(&account).await.is_empty().then_some(())
        })
        .await;
        client.remove(&id).await;
        drop(proxy);
        vendor.uninstall().await;
    });
}

/// Without what needs root.
const VENDOR_FILES: &str = r#"
set -e
cd ~
mkdir -p project/deep/er empty
chmod 0711 empty
printf 'one' > project/a.txt
chmod 0600 project/a.txt
ln project/a.txt project/second-name
ln -s a.txt project/link
ln -s /does/not/exist dangling
printf 'odd' > "$(printf 'new\nline')"
printf 'dash' > ./-rf
head -c 3000000 /dev/urandom > project/deep/er/large
"#;

/// Attack B08: what `atoll cp` carries has its holes on the other side, or is refused before the disk of the caller shrinks.
#[test]
fn holes_of_a_terabyte_stay_holes_in_a_copy_by_command() {
    run_with(Options::default(), async |w| {
        let client = w.first_tenant().await;
        let id = client.create(json!({ "disk_mib": 128 })).await;
        let (sparse, folder) = (w.folder().join("sparse"), w.folder().join("folder"));
        std::fs::create_dir(&folder).unwrap();
        for path in [&sparse, &folder.join("sparse")] {
            let file = std::fs::File::create(path).unwrap();
            for at in [0, (1 << 40) - 3] {
                std::os::unix::fs::FileExt::write_all_at(&file, b"end", at).unwrap();
            }
        }
        let at = |path: &str| format!("{id}:/home/user/{path}");
        let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        for (from, to) in [(text(&sparse), at("one")), (text(&folder), at("many"))] {
            let copied = atoll(w, &["cp", &from, &to]).await;
            assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        }
        for path in ["one", "many/sparse"] {
            let seen = format!(
                "cd ~ && stat -c %s {path} && tail -c 3 {path} && [ $(du -k {path} | cut -f 1) -lt 1024 ]"
            );
            assert_eq!(client.sh(&id, &seen).await.text(), format!("{}\nend", 1_u64 << 40), "{path}");
        }
        let back = w.folder().join("back");
        let refused = atoll(w, &["cp", &at("one"), &text(&back)]).await;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("free") && !back.exists(), "{said}");
        client.sh(&id, "cd ~ && printf begin > small && truncate -s 300M small").await.text();
        let copied = atoll(w, &["cp", &at("small"), &text(&back)]).await;
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let found = std::fs::metadata(&back).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&found);
        assert!(found.len() == 300 << 20 && blocks * 512 < 8 << 20, "{found:?}");
        assert!(std::fs::read(&back).unwrap().starts_with(b"begin\0"));
        client.remove(&id).await;
    });
}

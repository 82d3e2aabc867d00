//! Moves of sandboxes that mean harm: a vendor whose `tar` lies, and a container with odd files that moves to Docker.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use atoll_tests::canary::Canary;
use atoll_tests::fault_proxy::FaultProxy;
use atoll_tests::{Client, Options, Value, json, run_with, until};

use crate::docker_server;
use crate::moving::move_whole;
use crate::remote_server::{self as service, RemoteService};

const BLOCK: usize = 512;

/// One entry of an archive, with any name.
fn entry(kind: u8, name: &str, link: &str, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o4755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    header.set_size(size);
    header.set_device_major(1).unwrap();
    header.set_device_minor(5).unwrap();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(b'0', name, "", content.len() as u64, content.as_bytes())
}

/// A sparse file whose map says anything.
fn sparse(map: &str, size: u64) -> Vec<u8> {
    let (mut records, size) = (Vec::new(), size.to_string());
    for (key, value) in [("major", "1"), ("minor", "0"), ("name", "holes"), ("realsize", size.as_str())] {
        let text = format!(" GNU.sparse.{key}={value}\n");
        records.extend_from_slice(format!("{}{text}", text.len() + 2).as_bytes());
    }
    let mut content = map.as_bytes().to_vec();
    content.resize(2 * BLOCK, 0);
    let records = entry(b'x', "records", "", records.len() as u64, &records);
    [records, entry(b'0', "GNUSparseFile.0", "", content.len() as u64, &content)].concat()
}

/// What the vendor's `tar` writes, once or for ever, and whether it is a lie that is refused.
fn lies(outside: &Path) -> Vec<(&'static str, Vec<u8>, bool)> {
    let outside = outside.to_str().unwrap();
    let up = format!("../../../../../../../..{outside}/slip");
    let top = entry(b'5', "./", "", 0, b"");
    let once = |entries: &[Vec<u8>]| {
        [vec![top.clone()], entries.to_vec(), vec![vec![0; 2 * BLOCK]]].concat().concat()
    };
    vec![
        ("a name with dots", once(&[file(&up, "x")]), false),
        ("a name with dots and escape codes", once(&[file(&format!("\u{1b}[2J{up}"), "x")]), false),
        ("an absolute name", once(&[file(&format!("{outside}/absolute"), "x")]), false),
        ("a file through a link", once(&[entry(b'2', "way", outside, 0, b""), file("way/link", "x")]), false),
        (
            "a folder through a link",
            once(&[entry(b'2', "way", outside, 0, b""), entry(b'5', "way/folder/", "", 0, b"")]),
            false,
        ),
        ("a hard link to the host", once(&[entry(b'1', "hard", &format!("{up}/../secret"), 0, b"")]), false),
        (
            "a hard link through a link",
            once(&[entry(b'2', "way", outside, 0, b""), entry(b'1', "hard", "way/secret", 0, b"")]),
            false,
        ),
        ("a device", once(&[entry(b'3', "zero", "", 0, b"")]), false),
        ("a block device", once(&[entry(b'4', "disk", "", 0, b"")]), false),
        ("a terabyte that is announced", once(&[entry(b'0', "huge", "", 1 << 33, b"")]), false),
        ("a map behind the end of the file", once(&[sparse("1\n4096\n512\n", 100)]), false),
        ("a map without data", once(&[sparse("1\n0\n4096\n", 1 << 40)]), false),
        ("a map of a million pieces", once(&[sparse("1000000\n", 1 << 40)]), false),
        ("a size beyond all files", once(&[sparse("1\n0\n512\n", u64::MAX)]), false),
        ("the same name twice", once(&[file("twice", "one"), file("twice", "two")]), false),
        ("an archive that is cut", file("cut", "x")[..700].to_vec(), false),
        ("no archive", b"this is no archive".repeat(100), false),
        ("empty files without end", entry(b'0', "empty", "", 0, b"").repeat(2_000), true),
        ("records without end", entry(b'g', "global", "", 0, b"").repeat(2_000), true),
        ("zeros without end", vec![0; 1 << 20], true),
    ]
}

/// Makes `tar` of the sandbox write a file instead of an archive.
async fn replace_tar(client: &Client, id: &str, lie: Vec<u8>, for_ever: bool) {
    client.write_file(id, "/var/tmp/lie", lie).await.ok();
    let lying = if for_ever { "while cat /var/tmp/lie; do :; done" } else { "exec cat /var/tmp/lie" };
    let script =
        format!("#!/bin/sh\ncase \" $* \" in *' -cf '*) {lying} ;; esac\nexec /usr/bin/tar.true \"$@\"\n");
    client.write_file(id, "/var/tmp/tar", script).await.ok();
    let install = "[ -e /usr/bin/tar.true ] || mv /usr/bin/tar /usr/bin/tar.true; install -m 755 /var/tmp/tar /usr/bin/tar";
    assert_eq!(client.sh_root(id, install).await.code, 0);
}

/// Attack B16: what a vendor sends during a move is refused or is only the copy's own, here and in a container.
#[test]
fn a_vendor_whose_tar_lies_changes_nothing_but_the_copy() {
    let options = Options { audit: false, ..Options::debian() }.env("ATOLL_ALLOW_LOCAL", "true");
    run_with(options, async |w| {
        let vendor = RemoteService::start(w, "debian").await;
        let account = vendor.account().await;
        let proxy = FaultProxy::start(service::SERVICE.parse().unwrap()).await;
        service::configure(w, &service::E2B, &proxy, account.key(), "debian").await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "container", "disk_mib": 64 })).await;
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "on_exit": "keep" })).await.ok();
        client.sh(&id, "echo kept > ~/kept").await;
        move_whole(&client, &id, "cloud").await;
        let outside = w.folder().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "of the host").unwrap();
        let canary = Canary::take(w.folder(), &[]);
        for (number, (what, lie, for_ever)) in lies(&outside).into_iter().enumerate() {
            replace_tar(&client, &id, lie, for_ever).await;
            // This machine has the least walls, so it takes most of them.
            let target = if number % 4 == 3 { "container" } else { "local" };
            let path = format!("/v1/sandboxes/{id}/move");
            let answer = client.post(&path, json!({ "provider": target })).await;
            assert!(answer.status >= 400 && answer.status != 500, "{what}: {answer}");
            let said = String::from_utf8_lossy(&answer.bytes).into_owned();
            assert!(!said.contains("of the host") && !said.contains("\\u001b"), "{what}: {said}");
            let about = until("it runs where it was", async || {
                let about = client.sandbox(&id).await;
                (about["phase"] == "running" && about["moving"] == Value::Null).then_some(about)
            })
            .await;
            assert_eq!(about["provider"], "cloud", "{what}");
            assert!(!w.data().join("local").join(&id).exists(), "{what}: a copy is left");
            let left: Vec<_> =
                std::fs::read_dir(&outside).unwrap().map(|found| found.unwrap().file_name()).collect();
            assert_eq!(left, ["secret"], "{what}");
            let links =
                std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata(outside.join("secret")).unwrap());
            assert_eq!((links, canary.changes()), (1, Vec::<String>::new()), "{what}");
        }
        // An honest `tar` again: nothing was lost.
        client.sh_root(&id, "mv /usr/bin/tar.true /usr/bin/tar").await;
        move_whole(&client, &id, "local").await;
        assert_eq!(client.sh(&id, "cat ~/kept").await.text(), "kept");
        client.remove(&id).await;
        drop(proxy);
        vendor.uninstall().await;
    });
}

/// What a container may look like before it moves, and whether it can.
const ODD: [(&str, bool); 6] = [
    (
        "ln -s / ~/root; ln -s /.atoll ~/agent; ln -s /proc/self/root ~/magic; mkfifo ~/pipe; chmod 4777 ~/kept",
        true,
    ),
    ("mkdir -p ~/.atoll/atoll-agent ~/proc/self ~/dev; ln -s /dev/zero ~/dev/null", true),
    ("sed -i 's#:/home/user:#:/.atoll:#' /etc/passwd", true),
    ("sed -i 's#:/.atoll:#:/proc/1/root/etc:#' /etc/passwd", true),
    (
        "sed -i 's#:/proc/1/root/etc:#:/home/user:#' /etc/passwd; mv /home/user /home/real; ln -s /etc /home/user",
        true,
    ),
    (
        "rm /home/user; mv /home/real /home/user; cd /home/user; i=0; while [ $i -lt 300 ]; do mkdir d && cd d; i=$((i+1)); done",
        false,
    ),
];

/// Attack B16: files that are prepared for the other side find nothing there that they could change.
#[test]
fn a_hostile_container_that_moves_to_docker_finds_no_way_to_the_host() {
    run_with(docker_server::options(), async |w| {
        let docker = docker_server::docker(w).await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "container" })).await;
        client.sh(&id, "echo kept > ~/kept").await;
        let canary = Canary::take(w.folder(), &[]);
        let path = format!("/v1/sandboxes/{id}/move");
        for (odd, is_moved) in ODD {
            let made = client.sh_root(&id, &odd.replace('~', "/home/user")).await;
            assert_eq!(made.code, 0, "{odd}: {made:?}");
            let answer = client.post(&path, json!({ "provider": "docker" })).await;
            until("nothing of the move is left to do", async || {
                let about = client.sandbox(&id).await;
                (about["phase"] == "running" && about["moving"] == Value::Null).then_some(())
            })
            .await;
            assert!(answer.status != 500, "{odd}: {answer}");
            assert_eq!(answer.status < 300, is_moved, "{odd}: {answer}");
            if is_moved {
                // The agent's folder is a folder of the host: it is as it was, and closed to the sandbox.
                let agent = client
                    .sh_root(
                        &id,
                        "ls /.atoll; echo x > /.atoll/x || echo closed; id -u < /.atoll/atoll-agent",
                    )
                    .await;
                assert!(agent.stdout.contains("closed"), "{odd}: {agent:?}");
                assert!(
                    !agent.stdout.contains("token") && !agent.stdout.contains("kept"),
                    "{odd}: {agent:?}"
                );
                assert_eq!(docker_server::containers(&docker).len(), 1, "{odd}");
                move_whole(&client, &id, "container").await;
            }
            assert_eq!(canary.changes(), Vec::<String>::new(), "{odd}");
            let about = client.sandbox(&id).await;
            assert_eq!(
                (&about["provider"], &about["phase"]),
                (&json!("container"), &json!("running")),
                "{odd}"
            );
        }
        client.remove(&id).await;
        until("the container is removed", async || {
            docker_server::containers(&docker).is_empty().then_some(())
        })
        .await;
    });
}

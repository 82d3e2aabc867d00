//! Captures the changes of sandboxes as image layers, on a real kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Instant;

use crate::common::snapshot_helpers::{collected, files, folders, legacy, plain};
use crate::common::{World, in_world, target};
use atoll_agentapi::InitRequest;
use atoll_container::EngineConfig;
use atoll_model::Storage;
use atoll_provider::support::*;
use atoll_provider::{InstanceMount, InstanceSpec, MountSource, Provider, ProviderError};
use tokio::io::AsyncReadExt;

/// One entry: its kind, mode, owner, what it links to, and its content.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Told {
    kind: u8,
    mode: u32,
    owner: (u64, u64),
    link: String,
    content: Vec<u8>,
    records: BTreeMap<String, Vec<u8>>,
}

async fn capture(world: &World, spec: &InstanceSpec) -> Vec<u8> {
    collected(world.engine.capture(&files(spec), &spec.template, &spec.template_version).await.unwrap()).await
}

fn entries(layer: &[u8]) -> Vec<(String, Told)> {
    let mut archive = tar::Archive::new(layer);
    let mut all = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let link = entry.link_name_bytes().map(|link| String::from_utf8(link.into_owned()).unwrap());
        let header = entry.header().clone();
        let mut records = BTreeMap::new();
        if let Some(found) = entry.pax_extensions().unwrap() {
            for record in found {
                let record = record.unwrap();
                records.insert(record.key().unwrap().to_owned(), record.value_bytes().to_vec());
            }
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let told = Told {
            kind: header.entry_type().as_byte(),
            mode: header.mode().unwrap(),
            owner: (header.uid().unwrap(), header.gid().unwrap()),
            link: link.unwrap_or_default(),
            content,
            records,
        };
        all.push((path, told));
    }
    all
}

/// Greets the agent as the service does.
async fn greeted(world: &World, spec: &InstanceSpec) -> atoll_provider::Booted {
    let booted = world.create(spec).await;
    let request = InitRequest { hostname: Some(spec.hostname.clone()), ..InitRequest::default() };
    world.agent(spec, &booted).init(&request).await.unwrap();
    // The agent writes the line in /etc/hosts after its answer.
    world.said(spec, &booted, "while ! grep -q 127.0.1.1 /etc/hosts; do sleep 0.01; done").await;
    booted
}

fn idle(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let spec = world.spec();
        greeted(&world, &spec).await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let begun = Instant::now();
        let layer = capture(&world, &spec).await;
        eprintln!("capture without changes: {:?}", begun.elapsed());
        let told: Vec<String> = entries(&layer).into_iter().map(|(path, _)| path).collect();
        assert_eq!((told, layer.len()), (Vec::<String>::new(), 1_024));
        world.destroy(&spec).await;
        let gone = world.engine.capture(&files(&spec), &spec.template, &spec.template_version).await;
        assert!(matches!(gone.err(), Some(ProviderError::Gone { .. })));
        world
    });
}

#[test]
fn a_sandbox_that_did_nothing_gives_an_empty_layer() {
    idle(plain);
}

#[test]
fn a_sandbox_on_plain_folders_that_did_nothing_gives_an_empty_layer() {
    idle(folders);
}

const CHANGES: &str = "set -e
    echo new >/root/new; chown 7:8 /root/new; chmod 4755 /root/new; ln /root/new /root/again; ln -s /etc /root/link
    mkfifo /root/pipe; mkdir /root/folder; mkdir -m 700 /root/empty
    rm /etc/passwd; rm -r /home; mkdir /home; echo x >/home/x
    rm -r /var; echo file >/var
    mkdir -p /opt/a/b; mv /opt/a /opt/z
    echo 1.2.3.4 name >>/etc/hosts
    dd if=/dev/zero of=/root/sparse bs=1 count=1 seek=1000000 2>/dev/null
    chmod 1700 /srv 2>/dev/null || mkdir -m 1700 /srv
    echo hidden >/dev/shm/secret";

fn changes(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let spec = world.spec();
        let booted = greeted(&world, &spec).await;
        world.said(&spec, &booted, CHANGES).await;
        let live = world.engine.capture(&target(&spec), &spec.template, &spec.template_version).await;
        assert!(matches!(live.err(), Some(ProviderError::Unsupported { .. })));
        world.engine.halt(&target(&spec)).await.unwrap();
        let layer = capture(&world, &spec).await;
        assert!(layer == capture(&world, &spec).await, "the same layer again");
        let all = entries(&layer);
        let names: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
        eprintln!("{names:?}");
        let told: BTreeMap<&str, &Told> = all.iter().map(|(path, told)| (path.as_str(), told)).collect();
        assert_eq!(told.len(), all.len(), "each once");
        let new = told["root/again"];
        assert_eq!((new.kind, new.mode & 0o7777, new.owner), (b'0', 0o4755, (7, 8)));
        assert_eq!(new.content, b"new\n");
        assert_eq!((told["root/new"].kind, told["root/new"].link.as_str()), (b'1', "root/again"));
        assert_eq!((told["root/link"].kind, told["root/link"].link.as_str()), (b'2', "/etc"));
        assert_eq!(told["root/pipe"].kind, b'6');
        assert_eq!((told["root/empty/"].kind, told["root/empty/"].mode & 0o7777), (b'5', 0o700));
        assert!(told.contains_key("etc/") && told.contains_key("etc/.wh.passwd"));
        assert!(told.contains_key("home/") && told.contains_key("home/x"));
        assert!(told.contains_key("home/.wh..wh..opq"), "the old home is hidden");
        assert!(!told.contains_key("root/folder/.wh..wh..opq"), "no folder had to be hidden");
        assert_eq!((told["var"].kind, told["var"].content.as_slice()), (b'0', &b"file\n"[..]));
        assert!(told.contains_key("opt/z/b/") && !names.iter().any(|name| name.contains("opt/a")));
        assert_eq!(told["root/sparse"].content.len(), 1_000_001);
        let hosts = String::from_utf8(told["etc/hosts"].content.clone()).unwrap();
        assert!(hosts.contains("1.2.3.4 name") && !hosts.contains("127.0.1.1\tbox"), "{hosts}");
        for ours in ["dev", "proc", "sys", ".atoll"] {
            assert!(!names.iter().any(|name| name.starts_with(ours)), "{ours}: {names:?}");
        }
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn all_sorts_of_changes_are_told_in_the_words_of_images() {
    changes(plain);
}

#[test]
fn all_sorts_of_changes_are_told_on_plain_folders() {
    changes(folders);
}

#[test]
fn all_sorts_of_changes_are_told_by_the_paths_for_old_kernels() {
    changes(legacy);
}

#[test]
fn places_of_mounts_are_no_change() {
    in_world(plain, |world| async {
        let memory = |path: &str| InstanceMount {
            source: MountSource::Memory { size_mib: 1 },
            path: path.into(),
            read_only: false,
        };
        let mounts = vec![memory("/run/secrets"), memory("/a/b/c"), memory("/etc")];
        let mut spec = InstanceSpec { mounts, ..world.spec() };
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo s >/run/secrets/s; echo s >/a/b/c/s").await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let names = |layer: &[u8]| entries(layer).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(names(&capture(&world, &spec).await), Vec::<String>::new());
        // Files of another sandbox beside them are captured.
        spec.instance = common::instance_id();
        spec.mounts.clear();
        let booted = world.engine.boot(&spec).await.unwrap();
        world.said(&spec, &booted, "echo x >/a/x; chmod 700 /run/secrets").await;
        world.engine.halt(&target(&spec)).await.unwrap();
        assert_eq!(names(&capture(&world, &spec).await), ["a/", "a/x", "run/", "run/secrets/"]);
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn attributes_are_kept_and_a_name_that_means_a_removal_is_refused() {
    in_world(plain, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo x >/root/capable").await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let at = world.layer(&spec).join("upper/root");
        // cap_net_bind_service+ep, as files in images have it.
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let plain = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(at.join("capable"), "security.capability", &capability, plain).unwrap();
        rustix::fs::setxattr(at.join("capable"), "user.note", b"a\0b", plain).unwrap();
        rustix::fs::setxattr(at.join("capable"), "trusted.other", b"x", plain).unwrap();
        let all = entries(&capture(&world, &spec).await);
        let records = &all.iter().find(|(path, _)| path == "root/capable").unwrap().1.records;
        assert_eq!(records["SCHILY.xattr.security.capability"], capability);
        assert_eq!(records["SCHILY.xattr.user.note"], b"a\0b");
        assert!(!records.keys().any(|key| key.contains("trusted")), "{records:?}");
        std::fs::write(at.join(".wh.capable"), "").unwrap();
        let mut stream =
            world.engine.capture(&files(&spec), &spec.template, &spec.template_version).await.unwrap();
        let refused = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert!(refused.to_string().contains("/root/.wh.capable"), "{refused}");
        world.destroy(&spec).await;
        let memory = InstanceSpec { storage: Storage::Memory, ..world.spec() };
        world.create(&memory).await;
        let refused = world.engine.capture(&target(&memory), &spec.template, &spec.template_version).await;
        assert!(matches!(refused.err(), Some(ProviderError::Unsupported { .. })));
        world.destroy(&memory).await;
        world
    });
}

//! The catalog as its users see it: names, aliases, atomic adding, removal. Real templates, made on this machine.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use atoll_image::{Bounds, Catalog, Images, TemplateError, TemplateKind, default_cache_dir};
use atoll_model::ErrorKind;

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether this machine can make busybox: root, and the static program.
fn can_make_busybox(test: &str) -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/usr/bin/busybox").exists();
    if !can {
        eprintln!("NOT RUN: {test} needs root and the package busybox-static");
    }
    can
}

/// Writes a template as an earlier version did.
fn plant(dir: &Path, name: &str, aliases: &[&str]) {
    fs::create_dir_all(dir.join(name).join("rootfs")).unwrap();
    let manifest = serde_json::json!({
        "name": name, "kind": "rootfs", "digest": format!("digest-of-{name}"), "default_user": "user", "home": "/home/user",
        "workdir": "/home/user", "env": {"PATH": "/bin"}, "sudo": false, "start_command": null,
        "created_at": "2026-01-01T00:00:00Z", "aliases": aliases,
    });
    fs::write(dir.join(name).join("manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn a_template_is_found_by_its_name_and_by_its_aliases() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), "debian", &["base", "system/debian:bookworm"]);
    let catalog = Catalog::open(dir.path()).unwrap();
    for asked in ["debian", "base", "system/debian:bookworm"] {
        let template = catalog.get(asked).unwrap();
        assert_eq!((template.name.as_str(), template.kind), ("debian", TemplateKind::Rootfs));
        assert_eq!(template.layers, [dir.path().join("debian/rootfs")]);
        assert_eq!(template.usr_overlay, None);
    }
}

#[test]
fn an_unknown_template_is_not_found_and_near_names_are_offered() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), "debian", &["base"]);
    let error = Catalog::open(dir.path()).unwrap().get("debain").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.hint().unwrap(), "did you mean debian?");
}

#[test]
fn hostile_names_are_invalid_for_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path().join("templates")).unwrap();
    fs::create_dir(dir.path().join("x")).unwrap();
    for name in ["", "..", "../x", "a\0b", ".build-1-0", "/etc", &"n".repeat(300)] {
        for result in [catalog.get(name).map(drop), catalog.remove(name), catalog.pinned(name, "d").map(drop)]
        {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
        }
        let made = catalog.make(name, &mut |_| ControlFlow::Continue(()));
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
    }
    assert!(dir.path().join("x").is_dir());
}

#[test]
fn a_damaged_template_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), "good", &[]);
    fs::create_dir(dir.path().join("bad")).unwrap();
    fs::write(dir.path().join("bad/manifest.json"), "{").unwrap();
    fs::create_dir(dir.path().join("without-manifest")).unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let listed: Vec<String> = catalog.list().unwrap().iter().map(|template| template.name.clone()).collect();
    assert_eq!(listed, ["good"]);
    assert!(matches!(catalog.get("bad"), Err(TemplateError::BadManifest { .. })));
    assert!(matches!(catalog.get("without-manifest"), Err(TemplateError::NotFound { .. })));
}

#[test]
fn what_an_interrupted_make_left_is_gone_after_opening() {
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), "debian", &[]);
    for left in [".build-99999-0", ".trash-99999-1", "host/.build-99999-2"] {
        fs::create_dir_all(dir.path().join(left).join("rootfs/usr/bin")).unwrap();
    }
    Catalog::open(dir.path()).unwrap();
    assert_eq!(names(dir.path()), BTreeSet::from(["debian".to_owned(), "host".to_owned()]));
    assert_eq!(names(&dir.path().join("host")), BTreeSet::new());
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn busybox_is_made_once_used_and_removed() {
    if !can_make_busybox("busybox_is_made_once_used_and_removed") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let template = catalog.make_busybox().unwrap();
    let script = "id -u && ls / && cat /etc/passwd";
    let output =
        Command::new("chroot").arg(&template.layers[0]).args(["/bin/sh", "-c", script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("0\n") && text.contains("user:*:1000"), "{text}");
    assert!(!text.contains("/bin/bash"));

    assert!(matches!(catalog.make_busybox(), Err(TemplateError::Exists { .. })));
    assert_eq!(catalog.pinned("busybox", &template.digest).unwrap(), template);
    assert_eq!(catalog.pinned("busybox", "another").unwrap_err().kind(), ErrorKind::Conflict);
    catalog.remove("busybox").unwrap();
    assert_eq!(names(dir.path()), BTreeSet::new());
    assert_eq!(catalog.remove("busybox").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_name_that_is_anothers_alias_is_refused_and_nothing_is_left() {
    if !can_make_busybox("a_name_that_is_anothers_alias_is_refused_and_nothing_is_left") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    plant(dir.path(), "other", &["busybox"]);
    let error = Catalog::open(dir.path()).unwrap().make_busybox().unwrap_err();
    assert!(matches!(error, TemplateError::AliasTaken { ref owner, .. } if owner == "other"), "{error:?}");
    assert_eq!(names(dir.path()), BTreeSet::from(["other".to_owned()]));
}

#[test]
fn two_makers_at_once_leave_one_whole_template() {
    if !can_make_busybox("two_makers_at_once_leave_one_whole_template") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let made = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(|| catalog.make_busybox())).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).filter(Result::is_ok).count()
    });
    assert_eq!(made, 1);
    assert_eq!(names(dir.path()), BTreeSet::from(["busybox".to_owned()]));
}

/// Whether the Debian archive is cached on this machine, or making it was requested.
fn can_make_debian(test: &str) -> bool {
    let kept = fs::read_dir(default_cache_dir()).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".tar.zst.sha256"))
        })
    });
    let asked = std::env::var_os("ATOLL_TEST_MMDEBSTRAP").is_some_and(|value| value == "1");
    let can = rustix::process::geteuid().is_root() && (kept || asked);
    if !can {
        eprintln!(
            "NOT RUN: {test}: no archive in {}; set ATOLL_TEST_MMDEBSTRAP=1 to make one",
            default_cache_dir().display()
        );
    }
    can
}

#[test]
fn debian_has_python_git_node_and_a_user_who_may_become_root() {
    if !can_make_debian("debian_has_python_git_node_and_a_user_who_may_become_root") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut lines = Vec::new();
    let template = Catalog::open(dir.path())
        .unwrap()
        .make("debian", &mut |line| {
            lines.push(line.to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
    let rootfs = &template.layers[0];
    assert!(template.sudo && template.aliases.contains(&"base".to_owned()) && !lines.is_empty());
    for program in [
        "usr/bin/python3",
        "usr/bin/git",
        "usr/local/bin/node",
        "usr/local/bin/npm",
        "usr/bin/curl",
        "bin/bash",
    ] {
        assert!(rootfs.join(program).exists(), "{program}");
    }
    assert_eq!(fs::metadata(rootfs.join("usr/bin/sudo")).unwrap().mode() & 0o4777, 0o4755);
    let home = fs::metadata(rootfs.join("home/user")).unwrap();
    assert_eq!((home.uid(), home.gid()), (1000, 1000), "ids are canonical");
    assert_eq!(fs::metadata(rootfs.join("etc/sudoers.d/user")).unwrap().mode() & 0o777, 0o440);
    assert_eq!(fs::read(rootfs.join("etc/profile")).unwrap(), b"");
    assert_eq!(fs::read_to_string(rootfs.join("etc/resolv.conf")).unwrap(), "nameserver 169.254.0.1\n");
    let size = Command::new("du").arg("-sm").arg(rootfs).output().unwrap();
    let megabytes: u32 =
        String::from_utf8(size.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    // npm and esbuild, which users of the SDKs expect, are 120 of them.
    assert!(megabytes < 600, "{megabytes} MB");
}

#[test]
fn a_template_that_does_not_fit_is_refused_at_once_with_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let free = atoll_disk::free_bytes(dir.path()).unwrap();
    let disk = atoll_disk::Reserve::new(free.saturating_sub(1 << 30));
    let images = Images::open(dir.path().join("images"), Bounds { disk, ..Bounds::default() }).unwrap();
    let catalog = Catalog::open(dir.path().join("templates")).unwrap().with_images(images);
    let catalog = catalog.with_cache(dir.path().join("cache"));
    let mut said = Vec::new();
    let refused = catalog.make("code-interpreter", &mut |line| {
        said.push(line.to_owned());
        ControlFlow::Continue(())
    });
    let refused = refused.unwrap_err();
    assert!(matches!(refused, TemplateError::NoRoom { needed_mib: 3_200, .. }), "{refused:?}");
    assert!(refused.to_string().contains("takes 3200 MiB") && refused.hint().is_some(), "{refused}");
    assert!(said.is_empty(), "it had begun: {said:?}");
}

#[test]
fn a_cancelled_debian_leaves_nothing() {
    if !can_make_debian("a_cancelled_debian_leaves_nothing") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let result = catalog.make("debian", &mut |_| ControlFlow::Break(()));
    assert!(matches!(result, Err(TemplateError::Cancelled)), "{result:?}");
    assert_eq!(names(dir.path()), BTreeSet::new());
}

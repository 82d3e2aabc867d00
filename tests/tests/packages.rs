//! The packages of `make dist`, made of the binary under test: the same bytes each time, what is in them, and what they leave
//! behind. The long form uses them in a fresh Debian (`tests/packages`).
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "the long form reports its figures")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Value, world};

/// The parts that need no SDK of a vendor.
const PARTS: [&str; 4] = ["deb", "tar", "docker", "sbom"];

fn tree() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).parent().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that has to succeed and returns its output.
fn ok(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    assert!(done.status.success(), "{command:?}: {}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

fn script(name: &str) -> Command {
    Command::new(tree().join("scripts").join(name))
}

/// The packages, made once per process, in a folder that the process leaves behind for none.
struct Packages {
    folder: tempfile::TempDir,
    /// The time of the commit, read once: somebody may commit between two builds.
    epoch: String,
}

impl Packages {
    fn make() -> Self {
        let folder = tempfile::Builder::new().prefix("atoll-test-packages-").tempdir_in("/var/tmp").unwrap();
        let epoch = ok(Command::new("git").current_dir(tree()).args(["log", "-1", "--format=%ct"]));
        let packages = Self { folder, epoch: epoch.trim().to_owned() };
        // A debug build has 150 MB of names, which a release has not.
        ok(Command::new("strip").arg("-o").arg(packages.binary()).arg(world::program()));
        packages.build("dist", |_| ());
        packages
    }

    fn binary(&self) -> PathBuf {
        self.folder.path().join("atoll")
    }

    fn dist(&self) -> PathBuf {
        self.folder.path().join("dist")
    }

    fn build(&self, name: &str, change: impl FnOnce(&mut Command)) {
        let mut dist = script("dist");
        dist.arg("--fast").arg("--binary").arg(self.binary());
        dist.arg("--out").arg(self.folder.path().join(name)).args(PARTS);
        dist.env("SOURCE_DATE_EPOCH", &self.epoch);
        change(&mut dist);
        ok(&mut dist);
    }

    /// The only file whose name ends so.
    fn file(&self, ending: &str) -> PathBuf {
        let mut found: Vec<PathBuf> = std::fs::read_dir(self.dist())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().ends_with(ending))
            .collect();
        assert_eq!(found.len(), 1, "{ending}: {found:?}");
        found.remove(0)
    }

    /// The tarball, unpacked.
    fn unpacked(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        ok(Command::new("tar").arg("-xf").arg(self.file(".tar.gz")).arg("-C").arg(&folder));
        std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path()
    }
}

/// Every file and folder below a folder, by its path from there.
fn below(folder: &Path) -> BTreeSet<String> {
    let listed = ok(Command::new("find").arg(folder).args(["-mindepth", "1", "-printf", "%P\n"]));
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn packages_have_the_same_bytes_each_time_and_what_they_promise() {
    let packages = Packages::make();
    packages.build("again", |dist| {
        // Nothing of the environment gets in.
        dist.current_dir("/").env("TZ", "Asia/Tokyo").env("LC_ALL", "C.UTF-8").env("USER", "somebody");
    });
    let sums =
        |name: &str| std::fs::read_to_string(packages.folder.path().join(name).join("SHA256SUMS")).unwrap();
    assert_eq!(sums("dist"), sums("again"), "two builds of one commit differ");
    assert_eq!(sums("dist").lines().count(), PARTS.len(), "{}", sums("dist"));
    the_deb_has_what_a_service_needs(&packages);
    the_sbom_names_what_is_inside(&packages);
    an_install_into_a_prefix_is_undone(&packages);
    the_publisher_does_nothing_unasked(&packages);
}

fn the_deb_has_what_a_service_needs(packages: &Packages) {
    let deb = packages.file(".deb");
    let listed = ok(Command::new("dpkg-deb").arg("--contents").arg(&deb));
    for line in listed.lines() {
        assert!(line.contains(" root/root "), "{line}");
        // Nothing that people other than root may change, and no program with the rights of its owner.
        assert!(line.starts_with('l') || line.as_bytes()[8] == b'-', "writable for others: {line}");
        assert!(!line[..10].contains('s'), "{line}");
    }
    let paths: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(" ./").nth(1)).collect();
    for wanted in [
        "usr/bin/atoll",
        "usr/lib/atoll/criu/criu",
        "usr/lib/systemd/system/atoll.service",
        "etc/atoll/config.toml",
        "usr/share/man/man1/atoll.1.gz",
        "usr/share/man/man1/atoll-server-uninstall.1.gz",
        "usr/share/bash-completion/completions/atoll",
        "usr/share/zsh/vendor-completions/_atoll",
        "usr/share/fish/vendor_completions.d/atoll.fish",
        "usr/share/doc/atoll/copyright",
        "usr/share/doc/atoll/criu/criu.copyright",
    ] {
        assert!(paths.contains(wanted), "{wanted} is not in the package");
    }
    let field =
        |name: &str| ok(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name)).trim().to_owned();
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    let depends = field("Depends");
    for package in ["libc6 (>= 2.", "nftables", "btrfs-progs", "iproute2"] {
        assert!(depends.contains(package), "{depends}");
    }
    assert!(field("Recommends").contains("mmdebstrap"));
    let control = packages.folder.path().join("control");
    ok(Command::new("dpkg-deb").arg("--control").arg(&deb).arg(&control));
    assert_eq!(std::fs::read_to_string(control.join("conffiles")).unwrap(), "/etc/atoll/config.toml\n");
    for name in ["postinst", "prerm", "postrm"] {
        ok(Command::new("sh").arg("-n").arg(control.join(name)));
    }
}

fn the_sbom_names_what_is_inside(packages: &Packages) {
    let bom: Value = serde_json::from_slice(&std::fs::read(packages.file(".cdx.json")).unwrap()).unwrap();
    assert_eq!((bom["bomFormat"].as_str(), bom["specVersion"].as_str()), (Some("CycloneDX"), Some("1.6")));
    let components = bom["components"].as_array().unwrap();
    let by_ref: BTreeMap<&str, &Value> =
        components.iter().map(|one| (one["bom-ref"].as_str().unwrap(), one)).collect();
    assert_eq!(by_ref.len(), components.len(), "each component once");
    for wanted in [
        "pkg:cargo/tokio@",
        "pkg:cargo/rusqlite@",
        "pkg:npm/svelte@",
        "pkg:pypi/httpx@",
        "pkg:deb/debian/criu@",
    ] {
        assert!(by_ref.keys().any(|name| name.starts_with(wanted)), "{wanted} is missing");
    }
    assert!(!by_ref.keys().any(|name| name.starts_with("pkg:cargo/insta@")), "a crate of tests alone");
    let tokio = components.iter().find(|one| one["name"] == "tokio").unwrap();
    assert_eq!(tokio["hashes"][0]["content"].as_str().unwrap().len(), 64, "{tokio}");
    for edge in bom["dependencies"].as_array().unwrap() {
        for end in edge["dependsOn"].as_array().unwrap() {
            assert!(by_ref.contains_key(end.as_str().unwrap()), "an edge to {end}, which is not listed");
        }
    }
}

fn an_install_into_a_prefix_is_undone(packages: &Packages) {
    let installer = packages.unpacked("unpacked").join("install.sh");
    let prefix = packages.folder.path().join("prefix");
    std::fs::create_dir_all(prefix.join("share/doc/other")).unwrap();
    std::fs::create_dir_all(packages.folder.path().join("home")).unwrap();
    let run = |words: &[&str]| -> Output {
        Command::new(&installer)
            .arg("--prefix")
            .arg(&prefix)
            .args(words)
            // So that no server of this machine is meant.
            .env("HOME", packages.folder.path().join("home"))
            .output()
            .unwrap()
    };
    let first = run(&[]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    // An upgrade: a file that only the earlier version had is removed.
    std::fs::write(prefix.join("share/doc/atoll/old"), "").unwrap();
    let list = prefix.join("lib/atoll/installed-files");
    let known = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, format!("{known}share/doc/atoll/old\n")).unwrap();
    let second = run(&[]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(!prefix.join("share/doc/atoll/old").exists());
    let version = ok(Command::new(prefix.join("bin/atoll")).arg("--version"));
    assert_eq!(version.trim(), concat!("atoll ", env!("CARGO_PKG_VERSION")));
    let doctor: Value = serde_json::from_slice(
        &Command::new(prefix.join("bin/atoll")).args(["doctor", "--json"]).output().unwrap().stdout,
    )
    .unwrap();
    let criu = doctor["checks"].as_array().unwrap().iter().find(|check| check["name"] == "CRIU").unwrap();
    let own = prefix.join("lib/atoll/criu/criu");
    assert!(criu["found"].as_str().unwrap().ends_with(own.to_str().unwrap()), "{criu}");
    let removed = run(&["--uninstall"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    let files: Vec<String> = below(&prefix).into_iter().filter(|path| !prefix.join(path).is_dir()).collect();
    assert_eq!(files, Vec::<String>::new(), "files after an uninstall");
    assert!(prefix.join("share/doc/other").exists(), "a folder of somebody else");
    let nothing = run(&["--uninstall"]);
    assert!(!nothing.status.success() && text(&nothing.stderr).contains("nothing was installed"));
    let of_packages = Command::new(&installer).args(["--prefix", "/usr"]).output().unwrap();
    assert!(!of_packages.status.success(), "/usr belongs to packages");
}

/// Stands in for the programs that publish: notes its name and arguments.
const RECORDER: &str = "#!/bin/sh\necho \"${0##*/} $*\" >> \"${0%/*}/calls\"\n";

fn the_publisher_does_nothing_unasked(packages: &Packages) {
    let bin = packages.folder.path().join("recorders");
    std::fs::create_dir(&bin).unwrap();
    for name in ["curl", "npm", "docker", "python3"] {
        std::fs::write(bin.join(name), RECORDER).unwrap();
        std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let publish = |variables: &[(&str, &str)]| -> Output {
        let mut publish = script("publish");
        publish.arg(packages.dist()).env("PATH", &path).envs(variables.iter().copied());
        publish.output().unwrap()
    };
    let calls = || std::fs::read_to_string(bin.join("calls")).unwrap_or_default();
    let nowhere = publish(&[]);
    assert!(nowhere.status.success(), "{}", text(&nowhere.stderr));
    assert!(text(&nowhere.stderr).contains("left out: the files (ATOLL_PUBLISH_FILES is not set)"));
    let somewhere = [
        ("ATOLL_PUBLISH_FILES", "http://127.0.0.1:9/releases"),
        ("ATOLL_PUBLISH_TOKEN", "not-for-the-log"),
        ("ATOLL_PUBLISH_IMAGE", "127.0.0.1:9/atoll"),
    ];
    let shown = publish(&somewhere);
    let plan = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(plan.contains("docker push 127.0.0.1:9/atoll:") && !plan.contains("not-for-the-log"), "{plan}");
    let last = plan.lines().last().unwrap();
    assert!(last.ends_with("/SHA256SUMS"), "the sums announce a whole release: {last}");
    assert_eq!(calls(), "", "a dry run ran something");
    // A file that was changed after it was made is not published.
    let dockerfile = packages.dist().join("Dockerfile");
    let before = std::fs::read(&dockerfile).unwrap();
    std::fs::write(&dockerfile, "FROM elsewhere\n").unwrap();
    let refused = publish(&somewhere);
    std::fs::write(&dockerfile, before).unwrap();
    assert!(!refused.status.success() && text(&refused.stderr).contains("SHA256SUMS"));
}

/// Installs both packages in a fresh Debian, in namespaces of its own, and removes them again. It takes minutes on a busy machine.
#[test]
#[ignore = "make nightly"]
fn nightly_both_packages_work_in_a_fresh_debian_and_leave_nothing() {
    let packages = Packages::make();
    let given = packages.folder.path().join("given");
    std::fs::create_dir(&given).unwrap();
    for file in [packages.file(".deb"), packages.file(".tar.gz")] {
        std::fs::copy(&file, given.join(file.file_name().unwrap())).unwrap();
    }
    let here = tree().join("tests/packages");
    let said =
        ok(Command::new(here.join("in-debian")).arg(packages.folder.path()).arg(here.join("first-use")));
    eprintln!("{said}");
    assert!(said.ends_with("first-use: purged\n"), "{said}");
}

/// The runner of tests ends a test with a signal and waits 10 s. A frozen process cannot die on control groups v1.
#[test]
#[ignore = "make nightly"]
fn nightly_a_fresh_debian_with_frozen_processes_ends_at_a_signal_and_leaves_nothing() {
    let folder = tempfile::Builder::new().prefix("atoll-test-packages-").tempdir_in("/var/tmp").unwrap();
    let here = tree().join("tests/packages");
    let mut run = Command::new(here.join("in-debian"));
    run.arg(folder.path()).arg(here.join("freezing")).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "freezing: ready\n");
    let name = format!("atoll-packages-{}", run.id());
    let groups = || ok(Command::new("find").args(["/sys/fs/cgroup", "-name", &name]));
    assert_ne!(groups(), "");
    ok(Command::new("kill").arg(run.id().to_string()));
    let begun = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(groups(), "");
}

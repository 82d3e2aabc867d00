//! What ends with an instance, what outlives the server, what is visible inside, and what is refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_local::CgroupUse;
use atoll_model::policy::egress::Egress;
use atoll_model::{ErrorKind, SnapshotId};
use atoll_provider::{
    AGENT_PORT, AdoptionOutcome, Capability, FilesOrigin, InstanceMount, InstanceSpec, KnownSandbox,
    MountSource, ProviderError, Target,
};

use crate::{agent, fixture, open, remove_cgroups, sh, target};

fn known(spec: &InstanceSpec, facts: serde_json::Value) -> KnownSandbox {
    KnownSandbox {
        sandbox: spec.sandbox.clone(),
        instance: Some((spec.instance.clone(), facts)),
        storage: spec.storage,
        limits: spec.limits,
        network: Arc::clone(&spec.network),
        paused: false,
    }
}

fn is_alive(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Starts a process that leaves its parent, its session and, with `env -i`, its environment.
const DAEMON: &str = "rm -f pid; setsid sh -c 'env -i /bin/sh -c \"echo \\$\\$ >pid; exec sleep 600\" &' \
    >/dev/null 2>&1 </dev/null; while ! [ -s pid ]; do sleep 0.01; done; cat pid";
/// As above, with its environment.
const MARKED_DAEMON: &str = "rm -f pid; setsid sh -c 'sh -c \"echo \\$\\$ >pid; exec sleep 600\" &' \
    >/dev/null 2>&1 </dev/null; while ! [ -s pid ]; do sleep 0.01; done; cat pid";

async fn daemons_end(cgroups: CgroupUse) {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "ours", cgroups).await;
    let spec = fixture(&provider).spec();
    let booted = provider.create(&spec).await.unwrap();
    let client = agent(&provider, &target(&spec), booted.agent_token.as_deref().unwrap());
    let daemon = sh(&client, DAEMON).await;
    assert!(is_alive(&daemon));
    provider.halt(&target(&spec)).await.unwrap();
    assert!(!is_alive(&daemon), "a halt ends a daemon");

    let next = InstanceSpec { instance: fixture(&provider).spec().instance, ..spec.clone() };
    let booted = provider.boot(&next).await.unwrap();
    let client = agent(&provider, &target(&next), booted.agent_token.as_deref().unwrap());
    let daemon = sh(&client, MARKED_DAEMON).await;
    // A crash of the agent ends the rest too.
    let pid = booted.facts["pid"].as_i64().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    for _ in 0..500 {
        if !is_alive(&daemon) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!is_alive(&daemon), "a daemon ends with its agent");
    provider.destroy(&target(&next)).await.unwrap();
    provider.settle(Duration::from_secs(30)).await.unwrap();
    assert!(!folder.path().join("local").join(spec.sandbox.as_str()).exists());
    drop((provider, client));
    remove_cgroups(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_end_with_their_instance_by_control_group() {
    daemons_end(CgroupUse::WhereAvailable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_end_with_their_instance_by_their_tree() {
    daemons_end(CgroupUse::Never).await;
}

/// A program with root can make control groups of its own below that of its instance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_control_groups_end_with_their_instance() {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "ours", CgroupUse::WhereAvailable).await;
    if !provider.capabilities().pauses {
        return;
    }
    for pause_first in [false, true] {
        let spec = fixture(&provider).spec();
        let booted = provider.create(&spec).await.unwrap();
        let client = agent(&provider, &target(&spec), booted.agent_token.as_deref().unwrap());
        let nested = "group=$(for g in /sys/fs/cgroup/pids /sys/fs/cgroup; do \
            find $g -maxdepth 4 -type d -name INSTANCE 2>/dev/null; done | head -1); \
            mkdir -p $group/a/b; sleep 600 >/dev/null 2>&1 </dev/null & \
            echo $! >$group/a/b/cgroup.procs && echo $group/a/b $!";
        let nested = nested.replace("INSTANCE", spec.instance.as_str());
        let made = sh(&client, &nested).await;
        let (group, pid) = made.split_once(' ').expect("the group and the process in it");
        assert!(Path::new(group).is_dir() && is_alive(pid), "{made}");
        if pause_first {
            provider.pause(&target(&spec)).await.unwrap();
        }
        provider.destroy(&target(&spec)).await.unwrap();
        provider.settle(Duration::from_secs(30)).await.unwrap();
        assert!(!is_alive(pid) && !Path::new(group).exists(), "a nested group is left: {made}");
        assert!(!folder_of(folder.path(), &spec).exists());
    }
    drop(provider);
    remove_cgroups(folder.path());
}

fn folder_of(folder: &Path, spec: &InstanceSpec) -> std::path::PathBuf {
    folder.join("local").join(spec.sandbox.as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_adopted_and_those_of_another_owner_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let ours = open(folder.path(), "ours", CgroupUse::Never).await;
    let theirs = open(folder.path(), "theirs", CgroupUse::Never).await;
    let (spec, stray, foreign) = (fixture(&ours).spec(), fixture(&ours).spec(), fixture(&ours).spec());
    let booted = ours.create(&spec).await.unwrap();
    let lost = ours.create(&stray).await.unwrap();
    theirs.create(&foreign).await.unwrap();

    // As after `kill -9` of the server: another object, which knows only what the store and the folders say.
    drop(ours);
    let ours = open(folder.path(), "ours", CgroupUse::Never).await;
    let adopted = ours.adopt(vec![known(&spec, booted.facts.clone())], Vec::new()).await.unwrap();
    assert_eq!(adopted[0].fate, AdoptionOutcome::Alive);
    let client = agent(&ours, &target(&spec), booted.agent_token.as_deref().unwrap());
    assert_eq!(sh(&client, "echo still here").await, "still here");
    assert!(!is_alive(&lost.facts["pid"].to_string()), "an agent that no lease knows is ended");
    assert!(!folder_of(folder.path(), &stray).exists());
    ours.destroy(&target(&foreign)).await.unwrap();
    assert!(theirs.dial(&target(&foreign), AGENT_PORT).await.is_ok(), "a destroy reached another owner");
    assert_eq!(ours.owned().await.unwrap().len(), 1);

    ours.destroy(&target(&spec)).await.unwrap();
    theirs.destroy(&target(&foreign)).await.unwrap();
    ours.settle(Duration::from_secs(30)).await.unwrap();
    theirs.settle(Duration::from_secs(30)).await.unwrap();
    assert!(!folder_of(folder.path(), &spec).exists() && !folder_of(folder.path(), &foreign).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_see_their_workspace_and_nothing_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "ours", CgroupUse::Never).await;
    let spec = fixture(&provider).spec();
    let booted = provider.create(&spec).await.unwrap();
    let token = booted.agent_token.as_deref().unwrap();
    let client = agent(&provider, &target(&spec), token);
    let own = folder_of(folder.path(), &spec).canonicalize().unwrap();
    let workspace = own.join("workspace").display().to_string();
    assert_eq!(sh(&client, "pwd; echo $HOME").await, format!("{workspace}\n{workspace}"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&own).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    client.write_bytes("note", None, None, b"here".to_vec()).await.unwrap();
    assert_eq!(std::fs::read(own.join("workspace/note")).unwrap(), b"here");

    let mut names: Vec<String> =
        sh(&client, "env -0 | tr '\\0' '\\n' | cut -d= -f1").await.lines().map(str::to_owned).collect();
    names.retain(|name| !["_", "PWD", "OLDPWD", "SHLVL"].contains(&name.as_str()));
    names.sort();
    let expected =
        ["ATOLL_AGENT_SOCKET", "ATOLL_INSTANCE", "HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER"];
    assert_eq!(names, expected, "only these are visible");
    let pid = booted.facts["pid"].to_string();
    for file in ["cmdline", "environ"] {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&text).contains(token), "the token is in {file}");
    }
    let listening = sh(&client, &format!("ls -l /proc/{pid}/fd | grep -c socket")).await;
    assert_ne!(listening, "0", "the agent listens");
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert!(score.trim().parse::<i32>().unwrap() >= 0, "it is an ordinary process for the OOM killer");
    assert_eq!(sh(&client, "atoll-hold 5s").await, "held for 5 s");

    let refused = client.read_file("/etc/hostname", Some("nobody"), None).await.err().unwrap();
    assert!(refused.to_string().contains("no isolation"), "{refused}");
    provider.destroy(&target(&spec)).await.unwrap();
    provider.settle(Duration::from_secs(30)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_enforced_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "ours", CgroupUse::Never).await;
    let spec = fixture(&provider).spec();
    let mount = InstanceMount {
        source: MountSource::Memory { size_mib: 1 },
        path: "/volume".to_owned(),
        read_only: false,
    };
    let snapshot = SnapshotId::from_entropy([3; 20]);
    let origin = FilesOrigin::Snapshot { snapshot, seal: String::new(), memory: false };
    let bad = [
        (InstanceSpec { network: Arc::new(Egress::closed()), ..spec.clone() }, Capability::Egress),
        (InstanceSpec { mounts: vec![mount], ..spec.clone() }, Capability::Volume),
        (InstanceSpec { origin, ..spec.clone() }, Capability::Snapshot),
    ];
    for (spec, wanted) in bad {
        let refused = provider.create(&spec).await.err().unwrap();
        let is_named =
            matches!(&refused, ProviderError::MissingCapability { capability, .. } if *capability == wanted);
        assert!(is_named && refused.kind() == ErrorKind::Unsupported, "{wanted}: {refused}");
    }
    assert_eq!(provider.owned().await.unwrap(), []);
    provider.create(&spec).await.unwrap();
    let own_port = provider.dial(&target(&spec), 7).await.err().unwrap();
    assert!(matches!(own_port, ProviderError::Unsupported { .. }), "{own_port}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(provider.dial(&target(&spec), port).await.is_ok(), "ports are those of the machine");
    let files = Target { instance: None, ..target(&spec) };
    provider.destroy(&files).await.unwrap();
    provider.settle(Duration::from_secs(30)).await.unwrap();
}

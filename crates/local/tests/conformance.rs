//! The conformance suite, with control groups and without.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_local::CgroupUse;
use atoll_provider::conformance::{self, AgentAccess, Fixture, InstanceAccess, Live};

use crate::{fixture, open, remove_cgroups};

/// Cases use files in `/tmp`. Here that is the temporary folder of the sandbox: the machine has only one `/tmp`.
struct InTemporaryFolder;

fn in_folder(live: &Live<'_>, path: &str) -> String {
    path.replacen("/tmp", &atoll_agentapi::host_temporary_folder(live.target.sandbox.as_str()), 1)
}

#[async_trait]
impl InstanceAccess for InTemporaryFolder {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        AgentAccess.write(live, &in_folder(live, path), content).await;
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        AgentAccess.read(live, &in_folder(live, path)).await
    }

    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool {
        AgentAccess.may_write(live, &in_folder(live, path)).await
    }

    async fn hold_memory(&self, live: &Live<'_>, text: &str) {
        AgentAccess.hold_memory(live, text).await;
    }

    async fn memory(&self, live: &Live<'_>) -> Option<String> {
        AgentAccess.memory(live).await
    }

    async fn kill(&self, live: &Live<'_>) {
        AgentAccess.kill(live).await;
    }
}

/// The processes of this machine whose environment names an instance below this folder.
fn processes_of(folder: &Path) -> BTreeMap<i32, String> {
    let socket = format!("ATOLL_AGENT_SOCKET={}", folder.canonicalize().unwrap().display());
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&socket) {
            let program = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.insert(pid, program);
        }
    }
    found
}

async fn suite(cgroups: CgroupUse) -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let provider = open(folder.path(), "conformance", cgroups).await;
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers.md");
    conformance::check_capability_table(&document, "local", &provider.capabilities(), true);
    let mut ran = Vec::new();
    for case in conformance::all() {
        let fixture = Fixture { inside: Arc::new(InTemporaryFolder), ..fixture(&provider) };
        if case.run(fixture).await {
            ran.push(case.name);
        }
        provider.settle(std::time::Duration::from_secs(30)).await.unwrap();
        let left = processes_of(folder.path());
        assert!(left.is_empty(), "{} left processes: {left:?}", case.name);
        let names = std::fs::read_dir(folder.path().join("local")).unwrap().flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).filter(|name| name != ".cgroup").collect();
        assert!(names.is_empty(), "{} left {names:?}", case.name);
    }
    drop(provider);
    remove_cgroups(folder.path());
    ran
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_control_groups() {
    let ran = suite(CgroupUse::WhereAvailable).await;
    for wanted in ["pauses::", "basics::limits_change", "sizes::a_limit_below_use"] {
        assert!(ran.iter().any(|case| case.starts_with(wanted)), "{wanted} did not run: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_without_control_groups() {
    let ran = suite(CgroupUse::Never).await;
    assert!(ran.len() >= 13, "{ran:?}");
    assert!(!ran.iter().any(|case| case.starts_with("pauses::")), "{ran:?}");
}

//! The provider conformance suite with this provider, found through the registry of the service: cold, from the pool, and with the code for old kernels.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{World, in_world};
use async_trait::async_trait;
use atoll_agentapi::{AgentClient, AgentToken, StartProcess};
use atoll_container::EngineConfig;
use atoll_provider::Provider;
use atoll_provider::conformance::{self, Fixture, InstanceAccess, Live};
use atoll_service::ProviderRegistry;

struct OverTheAgent;

fn agent(live: &Live<'_>) -> AgentClient {
    let (provider, target) = (Arc::downgrade(live.provider), live.target.clone());
    let connect = move || {
        let (provider, target) = (provider.clone(), target.clone());
        async move {
            let provider = provider.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
            provider.dial(&target, atoll_provider::AGENT_PORT).await.map_err(std::io::Error::other)
        }
    };
    AgentClient::new(connect, &AgentToken::new(live.token.as_str()))
}

/// A shell that keeps the text in a variable and in no file. A fifo that is opened in both directions never blocks, and
/// data written to a fifo that no other process has open is lost.
const HOLD: &str = r#"
[ -p /tmp/ask ] && echo quit 1<>/tmp/ask
rm -f /tmp/ask; mkfifo /tmp/ask
setsid sh -c '
    exec 3<>/tmp/ask
    echo $$ >/tmp/holder
    held=$(cat /tmp/value); rm /tmp/value
    while read -r answer <&3; do
        [ "$answer" = quit ] && exit
        printf %s "$held" >"$answer.new"; mv "$answer.new" "$answer"
    done' </dev/null >/dev/null 2>&1 &
while [ -e /tmp/value ]; do sleep 0.01; done
"#;
const ASK: &str = r#"
[ -p /tmp/ask ] || exit 1
rm -f /tmp/answer; echo /tmp/answer 1<>/tmp/ask
for _ in $(seq 2000); do
    [ -e /tmp/answer ] && exec cat /tmp/answer
    [ "$(readlink "/proc/$(cat /tmp/holder)/fd/3")" = /tmp/ask ] || exit 1
    sleep 0.01
done
exit 1
"#;

/// Runs a shell command as root in the sandbox; returns its output if it succeeded.
async fn sh(live: &Live<'_>, line: &str) -> Option<String> {
    let what = StartProcess {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), line.into()],
        user: Some("root".into()),
        cwd: "/".into(),
        timeout: Some(Duration::from_secs(30)),
        ..StartProcess::default()
    };
    let output = agent(live).run(what, 1 << 20).await.unwrap();
    (output.status.shell_code() == 0).then(|| String::from_utf8(output.stdout.to_vec()).unwrap())
}

#[async_trait]
impl InstanceAccess for OverTheAgent {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        agent(live).write_bytes(path, Some("root"), None, content.to_vec()).await.unwrap();
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        let file = agent(live).read_file(path, Some("root"), None).await.ok()?;
        Some(file.read_to_end(4 << 20).await.unwrap())
    }

    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool {
        agent(live).write_bytes(path, Some("root"), None, b"x".to_vec()).await.is_ok()
    }

    async fn hold_memory(&self, live: &Live<'_>, text: &str) {
        self.write(live, "/tmp/value", text.as_bytes()).await;
        sh(live, HOLD).await.expect("a process that holds it");
    }

    async fn memory(&self, live: &Live<'_>) -> Option<String> {
        sh(live, ASK).await
    }

    async fn kill(&self, live: &Live<'_>) {
        let pid = World::pid(&live.booted).to_string();
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        // A killed process still has to leave its namespaces.
        while std::path::Path::new("/proc").join(&pid).exists() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

fn conform(adjust: impl FnOnce(&mut EngineConfig) + Send + 'static) {
    in_world(adjust, |world| async {
        let version = world.catalog.get("busybox").unwrap().digest.clone();
        // ATOLL_CASE selects cases by a part of their name, for debugging.
        let wanted = std::env::var("ATOLL_CASE").unwrap_or_default();
        let engine = Arc::clone(&world.engine) as Arc<dyn Provider>;
        let registry = ProviderRegistry::new(engine);
        for case in conformance::all().into_iter().filter(|case| case.name.contains(&wanted)) {
            eprintln!("case {}", case.name);
            let fixture = Fixture {
                provider: Arc::clone(registry.named("container").unwrap()),
                template: "busybox".into(),
                template_version: version.clone(),
                inside: Arc::new(OverTheAgent),
            };
            case.run(fixture).await;
        }
        world
    });
}

#[test]
fn the_engine_conforms_cold() {
    conform(|_| {});
}

#[test]
fn the_engine_conforms_with_a_pool() {
    conform(|config| config.pool = [("busybox".to_owned(), 4)].into());
}

#[test]
fn the_engine_conforms_by_the_paths_for_old_kernels() {
    conform(|config| config.legacy = Some(true));
}

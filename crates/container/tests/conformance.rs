//! What every provider must do, done by this one: cold, from the pool, and by the paths for old kernels.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use atoll_agentapi::{AgentClient, AgentToken};
use atoll_container::Config;
use atoll_provider::Provider;
use atoll_provider::conformance::{self, Fixture, Inside, Live};
use common::{World, in_world};

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
    AgentClient::new(connect, &AgentToken::new(live.booted.agent_token.as_str()))
}

#[async_trait]
impl Inside for OverTheAgent {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        agent(live).write_bytes(path, Some("root"), None, content.to_vec()).await.unwrap();
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        let file = agent(live).read_file(path, Some("root"), None).await.ok()?;
        Some(file.read_to_end(1 << 20).await.unwrap())
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

fn conform(adjust: impl FnOnce(&mut Config) + Send + 'static) {
    in_world(adjust, |world| async {
        let version = world.catalog.get("busybox").unwrap().digest.clone();
        for (name, case) in conformance::all() {
            eprintln!("case {name}");
            let provider = Arc::clone(&world.engine) as Arc<dyn Provider>;
            let fixture = Fixture {
                provider,
                template: "busybox".into(),
                template_version: version.clone(),
                inside: Arc::new(OverTheAgent),
            };
            case(fixture).await;
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

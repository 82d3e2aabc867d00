//! The provider `local` with real agents.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod conformance;
mod lifecycle;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use atoll_agentapi::{AgentClient, AgentToken, StartProcess};
use atoll_local::{CgroupUse, LocalConfig, LocalProvider};
use atoll_provider::conformance::{AgentAccess, Fixture};
use atoll_provider::{AGENT_PORT, InstanceSpec, Provider, Target};

/// A provider as it is after a start of the server `owner`.
async fn open(folder: &Path, owner: &str, cgroups: CgroupUse) -> Arc<dyn Provider> {
    let config = LocalConfig {
        name: "local",
        owner: owner.to_owned(),
        agent: atoll_container::install_agent(folder, None).unwrap(),
        data: folder.join("local"),
        environment: BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]),
        refused_ports: vec![7],
        cgroups,
    };
    Arc::new(LocalProvider::open(config).await.unwrap())
}

fn fixture(provider: &Arc<dyn Provider>) -> Fixture {
    let (template, template_version) = ("local".to_owned(), "local".to_owned());
    Fixture { provider: Arc::clone(provider), template, template_version, inside: Arc::new(AgentAccess) }
}

fn target(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) }
}

fn agent(provider: &Arc<dyn Provider>, target: &Target, token: &str) -> AgentClient {
    let (provider, target) = (Arc::downgrade(provider), target.clone());
    let connect = move || {
        let (provider, target) = (provider.clone(), target.clone());
        async move {
            let provider = provider.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
            provider.dial(&target, AGENT_PORT).await.map_err(std::io::Error::other)
        }
    };
    AgentClient::new(connect, &AgentToken::new(token))
}

/// Runs a shell command as the default user, in the default folder; returns its output.
async fn sh(agent: &AgentClient, line: &str) -> String {
    let what = StartProcess {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), line.into()],
        ..StartProcess::default()
    };
    let output = agent.run(what, 1 << 20).await.unwrap();
    assert_eq!(output.status.shell_code(), 0, "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.to_vec()).unwrap().trim().to_owned()
}

/// Removes the control group that a provider made in this folder.
fn remove_cgroups(folder: &Path) {
    atoll_local::remove_cgroups(&folder.join("local")).unwrap();
}

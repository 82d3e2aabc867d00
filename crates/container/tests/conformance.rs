//! The provider conformance suite with this provider, found through the registry of the service: cold, from the pool, and with the code for old kernels.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::Arc;

use crate::common::in_world;
use atoll_container::EngineConfig;
use atoll_provider::Provider;
use atoll_provider::conformance::{self, AgentAccess, Fixture};
use atoll_service::ProviderRegistry;

fn conform(adjust: impl FnOnce(&mut EngineConfig) + Send + 'static) {
    in_world(adjust, |world| async {
        let version = world.catalog.get("busybox").unwrap().digest.clone();
        // ATOLL_CASE selects cases by a part of their name, for debugging.
        let wanted = std::env::var("ATOLL_CASE").unwrap_or_default();
        let engine = Arc::clone(&world.engine) as Arc<dyn Provider>;
        let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers.md");
        conformance::check_capability_table(&document, "container", &engine.capabilities(), true);
        let registry = ProviderRegistry::new(engine);
        for case in conformance::all().into_iter().filter(|case| case.name.contains(&wanted)) {
            eprintln!("case {}", case.name);
            let fixture = Fixture {
                provider: registry.named("container").unwrap(),
                template: "busybox".into(),
                template_version: version.clone(),
                inside: Arc::new(AgentAccess),
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

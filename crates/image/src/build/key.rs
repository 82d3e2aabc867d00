//! The cache key of a step: an equal key means equal files.

use atoll_model::TenantId;
use sha2::{Digest as _, Sha256};

use super::step::{BuildStep, Copy, CopyFrom, Run, StepKind};

/// Changed when the same instruction gets another meaning.
const GENERATION: &[u8] = b"atoll-build-1";

/// The key of a step on top of the files of a version. `content` covers everything that the step takes from elsewhere:
/// the hash from [`super::Context::hash_of`], and the versions of stages and templates that it copies from. Secrets
/// count only by their id. The tenant is part of the key, so tenants never share entries.
pub fn cache_key(files: &str, step: &BuildStep, content: &str, tenant: &TenantId) -> String {
    let mut key = CacheKeyBuilder(Sha256::new());
    key.put(GENERATION);
    key.text(tenant.as_str());
    key.text(files);
    key.text(content);
    match &step.kind {
        StepKind::Run(run) => key.run(run),
        StepKind::Copy(copy) => key.copy(copy),
        StepKind::Workdir(path) => {
            key.text("workdir");
            key.text(path);
        }
        StepKind::Config => {
            key.text("config");
            key.text(&step.text);
        }
    }
    hex::encode(key.0.finalize())
}

/// Adds every part with its length in front, so that different lists of parts never give the same bytes.
struct CacheKeyBuilder(Sha256);

impl CacheKeyBuilder {
    fn put(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.put(text.as_bytes());
    }

    fn list<'a>(&mut self, items: impl ExactSizeIterator<Item = &'a String>) {
        self.put(&(items.len() as u64).to_be_bytes());
        items.for_each(|item| self.text(item));
    }

    fn run(&mut self, run: &Run) {
        self.text("run");
        self.list(run.argv.iter());
        self.put(run.stdin.as_deref().unwrap_or_default());
        self.put(run.script.as_ref().map(|script| &script.content[..]).unwrap_or_default());
        let env: Vec<String> = run
            .env
            .iter()
            .filter(|(name, _)| !run.unkeyed.contains(name))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.list(env.iter());
        self.text(&run.user);
        self.text(&run.workdir);
        self.text(if run.network { "network" } else { "no network" });
        for secret in &run.secrets {
            self.text("secret");
            self.text(&format!("{secret:?}"));
        }
        for scratch in &run.scratch {
            self.text("scratch");
            self.text(&scratch.target);
        }
        run.binds.iter().for_each(|bind| self.copy(bind));
    }

    fn copy(&mut self, copy: &Copy) {
        self.text("copy");
        match &copy.from {
            CopyFrom::Context => self.text("context"),
            // The version is part of the content.
            CopyFrom::Stage(_) | CopyFrom::Template(_) => {
                self.text("elsewhere");
                self.list(copy.sources.iter());
                self.list(copy.exclude.iter());
            }
        }
        self.text(&copy.dest);
        let chmod = copy.chmod.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let chown = copy.chown.clone().unwrap_or_default();
        self.text(&format!("{} {} {chmod} {chown}", copy.into_folder, copy.parents));
    }
}

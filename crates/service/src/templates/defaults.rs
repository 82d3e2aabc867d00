//! Makes the templates behind the vendors' default names at the first start of a server, in the background.
//!
//! Until one is made, its names resolve to another template (`resolve`). Each is made at most once per server: the file
//! `DATA/default-templates` lists the finished ones, so a template that the operator removes stays removed.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use atoll_image::default_names::MADE_AT_FIRST_START;
use atoll_model::Code;

use super::{MakeProgress, Templates, TemplatesState};
use crate::ServiceError;

const FINISHED: &str = "default-templates";

impl Templates {
    /// Starts making what is missing and returns at once.
    pub fn make_defaults(&self) {
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            let file = inner.config.data.join(FINISHED);
            for name in MADE_AT_FIRST_START.iter().copied() {
                if finished(&file).contains(name) {
                    continue;
                }
                match make(&inner, name).await {
                    Ok(()) => note_finished(&file, name),
                    Err(_) if inner.closing.is_cancelled() => return,
                    Err(error) => {
                        tracing::warn!(template = name, %error, hint = error.hint, "a default template could not be made; the next start of the server tries again");
                        return;
                    }
                }
            }
        });
    }
}

async fn make(inner: &TemplatesState, name: &'static str) -> Result<(), ServiceError> {
    let sources = Arc::clone(&inner.cache.sources);
    let closing = inner.closing.clone();
    let progress: MakeProgress = Box::new(move |step| {
        tracing::debug!(template = name, step, "making a default template");
        if closing.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let begun = Instant::now();
    tracing::info!(
        template = name,
        "making a default template; until it is made, another one is used in its place"
    );
    let made = inner.run_blocking(move || sources.make(name, progress)).await;
    inner.cache.forget();
    match made {
        Ok(_) => {
            tracing::info!(template = name, seconds = begun.elapsed().as_secs(), "default template made");
            Ok(())
        }
        Err(error) if error.code == Code::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn finished(file: &PathBuf) -> BTreeSet<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn note_finished(file: &PathBuf, name: &str) {
    let mut names = finished(file);
    names.insert(name.to_owned());
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    if let Err(cause) = std::fs::write(file, text) {
        tracing::warn!(%cause, "the list of default templates could not be written");
    }
}

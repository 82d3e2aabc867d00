//! Templates, as far as the use cases need them. The catalog on disk is behind one small trait, so that drivers are
//! tested without a root filesystem.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::Serialize;

use crate::ServiceError;

/// A template as users see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TemplateRecord {
    /// Its name.
    pub name: String,
    /// Names its exact content.
    pub version: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// `host` or `rootfs`.
    pub kind: String,
    /// Who commands run as unless they say otherwise.
    pub user: String,
    /// Where commands start unless they say otherwise.
    pub workdir: String,
    /// Environment that every sandbox of it starts with.
    pub env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    pub sudo: bool,
    /// Started at every boot unless the sandbox brings its own.
    pub command: Option<Vec<String>>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// Told each step while a template is made; `Break` cancels.
pub type MakeProgress = Box<dyn FnMut(&str) -> ControlFlow<()> + Send>;

/// Where templates are kept. All calls may block; the service makes slow ones on a thread of their own.
pub trait Templates: Send + Sync + 'static {
    /// The template of this name or alias; the ones that make themselves are made.
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError>;
    /// All of them.
    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError>;
    /// Makes a built-in one.
    fn make(&self, name: &str, progress: MakeProgress) -> Result<TemplateRecord, ServiceError>;
    /// Removes it.
    fn remove(&self, name: &str) -> Result<(), ServiceError>;
}

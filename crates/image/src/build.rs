//! Plans builds without running anything: Dockerfiles and declared builds become stages, stages become steps.
//!
//! ```text
//! text ─▶ Dockerfile ──▶ Plan ──▶ Stage ──▶ Walk ──▶ Step …
//! SDK  ─▶ DeclaredBuild ──┘ │        settings of the base │
//!         args, target ─────┘                             └─▶ cache_key, Context::write_tar
//! ```
//!
//! The rules are Docker's; where its two builders differ, those of the newer one. Unsupported features are refused with
//! their line and never reinterpreted: `ONBUILD`, `ADD` of addresses, `--mount=type=ssh`, `--network=host`, symbolic
//! modes. This module starts no sandbox, uses no network and writes no file.

mod context;
mod context_merge;
mod declared;
mod dockerfile;
mod error;
mod instruction;
mod key;
mod lex;
mod mounts;
mod path;
mod pattern;
mod plan;
mod settings;
mod source;
mod sources;
mod step;
mod unzip;
mod walk;
mod words;

pub use context::BuildContext;
pub use context_merge::gather;
pub use declared::{DeclaredBuild, DeclaredStep};
pub use dockerfile::{Dockerfile, needs_context};
pub use error::{BadContext, BadDockerfile};
pub use key::cache_key;
pub use pattern::Ignore;
pub use plan::{Base, BuildStage, Plan};
pub use step::{
    BuildStep, Copy, CopyFrom, InlineFile, Matched, Run, ScratchMount, Script, SecretMount, StepKind,
};
pub use walk::Walk;

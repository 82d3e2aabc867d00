//! What a build does, decided without doing anything: Dockerfiles and declared builds become stages, stages become steps.
//!
//! ```text
//! text ─▶ Dockerfile ──▶ Plan ──▶ Stage ──▶ Walk ──▶ Step …
//! SDK  ─▶ DeclaredBuild ──┘ │        settings of the base │
//!         args, target ─────┘                             └─▶ cache_key, Context::write_tar
//! ```
//!
//! Docker's rules hold, those of its newer builder where the two differ and the older has nothing to say. What is not
//! supported is refused with its line, never read in another way: `ONBUILD`, `ADD` of addresses, `--mount=type=ssh`,
//! `--network=host`, symbolic modes. Nothing here starts a sandbox, reaches a network or writes a file.

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

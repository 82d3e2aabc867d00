//! The names of sandboxes in a command, so that `--tenant` can replace them by ids before the command runs.

use super::Command;
use super::life::{PreviewVerb, SnapshotVerb};
use super::values::CopyEndpoint;

impl Command {
    /// Every name or id of a sandbox in the command.
    pub(crate) fn sandbox_names(&mut self) -> Vec<&mut String> {
        match self {
            Self::Exec(args) => vec![&mut args.sandbox],
            Self::Code(args) => vec![&mut args.sandbox],
            Self::Sh(args) => vec![&mut args.sandbox],
            Self::Git(args) => vec![&mut args.sandbox],
            Self::Grep(args) => vec![&mut args.sandbox],
            Self::Logs(args) => vec![&mut args.sandbox],
            Self::Ps(args) => vec![&mut args.sandbox],
            Self::Signal(args) => vec![&mut args.sandbox],
            Self::Resize(args) => vec![&mut args.sandbox],
            Self::Fork(args) => vec![&mut args.sandbox],
            Self::Move(args) => vec![&mut args.sandbox],
            Self::Rollback(args) => vec![&mut args.sandbox],
            Self::Hold(args) => vec![&mut args.sandbox],
            Self::Extend(args) => vec![&mut args.sandbox],
            Self::Update(args) => vec![&mut args.sandbox],
            Self::Egress(args) => vec![&mut args.sandbox],
            Self::Events(args) => args.sandbox.iter_mut().collect(),
            Self::Open(args) => args.sandbox.iter_mut().collect(),
            Self::Inspect(args)
            | Self::Resume(args)
            | Self::Start(args)
            | Self::Stop(args)
            | Self::Restart(args)
            | Self::Archive(args) => args.sandboxes.iter_mut().collect(),
            Self::Pause(args) => args.sandboxes.iter_mut().collect(),
            Self::Restore(args) => args.sandboxes.iter_mut().collect(),
            Self::Rm(args) => args.sandboxes.iter_mut().collect(),
            Self::Top(args) => args.sandboxes.iter_mut().collect(),
            Self::Cp(args) => args.places.iter_mut().filter_map(inside).collect(),
            Self::Snapshot(args) => match &mut args.verb {
                None => args.sandbox.iter_mut().collect(),
                Some(SnapshotVerb::Create { sandbox, .. }) => vec![sandbox],
                Some(SnapshotVerb::Ls { sandbox, .. }) => sandbox.iter_mut().collect(),
                Some(SnapshotVerb::Show { .. } | SnapshotVerb::Rm { .. } | SnapshotVerb::Verify { .. }) => {
                    vec![]
                }
            },
            Self::Preview(args) => match &mut args.verb {
                None => args.sandbox.iter_mut().collect(),
                Some(PreviewVerb::Ls { sandbox } | PreviewVerb::Rm { sandbox, .. }) => vec![sandbox],
            },
            Self::Run(_)
            | Self::Create(_)
            | Self::Ls(_)
            | Self::Secret(_)
            | Self::Thread(_)
            | Self::Template(_)
            | Self::Build(_)
            | Self::Volume(_)
            | Self::Provider(_)
            | Self::Key(_)
            | Self::Tenant(_)
            | Self::Login(_)
            | Self::Logout(_)
            | Self::Whoami
            | Self::Context(_)
            | Self::System(_)
            | Self::Prune(_)
            | Self::Man { .. }
            | Self::Tls(_)
            | Self::Env(_)
            | Self::Mcp(_)
            | Self::Serve(_)
            | Self::Server(_)
            | Self::Doctor
            | Self::Openapi
            | Self::Version
            | Self::Completions { .. }
            | Self::Launcher { .. } => vec![],
        }
    }

    /// Whether `--tenant` is an option of the command itself.
    pub(crate) const fn has_own_tenant(&self) -> bool {
        matches!(self, Self::Ls(_) | Self::Key(_) | Self::Login(_))
    }
}

fn inside(place: &mut CopyEndpoint) -> Option<&mut String> {
    match place {
        CopyEndpoint::Inside { sandbox, .. } => Some(sandbox),
        CopyEndpoint::Stream | CopyEndpoint::Here(_) => None,
    }
}

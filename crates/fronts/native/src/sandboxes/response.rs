//! A sandbox in responses: its settings, its intent, its phase, and its next timer.

use atoll_client::moving::{MoveReport, Moving};
use atoll_client::sandboxes::{Archive, Awake, CommandFailure, Hold, Sandbox};
use atoll_front_kit::rfc3339_millis;
use atoll_model::policy::egress::PolicyLayer;
use atoll_model::{Lease, Source};

use crate::convert::FromCore;

/// The description of a single sandbox, with details that lists leave out.
pub(super) fn detailed(lease: Lease, awake: Option<Awake>, narrowed_by: &[PolicyLayer]) -> Sandbox {
    let network_narrowed_by = narrowed_by.iter().map(|layer| layer.as_str().to_owned()).collect();
    Sandbox { awake, network_narrowed_by, ..Sandbox::from_core(lease) }
}

impl FromCore<Lease> for Sandbox {
    fn from_core(lease: Lease) -> Self {
        let creating = lease.phase == atoll_model::Phase::Creating;
        let snapshot = match lease.source {
            Source::Snapshot { snapshot, fork: false, .. } => Some(snapshot.into()),
            // A caller cannot use the internal snapshot of a fork.
            Source::Snapshot { fork: true, .. } | Source::Template | Source::Archive { .. } => None,
        };
        Self {
            id: lease.id.into(),
            name: lease.name,
            tenant: lease.tenant.into(),
            created_by_key: lease.created_by_key.map(Into::into),
            labels: lease.labels,
            env_names: lease.env.into_keys().collect(),
            private_env: lease.private_env.into_iter().collect(),
            provider: lease.provider,
            isolation: lease.isolation.into(),
            node: lease.node.into(),
            template: lease.template,
            template_version: lease.template_version,
            user: lease.user,
            workdir: lease.workdir,
            command: lease.command,
            command_failure: lease.command_failure.map(|failure| CommandFailure {
                exit_code: failure.exit_code,
                message: failure.message,
                at: rfc3339_millis(failure.at.wall_ms),
            }),
            cpu: f64::from(lease.limits.cpu_milli) / 1_000.0,
            memory_mib: lease.limits.memory_mib,
            disk_mib: lease.limits.disk_mib,
            pids: lease.limits.pids,
            network: lease.network.into(),
            network_narrowed_by: Vec::new(),
            storage: lease.storage.into(),
            mounts: lease.mounts.into_iter().map(Into::into).collect(),
            intent: lease.intent.into(),
            phase: lease.phase.into(),
            stage: creating.then(|| lease.stage.into()),
            queue: lease.queue.and_then(|wait| wait.place).map(Into::into),
            build: lease.image_build.map(Into::into),
            held: lease.held.map(Into::into),
            reason: lease.reason.into(),
            generation: lease.generation,
            instance: lease.instance.map(Into::into),
            timeout_s: lease.timeout_s,
            timeout_at: lease.timeout_at.map(|at| rfc3339_millis(at.wall_ms)),
            on_timeout: lease.on_timeout.into(),
            timeout_counts: lease.timeout_counts.into(),
            auto_stop_s: lease.timers.auto_stop_s,
            auto_pause_s: lease.timers.auto_pause_s,
            checkpoint_after_s: lease.timers.checkpoint_after_s,
            auto_archive_s: lease.timers.auto_archive_s,
            auto_delete_s: lease.timers.auto_delete_s,
            on_exit: lease.on_exit.into(),
            thread: lease.thread,
            wake: lease.wake.into(),
            public: lease.public,
            hold: lease
                .hold
                .map(|hold| Hold { until: rfc3339_millis(hold.until.wall_ms), reason: hold.reason }),
            parent: lease.parent.map(Into::into),
            snapshot,
            archive: lease.archive.map(|at| Archive {
                key: at.key,
                bytes: at.bytes,
                stored_bytes: at.stored_bytes,
            }),
            moving: lease.moving.map(Moving::from_core),
            last_move: lease.last_move.map(MoveReport::from_core),
            created_at: rfc3339_millis(lease.created_at.wall_ms),
            phase_at: rfc3339_millis(lease.phase_at.wall_ms),
            started_at: lease.started_at.map(|at| rfc3339_millis(at.wall_ms)),
            active_at: lease.active_at.map(|at| rfc3339_millis(at.wall_ms)),
            stopped_at: lease.stopped_at.map(|at| rfc3339_millis(at.wall_ms)),
            awake: None,
        }
    }
}

//! Watches instances: every death that the server did not cause is reported once, after its cause.

use std::sync::{Arc, Weak};

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::{Notice, NoticeKind};

use crate::{InstanceLauncher, Instances, RunningInstance};

impl<L: InstanceLauncher> Instances<L> {
    pub(crate) fn watch(
        launcher: &Arc<L>,
        live: Arc<L::Instance>,
        sandbox: &SandboxId,
        instance: &InstanceId,
    ) {
        let (sandbox, instance) = (sandbox.clone(), instance.clone());
        launcher.instances().spawn(report_death(Arc::downgrade(launcher), live, sandbox, instance));
    }

    /// Reports new events of all live instances.
    pub fn report_events(launcher: &L) {
        for (sandbox, slot) in launcher.instances().slots() {
            if let Some((instance, live)) = slot.live() {
                Self::report_event(launcher, &live, &sandbox, &instance);
            }
        }
    }

    fn report_event(launcher: &L, live: &L::Instance, sandbox: &SandboxId, instance: &InstanceId) {
        if let Some(what) = launcher.new_event(live) {
            launcher.instances().notify(sandbox.clone(), instance.clone(), what);
        }
    }

    fn notify(&self, sandbox: SandboxId, instance: InstanceId, what: NoticeKind) {
        let _ = self.notices.send(Notice { sandbox, instance, what });
    }
}

async fn report_death<L: InstanceLauncher>(
    launcher: Weak<L>,
    live: Arc<L::Instance>,
    sandbox: SandboxId,
    instance: InstanceId,
) {
    if live.dead().await.is_err() || live.is_ending() {
        return;
    }
    let Some(launcher) = launcher.upgrade() else { return };
    Instances::report_event(&*launcher, &live, &sandbox, &instance);
    launcher.instances().notify(sandbox, instance, NoticeKind::Died);
}

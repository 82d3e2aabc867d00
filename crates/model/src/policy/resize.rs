//! Resize rules for users who expect a machine: a running sandbox only grows, and a disk never shrinks. (The native API
//! is more liberal: [`crate::UpdateSandbox`] allows everything that the provider supports.)

use crate::{BadSpec, Lease, Limits, LimitsAsk, Phase};

/// The new limits, or the reason why they are refused.
pub fn grown(lease: &Lease, ask: &LimitsAsk) -> Result<Limits, BadSpec> {
    let old = lease.limits;
    if *ask == LimitsAsk::default() {
        return Err(bad("limits", "contains no limit to change"));
    }
    let new = ask.resolve(old)?;
    let runs = lease.phase != Phase::Stopped;
    if new.disk_mib < old.disk_mib {
        return Err(bad("disk_mib", "can only grow"));
    }
    if runs && new.disk_mib != old.disk_mib {
        return Err(bad("disk_mib", "can only change while the sandbox is stopped"));
    }
    if runs && new.cpu_milli < old.cpu_milli {
        return Err(bad("cpu", "can only grow while the sandbox runs"));
    }
    if runs && new.memory_mib < old.memory_mib {
        return Err(bad("memory_mib", "can only grow while the sandbox runs"));
    }
    Ok(new)
}

fn bad(field: &'static str, why: &str) -> BadSpec {
    BadSpec::Text { field, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::deadlines::tests::lease;

    #[test]
    fn what_runs_grows_and_a_disk_never_shrinks() {
        let cpu = |cpu| LimitsAsk { cpu: Some(cpu), ..LimitsAsk::default() };
        let memory = |mib| LimitsAsk { memory_mib: Some(mib), ..LimitsAsk::default() };
        let disk = |mib| LimitsAsk { disk_mib: Some(mib), ..LimitsAsk::default() };
        for (ask, running, stopped) in [
            (LimitsAsk::default(), false, false),
            (cpu(2.0), true, true),
            (cpu(0.5), false, true),
            (cpu(-1.0), false, false),
            (memory(1_024), true, true),
            (memory(256), false, true),
            (disk(4_096), false, true),
            (disk(1_024), false, false),
        ] {
            assert_eq!(grown(&lease(Phase::Running), &ask).is_ok(), running, "{ask:?}");
            assert_eq!(grown(&lease(Phase::Stopped), &ask).is_ok(), stopped, "{ask:?}");
        }
        let new = grown(&lease(Phase::Running), &cpu(2.0)).expect("it grows");
        assert_eq!((new.cpu_milli, new.memory_mib), (2_000, 512));
    }
}

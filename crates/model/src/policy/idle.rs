//! Whether a sandbox is active. Idle means that none of these reasons applies; each reason can be shown.

use serde::{Deserialize, Serialize};

/// The observations of a sandbox since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signals {
    /// Requests in progress; terminals and streams are counted below.
    pub requests: u32,
    /// Attached terminals.
    pub terminals: u32,
    /// Commands that a caller waits for.
    pub commands: u32,
    /// CPU use since the last look, in thousandths of a core.
    pub cpu_milli: u32,
    /// Bytes sent since the last look.
    pub sent_bytes: u64,
    /// Remaining seconds of a hold by a program in the sandbox.
    pub held_inside_s: u64,
    /// Whether there is a hold from outside.
    pub held: bool,
}

/// Why a sandbox is awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AwakeReason {
    /// A request is in progress.
    Request,
    /// A terminal is attached.
    Terminal,
    /// A caller waits for a command.
    Command,
    /// A process in the sandbox uses CPU.
    Cpu,
    /// A process in the sandbox sends data.
    Network,
    /// A hold from outside.
    Hold,
    /// A hold by a program in the sandbox.
    HoldInside,
}

/// LIMIT: an idle agent and the housekeeping of common servers stay well below two hundredths of a core.
pub const CPU_FLOOR_MILLI: u32 = 20;
/// LIMIT: keep-alives of a few idle connections stay below this between two looks.
pub const SENT_FLOOR_BYTES: u64 = 2_048;

/// All reasons to stay awake; none means idle.
#[must_use]
pub fn reasons(seen: &Signals) -> Vec<AwakeReason> {
    [
        (seen.requests > 0, AwakeReason::Request),
        (seen.terminals > 0, AwakeReason::Terminal),
        (seen.commands > 0, AwakeReason::Command),
        (seen.cpu_milli > CPU_FLOOR_MILLI, AwakeReason::Cpu),
        (seen.sent_bytes > SENT_FLOOR_BYTES, AwakeReason::Network),
        (seen.held, AwakeReason::Hold),
        (seen.held_inside_s > 0, AwakeReason::HoldInside),
    ]
    .into_iter()
    .filter_map(|(is, why)| is.then_some(why))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_seen_is_idle_and_each_signal_alone_is_not() {
        let none = Signals { cpu_milli: CPU_FLOOR_MILLI, sent_bytes: SENT_FLOOR_BYTES, ..Signals::default() };
        assert_eq!(reasons(&none), []);
        for (signals, why) in [
            (Signals { requests: 1, ..none }, AwakeReason::Request),
            (Signals { terminals: 1, ..none }, AwakeReason::Terminal),
            (Signals { commands: 1, ..none }, AwakeReason::Command),
            (Signals { cpu_milli: CPU_FLOOR_MILLI + 1, ..none }, AwakeReason::Cpu),
            (Signals { sent_bytes: SENT_FLOOR_BYTES + 1, ..none }, AwakeReason::Network),
            (Signals { held: true, ..none }, AwakeReason::Hold),
            (Signals { held_inside_s: 1, ..none }, AwakeReason::HoldInside),
        ] {
            assert_eq!(reasons(&signals), [why]);
        }
    }
}

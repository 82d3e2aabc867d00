//! What separates a sandbox from its machine.

use serde::{Deserialize, Serialize};

/// What separates a sandbox from the machine that it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Nothing: code runs as an ordinary process of the host.
    None,
    /// Namespaces, cgroups and seccomp of a shared kernel.
    #[default]
    Container,
    /// A kernel of its own in a virtual machine.
    Vm,
    /// Another company's service.
    Vendor,
}

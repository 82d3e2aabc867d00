//! The parts of the benchmark, in the order of a whole run.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use crate::report::Report;
use crate::{
    Options, daytona, density, docker, e2b, egress, images, latency, life, mcp, peers, previews, python_sdk,
    queue, remote, sdk, sdk_typescript, sessions, transfer,
};

/// A group of rows that can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Memory of idle sandboxes.
    Density,
    /// Create, burst and exec.
    Create,
    /// Lists of sessions.
    Sessions,
    /// The queue of a full server.
    Queue,
    /// Tool calls over MCP.
    Mcp,
    /// Upload and download of files.
    Transfer,
    /// Pause, checkpoint, snapshot, fork, rollback, archive, timers.
    Life,
    /// Outgoing connections.
    Egress,
    /// HTTP through the preview proxy.
    Previews,
    /// Images and builds.
    Images,
    /// The E2B front under E2B's SDK.
    E2b,
    /// The Daytona front under Daytona's SDK.
    Daytona,
    /// The providers `e2b` and `daytona`.
    Remote,
    /// The Python SDK.
    PythonSdk,
    /// The TypeScript SDK.
    SdkTypescript,
    /// The provider `docker`.
    Docker,
    /// Other programs that start containers.
    Peers,
}

/// The parts of a quick run: the figures that a change of the engine or of the server moves first, in about a minute.
const QUICK: [Part; 3] = [Part::Create, Part::Transfer, Part::Life];

/// The parts that were chosen, or else all parts of a whole or a quick run.
pub(crate) fn chosen(options: &Options) -> Vec<Part> {
    if !options.only.is_empty() {
        return options.only.clone();
    }
    if options.quick { QUICK.to_vec() } else { Part::value_variants().to_vec() }
}

impl Part {
    /// Downloads the SDKs of this part. The measurement itself runs in a network namespace without a way out.
    pub(crate) fn fetch(self) {
        let scripts: &[&str] = match self {
            Self::E2b => &["get-e2b-sdk"],
            Self::Daytona => &["get-daytona-sdk"],
            Self::Remote => &["get-e2b-sdk", "get-daytona-sdk"],
            Self::PythonSdk => &["get-python-sdk-deps"],
            Self::SdkTypescript => {
                sdk_typescript::build();
                &[]
            }
            Self::Density
            | Self::Create
            | Self::Sessions
            | Self::Queue
            | Self::Mcp
            | Self::Transfer
            | Self::Life
            | Self::Egress
            | Self::Previews
            | Self::Images
            | Self::Docker
            | Self::Peers => &[],
        };
        for script in scripts {
            if sdk::python(script).is_none() {
                eprintln!("bench: scripts/{script} failed; the rows that need it are left out");
            }
        }
    }

    pub(crate) fn measure(
        self,
        options: &Options,
        place: &Path,
        rootfs: &Path,
        report: &mut Report,
    ) -> Result<()> {
        match self {
            Self::Density => density::measure(options, place, report),
            Self::Create => {
                latency::warm(options, place, report)?;
                latency::cold(options, place, report)?;
                latency::burst(options, place, report)?;
                latency::exec(options, place, report)
            }
            Self::Sessions => sessions::measure(options, place, rootfs, report),
            Self::Queue => queue::measure(options, place, report),
            Self::Mcp => mcp::measure(options, place, report),
            Self::Transfer => transfer::measure(options, place, report),
            Self::Life => life::measure(options, place, report),
            Self::Egress => egress::measure(options, place, report),
            Self::Previews => previews::measure(options, place, report),
            Self::Images => images::measure(options, place, rootfs, report),
            Self::E2b => e2b::measure(options, place, report),
            Self::Daytona => daytona::measure(options, place, report),
            Self::Remote => remote::measure(options, place, report),
            Self::PythonSdk => python_sdk::measure(options, place, report),
            Self::SdkTypescript => sdk_typescript::measure(options, place, report),
            Self::Docker => docker::measure(options, place, rootfs, report),
            Self::Peers => peers::measure(options, place, rootfs, report),
        }
    }
}

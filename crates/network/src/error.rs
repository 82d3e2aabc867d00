//! Errors, one enum per operation, each with its class.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::ErrorKind;

/// Making, finding or removing the router failed.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The namespace could not be pinned or opened.
    #[error("cannot pin the router namespace at {}", path.display())]
    Pin {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The veth between router and host failed.
    #[error("cannot make the uplink {name}")]
    Uplink {
        name: String,
        #[source]
        cause: io::Error,
    },
    /// A ruleset did not load.
    #[error("cannot load the firewall rules of the {place}")]
    Rules {
        place: &'static str,
        #[source]
        cause: io::Error,
    },
    /// A kernel setting failed.
    #[error("cannot set {name} to {value}")]
    Sysctl {
        name: String,
        value: &'static str,
        #[source]
        cause: io::Error,
    },
    /// The machine does not support IPv6 for sandboxes.
    #[error("{why}")]
    NoIpv6 { why: &'static str },
    /// Another step failed.
    #[error("cannot {step}")]
    Step {
        step: &'static str,
        #[source]
        cause: io::Error,
    },
}

impl RouterError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Pin { .. }
            | Self::Uplink { .. }
            | Self::Rules { .. }
            | Self::Sysctl { .. }
            | Self::Step { .. } => ErrorKind::Unavailable,
            Self::NoIpv6 { .. } => ErrorKind::Unsupported,
        }
    }
}

/// An operation on a sandbox's link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Every number is taken.
    #[error("all link numbers are in use")]
    Exhausted,
    /// Another link has the requested address.
    #[error("address {address} is in use")]
    AddressInUse { address: Ipv4Addr },
    /// The requested address is not in the range of sandboxes.
    #[error("{address} is not a sandbox address")]
    NotASandboxAddress { address: Ipv4Addr },
    /// The link was never reserved or adopted, or is already released.
    #[error("link {number} is unknown")]
    Unknown { number: u32 },
    /// The kernel refused a step.
    #[error("cannot {step} for link {number}")]
    Kernel {
        step: &'static str,
        number: u32,
        #[source]
        cause: io::Error,
    },
    /// The policy limits the upload rate, which is limited at the sandbox's end of a link, and a tap has no such end.
    #[error("the upload rate of link {number} cannot be limited at its tap; limit it in the VMM")]
    TapUploadRate { number: u32 },
    /// The policy names IPv6 ranges, and the machine does not support it.
    #[error("IPv6 cannot be set up on this machine")]
    Ipv6 {
        #[source]
        cause: Box<RouterError>,
    },
}

impl LinkError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Exhausted => ErrorKind::Exhausted,
            Self::AddressInUse { .. } => ErrorKind::Conflict,
            Self::NotASandboxAddress { .. } => ErrorKind::Invalid,
            Self::Unknown { .. } => ErrorKind::NotFound,
            Self::Kernel { .. } => ErrorKind::Internal,
            Self::TapUploadRate { .. } => ErrorKind::Unsupported,
            Self::Ipv6 { cause } => cause.kind(),
        }
    }
}

/// Setting up the inside of a sandbox's namespace failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} inside the sandbox's network namespace")]
pub struct SetupError {
    /// The failed step.
    pub step: &'static str,
    /// The system error.
    #[source]
    pub cause: io::Error,
}

impl SetupError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Internal
    }
}

/// Connecting to a port inside a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No program listens on the port.
    #[error("no program listens on port {port} inside the sandbox")]
    Refused { port: u16 },
    /// The deadline passed.
    #[error("port {port} inside the sandbox did not answer in time")]
    TimedOut { port: u16 },
    /// Too many connections are being made.
    #[error("too many connections are being opened")]
    Busy,
    /// The namespace cannot be entered, or the socket cannot be made.
    #[error("cannot connect to port {port} inside the sandbox")]
    Failed {
        port: u16,
        #[source]
        cause: io::Error,
    },
}

impl DialError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } | Self::TimedOut { .. } => ErrorKind::Unavailable,
            Self::Busy => ErrorKind::Exhausted,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

//! Kernel settings below /proc/sys/net, of the calling thread's namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::error::RouterError;

/// Settings of the router namespace. IPv6 is off until an interface needs it for a sandbox. ICMP errors are not
/// rate-limited, or the seventh refused call would hang.
const ROUTER: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    // Also exempt from the machine-wide limit, which one busy sandbox would use up for all.
    ("ipv4/icmp_ratemask", "0"),
];

/// Settings that a kernel without the feature does not have.
const ROUTER_OPTIONAL: &[(&str, &str)] = &[
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // The rules decide about IPv6 packets, and interfaces without IPv6 receive none.
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/icmp/ratelimit", "0"),
    // The machine-wide limit then applies only to a message type that does not exist.
    ("ipv6/icmp/ratemask", "255"),
];

/// All namespaces share the neighbour table, and a live sandbox has one or two entries.
const NEIGHBOURS: &[(&str, u64)] = &[
    ("ipv4/neigh/default/gc_thresh3", 32_768),
    ("ipv4/neigh/default/gc_thresh2", 16_384),
    ("ipv4/neigh/default/gc_thresh1", 8_192),
];

pub(crate) fn prepare_router() -> Result<(), RouterError> {
    for (name, value) in ROUTER {
        write(name, value)?;
    }
    for (name, value) in ROUTER_OPTIONAL {
        match write(name, value) {
            Err(RouterError::Sysctl { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Enlarges the neighbour table. Only possible in the machine's first namespace; never lowers a value.
pub(crate) fn make_room_for_neighbours() {
    for (name, wanted) in NEIGHBOURS {
        let current = fs::read_to_string(path(name)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if current.is_some_and(|current| current < *wanted)
            && fs::write(path(name), wanted.to_string()).is_err()
        {
            tracing::warn!(
                setting = name,
                wanted,
                "the neighbour table stays small; more than 500 busy sandboxes may not reach the network"
            );
        }
    }
}

pub(crate) fn is_forwarding(interface: &str) -> bool {
    read(&format!("ipv4/conf/{interface}/forwarding")).as_deref() == Some("1")
}

pub(crate) fn is_forwarding_everywhere() -> bool {
    read("ipv4/ip_forward").as_deref() == Some("1")
}

pub(crate) fn set_forwarding(interface: &str, is_on: bool) -> Result<(), RouterError> {
    write(&format!("ipv4/conf/{interface}/forwarding"), if is_on { "1" } else { "0" })
}

/// Enables IPv6 on an interface, without automatic addresses.
pub(crate) fn enable_ipv6(interface: &str) -> Result<(), RouterError> {
    write(&format!("ipv6/conf/{interface}/accept_ra"), "0")?;
    write(&format!("ipv6/conf/{interface}/disable_ipv6"), "0")
}

/// Removes an interface's IPv6 addresses and routes.
pub(crate) fn disable_ipv6(interface: &str) -> Result<(), RouterError> {
    write(&format!("ipv6/conf/{interface}/disable_ipv6"), "1")
}

pub(crate) fn is_forwarding6_everywhere() -> bool {
    read("ipv6/conf/all/forwarding").as_deref() == Some("1")
}

/// Whether a single interface forwards. `None`: this kernel (before 6.17) has no such setting.
pub(crate) fn is_forwarding6(interface: &str) -> Option<bool> {
    read(&format!("ipv6/conf/{interface}/force_forwarding")).map(|value| value == "1")
}

/// Sets forwarding of a single interface. It still accepts router advertisements, which the setting for all would
/// disable.
pub(crate) fn set_forwarding6(interface: &str, is_on: bool) -> Result<(), RouterError> {
    write(&format!("ipv6/conf/{interface}/force_forwarding"), if is_on { "1" } else { "0" })
}

fn write(name: &str, value: &'static str) -> Result<(), RouterError> {
    // Writing an equal value is skipped, so that a read-only /proc/sys with the right values works.
    if read(name).as_deref() == Some(value) {
        return Ok(());
    }
    fs::write(path(name), value).map_err(|cause| RouterError::Sysctl { name: name.to_owned(), value, cause })
}

fn read(name: &str) -> Option<String> {
    fs::read_to_string(path(name)).ok().map(|text| text.trim().to_owned())
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys/net").join(name)
}

//! The checks of `atoll doctor`: the engine's own probes, the network, and the requirements of the first example.

use std::path::Path;

use atoll_container::Probe;
use atoll_network::{Block, network_facts};

use atoll_model::ProxyUrl;
use atoll_outbound::OutboundSettings;

use crate::commands::{Check, CheckState};
use crate::environment;

/// Without these no sandbox runs; without any other check only a feature is missing.
const REQUIRED: [&str; 6] = ["root", "kernel", "control groups", "user namespaces", "overlay", "nft"];

/// LIMIT: a proxy is near.
const PROXY_ANSWERS: std::time::Duration = std::time::Duration::from_secs(3);

/// Checks this machine; changes nothing.
pub(crate) fn checks(data: &Path) -> Vec<Check> {
    let mut checks: Vec<Check> = atoll_container::probes(data).into_iter().map(of_engine).collect();
    checks.push(forwarding());
    checks.push(images(data));
    checks.push(volumes(&checks));
    checks.push(registries());
    checks.push(proxies());
    checks.push(python());
    checks.push(side_channels(Path::new("/")));
    checks
}

/// Settings of the machine that let programs of different sandboxes observe each other through shared hardware. Whether
/// that can be exploited is not tested; only a machine per tenant excludes it.
fn side_channels(root: &Path) -> Check {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let smt = read("sys/devices/system/cpu/smt/active").trim() == "1";
    let ksm = read("sys/kernel/mm/ksm/run").trim() == "1";
    let swap = read("proc/swaps").lines().count() > 1;
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let found = format!("SMT {}, memory merging (KSM) {}, swap {}", on(smt), on(ksm), on(swap));
    let fixes: Vec<&str> = [
        (smt, "echo off > /sys/devices/system/cpu/smt/control"),
        (ksm, "echo 2 > /sys/kernel/mm/ksm/run"),
        (swap, "swapoff -a, or encrypt the swap"),
    ]
    .into_iter()
    .filter_map(|(is_on, fix)| is_on.then_some(fix))
    .collect();
    let state = if fixes.is_empty() { CheckState::Good } else { CheckState::Lacking };
    Check {
        name: "side channels".to_owned(),
        state,
        found,
        fix: (!fixes.is_empty()).then(|| fixes.join("; ")),
    }
}

/// Whether layers of images can be unpacked: overlay layers need marks that not every file system supports.
fn images(data: &Path) -> Check {
    // Types of file systems, as in `statfs`.
    const WITHOUT_MARKS: [(i64, &str); 6] = [
        (0x6969, "NFS"),
        (0x6573_5546, "FUSE"),
        (0x0102_1997, "9p"),
        (0xFE53_4D42, "SMB"),
        (0x4d44, "FAT"),
        (0x5346_544e, "NTFS"),
    ];
    let name = "images".to_owned();
    let there = data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let kind = rustix::fs::statfs(there).ok().map(|about| about.f_type);
    let bad = WITHOUT_MARKS.iter().find(|(number, _)| Some(*number) == kind);
    match bad {
        None => Check {
            name,
            state: CheckState::Good,
            found: "pulled, built and imported templates can be stored in DATA/images".to_owned(),
            fix: None,
        },
        Some((_, kind)) => Check {
            name,
            state: CheckState::Lacking,
            found: format!("{} is {kind}, which does not support the attributes of layers", there.display()),
            fix: Some("put --data on ext4, xfs or btrfs".to_owned()),
        },
    }
}

/// Volumes are stored in the same place as the layers of sandboxes, and have limits for the same reason.
fn volumes(checks: &[Check]) -> Check {
    let name = "volumes".to_owned();
    let quota = checks.iter().find(|check| check.name == "disk quota");
    match quota {
        Some(Check { state: CheckState::Lacking | CheckState::Missing, fix, .. }) => Check {
            name,
            state: CheckState::Lacking,
            found: "only folders of this machine (--volume-root), because there is no disk quota".to_owned(),
            fix: fix.clone(),
        },
        _ => Check { name, state: CheckState::Good, found: "each with a size limit".to_owned(), fix: None },
    }
}

/// The root certificates for registries.
fn registries() -> Check {
    let name = "registries".to_owned();
    let bundles = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
        "/etc/ssl/ca-bundle.pem",
    ];
    match bundles.iter().find(|path| Path::new(path).exists()) {
        Some(path) => {
            Check { name, state: CheckState::Good, found: format!("trusted roots from {path}"), fix: None }
        }
        None => Check {
            name,
            state: CheckState::Lacking,
            found: "no root certificates, so no registry with TLS is trusted".to_owned(),
            fix: Some("apt-get install -y ca-certificates".to_owned()),
        },
    }
}

/// The proxies of the environment, and whether something listens there. A server that is started with flags logs its own.
fn proxies() -> Check {
    let name = "proxy".to_owned();
    let lacking = |found: String, fix: &str| Check {
        name: name.clone(),
        state: CheckState::Lacking,
        found,
        fix: Some(fix.to_owned()),
    };
    let flag = |variable| match environment::of_network(variable).filter(|text| !text.is_empty()) {
        Some(text) => text.parse::<ProxyUrl>().map(Some).map_err(|bad| format!("{variable} is {bad}")),
        None => Ok(None),
    };
    let read = flag(environment::PROXY).and_then(|proxy| {
        let settings = OutboundSettings::read(environment::of_network, proxy.as_ref(), None);
        Ok((settings.map_err(|bad| bad.to_string())?, flag(environment::EGRESS_PROXY)?))
    });
    let (settings, egress) = match read {
        Ok(read) => read,
        Err(bad) => return lacking(bad, "write http://HOST:PORT"),
    };
    let mut used: Vec<(ProxyUrl, Vec<&str>)> = Vec::new();
    for (proxy, what) in [(settings.http, "http"), (settings.https, "https"), (egress, "sandboxes")] {
        let Some(proxy) = proxy else { continue };
        match used.iter_mut().find(|(known, _)| *known == proxy) {
            Some((_, whats)) => whats.push(what),
            None => used.push((proxy, vec![what])),
        }
    }
    let (mut found, mut silent) = (Vec::new(), false);
    for (proxy, whats) in &used {
        let answers = answers(proxy);
        silent |= answers.is_err();
        let how = answers.map_or_else(|why| format!("does not answer: {why}"), |()| "answers".to_owned());
        found.push(format!("{proxy} for {} {how}", whats.join(" and ")));
    }
    match (used.is_empty(), silent) {
        (_, true) => lacking(found.join("; "), "see docs/company-networks.md"),
        (true, false) => Check {
            name,
            state: CheckState::Good,
            found: "none; the internet is reached directly".to_owned(),
            fix: None,
        },
        (false, false) => Check { name, state: CheckState::Good, found: found.join("; "), fix: None },
    }
}

/// Whether something listens at a proxy.
fn answers(proxy: &ProxyUrl) -> Result<(), String> {
    use std::net::{TcpStream, ToSocketAddrs};
    let found = (proxy.host.as_str(), proxy.port)
        .to_socket_addrs()
        .map_err(|_| "its name is not known".to_owned())?;
    let mut why = "it has no address".to_owned();
    for address in found {
        match TcpStream::connect_timeout(&address, PROXY_ANSWERS) {
            Ok(_) => return Ok(()),
            Err(cause) => why = cause.kind().to_string(),
        }
    }
    Err(why)
}

fn of_engine(probe: Probe) -> Check {
    let state = match probe.ok {
        true => CheckState::Good,
        false if REQUIRED.contains(&probe.name) => CheckState::Missing,
        false => CheckState::Lacking,
    };
    let fix = Some(probe.fix).filter(|fix| !fix.is_empty());
    Check { name: probe.name.to_owned(), state, found: probe.detail, fix }
}

/// Firewall rules of other programs may drop packets of sandboxes; each gets the command that lets them pass.
fn forwarding() -> Check {
    let name = "forwarding".to_owned();
    // The first server of a machine has this number; a second one logs its own.
    let facts = Block::new(0).map(network_facts);
    match facts.iter().flat_map(|facts| &facts.foreign_drops).next() {
        None => Check {
            name,
            state: CheckState::Good,
            found: "no foreign firewall rule drops packets of sandboxes".to_owned(),
            fix: None,
        },
        Some(drop) => Check {
            name,
            state: CheckState::Lacking,
            found: format!("{} drops packets of sandboxes", drop.chain),
            fix: Some(drop.opened_by.clone()),
        },
    }
}

/// For the first example of the documentation, and for most code of agents.
fn python() -> Check {
    let name = "python3".to_owned();
    if Path::new("/usr/bin/python3").exists() {
        return Check {
            name,
            state: CheckState::Good,
            found: "the template host has python3".to_owned(),
            fix: None,
        };
    }
    let fix = "apt-get install -y python3, or use --template debian".to_owned();
    Check {
        name,
        state: CheckState::Lacking,
        found: "the template host has no python3".to_owned(),
        fix: Some(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_need_what_the_quota_of_disks_needs() {
        let quota = |state| Check {
            name: "disk quota".to_owned(),
            state,
            found: String::new(),
            fix: Some("f".into()),
        };
        assert_eq!(volumes(&[quota(CheckState::Good)]).state, CheckState::Good);
        let lacking = volumes(&[quota(CheckState::Lacking)]);
        assert_eq!((lacking.state, lacking.fix.as_deref()), (CheckState::Lacking, Some("f")));
        let names: Vec<&str> =
            atoll_container::probes(Path::new("/")).iter().map(|probe| probe.name).collect();
        assert!(names.contains(&"disk quota"), "{names:?}");
    }

    /// Attack A20: the state of SMT, KSM and swap is shown, and each that is on is warned of.
    #[test]
    fn settings_that_share_hardware_are_told() {
        let root = tempfile::tempdir().expect("temporary folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            std::fs::write(path, text).expect("writable");
        };
        assert_eq!(side_channels(root.path()).state, CheckState::Good);
        write("sys/devices/system/cpu/smt/active", "1\n");
        write("sys/kernel/mm/ksm/run", "1\n");
        write("proc/swaps", "Filename Type\n/dev/sda2 partition\n");
        let told = side_channels(root.path());
        assert_eq!(
            (told.state, told.found.as_str()),
            (CheckState::Lacking, "SMT on, memory merging (KSM) on, swap on")
        );
        assert!(told.fix.is_some_and(|fix| fix.matches(';').count() == 2));
    }

    #[test]
    fn images_can_be_kept_where_files_can() {
        assert_eq!(images(Path::new("/nowhere/at/all")).state, CheckState::Good);
    }

    #[test]
    fn every_required_probe_is_one_that_the_engine_makes() {
        let names: Vec<&str> =
            atoll_container::probes(Path::new("/")).iter().map(|probe| probe.name).collect();
        for name in REQUIRED {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
    }
}

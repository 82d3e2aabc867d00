//! What `atoll doctor` looks at: the engine's own probes, the network, and what the first example needs.

use std::path::Path;

use atoll_container::Probe;
use atoll_network::{Block, network_facts};

use crate::commands::{Check, State};

/// Without these no sandbox runs; whatever else is absent only takes something away.
const REQUIRED: [&str; 6] = ["root", "kernel", "control groups", "user namespaces", "overlay", "nft"];

/// Looks at this machine; changes nothing.
pub(crate) fn checks(data: &Path) -> Vec<Check> {
    let mut checks: Vec<Check> = atoll_container::probes(data).into_iter().map(of_engine).collect();
    checks.push(forwarding());
    checks.push(python());
    checks
}

fn of_engine(probe: Probe) -> Check {
    let state = match probe.ok {
        true => State::Good,
        false if REQUIRED.contains(&probe.name) => State::Missing,
        false => State::Lacking,
    };
    let fix = Some(probe.fix).filter(|fix| !fix.is_empty());
    Check { name: probe.name.to_owned(), state, found: probe.detail, fix }
}

/// Other engines' firewall rules may drop what sandboxes send; each gets the one line that lets it pass.
fn forwarding() -> Check {
    let name = "forwarding".to_owned();
    // The first server of a machine has this number; a second one is told its own by its log.
    let facts = Block::new(0).map(network_facts);
    match facts.iter().flat_map(|facts| &facts.foreign_drops).next() {
        None => Check { name, state: State::Good, found: "nobody drops our packets".to_owned(), fix: None },
        Some(drop) => Check {
            name,
            state: State::Lacking,
            found: format!("{} drops what sandboxes send", drop.chain),
            fix: Some(drop.opened_by.clone()),
        },
    }
}

/// The first example of the documentation, and what most agents send.
fn python() -> Check {
    let name = "python3".to_owned();
    if Path::new("/usr/bin/python3").exists() {
        return Check { name, state: State::Good, found: "the template host has it".to_owned(), fix: None };
    }
    let fix = "apt-get install -y python3, or use --template debian".to_owned();
    Check { name, state: State::Lacking, found: "the template host has none".to_owned(), fix: Some(fix) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_probe_is_one_that_the_engine_makes() {
        let names: Vec<&str> =
            atoll_container::probes(Path::new("/")).iter().map(|probe| probe.name).collect();
        for name in REQUIRED {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
    }
}

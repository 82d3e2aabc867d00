//! Applies instructions to the settings of an image, by Docker's rules.

use std::collections::{BTreeSet, HashMap};

use oci_spec::image::{Config, ImageConfiguration};

use super::lex::Vars;

/// The default `PATH` if the base has none.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The settings during a walk.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) image: ImageConfiguration,
}

impl Settings {
    fn config(&self) -> Option<&Config> {
        self.image.config().as_ref()
    }

    fn change(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = self.image.config().clone().unwrap_or_default();
        change(&mut config);
        self.image.set_config(Some(config));
    }

    /// The environment; of two entries with the same name the last one counts.
    pub(crate) fn env(&self) -> Vars {
        let list = self.config().and_then(|config| config.env().clone()).unwrap_or_default();
        let pair = |item: String| match item.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (item, String::new()),
        };
        list.into_iter().map(pair).collect()
    }

    /// Replaces a variable in place, or appends it.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.change(|config| {
            let mut list = config.env().clone().unwrap_or_default();
            let item = format!("{name}={value}");
            let same = |old: &String| old.split_once('=').map_or(old.as_str(), |(name, _)| name) == name;
            match list.iter().position(same) {
                Some(at) => list[at] = item,
                None => list.push(item),
            }
            config.set_env(Some(list));
        });
    }

    pub(crate) fn user(&self) -> String {
        self.config().and_then(|config| config.user().clone()).unwrap_or_default()
    }

    pub(crate) fn set_user(&mut self, user: String) {
        self.change(|config| {
            config.set_user(Some(user));
        });
    }

    /// Absolute; `/` if not set.
    pub(crate) fn workdir(&self) -> String {
        let said = self.config().and_then(|config| config.working_dir().clone()).unwrap_or_default();
        super::path::clean(&said)
    }

    pub(crate) fn set_workdir(&mut self, path: String) {
        self.change(|config| {
            config.set_working_dir(Some(path));
        });
    }

    pub(crate) fn add_label(&mut self, name: String, value: String) {
        self.change(|config| {
            let mut labels: HashMap<String, String> = config.labels().clone().unwrap_or_default();
            labels.insert(name, value);
            config.set_labels(Some(labels));
        });
    }

    pub(crate) fn set_cmd(&mut self, argv: Vec<String>) {
        self.change(|config| {
            config.set_cmd(Some(argv));
        });
    }

    /// A new entrypoint resets an inherited command.
    pub(crate) fn set_entrypoint(&mut self, argv: Vec<String>, keeps_cmd: bool) {
        self.change(|config| {
            config.set_entrypoint((!argv.is_empty()).then_some(argv));
            if !keeps_cmd {
                config.set_cmd(None);
            }
        });
    }

    pub(crate) fn add_ports(&mut self, ports: Vec<String>) {
        self.change(|config| {
            let list = with(config.exposed_ports(), ports);
            config.set_exposed_ports(Some(list));
        });
    }

    pub(crate) fn add_volumes(&mut self, paths: Vec<String>) {
        self.change(|config| {
            let list = with(config.volumes(), paths);
            config.set_volumes(Some(list));
        });
    }

    pub(crate) fn set_stop_signal(&mut self, signal: String) {
        self.change(|config| {
            config.set_stop_signal(Some(signal));
        });
    }
}

fn with(list: &Option<Vec<String>>, more: Vec<String>) -> Vec<String> {
    let all: BTreeSet<String> = list.clone().unwrap_or_default().into_iter().chain(more).collect();
    all.into_iter().collect()
}

/// Parses `80`, `80/udp`, `7000-7010/tcp`: each port with its protocol.
pub(crate) fn ports(text: &str) -> Result<Vec<String>, String> {
    let bad = || format!("{text:?} is not a port; write 80, 80/udp or 7000-7010");
    let (numbers, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
        return Err(bad());
    }
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad);
    let (low, high) = match numbers.split_once('-') {
        Some((low, high)) => (port(low)?, port(high)?),
        None => (port(numbers)?, port(numbers)?),
    };
    if low > high {
        return Err(bad());
    }
    Ok((low..=high).map(|port| format!("{port}/{protocol}")).collect())
}

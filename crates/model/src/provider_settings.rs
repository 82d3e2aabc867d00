//! The settings file of a provider: its fields, which of them are secret, and where a missing value is looked up.
//!
//! ```json
//! {"provider": "docker", "on_exit": "pause", "docker": {"image": "python:3.12-slim", "mount_path": "/workspace"}}
//! ```
//!
//! The file's name is the name of the provider and `provider` is its kind; the fields of the kind are in a section of that
//! name. Reading and writing files is not done here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Isolation, OnExit};

/// LIMIT: bytes of a name, so that it fits into labels, file names and messages.
const NAME_MAX: usize = 40;
/// LIMIT: bytes of one value.
const VALUE_MAX: usize = 4_096;

/// What a provider is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// The embedded engine. Every server has it, under this name.
    Container,
    /// Containers of a Docker daemon.
    Docker,
    /// Processes of this machine, without isolation.
    Local,
    /// E2B's service.
    E2b,
    /// Daytona's service, or one of your own.
    Daytona,
    /// AgentBay's service.
    Agentbay,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// A text that can be shown.
    Text,
    /// A text that is written and never shown.
    Secret,
    /// Where the service is reached. A secret is only kept while this stays the same.
    Address,
    /// An absolute path.
    Path,
    /// A number of seconds.
    Seconds,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// True or false.
    Switch,
}

/// A field in the section of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingsField {
    /// Its name in the file.
    pub name: &'static str,
    /// What it holds.
    pub kind: FieldKind,
    /// Variables that are looked up, in this order, if the file does not have the field.
    pub variables: &'static [&'static str],
    /// Whether the provider cannot be used without it.
    pub is_required: bool,
}

/// Where the value of a field comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// The settings file.
    File,
    /// A variable in the environment of the server.
    Environment(&'static str),
    /// A variable in `DATA/config.env`.
    ConfigFile(&'static str),
}

/// The settings of one provider.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    /// Its kind.
    pub kind: ProviderKind,
    /// Whether the operator allows its use; `None`: every kind but `local` is allowed.
    pub enabled: Option<bool>,
    /// What an orderly end of the server does with its sandboxes that belong to a thread.
    pub on_exit: OnExit,
    /// The section of its kind.
    fields: BTreeMap<String, Value>,
}

/// Shows names of fields only: a value may be a secret.
impl std::fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields: Vec<&String> = self.fields.keys().collect();
        f.debug_struct("ProviderSettings")
            .field("kind", &self.kind)
            .field("enabled", &self.enabled)
            .field("on_exit", &self.on_exit)
            .field("fields", &fields)
            .finish()
    }
}

/// Settings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct BadSettings {
    /// The field, as a path from the root of the file.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

const fn field(name: &'static str, kind: FieldKind) -> SettingsField {
    SettingsField { name, kind, variables: &[], is_required: false }
}

const fn key(variables: &'static [&'static str]) -> SettingsField {
    SettingsField { name: "api_key", kind: FieldKind::Secret, variables, is_required: true }
}

/// The daemon that the kind `docker` uses where its settings name none.
pub const DOCKER_HOST: &str = "unix:///var/run/docker.sock";

const DOCKER: &[SettingsField] = &[
    field("image", FieldKind::Text),
    field("mount_path", FieldKind::Path),
    field("host", FieldKind::Address),
    field("network", FieldKind::Choice(&["bridge", "none"])),
    field("pull", FieldKind::Choice(&["missing", "never"])),
    field("remote", FieldKind::Switch),
];
const E2B: &[SettingsField] = &[
    key(&["E2B_API_KEY"]),
    field("api_url", FieldKind::Address),
    field("sandbox_url", FieldKind::Address),
    field("template", FieldKind::Text),
    field("cwd", FieldKind::Path),
    field("timeout", FieldKind::Seconds),
];
const DAYTONA: &[SettingsField] = &[
    key(&["DAYTONA_API_KEY"]),
    SettingsField {
        variables: &["DAYTONA_API_URL", "DAYTONA_SERVER_URL"],
        ..field("api_url", FieldKind::Address)
    },
    SettingsField { variables: &["DAYTONA_TARGET"], ..field("target", FieldKind::Text) },
    SettingsField { variables: &["DAYTONA_ORGANIZATION_ID"], ..field("organization", FieldKind::Text) },
    field("snapshot", FieldKind::Text),
    field("user", FieldKind::Text),
    field("cwd", FieldKind::Path),
    field("timeout", FieldKind::Seconds),
];
const AGENTBAY: &[SettingsField] = &[
    key(&["AGENTBAY_API_KEY"]),
    field("region_id", FieldKind::Address),
    field("endpoint", FieldKind::Address),
    field("image_id", FieldKind::Text),
    field("context_path", FieldKind::Path),
    field("timeout", FieldKind::Seconds),
];

impl ProviderKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Container, Self::Docker, Self::Local, Self::E2b, Self::Daytona, Self::Agentbay];

    /// Its name in files, and that of its section.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Docker => "docker",
            Self::Local => "local",
            Self::E2b => "e2b",
            Self::Daytona => "daytona",
            Self::Agentbay => "agentbay",
        }
    }

    /// The fields of its section.
    #[must_use]
    pub const fn fields(self) -> &'static [SettingsField] {
        match self {
            Self::Container | Self::Local => &[],
            Self::Docker => DOCKER,
            Self::E2b => E2B,
            Self::Daytona => DAYTONA,
            Self::Agentbay => AGENTBAY,
        }
    }

    /// What separates its sandboxes from their machine.
    #[must_use]
    pub const fn isolation(self) -> Isolation {
        match self {
            Self::Container | Self::Docker => Isolation::Container,
            Self::Local => Isolation::None,
            Self::E2b | Self::Daytona | Self::Agentbay => Isolation::Vendor,
        }
    }

    /// What a sandbox costs there, in a few words.
    #[must_use]
    pub const fn cost(self) -> &'static str {
        match self {
            Self::Container => "free: your own machine",
            Self::Docker => "free: your own Docker daemon",
            Self::Local => "free: processes of this machine",
            Self::E2b => "about 0.15 $ per hour in E2B's cloud; your account says what you pay",
            Self::Daytona => "what your Daytona account costs; free on your own servers",
            Self::Agentbay => "about 1 ¥ per hour at Alibaba Cloud; your account says what you pay",
        }
    }

    /// What it is best for, in a few words.
    #[must_use]
    pub const fn best_for(self) -> &'static str {
        match self {
            Self::Container => {
                "fast sandboxes with full control: pauses, snapshots, forks and network policy"
            }
            Self::Docker => "images that your Docker daemon has",
            Self::Local => "development and trusted code",
            Self::E2b => "short tasks and CI in E2B's cloud",
            Self::Daytona => "teams that have their sandboxes at Daytona",
            Self::Agentbay => "sandboxes in Alibaba's cloud, near users in China",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Every variable that a field of any kind is looked up in.
    #[must_use]
    pub fn variables() -> Vec<&'static str> {
        let fields = Self::ALL.iter().flat_map(|kind| kind.fields());
        fields.flat_map(|field| field.variables).copied().collect()
    }
}

impl ProviderSettings {
    /// Settings of a kind, with every default.
    #[must_use]
    pub const fn of(kind: ProviderKind) -> Self {
        Self { kind, enabled: None, on_exit: OnExit::Pause, fields: BTreeMap::new() }
    }

    /// Whether the operator allows its use. `local` isolates nothing, so it has to be enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(self.kind != ProviderKind::Local)
    }

    /// Reads a whole file or request; unknown fields are refused.
    pub fn parse(document: &Value) -> Result<Self, BadSettings> {
        let Value::Object(document) = document else {
            return Err(bad("settings", "must be a JSON object"));
        };
        let kind = kind_of(document.get("provider"))?;
        let mut settings = Self::of(kind);
        for (name, value) in document {
            match name.as_str() {
                "provider" => {}
                "enabled" if value.is_null() => {}
                "enabled" => settings.enabled = Some(read(name, value, "true or false")?),
                "on_exit" => settings.on_exit = read(name, value, "keep, pause or destroy")?,
                section if section == kind.as_str() => settings.fields = section_of(kind, value)?,
                _ => return Err(bad(name, format!("is not a setting of the kind {}", kind.as_str()))),
            }
        }
        Ok(settings)
    }

    /// The file. Contains secrets.
    #[must_use]
    pub fn document(&self) -> Value {
        self.with_section(self.fields.clone().into_iter().collect())
    }

    /// As [`Self::document`], without its secrets.
    #[must_use]
    pub fn shown(&self) -> Value {
        let is_secret = |name: &str| {
            self.kind.fields().iter().any(|field| field.name == name && field.kind == FieldKind::Secret)
        };
        let fields = self.fields.clone().into_iter().filter(|(name, _)| !is_secret(name));
        self.with_section(fields.collect())
    }

    fn with_section(&self, section: Map<String, Value>) -> Value {
        let mut document = Map::new();
        document.insert("provider".to_owned(), Value::from(self.kind.as_str()));
        if let Some(enabled) = self.enabled {
            document.insert("enabled".to_owned(), Value::from(enabled));
        }
        document.insert("on_exit".to_owned(), serde_json::to_value(self.on_exit).unwrap_or_default());
        if !section.is_empty() {
            document.insert(self.kind.as_str().to_owned(), Value::Object(section));
        }
        Value::Object(document)
    }

    /// Takes over the secrets of earlier settings that a request left out: they are never shown, so a client cannot send them
    /// back. With another address they are not taken over: the new service must not get the secrets of the old one.
    #[must_use]
    pub fn keeping_secrets_of(mut self, earlier: &Self) -> Self {
        let fields = self.kind.fields();
        let of_kind = |kind: FieldKind| fields.iter().filter(move |field| field.kind == kind);
        let is_same = |field: &SettingsField| self.fields.get(field.name) == earlier.fields.get(field.name);
        if earlier.kind == self.kind && of_kind(FieldKind::Address).all(is_same) {
            for field in of_kind(FieldKind::Secret) {
                if let Some(secret) = earlier.fields.get(field.name) {
                    self.fields.entry(field.name.to_owned()).or_insert_with(|| secret.clone());
                }
            }
        }
        // An empty text removes a secret.
        self.fields.retain(|_, value| value.as_str() != Some(""));
        self
    }

    /// The section with values of the environment and of `config.env` where the file has none, and where each value that can
    /// come from a variable was found.
    #[must_use]
    pub fn resolve(
        &self,
        environment: &BTreeMap<String, String>,
        config_file: &BTreeMap<String, String>,
    ) -> ResolvedSettings {
        let mut resolved = ResolvedSettings { section: self.fields.clone(), sources: BTreeMap::new() };
        for field in self.kind.fields().iter().filter(|field| !field.variables.is_empty()) {
            if self.fields.contains_key(field.name) {
                resolved.sources.insert(field.name, ValueSource::File);
                continue;
            }
            let set = |values: &BTreeMap<String, String>, name: &str| {
                values.get(name).filter(|value| !value.is_empty()).cloned()
            };
            let in_environment =
                field.variables.iter().copied().find_map(|name| {
                    set(environment, name).map(|value| (ValueSource::Environment(name), value))
                });
            let found = in_environment.or_else(|| {
                field.variables.iter().copied().find_map(|name| {
                    set(config_file, name).map(|value| (ValueSource::ConfigFile(name), value))
                })
            });
            if let Some((source, value)) = found {
                resolved.sources.insert(field.name, source);
                resolved.section.insert(field.name.to_owned(), Value::from(value));
            }
        }
        resolved
    }

    /// A required field that [`Self::resolve`] did not find.
    #[must_use]
    pub fn missing(&self, resolved: &ResolvedSettings) -> Option<BadSettings> {
        let mut required = self.kind.fields().iter().filter(|field| field.is_required);
        let field = required.find(|field| !resolved.section.contains_key(field.name))?;
        let variables = field.variables.join(" or ");
        Some(bad(
            &format!("{}.{}", self.kind.as_str(), field.name),
            format!(
                "is not set; set it in the file, or {variables} in the environment or in DATA/config.env"
            ),
        ))
    }
}

/// The values that a provider is opened with. Contains secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ResolvedSettings {
    /// The fields of the kind.
    pub section: BTreeMap<String, Value>,
    /// Where the fields come from that can be set by a variable.
    pub sources: BTreeMap<&'static str, ValueSource>,
}

impl ResolvedSettings {
    /// Where sandboxes of a provider with these settings are: its kind and its addresses, with a default where none is set.
    #[must_use]
    pub fn address(&self, kind: ProviderKind) -> String {
        let mut address = kind.as_str().to_owned();
        for field in kind.fields().iter().filter(|field| field.kind == FieldKind::Address) {
            let value = self.section.get(field.name).and_then(Value::as_str);
            let default = if kind == ProviderKind::Docker { DOCKER_HOST } else { "default" };
            address.push_str(&format!(" {}={}", field.name, value.unwrap_or(default)));
        }
        address
    }
}

impl std::fmt::Debug for ResolvedSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResolvedSettings").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl std::fmt::Display for ValueSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Environment(name) => write!(f, "environment ({name})"),
            Self::ConfigFile(name) => write!(f, "config.env ({name})"),
        }
    }
}

/// Checks the name of a provider: it is a file name, a label and a word in requests.
pub fn check_provider_name(name: &str) -> Result<(), BadSettings> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !begins || name.len() > NAME_MAX || !name.chars().all(plain) {
        let problem = format!("must have 1 to {NAME_MAX} lower-case letters, digits, '-' or '_'");
        return Err(bad("name", problem));
    }
    Ok(())
}

/// The variables of a `config.env`: lines `NAME=value`, with or without `export`, quotes and comments.
#[must_use]
pub fn parse_config_env(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_name.then(|| (name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn bad(field: &str, problem: impl Into<String>) -> BadSettings {
    BadSettings { field: field.to_owned(), problem: problem.into() }
}

fn read<T: serde::de::DeserializeOwned>(name: &str, value: &Value, wanted: &str) -> Result<T, BadSettings> {
    serde_json::from_value(value.clone()).map_err(|_| bad(name, format!("must be {wanted}")))
}

fn kind_of(value: Option<&Value>) -> Result<ProviderKind, BadSettings> {
    let kinds = ProviderKind::ALL.map(ProviderKind::as_str).join(", ");
    let known = value.and_then(|value| ProviderKind::deserialize(value).ok());
    known.ok_or_else(|| bad("provider", format!("must be a kind of provider: {kinds}")))
}

fn section_of(kind: ProviderKind, value: &Value) -> Result<BTreeMap<String, Value>, BadSettings> {
    let Value::Object(section) = value else {
        return Err(bad(kind.as_str(), "must be a JSON object"));
    };
    let mut fields = BTreeMap::new();
    for (name, value) in section.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("{}.{name}", kind.as_str());
        let Some(field) = kind.fields().iter().find(|field| field.name == name) else {
            let known = kind.fields().iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
            return Err(bad(&path, format!("is not a field of {}; it has {known}", kind.as_str())));
        };
        check_value(field.kind, value).map_err(|problem| bad(&path, problem))?;
        fields.insert(name.clone(), value.clone());
    }
    Ok(fields)
}

fn check_value(kind: FieldKind, value: &Value) -> Result<(), String> {
    let is_fine = match (kind, value) {
        (FieldKind::Seconds, Value::Number(number)) => number.as_u64().is_some_and(|seconds| seconds > 0),
        (FieldKind::Path, Value::String(text)) => {
            text.starts_with('/') && !text.split('/').any(|part| part == "..") && is_line(text)
        }
        (FieldKind::Text | FieldKind::Address | FieldKind::Secret, Value::String(text)) => is_line(text),
        (FieldKind::Choice(words), Value::String(text)) => words.contains(&text.as_str()),
        (FieldKind::Switch, Value::Bool(_)) => true,
        _ => false,
    };
    let wanted = match kind {
        FieldKind::Text | FieldKind::Address | FieldKind::Secret => "a text of one line".to_owned(),
        FieldKind::Path => "an absolute path without ..".to_owned(),
        FieldKind::Seconds => "a number of seconds above 0".to_owned(),
        FieldKind::Choice(words) => words.join(" or "),
        FieldKind::Switch => "true or false".to_owned(),
    };
    if is_fine { Ok(()) } else { Err(format!("must be {wanted}")) }
}

fn is_line(text: &str) -> bool {
    text.len() <= VALUE_MAX && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(document: Value) -> ProviderSettings {
        ProviderSettings::parse(&document).expect("valid settings")
    }

    #[test]
    fn every_documented_file_is_read_and_written_again() {
        for document in [
            json!({"provider": "docker", "on_exit": "pause", "docker": {"image": "python:3.12-slim",
                "mount_path": "/workspace", "host": "unix:///run/docker.sock", "network": "bridge",
                "pull": "missing", "remote": true}}),
            json!({"provider": "local", "enabled": true, "on_exit": "keep"}),
            json!({"provider": "e2b", "on_exit": "pause", "e2b": {"api_key": "k", "api_url": "u",
                "sandbox_url": "s", "template": "t", "cwd": "/w", "timeout": 300}}),
            json!({"provider": "daytona", "on_exit": "destroy", "daytona": {"api_key": "k", "api_url": "u",
                "target": "eu", "organization": "o", "snapshot": "s", "user": "root", "cwd": "/w", "timeout": 600}}),
            json!({"provider": "agentbay", "on_exit": "pause", "agentbay": {"api_key": "k", "region_id": "r",
                "endpoint": "e", "image_id": "i", "context_path": "/c"}}),
        ] {
            assert_eq!(parsed(document.clone()).document(), document);
        }
        assert_eq!(parsed(json!({"provider": "docker"})).on_exit, OnExit::Pause);
    }

    #[test]
    fn a_wrong_file_is_refused_by_the_field() {
        for (document, field) in [
            (json!([]), "settings"),
            (json!({}), "provider"),
            (json!({"provider": "vm"}), "provider"),
            (json!({"provider": "docker", "colour": 1}), "colour"),
            (json!({"provider": "docker", "e2b": {}}), "e2b"),
            (json!({"provider": "docker", "on_exit": "sleep"}), "on_exit"),
            (json!({"provider": "docker", "enabled": "yes"}), "enabled"),
            (json!({"provider": "docker", "docker": {"images": "a"}}), "docker.images"),
            (json!({"provider": "docker", "docker": {"mount_path": "../a"}}), "docker.mount_path"),
            (json!({"provider": "docker", "docker": {"network": "host"}}), "docker.network"),
            (json!({"provider": "docker", "docker": {"remote": "yes"}}), "docker.remote"),
            (json!({"provider": "e2b", "e2b": {"timeout": 0}}), "e2b.timeout"),
            (json!({"provider": "e2b", "e2b": {"api_key": "a\nb"}}), "e2b.api_key"),
        ] {
            assert_eq!(ProviderSettings::parse(&document).expect_err("refused").field, field, "{document}");
        }
        for bad in ["", "A", "a/b", "..", ".hidden", "a b", &"a".repeat(NAME_MAX + 1)] {
            assert!(check_provider_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_provider_name("daytona-2").is_ok());
    }

    #[test]
    fn secrets_are_written_kept_and_never_shown() {
        let earlier = parsed(json!({"provider": "e2b", "e2b": {"api_key": "key-1", "template": "base"}}));
        assert!(!earlier.shown().to_string().contains("key-1") && !format!("{earlier:?}").contains("key-1"));
        assert_eq!(earlier.shown()["e2b"]["template"], "base");
        let next =
            parsed(json!({"provider": "e2b", "e2b": {"template": "next"}})).keeping_secrets_of(&earlier);
        assert_eq!(
            (&next.document()["e2b"]["api_key"], &next.document()["e2b"]["template"]),
            (&json!("key-1"), &json!("next"))
        );
        let moved =
            parsed(json!({"provider": "e2b", "e2b": {"api_url": "http://other"}})).keeping_secrets_of(&next);
        assert_eq!(moved.document()["e2b"].get("api_key"), None, "another service does not get the key");
        let none = parsed(json!({"provider": "e2b", "e2b": {"api_key": ""}})).keeping_secrets_of(&next);
        assert_eq!(none.document().get("e2b"), None, "an empty text removes it");
    }

    #[test]
    fn a_key_is_looked_up_in_the_file_the_environment_and_the_config_file() {
        let vars = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let config =
            parse_config_env("# keys\nexport DAYTONA_API_KEY='from-config'\nDAYTONA_TARGET=eu\nbroken\n");
        let environment = vars(&[("DAYTONA_API_KEY", "from-env"), ("DAYTONA_SERVER_URL", "http://own")]);
        let bare = parsed(json!({"provider": "daytona"}));
        let resolved = bare.resolve(&environment, &config);
        assert_eq!(resolved.section["api_key"], "from-env");
        assert_eq!(resolved.sources["api_key"], ValueSource::Environment("DAYTONA_API_KEY"));
        assert_eq!(resolved.sources["api_url"].to_string(), "environment (DAYTONA_SERVER_URL)");
        assert_eq!(resolved.sources["target"].to_string(), "config.env (DAYTONA_TARGET)");
        assert_eq!(bare.missing(&resolved), None);
        let resolved = bare.resolve(&BTreeMap::new(), &config);
        assert_eq!(resolved.section["api_key"], "from-config");
        let resolved = bare.resolve(&BTreeMap::new(), &BTreeMap::new());
        assert!(bare.missing(&resolved).expect("no key").problem.contains("DAYTONA_API_KEY"));
        let own = parsed(json!({"provider": "daytona", "daytona": {"api_key": "own"}}));
        let resolved = own.resolve(&environment, &config);
        assert_eq!(
            (&resolved.section["api_key"], &resolved.sources["api_key"]),
            (&json!("own"), &ValueSource::File)
        );
    }

    #[test]
    fn only_local_has_to_be_enabled() {
        for kind in ProviderKind::ALL {
            assert_eq!(ProviderSettings::of(kind).is_enabled(), kind != ProviderKind::Local, "{kind:?}");
        }
    }
}

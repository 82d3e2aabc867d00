//! Requests of users, checked once here for every front.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    BadLimit, BuildId, LimitsAsk, MountAsk, NetworkPolicy, OnExit, OnTimeout, Storage, TimeoutCounts, Timers,
    Wake,
};

/// The origin of a new sandbox's files, as a user names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// The template alone.
    #[default]
    Template,
    /// A snapshot by id or name; `memory` requests its processes too.
    Snapshot {
        snapshot: String,
        /// Also restore its processes.
        memory: bool,
    },
    /// An archive by its key in object storage.
    Archive { key: String },
    /// The name of a template, or else a snapshot by id or name, with its processes if it has them.
    Named(String),
}

/// Requested timers: `None` leaves one unchanged, `Some(-1)` disables it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimersAsk {
    /// Stop after so many idle seconds.
    pub auto_stop_s: Option<i64>,
    /// Pause after so many idle seconds.
    pub auto_pause_s: Option<i64>,
    /// Write the memory to disk after so many seconds of pause.
    pub checkpoint_after_s: Option<i64>,
    /// Archive after so many seconds of stop.
    pub auto_archive_s: Option<i64>,
    /// Delete after so many seconds of stop; 0: with the stop.
    pub auto_delete_s: Option<i64>,
}

impl TimersAsk {
    /// Checks each requested timer and fills the rest from `base`.
    pub fn resolve(self, base: Timers) -> Result<Timers, BadSpec> {
        Ok(Timers {
            auto_stop_s: timer("auto_stop_s", self.auto_stop_s, base.auto_stop_s, 1)?,
            auto_pause_s: timer("auto_pause_s", self.auto_pause_s, base.auto_pause_s, 1)?,
            checkpoint_after_s: timer(
                "checkpoint_after_s",
                self.checkpoint_after_s,
                base.checkpoint_after_s,
                0,
            )?,
            auto_archive_s: timer("auto_archive_s", self.auto_archive_s, base.auto_archive_s, 0)?,
            auto_delete_s: timer("auto_delete_s", self.auto_delete_s, base.auto_delete_s, 0)?,
        })
    }
}

fn timer(field: &'static str, ask: Option<i64>, base: Option<u64>, min: u64) -> Result<Option<u64>, BadSpec> {
    match ask {
        None => Ok(base),
        Some(-1) => Ok(None),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if (min..=TIMEOUT_S_MAX).contains(&seconds) => Ok(Some(seconds)),
            _ => {
                Err(bad(field, format!("must be between {min} and {TIMEOUT_S_MAX} seconds, or -1 for never")))
            }
        },
    }
}

/// A request to create a sandbox. Built by a front, checked by [`CreateSandbox::check`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CreateSandbox {
    /// Template name or alias; `None` takes the server's default.
    pub template: Option<String>,
    /// The provider; `None`: that of the thread or of the snapshot it is created from, else the server's default.
    pub provider: Option<String>,
    /// A name unique within the tenant.
    pub name: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Requested limits.
    pub limits: LimitsAsk,
    /// Limits where neither the request nor its template or snapshot has one, at most what the machine can give to one sandbox. What is
    /// missing here too is the server's default.
    pub default_limits: LimitsAsk,
    /// Requested policy; `None`: that of the snapshot it is created from, else the public internet.
    pub network: Option<NetworkPolicy>,
    /// Where the layer is stored.
    pub storage: Storage,
    /// Default user of commands.
    pub user: Option<String>,
    /// Working directory of commands; `None`: the template's.
    pub workdir: Option<String>,
    /// Started at every boot.
    pub command: Option<Vec<String>>,
    /// Start the image's entrypoint if neither the request nor the template names a command.
    pub entrypoint: bool,
    /// Absolute lifetime in seconds.
    pub timeout_s: Option<u64>,
    /// What happens at its end.
    pub on_timeout: OnTimeout,
    /// In which phases it counts.
    pub timeout_counts: TimeoutCounts,
    /// The origin of the files.
    pub from: Origin,
    pub timers: TimersAsk,
    /// What happens when its server or thread ends; `None`: the provider's default if it has a thread, else it is kept.
    pub on_exit: Option<OnExit>,
    /// The thread of conversation that it is bound to. A create for a thread that has a sandbox returns that one.
    pub thread: Option<String>,
    pub wake: Wake,
    /// Names in `env` that no fork and no snapshot inherits.
    pub private_env: BTreeSet<String>,
    /// A repeated create with the same key returns the same sandbox.
    pub idempotency_key: Option<String>,
    /// An image of a registry, pulled if it is missing; instead of a template.
    pub image: Option<String>,
    /// Volumes to mount.
    pub mounts: Vec<MountAsk>,
    /// The build whose step it runs; set only by the service.
    pub build: Option<BuildId>,
    /// Its ports are open to everyone who knows their address.
    pub public: bool,
    /// The host name that apps on its ports see in requests; `${PORT}` stands for the port.
    pub mask_host: Option<String>,
    /// Ports whose apps use TLS themselves.
    pub https_ports: BTreeSet<u16>,
    /// Data that a front has to return; no rule reads it.
    pub annotations: BTreeMap<String, String>,
    /// Variables that contain the placeholder of a secret: the variable's name and the secret's.
    pub secrets: BTreeMap<String, String>,
    /// Wait for a place if the node or the tenant's quota is full; `None`: a full server refuses at once.
    pub queue: Option<QueueAsk>,
}

/// How a create waits for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueAsk {
    /// For at most so many seconds; `None`: the server's default.
    pub timeout_s: Option<u64>,
}

/// A change of a live sandbox; `None` leaves a field unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateSandbox {
    /// Replaces all labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Replaces the environment of commands that start from now on; not allowed while it is paused.
    pub env: Option<BTreeMap<String, String>>,
    /// New limits; missing ones stay.
    pub limits: LimitsAsk,
    /// New policy.
    pub network: Option<NetworkPolicy>,
    /// A new lifetime from now on; `Some(None)` removes it, 0 ends it at once.
    pub timeout_s: Option<Option<u64>>,
    /// What happens at its end.
    pub on_timeout: Option<OnTimeout>,
    /// In which phases it counts.
    pub timeout_counts: Option<TimeoutCounts>,
    /// New timers; missing ones stay.
    pub timers: TimersAsk,
    /// What happens when its server or thread ends.
    pub on_exit: Option<OnExit>,
    pub wake: Option<Wake>,
    /// A minimal lifetime from now on: the lifetime is extended, never shortened, and an unlimited one stays unlimited.
    pub timeout_at_least_s: Option<u64>,
    /// Whether its ports are open to everyone.
    pub public: Option<bool>,
    /// The host name that apps see in requests; `Some(None)`: the requested one.
    pub mask_host: Option<Option<String>>,
    /// Replaces the ports whose apps use TLS themselves.
    pub https_ports: Option<BTreeSet<u16>>,
    /// Replaces all annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Replaces all variables that contain the placeholder of a secret; not allowed while it is paused.
    pub secrets: Option<BTreeMap<String, String>>,
}

/// An invalid request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadSpec {
    /// A limit is out of range.
    #[error(transparent)]
    Limit(#[from] BadLimit),
    /// A text field is wrong.
    #[error("{field} {why}")]
    Text {
        /// The name of the field in the API.
        field: &'static str,
        /// The problem.
        why: String,
    },
}

// LIMIT: large enough for any real use; together they keep one row under 512 KiB.
const NAME_MAX: usize = 63;
const THREAD_MAX: usize = 255;
const LABELS_MAX: usize = 64;
const LABELS_BYTES_MAX: usize = 64 * 1_024;
const LABEL_KEY_MAX: usize = 256;
const LABEL_VALUE_MAX: usize = 4_096;
const HTTPS_PORTS_MAX: usize = 64;
const ANNOTATIONS_MAX: usize = 32;
const ANNOTATIONS_BYTES_MAX: usize = 64 * 1_024;
const ENV_MAX: usize = 1_024;
const ENV_BYTES_MAX: usize = 256 * 1_024;
const SECRETS_MAX: usize = 64;
const COMMAND_BYTES_MAX: usize = 128 * 1_024;
const TIMEOUT_S_MAX: u64 = 365 * 24 * 3_600;

impl CreateSandbox {
    /// Refuses an invalid request, naming the field.
    pub fn check(&self) -> Result<(), BadSpec> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        check_labels(&self.labels)?;
        check_annotations(&self.annotations)?;
        check_mask(self.mask_host.as_deref())?;
        check_ports(&self.https_ports)?;
        check_env(&self.env)?;
        check_secrets(&self.secrets)?;
        if let Some(user) = &self.user {
            check_plain("user", user, 32)?;
        }
        if let Some(workdir) = &self.workdir {
            check_plain("workdir", workdir, 4_096)?;
            if !workdir.starts_with('/') {
                return Err(bad("workdir", "must be absolute"));
            }
        }
        if let Some(template) = &self.template {
            check_plain("template", template, 256)?;
        }
        if let Some(image) = &self.image {
            if self.template.is_some() || self.from != Origin::Template {
                return Err(bad("image", "cannot be combined with a template or a snapshot"));
            }
            image.parse::<crate::TemplateRef>().map_err(|why| bad("image", why.to_string()))?;
        }
        crate::check_mounts(&self.mounts)?;
        if let Some(key) = &self.idempotency_key {
            check_plain("idempotency_key", key, 255)?;
        }
        if let Some(command) = &self.command {
            check_command(command)?;
        }
        if let Some(thread) = &self.thread {
            check_thread(thread)?;
        }
        match &self.from {
            Origin::Template => {}
            Origin::Snapshot { snapshot, .. } => check_plain("snapshot", snapshot, 256)?,
            Origin::Archive { key } => check_plain("archive", key, 256)?,
            Origin::Named(word) if self.template.is_none() => check_plain("template", word, 256)?,
            Origin::Named(_) => return Err(bad("template", "is named twice")),
        }
        if let Some(queue) = &self.queue {
            check_queue(queue, &self.from)?;
        }
        if let Some(name) = self.private_env.iter().find(|name| !self.env.contains_key(*name)) {
            return Err(bad("private_env", format!("names {name:?}, which is not in env")));
        }
        self.timers.resolve(Timers::default())?;
        check_timeout(self.timeout_s)?;
        self.limits.resolve(crate::Limits::default())?;
        Ok(())
    }
}

impl UpdateSandbox {
    /// Refuses an invalid change, naming the field.
    pub fn check(&self) -> Result<(), BadSpec> {
        if let Some(labels) = &self.labels {
            check_labels(labels)?;
        }
        if let Some(env) = &self.env {
            check_env(env)?;
        }
        if let Some(secrets) = &self.secrets {
            check_secrets(secrets)?;
        }
        if let Some(annotations) = &self.annotations {
            check_annotations(annotations)?;
        }
        check_mask(self.mask_host.as_ref().and_then(|mask| mask.as_deref()))?;
        check_ports(self.https_ports.as_ref().unwrap_or(&BTreeSet::new()))?;
        if self.timeout_s.is_some() && self.timeout_at_least_s.is_some() {
            return Err(bad("timeout_s", "and timeout_at_least_s cannot be combined"));
        }
        self.timers.resolve(Timers::default())?;
        check_timeout(self.timeout_s.flatten().filter(|s| *s != 0))?;
        check_timeout(self.timeout_at_least_s.filter(|s| *s != 0))?;
        self.limits.resolve(crate::Limits::default())?;
        Ok(())
    }
}

// LIMIT: longer than a day a server is not full, but too small.
const QUEUE_S_MAX: u64 = 24 * 3_600;

fn check_queue(queue: &QueueAsk, from: &Origin) -> Result<(), BadSpec> {
    if matches!(from, Origin::Archive { .. }) {
        return Err(bad("queue", "cannot be combined with an archive"));
    }
    match queue.timeout_s {
        Some(seconds) if !(1..=QUEUE_S_MAX).contains(&seconds) => {
            Err(bad("queue_timeout_s", format!("must be between 1 and {QUEUE_S_MAX} seconds")))
        }
        Some(_) | None => Ok(()),
    }
}

fn bad(field: &'static str, why: impl Into<String>) -> BadSpec {
    BadSpec::Text { field, why: why.into() }
}

/// Refuses a name that could be an id, or that cannot be typed.
pub fn check_name(name: &str) -> Result<(), BadSpec> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(bad("name", format!("must have 1 to {NAME_MAX} characters")));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
        return Err(bad(
            "name",
            "may contain letters, digits, '-', '_' and '.', and must start with a letter or digit",
        ));
    }
    if name.parse::<crate::SandboxId>().is_ok() {
        return Err(bad("name", "looks like a sandbox id; choose another"));
    }
    Ok(())
}

/// A thread whose name begins with this is forgotten when its sandbox is deleted: for clients that come and go, whose threads
/// nobody ends.
pub const TRANSIENT_THREADS: &str = "transient-";

/// The beginning of the names of threads of tool clients, which are transient; the forks and snapshots of their sandbox end with it.
pub const CLIENT_THREADS: &str = "transient-mcp-";

/// Refuses a name that no thread can have.
pub fn check_thread(thread: &str) -> Result<(), BadSpec> {
    check_plain("thread", thread, THREAD_MAX)
}

fn check_plain(field: &'static str, text: &str, max: usize) -> Result<(), BadSpec> {
    if text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        return Err(bad(field, format!("must have 1 to {max} printable characters")));
    }
    Ok(())
}

/// Keys are printable; values may be any text, because other services allow that for metadata.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), BadSpec> {
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    if labels.len() > LABELS_MAX || bytes > LABELS_BYTES_MAX {
        return Err(bad("labels", format!("has more than {LABELS_MAX} entries or {LABELS_BYTES_MAX} bytes")));
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_KEY_MAX || key.chars().any(char::is_control) {
            return Err(bad("labels", format!("keys have 1 to {LABEL_KEY_MAX} printable characters")));
        }
        if value.len() > LABEL_VALUE_MAX || value.contains('\0') {
            return Err(bad("labels", format!("values have at most {LABEL_VALUE_MAX} bytes and no NUL")));
        }
    }
    Ok(())
}

/// Data of a front: any text without NUL, under `front.word`.
fn check_annotations(annotations: &BTreeMap<String, String>) -> Result<(), BadSpec> {
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if annotations.len() > ANNOTATIONS_MAX || bytes > ANNOTATIONS_BYTES_MAX {
        let why = format!("have more than {ANNOTATIONS_MAX} entries or {ANNOTATIONS_BYTES_MAX} bytes");
        return Err(bad("annotations", why));
    }
    let named =
        |key: &String| key.split_once('.').is_some_and(|(front, word)| !front.is_empty() && !word.is_empty());
    match annotations.iter().find(|(key, value)| !named(key) || value.contains('\0')) {
        Some((key, _)) => Err(bad("annotations", format!("{key:?} is not `front.word` with a string value"))),
        None => Ok(()),
    }
}

/// A host name that is valid in a header, with an optional port.
fn check_mask(mask: Option<&str>) -> Result<(), BadSpec> {
    let Some(mask) = mask else { return Ok(()) };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
    let host = mask.replace("${PORT}", "65535");
    if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
        return Err(bad("mask_host", "must be a host name, in which ${PORT} may stand for the port"));
    }
    Ok(())
}

fn check_ports(ports: &BTreeSet<u16>) -> Result<(), BadSpec> {
    if ports.len() > HTTPS_PORTS_MAX || ports.contains(&0) {
        return Err(bad("https_ports", format!("are at most {HTTPS_PORTS_MAX} ports from 1 to 65535")));
    }
    Ok(())
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), BadSpec> {
    let bytes: usize = env.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    if env.len() > ENV_MAX || bytes > ENV_BYTES_MAX {
        return Err(bad("env", format!("has more than {ENV_MAX} variables or {ENV_BYTES_MAX} bytes")));
    }
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(bad(
                "env",
                "names must not be empty or contain '='; names and values must not contain a NUL byte",
            ));
        }
    }
    Ok(())
}

/// Checks only the names of secrets; the service checks that they exist.
fn check_secrets(secrets: &BTreeMap<String, String>) -> Result<(), BadSpec> {
    if secrets.len() > SECRETS_MAX {
        return Err(bad("secrets", format!("has more than {SECRETS_MAX} variables")));
    }
    for (variable, secret) in secrets {
        if variable.is_empty() || variable.len() > LABEL_KEY_MAX || variable.contains(['=', '\0']) {
            return Err(bad("secrets", "names of variables must not be empty or contain '=' or a NUL byte"));
        }
        crate::check_secret_name(secret).map_err(|why| bad("secrets", why.to_string()))?;
    }
    Ok(())
}

fn check_command(command: &[String]) -> Result<(), BadSpec> {
    if command.first().is_none_or(String::is_empty) {
        return Err(bad("command", "needs a program"));
    }
    if command.iter().map(|a| a.len() + 1).sum::<usize>() > COMMAND_BYTES_MAX {
        return Err(bad("command", format!("is longer than {COMMAND_BYTES_MAX} bytes")));
    }
    if command.iter().any(|a| a.contains('\0')) {
        return Err(bad("command", "contains a NUL byte"));
    }
    Ok(())
}

fn check_timeout(timeout_s: Option<u64>) -> Result<(), BadSpec> {
    match timeout_s {
        Some(0) => Err(bad("timeout_s", "must be at least 1")),
        Some(s) if s > TIMEOUT_S_MAX => Err(bad("timeout_s", format!("must be at most {TIMEOUT_S_MAX}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> CreateSandbox {
        CreateSandbox { name: Some(name.to_owned()), ..Default::default() }
    }

    #[test]
    fn an_empty_request_is_fine() {
        assert_eq!(CreateSandbox::default().check(), Ok(()));
    }

    #[test]
    fn a_queued_create_has_a_wait_of_some_length_and_no_archive() {
        let queued = |timeout_s| CreateSandbox { queue: Some(QueueAsk { timeout_s }), ..Default::default() };
        for fine in [None, Some(1), Some(QUEUE_S_MAX)] {
            assert_eq!(queued(fine).check(), Ok(()), "{fine:?}");
        }
        for wrong in [Some(0), Some(QUEUE_S_MAX + 1), Some(u64::MAX)] {
            assert!(queued(wrong).check().is_err(), "{wrong:?}");
        }
        let from = Origin::Archive { key: "key".to_owned() };
        assert!(CreateSandbox { from, ..queued(None) }.check().is_err());
    }

    #[test]
    fn odd_names_are_refused() {
        for name in
            ["", "-x", "a b", "a/b", "ü", "a\0b", "../x", "a\nb", &"x".repeat(64), "abcdefghijklmnopqrst"]
        {
            assert!(named(name).check().is_err(), "{name:?}");
        }
        for name in ["a", "my-box_1.2", "0x"] {
            assert_eq!(named(name).check(), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn labels_are_any_text_of_some_size() {
        let labelled = |key: &str, value: &str| CreateSandbox {
            labels: [(key.to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        for (key, value) in [("a b", ""), ("a=b,c", "line\nline\t\u{1b}"), ("ü", &"x".repeat(4_096))] {
            assert_eq!(labelled(key, value).check(), Ok(()), "{key:?}");
        }
        for (key, value) in [("", "x"), ("a\nb", "x"), ("a", "\0"), ("a", &"x".repeat(4_097))] {
            assert!(labelled(key, value).check().is_err(), "{key:?}");
        }
        let many = (0..20).map(|n| (n.to_string(), "x".repeat(4_000))).collect();
        assert!(CreateSandbox { labels: many, ..Default::default() }.check().is_err());
    }

    #[test]
    fn annotations_are_named_by_their_front() {
        let noted = |key: &str, value: &str| CreateSandbox {
            annotations: [(key.to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        assert_eq!(noted("e2b.network", "{\n}").check(), Ok(()));
        for (key, value) in
            [("e2b", "x"), (".x", "x"), ("e2b.", "x"), ("e2b.x", "\0"), ("e2b.x", &"x".repeat(65_536))]
        {
            assert!(noted(key, value).check().is_err(), "{key:?}");
        }
    }

    #[test]
    fn environment_without_sense_is_refused() {
        for (key, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            let spec =
                CreateSandbox { env: [(key.to_owned(), value.to_owned())].into(), ..Default::default() };
            assert!(spec.check().is_err(), "{key:?}={value:?}");
        }
    }

    #[test]
    fn commands_and_timeouts_without_sense_are_refused() {
        for command in
            [vec![], vec![String::new()], vec!["a\0".to_owned()], vec!["x".repeat(COMMAND_BYTES_MAX)]]
        {
            assert!(CreateSandbox { command: Some(command), ..Default::default() }.check().is_err());
        }
        for timeout_s in [Some(0), Some(u64::MAX)] {
            assert!(CreateSandbox { timeout_s, ..Default::default() }.check().is_err());
        }
    }
    #[test]
    fn timers_that_are_not_named_stay_and_minus_one_switches_off() {
        let base = Timers { auto_stop_s: Some(5), auto_pause_s: Some(6), ..Timers::default() };
        assert_eq!(TimersAsk::default().resolve(base), Ok(base));
        let ask = TimersAsk { auto_stop_s: Some(-1), auto_delete_s: Some(0), ..TimersAsk::default() };
        let wanted = Timers { auto_stop_s: None, auto_delete_s: Some(0), ..base };
        assert_eq!(ask.resolve(base), Ok(wanted));
    }

    #[test]
    fn timers_without_sense_are_refused_by_name() {
        let none = TimersAsk::default();
        let most = i64::try_from(TIMEOUT_S_MAX).expect("a year");
        for (ask, field) in [
            // An idle time of zero would stop a sandbox that has just started.
            (TimersAsk { auto_stop_s: Some(0), ..none }, "auto_stop_s"),
            (TimersAsk { auto_pause_s: Some(0), ..none }, "auto_pause_s"),
            (TimersAsk { checkpoint_after_s: Some(-2), ..none }, "checkpoint_after_s"),
            (TimersAsk { auto_archive_s: Some(most + 1), ..none }, "auto_archive_s"),
            (TimersAsk { auto_delete_s: Some(i64::MIN), ..none }, "auto_delete_s"),
        ] {
            let refusal = ask.resolve(Timers::default()).expect_err(field);
            assert!(refusal.to_string().starts_with(field), "{refusal}");
            assert!(CreateSandbox { timers: ask, ..Default::default() }.check().is_err(), "{field}");
            assert!(UpdateSandbox { timers: ask, ..Default::default() }.check().is_err(), "{field}");
        }
        for ask in [
            TimersAsk {
                checkpoint_after_s: Some(0),
                auto_archive_s: Some(0),
                auto_delete_s: Some(0),
                ..none
            },
            TimersAsk { auto_stop_s: Some(most), auto_pause_s: Some(1), ..none },
        ] {
            assert_eq!(CreateSandbox { timers: ask, ..Default::default() }.check(), Ok(()));
        }
    }

    #[test]
    fn private_names_must_be_in_the_environment() {
        let env = BTreeMap::from([("KEY".to_owned(), "x".to_owned())]);
        let spec = |name: &str| CreateSandbox {
            env: env.clone(),
            private_env: [name.to_owned()].into(),
            ..Default::default()
        };
        assert_eq!(spec("KEY").check(), Ok(()));
        assert!(spec("OTHER").check().is_err());
    }
}

//! The settings files of providers: `DATA/sandboxes/NAME.json` and `DATA/config.env`. They are read at the start and
//! whenever they change; a file that is missing or wrong closes nothing that is open.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::{
    BadSettings, Code, ProviderKind, ProviderSettings, ResolvedSettings, check_provider_name,
    parse_config_env,
};
use atoll_provider::Provider;
use rustix::fs::OFlags;
use serde_json::Value;
use tokio::time::Instant;

use super::{ProviderEntry, ProviderRegistry};
use crate::ServiceError;

/// LIMIT: settings files of one server.
const FILES_MAX: usize = 64;
/// LIMIT: bytes of one settings file.
const BYTES_MAX: u64 = 64 * 1_024;
/// LIMIT: a provider that cannot be opened in this time counts as unreachable.
const OPENS_WITHIN: Duration = Duration::from_secs(20);

/// LIMIT: how long a provider that could not be opened waits for the next attempt.
const OPENS_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A provider that is to be opened.
#[derive(Debug)]
pub struct ProviderRequest {
    /// Its name: that of the settings file.
    pub name: &'static str,
    /// Its kind.
    pub kind: ProviderKind,
    /// The fields of its kind. Contains secrets.
    pub settings: ResolvedSettings,
}

/// Opens providers of every kind but `container`; the composition root implements it.
///
/// A provider is opened again when its settings change, while the one before may still have work under way. Both must find the
/// instances that either of them made.
#[async_trait]
pub trait BuildProvider: Send + Sync {
    /// Opens a provider. The error says in one sentence what is wrong.
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError>;
}

/// The settings files, and how their providers are opened.
pub struct ProviderFiles {
    data: PathBuf,
    builder: Arc<dyn BuildProvider>,
    /// Variables of the server that settings are looked up in.
    environment: BTreeMap<String, String>,
    /// The operator allowed `local` without a settings file.
    allows_local: bool,
    /// Held while files are changed, and while they are read and their providers opened, so that no older settings replace
    /// newer ones.
    pub(super) changes: tokio::sync::Mutex<()>,
    /// What was read last.
    last_read: tokio::sync::Mutex<LastRead>,
    /// What the providers of the registry were made from.
    in_effect: Mutex<FileContents>,
    names: Mutex<BTreeSet<&'static str>>,
}

/// Everything that the providers depend on, as text.
#[derive(Default, Clone, PartialEq, Eq)]
struct FileContents {
    config: String,
    /// By name of the provider; an error says why a file cannot be read.
    files: BTreeMap<String, Result<String, String>>,
}

/// What was read last, and which providers of it could not be opened.
#[derive(Default)]
struct LastRead {
    contents: FileContents,
    /// When a provider is to be opened again, by name: a daemon may be started after this server.
    retries: BTreeMap<String, Instant>,
}

/// A provider that was opened and is not in the registry yet.
pub(crate) struct OpenedProvider {
    pub(crate) provider: Arc<dyn Provider>,
    pub(super) settings: ProviderSettings,
}

/// What became of a settings file that was read.
enum FileOutcome {
    Opened(OpenedProvider),
    /// Its provider did not open; it may later.
    NotOpened,
    /// There is nothing to open until the file changes.
    Settled,
}

impl ProviderFiles {
    /// The files of a data folder.
    #[must_use]
    pub fn new(data: &Path, builder: Arc<dyn BuildProvider>, environment: BTreeMap<String, String>) -> Self {
        Self {
            data: data.to_owned(),
            builder,
            environment,
            allows_local: false,
            changes: tokio::sync::Mutex::default(),
            last_read: tokio::sync::Mutex::default(),
            in_effect: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Allows the provider `local` also where no settings file enables it.
    #[must_use]
    pub fn allowing_local(self, allows_local: bool) -> Self {
        Self { allows_local, ..self }
    }

    /// Whether a provider needs no settings file.
    pub(super) fn needs_no_file(&self, name: &str) -> Option<ProviderSettings> {
        let is_local = self.allows_local && name == ProviderKind::Local.as_str();
        // The embedded engine is always there.
        let kind = match name == ProviderKind::Container.as_str() {
            true => Some(ProviderKind::Container),
            false => is_local.then_some(ProviderKind::Local),
        };
        kind.map(ProviderSettings::of)
    }

    fn is_enabled(&self, settings: &ProviderSettings) -> bool {
        let is_allowed_local = self.allows_local && settings.kind == ProviderKind::Local;
        settings.is_enabled() || (is_allowed_local && settings.enabled.is_none())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(format!("{name}.json"))
    }

    fn make_folder(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.folder())
    }

    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    fn folder(&self) -> PathBuf {
        self.data.join("sandboxes")
    }

    /// The settings in a file; `None` where there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<ProviderSettings>, ServiceError> {
        match read_file(&self.path(name)) {
            Ok(Some(text)) => Ok(Some(parse(name, &text)?)),
            Ok(None) => Ok(None),
            Err(why) => Err(unusable(name, &why)),
        }
    }

    /// Replaces a file whole, or not at all.
    pub(super) fn write(&self, name: &str, settings: &ProviderSettings) -> std::io::Result<()> {
        self.make_folder()?;
        let fresh = self.folder().join(format!(".{name}.json.new"));
        let text = serde_json::to_vec_pretty(&settings.document())?;
        // What an interrupted write left is not written to: it may be a link to another file.
        match std::fs::remove_file(&fresh) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(cause),
            Ok(()) | Err(_) => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&fresh, self.path(name))?;
        std::fs::File::open(self.folder())?.sync_all()
    }

    /// Fills in what the file leaves to the environment and to `config.env`.
    pub(super) fn resolve(&self, settings: &ProviderSettings) -> ResolvedSettings {
        settings.resolve(&self.environment, &parse_config_env(&self.config()))
    }

    /// Whether a provider was made from the files as they are now.
    pub(super) fn is_in_effect(&self, name: &str) -> bool {
        let now = self.scan();
        let known = self.in_effect.lock().unwrap_or_else(PoisonError::into_inner);
        known.config == now.config && known.files.get(name) == now.files.get(name)
    }

    /// Notes that the providers of the registry are made from what was read last.
    pub(super) async fn note_in_effect(&self) {
        let contents = self.last_read.lock().await.contents.clone();
        *self.in_effect.lock().unwrap_or_else(PoisonError::into_inner) = contents;
    }

    /// Opens the provider of valid settings. `None`: it needs none, because the embedded engine is always open.
    pub(super) async fn open(
        &self,
        name: &str,
        settings: &ProviderSettings,
    ) -> Result<Option<Arc<dyn Provider>>, ServiceError> {
        if !self.is_enabled(settings) {
            return Err(not_enabled(name, settings.kind));
        }
        if settings.kind == ProviderKind::Container {
            return Ok(None);
        }
        let resolved = self.resolve(settings);
        if let Some(missing) = settings.missing(&resolved) {
            return Err(unusable(name, &missing.to_string()));
        }
        let request = ProviderRequest { name: self.interned(name), kind: settings.kind, settings: resolved };
        match tokio::time::timeout(OPENS_WITHIN, self.builder.build(request)).await {
            Ok(opened) => opened.map(Some),
            Err(_) => Err(unusable(name, &format!("it did not answer within {OPENS_WITHIN:?}"))),
        }
    }

    /// A name that lives as long as the process, as leases of providers need it.
    fn interned(&self, name: &str) -> &'static str {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(name).copied() {
            Some(known) => known,
            None => {
                // LIMIT: one small text per name that was ever used.
                let known: &'static str = Box::leak(name.to_owned().into_boxed_str());
                names.insert(known);
                known
            }
        }
    }

    /// The text of `DATA/config.env`; empty where there is none, or what there is cannot be used.
    fn config(&self) -> String {
        read_file(&self.data.join("config.env")).ok().flatten().unwrap_or_default()
    }

    fn scan(&self) -> FileContents {
        let config = self.config();
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(self.folder()).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_settings = path.extension().is_some_and(|end| end == "json");
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !is_settings || name.starts_with('.') || files.len() >= FILES_MAX {
                continue;
            }
            if let Some(content) = read_file(&path).transpose() {
                files.insert(name, content);
            }
        }
        let local = ProviderKind::Local.as_str();
        if self.allows_local && !files.contains_key(local) {
            files.insert(
                local.to_owned(),
                Ok(ProviderSettings::of(ProviderKind::Local).document().to_string()),
            );
        }
        FileContents { config, files }
    }
}

impl ProviderRegistry {
    /// Opens the providers of the settings files. One that cannot be opened is listed with the reason.
    pub async fn with_files(mut self, files: ProviderFiles) -> Self {
        if let Err(error) = files.make_folder() {
            tracing::warn!(%error, "the folder for settings of providers cannot be made");
        }
        self.files = Some(Arc::new(files));
        for opened in self.read_files().await {
            self.install(opened);
        }
        if let Some(files) = self.files() {
            files.note_in_effect().await;
        }
        self
    }

    pub(super) fn files(&self) -> Option<&Arc<ProviderFiles>> {
        self.files.as_ref()
    }

    /// Reads what changed since the last time. Files that are gone or wrong make their provider refuse new sandboxes;
    /// providers of changed and new files are opened and returned.
    pub(crate) async fn read_files(&self) -> Vec<OpenedProvider> {
        let Some(files) = self.files.clone() else { return Vec::new() };
        let mut last = files.last_read.lock().await;
        let reader = Arc::clone(&files);
        let Ok(now) = tokio::task::spawn_blocking(move || reader.scan()).await else { return Vec::new() };
        let LastRead { contents: before, retries } = &mut *last;
        let is_due = |name: &str| retries.get(name).is_some_and(|at| *at <= Instant::now());
        let is_same =
            |name: &str| before.config == now.config && before.files.get(name) == now.files.get(name);
        let changed: Vec<_> = now.files.iter().filter(|(name, _)| !is_same(name) || is_due(name)).collect();
        let results = changed.iter().map(|(name, content)| self.read_one(&files, name, content));
        let results = futures::future::join_all(results).await;
        retries.retain(|name, _| now.files.contains_key(name));
        let mut opened = Vec::new();
        for ((name, _), result) in changed.into_iter().zip(results) {
            retries.remove(name);
            match result {
                FileOutcome::Opened(provider) => opened.push(provider),
                FileOutcome::NotOpened => {
                    retries.insert(name.clone(), Instant::now() + OPENS_AGAIN_AFTER);
                }
                FileOutcome::Settled => {}
            }
        }
        for name in before.files.keys().filter(|name| !now.files.contains_key(*name)) {
            tracing::info!(provider = name, "the settings of a provider were removed");
            self.removed(name);
        }
        *before = now;
        opened
    }

    async fn read_one(
        &self,
        files: &ProviderFiles,
        name: &str,
        content: &Result<String, String>,
    ) -> FileOutcome {
        let settings = match content {
            Ok(text) => parse(name, text),
            Err(why) => Err(unusable(name, why)),
        };
        let settings = match settings {
            Ok(settings) => settings,
            Err(refusal) => {
                self.refuse_logged(name, None, refusal);
                return FileOutcome::Settled;
            }
        };
        match files.open(name, &settings).await {
            Ok(Some(provider)) => FileOutcome::Opened(OpenedProvider { provider, settings }),
            Ok(None) => {
                self.set_container(name, &settings);
                FileOutcome::Settled
            }
            Err(refusal) => {
                let is_final = matches!(refusal.code, Code::ProviderNotAllowed | Code::Unsupported);
                self.refuse_logged(name, Some(settings.kind), refusal);
                if is_final { FileOutcome::Settled } else { FileOutcome::NotOpened }
            }
        }
    }

    /// Refuses new sandboxes. The log has a reason once, not at every attempt.
    fn refuse_logged(&self, name: &str, kind: Option<ProviderKind>, refusal: ServiceError) {
        let before = self.entry(name).and_then(|entry| entry.refusal);
        let is_new = before.is_none_or(|before| before.message != refusal.message);
        if is_new && refusal.code != Code::ProviderNotAllowed {
            tracing::warn!(provider = name, "{refusal}");
        }
        self.refuse(name, kind, refusal);
    }

    /// The embedded engine is open already; its file holds what the service uses.
    fn set_container(&self, name: &str, settings: &ProviderSettings) {
        if let Some(entry) = self.entry(name) {
            self.put(name, ProviderEntry { refusal: None, on_exit: settings.on_exit, ..entry });
        }
    }

    /// Closes the provider of a settings file until the next attempt to open it; `false`: it has no file.
    pub(super) async fn close(&self, name: &str, refusal: ServiceError) -> bool {
        let Some(files) = &self.files else { return false };
        let mut last = files.last_read.lock().await;
        let Some(Ok(text)) = last.contents.files.get(name) else { return false };
        let kind = parse(name, text).ok().map(|settings| settings.kind);
        self.put(name, ProviderEntry::refused(kind, refusal));
        last.retries.insert(name.to_owned(), Instant::now() + OPENS_AGAIN_AFTER);
        true
    }

    /// Keeps a provider as it is, refuses new sandboxes, and looks at its settings again later.
    pub(super) async fn postpone(&self, name: &str, kind: ProviderKind, refusal: ServiceError) {
        self.refuse_logged(name, Some(kind), refusal);
        if let Some(files) = &self.files {
            files.last_read.lock().await.retries.insert(name.to_owned(), Instant::now() + OPENS_AGAIN_AFTER);
        }
    }

    fn removed(&self, name: &str) {
        if name == ProviderKind::Container.as_str() {
            return self.set_container(name, &ProviderSettings::of(ProviderKind::Container));
        }
        let message = format!("provider {name} has no settings any more; its sandboxes go on");
        let hint = "write its settings again with `atoll provider set`";
        self.refuse(name, None, ServiceError::new(Code::ProviderNotConfigured, message).hint(hint));
        self.forget(name);
    }

    /// Puts an opened provider in the place of the one before.
    pub(crate) fn install(&self, opened: OpenedProvider) {
        let name = opened.provider.name();
        let entry = ProviderEntry {
            kind: opened.settings.kind.as_str().to_owned(),
            on_exit: opened.settings.on_exit,
            ..ProviderEntry::open(opened.provider)
        };
        self.put(name, entry);
    }
}

/// The content of a file; `None` where there is none. The error is a text for people.
/// Reads a file of the operator. What is checked is what is read: the name may mean another file a moment later, such as a pipe
/// that nobody writes to, or a device without an end.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let unreadable = |cause: std::io::Error| format!("its settings file cannot be read: {cause}");
    let too_large = || format!("its settings file is larger than {BYTES_MAX} bytes");
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(unreadable(cause)),
    };
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err("its settings are not a file".to_owned());
    }
    if found.len() > BYTES_MAX {
        return Err(too_large());
    }
    let mut text = String::new();
    // It may grow meanwhile.
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > BYTES_MAX { Err(too_large()) } else { Ok(Some(text)) }
}

fn parse(name: &str, text: &str) -> Result<ProviderSettings, ServiceError> {
    let document: Value = serde_json::from_str(text).map_err(|cause| {
        // The text of the cause has a position and no content, which may be a secret.
        unusable(
            name,
            &format!("its settings file is not JSON (line {}, column {})", cause.line(), cause.column()),
        )
    })?;
    check(name, &document).map_err(|bad| unusable(name, &bad.to_string()))
}

/// The settings of a provider of this name.
pub(super) fn check(name: &str, document: &Value) -> Result<ProviderSettings, BadSettings> {
    check_provider_name(name)?;
    let settings = ProviderSettings::parse(document)?;
    // There is one of each: two of kind `local` would take each other's control groups for strays.
    let reserved = [ProviderKind::Container, ProviderKind::Local];
    let own_name = settings.kind.as_str();
    let of_other_kind = reserved.iter().find(|kind| kind.as_str() == name && **kind != settings.kind);
    let problem = match of_other_kind {
        Some(kind) => format!("must be {}: the name belongs to that kind", kind.as_str()),
        None if reserved.contains(&settings.kind) && name != own_name => {
            format!("there is one provider of kind {own_name}, and it has that name")
        }
        None => return Ok(settings),
    };
    Err(BadSettings { field: "provider".to_owned(), problem })
}

pub(super) fn unusable(name: &str, why: &str) -> ServiceError {
    ServiceError::new(Code::ProviderNotConfigured, format!("provider {name} cannot be used: {why}")).hint(
        format!(
            "`atoll provider test {name}` says what is wrong; its settings are in DATA/sandboxes/{name}.json"
        ),
    )
}

pub(super) fn not_enabled(name: &str, kind: ProviderKind) -> ServiceError {
    let error = |message: String, hint: &str| ServiceError::new(Code::ProviderNotAllowed, message).hint(hint);
    match kind {
        ProviderKind::Local => error(
            format!("provider {name} is not allowed: it runs code on this machine without isolation"),
            "if you trust all code that will run there, start the server with --allow-local, or run `atoll provider set local --enable`",
        ),
        _ => {
            error(format!("provider {name} is disabled"), "enable it with `atoll provider set NAME --enable`")
        }
    }
}

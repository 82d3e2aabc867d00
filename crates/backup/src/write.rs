//! Makes a backup.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use atoll_storage::{PoolCopies, pack_folders};
use atoll_store::{FileVault, StoreConfig, Vault};
use serde::Serialize;

use crate::collect::{Collection, Origin, collect, visible_names};
use crate::error::BackupError;
use crate::format::{Header, PIECES, Piece, compress};
use crate::keys::SealedKeys;
use crate::sections::{SectionBytes, SectionHead, SectionWriter};
use crate::{Progress, places};

/// The name under which settings are sealed with the server's key.
pub(crate) const SETTINGS_OWNER: &str = "backup/settings";
/// LIMIT: one file of settings.
const SETTINGS_FILE_MAX: u64 = 1 << 20;

/// How a backup is made.
pub struct BackupOptions<'a> {
    /// The data folder of the server.
    pub data: &'a Path,
    /// The version of this program.
    pub version: &'a str,
    /// The time, for people.
    pub made_at: String,
    /// Puts the sealing key into the backup, encrypted with this.
    pub passphrase: Option<&'a str>,
}

/// What a backup contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// Bytes before compression.
    pub content_bytes: u64,
    /// Bytes of the backup.
    pub file_bytes: u64,
    pub sandboxes: usize,
    pub volumes: usize,
    pub snapshots: usize,
    /// Whether the sealing key is in it, encrypted.
    pub with_keys: bool,
    /// Sandboxes that come back stopped.
    pub stopped: Vec<String>,
    /// Templates that can be made or pulled again.
    pub by_reference: Vec<String>,
    /// What other providers keep: the backup has only the records of it.
    pub elsewhere: Vec<String>,
}

/// Makes a backup of a data folder, beside its server or without one, and writes it to `out`. It ends early when `cancelled` is
/// set. Whatever happens, the copies that it made in the pool are removed.
pub fn backup(
    options: &BackupOptions<'_>,
    out: impl Write + Send,
    progress: Progress<'_>,
    cancelled: &AtomicBool,
) -> Result<BackupReport, BackupError> {
    let data = options.data;
    if !StoreConfig::default_database(data).is_file() {
        return Err(BackupError::NoDatabase(data.to_owned()));
    }
    progress(0, places::COPYING);
    let copies = PoolCopies::begin(data)?;
    let collection = collect(data, &copies)?;
    let (vault, key) = open_key(data, collection.contents.key_check.as_deref())?;
    let keys = options.passphrase.map(|passphrase| SealedKeys::seal(&key, passphrase)).transpose();
    let keys = keys.map_err(|cause| BackupError::Write(io::Error::other(cause)))?;
    let header = Header {
        version: options.version.to_owned(),
        schema: collection.contents.schema,
        made_at: options.made_at.clone(),
        node: collection.contents.nodes.first().map(ToString::to_string).unwrap_or_default(),
        key_check: collection.contents.key_check.clone(),
        keys,
    };
    let settings = sealed_settings(data, &vault)?;
    let mut report = BackupReport {
        content_bytes: 0,
        file_bytes: 0,
        sandboxes: count(&collection, |head| matches!(head, SectionHead::Layer { .. })),
        volumes: count(&collection, |head| matches!(head, SectionHead::Volume { .. })),
        snapshots: count(&collection, |head| matches!(head, SectionHead::Snapshot { .. })),
        with_keys: header.keys.is_some(),
        stopped: collection.manifest.stopped.clone(),
        by_reference: collection.manifest.by_reference.clone(),
        elsewhere: collection.manifest.elsewhere.clone(),
    };
    let written = std::thread::scope(|scope| {
        let (sender, pieces) = sync_channel(PIECES);
        let header = &header;
        // The receiver ends with the thread, so that the other side notices an error here.
        let compressing = scope.spawn(move || {
            let pieces: Receiver<Piece> = pieces;
            compress(out, header, &pieces)
        });
        let told = |bytes| {
            progress(bytes, places::WRITING);
            if cancelled.load(Ordering::Relaxed) {
                Err(io::Error::other(BackupError::Cancelled))
            } else {
                Ok(())
            }
        };
        let filled = write_sections(collection, &settings, &copies, SectionWriter::new(sender, &told));
        let compressed = compressing.join().unwrap_or_else(|_| Err(io::Error::other("compressing panicked")));
        match (filled, compressed) {
            _ if cancelled.load(Ordering::Relaxed) => Err(BackupError::Cancelled),
            (_, Err(cause)) => Err(BackupError::Write(cause)),
            (Err(error), Ok(_)) => Err(error),
            (Ok(content), Ok(Some(file))) => Ok((content, file)),
            (Ok(_), Ok(None)) => Err(BackupError::Write(io::ErrorKind::UnexpectedEof.into())),
        }
    });
    (report.content_bytes, report.file_bytes) = written?;
    Ok(report)
}

fn count(collection: &Collection, is_counted: impl Fn(&SectionHead) -> bool) -> usize {
    collection.parts.iter().filter(|(head, _)| is_counted(head)).count()
}

fn write_sections(
    collection: Collection,
    settings: &[u8],
    copies: &PoolCopies,
    mut out: SectionWriter<'_>,
) -> Result<u64, BackupError> {
    let failed = |what: String| move |cause| BackupError::Read { what, cause };
    for (head, origin) in collection.parts {
        let what = format!("{head:?}");
        let is_database = head == SectionHead::Database;
        out.section(head, |bytes| write_origin(&origin, copies, bytes)).map_err(failed(what))?;
        if is_database {
            out.section(SectionHead::Settings, |bytes| bytes.write_all(settings))
                .map_err(failed("the settings".into()))?;
        }
        // What is written does not hold space in the pool any longer.
        if let Origin::Copy(kind, name) = origin
            && let Err(cause) = copies.drop_copy(kind, &name)
        {
            tracing::debug!(name, %cause, "a copy is removed at the end");
        }
    }
    out.finish(collection.manifest).map_err(failed("the manifest".into()))
}

fn write_origin(origin: &Origin, copies: &PoolCopies, out: &mut SectionBytes<'_, '_>) -> io::Result<()> {
    match origin {
        Origin::Copy(kind, name) => copies.pack(*kind, name, out),
        Origin::File(path) => io::copy(&mut File::open(path)?, out).map(drop),
        Origin::Folders { root, selected } => pack_folders(root, selected, out),
    }
}

/// The sealing key of the folder, which must be the one of its database.
fn open_key(data: &Path, check: Option<&str>) -> Result<(FileVault, String), BackupError> {
    let path = data.join("secret.key");
    let wrong = || BackupError::WrongKey(path.clone());
    let key = std::fs::read_to_string(&path).map_err(|_| wrong())?;
    let vault = FileVault::open(&path, false).map_err(|_| wrong())?;
    match check {
        Some(check) if check != key_check(&vault) => Err(wrong()),
        Some(_) | None => Ok((vault, key.trim().to_owned())),
    }
}

/// What a database has of its key.
pub(crate) fn key_check(vault: &FileVault) -> String {
    hex::encode(vault.derive("vault check", ""))
}

/// The files that describe the server and its providers, sealed with its key, since they contain keys too.
fn sealed_settings(data: &Path, vault: &FileVault) -> Result<Vec<u8>, BackupError> {
    let mut files = BTreeMap::new();
    let mut names: Vec<String> = ["admin.key", "config.env"].map(str::to_owned).to_vec();
    for folder in ["sandboxes", "tls"] {
        names.extend(visible_names(&data.join(folder))?.iter().map(|name| format!("{folder}/{name}")));
    }
    let providers = visible_names(&data.join("providers"))?;
    names.extend(providers.iter().map(|name| format!("providers/{name}/owner")));
    for name in names {
        let path = data.join(&name);
        let is_small = path.metadata().is_ok_and(|about| about.is_file() && about.len() <= SETTINGS_FILE_MAX);
        if is_small {
            let read = std::fs::read_to_string(&path);
            files.insert(name.clone(), read.map_err(|cause| BackupError::Read { what: name, cause })?);
        }
    }
    let text = serde_json::to_string(&files).unwrap_or_default();
    vault.seal(SETTINGS_OWNER, &text).ok_or_else(|| BackupError::Write(io::Error::other("no random numbers")))
}

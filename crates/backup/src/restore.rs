//! Fills an empty data folder from a backup.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use atoll_disk::{Guarded, Purpose, Reserve, SpaceWriter};
use atoll_model::{NodeName, Timestamp};
use atoll_storage::{CopyKind, Layers, StorageChoice, unpack_folders};
use atoll_store::{FileVault, StoreConfig, Vault, reseal_snapshots};
use serde::Serialize;

use crate::collect::FOLDERS;
use crate::error::RestoreError;
use crate::folder::RestoreFolder;
use crate::format::{BackupFile, Header, PIECES};
use crate::keys::PassphraseError;
use crate::rest::{RestoredSandboxes, rest_sandboxes};
use crate::sections::{Manifest, NextSection, SectionHead, SectionInput, SectionReader};
use crate::write::{SETTINGS_OWNER, key_check};
use crate::{Progress, places};

const MIB: u64 = 1 << 20;
/// The pool is asked to grow after so many bytes. It counts what is on disk, and has grown a gibibyte ahead.
const GROW_EVERY: u64 = 256 * MIB;
/// LIMIT: the sealed settings.
const SETTINGS_MAX: u64 = 64 * MIB;
/// The folders of settings that a backup may make.
const SETTINGS: [&str; 5] = ["admin.key", "config.env", "sandboxes/", "tls/", "providers/"];
/// The folders of the image store that a backup may make.
const IMAGE_FOLDERS: [&str; 3] = ["layers", "merged", "versions"];

/// Where the sealing key comes from.
pub enum KeySource {
    /// A copy of the server's `secret.key`.
    File(PathBuf),
    /// It is in the backup, encrypted with this.
    Passphrase(String),
    /// Neither was given.
    Unknown,
}

/// How a backup is restored.
pub struct RestoreOptions<'a> {
    /// The folder to fill; empty, or new.
    pub data: &'a Path,
    pub key: KeySource,
    /// The disk space that stays free.
    pub reserve: Arc<Reserve>,
    /// The time at which sandboxes were stopped.
    pub now: Timestamp,
}

/// What was restored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    pub made_at: String,
    /// The version of the server that made the backup.
    pub version: String,
    pub node: String,
    /// Bytes of all sections.
    pub content_bytes: u64,
    pub sandboxes: usize,
    pub volumes: usize,
    pub snapshots: usize,
    /// Sandboxes that had processes and are stopped now.
    pub stopped: Vec<String>,
    /// Templates that have to be made or pulled again.
    pub by_reference: Vec<String>,
    /// What other providers keep.
    pub elsewhere: Vec<String>,
}

/// Restores a backup into an empty folder. On an error the folder is empty again. It ends early when `cancelled` is set.
pub fn restore<R: BufRead + Send>(
    backup: BackupFile<R>,
    options: &RestoreOptions<'_>,
    progress: Progress<'_>,
    cancelled: &AtomicBool,
) -> Result<RestoreReport, RestoreError> {
    let key = sealing_key(&backup.header, &options.key)?;
    let folder = RestoreFolder::begin(options.data)?;
    let header = backup.header.clone();
    let filled = std::thread::scope(|scope| {
        let (sender, pieces) = sync_channel(PIECES);
        scope.spawn(move || backup.decompress(&sender));
        let mut sections = SectionReader::new(pieces);
        let mut filling = Filling::begin(&folder, options, &key, progress, cancelled)?;
        let manifest = loop {
            match sections.next()? {
                NextSection::Section(head) => filling.section(head, &mut sections)?,
                NextSection::End(manifest) => break manifest,
            }
        };
        filling.finish(&header, manifest)
    });
    let filled = filled.and_then(|report| match cancelled.load(Ordering::Relaxed) {
        true => Err(RestoreError::Cancelled),
        false => Ok(report),
    });
    match filled {
        Ok(report) => {
            let path = folder.path().to_owned();
            folder.finish().map_err(RestoreError::write("write", path))?;
            Ok(report)
        }
        Err(error) => {
            if let Err(cause) = folder.undo() {
                tracing::error!(%cause, "the folder could not be emptied; a second restore does it");
            }
            Err(if cancelled.load(Ordering::Relaxed) { RestoreError::Cancelled } else { error })
        }
    }
}

/// The sealing key, checked before anything is touched.
fn sealing_key(header: &Header, source: &KeySource) -> Result<String, RestoreError> {
    match (source, &header.keys) {
        (KeySource::File(path), _) => {
            let wrong = || RestoreError::WrongKey(path.clone());
            let vault = FileVault::open(path, false).map_err(|_| wrong())?;
            if header.key_check.as_ref().is_some_and(|check| *check != key_check(&vault)) {
                return Err(wrong());
            }
            fs::read_to_string(path).map(|key| key.trim().to_owned()).map_err(|_| wrong())
        }
        (KeySource::Passphrase(passphrase), Some(keys)) => {
            keys.open(passphrase).map_err(|error| match error {
                PassphraseError::Wrong => RestoreError::WrongPassphrase,
                PassphraseError::Unusable => RestoreError::Read(io::Error::other(error)),
            })
        }
        (KeySource::Unknown, Some(_)) => Err(RestoreError::NeedsPassphrase),
        (KeySource::Passphrase(_) | KeySource::Unknown, None) => Err(RestoreError::NeedsKey),
    }
}

/// A folder that is being filled with sections.
struct Filling<'a> {
    data: PathBuf,
    options: &'a RestoreOptions<'a>,
    vault: FileVault,
    /// Made with the first section for it.
    layers: Option<Layers>,
    /// New seals by snapshot.
    seals: BTreeMap<String, String>,
    report: RestoreReport,
    progress: Progress<'a>,
    cancelled: &'a AtomicBool,
}

impl<'a> Filling<'a> {
    fn begin(
        folder: &RestoreFolder,
        options: &'a RestoreOptions<'a>,
        key: &str,
        progress: Progress<'a>,
        cancelled: &'a AtomicBool,
    ) -> Result<Self, RestoreError> {
        let data = folder.path().to_owned();
        let path = data.join("secret.key");
        write_private(&path, key.as_bytes())?;
        let vault = FileVault::open(&path, false)?;
        let (layers, seals, report) = (None, BTreeMap::new(), RestoreReport::default());
        Ok(Self { data, options, vault, layers, seals, report, progress, cancelled })
    }

    fn section(&mut self, head: SectionHead, sections: &mut SectionReader) -> Result<(), RestoreError> {
        sections.read_section(head.clone(), |input| {
            let doing = head.restoring();
            let mut section =
                ProgressReader { input, progress: self.progress, doing, cancelled: self.cancelled, bytes: 0 };
            match &head {
                SectionHead::Database => self.database(&mut section)?,
                SectionHead::Settings => self.settings(&mut section)?,
                SectionHead::Images { folders } => self.images(folders, &mut section)?,
                SectionHead::Template { name } => self.template(name, &mut section)?,
                SectionHead::Folder { name } => self.folder(name, &mut section)?,
                SectionHead::Layer { .. }
                | SectionHead::SandboxMemory { .. }
                | SectionHead::Volume { .. }
                | SectionHead::Snapshot { .. }
                | SectionHead::SnapshotMemory { .. } => self.in_pool(&head, &mut section)?,
            }
            self.report.content_bytes += section.bytes;
            Ok(())
        })
    }

    fn database(&mut self, input: &mut impl Read) -> Result<(), RestoreError> {
        let path = StoreConfig::default_database(&self.data);
        let failed = |cause| crate::error::of_stream(cause, &path);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let mut file = Guarded::new(file, self.space()?);
        io::copy(input, &mut file).map_err(failed)?;
        file.into_inner().sync_all().map_err(failed)
    }

    fn settings(&mut self, input: &mut impl Read) -> Result<(), RestoreError> {
        let mut sealed = Vec::new();
        let read = input.take(SETTINGS_MAX).read_to_end(&mut sealed);
        read.map_err(|cause| crate::error::of_stream(cause, &self.data))?;
        let malformed = || RestoreError::Damaged("its settings are malformed".into());
        let text = self.vault.unseal(SETTINGS_OWNER, &sealed).ok_or_else(malformed)?;
        let files: BTreeMap<String, String> = serde_json::from_str(&text).map_err(|_| malformed())?;
        for (name, content) in files {
            let is_known = SETTINGS.iter().any(|known| match known.ends_with('/') {
                true => name.starts_with(known),
                false => name == *known,
            });
            if !is_known || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
                return Err(malformed());
            }
            let path = self.data.join(name);
            if let Some(parent) = path.parent().filter(|parent| !parent.is_dir()) {
                make_folder(parent)?;
            }
            write_private(&path, content.as_bytes())?;
        }
        Ok(())
    }

    fn images(&mut self, folders: &[String], input: &mut impl Read) -> Result<(), RestoreError> {
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        if folders.iter().any(|folder| !IMAGE_FOLDERS.contains(folder)) {
            return Err(RestoreError::Damaged("it has unknown folders of images".into()));
        }
        let root = self.data.join("images");
        make_folder(&root)?;
        self.folders(root, &folders, input)
    }

    fn template(&mut self, name: &str, input: &mut impl Read) -> Result<(), RestoreError> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(RestoreError::Damaged("a template has no usable name".into()));
        }
        let root = self.data.join("templates");
        if !root.is_dir() {
            make_folder(&root)?;
        }
        self.folders(root, &[name], input)
    }

    fn folder(&mut self, name: &str, input: &mut impl Read) -> Result<(), RestoreError> {
        if !FOLDERS.contains(&name) {
            return Err(RestoreError::Damaged("it has an unknown folder".into()));
        }
        self.folders(self.data.clone(), &[name], input)
    }

    /// Data on the disk of the folder, which leaves the reserve free at every step.
    fn folders(
        &mut self,
        root: PathBuf,
        folders: &[&str],
        input: &mut impl Read,
    ) -> Result<(), RestoreError> {
        let mut input = Reserved { input, space: self.space()? };
        unpack_folders(&root, folders, &mut input)
            .map_err(|error| RestoreError::of_section(error, &folders.join(", "), root))
    }

    fn space(&self) -> Result<SpaceWriter, RestoreError> {
        let space = self.options.reserve.writer(&self.data, Purpose::Data);
        space.map_err(RestoreError::write("measure the disk of", &self.data))
    }

    fn in_pool(&mut self, head: &SectionHead, input: &mut impl Read) -> Result<(), RestoreError> {
        let layers = match self.layers.take() {
            Some(layers) => layers,
            None => {
                let layers = Layers::open(&self.data, StorageChoice::Btrfs, false, &self.options.reserve)?;
                layers.expect_restore();
                layers
            }
        };
        let mut input = Growing { input, layers: &layers, left: GROW_EVERY };
        let outcome = match head {
            SectionHead::Layer { sandbox, limit_mib } => {
                self.report.sandboxes += 1;
                checked::<atoll_model::SandboxId>(sandbox)
                    .and_then(|id| layers.unpack(&id, u64::from(*limit_mib) * MIB, &mut input))
            }
            SectionHead::SandboxMemory { sandbox } => checked::<atoll_model::SandboxId>(sandbox)
                .and_then(|id| layers.restore_memory(CopyKind::SandboxMemory, &id, &mut input)),
            SectionHead::Volume { volume, size_mib } => {
                self.report.volumes += 1;
                let limit = size_mib.map(|mib| u64::from(mib) * MIB);
                checked::<atoll_model::VolumeId>(volume)
                    .and_then(|id| layers.restore_volume(&id, limit, &mut input))
            }
            SectionHead::SnapshotMemory { snapshot } => checked::<atoll_model::SnapshotId>(snapshot)
                .and_then(|id| layers.restore_memory(CopyKind::SnapshotMemory, &id, &mut input)),
            SectionHead::Snapshot { snapshot, images } => {
                self.report.snapshots += 1;
                checked::<atoll_model::SnapshotId>(snapshot).and_then(|id| {
                    let seal = layers.restore_snapshot(&id, images.clone(), &mut input)?;
                    self.seals.insert(id, seal.text());
                    Ok(())
                })
            }
            SectionHead::Database
            | SectionHead::Settings
            | SectionHead::Images { .. }
            | SectionHead::Template { .. }
            | SectionHead::Folder { .. } => Ok(()),
        };
        self.layers = Some(layers);
        outcome.map_err(|error| RestoreError::of_section(error, &format!("{head:?}"), self.data.join("pool")))
    }

    /// Brings the database in line with the new files.
    fn finish(mut self, header: &Header, manifest: Manifest) -> Result<RestoreReport, RestoreError> {
        (self.progress)(0, places::FINISHING);
        if let Some(layers) = self.layers.take() {
            layers.sync().map_err(RestoreError::write("write", self.data.join("pool")))?;
        }
        let db = StoreConfig::default_database(&self.data);
        reseal_snapshots(&db, &self.seals)?;
        let node: NodeName =
            header.node.parse().map_err(|_| RestoreError::Damaged("its node has no usable name".into()))?;
        let of = |sandbox: fn(&SectionHead) -> Option<&String>| {
            manifest.sections.iter().filter_map(|entry| sandbox(&entry.head).cloned()).collect()
        };
        let restored =
            RestoredSandboxes { files: of(SectionHead::files_of), memory: of(SectionHead::memory_of) };
        let stopped = rest_sandboxes(&self.data, node, &restored, self.options)?;
        Ok(RestoreReport {
            made_at: header.made_at.clone(),
            version: header.version.clone(),
            node: header.node.clone(),
            stopped,
            by_reference: manifest.by_reference,
            elsewhere: manifest.elsewhere,
            ..self.report
        })
    }
}

/// The name of an object in the pool: an id, and so no path.
fn checked<T: std::str::FromStr>(id: &str) -> Result<String, atoll_storage::ReadError> {
    match id.parse::<T>() {
        Ok(_) => Ok(id.to_owned()),
        Err(_) => Err(atoll_storage::ReadError::Damaged("it has no usable id".into())),
    }
}

fn make_folder(path: &Path) -> Result<(), RestoreError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(RestoreError::write("create", path))
}

fn write_private(path: &Path, content: &[u8]) -> Result<(), RestoreError> {
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(RestoreError::write("write", path))
}

/// Tells the progress, and ends the work when it is cancelled.
struct ProgressReader<'a, R> {
    input: &'a mut R,
    progress: Progress<'a>,
    doing: &'static str,
    cancelled: &'a AtomicBool,
    bytes: u64,
}

impl Read for ProgressReader<'_, SectionInput<'_>> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other(RestoreError::Cancelled));
        }
        let count = self.input.read(bytes)?;
        (self.progress)(count as u64, self.doing);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Asks the disk reserve before every piece.
struct Reserved<'a, R> {
    input: &'a mut R,
    space: SpaceWriter,
}

impl<R: Read> Read for Reserved<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.space.take(count as u64)?;
        Ok(count)
    }
}

/// Lets the pool grow while it is filled faster than it would grow by itself.
struct Growing<'a, R> {
    input: &'a mut R,
    layers: &'a Layers,
    left: u64,
}

impl<R: Read> Read for Growing<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(bytes)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => {
                self.layers.sync()?;
                self.layers.grow()?;
                self.left = GROW_EVERY;
            }
        }
        Ok(count)
    }
}

//! What a backup consists of: copies of one moment, and which templates have to be in it.
//!
//! The database and the pool cannot be copied in one step. So every sandbox is copied with the generation of its lease, and the
//! database afterwards. A sandbox whose generation in the copy of the database is the one of before the copy of its files has not
//! begun anything in between; the others are copied again. What a busy server still changes after some rounds comes back as after
//! a crash in that moment.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use atoll_image::images::VersionFiles;
use atoll_model::{Lease, MemoryLocation, Phase, SnapshotState, VolumeState};
use atoll_storage::{CopyKind, PoolCopies, Seal};
use atoll_store::{DatabaseContents, StoreConfig, kept_objects, lease_generations};

use crate::error::BackupError;
use crate::sections::{Manifest, SectionHead};

/// LIMIT: how often sandboxes that change are copied again.
const ROUNDS: u32 = 5;
/// The provider whose files are in the pool.
const IN_POOL: &str = "container";
/// The prefix of versions that are made of layers.
const LAYERED: &str = "sha256:";
const HOST: &str = "host";
/// Folders of the data folder that are in a backup as they are.
pub(crate) const FOLDERS: [&str; 2] = ["agent", "archive"];

/// Where the bytes of a section are.
pub(crate) enum Origin {
    Copy(CopyKind, String),
    File(PathBuf),
    Folders { root: PathBuf, selected: BTreeMap<String, BTreeSet<String>> },
}

/// Everything of a backup.
pub(crate) struct Collection {
    pub(crate) contents: DatabaseContents,
    pub(crate) parts: Vec<(SectionHead, Origin)>,
    pub(crate) manifest: Manifest,
}

/// Copies the pool and the database, and lists the rest.
pub(crate) fn collect(data: &Path, copies: &PoolCopies) -> Result<Collection, BackupError> {
    let db = StoreConfig::default_database(data);
    let copied = Copied::of(&db, copies)?;
    let contents = copied.contents;
    if contents.nodes.len() > 1 {
        let names: Vec<&str> = contents.nodes.iter().map(|node| node.as_str()).collect();
        return Err(BackupError::SeveralNodes(names.join(", ")));
    }
    let mut manifest = Manifest::default();
    let mut parts = vec![(SectionHead::Database, Origin::File(copied.database))];
    add_templates(data, &contents, &mut parts, &mut manifest)?;
    add_folders(data, &mut parts)?;
    for lease in &contents.sandboxes {
        add_sandbox(lease, &copied.held, &mut parts, &mut manifest);
    }
    for volume in contents.volumes.iter().filter(|volume| volume.state == VolumeState::Ready) {
        let id = volume.id.as_str();
        match copied.objects.get(id) {
            Some(kinds) if kinds.contains(&CopyKind::Volume) => parts.push((
                SectionHead::Volume { volume: id.to_owned(), size_mib: volume.size_mib },
                Origin::Copy(CopyKind::Volume, id.to_owned()),
            )),
            _ => manifest.elsewhere.push(format!("volume {} ({})", volume.name, volume.provider)),
        }
    }
    for snapshot in contents.snapshots.iter().filter(|snapshot| snapshot.state == SnapshotState::Ready) {
        let id = snapshot.id.as_str().to_owned();
        let kinds = copied.objects.get(&id).cloned().unwrap_or_default();
        if !kinds.contains(&CopyKind::Snapshot) {
            manifest.elsewhere.push(format!("snapshot {id} ({})", snapshot.provider));
            continue;
        }
        let has_memory = kinds.contains(&CopyKind::SnapshotMemory);
        let images = Seal::parse(&snapshot.seal).ok().and_then(|seal| seal.images).filter(|_| has_memory);
        let origin = Origin::Copy(CopyKind::Snapshot, id.clone());
        parts.push((SectionHead::Snapshot { snapshot: id.clone(), images }, origin));
        if has_memory {
            let origin = Origin::Copy(CopyKind::SnapshotMemory, id.clone());
            parts.push((SectionHead::SnapshotMemory { snapshot: id }, origin));
        }
    }
    Ok(Collection { contents, parts, manifest })
}

/// Copies of the pool with the copy of the database that they fit.
struct Copied {
    contents: DatabaseContents,
    database: PathBuf,
    /// By sandbox: the generation that was copied, and what there was of it.
    held: BTreeMap<String, (u64, BTreeSet<CopyKind>)>,
    /// By volume and snapshot.
    objects: BTreeMap<String, BTreeSet<CopyKind>>,
}

impl Copied {
    fn of(db: &Path, copies: &PoolCopies) -> Result<Self, BackupError> {
        let database = copies.scratch("sandbox.db");
        let (mut held, mut objects) = (BTreeMap::new(), BTreeMap::new());
        let mut round = 0;
        loop {
            round += 1;
            copy_sandboxes(&lease_generations(db)?, copies, &mut held)?;
            for id in kept_objects(db)? {
                if let Entry::Vacant(unseen) = objects.entry(id) {
                    let possible = [CopyKind::Volume, CopyKind::Snapshot, CopyKind::SnapshotMemory];
                    let kinds = copy_kinds(copies, unseen.key(), &possible)?;
                    unseen.insert(kinds);
                }
            }
            remove_if_there(&database)?;
            let contents = DatabaseContents::copy(db, &database)?;
            let fits = contents.sandboxes.iter().all(|lease| {
                held.get(lease.id.as_str()).is_some_and(|(generation, _)| *generation == lease.generation)
            }) && contents.volumes.iter().all(|volume| objects.contains_key(volume.id.as_str()))
                && contents.snapshots.iter().all(|snapshot| objects.contains_key(snapshot.id.as_str()));
            if fits || round == ROUNDS {
                // What was made in this round. Where it is gone already, its record is a sandbox without files.
                for lease in &contents.sandboxes {
                    if let Entry::Vacant(unseen) = held.entry(lease.id.to_string()) {
                        let kinds = copy_kinds(copies, unseen.key(), &[CopyKind::Layer])?;
                        unseen.insert((lease.generation, kinds));
                    }
                }
                return Ok(Self { contents, database, held, objects });
            }
        }
    }
}

fn copy_sandboxes(
    now: &BTreeMap<String, u64>,
    copies: &PoolCopies,
    held: &mut BTreeMap<String, (u64, BTreeSet<CopyKind>)>,
) -> Result<(), BackupError> {
    for (sandbox, generation) in now {
        if held.get(sandbox).is_some_and(|(copied, _)| copied == generation) {
            continue;
        }
        // The memory first: it is written after the files stand still, and removed before they change.
        let kinds = copy_kinds(copies, sandbox, &[CopyKind::SandboxMemory, CopyKind::Layer])?;
        held.insert(sandbox.clone(), (*generation, kinds));
    }
    Ok(())
}

/// Copies what there is of these kinds.
fn copy_kinds(
    copies: &PoolCopies,
    name: &str,
    kinds: &[CopyKind],
) -> Result<BTreeSet<CopyKind>, BackupError> {
    let mut there = BTreeSet::new();
    for kind in kinds {
        let added = copies.add(*kind, name);
        if added.map_err(|cause| BackupError::Read { what: format!("{kind:?} {name}"), cause })? {
            there.insert(*kind);
        }
    }
    Ok(there)
}

fn remove_if_there(path: &Path) -> Result<(), BackupError> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(BackupError::Read { what: path.display().to_string(), cause })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a sandbox keeps its memory: it was paused to disk, and nothing has begun since.
fn keeps_memory(lease: &Lease, held: Option<&(u64, BTreeSet<CopyKind>)>) -> bool {
    lease.phase == Phase::Paused
        && lease.held == Some(MemoryLocation::Disk)
        && held.is_some_and(|(generation, kinds)| {
            *generation == lease.generation && kinds.contains(&CopyKind::SandboxMemory)
        })
}

fn add_sandbox(
    lease: &Lease,
    held: &BTreeMap<String, (u64, BTreeSet<CopyKind>)>,
    parts: &mut Vec<(SectionHead, Origin)>,
    manifest: &mut Manifest,
) {
    let (id, shown) = (lease.id.as_str().to_owned(), lease.name.as_deref().unwrap_or(lease.id.as_str()));
    if lease.provider != IN_POOL {
        manifest.elsewhere.push(format!("sandbox {shown} ({})", lease.provider));
        return;
    }
    let found = held.get(&id);
    let has_layer = found.is_some_and(|(_, kinds)| kinds.contains(&CopyKind::Layer));
    if has_layer {
        let limit_mib = lease.limits.disk_mib;
        let head = SectionHead::Layer { sandbox: id.clone(), limit_mib };
        parts.push((head, Origin::Copy(CopyKind::Layer, id.clone())));
    }
    if keeps_memory(lease, found) {
        let origin = Origin::Copy(CopyKind::SandboxMemory, id.clone());
        parts.push((SectionHead::SandboxMemory { sandbox: id }, origin));
    } else if lease.holds_compute() || lease.phase == Phase::Paused {
        manifest.stopped.push(shown.to_owned());
    }
}

/// Templates of which a sandbox, a snapshot or a tag needs exactly this version are in the backup. Pulled images that nothing
/// uses and built-in templates that nothing stands on can be had again.
fn add_templates(
    data: &Path,
    contents: &DatabaseContents,
    parts: &mut Vec<(SectionHead, Origin)>,
    manifest: &mut Manifest,
) -> Result<(), BackupError> {
    let of_sandboxes = contents.sandboxes.iter().map(|lease| (&lease.template, &lease.template_version));
    let of_snapshots =
        contents.snapshots.iter().map(|snapshot| (&snapshot.template, &snapshot.template_version));
    let used: BTreeSet<(&String, &String)> = of_sandboxes.chain(of_snapshots).collect();
    let layered = used.iter().map(|(_, version)| (*version).clone());
    let mut versions: BTreeSet<String> = layered.filter(|version| version.starts_with(LAYERED)).collect();
    for tagged in &contents.tagged_versions {
        if versions.contains(&tagged.version) {
            continue;
        }
        if tagged.is_pulled {
            manifest.by_reference.push(tagged.name.clone());
        } else {
            versions.insert(tagged.version.clone());
        }
    }
    let images = data.join("images");
    let files = VersionFiles::of(&images, &versions)?;
    manifest.by_reference.extend(files.missing.iter().cloned());
    if !files.entries.is_empty() {
        let folders = files.entries.keys().cloned().collect();
        let origin = Origin::Folders { root: images, selected: files.entries };
        parts.push((SectionHead::Images { folders }, origin));
    }
    let templates = data.join("templates");
    for name in visible_names(&templates)? {
        let of_name: BTreeSet<String> = used
            .iter()
            .filter(|(template, _)| template.split(':').next() == Some(name.as_str()))
            .map(|(_, version)| (*version).clone())
            .collect();
        let inside = visible_names(&templates.join(&name))?;
        let wanted: BTreeSet<String> = match name.as_str() {
            // One folder for each state of the host.
            HOST => inside.intersection(&of_name).cloned().collect(),
            _ if of_name.iter().any(|version| !version.starts_with(LAYERED))
                || files.bases.contains(&name) =>
            {
                inside
            }
            _ => BTreeSet::new(),
        };
        if wanted.is_empty() {
            manifest.by_reference.push(name);
            continue;
        }
        let selected = BTreeMap::from([(name.clone(), wanted)]);
        let origin = Origin::Folders { root: templates.clone(), selected };
        parts.push((SectionHead::Template { name }, origin));
    }
    Ok(())
}

/// Archives that lie in the data folder, and the agents: memory on disk needs exactly the agent that it was written with.
fn add_folders(data: &Path, parts: &mut Vec<(SectionHead, Origin)>) -> Result<(), BackupError> {
    for name in FOLDERS {
        let entries = visible_names(&data.join(name))?;
        if !entries.is_empty() {
            let selected = BTreeMap::from([(name.to_owned(), entries)]);
            let origin = Origin::Folders { root: data.to_owned(), selected };
            parts.push((SectionHead::Folder { name: name.to_owned() }, origin));
        }
    }
    Ok(())
}

/// The names in a folder; hidden ones are being made or removed. Nothing where there is no folder.
pub(crate) fn visible_names(folder: &Path) -> Result<BTreeSet<String>, BackupError> {
    let read = || -> std::io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(folder)? {
            names.extend(entry?.file_name().into_string().ok().filter(|name| !name.starts_with('.')));
        }
        Ok(names)
    };
    match read() {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            Ok(BTreeSet::new())
        }
        read => read.map_err(|cause| BackupError::Read { what: folder.display().to_string(), cause }),
    }
}

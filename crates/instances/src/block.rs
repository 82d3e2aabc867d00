//! Numbers that this server may use on the machine: one block (names, uplink) per server, and chunks of id ranges.
//!
//! One file for the whole machine is changed under a lock, so two servers never use the same numbers. A server is
//! identified by the random id in its data folder and gets the same block again after a restart. A block is free again
//! when its data folder is gone and no server holds its lock. The lock matters because a folder can be invisible here
//! (another mount namespace, a moved folder) and still exist.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atoll_network::Block;
use serde::{Deserialize, Serialize};

/// Host ids per sandbox.
pub const IDS_PER_SANDBOX: u32 = 1 << 16;
/// The first host id that is ever handed out. It is far above the ids that accounts and other engines use.
const FIRST_ID: u32 = 1 << 28;
/// Ranges that a server takes in one step.
const RANGES_PER_CHUNK: u32 = 256;
/// LIMIT: ranges up to 2^32, without the last chunk, whose last id is the kernel's "no id".
const CHUNKS: u32 = (u32::MAX - FIRST_ID) / IDS_PER_SANDBOX / RANGES_PER_CHUNK;

/// A server could not get its block or an id range.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The machine-wide file cannot be used.
    #[error("cannot use the table of servers {}", path.display())]
    Table {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// A running server has the same identity with another data folder.
    #[error(
        "{data} is a copy of the data folder of a running server ({original}); \
         remove {data}/server.id to use the copy for a separate server",
        data = data.display(), original = original.display()
    )]
    Copied {
        /// The data folder that was to be opened.
        data: PathBuf,
        /// The last known data folder of the running server.
        original: PathBuf,
    },
    /// All blocks or ranges are taken.
    #[error("this machine has no {what} left")]
    Exhausted { what: &'static str },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Table {
    servers: BTreeMap<String, ServerRecord>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ServerRecord {
    block: u16,
    data: PathBuf,
    chunks: Vec<u32>,
}

/// The block and the id ranges of one server.
#[derive(Debug)]
pub struct Numbers {
    folder: PathBuf,
    server: String,
    block: Block,
    free: VecDeque<u32>,
    used: HashSet<u32>,
    /// Holds a shared lock for the lifetime of this server; the kernel releases it with the process.
    _hold: File,
}

impl Numbers {
    /// Finds the block of the server whose data folder is `data`, or takes a free one.
    pub fn open(folder: &Path, data: &Path) -> Result<Self, BlockError> {
        let failed = |cause| BlockError::Table { path: folder.join("servers.json"), cause };
        let server = server_id(data).map_err(failed)?;
        let (taken, hold) = with_table(folder, |table| {
            table.servers.retain(|id, server| {
                read_id(&server.data).is_some_and(|found| found == *id) || is_served(folder, server.block)
            });
            if let Some(known) = table.servers.get_mut(&server) {
                if is_served(folder, known.block) && !is_same_folder(folder, known.block, data) {
                    let (data, original) = (data.to_owned(), known.data.clone());
                    return Err(BlockError::Copied { data, original });
                }
                known.data = data.to_owned();
                return Ok((known.clone(), hold(folder, known.block, data).map_err(failed)?));
            }
            let blocks: HashSet<u16> = table.servers.values().map(|server| server.block).collect();
            let block = (0..Block::COUNT)
                .find(|number| !blocks.contains(number))
                .ok_or(BlockError::Exhausted { what: "server numbers" })?;
            let chunk = free_chunk(table)?;
            let fresh = ServerRecord { block, data: data.to_owned(), chunks: vec![chunk] };
            table.servers.insert(server.clone(), fresh.clone());
            Ok((fresh, hold(folder, block, data).map_err(failed)?))
        })?;
        let block = Block::new(taken.block).ok_or(BlockError::Exhausted { what: "server numbers" })?;
        let free = taken.chunks.iter().flat_map(|chunk| ranges(*chunk)).collect();
        Ok(Self { folder: folder.to_owned(), server, block, free, used: HashSet::new(), _hold: hold })
    }

    /// The block of this server.
    pub fn block(&self) -> Block {
        self.block
    }

    /// Takes a range and returns its first id. The range that was freed longest ago comes first.
    pub fn take(&mut self) -> Result<u32, BlockError> {
        if self.free.is_empty() {
            let server = self.server.clone();
            let chunk = with_table(&self.folder, |table| {
                let chunk = free_chunk(table)?;
                table.servers.entry(server).and_modify(|server| server.chunks.push(chunk));
                Ok(chunk)
            })?;
            self.free.extend(ranges(chunk));
        }
        let first = self.free.pop_front().ok_or(BlockError::Exhausted { what: "id ranges" })?;
        self.used.insert(first);
        Ok(first)
    }

    /// Marks a range as used by an instance that adoption found alive.
    pub fn adopt(&mut self, first: u32) {
        self.free.retain(|range| *range != first);
        self.used.insert(first);
    }

    /// Gives a range back. No process and no mount may use it any more.
    pub fn release(&mut self, first: u32) {
        if self.used.remove(&first) {
            self.free.push_back(first);
        }
    }

    /// Removes this server from the table; for tests and uninstalling.
    pub fn forget(self) -> Result<(), BlockError> {
        with_table(&self.folder, |table| {
            table.servers.remove(&self.server);
            let _ = fs::remove_file(hold_file(&self.folder, self.block.number()));
            Ok(())
        })
    }
}

/// The current block of the server with this data folder.
pub fn block_of(folder: &Path, data: &Path) -> Option<u16> {
    let id = read_id(data)?;
    let table: Table = serde_json::from_slice(&fs::read(folder.join("servers.json")).ok()?).ok()?;
    table.servers.get(&id).map(|server| server.block)
}

fn hold_file(folder: &Path, block: u16) -> PathBuf {
    folder.join(format!("block-{block}"))
}

/// Locks a block for this server and writes down its data folder. The lock is shared, because one server may open its
/// block twice.
fn hold(folder: &Path, block: u16, data: &Path) -> io::Result<File> {
    let mut file =
        OpenOptions::new().create(true).truncate(false).write(true).open(hold_file(folder, block))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared)?;
    file.set_len(0)?;
    file.write_all(identity(data)?.as_bytes())?;
    Ok(file)
}

/// Identifies a data folder by device and inode: a moved folder stays the same, a copy is another one.
fn identity(data: &Path) -> io::Result<String> {
    let meta = fs::metadata(data)?;
    Ok(format!("{}:{}\n", meta.dev(), meta.ino()))
}

/// Whether the block is in use with exactly this data folder. Servers of earlier versions wrote no identity; then the
/// answer is yes.
fn is_same_folder(folder: &Path, block: u16, data: &Path) -> bool {
    let said = fs::read_to_string(hold_file(folder, block)).unwrap_or_default();
    said.is_empty() || identity(data).is_ok_and(|own| own == said)
}

fn is_served(folder: &Path, block: u16) -> bool {
    let Ok(file) = File::open(hold_file(folder, block)) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
}

fn ranges(chunk: u32) -> impl Iterator<Item = u32> {
    let first = FIRST_ID + chunk * RANGES_PER_CHUNK * IDS_PER_SANDBOX;
    (0..RANGES_PER_CHUNK).map(move |range| first + range * IDS_PER_SANDBOX)
}

fn free_chunk(table: &Table) -> Result<u32, BlockError> {
    let taken: HashSet<u32> =
        table.servers.values().flat_map(|server| server.chunks.iter().copied()).collect();
    (0..CHUNKS).find(|chunk| !taken.contains(chunk)).ok_or(BlockError::Exhausted { what: "id ranges" })
}

fn with_table<T>(
    folder: &Path,
    change: impl FnOnce(&mut Table) -> Result<T, BlockError>,
) -> Result<T, BlockError> {
    let path = folder.join("servers.json");
    let failed = |cause| BlockError::Table { path: path.clone(), cause };
    fs::create_dir_all(folder).map_err(failed)?;
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("lock"))
        .map_err(failed)?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|cause| failed(cause.into()))?;
    let mut table: Table = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|cause| failed(cause.into()))?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Table::default(),
        Err(cause) => return Err(failed(cause)),
    };
    let result = change(&mut table)?;
    let bytes = serde_json::to_vec_pretty(&table).map_err(|cause| failed(cause.into()))?;
    replace(&path, &bytes).map_err(failed)?;
    Ok(result)
}

/// Replaces a file completely or not at all, also across a power failure.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = File::create(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(next, path)
}

fn read_id(data: &Path) -> Option<String> {
    fs::read_to_string(data.join("server.id")).ok().map(|text| text.trim().to_owned())
}

fn server_id(data: &Path) -> io::Result<String> {
    if let Some(id) = read_id(data).filter(|id| !id.is_empty()) {
        return Ok(id);
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let id = hex::encode(random);
    replace(&data.join("server.id"), id.as_bytes())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn two_servers_never_meet_and_each_gets_its_own_again() {
        let machine = tempfile::tempdir().unwrap();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut a = Numbers::open(machine.path(), one.path()).unwrap();
        let mut b = Numbers::open(machine.path(), two.path()).unwrap();
        assert_ne!(a.block(), b.block());
        let of_a: HashSet<u32> = (0..600).map(|_| a.take().unwrap()).collect();
        let of_b: HashSet<u32> = (0..600).map(|_| b.take().unwrap()).collect();
        assert_eq!((of_a.len(), of_b.len()), (600, 600));
        assert!(of_a.is_disjoint(&of_b) && of_a.iter().all(|first| *first >= FIRST_ID));
        let again = Numbers::open(machine.path(), one.path()).unwrap();
        assert_eq!(again.block(), a.block());
    }

    #[test]
    fn a_block_is_free_again_when_its_data_folder_is_gone() {
        let machine = tempfile::tempdir().unwrap();
        let gone = tempfile::tempdir().unwrap();
        let block = Numbers::open(machine.path(), gone.path()).unwrap().block();
        drop(gone);
        let next = tempfile::tempdir().unwrap();
        assert_eq!(Numbers::open(machine.path(), next.path()).unwrap().block(), block);
    }

    #[test]
    fn a_block_that_is_served_is_not_free_when_its_data_folder_is_out_of_sight() {
        let machine = tempfile::tempdir().unwrap();
        let (hidden, next) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let serving = Numbers::open(machine.path(), hidden.path()).unwrap();
        std::fs::rename(hidden.path(), machine.path().join("moved")).unwrap();
        assert_ne!(Numbers::open(machine.path(), next.path()).unwrap().block(), serving.block());
        let again = Numbers::open(machine.path(), &machine.path().join("moved")).unwrap();
        assert_eq!(again.block(), serving.block());
    }

    /// Attack F07.
    #[test]
    fn a_copy_of_a_served_folder_is_refused_until_it_is_a_server_of_its_own() {
        let machine = tempfile::tempdir().unwrap();
        let (original, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let serving = Numbers::open(machine.path(), original.path()).unwrap();
        let id = copy.path().join("server.id");
        std::fs::copy(original.path().join("server.id"), &id).unwrap();
        let refused = Numbers::open(machine.path(), copy.path()).unwrap_err().to_string();
        assert!(refused.contains(&original.path().display().to_string()), "{refused}");
        let again = Numbers::open(machine.path(), original.path()).unwrap();
        assert_eq!(again.block(), serving.block(), "the original is still the one that is known");
        std::fs::remove_file(id).unwrap();
        assert_ne!(Numbers::open(machine.path(), copy.path()).unwrap().block(), serving.block());
    }

    #[test]
    fn a_range_is_reused_last() {
        let (machine, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut numbers = Numbers::open(machine.path(), data.path()).unwrap();
        let first = numbers.take().unwrap();
        numbers.release(first);
        for _ in 0..RANGES_PER_CHUNK - 1 {
            assert_ne!(numbers.take().unwrap(), first);
        }
        assert_eq!(numbers.take().unwrap(), first);
    }
}

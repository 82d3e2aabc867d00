//! What a sandbox must hold and what it does hold: the host's half of `probes/keeper.c`.
//!
//! A [`Tree`] and a [`Memory`] are the model: made of seeds, so that a gigabyte of history costs nothing. What is seen inside
//! comes from the probe; what is seen of a sandbox that stands still is read by the host, through the frozen process or from
//! the layer on disk.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::proc;

/// Bytes of the region that the probe holds.
pub const REGION: usize = 256 * 1024;
const DELETED: usize = 8_192;
const PIPED: usize = 4_000;
/// Its name is left out of every comparison: it is unknown how much of it the disk took.
pub const FILL: &str = "fill";
/// Where the probe lies inside.
pub const PROGRAM: &str = "/bin/keeper";
/// The folder that is watched.
pub const FOLDER: &str = "/home/user/kept";

/// Bytes that look random and are known by their seed.
pub fn make(seed: u64, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        bytes.extend(x.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The probe's hash.
pub fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash.rotate_left(27) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    mix(words.fold(1, mix), bytes.len() as u64)
}

/// Numbers for choices; the same seed makes the same ones.
pub struct Dice(u64);

impl Dice {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(of.len() as u64)).expect("small");
        &of[at]
    }
}

/// One entry as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// With its names, its size and the hash of its content.
    File {
        /// Hard links.
        links: u64,
        /// Bytes.
        size: u64,
        /// Of the content.
        hash: u64,
    },
    /// Where it points.
    Link(String),
    /// A folder.
    Folder,
}

/// A whole folder as it is seen.
pub type Sight = BTreeMap<String, Seen>;

#[derive(Debug, Clone)]
enum Node {
    File(u64),
    Link(String),
    Folder,
}

/// Files that ought to be there.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    contents: BTreeMap<u64, Arc<Content>>,
    next: u64,
}

#[derive(Debug, Clone, Default)]
struct Content {
    pieces: Vec<(u64, u64, u64)>,
    size: u64,
    hash: u64,
}

impl Content {
    fn with(&self, offset: u64, seed: u64, length: u64) -> Self {
        let mut pieces = self.pieces.clone();
        pieces.push((offset, seed, length));
        let size = self.size.max(offset + length);
        let mut bytes = vec![0; at(size)];
        for (offset, seed, length) in &pieces {
            bytes[at(*offset)..at(offset + length)].copy_from_slice(&make(*seed, at(*length)));
        }
        Self { pieces, size, hash: hash(&bytes) }
    }
}

fn at(number: u64) -> usize {
    usize::try_from(number).expect("a small file")
}

/// One change of a tree, in the words that the probe takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A whole new content.
    Write(String, u64, u64),
    /// Bytes at an offset, which may leave a hole.
    Patch(String, u64, u64, u64),
    /// A new name, in the place of what had it.
    Rename(String, String),
    /// A symbolic link: target, name.
    Symlink(String, String),
    /// A second name.
    Link(String, String),
    /// One name less.
    Unlink(String),
    /// A folder.
    Mkdir(String),
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write(path, seed, length) => write!(f, "write {path} {seed} {length}"),
            Self::Patch(path, offset, seed, length) => write!(f, "patch {path} {offset} {seed} {length}"),
            Self::Rename(from, to) => write!(f, "rename {from} {to}"),
            Self::Symlink(target, path) => write!(f, "symlink {target} {path}"),
            Self::Link(from, to) => write!(f, "link {from} {to}"),
            Self::Unlink(path) => write!(f, "unlink {path}"),
            Self::Mkdir(path) => write!(f, "mkdir {path}"),
        }
    }
}

impl Change {
    /// As it was written.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (text, number) = (|n: usize| words[n].to_owned(), |n: usize| words[n].parse().ok());
        Some(match (words[0], words.len()) {
            ("write", 4) => Self::Write(text(1), number(2)?, number(3)?),
            ("patch", 5) => Self::Patch(text(1), number(2)?, number(3)?, number(4)?),
            ("rename", 3) => Self::Rename(text(1), text(2)),
            ("symlink", 3) => Self::Symlink(text(1), text(2)),
            ("link", 3) => Self::Link(text(1), text(2)),
            ("unlink", 2) => Self::Unlink(text(1)),
            ("mkdir", 2) => Self::Mkdir(text(1)),
            _ => return None,
        })
    }
}

impl Tree {
    /// What a look must see.
    pub fn sight(&self) -> Sight {
        let links = |file: &u64| {
            self.nodes.values().filter(|node| matches!(node, Node::File(other) if other == file)).count()
        };
        let seen = |node: &Node| match node {
            Node::File(file) => {
                let content = &self.contents[file];
                Seen::File { links: links(file) as u64, size: content.size, hash: content.hash }
            }
            Node::Link(target) => Seen::Link(target.clone()),
            Node::Folder => Seen::Folder,
        };
        self.nodes.iter().map(|(path, node)| (path.clone(), seen(node))).collect()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.contents.values().map(|content| content.size).sum()
    }

    /// The tree after a change that succeeds.
    pub fn after(&self, change: &Change) -> Self {
        let mut tree = self.clone();
        match change {
            Change::Write(path, seed, length) => {
                let content = Content::default().with(0, *seed, *length);
                tree.set(path, content);
            }
            Change::Patch(path, offset, seed, length) => {
                let old = tree.file(path).map(|file| tree.contents[&file].clone()).unwrap_or_default();
                let content = old.with(*offset, *seed, *length);
                tree.set(path, content);
            }
            Change::Rename(from, to) => {
                // Two names of one file stay as they are, as POSIX wants it.
                if tree.file(from).is_none() || tree.file(from) != tree.file(to) {
                    let node = tree.nodes.remove(from).expect("the model renames what it has");
                    tree.nodes.insert(to.clone(), node);
                }
            }
            Change::Symlink(target, path) => _ = tree.nodes.insert(path.clone(), Node::Link(target.clone())),
            Change::Link(from, to) => {
                let node = tree.nodes[from].clone();
                tree.nodes.insert(to.clone(), node);
            }
            Change::Unlink(path) => _ = tree.nodes.remove(path),
            Change::Mkdir(path) => _ = tree.nodes.insert(path.clone(), Node::Folder),
        }
        tree.forget_nameless();
        tree
    }

    fn file(&self, path: &str) -> Option<u64> {
        match self.nodes.get(path) {
            Some(Node::File(file)) => Some(*file),
            _ => None,
        }
    }

    fn set(&mut self, path: &str, content: Content) {
        let file = self.file(path).unwrap_or_else(|| {
            self.next += 1;
            self.nodes.insert(path.to_owned(), Node::File(self.next));
            self.next
        });
        self.contents.insert(file, Arc::new(content));
    }

    fn forget_nameless(&mut self) {
        let named: Vec<u64> = self
            .nodes
            .values()
            .filter_map(|node| match node {
                Node::File(file) => Some(*file),
                Node::Link(_) | Node::Folder => None,
            })
            .collect();
        self.contents.retain(|file, _| named.contains(file));
    }

    /// A change that this tree can take, and that keeps it small.
    pub fn random_change(&self, dice: &mut Dice) -> Change {
        let of = |kind: fn(&Node) -> bool| -> Vec<String> {
            self.nodes.iter().filter(|(_, node)| kind(node)).map(|(path, _)| path.clone()).collect()
        };
        let files = of(|node| matches!(node, Node::File(_)));
        let gone = of(|node| !matches!(node, Node::Folder));
        let folders = of(|node| matches!(node, Node::Folder));
        let full = self.bytes() > 1_500_000 || self.nodes.len() > 24;
        let fresh = |dice: &mut Dice| {
            let name = format!("n{}", dice.below(1_000_000));
            if folders.is_empty() || dice.percent(60) {
                name
            } else {
                format!("{}/{name}", dice.pick(&folders))
            }
        };
        let size = match dice.below(20) {
            0 => 100_000 + dice.below(900_000),
            1..6 => 4_096 + dice.below(60_000),
            6 => 0,
            _ => 1 + dice.below(3_000),
        };
        let seed = dice.roll();
        match dice.below(if full { 3 } else { 14 }) {
            0 | 1 if !gone.is_empty() => Change::Unlink(dice.pick(&gone).clone()),
            2 if !files.is_empty() => Change::Rename(dice.pick(&files).clone(), dice.pick(&files).clone()),
            3 if folders.len() < 3 => Change::Mkdir(format!("d{}", dice.below(1_000_000))),
            4 => Change::Symlink(format!("t{}", dice.below(99)), fresh(dice)),
            5 | 6 if !files.is_empty() => Change::Link(dice.pick(&files).clone(), fresh(dice)),
            7 | 8 if !files.is_empty() => {
                let (path, offset) = (dice.pick(&files).clone(), dice.below(400_000));
                Change::Patch(path, offset, seed, 1 + dice.below(9_000))
            }
            9 if !files.is_empty() => Change::Rename(dice.pick(&files).clone(), fresh(dice)),
            10 if !files.is_empty() => Change::Write(dice.pick(&files).clone(), seed, size),
            _ => Change::Write(fresh(dice), seed, size),
        }
    }
}

/// What the holder ought to have in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// What it began with; the pipe still has it.
    pub first: u64,
    /// What the region was last filled from.
    pub seed: u64,
    /// Questions that it has answered.
    pub counter: u64,
    /// Whether more may have been answered than we know of.
    pub loose: bool,
    /// Questions whose answer was lost: a killed server leaves their commands running, and they may be counted at any later time.
    pub late: u64,
    /// Of the region, the deleted file and the pipe.
    pub hashes: [u64; 3],
}

/// What it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Hash of the region.
    pub page: u64,
    /// Questions answered, as it counts them.
    pub counter: u64,
    /// As its peer at the other end of the connection counts them.
    pub peer: u64,
    /// Hash of the deleted file.
    pub deleted: u64,
    /// Hash of what waits in the pipe.
    pub pipe: u64,
    /// Where the region is.
    pub at: u64,
    /// Its process id inside.
    pub pid: i32,
}

impl Memory {
    /// Of a holder that was just started.
    pub fn new(seed: u64) -> Self {
        Self { first: seed, seed, counter: 0, loose: true, late: 0, hashes: [0; 3] }.stirred(seed)
    }

    /// With a new filling.
    pub fn stirred(&self, seed: u64) -> Self {
        let hashes = [
            hash(&make(seed, REGION)),
            hash(&make(seed ^ 0x1111, DELETED)),
            hash(&make(self.first ^ 0x2222, PIPED)),
        ];
        Self { seed, hashes, ..self.clone() }
    }

    /// Hash of the region.
    pub fn page(&self) -> u64 {
        self.hashes[0]
    }

    /// Whether that is what it ought to hold.
    pub fn fits(&self, held: &Held) -> bool {
        let next = self.counter + 1;
        let counted = held.counter >= next && (self.loose || held.counter <= next + self.late);
        [held.page, held.deleted, held.pipe] == self.hashes && held.peer == held.counter && counted
    }
}

/// Everything that one look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The files.
    pub sight: Sight,
    /// The holder, if one answers.
    pub held: Option<Held>,
    /// Lines about changes that failed.
    pub wrong: Vec<String>,
}

impl Look {
    /// Reads what the probe printed.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.ends_with("end\n") {
            return Err(format!("a look without end: {text:?}"));
        }
        let mut look = Self { sight: Sight::new(), held: None, wrong: Vec::new() };
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let bad = || format!("not understood: {line:?}");
            match words.as_slice() {
                ["f", path, links, size, hash] => {
                    let seen = Seen::File {
                        links: links.parse().map_err(|_| bad())?,
                        size: size.parse().map_err(|_| bad())?,
                        hash: u64::from_str_radix(hash, 16).map_err(|_| bad())?,
                    };
                    look.sight.insert((*path).to_owned(), seen);
                }
                ["l", path, target] => {
                    look.sight.insert((*path).to_owned(), Seen::Link((*target).to_owned()));
                }
                ["d", path] => _ = look.sight.insert((*path).to_owned(), Seen::Folder),
                ["held", "nothing"] | ["end"] => {}
                ["held", rest @ ..] => look.held = Some(held(rest).ok_or_else(bad)?),
                ["wrong", ..] => look.wrong.push(line.to_owned()),
                ["filled", ..] => {}
                _ => return Err(bad()),
            }
        }
        Ok(look)
    }
}

fn held(words: &[&str]) -> Option<Held> {
    let word = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let hex = |name: &str| u64::from_str_radix(word(name)?.trim_start_matches("0x"), 16).ok();
    Some(Held {
        page: hex("page")?,
        counter: word("counter")?.parse().ok()?,
        peer: word("peer")?.parse().ok()?,
        deleted: hex("deleted")?,
        pipe: hex("pipe")?,
        at: hex("at")?,
        pid: word("pid")?.parse().ok()?,
    })
}

/// Looks at a folder from the host: a layer on disk, or the root of a frozen process.
pub fn look_from_host(folder: &Path) -> std::io::Result<Sight> {
    let mut sight = Sight::new();
    let mut next = vec![folder.to_path_buf()];
    while let Some(at) = next.pop() {
        for entry in std::fs::read_dir(&at)? {
            let entry = entry?;
            let path = entry.path();
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            if entry.file_name() == FILL {
                continue;
            }
            let about = std::fs::symlink_metadata(&path)?;
            let seen = if about.is_symlink() {
                Seen::Link(std::fs::read_link(&path)?.display().to_string())
            } else if about.is_dir() {
                next.push(path);
                Seen::Folder
            } else {
                let hash = hash(&std::fs::read(&path)?);
                Seen::File { links: about.nlink(), size: about.len(), hash }
            };
            sight.insert(name, seen);
        }
    }
    Ok(sight)
}

/// The holder's process on the host: a descendant of the sandbox's first process with that id inside.
pub fn holder_on_host(agent: i32, inside: i32) -> Option<i32> {
    let is_it = |pid: &i32| {
        proc::status_text(*pid, "NSpid")
            .is_some_and(|text| text.split_whitespace().last() == Some(&inside.to_string()))
    };
    proc::descendants(agent).into_iter().map(|process| process.pid).find(is_it)
}

/// Hash of the region of a holder that stands still.
pub fn page_from_host(holder: i32, at: u64) -> std::io::Result<u64> {
    let mut memory = std::fs::File::open(format!("/proc/{holder}/mem"))?;
    memory.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; REGION];
    memory.read_exact(&mut bytes)?;
    Ok(hash(&bytes))
}

/// What differs, for people.
pub fn difference(model: &Sight, seen: &Sight) -> String {
    let names: std::collections::BTreeSet<&String> = model.keys().chain(seen.keys()).collect();
    let lines = names
        .into_iter()
        .filter(|name| model.get(*name) != seen.get(*name))
        .map(|name| format!("{name}: wanted {:?}, found {:?}", model.get(name), seen.get(name)));
    lines.take(8).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_hashes_are_those_of_the_probe() {
        // As `keeper do` printed them.
        assert_eq!(hash(&make(3, 100)), 0x14d1_bbf5_3dca_f2d2);
        assert_eq!(hash(&make(1, 70_000)), 0xf44c_39db_c297_cb40);
        assert_eq!(hash(&make(55, REGION)), 0xeaa1_3e1f_bcd6_b7d0);
        let hole = Tree::default().after(&Change::Patch("b".to_owned(), 5_000, 9, 10));
        assert_eq!(hole.sight()["b"], Seen::File { links: 1, size: 5_010, hash: 0x9810_c76f_3d45_34bb });
    }

    #[test]
    fn names_of_one_file_are_counted() {
        let mut tree = Tree::default().after(&Change::Write("a".to_owned(), 1, 5));
        tree = tree.after(&Change::Link("a".to_owned(), "b".to_owned()));
        tree = tree.after(&Change::Rename("a".to_owned(), "b".to_owned()));
        assert!(tree.sight().values().all(|seen| matches!(seen, Seen::File { links: 2, size: 5, .. })));
        tree = tree.after(&Change::Unlink("a".to_owned()));
        assert!(matches!(tree.sight()["b"], Seen::File { links: 1, .. }));
        assert_eq!(tree.after(&Change::Unlink("b".to_owned())).bytes(), 0);
    }

    #[test]
    fn a_thousand_changes_keep_a_tree_small() {
        let (mut tree, mut dice) = (Tree::default(), Dice::new(5));
        for _ in 0..1_000 {
            tree = tree.after(&tree.random_change(&mut dice));
            assert!(tree.bytes() < 4_000_000 && tree.nodes.len() < 40);
        }
    }
}

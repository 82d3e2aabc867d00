//! Contexts: servers that this user works with, by name, each with its address, its authority and its key.
//!
//! They are in one file below the user's configuration folder. It holds keys, so only its owner may read it: a file with wider
//! rights is repaired with a warning, and one of another user is refused. Every change replaces the file as a whole, under a lock.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{cli::Global, environment, failure::Failure, out::Out};

/// The name that stands for the server of this machine, which needs no context.
pub(crate) const LOCAL: &str = "local";
const NAME_MAX: usize = 63;
/// LIMIT: a file of some hundred contexts; a larger one is not ours.
const FILE_MAX: u64 = 4 << 20;

/// A server.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    pub(crate) url: String,
    /// Certificates to trust besides the system's, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

/// All contexts of the user.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Contexts {
    /// The context of commands that name none; `None`: the server of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// Which settings of the connection the user typed; others come from the environment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Typed {
    pub(crate) url: bool,
    pub(crate) api_key: bool,
    pub(crate) ca: bool,
    pub(crate) context: bool,
}

impl Typed {
    pub(crate) fn of(matches: &clap::ArgMatches) -> Self {
        let is = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        Self { url: is("url"), api_key: is("api_key"), ca: is("ca"), context: is("context_name") }
    }
}

/// Fills in the connection of a command: options win over variables, variables over the current context.
pub(crate) fn apply(global: &mut Global, typed: Typed, out: Out) -> Result<(), Failure> {
    let name = if typed.context {
        if typed.url {
            return Err(Failure::usage("--context and --url name two servers", "leave one of them out"));
        }
        // The variables are for another server than the one that was typed.
        global.url = None;
        global.api_key.take_if(|_| !typed.api_key);
        global.ca.take_if(|_| !typed.ca);
        global.context_name.clone()
    } else if global.url.is_some() {
        None
    } else {
        global.context_name.clone()
    };
    let is_named = name.is_some();
    if !is_named && global.url.is_some() || name.as_deref() == Some(LOCAL) {
        return Ok(());
    }
    let file = ContextFile::of_user();
    let known = file.read(out)?;
    let Some(name) = name.or_else(|| known.current.clone()) else { return Ok(()) };
    let context = known.find(&name)?;
    global.url = Some(context.url.clone());
    if global.api_key.is_none() {
        global.api_key.clone_from(&context.key);
    }
    if global.ca.is_none() {
        global.ca_pem.clone_from(&context.ca);
    }
    global.context = Some(name);
    Ok(())
}

impl Contexts {
    pub(crate) fn find(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| no_context(name))
    }
}

pub(crate) fn no_context(name: &str) -> Failure {
    Failure::usage(format!("there is no context {name:?}"), "`atoll context ls` shows every context")
}

/// Checks the name of a new context.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let refuse = |why: String| Err(Failure::usage(why, "choose another name"));
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('-') || !name.chars().all(is_plain) {
        let rule = format!("must have 1 to {NAME_MAX} letters, digits, '-', '_' or '.'");
        return refuse(format!("the name of a context {rule}"));
    }
    if name == LOCAL {
        return refuse(format!("{LOCAL} is the server of this machine and needs no context"));
    }
    Ok(())
}

/// The file of the contexts.
pub(crate) struct ContextFile {
    path: PathBuf,
}

impl ContextFile {
    pub(crate) fn of_user() -> Self {
        Self { path: environment::config_home().join("atoll/contexts.json") }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The contexts; none where there is no file.
    pub(crate) fn read(&self, out: Out) -> Result<Contexts, Failure> {
        let unread = |e: &dyn std::fmt::Display| {
            Failure::new("io", format!("the contexts in {} cannot be read: {e}", self.path.display())).hint(
                "mend or remove the file; keys in it can be revoked with `atoll key rm` on their servers",
            )
        };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(e) => return Err(unread(&e)),
        };
        self.guard(&file, out)?;
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|e| unread(&e))?;
        serde_json::from_str(&text).map_err(|e| unread(&e))
    }

    /// Refuses a file of another user, and takes the rights of others away.
    fn guard(&self, file: &File, out: Out) -> Result<(), Failure> {
        let path = self.path.display();
        let about = file
            .metadata()
            .map_err(|e| Failure::new("io", format!("the contexts in {path} cannot be read: {e}")))?;
        let me = rustix::process::geteuid();
        if !about.is_file() || (about.uid() != me.as_raw() && !me.is_root()) {
            return Err(Failure::new(
                "io",
                format!("{path} is not a file of yours, so its keys are not used"),
            )
            .hint("remove it, or point XDG_CONFIG_HOME at a folder of your own"));
        }
        let mode = about.mode() & 0o7777;
        if mode & 0o077 == 0 {
            return Ok(());
        }
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|e| {
            Failure::new(
                "io",
                format!("other users may read the keys in {path}, and that cannot be changed: {e}"),
            )
            .hint(format!("chmod 600 {path}"))
        })?;
        if !out.json {
            out.say(&format!(
                "atoll: other users could read the keys in {path} (mode {mode:o}); it is 600 now. If others use this \
                 machine, log in again and revoke the old keys with `atoll key rm`"
            ));
        }
        Ok(())
    }

    /// Changes the contexts; two commands at once go one after the other.
    pub(crate) fn change<T>(
        &self,
        out: Out,
        change: impl FnOnce(&mut Contexts) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let unwritten = |e: io::Error| {
            Failure::new("io", format!("{} cannot be written: {e}", self.path.display()))
                .hint("point XDG_CONFIG_HOME at a folder that you may write to")
        };
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unwritten)?;
        let lock =
            OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join("contexts.lock"));
        // Held until the end of this call.
        let lock = lock.map_err(unwritten)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| unwritten(e.into()))?;
        let mut contexts = self.read(out)?;
        let result = change(&mut contexts)?;
        self.write(folder, &contexts).map_err(unwritten)?;
        Ok(result)
    }

    fn write(&self, folder: &Path, contexts: &Contexts) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        // What a command left that was killed.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        let mut text = serde_json::to_vec_pretty(contexts).map_err(io::Error::other)?;
        text.push(b'\n');
        file.write_all(&text)?;
        // Through sudo with the user's HOME, the file stays the user's.
        if rustix::process::geteuid().is_root() {
            let owner = folder.metadata()?;
            std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.sync_all()?;
        fs::rename(&fresh, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, ContextFile) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("config/atoll/contexts.json");
        (folder, ContextFile { path })
    }

    fn add(file: &ContextFile, name: &str) {
        let context =
            Context { url: "https://a.example".to_owned(), ca: None, key: Some("atl_x".to_owned()) };
        let put = |known: &mut Contexts| Ok(known.contexts.insert(name.to_owned(), context));
        file.change(Out::new(true), put).expect("written");
    }

    #[test]
    fn only_the_owner_can_read_what_is_written_and_wider_rights_are_taken_away() {
        let (_folder, file) = file();
        let mode = || fs::metadata(file.path()).expect("there").mode() & 0o777;
        assert!(file.read(Out::new(true)).expect("none yet").contexts.is_empty());
        add(&file, "a");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(file.path(), Permissions::from_mode(0o644)).expect("set");
        assert!(file.read(Out::new(true)).expect("read").contexts.contains_key("a"));
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn changes_at_once_lose_nothing() {
        let (_folder, file) = file();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let file = &file;
                scope.spawn(move || add(file, &format!("c{n}")));
            }
        });
        assert_eq!(file.read(Out::new(true)).expect("read").contexts.len(), 8);
    }

    #[test]
    fn a_broken_file_is_refused_and_kept() {
        let (_folder, file) = file();
        add(&file, "a");
        fs::write(file.path(), "{").expect("written");
        assert!(file.read(Out::new(true)).is_err_and(|failure| failure.hint.is_some()));
        assert!(file.change(Out::new(true), |_| Ok(())).is_err());
        assert_eq!(fs::read_to_string(file.path()).expect("there"), "{");
    }

    #[test]
    fn names_are_plain() {
        for fine in ["prod", "a.b-c_1", "10.0.0.5"] {
            assert!(check_name(fine).is_ok(), "{fine}");
        }
        for bad in ["", "-a", "a b", "a/b", "local", "é", &"a".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}

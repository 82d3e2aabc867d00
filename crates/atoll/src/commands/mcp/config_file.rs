//! The configuration file of another program: one entry is added, replaced or removed, and everything else stays as it is, with
//! comments and formatting. A file that cannot be understood is not changed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use crate::failure::Failure;

/// LIMIT: configuration files have a few kilobytes; that of Claude Code also has its history.
const FILE_MAX: u64 = 64 << 20;

/// How a program starts an MCP server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerEntry {
    /// The kind of the server, where the program wants one.
    pub(super) kind: Option<&'static str>,
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Variables that the program passes on.
    pub(super) env_vars: Vec<String>,
}

/// A file with servers below one of its fields.
pub(super) struct ConfigFile {
    path: PathBuf,
    /// The field that has the servers by name.
    field: &'static str,
    format: ConfigFormat,
}

#[derive(Clone, Copy)]
enum ConfigFormat {
    /// JSON, with comments and trailing commas.
    Json,
    Toml,
}

impl ConfigFile {
    pub(super) fn json(path: PathBuf, field: &'static str) -> Self {
        Self { path, field, format: ConfigFormat::Json }
    }

    pub(super) fn toml(path: PathBuf, field: &'static str) -> Self {
        Self { path, field, format: ConfigFormat::Toml }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file with this entry alone.
    pub(super) fn snippet(&self, name: &str, entry: &ServerEntry) -> String {
        self.with(None, name, entry).unwrap_or_default()
    }

    /// Adds or replaces the entry; answers whether the file changed.
    pub(super) fn put(&self, name: &str, entry: &ServerEntry) -> Result<bool, Failure> {
        let before = self.read()?;
        let after = self.with(before.as_deref(), name, entry)?;
        self.write(before.as_deref(), &after)
    }

    /// Removes the entry; answers whether the file changed.
    pub(super) fn remove(&self, name: &str) -> Result<bool, Failure> {
        let Some(before) = self.read()? else { return Ok(false) };
        let after = self.without(&before, name)?;
        self.write(Some(&before), &after)
    }

    fn with(&self, before: Option<&str>, name: &str, entry: &ServerEntry) -> Result<String, Failure> {
        let before = before.filter(|text| !text.trim().is_empty());
        match self.format {
            ConfigFormat::Json => {
                let root = self.parse_json(before.unwrap_or("{\n}\n"))?;
                let top = self.top(&root)?;
                let servers = match top.get(self.field) {
                    Some(found) => found.object_value().ok_or_else(|| self.odd(self.field))?,
                    None => top.object_value_or_set(self.field),
                };
                match servers.get(name) {
                    Some(found) if is_same(&found.value(), entry) => {}
                    Some(found) => found.set_value(json_entry(entry)),
                    None => drop(servers.append(name, json_entry(entry))),
                }
                Ok(root.to_string())
            }
            ConfigFormat::Toml => {
                let mut document = self.parse_toml(before.unwrap_or_default())?;
                let servers = document.entry(self.field).or_insert_with(|| {
                    let mut table = Table::new();
                    table.set_implicit(true);
                    Item::Table(table)
                });
                let servers = servers.as_table_like_mut().ok_or_else(|| self.odd(self.field))?;
                let table = toml_entry(entry);
                let is_same =
                    servers.get(name).is_some_and(|found| plain(found) == plain(&Item::Table(table.clone())));
                if !is_same {
                    servers.insert(name, Item::Table(table));
                }
                Ok(document.to_string())
            }
        }
    }

    fn without(&self, before: &str, name: &str) -> Result<String, Failure> {
        if before.trim().is_empty() {
            return Ok(before.to_owned());
        }
        match self.format {
            ConfigFormat::Json => {
                let root = self.parse_json(before)?;
                let found =
                    self.top(&root)?.get(self.field).and_then(|field| field.object_value()?.get(name));
                if let Some(found) = found {
                    found.remove();
                }
                Ok(root.to_string())
            }
            ConfigFormat::Toml => {
                let mut document = self.parse_toml(before)?;
                let servers = document.get_mut(self.field).and_then(Item::as_table_like_mut);
                if let Some(servers) = servers {
                    servers.remove(name);
                }
                Ok(document.to_string())
            }
        }
    }

    fn parse_json(&self, text: &str) -> Result<CstRootNode, Failure> {
        CstRootNode::parse(text, &ParseOptions::default()).map_err(|e| self.unreadable(&e.to_string()))
    }

    fn parse_toml(&self, text: &str) -> Result<DocumentMut, Failure> {
        text.parse().map_err(|e: toml_edit::TomlError| self.unreadable(&e.to_string()))
    }

    fn top(&self, root: &CstRootNode) -> Result<CstObject, Failure> {
        root.object_value_or_create().ok_or_else(|| self.unreadable("it is not an object"))
    }

    fn odd(&self, field: &str) -> Failure {
        self.unreadable(&format!("{field} is not a table of servers"))
    }

    fn unreadable(&self, why: &str) -> Failure {
        let text = format!("{} is not changed: {}", self.path.display(), why.trim());
        Failure::new("bad_config", text).hint("correct the file, or add the output of --print yourself")
    }

    fn read(&self) -> Result<Option<String>, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new("bad_config", format!("{} cannot be read: {why}", self.path.display()))
        };
        match fs::metadata(&self.path) {
            Ok(about) if about.len() > FILE_MAX => return Err(failed(&"it is too large")),
            _ => {}
        }
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(&e)),
        }
    }

    /// Replaces the file as a whole, so that its program never reads half of it. A symbolic link stays one.
    fn write(&self, before: Option<&str>, after: &str) -> Result<bool, Failure> {
        if before == Some(after) {
            return Ok(false);
        }
        let failed = |e: std::io::Error| {
            Failure::new("bad_config", format!("{} cannot be written: {e}", self.path.display()))
        };
        let real = match fs::canonicalize(&self.path) {
            Ok(real) => real,
            Err(_) if self.path.is_symlink() => {
                let message = format!("{} is a link to a file that does not exist", self.path.display());
                return Err(Failure::new("bad_config", message).hint("create that file, or remove the link"));
            }
            Err(_) => self.path.clone(),
        };
        let folder = real.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        let fresh = folder.join(format!(".{name}.{}.new", std::process::id()));
        let written = write_whole(&fresh, &real, after);
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        written.map_err(failed).map(|()| true)
    }
}

fn write_whole(fresh: &Path, real: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(fresh)?;
    if let Ok(about) = fs::metadata(real) {
        file.set_permissions(fs::Permissions::from_mode(about.permissions().mode()))?;
        // Root may write the file of another user, who has to be able to read it afterwards.
        std::os::unix::fs::fchown(&file, Some(about.uid()), Some(about.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(fresh, real)
}

fn json_entry(entry: &ServerEntry) -> CstInputValue {
    let text = |text: &String| CstInputValue::String(text.clone());
    let mut fields = Vec::new();
    if let Some(kind) = entry.kind {
        fields.push(("type".to_owned(), CstInputValue::String(kind.to_owned())));
    }
    fields.push(("command".to_owned(), text(&entry.command)));
    fields.push(("args".to_owned(), CstInputValue::Array(entry.args.iter().map(text).collect())));
    if !entry.env.is_empty() {
        let env = entry.env.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        fields.push(("env".to_owned(), CstInputValue::Object(env)));
    }
    CstInputValue::Object(fields)
}

/// Whether a value of the file is this entry, however it is formatted.
fn is_same(found: &Option<jsonc_parser::cst::CstNode>, entry: &ServerEntry) -> bool {
    let scratch = || -> Option<String> {
        let root = CstRootNode::parse("{}", &ParseOptions::default()).ok()?;
        root.set_value(json_entry(entry));
        Some(without_space(&root.to_string()))
    };
    found.as_ref().is_some_and(|found| Some(without_space(&found.to_string())) == scratch())
}

/// A JSON text without the space between its tokens.
fn without_space(text: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    text.chars()
        .filter(|c| {
            let keep = inside || !c.is_whitespace();
            match c {
                '"' if !escaped => inside = !inside,
                _ => {}
            }
            escaped = inside && *c == '\\' && !escaped;
            keep
        })
        .collect()
}

fn toml_entry(entry: &ServerEntry) -> Table {
    let mut table = Table::new();
    table.insert("command", value(&entry.command));
    table.insert("args", value(Array::from_iter(&entry.args)));
    if !entry.env_vars.is_empty() {
        table.insert("env_vars", value(Array::from_iter(&entry.env_vars)));
    }
    if !entry.env.is_empty() {
        let mut env = toml_edit::InlineTable::new();
        for (name, text) in &entry.env {
            env.insert(name, text.into());
        }
        table.insert("env", value(env));
    }
    table
}

/// The content of an item as text, without its comments and formatting.
fn plain(item: &Item) -> BTreeMap<String, String> {
    let Some(table) = item.as_table_like() else { return BTreeMap::new() };
    let fields = table.iter().map(|(name, item)| (name.to_owned(), without_space(&item.to_string())));
    fields.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry() -> ServerEntry {
        ServerEntry {
            command: "/usr/bin/atoll".to_owned(),
            args: vec!["mcp".to_owned()],
            env: [("ATOLL_URL".to_owned(), "http://h:1".to_owned())].into(),
            ..ServerEntry::default()
        }
    }

    fn json(text: Option<&str>) -> (tempfile::TempDir, ConfigFile) {
        file("mcp.json", text, ConfigFile::json)
    }

    fn toml(text: Option<&str>) -> (tempfile::TempDir, ConfigFile) {
        file("config.toml", text, ConfigFile::toml)
    }

    fn file(
        name: &str,
        text: Option<&str>,
        make: fn(PathBuf, &'static str) -> ConfigFile,
    ) -> (tempfile::TempDir, ConfigFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join(name);
        if let Some(text) = text {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        }
        (folder, make(path, "servers"))
    }

    fn text(file: &ConfigFile) -> String {
        fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn a_new_file_has_the_entry_and_removing_it_leaves_an_empty_table() {
        let (_folder, file) = json(None);
        assert!(file.put("atoll", &entry()).unwrap());
        let root: serde_json::Value = serde_json::from_str(&text(&file)).unwrap();
        assert_eq!(root["servers"]["atoll"]["command"], "/usr/bin/atoll");
        assert_eq!(root["servers"]["atoll"]["env"]["ATOLL_URL"], "http://h:1");
        assert!(!file.put("atoll", &entry()).unwrap(), "the second time changes nothing");
        assert!(file.remove("atoll").unwrap());
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text(&file)).unwrap(),
            serde_json::json!({ "servers": {} })
        );
        assert!(!file.remove("atoll").unwrap());
    }

    #[test]
    fn comments_and_other_servers_stay() {
        let before = "{\n  // mine\n  \"other\": [1, 2,],\n  \"servers\": {\n    \"x\": { \"command\": \"y\" }, // why\n  },\n}\n";
        let (_folder, file) = json(Some(before));
        assert!(file.put("atoll", &entry()).unwrap());
        let after = text(&file);
        for kept in ["// mine", "\"other\": [1, 2,]", "\"x\": { \"command\": \"y\" }", "// why", "\"atoll\""]
        {
            assert!(after.contains(kept), "{kept}: {after}");
        }
        assert!(file.remove("atoll").unwrap());
        let removed = text(&file);
        assert!(
            !removed.contains("atoll") && removed.contains("// mine") && removed.contains("// why"),
            "{removed}"
        );
    }

    #[test]
    fn another_form_of_the_same_entry_is_left_alone_and_an_old_one_replaced() {
        let same = r#"{"servers":{"atoll":{"command":"/usr/bin/atoll","args":["mcp"],"env":{"ATOLL_URL":"http://h:1"}}}}"#;
        let (_folder, file) = json(Some(same));
        assert!(!file.put("atoll", &entry()).unwrap());
        let (_folder, file) = json(Some(r#"{"servers":{"atoll":{"command":"old"}}}"#));
        assert!(file.put("atoll", &entry()).unwrap());
        assert!(!text(&file).contains("old"));
    }

    #[test]
    fn toml_keeps_comments_and_other_tables() {
        let before = "# mine\nmodel = \"m\"\n\n[servers.x] # why\ncommand = \"y\"\n";
        let (_folder, file) = toml(Some(before));
        let entry = ServerEntry { env_vars: vec!["ATOLL_API_KEY".to_owned()], ..entry() };
        assert!(file.put("atoll", &entry).unwrap());
        let after = text(&file);
        assert!(after.starts_with(before), "{after}");
        assert!(
            after.contains("[servers.atoll]") && after.contains("env_vars = [\"ATOLL_API_KEY\"]"),
            "{after}"
        );
        assert!(!file.put("atoll", &entry).unwrap());
        assert!(file.remove("atoll").unwrap());
        assert_eq!(text(&file), before);
        let (_folder, file) = toml(None);
        assert!(file.put("atoll", &entry).unwrap());
        assert!(text(&file).starts_with("[servers.atoll]\n"), "{}", text(&file));
    }

    #[test]
    fn a_file_that_is_not_understood_is_not_changed() {
        for (file, before) in [
            (json(Some("{ nonsense")), "{ nonsense"),
            (json(Some("[]")), "[]"),
            (json(Some(r#"{"servers": 7}"#)), r#"{"servers": 7}"#),
            (toml(Some("= 1")), "= 1"),
            (toml(Some("servers = 7")), "servers = 7"),
        ] {
            assert!(file.1.put("atoll", &entry()).unwrap_err().is("bad_config"), "{before}");
            assert_eq!(text(&file.1), before);
        }
    }

    #[test]
    fn a_link_stays_a_link_and_the_mode_stays() {
        let (folder, file) = json(Some("{}"));
        let real = folder.path().join("real.json");
        fs::rename(file.path(), &real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&real, file.path()).unwrap();
        assert!(file.put("atoll", &entry()).unwrap());
        assert!(fs::symlink_metadata(file.path()).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("atoll"));
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no file is left over");
    }
}

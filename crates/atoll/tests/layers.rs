//! Rules that a compiler does not check: dependencies between crates, first lines, lengths, and names that no tracked
//! file may contain. Reads the tree; runs only `cargo metadata` and `git ls-files`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

mod dependencies;
mod duplicates;
mod front_state;
mod robustness;
mod typed_answers;

/// Type names that may be defined in more than three places; at most 15.
const SHARED_TYPE_NAMES: &[&str] = &[];

/// Every allowed dependency. A new one is a design change: its own commit, with the reason.
const ARROWS: &[(&str, &[&str])] = &[
    ("atoll-model", &[]),
    // Fronts, the command line and tests share these types; a client needs no service.
    ("atoll-client", &["atoll-model"]),
    ("atoll-disk", &[]),
    // HTTP/1 to an app and to an agent is relayed by the same code.
    ("atoll-relay", &[]),
    // Patterns only.
    ("atoll-glob", &[]),
    // The format only, for all readers and writers of archives.
    ("atoll-tar", &[]),
    // For tests only.
    ("atoll-robustness", &[]),
    // Memory that is held for callers is counted in one place, so every holder depends on it.
    ("atoll-budget", &["atoll-model"]),
    ("atoll-agentapi", &["atoll-model", "atoll-relay"]),
    ("atoll-agent", &["atoll-agentapi", "atoll-glob", "atoll-tar"]),
    ("atoll-provider", &["atoll-model", "atoll-agentapi"]),
    // The agent's protocol over a provider's own calls; shared by all providers without the agent.
    ("atoll-session", &["atoll-model", "atoll-agentapi", "atoll-provider"]),
    // Every connection that the server makes to the outside begins there.
    ("atoll-outbound", &["atoll-model"]),
    ("atoll-network", &["atoll-model", "atoll-outbound", "atoll-relay"]),
    ("atoll-image", &["atoll-model", "atoll-disk", "atoll-glob", "atoll-outbound", "atoll-tar"]),
    // Shared by every engine on this machine; an engine decides what is mounted where.
    ("atoll-storage", &["atoll-disk", "atoll-tar"]),
    // Shared by the providers whose volumes are folders of this machine.
    ("atoll-volume-files", &["atoll-provider", "atoll-storage"]),
    // Shared by every engine on this machine; an engine decides what an instance is made of.
    ("atoll-instances", &["atoll-model", "atoll-agentapi", "atoll-provider", "atoll-network"]),
    // Shared by the providers whose instances are processes of this machine. Of storage it uses only the table of mounts.
    ("atoll-cgroup", &["atoll-model", "atoll-storage"]),
    ("atoll-local", &["atoll-model", "atoll-agentapi", "atoll-provider", "atoll-instances", "atoll-cgroup"]),
    (
        "atoll-container",
        &[
            "atoll-model",
            "atoll-cgroup",
            "atoll-instances",
            "atoll-storage",
            "atoll-volume-files",
            "atoll-provider",
            "atoll-image",
            "atoll-network",
            "atoll-agentapi",
        ],
    ),
    // Of the network it uses only the dialer, of the agent's protocol only the limits of a stream, of the storage only
    // the way to a folder of the host and the copy of a folder.
    (
        "atoll-docker",
        &[
            "atoll-model",
            "atoll-agentapi",
            "atoll-network",
            "atoll-provider",
            "atoll-storage",
            "atoll-tar",
            "atoll-volume-files",
        ],
    ),
    // Shared by the providers that are clients of a vendor's API; knows no vendor.
    ("atoll-remote", &["atoll-model", "atoll-outbound", "atoll-provider"]),
    // Of the agent's protocol it uses the types of processes and files that a session has.
    ("atoll-remote-daytona", &["atoll-model", "atoll-agentapi", "atoll-provider", "atoll-remote"]),
    // Of the agent's protocol it uses the client of envd, which a vendor's sandboxes run.
    ("atoll-remote-e2b", &["atoll-model", "atoll-agentapi", "atoll-provider", "atoll-remote"]),
    // Of the agent's protocol it uses only the descriptions of files and output.
    ("atoll-remote-agentbay", &["atoll-model", "atoll-agentapi", "atoll-provider", "atoll-remote"]),
    // Carried by container as bytes, loaded into another program; independent of all other crates.
    ("atoll-preload", &[]),
    ("atoll-store", &["atoll-model", "atoll-disk"]),
    // It works beside a server or without one, on the files of all three.
    ("atoll-backup", &["atoll-model", "atoll-disk", "atoll-image", "atoll-storage", "atoll-store"]),
    (
        "atoll-service",
        &[
            "atoll-model",
            "atoll-budget",
            "atoll-disk",
            "atoll-provider",
            "atoll-session",
            "atoll-store",
            "atoll-image",
            // Of the outside it uses only the kinds of settings: authorities and mirrors that it puts into sandboxes.
            "atoll-outbound",
            "atoll-agentapi",
            "atoll-tar",
        ],
    ),
    // Depends only on the agent, so that it works with every provider; and on the budget, because it holds bytes for callers.
    ("atoll-toolbox", &["atoll-model", "atoll-budget", "atoll-agentapi"]),
    ("atoll-proxy", &["atoll-model", "atoll-budget", "atoll-relay", "atoll-service"]),
    // Fronts use the model's nouns: they are what the service takes and answers.
    // Shared by all fronts.
    ("atoll-front-kit", &["atoll-model", "atoll-budget", "atoll-service", "atoll-toolbox"]),
    (
        "atoll-front-native",
        &["atoll-front-kit", "atoll-model", "atoll-service", "atoll-toolbox", "atoll-client"],
    ),
    ("atoll-front-leap0", &["atoll-front-kit", "atoll-model", "atoll-service", "atoll-toolbox"]),
    // A small front: it reaches no sandbox from inside.
    ("atoll-front-leon", &["atoll-front-kit", "atoll-model", "atoll-service"]),
    ("atoll-front-mcp", &["atoll-front-kit", "atoll-model", "atoll-service", "atoll-toolbox"]),
    ("atoll-front-daytona", &["atoll-front-kit", "atoll-model", "atoll-service", "atoll-toolbox"]),
    ("atoll-front-e2b", &["atoll-front-kit", "atoll-model", "atoll-service", "atoll-toolbox"]),
    // Files alone: it calls nothing.
    ("atoll-front-ui", &["atoll-front-kit"]),
    // A small front needs no more than these.
    ("atoll-example-front", &["atoll-front-kit", "atoll-model", "atoll-service"]),
    ("atoll-example-provider", &["atoll-agentapi", "atoll-model", "atoll-provider"]),
    ("atoll", &[ANY]),
    // Tests and benchmarks may use every crate.
    ("atoll-tests", &[ANY]),
    ("atoll-bench", &[ANY]),
];
const ANY: &str = "any";

/// The maximal length of a file.
const LINES_MAX: usize = 1_000;

#[test]
fn crates_depend_only_along_the_arrows() {
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a package has a name");
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("{name} is not in the picture: add it to ARROWS and to docs/ARCHITECTURE.md"));
            continue;
        };
        for dependency in array(&package["dependencies"]) {
            let to = dependency["name"].as_str().expect("a dependency has a name");
            let is_ours = ARROWS.iter().any(|(known, _)| *known == to);
            // Tests may have more dependencies than the code they test.
            let is_code = dependency["kind"].as_str() != Some("dev");
            if is_ours && is_code && !allowed.contains(&ANY) && !allowed.contains(&to) {
                wrong.push(format!("{name} -> {to}"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that may not be:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_of_tests_belongs_to_a_test_binary() {
    let mut wrong = Vec::new();
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a package has a manifest"));
        let folder = manifest.parent().expect("a manifest lies in a folder").join("tests");
        let roots: Vec<PathBuf> = array(&package["targets"])
            .iter()
            .filter(|target| array(&target["kind"]).iter().any(|kind| kind == "test"))
            .map(|target| PathBuf::from(target["src_path"].as_str().expect("a target has a file")))
            .collect();
        if roots.len() > 1 {
            wrong.push(format!("{}: one test binary per crate, with modules", folder.display()));
        }
        let modules: String = roots.iter().map(|root| read(root)).collect();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_module = path.extension().is_some_and(|end| end == "rs") || path.join("mod.rs").exists();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if is_module && !roots.contains(&path) && !modules.contains(&format!("mod {name};")) {
                wrong.push(format!("{} is compiled into no test", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_model_knows_no_runtime_and_no_wire() {
    let model = packages().into_iter().find(|p| p["name"] == "atoll-model").expect("the model");
    for dependency in array(&model["dependencies"]) {
        let name = dependency["name"].as_str().unwrap_or_default();
        assert!(
            !["tokio", "rusqlite", "hyper", "axum", "reqwest", "rustix", "jiff"].contains(&name),
            "the model depends on {name}"
        );
    }
}

#[test]
fn every_crate_says_one_sentence_in_both_places() {
    let mut wrong = Vec::new();
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
        let sources = manifest.parent().expect("a folder").join("src");
        let top = ["lib.rs", "main.rs"].map(|name| sources.join(name)).into_iter().find(|path| path.exists());
        let text = fs::read_to_string(top.expect("lib.rs or main.rs")).expect("readable");
        // Links and code marks are for rustdoc; the text is the same.
        let first = text.lines().next().unwrap_or_default().replace(['[', ']', '`'], "");
        let sentence = package["description"].as_str().unwrap_or_default();
        if first.strip_prefix("//! ") != Some(sentence) {
            wrong.push(format!("{}: {sentence:?} in Cargo.toml, {first:?} on top", package["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_stay_short_enough_to_read() {
    let mut wrong = Vec::new();
    for path in tracked() {
        let is_code = matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "sh" | "py"));
        let is_generated = path.components().any(|part| part.as_os_str() == "generated");
        let lines = read(&path).lines().count();
        if is_code && !is_generated && lines > LINES_MAX {
            wrong.push(format!("{} has {lines} lines", path.display()));
        }
    }
    assert!(wrong.is_empty(), "longer than {LINES_MAX} lines:\n{}", wrong.join("\n"));
}

/// A type name that is defined in many places does not say what it is in each of them.
#[test]
fn type_names_are_defined_in_three_places_at_most() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in tracked() {
        let is_source = path.extension().is_some_and(|e| e == "rs") && path.starts_with("crates");
        let is_generated = path.components().any(|part| part.as_os_str() == "generated");
        if is_source && !is_generated && path.components().any(|part| part.as_os_str() == "src") {
            for name in read(&path).lines().filter_map(defined_type) {
                places.entry(name.to_owned()).or_default().insert(path.display().to_string());
            }
        }
    }
    assert!(places.len() > 500, "the search for definitions finds {} only", places.len());
    assert!(SHARED_TYPE_NAMES.len() <= 15);
    let crowded = places.iter().filter(|(_, files)| files.len() > 3);
    let wrong: Vec<String> = crowded
        .filter(|(name, _)| !SHARED_TYPE_NAMES.contains(&name.as_str()))
        .map(|(name, files)| format!("{name}: {files:?}"))
        .collect();
    assert!(wrong.is_empty(), "give these types names that say whose they are:\n{}", wrong.join("\n"));
}

/// The name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let rest = ["struct ", "enum ", "trait ", "union "].iter().find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.starts_with(|c: char| c.is_ascii_uppercase()).then(|| &rest[..end])
}

#[test]
fn modules_say_what_they_are() {
    let mut wrong = Vec::new();
    for path in tracked() {
        let is_source = path.extension().is_some_and(|e| e == "rs") && path.starts_with("crates");
        let is_generated = path.components().any(|part| part.as_os_str() == "generated");
        if is_source && !is_generated && !read(&path).starts_with("//!") {
            wrong.push(path.display().to_string());
        }
    }
    assert!(wrong.is_empty(), "no `//!` on top:\n{}", wrong.join("\n"));
}

#[test]
fn no_tracked_file_names_this_machine_or_a_mirror() {
    // Assembled here, so that this file does not contain them either.
    let banned = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/.cargo"].concat(),
        ["/ro", "ot/.cache"].concat(),
        ["index.cra", "tes.io"].concat(),
        ["static.cra", "tes.io"].concat(),
        ["files.python", "hosted.org"].concat(),
        ["registry.npm", "js.org"].concat(),
        ["artifact", "ory"].concat(),
    ];
    let mut wrong = Vec::new();
    for path in tracked() {
        // Cargo writes the lock file, and names the public index in it.
        if path.file_name().is_some_and(|name| name == "Cargo.lock") {
            continue;
        }
        // Paths in these files are those of an image.
        let is_of_image =
            path.starts_with("tests/dockerfiles") || path.extension().is_some_and(|e| e == "dockerfile");
        let text = read(&path).to_lowercase();
        wrong.extend(
            banned
                .iter()
                .filter(|word| text.contains(*word) && !(is_of_image && word.starts_with('/')))
                .map(|word| format!("{}: {word}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "names that do not belong in the repository:\n{}", wrong.join("\n"));
}

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .ancestors()
        .nth(2)
        .expect("two folders up")
        .to_owned()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    array(&metadata["packages"]).to_vec()
}

/// Files that git tracks, by their path from the root, without deleted files that are not committed yet.
fn tracked() -> BTreeSet<PathBuf> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    names
        .split('\0')
        .filter(|name| !name.is_empty() && root().join(name).is_file())
        .map(PathBuf::from)
        .collect()
}

/// Binary files read as empty.
fn read(path: &Path) -> String {
    String::from_utf8(fs::read(root().join(path)).expect("readable")).unwrap_or_default()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

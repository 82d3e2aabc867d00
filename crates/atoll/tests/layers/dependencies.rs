//! Enforces `deny.toml` with cargo metadata alone: licences, banned crates, duplicate versions and sources. `cargo deny`
//! checks more, and reads the same file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde_json::Value;

use super::{array, root};

#[test]
fn every_dependency_has_an_allowed_licence() {
    let rules = Rules::read();
    let wrong: Vec<_> = packages()
        .iter()
        .filter(|package| {
            !package.licence.as_deref().is_some_and(|licence| permits(&rules.licences, licence))
        })
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.licence))
        .collect();
    assert!(wrong.is_empty(), "licences that deny.toml does not allow:\n{}", wrong.join("\n"));
}

#[test]
fn no_banned_crate_is_in_the_tree() {
    let rules = Rules::read();
    assert!(!rules.banned.is_empty(), "deny.toml bans no crate");
    let wrong: Vec<_> = packages()
        .into_iter()
        .filter_map(|package| {
            rules.banned.get(&package.name).map(|reason| format!("{}: {reason}", package.name))
        })
        .collect();
    assert!(wrong.is_empty(), "crates that deny.toml bans:\n{}", wrong.join("\n"));
}

#[test]
fn crates_are_in_the_tree_once_unless_listed() {
    let listed = Rules::read().duplicates;
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        versions.entry(package.name).or_default().insert(package.version);
    }
    let mut wrong = Vec::new();
    for (name, versions) in &versions {
        let unlisted: Vec<_> =
            versions.iter().filter(|version| !listed.contains(&format!("{name}@{version}"))).collect();
        if unlisted.len() > 1 {
            wrong.push(format!(
                "{name} is there as {unlisted:?}: agree on one, or list all but one in deny.toml"
            ));
        }
    }
    for entry in &listed {
        let (name, version) = entry.split_once('@').expect("NAME@VERSION");
        let is_duplicate =
            versions.get(name).is_some_and(|versions| versions.len() > 1 && versions.contains(version));
        if !is_duplicate {
            wrong.push(format!("{entry} is no duplicate any more: remove it from deny.toml"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dependencies_come_from_allowed_registries() {
    let rules = Rules::read();
    let wrong: Vec<_> = packages()
        .into_iter()
        .filter_map(|package| {
            let source = package.source?;
            let registry = source.strip_prefix("registry+").unwrap_or(&source);
            (!rules.registries.iter().any(|allowed| allowed == registry))
                .then(|| format!("{} {}: {source}", package.name, package.version))
        })
        .collect();
    assert!(wrong.is_empty(), "sources that deny.toml does not allow:\n{}", wrong.join("\n"));
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC", "Apache-2.0"].map(str::to_owned);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("ISC AND (GPL-3.0 OR LGPL-2.1)", false),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("GPL-3.0 OR MIT AND LGPL-2.1", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(permits(&allowed, expression), expected, "{expression:?}");
    }
}

/// The rules of `deny.toml`.
struct Rules {
    licences: Vec<String>,
    banned: BTreeMap<String, String>,
    /// `NAME@VERSION` of versions that may exist beside another.
    duplicates: BTreeSet<String>,
    registries: Vec<String>,
}

impl Rules {
    fn read() -> Self {
        let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml is readable");
        for rule in
            [r#"multiple-versions = "deny""#, r#"unknown-registry = "deny""#, r#"unknown-git = "deny""#]
        {
            assert!(text.lines().any(|line| line == rule), "deny.toml says no more {rule}");
        }
        assert!(text.lines().any(|line| line == "allow-git = []"), "this test knows no allowed git source");
        Self {
            licences: list(&text, "licenses", "allow")
                .iter()
                .map(|item| quoted(item)[0].to_owned())
                .collect(),
            banned: list(&text, "bans", "deny").iter().map(|item| crate_and_reason(item)).collect(),
            duplicates: list(&text, "bans", "skip").iter().map(|item| crate_and_reason(item).0).collect(),
            registries: list(&text, "sources", "allow-registry")
                .iter()
                .map(|item| quoted(item)[0].to_owned())
                .collect(),
        }
    }
}

/// The items of a list in `deny.toml`: one on each line, or all on the line of the key.
fn list<'a>(text: &'a str, section: &str, key: &str) -> Vec<&'a str> {
    let (_, after) = text.split_once(&format!("\n[{section}]\n")).expect("the section is there");
    let section = after.split("\n[").next().expect("the first piece");
    let begin = format!("{key} = [");
    let (_, after) = section
        .split_once(&format!("\n{begin}"))
        .or_else(|| section.split_once(&begin))
        .expect("the list is there");
    let body = after.lines().take_while(|line| *line != "]");
    let body: Vec<_> = if let Some((one_line, _)) = after.lines().next().and_then(|line| line.split_once(']'))
    {
        one_line.split(',').collect()
    } else {
        body.collect()
    };
    body.into_iter().map(str::trim).filter(|item| !item.is_empty() && !item.starts_with('#')).collect()
}

/// The name and the reason of `{ crate = "name", reason = "why" },`.
fn crate_and_reason(item: &str) -> (String, String) {
    assert!(
        item.starts_with(r#"{ crate = ""#) && item.contains(r#", reason = ""#),
        "not crate and reason: {item}"
    );
    let strings = quoted(item);
    (strings[0].to_owned(), strings[1].to_owned())
}

fn quoted(item: &str) -> Vec<&str> {
    item.split('"').skip(1).step_by(2).collect()
}

/// Whether an SPDX expression can be satisfied with allowed licences alone. `/` is the old form of OR.
fn permits(allowed: &[String], expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(allowed, &mut rest) == Some(true) && rest.is_empty()
}

/// `None` if the text is not an expression.
fn any_of(allowed: &[String], words: &mut &[&str]) -> Option<bool> {
    let mut value = all_of(allowed, words)?;
    while let Some(rest) = words.strip_prefix(&["OR"]) {
        *words = rest;
        value |= all_of(allowed, words)?;
    }
    Some(value)
}

fn all_of(allowed: &[String], words: &mut &[&str]) -> Option<bool> {
    let mut value = one(allowed, words)?;
    while let Some(rest) = words.strip_prefix(&["AND"]) {
        *words = rest;
        value &= one(allowed, words)?;
    }
    Some(value)
}

fn one(allowed: &[String], words: &mut &[&str]) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first == "(" {
        let value = any_of(allowed, words)?;
        *words = words.strip_prefix(&[")"])?;
        return Some(value);
    }
    let licence = match words.strip_prefix(&["WITH"]) {
        Some(rest) => {
            let (exception, rest) = rest.split_first()?;
            *words = rest;
            format!("{first} WITH {exception}")
        }
        None => (*first).to_owned(),
    };
    Some(allowed.contains(&licence))
}

struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    source: Option<String>,
}

/// All packages that are compiled for the target of `deny.toml`, including tests.
fn packages() -> Vec<Package> {
    let target = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(target)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let found: Vec<_> = array(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: text(&package["name"]).expect("a package has a name"),
            version: text(&package["version"]).expect("a package has a version"),
            licence: text(&package["license"]),
            source: text(&package["source"]),
        })
        .collect();
    assert!(found.len() > 100, "cargo metadata lists only {} packages", found.len());
    found
}

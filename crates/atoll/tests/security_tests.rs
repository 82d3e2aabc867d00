//! Keeps `docs/security-tests.md` up to date: which automated test covers which row of the attack catalogue. A test
//! names its rows in a comment (`// B03.`, `/// Attack N13: …`), a suite those of all its tests in its first lines.
//! Rows are listed in `tests/attacks.tsv`; a row without a test has its reason there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn the_page_of_security_tests_is_made_from_the_tests() {
    let rows = fs::read_to_string(root().join("tests/attacks.tsv")).expect("the catalogue");
    let found = tests_by_row();
    let mut page = String::from(
        "# Security tests\n\nRows of the attack catalogue and the automated tests that cover them. Made from the tests by \
         `crates/atoll/tests/security_tests.rs`; do not edit. `UPDATE=1 cargo test -p atoll --test suite security_tests` writes it again.\n\n\
         | row | attack | tests | note |\n|---|---|---|---|\n",
    );
    let mut uncovered = Vec::new();
    for row in rows.lines() {
        let mut fields = row.split('\t');
        let (id, attack) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let note = fields.next().unwrap_or_default();
        let tests = found.get(id).map(|tests| tests.iter().cloned().collect::<Vec<_>>().join("<br>"));
        if tests.is_none() && note.is_empty() {
            uncovered.push(id.to_owned());
        }
        let _ = writeln!(page, "| {id} | {attack} | {} | {note} |", tests.unwrap_or_default());
    }
    assert!(uncovered.is_empty(), "rows without a test and without a reason: {uncovered:?}");
    let known: BTreeSet<&str> = rows.lines().filter_map(|row| row.split('\t').next()).collect();
    let unknown: Vec<_> = found.keys().filter(|id| !known.contains(id.as_str())).collect();
    assert!(unknown.is_empty(), "tests name rows that the catalogue has not: {unknown:?}");
    let path = root().join("docs/security-tests.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("writable");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "{} is old; write it again with UPDATE=1", path.display());
}

/// Every test, as `suite::test` or `suite` for a whole file, by the rows that it names.
fn tests_by_row() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut files = Vec::new();
    for folder in ["tests/tests", "crates"] {
        sources(&root().join(folder), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let suite = suite(&file);
        let is_suite = file.components().any(|part| part.as_os_str() == "tests");
        let mut waiting: Vec<String> = Vec::new();
        let mut test: Option<String> = None;
        for line in text.lines() {
            let line = line.trim_start();
            if let Some(name) = function(line) {
                let rows = std::mem::take(&mut waiting);
                rows.into_iter().for_each(|row| add(&mut found, row, format!("`{suite}::{name}`")));
                test = Some(name.to_owned());
            }
            let Some((_, comment)) = line.split_once("//") else { continue };
            // Outside of test files only comments with "Attack" name a row.
            if !is_suite && !comment.contains("Attack ") {
                continue;
            }
            let rows = rows_of(comment);
            match (&test, comment.starts_with('!'), comment.starts_with('/')) {
                (_, true, _) => rows.into_iter().for_each(|row| add(&mut found, row, format!("`{suite}`"))),
                (_, _, true) | (None, ..) => waiting.extend(rows),
                (Some(name), ..) => {
                    rows.into_iter().for_each(|row| add(&mut found, row, format!("`{suite}::{name}`")));
                }
            }
        }
    }
    // The rows of a single test are more specific than those of the whole suite.
    for tests in found.values_mut() {
        if tests.iter().any(|test| test.contains("::")) {
            tests.retain(|test| test.contains("::"));
        }
    }
    found
}

fn add(found: &mut BTreeMap<String, BTreeSet<String>>, row: String, test: String) {
    found.entry(row).or_default().insert(test);
}

/// Rows in a comment, including ranges: `A01 to A13`.
fn rows_of(comment: &str) -> Vec<String> {
    let words: Vec<&str> =
        comment.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let number = |word: &str| -> Option<(char, u32)> {
        let kind = word.chars().next().filter(|c| "ABCNF".contains(*c))?;
        (word.len() == 3).then(|| word[1..].parse().ok().map(|number| (kind, number)))?
    };
    let mut rows = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some((kind, first)) = number(word) else { continue };
        let last = (words.get(at + 1) == Some(&"to"))
            .then(|| words.get(at + 2).and_then(|word| number(word)))
            .flatten()
            .map_or(first, |(_, last)| last);
        rows.extend((first..=last).map(|number| format!("{kind}{number:02}")));
    }
    rows.dedup();
    rows
}

fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
    rest.split(['(', '<']).next()
}

fn suite(file: &Path) -> String {
    let below = file.strip_prefix(root()).unwrap_or(file).with_extension("");
    below.to_string_lossy().replace("tests/tests/", "")
}

/// Every source file except this one.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("security_tests.rs") {
            files.push(path);
        }
    }
}

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

#[test]
fn rows_are_found_in_comments_and_nowhere_else() {
    assert_eq!(
        rows_of(" N04, (N05) and A01 to A03; not C1 or X11 or 0xB12F"),
        ["N04", "N05", "A01", "A02", "A03"]
    );
    assert_eq!(function("async fn a_b() {"), Some("a_b"));
}

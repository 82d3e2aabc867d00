//! No run of twelve lines of logic occurs in two places below `crates/*/src`.
//!
//! Lines of code are compared without their indentation. Comments, attributes, imports, lines of punctuation alone,
//! generated code and tests do not count.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
};

use super::{read, tracked};

/// The number of equal lines that count as a copy.
const RUN: usize = 12;

/// Allowed copies: two files and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[(
    "crates/service/src/types.rs",
    "crates/store/src/leases.rs",
    "fields of a filter: the service knows a tenant as the client wrote it, the store by its id",
)];

#[test]
fn no_twelve_lines_of_logic_stand_twice() {
    let files: Vec<(PathBuf, Vec<Line>)> = tracked()
        .into_iter()
        .filter(|path| is_code(path))
        .map(|path| {
            let lines = lines(&read(&path));
            (path, lines)
        })
        .collect();
    assert!(files.len() > 300, "only {} files were read", files.len());
    let copies = copies(&files);
    let is_allowed =
        |copy: &&Copy| ALLOWED.iter().any(|(one, other, _)| copy.files == [Path::new(one), Path::new(other)]);
    let wrong: Vec<String> = copies
        .iter()
        .filter(|copy| !is_allowed(copy))
        .map(|copy| {
            let [one, other] = copy.files;
            format!("{}:{} and {}:{}", one.display(), copy.lines[0], other.display(), copy.lines[1])
        })
        .collect();
    assert!(wrong.is_empty(), "{RUN} or more equal lines of logic, from:\n{}", wrong.join("\n"));
    for (one, other, reason) in ALLOWED {
        let is_there = copies.iter().any(|copy| copy.files == [Path::new(one), Path::new(other)]);
        assert!(is_there, "{one} and {other} have no copy any more ({reason}): remove them from ALLOWED");
    }
}

#[test]
fn a_copy_is_found_whatever_its_indentation_and_comments() {
    let body: Vec<String> = (0..RUN).map(|n| format!("call({n});")).collect();
    let one = format!("use a::{{\n    b,\n}};\nfn f() {{\n    {}\n}}\n", body.join("\n    "));
    let other = format!("fn g() {{\n// Why.\n{}\n}}\n", body.join("\n\n"));
    let tested = format!("#[cfg(test)]\nmod tests {{\n{}\n}}\n", body.join("\n"));
    let file = |name: &str, text: &str| (PathBuf::from(name), lines(text));
    let found =
        |files: &[(PathBuf, Vec<Line>)]| copies(files).iter().map(|copy| copy.lines).collect::<Vec<_>>();
    assert_eq!(found(&[file("a", &one), file("b", &other), file("c", &tested)]), [[5, 3]]);
    let shorter = other.replace("call(5);", "other(5);");
    assert!(found(&[file("a", &one), file("b", &shorter)]).is_empty());
}

struct Line {
    number: usize,
    hash: u64,
}

/// The start of a copy.
struct Copy<'a> {
    files: [&'a Path; 2],
    lines: [usize; 2],
}

fn copies(files: &[(PathBuf, Vec<Line>)]) -> Vec<Copy<'_>> {
    let mut known: HashMap<Vec<u64>, (usize, usize)> = HashMap::new();
    let mut copies = Vec::new();
    // The position of the last copy in this file, and its source: a continued copy is reported once.
    for (index, (path, lines)) in files.iter().enumerate() {
        let mut last = None;
        for (at, run) in lines.windows(RUN).enumerate() {
            let run_hash: Vec<u64> = run.iter().map(|line| line.hash).collect();
            let Some(&(other, other_at)) = known.get(&run_hash) else {
                known.insert(run_hash, (index, at));
                continue;
            };
            // A run of equal lines overlaps itself.
            if other == index && other_at + RUN > at {
                continue;
            }
            if last != Some((at.wrapping_sub(1), other, other_at.wrapping_sub(1))) {
                let (other_path, other_lines) = &files[other];
                copies.push(Copy {
                    files: [other_path.as_path(), path.as_path()],
                    lines: [other_lines[other_at].number, run[0].number],
                });
            }
            last = Some((at, other, other_at));
        }
    }
    copies
}

fn is_code(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    text.starts_with("crates/")
        && text.contains("/src/")
        && !text.contains("/generated/")
        && name.ends_with(".rs")
        && name != "tests.rs"
        && !name.ends_with("_tests.rs")
}

/// The lines of logic. A test module is the last item in a file.
fn lines(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut is_import = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line == "#[cfg(test)]" {
            break;
        }
        let line = line.trim();
        let item = line.strip_prefix("pub").map_or(line, |rest| {
            rest.strip_prefix('(')
                .and_then(|rest| rest.split_once(')'))
                .map_or(rest, |(_, rest)| rest)
                .trim_start()
        });
        is_import |= item.starts_with("use ") || item.starts_with("mod ");
        if is_import {
            is_import = !(line.ends_with(';') || line.ends_with('{') && item.starts_with("mod "));
            continue;
        }
        let is_logic = !line.starts_with("//")
            && !line.starts_with("#[")
            && !line.starts_with("#![")
            && line.chars().any(|c| c.is_alphanumeric() || c == '_');
        if is_logic {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            lines.push(Line { number, hash: hasher.finish() });
        }
    }
    lines
}

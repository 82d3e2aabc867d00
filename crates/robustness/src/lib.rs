//! Randomised tests of parsers that read untrusted bytes: mutations of a kept corpus, repeatable by seed.
//!
//! The test of a parser is one call. The corpus is the folder `tests/corpus/PARSER` of the calling crate:
//!
//! ```ignore
//! #[test]
//! fn arbitrary_queries_are_parsed_or_refused() {
//!     atoll_robustness::check("dns_query", |bytes| drop(Query::parse(bytes)));
//! }
//! ```
//!
//! Every stored input is tried first, then mutations of them for `ROBUSTNESS_S` seconds (0.3 by default). A property
//! fails by a panic, or by taking more than [`SLOW`] of CPU time. The failing input is then written into the corpus, so
//! that the next run tries it first; commit it with the fix. The seed depends only on the parser's name, so that an
//! ordinary run tries the same inputs each time; `ROBUSTNESS_SEED` sets another one.
//!
//! `crates/atoll/tests/layers/robustness.rs` lists all parsers, and fails when a corpus has no test or a test no corpus.

mod mutate;

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mutate::{Random, mutate};
use rustix::time::{ClockId, clock_gettime};

/// The maximal CPU time for one input of at most 64 KiB, in a debug build.
pub const SLOW: Duration = Duration::from_secs(2);

/// Tries `property` on the corpus of a parser and on mutations of it. `property` takes bytes and panics on a violation.
///
/// # Panics
///
/// If an input violates the property, and if the corpus is empty.
pub fn check(parser: &str, property: impl Fn(&[u8])) {
    // Read when the test runs: a target folder can serve several checkouts.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    check_in(Path::new(&crate_folder), parser, property);
}

fn check_in(crate_folder: &Path, parser: &str, property: impl Fn(&[u8])) {
    let folder = crate_folder.join("tests/corpus").join(parser);
    let corpus = read(&folder).unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()));
    assert!(!corpus.is_empty(), "{} is empty", folder.display());
    let run = Run { folder, parser, seed: seed(parser), slow: SLOW, property };
    for (name, input) in &corpus {
        run.try_one(input, name);
    }
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let until = Instant::now() + duration();
    let mut number = 0_u64;
    while Instant::now() < until {
        let mut random = Random::new(run.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        run.try_one(&mutate(&inputs, &mut random), &format!("mutation {number}"));
        number += 1;
    }
}

struct Run<'a, P> {
    folder: PathBuf,
    parser: &'a str,
    seed: u64,
    slow: Duration,
    property: P,
}

impl<P: Fn(&[u8])> Run<'_, P> {
    fn try_one(&self, input: &[u8], name: &str) {
        let began = cpu_time();
        // The property is not used again after a panic, so a broken invariant is harmless.
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.property)(input)));
        let took = cpu_time().saturating_sub(began);
        match outcome {
            Err(_) => self.fail(input, name, "panicked"),
            Ok(()) if took > self.slow => self.fail(input, name, &format!("took {took:?} of CPU time")),
            Ok(()) => {}
        }
    }

    fn fail(&self, input: &[u8], name: &str, what: &str) -> ! {
        let file = self.folder.join(format!("failed-{:016x}", hash(input)));
        let kept = match fs::write(&file, input) {
            Ok(()) => format!("kept as {}", file.display()),
            Err(error) => format!("not kept ({error})"),
        };
        let shown = input[..input.len().min(4096)].escape_ascii();
        panic!(
            "{}: {what} on {name} (ROBUSTNESS_SEED={}), {} bytes, {kept}:\n{shown}",
            self.parser,
            self.seed,
            input.len()
        );
    }
}

/// The files of a folder by name, in the order of their names.
fn read(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read(path)?))
        })
        .collect()
}

fn seed(parser: &str) -> u64 {
    let given = std::env::var("ROBUSTNESS_SEED").ok();
    given.map_or_else(|| hash(parser.as_bytes()), |text| text.parse().expect("ROBUSTNESS_SEED is a number"))
}

fn duration() -> Duration {
    let given = std::env::var("ROBUSTNESS_S").ok();
    Duration::from_secs_f64(
        given.map_or(0.3, |text| text.parse().expect("ROBUSTNESS_S is a number of seconds")),
    )
}

/// CPU time of this thread, so that a busy machine does not make an input appear slow.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with one input, as in a crate.
    fn crate_with_input(test: &str, input: &[u8]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("atoll-robustness-{test}-{}", std::process::id()));
        fs::create_dir_all(folder.join("tests/corpus/parser")).expect("a folder");
        fs::write(folder.join("tests/corpus/parser/sample"), input).expect("a file");
        folder
    }

    #[test]
    fn a_panic_is_found_and_its_input_kept() {
        let folder = crate_with_input("panic", b"key=value");
        let outcome = catch_unwind(|| {
            check_in(&folder, "parser", |bytes| {
                assert!(!bytes.contains(&b'\n'), "a parser that fears lines")
            });
        });
        let message = outcome.expect_err("the property does not hold");
        let message = message.downcast_ref::<String>().expect("a text");
        assert!(
            message.contains("panicked on mutation") && message.contains("ROBUSTNESS_SEED="),
            "{message}"
        );
        let kept = read(&folder.join("tests/corpus/parser")).expect("readable");
        assert_eq!(kept.len(), 2, "the sample and the input that failed");
        assert!(kept[0].0.starts_with("failed-") && kept[0].1.contains(&b'\n'));
        fs::remove_dir_all(folder).expect("removable");
    }

    #[test]
    fn an_input_that_takes_too_long_fails() {
        let folder = crate_with_input("slow", b"sample");
        let property = |_: &[u8]| {
            let began = cpu_time();
            while cpu_time() <= began + Duration::from_millis(20) {}
        };
        let slow = Duration::from_millis(10);
        let run =
            Run { folder: folder.join("tests/corpus/parser"), parser: "parser", seed: 1, slow, property };
        let message = catch_unwind(AssertUnwindSafe(|| run.try_one(b"x", "x"))).expect_err("too slow");
        assert!(message.downcast_ref::<String>().expect("a text").contains("of CPU time"));
        fs::remove_dir_all(folder).expect("removable");
    }

    #[test]
    fn an_empty_corpus_is_refused() {
        let folder = crate_with_input("empty", b"sample");
        fs::remove_file(folder.join("tests/corpus/parser/sample")).expect("removable");
        let outcome = catch_unwind(|| check_in(&folder, "parser", |_| {}));
        assert!(outcome.is_err());
        fs::remove_dir_all(folder).expect("removable");
    }
}

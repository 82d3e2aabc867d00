//! A front translates and holds no state: rules, registries and timers belong to the service. This reads the types and statics of
//! `crates/fronts/*` and refuses
//!
//! - a lock, a sender, a timer or a task in any type or static,
//! - a map or a queue in a static, or in a type that the state of a front contains. Elsewhere, as in the body of a request, a map
//!   is plain data.

use std::collections::{BTreeMap, BTreeSet};

use super::{read, tracked};

/// Types that hold state all the same, each with its reason; five at most.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "crates/fronts/kit/src/multipart.rs: Form",
        "of one request: a part borrows the reader until it is read",
    ),
    ("crates/fronts/kit/src/upload.rs: UploadFault", "of one request: why its body broke, for its answer"),
    ("crates/fronts/daytona/src/toolbox/socket.rs: Socket", "of one connection: when to ping it"),
];

const SHARED: &[&str] = &[
    "Mutex",
    "RwLock",
    "RefCell",
    "Semaphore",
    "DashMap",
    "Sender",
    "UnboundedSender",
    "Interval",
    "JoinHandle",
    "JoinSet",
    "TaskTracker",
];
const COLLECTIONS: &[&str] =
    &["HashMap", "BTreeMap", "HashSet", "BTreeSet", "VecDeque", "IndexMap", "LruCache"];

#[test]
fn no_front_holds_a_map_a_lock_or_a_timer() {
    let found = found();
    assert!(EXCEPTIONS.len() <= 5, "at most five exceptions");
    let known = |name: &str| EXCEPTIONS.iter().any(|(known, _)| *known == name);
    let wrong: Vec<String> = found
        .iter()
        .filter(|(name, _)| !known(name))
        .map(|(name, words)| format!("{name} holds {words:?}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "a front holds no state; move it into the service, or name it in EXCEPTIONS with a reason:\n{}",
        wrong.join("\n")
    );
    let spare: Vec<&str> =
        EXCEPTIONS.iter().map(|(known, _)| *known).filter(|known| !found.contains_key(*known)).collect();
    assert!(spare.is_empty(), "these need no exception any more: {spare:?}");
}

#[test]
fn the_search_finds_what_it_is_for() {
    let source = r#"
        /// Not a Mutex.
        pub struct App<'a> { pub(crate) own: Arc<Inner>, text: &'a str, all: Vec<Option<Listed>> }
        struct Inner(HashMap<String, u8>);
        enum Listed { One { by: BTreeMap<u8, u8> }, Two }
        #[derive(Deserialize)]
        struct Body { fields: BTreeMap<String, String>, note: &'static str }
        struct Watched { said: watch::Sender<u8> }
        static KNOWN: LazyLock<HashMap<u8, u8>> = LazyLock::new(|| "Mutex".len());
        type Named = RwLock<u8>;
        struct Short;
        impl FrontState for App<'_> {}
        #[cfg(test)]
        struct InTests { lock: Mutex<u8> }
    "#;
    let sources = BTreeMap::from([("x.rs".to_owned(), without_tests(source))]);
    let mut found = state_of(&sources);
    for (name, words) in [
        ("x.rs: Inner", ["HashMap"]),
        ("x.rs: Listed", ["BTreeMap"]),
        ("x.rs: Watched", ["Sender"]),
        ("x.rs: KNOWN", ["HashMap"]),
        ("x.rs: Named", ["RwLock"]),
    ] {
        assert_eq!(found.remove(name), Some(words.map(str::to_owned).into()), "{name}");
    }
    assert!(found.is_empty(), "{found:?}");
}

/// What each type or static of every front holds that it must not.
fn found() -> BTreeMap<String, BTreeSet<String>> {
    let mut fronts: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for path in tracked() {
        let name = path.display().to_string();
        let Some((front, file)) =
            name.strip_prefix("crates/fronts/").and_then(|rest| rest.split_once("/src/"))
        else {
            continue;
        };
        // The checks of responses are compiled for tests alone.
        if file.ends_with(".rs") && file != "testing.rs" {
            fronts.entry(front.to_owned()).or_default().insert(name.clone(), without_tests(&read(&path)));
        }
    }
    assert!(fronts.len() >= 5, "not all fronts are found: {:?}", fronts.keys());
    fronts.values().flat_map(state_of).collect()
}

fn state_of(sources: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let items: Vec<(String, Item)> = sources
        .iter()
        .flat_map(|(file, text)| items(text).into_iter().map(move |item| (file.clone(), item)))
        .collect();
    let roots = sources.values().flat_map(|text| implementors(text));
    let held = reachable(&items, roots.collect());
    let mut found = BTreeMap::new();
    for (file, item) in &items {
        let is_held = item.is_static || held.contains(&item.name);
        let is_state = |word: &&String| {
            SHARED.contains(&word.as_str()) || (is_held && COLLECTIONS.contains(&word.as_str()))
        };
        let words: BTreeSet<String> = item.words.iter().filter(is_state).cloned().collect();
        if !words.is_empty() {
            found.insert(format!("{file}: {}", item.name), words);
        }
    }
    found
}

/// A type or a static, and every word of what it contains.
struct Item {
    name: String,
    is_static: bool,
    words: BTreeSet<String>,
}

fn is_exception(file: &str, item: &Item) -> bool {
    let name = format!("{file}: {}", item.name);
    EXCEPTIONS.iter().any(|(known, _)| *known == name)
}

/// The names of all types that values of these types contain. What an exception contains is its own.
fn reachable(items: &[(String, Item)], roots: BTreeSet<String>) -> BTreeSet<String> {
    let (mut held, mut next) = (BTreeSet::new(), Vec::from_iter(roots));
    while let Some(name) = next.pop() {
        if held.insert(name.clone()) {
            let named = items.iter().filter(|(file, item)| item.name == name && !is_exception(file, item));
            next.extend(named.flat_map(|(_, item)| item.words.iter().cloned()));
        }
    }
    held
}

/// The types that are a front or its state: `impl Front for X`, `impl FrontState for X`.
fn implementors(text: &str) -> BTreeSet<String> {
    let implementations = ["impl Front for ", "impl FrontState for "];
    let behind = implementations.iter().flat_map(|begin| text.split(begin).skip(1));
    behind.filter_map(|rest| words(rest).next()).collect()
}

/// The types and statics of a source without comments and strings.
fn items(text: &str) -> Vec<Item> {
    let mut found = Vec::new();
    for keyword in ["struct", "enum", "union", "static", "type"] {
        for (at, _) in text.match_indices(keyword) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let rest = &text[at + keyword.len()..];
            if !before.is_whitespace() || !rest.starts_with(' ') {
                continue;
            }
            let Some(name) = words(rest).find(|word| word != "mut") else { continue };
            let body = &rest[rest.find(&name).unwrap_or(0) + name.len()..];
            let body = match keyword {
                // Up to the value or the end.
                "static" => body.split(" = ").next().unwrap_or(body),
                "type" => body.split(';').next().unwrap_or(body),
                _ => definition(body),
            };
            found.push(Item { is_static: keyword == "static", words: words(body).collect(), name });
        }
    }
    found
}

/// A definition up to the end of its fields.
fn definition(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return &text[..at];
                }
            }
            ';' if depth == 0 => return &text[..at],
            _ => {}
        }
    }
    text
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c: char| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned)
}

/// A source without its tests, comments and strings.
fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().map(|line| {
        let line = line.split("//").next().unwrap_or_default();
        // Every second piece between quotes is text.
        line.split('"').step_by(2).collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

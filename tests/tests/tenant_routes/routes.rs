//! Which routes there are: from the OpenAPI document, and from the sources of fronts that have none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use atoll_tests::Value;

const METHODS: [&str; 6] = ["get", "put", "post", "delete", "patch", "head"];

pub(crate) fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// A path without its query, every parameter as `{}`. What stands in front of a host's path is dropped.
pub(crate) fn plain(path: &str) -> String {
    let path = path.strip_prefix("host:").map_or(path, |rest| &rest[rest.find('/').unwrap_or(0)..]);
    let path = path.split('?').next().unwrap_or_default();
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Operations of the native API with a parameter in their path.
pub(crate) fn of_document(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &Value)| {
        let has: Vec<_> = METHODS.iter().filter(|method| item.get(**method).is_some()).collect();
        has.into_iter().map(|method| (method.to_uppercase(), plain(path))).collect::<Vec<_>>()
    };
    paths.iter().filter(|(path, _)| path.contains('{')).flat_map(of).collect()
}

/// The fronts that have no OpenAPI document: all but the native one, the web page, whose files belong to no tenant, and MCP,
/// whose one route names things in its body.
pub(crate) fn vendor_fronts() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("crates/fronts")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["kit", "mcp", "native", "ui"].contains(&name.as_str())).collect()
}

/// Routes of a front with a parameter in their path, read from its `.route(…)` calls.
pub(crate) fn of_front(front: &str) -> BTreeSet<(String, String)> {
    let folder = root().join("crates/fronts").join(front).join("src");
    let mut found = BTreeSet::new();
    let mut waiting = vec![folder.clone()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let place = path.strip_prefix(&folder).unwrap().to_string_lossy().into_owned();
            found.extend(of_source(&text, &mount(front, &place)));
        }
    }
    found
}

/// Where the routes of a file are mounted.
fn mount(front: &str, file: &str) -> String {
    match (front, file) {
        ("daytona", file) if file.starts_with("toolbox") => "/daytona/toolbox/{}".to_owned(),
        ("daytona", "storage.rs") => "/daytona".to_owned(),
        ("daytona", _) => "/daytona/api".to_owned(),
        ("leon", _) => "/api/sandbox".to_owned(),
        // On hosts of sandboxes.
        ("leap0", "interpreter.rs" | "desktop.rs") => String::new(),
        _ => format!("/{front}"),
    }
}

fn of_source(text: &str, mount: &str) -> Vec<(String, String)> {
    // `let at = |op: &str| format!("/v1/sandbox/{{id}}/lsp/{op}");`
    let prefix =
        text.split("let at = |op: &str| format!(\"").nth(1).and_then(|rest| rest.split("{op}").next());
    let prefix = prefix.unwrap_or_default().replace("{{", "{").replace("}}", "}");
    let mut found = Vec::new();
    for call in text.split(".route(").skip(1) {
        let call = &call[..end_of_call(call)];
        let Some(literal) = call.split('"').nth(1) else { continue };
        let is_short = call.trim_start().starts_with("&at(");
        let path = plain(&format!("{mount}{}{literal}", if is_short { &prefix } else { "" }));
        if !path.contains("{}") {
            continue;
        }
        let handlers = &call[call.find(literal).unwrap() + literal.len()..];
        let has = |method: &str| {
            let at = handlers.find(&format!("{method}("));
            at.is_some_and(|at| !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        let methods: Vec<&str> = METHODS.into_iter().chain(["any"]).filter(|method| has(method)).collect();
        assert!(!methods.is_empty(), "no method in .route({call}");
        found.extend(methods.iter().map(|method| (method.to_uppercase(), path.clone())));
    }
    found
}

/// Where the parenthesis that is open at the beginning is closed.
fn end_of_call(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[test]
fn routes_are_read_from_sources() {
    let text = r#"
        let at = |op: &str| format!("/v1/{{id}}/lsp/{op}");
        Router::new().route("/a", get(x)).route("/a/{id}", get(find).patch(widget(1)).delete(remove))
            .route(&at("start"), post(start)).route("/b/{*rest}", any(async |_: Caller| ssh()))"#;
    let found = of_source(text, "/f");
    let wanted = [
        ("GET", "/f/a/{}"),
        ("DELETE", "/f/a/{}"),
        ("PATCH", "/f/a/{}"),
        ("POST", "/f/v1/{}/lsp/start"),
        ("ANY", "/f/b/{}"),
    ];
    assert_eq!(found, wanted.map(|(method, path)| (method.to_owned(), path.to_owned())));
}

//! `atoll context add|use|ls|rm|show`. Keys come from stdin, never from an argument, and are never shown.

use std::io::Read;

use serde::Serialize;

use super::CommandContext;
use crate::{
    cli::remote::Context as Command,
    client::address,
    contexts::{Context, ContextFile, LOCAL, check_name, no_context},
    failure::Failure,
    human::Table,
};

/// LIMIT: a key has 44 characters.
const KEY_MAX: u64 = 1_024;

pub(super) fn context(context: &CommandContext, command: Command) -> Result<(), Failure> {
    let file = ContextFile::of_user();
    match command {
        Command::Add { name, server, key_stdin, force } => {
            add(context, &file, name, &server, key_stdin, force)
        }
        Command::Use { name } => use_context(context, &file, name),
        Command::Ls => ls(context, &file),
        Command::Rm { names } => rm(context, &file, names),
        Command::Show { name } => show(context, &file, name),
    }
}

fn add(
    context: &CommandContext,
    file: &ContextFile,
    name: String,
    server: &str,
    key_stdin: bool,
    force: bool,
) -> Result<(), Failure> {
    check_name(&name)?;
    let url = address::parse(server)?.to_string();
    let ca = ca_of(context)?;
    let key = if key_stdin { Some(key_of_stdin()?) } else { None };
    let has_key = key.is_some();
    file.change(context.out, |known| {
        if known.contexts.contains_key(&name) && !force {
            return Err(Failure::new("name_taken", format!("there is a context {name:?} already"))
                .hint("replace it with --force, or choose another name"));
        }
        known.contexts.insert(name.clone(), Context { url, ca, key });
        Ok(())
    })?;
    context.out.named("context", &name)?;
    if !has_key {
        context.out.tell(&format!("it has no key yet: atoll login --context {name}"));
    }
    context.out.tell(&format!("next: atoll context use {name}"));
    Ok(())
}

/// The certificates of `--ca`, in PEM.
pub(super) fn ca_of(context: &CommandContext) -> Result<Option<String>, Failure> {
    let Some(path) = &context.global.ca else { return Ok(context.global.ca_pem.clone()) };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::new("io", format!("--ca: {} cannot be read: {e}", path.display())))?;
    if text.contains("-----BEGIN CERTIFICATE-----") && !text.contains("PRIVATE KEY") {
        return Ok(Some(text));
    }
    Err(Failure::usage(
        format!("--ca: {} is not a file with certificates only, in PEM format", path.display()),
        "`atoll tls ca` on the server prints the certificate of its authority",
    ))
}

fn key_of_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .take(KEY_MAX)
        .read_to_string(&mut text)
        .map_err(|e| Failure::new("io", format!("the key cannot be read from stdin: {e}")))?;
    address::checked(&text).map_err(|_| {
        Failure::usage("there is no key on stdin", "atoll context add NAME URL --key-stdin < key.txt")
    })
}

fn use_context(context: &CommandContext, file: &ContextFile, name: String) -> Result<(), Failure> {
    file.change(context.out, |known| {
        if name == LOCAL {
            known.current = None;
            return Ok(());
        }
        known.find(&name)?;
        known.current = Some(name.clone());
        Ok(())
    })?;
    context.out.named("context", &name)
}

fn ls(context: &CommandContext, file: &ContextFile) -> Result<(), Failure> {
    let known = file.read(context.out)?;
    let is_current = |name: &str| known.current.as_deref().unwrap_or(LOCAL) == name;
    if context.out.json {
        let stored = known.contexts.iter().map(|(name, one)| ListedContext::of(name, one, is_current(name)));
        let local =
            ListedContext { name: LOCAL, current: is_current(LOCAL), url: None, has_key: None, has_ca: None };
        return context.out.json(&std::iter::once(local).chain(stored).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["CURRENT", "NAME", "URL", "KEY"]);
    let mark = |name: &str| if is_current(name) { "*" } else { "" }.to_owned();
    table.row(vec![mark(LOCAL), LOCAL.to_owned(), "the server of this machine".to_owned(), String::new()]);
    for (name, one) in &known.contexts {
        let key = if one.key.is_some() { "yes" } else { "no" };
        table.row(vec![mark(name), name.clone(), one.url.clone(), key.to_owned()]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// A context as `--json` shows it. The server of this machine has no settings.
#[derive(Serialize)]
struct ListedContext<'a> {
    name: &'a str,
    current: bool,
    url: Option<&'a str>,
    has_key: Option<bool>,
    has_ca: Option<bool>,
}

impl<'a> ListedContext<'a> {
    fn of(name: &'a str, one: &'a Context, current: bool) -> Self {
        let (has_key, has_ca) = (Some(one.key.is_some()), Some(one.ca.is_some()));
        Self { name, current, url: Some(&one.url), has_key, has_ca }
    }
}

fn rm(context: &CommandContext, file: &ContextFile, names: Vec<String>) -> Result<(), Failure> {
    let with_key = file.change(context.out, |known| {
        if let Some(missing) = names.iter().find(|name| !known.contexts.contains_key(*name)) {
            return Err(no_context(missing));
        }
        known.current.take_if(|current| names.contains(current));
        let removed = names.iter().filter_map(|name| known.contexts.remove(name));
        Ok(removed.filter(|one| one.key.is_some()).count())
    })?;
    names.iter().try_for_each(|name| context.out.named("context", name))?;
    if with_key > 0 {
        context.out.tell("the keys still work on their servers; `atoll logout` revokes the key of a context");
    }
    Ok(())
}

fn show(context: &CommandContext, file: &ContextFile, name: Option<String>) -> Result<(), Failure> {
    let known = file.read(context.out)?;
    let Some(name) = name.or_else(|| known.current.clone()) else {
        return Err(Failure::usage(
            "no context is in use; commands go to the server of this machine",
            "atoll context show NAME",
        ));
    };
    let one = known.find(&name)?;
    let is_current = known.current.as_ref() == Some(&name);
    if context.out.json {
        return context.out.json(&ListedContext::of(&name, one, is_current));
    }
    let stored = |is: bool| if is { "stored" } else { "none" };
    let used = if is_current { " (current)" } else { "" };
    for (what, text) in [
        ("context", format!("{name}{used}")),
        ("url", one.url.clone()),
        ("key", stored(one.key.is_some()).to_owned()),
        ("authority", stored(one.ca.is_some()).to_owned()),
        ("file", file.path().display().to_string()),
    ] {
        context.out.line(&format!("{what:10} {text}"))?;
    }
    Ok(())
}

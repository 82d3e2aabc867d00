//! `atoll provider ls|show|set|rm|test`. Secrets come from stdin or a file, never from an argument, and are never shown.

use std::io::Read;

use atoll_client::providers::{Isolation, ProviderSettings};
use serde_json::{Map, Value};

use super::CommandContext;
use crate::{
    cli::{Provider, ProviderChange},
    client::Client,
    failure::Failure,
    human::Table,
};

/// LIMIT: as the server accepts.
const SETTINGS_BYTES_MAX: u64 = 64 * 1_024;

pub(super) async fn provider(context: &CommandContext, command: Provider) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Provider::Ls { wide } => ls(context, &client, wide).await,
        Provider::Show { name } => {
            let settings = client.provider_settings(&name).await?;
            if context.out.json { context.out.json(&settings) } else { show(context, &settings) }
        }
        Provider::Set { name, change } => {
            let document = document(&client, &name, &change).await?;
            let settings = client.set_provider_settings(&name, &document).await?;
            if context.out.json {
                context.out.json(&settings)?
            } else {
                show(context, &settings)?
            }
            if takes_sandboxes(&settings.settings) { usable(&client, &name).await } else { Ok(()) }
        }
        Provider::Rm { name } => {
            client.remove_provider_settings(&name).await?;
            context.out.named("name", &name)
        }
        Provider::Test { name } => test(context, &client, &name).await,
    }
}

async fn ls(context: &CommandContext, client: &Client, wide: bool) -> Result<(), Failure> {
    let providers = client.providers().await?;
    if context.out.json {
        return context.out.json(&providers);
    }
    let short = ["NAME", "KIND", "ISOLATION", "HEALTH", "DEFAULT", "BEST FOR"];
    let long = ["COST", "CAPABILITIES"];
    let columns: Vec<_> = short.into_iter().chain(long.into_iter().filter(|_| wide)).collect();
    let mut table = Table::new(&columns);
    for provider in &providers.items {
        let mut row = vec![
            provider.name.clone(),
            provider.kind.clone(),
            provider.isolation.map_or("-", Isolation::as_str).to_owned(),
            provider.health.as_str().to_owned(),
            if provider.default { "yes" } else { "-" }.to_owned(),
            provider.best_for.clone(),
        ];
        if wide {
            row.extend([provider.cost.clone(), provider.capabilities.join(" ")]);
        }
        table.row(row);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))?;
    let problems = providers.items.iter().filter_map(|one| Some((&one.name, one.problem.as_ref()?)));
    for (name, problem) in problems {
        context.out.say(&format!("{name}: {problem}"));
    }
    Ok(())
}

fn show(context: &CommandContext, answer: &ProviderSettings) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&answer.settings).unwrap_or_default();
    text.lines().try_for_each(|line| context.out.line(line))?;
    for (field, source) in &answer.sources {
        context.out.line(&format!("{field}: from {source}"))?;
    }
    match &answer.problem {
        Some(problem) => context.out.line(&format!("problem: {problem}")),
        None => Ok(()),
    }
}

async fn test(context: &CommandContext, client: &Client, name: &str) -> Result<(), Failure> {
    let found = client.test_provider(name).await?;
    if context.out.json {
        context.out.json(&found)?;
    }
    match &found.problem {
        None if context.out.json => Ok(()),
        None => context.out.line(&format!("{name}: ok")),
        Some(problem) => {
            let failure = Failure::new("provider_not_configured", problem.clone());
            Err(found.hint.clone().into_iter().fold(failure, Failure::hint))
        }
    }
}

/// Whether the settings enable their provider. One that is disabled cannot be used, and that is no failure.
fn takes_sandboxes(settings: &Value) -> bool {
    settings["enabled"].as_bool().unwrap_or(settings["provider"] != "local")
}

/// Fails if a provider whose settings were just written cannot be used, for example because its key is wrong.
async fn usable(client: &Client, name: &str) -> Result<(), Failure> {
    let found = client.test_provider(name).await?;
    let Some(problem) = &found.problem else { return Ok(()) };
    let failure = Failure::new("provider_not_configured", format!("the settings were saved, but {problem}"));
    Err(found.hint.clone().into_iter().fold(failure, Failure::hint))
}

/// The new settings: a whole document, or the current ones with changes.
async fn document(client: &Client, name: &str, change: &ProviderChange) -> Result<Value, Failure> {
    if let Some(file) = &change.file {
        let text = read(file)?;
        return serde_json::from_str(&text)
            .map_err(|cause| Failure::new("usage", format!("{file} is not JSON: {cause}")).exit(2));
    }
    let current = match client.provider_settings(name).await {
        Ok(current) => current.settings.as_object().cloned().unwrap_or_default(),
        Err(failure) => match failure.code.as_str() {
            // There is nothing to change yet (`local` is not allowed by default), or its file is wrong and is replaced.
            "provider_not_found" | "provider_not_allowed" | "provider_not_configured" => Map::new(),
            _ => return Err(failure),
        },
    };
    let secret = if change.key_stdin { Some(read_key()?) } else { None };
    changed(current, name, change, secret).map(Value::Object)
}

fn changed(
    mut settings: Map<String, Value>,
    name: &str,
    change: &ProviderChange,
    secret: Option<String>,
) -> Result<Map<String, Value>, Failure> {
    let before = settings.get("provider").and_then(Value::as_str).map(str::to_owned);
    let kind = change.kind.clone().or_else(|| before.clone()).unwrap_or_else(|| name.to_owned());
    if before.is_some_and(|before| before != kind) {
        settings.clear();
    }
    settings.insert("provider".to_owned(), Value::from(kind.clone()));
    if change.enable || change.disable {
        settings.insert("enabled".to_owned(), Value::from(change.enable));
    }
    if let Some(on_exit) = &change.on_exit {
        settings.insert("on_exit".to_owned(), Value::from(on_exit.clone()));
    }
    let mut section = settings.get(&kind).and_then(Value::as_object).cloned().unwrap_or_default();
    for pair in &change.fields {
        let Some((field, value)) = pair.split_once('=') else {
            return Err(Failure::new("usage", format!("{pair:?} is not FIELD=VALUE")).exit(2));
        };
        if field == "api_key" && !value.is_empty() {
            let why = "a key in an argument would be visible to every user of this machine";
            return Err(Failure::new("usage", why).hint("give it on stdin: --key-stdin").exit(2));
        }
        let typed = match field {
            "timeout" => value.parse::<u64>().ok().map(Value::from),
            "remote" => value.parse::<bool>().ok().map(Value::from),
            _ => None,
        };
        match value.is_empty() {
            true => section.remove(field),
            false => section.insert(field.to_owned(), typed.unwrap_or_else(|| Value::from(value))),
        };
    }
    if let Some(secret) = secret {
        section.insert("api_key".to_owned(), Value::from(secret));
    }
    if section.is_empty() {
        settings.remove(&kind)
    } else {
        settings.insert(kind, Value::Object(section))
    };
    Ok(settings)
}

/// The key on stdin. An empty one is a mistake of the caller, such as an unset variable, and does not remove the current key.
fn read_key() -> Result<String, Failure> {
    let key = read("-")?.trim().to_owned();
    match key.is_empty() {
        true => Err(Failure::new("usage", "there is no key on stdin")
            .hint("`--set api_key=` removes the key that is stored")
            .exit(2)),
        false => Ok(key),
    }
}

fn read(file: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let outcome = match file {
        "-" => std::io::stdin().lock().take(SETTINGS_BYTES_MAX).read_to_string(&mut text),
        path => {
            std::fs::File::open(path).and_then(|file| file.take(SETTINGS_BYTES_MAX).read_to_string(&mut text))
        }
    };
    outcome.map_err(|cause| Failure::new("io", format!("{file} cannot be read: {cause}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_change_the_current_settings() {
        let change = ProviderChange {
            file: None,
            kind: None,
            fields: vec!["image=debian:12".to_owned(), "host=".to_owned()],
            on_exit: Some("keep".to_owned()),
            enable: true,
            disable: false,
            key_stdin: false,
        };
        let current = json!({"provider": "docker", "docker": {"host": "unix:///a", "mount_path": "/w"}});
        let current = current.as_object().cloned().expect("an object");
        let next = changed(current, "d", &change, None).expect("valid");
        assert_eq!(
            Value::Object(next),
            json!({"provider": "docker", "enabled": true, "on_exit": "keep",
                "docker": {"image": "debian:12", "mount_path": "/w"}})
        );
        let fresh =
            ProviderChange { fields: vec!["timeout=300".to_owned()], enable: false, on_exit: None, ..change };
        let next = changed(Map::new(), "e2b", &fresh, Some("k".to_owned())).expect("valid");
        assert_eq!(Value::Object(next), json!({"provider": "e2b", "e2b": {"timeout": 300, "api_key": "k"}}));
    }
}

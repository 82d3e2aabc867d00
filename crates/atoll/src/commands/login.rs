//! `atoll login`, `login approve|deny`, `logout` and `whoami`: a key of this command line's own, and whose it is.
//!
//! ```text
//! here: POST /v1/logins ─► code, secret     a person with a key: approves the code, on the page or by `login approve`
//!       poll with the secret ─► key ─► context
//! ```

use std::time::Duration;

use atoll_client::{
    keys::Scope,
    logins::{ApproveBody, LoginBody, LoginState, StartedLogin},
};
use serde_json::json;

use super::{CommandContext, context::ca_of};
use crate::{
    cli::{
        Global,
        remote::{Login, LoginDecision, Logout},
    },
    client::{Client, address},
    contexts::{Context, ContextFile, LOCAL, check_name},
    environment,
    failure::Failure,
};

/// LIMIT: a little longer than a code is valid, so that the server says that it is over.
const WAIT_MAX: Duration = Duration::from_secs(310);
/// LIMIT: polls without an answer in a row; a server that restarts has forgotten the login.
const LOST_MAX: u32 = 10;

pub(super) async fn login(context: &CommandContext, args: Login) -> Result<(), Failure> {
    match args.decision {
        Some(LoginDecision::Approve { code, tenant, admin, force }) => {
            let scope = admin.then_some(Scope::Admin);
            approve(context, &code, ApproveBody { tenant, scope }, force).await
        }
        Some(LoginDecision::Deny { code }) => {
            context.client()?.deny_login(&code).await?;
            context.out.named("denied", &code)
        }
        None => start(context, args.server, args.name).await,
    }
}

async fn start(
    context: &CommandContext,
    server: Option<String>,
    name: Option<String>,
) -> Result<(), Failure> {
    let file = ContextFile::of_user();
    let known = file.read(context.out)?;
    let Some(url) = server.or_else(|| context.global.url.clone()) else {
        return Err(Failure::usage("there is no server to log in to", "atoll login https://HOST:7443"));
    };
    let url = address::parse(&url)?;
    let name = name.or_else(|| context.global.context.clone()).unwrap_or_else(|| name_of(&url));
    check_name(&name)?;
    let same = known.contexts.get(&name);
    if let Some(other) = same.filter(|same| same.url != url.as_str()) {
        return Err(Failure::new("name_taken", format!("the context {name:?} is for {}", other.url))
            .hint("choose another name with --name"));
    }
    let ca = ca_of(context)?.or_else(|| same.and_then(|same| same.ca.clone()));
    let url = url.to_string();
    let global = Global {
        url: Some(url.clone()),
        api_key: None,
        ca: None,
        ca_pem: ca.clone(),
        ..context.global.clone()
    };
    let client = Client::for_login(&global)?;
    let started = client.start_login(&LoginBody { name: environment::user_at_host() }).await?;
    tell_code(context, &client, &started)?;
    let (key, tenant) = wait(&client, &started).await?;
    file.change(context.out, |known| {
        known.contexts.insert(name.clone(), Context { url: url.clone(), ca, key: Some(key.secret.clone()) });
        known.current = Some(name.clone());
        Ok(())
    })?;
    if context.out.json {
        return context.out.json(&json!({
            "context": name, "url": url, "tenant": tenant, "key": key.record.id, "name": key.record.name,
            "scope": key.record.scope,
        }));
    }
    context.out.line(&name)?;
    let rights = rights(key.record.scope);
    context
        .out
        .tell(&format!("logged in to {url} as tenant {tenant}, with {rights}; it is the current context"));
    Ok(())
}

/// The code is typed and not in the link: who follows a link that somebody sent approves nothing.
fn tell_code(context: &CommandContext, client: &Client, started: &StartedLogin) -> Result<(), Failure> {
    let mut link = client.address.url().clone();
    link.set_fragment(Some("/approve"));
    if context.out.json {
        return context.out.json(&json!({
            "code": started.code, "approve_url": link.as_str(), "expires_at": started.expires_at,
        }));
    }
    context.out.say(&format!(
        "code: {}\n\nType it at {link}\nor, where you have a key: atoll login approve {}\nIt works once, within five minutes.",
        started.code, started.code
    ));
    Ok(())
}

/// Polls until the login is decided.
async fn wait(
    client: &Client,
    started: &StartedLogin,
) -> Result<(atoll_client::keys::CreatedKey, String), Failure> {
    let over = || {
        Failure::new("deadline_exceeded", "nobody approved the login in time").hint("run `atoll login` again")
    };
    let deadline = tokio::time::Instant::now() + WAIT_MAX;
    let mut lost = 0;
    while tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(u64::from(started.poll_every_s.clamp(1, 60)))).await;
        let poll = match client.poll_login(&started.secret).await {
            Ok(poll) => poll,
            Err(failure) if failure.is("rate_limited") => continue,
            Err(failure) if failure.is("no_server") && lost < LOST_MAX => {
                lost += 1;
                continue;
            }
            Err(failure) if failure.is("unauthenticated") => return Err(over()),
            Err(failure) => return Err(failure),
        };
        lost = 0;
        let poll = poll.into_typed();
        match (poll.state, poll.key) {
            (LoginState::Approved, Some(key)) => return Ok((key, poll.tenant_name.unwrap_or_default())),
            (LoginState::Denied, _) => {
                return Err(Failure::new("forbidden", "the login was refused")
                    .hint("run `atoll login` again, and compare the code with the person who approves it"));
            }
            (LoginState::Approved | LoginState::Pending | LoginState::Unknown, _) => {}
        }
    }
    Err(over())
}

/// The default name of a context: the host, and a port that is not the usual one.
fn name_of(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default().replace(['[', ']'], "").replace(':', "-");
    match url.port() {
        None | Some(7443 | 7070) => host,
        Some(port) => format!("{host}-{port}"),
    }
}

async fn approve(
    context: &CommandContext,
    code: &str,
    body: ApproveBody,
    force: bool,
) -> Result<(), Failure> {
    let client = context.client()?;
    let login = client.login(code).await?;
    if !force {
        let from = login.address.as_deref().unwrap_or("an unknown address");
        let what = rights(body.scope.unwrap_or(Scope::User));
        let tenant = match &body.tenant {
            Some(tenant) => format!("tenant {tenant}"),
            None => "your tenant".to_owned(),
        };
        let question = format!("Give {:?}, who asks from {from}, {what} of {tenant}?", login.name);
        if !context.out.ask(&question) {
            return Err(Failure::usage(
                "nothing was approved",
                "add --force to approve it without confirmation",
            ));
        }
    }
    let approved = client.approve_login(code, &body).await?;
    if context.out.json {
        return context.out.json(&approved);
    }
    let from = approved.address.as_deref().unwrap_or("an unknown address");
    context.out.line(&format!(
        "approved {} from {from}: {} of tenant {}",
        approved.name,
        rights(approved.scope),
        approved.tenant_name
    ))
}

const fn rights(scope: Scope) -> &'static str {
    match scope {
        Scope::Admin => "an admin key, which sees every tenant,",
        Scope::User => "a user key",
        Scope::Member => "a key of a member of the machine's group",
    }
}

pub(super) async fn logout(context: &CommandContext, args: Logout) -> Result<(), Failure> {
    let file = ContextFile::of_user();
    let known = file.read(context.out)?;
    let name = args.name.or_else(|| context.global.context_name.clone()).or_else(|| known.current.clone());
    let Some(name) = name.filter(|name| name != LOCAL) else {
        return Err(Failure::usage(
            "no context is in use, so there is no key to revoke",
            "atoll logout NAME",
        ));
    };
    let stored = known.find(&name)?;
    let Some(key) = stored.key.clone() else {
        return Err(Failure::new("no_key", format!("the context {name:?} has no key"))
            .hint(format!("atoll login --context {name}")));
    };
    let global = Global {
        url: Some(stored.url.clone()),
        api_key: Some(key),
        ca: None,
        ca_pem: stored.ca.clone(),
        ..context.global.clone()
    };
    let revoked = match revoke(&Client::new(&global)?).await {
        Ok(()) => true,
        // It was revoked before.
        Err(failure) if failure.is("unauthenticated") => true,
        Err(_) if args.force => false,
        Err(failure) => {
            let hint = "`atoll logout --force` forgets the key here; it then still works on the server";
            return Err(failure.hint(hint));
        }
    };
    file.change(context.out, |known| {
        if let Some(stored) = known.contexts.get_mut(&name) {
            stored.key = None;
        }
        Ok(())
    })?;
    if context.out.json {
        return context.out.json(&json!({ "context": name, "revoked": revoked }));
    }
    context.out.line(&name)?;
    context.out.tell(if revoked { "the key no longer works" } else { "the key still works on the server" });
    Ok(())
}

async fn revoke(client: &Client) -> Result<(), Failure> {
    let key = client.current_key().await?;
    client.delete_key(&key.record.id).await
}

pub(super) async fn whoami(context: &CommandContext) -> Result<(), Failure> {
    let client = context.client()?;
    let version = client.version().await?;
    let key = client.current_key().await?;
    let name = context.global.context.as_deref();
    if context.out.json {
        return context.out.json(&json!({
            "url": client.address.to_string(), "context": name, "server_version": version.version,
            "client_version": env!("CARGO_PKG_VERSION"), "tenant": key.record.tenant, "tenant_name": key.tenant_name,
            "key": key.record.id, "key_name": key.record.name, "scope": key.record.scope,
        }));
    }
    let rights = match key.record.scope {
        Scope::Admin => "admin: every tenant, and the server itself",
        Scope::User => "user: what belongs to its tenant",
        Scope::Member => {
            "member of the machine's group: what belongs to its tenant, but nothing of the machine itself"
        }
    };
    for (what, text) in [
        ("server", format!("{} (version {})", client.address, version.version)),
        ("context", name.unwrap_or("none").to_owned()),
        ("tenant", key.tenant_name.clone()),
        ("key", format!("{} ({})", key.record.name.as_deref().unwrap_or("without a name"), key.record.id)),
        ("rights", rights.to_owned()),
    ] {
        context.out.line(&format!("{what:8} {text}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_named_after_its_host() {
        for (url, name) in [
            ("https://atoll.example.com:7443", "atoll.example.com"),
            ("https://atoll.example.com", "atoll.example.com"),
            ("http://10.0.0.5:8080", "10.0.0.5-8080"),
            ("https://[2001:db8::1]:7443", "2001-db8--1"),
        ] {
            let made = name_of(&address::parse(url).expect("valid"));
            assert_eq!(made, name);
            assert!(check_name(&made).is_ok(), "{made}");
        }
    }
}

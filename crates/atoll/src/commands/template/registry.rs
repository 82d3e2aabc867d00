//! Pulls images from registries and pushes templates to them. The server transfers; this shows the progress.

use std::io::Read;

use atoll_client::templates::{PullBody, PushBody, RegistryAuth};
use atoll_model::TemplateRef;

use super::{nearest, ready};
use crate::{
    cli::template::Login,
    client::Client,
    commands::{CommandContext, follow::follow, progress::Progress},
    failure::Failure,
};

pub(super) async fn pull(
    context: &CommandContext,
    client: &Client,
    image: &TemplateRef,
    platform: Option<String>,
    login: Login,
) -> Result<(), Failure> {
    let body = PullBody { image: image.to_string(), auth: auth(&login)?, platform };
    let pulled = follow(client.pull_image(&body).await, &mut Progress::new(context.out, false)).await;
    match pulled {
        Ok(pulled) => ready(context, &pulled, &image.to_string()),
        Err(failure) => Err(hinted(image, failure)),
    }
}

pub(super) async fn push(
    context: &CommandContext,
    client: &Client,
    template: &str,
    image: &TemplateRef,
    login: Login,
) -> Result<(), Failure> {
    let body = PushBody { image: image.to_string(), auth: auth(&login)? };
    let events = client.push_template(template, &body).await;
    match follow(events, &mut Progress::new(context.out, false)).await {
        Ok(pushed) if context.out.json => context.out.json(&pushed),
        Ok(_) => context.out.line(&image.to_string()),
        Err(failure) => Err(nearest(client, template, hinted(image, failure)).await),
    }
}

/// Pulls the image of a new sandbox if it is missing: a create does not wait as long as a pull may take. A provider that cannot
/// use the layers of the server has images of its own.
pub(in crate::commands) async fn ensure(
    context: &CommandContext,
    client: &Client,
    image: &TemplateRef,
    provider: Option<&str>,
) -> Result<(), Failure> {
    match client.template(&image.to_string()).await {
        Ok(_) => return Ok(()),
        Err(failure) if failure.is("template_not_found") || failure.is("image_not_found") => {}
        Err(failure) => return Err(failure),
    }
    let providers = client.providers().await?.items;
    let chosen = providers.iter().find(|one| provider.map_or(one.default, |name| one.name == name));
    if chosen.is_some_and(|one| !one.capabilities.iter().any(|capability| capability == "layers")) {
        return Ok(());
    }
    let body = PullBody { image: image.to_string(), auth: None, platform: None };
    let quiet = !context.out.talks();
    follow(client.pull_image(&body).await, &mut Progress::new(context.out, quiet))
        .await
        .map(|_| ())
        .map_err(|failure| hinted(image, failure))
}

/// The credentials for a registry; `None`: anonymous.
fn auth(login: &Login) -> Result<Option<RegistryAuth>, Failure> {
    if !login.password_stdin {
        return Ok(None);
    }
    let mut secret = String::new();
    // LIMIT: longer than any registry token.
    std::io::stdin().lock().take(64 << 10).read_to_string(&mut secret).map_err(|e| {
        Failure::usage(format!("the password cannot be read: {e}"), "pipe it: … --password-stdin < FILE")
    })?;
    let secret = secret.trim_end_matches(['\n', '\r']).to_owned();
    if secret.is_empty() {
        return Err(Failure::usage("stdin contains no password", "pipe it: … --password-stdin < FILE"));
    }
    Ok(Some(match &login.username {
        Some(name) => RegistryAuth { username: Some(name.clone()), password: Some(secret), token: None },
        None => RegistryAuth { username: None, password: None, token: Some(secret) },
    }))
}

/// Adds a hint if the server gave none.
fn hinted(image: &TemplateRef, mut failure: Failure) -> Failure {
    let host = image.registry().unwrap_or("docker.io").to_owned();
    if let Some(hint) = &failure.hint {
        // The server's hint has a placeholder; here the host is known.
        failure.hint = Some(hint.replace("HOST[:PORT]", &host));
        return failure;
    }
    match failure.code.as_str() {
        "registry_unavailable" if image.registry().is_some() => failure.hint(format!(
            "a registry without TLS, on this machine or a private network needs `atoll serve --registry-insecure {host}`"
        )),
        "registry_unavailable" => failure.hint("check that the server's machine can reach the internet"),
        "image_not_found" | "unauthenticated" | "forbidden" => failure
            .hint("check the name; a private image needs `--username NAME --password-stdin`".to_owned()),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_cannot_be_reached_gets_the_flag_that_opens_it() {
        let image: TemplateRef = "127.0.0.1:5000/a".parse().expect("valid");
        let told = hinted(&image, Failure::new("registry_unavailable", "x"));
        assert!(told.hint.is_some_and(|hint| hint.contains("--registry-insecure 127.0.0.1:5000")));
        let told = hinted(&image, Failure::new("registry_unavailable", "x").hint("kept"));
        assert_eq!(told.hint.as_deref(), Some("kept"));
        let told =
            hinted(&image, Failure::new("invalid_request", "x").hint("--registry-insecure HOST[:PORT]"));
        assert_eq!(told.hint.as_deref(), Some("--registry-insecure 127.0.0.1:5000"));
    }

    #[test]
    fn nobody_is_sent_as_nobody() {
        let body = PullBody {
            image: "a:b".to_owned(),
            auth: auth(&Login::default()).expect("none"),
            platform: None,
        };
        assert_eq!(serde_json::to_value(body).expect("JSON"), serde_json::json!({"image": "a:b"}));
    }
}

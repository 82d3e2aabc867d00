//! `atoll open`: a link that hands the key to the web page, once, and a browser with it where there is one.

use std::process::{Command, Stdio};

use serde_json::json;

use super::CommandContext;
use crate::{cli::sandbox::OpenPage, client::Client, environment, failure::Failure};

pub(super) async fn open(context: &CommandContext, args: OpenPage) -> Result<(), Failure> {
    // The page gets the key of the request, so there must be one.
    let client = Client::at_port(&context.global)?;
    let sandbox = match &args.sandbox {
        Some(ident) => Some(client.sandbox(ident).await?.id.clone()),
        None => None,
    };
    let invite = client.create_invite().await?;
    let mut link = client.address.url().clone();
    link.set_path("/");
    // What is behind `#` stays in the browser: it is in no request and no log.
    link.set_fragment(Some(&match sandbox {
        Some(id) => format!("/open/{}/sandboxes/{id}", invite.code),
        None => format!("/open/{}", invite.code),
    }));
    if context.out.json {
        return context.out.json(&json!({ "url": link.as_str(), "expires_at": invite.expires_at }));
    }
    context.out.line(link.as_str())?;
    if !args.print && start_browser(link.as_str()) {
        context.out.tell("opened in a browser");
    } else {
        context.out.tell("the link works once, within a minute");
    }
    Ok(())
}

/// Whether a browser was started. Without a display there is none.
fn start_browser(link: &str) -> bool {
    let quiet = || Stdio::null();
    environment::has_display()
        && Command::new("xdg-open")
            .arg(link)
            .stdin(quiet())
            .stdout(quiet())
            .stderr(quiet())
            .status()
            .is_ok_and(|status| status.success())
}

//! The tour of `make run`: one sandbox, one line of Python, how long it took, and what to try next.
//!
//! A client like any other: it uses the HTTP port of its own server.

use std::time::Instant;

use atoll_client::{exec::ExecBody, sandbox_requests::CreateBody};

use crate::{
    cli::Global,
    client::Client,
    environment,
    failure::Failure,
    human::harmless,
    out::{Out, Shade},
};

const PROGRAM: &str = "print('hello from', __import__('os').uname().nodename, '- six times seven is', 6 * 7)";

/// Shows the tour; a failure is reported and does not end the server.
pub(super) async fn tour(global: Global, out: Out, url: String) {
    let global = Global { url: Some(url.clone()), ..global };
    match first_sandbox(&global).await {
        Ok(seen) => {
            out.say("");
            out.styled_say(&format!("  {}", out.shade_talk(Shade::Strong, &harmless(seen.said.trim()))));
            out.say(&format!(
                "  sandbox created in {:.1} ms, Python ran in {:.1} ms, deleted in {:.1} ms",
                seen.created_ms, seen.ran_ms, seen.deleted_ms
            ));
        }
        Err(failure) => failure.report(out),
    }
    out.say(&format!(
        "\n  the server is at {url} (in a browser: atoll open), its documentation at {url}/docs"
    ));
    out.say("  next, in another shell:");
    // The key is in root's folder.
    let sudo = if environment::through_sudo() { "sudo " } else { "" };
    let (one, stays) =
        (format!("{sudo}atoll run -- python3 -c 'print(6*7)'"), format!("{sudo}atoll create --name box"));
    let (shell, doctor) = (format!("{sudo}atoll sh box"), format!("{sudo}atoll doctor"));
    let width = one.len() + 2;
    out.say(&format!("    {one:width$}run one command in a new sandbox"));
    out.say(&format!("    {stays:width$}create a sandbox that stays"));
    out.say(&format!("    {shell:width$}open a terminal in it"));
    out.say(&format!("    {doctor:width$}check what this machine supports"));
    out.say("\n  Ctrl-C ends the server; sandboxes keep running until they are deleted.\n");
}

struct TourResult {
    said: String,
    created_ms: f64,
    ran_ms: f64,
    deleted_ms: f64,
}

async fn first_sandbox(global: &Global) -> Result<TourResult, Failure> {
    let client = Client::new(global)?;
    // The template is made at its first use; only the sandbox is timed.
    client.template("host").await?;
    let begin = Instant::now();
    let body =
        CreateBody { template: Some("host".to_owned()), timeout_s: Some(300), ..CreateBody::default() };
    let made = client.create_sandbox(&body, true, None).await?;
    let created_ms = ms(begin);
    let begin = Instant::now();
    let argv = ["python3", "-c", PROGRAM].map(str::to_owned).to_vec();
    let ran = client.exec(&made.id, &ExecBody { argv: Some(argv), ..ExecBody::default() }).await;
    let ran_ms = ms(begin);
    let begin = Instant::now();
    client.delete_sandbox(&made.id).await?;
    let deleted_ms = ms(begin);
    let ran = ran?;
    if ran.exit_code != 0 {
        let said = harmless(&ran.stderr);
        return Err(Failure::new("failed", format!("Python ended with {}: {said}", ran.exit_code))
            .hint("is python3 installed on this machine? the template `host` contains its programs"));
    }
    Ok(TourResult { said: ran.stdout.clone(), created_ms, ran_ms, deleted_ms })
}

fn ms(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1_000.0
}

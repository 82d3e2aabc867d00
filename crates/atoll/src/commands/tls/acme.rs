//! `atoll tls acme`: asks the server for a certificate from an ACME service. The server obtains and renews it.

use std::{fs, path::Path, time::Duration};

use instant_acme::LetsEncrypt;
use serde_json::json;

use super::{last_day, unread, unwritten};
use crate::{
    cli::tls::Acme,
    client::address,
    commands::{CommandContext, context::ca_of},
    failure::Failure,
    serve::data_folder,
    server::{
        acme_files::{self, AcmeSettings, AcmeState},
        server_file,
        tls_files::TlsFiles,
    },
};

/// LIMIT: an attempt ends within three minutes.
const WAIT_MAX: Duration = Duration::from_secs(190);
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn acme(context: &CommandContext, data: &Path, args: Acme) -> Result<(), Failure> {
    let data = data_folder(data)?;
    let files = TlsFiles::of(&data);
    if args.off {
        return off(context, &files);
    }
    if !args.accept_terms {
        return Err(Failure::usage(
            "the service has terms that you have to accept",
            "read them on the web page of the service, then add --accept-terms",
        ));
    }
    let settings = AcmeSettings {
        id: new_id()?,
        directory: directory(&args)?,
        ca: ca_of(context)?,
        names: args.names.iter().map(|name| name.as_str().to_owned()).collect(),
        email: args.email,
        http_listen: args.http_listen,
    };
    fs::create_dir_all(&files.folder).map_err(|cause| unwritten(&files.folder, &cause))?;
    acme_files::write(&files.acme, &settings).map_err(|cause| unwritten(&files.acme, &cause))?;
    if !server_file::read(&data).is_some_and(|note| note.is_alive()) {
        context.out.named("certificate", &files.certificate.display().to_string())?;
        context.out.say("atoll: no server runs here; it obtains the certificate when it starts");
        return Ok(());
    }
    let state = wait(context, &files, &settings.id).await?;
    if let Some(error) = state.error {
        let hint = state.hint.unwrap_or_else(|| "`atoll tls show` shows how it goes on".to_owned());
        return Err(Failure::new("acme_failed", format!("no certificate yet: {error}"))
            .hint(format!("{hint}; the server tries again at {}", state.next_at)));
    }
    if context.out.json {
        return context.out.json(&json!({
            "certificate": files.certificate, "names": settings.names, "expires": last_day(&files),
        }));
    }
    context.out.line(&files.certificate.display().to_string())?;
    let port = server_file::read(&data).and_then(|note| note.tls_port).unwrap_or(7443);
    context.out.tell(&format!(
        "for {}, on port {port} within two seconds; the server renews it",
        settings.names.join(", ")
    ));
    Ok(())
}

/// The URL of the service. Only a service on this machine may be reached without TLS.
fn directory(args: &Acme) -> Result<String, Failure> {
    let Some(url) = &args.directory else {
        let service = if args.staging { LetsEncrypt::Staging } else { LetsEncrypt::Production };
        return Ok(service.url().to_owned());
    };
    let url = address::parse(url)?;
    if url.scheme() != "https" && !address::is_loopback(&url) {
        return Err(Failure::usage("--directory: the service must be reached over https", "write https://…"));
    }
    Ok(url.to_string())
}

fn new_id() -> Result<String, Failure> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| Failure::new("internal", format!("the kernel gave no randomness: {e}")))?;
    Ok(hex::encode(bytes))
}

/// Waits for the server's first attempt.
async fn wait(context: &CommandContext, files: &TlsFiles, id: &str) -> Result<AcmeState, Failure> {
    let deadline = tokio::time::Instant::now() + WAIT_MAX;
    context.out.status("the server asks for the certificate …");
    while tokio::time::Instant::now() < deadline {
        let state = acme_files::read::<AcmeState>(&files.acme_state).ok().flatten();
        if let Some(state) = state.filter(|state| state.id == id) {
            context.out.status_done();
            return Ok(state);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    context.out.status_done();
    Err(Failure::new("deadline_exceeded", "the server has not answered yet").hint(
        "`atoll tls show` shows how it goes on; a server with --tls-cert or with --tls-port 0 asks for no certificate",
    ))
}

fn off(context: &CommandContext, files: &TlsFiles) -> Result<(), Failure> {
    for path in [&files.acme, &files.acme_state] {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(unwritten(path, &e)),
        }
    }
    context.out.named("off", "acme")?;
    context.out.tell("the certificate stays until it expires; `atoll tls init` replaces it");
    Ok(())
}

/// `atoll tls show` where the certificate comes from a service.
pub(super) fn show(context: &CommandContext, files: &TlsFiles) -> Result<(), Failure> {
    let read = |e: std::io::Error| unread(&files.acme, &e);
    let Some(settings) = acme_files::read::<AcmeSettings>(&files.acme).map_err(read)? else { return Ok(()) };
    let state = acme_files::read::<AcmeState>(&files.acme_state).ok().flatten();
    let state = state.filter(|state| state.id == settings.id);
    let error = state.as_ref().and_then(|state| state.error.clone());
    let next_at = state.map(|state| state.next_at);
    let expires = last_day(files);
    if context.out.json {
        return context.out.json(&json!({
            "certificate": files.certificate, "names": settings.names, "directory": settings.directory,
            "expires": expires, "error": error, "next_at": next_at,
        }));
    }
    for (what, text) in [
        ("certificate", Some(files.certificate.display().to_string())),
        ("names", Some(settings.names.join(" "))),
        ("service", Some(settings.directory)),
        ("expires", expires),
        ("error", error),
        ("next attempt", next_at),
    ] {
        text.map_or(Ok(()), |text| context.out.line(&format!("{what:12} {text}")))?;
    }
    Ok(())
}

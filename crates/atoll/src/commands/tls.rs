//! `atoll tls init|show|ca`: the local authority in `DATA/tls`, and the certificate of this machine's server.
//!
//! ```text
//! ca.pem      the authority's certificate, for clients to trust  ca.key   its key, never shown
//! cert.pem    the server's certificate, followed by ca.pem        key.pem  its key
//! bundle.pem  the machine's own roots and ca.pem                  domain   the domain of the certificates
//! ```
//!
//! Needs no server; a running one loads new files by itself. The machine's trust settings are not changed.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use atoll_proxy::{Domain, IssueDate, Leaf, LocalCa, names};
use base64::Engine as _;
use serde_json::json;

use super::CommandContext;
use crate::{
    cli::tls::Tls,
    failure::Failure,
    serve::data_folder,
    server::{server_file, tls_files::TlsFiles},
};

/// The usual locations of a machine's trusted roots.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn tls(context: &CommandContext, command: Tls) -> Result<(), Failure> {
    let data = context.global.data_dir();
    match command {
        Tls::Init { domain, force } => init(context, &data_folder(&data)?, domain, force),
        Tls::Show => show(context, &TlsFiles::of(&data)),
        Tls::Ca => {
            let ca = TlsFiles::of(&data).ca;
            context.out.bytes(&fs::read(&ca).map_err(|cause| unread(&ca, &cause))?)
        }
    }
}

fn init(context: &CommandContext, data: &Path, domain: Option<Domain>, force: bool) -> Result<(), Failure> {
    let said = domain.map(|domain| domain.as_str().to_owned());
    let served = || server_file::read(data).and_then(|note| note.domain);
    let domain = said.or_else(served).unwrap_or_else(|| "localhost".to_owned());
    let files = TlsFiles::of(data);
    fs::create_dir_all(&files.folder).map_err(|cause| unwritten(&files.folder, &cause))?;
    let today = IssueDate::now();
    let kept = if force { None } else { existing(&files, &domain)? };
    let is_kept = kept.is_some();
    let ca = match kept {
        Some(ca) => ca,
        None => LocalCa::make(&domain, today).map_err(|e| Failure::new("internal", e.to_string()))?,
    };
    let leaf = ca.leaf(today).map_err(|e| Failure::new("internal", e.to_string()))?;
    write_all(&files, &ca, &leaf, &domain)?;
    if context.out.json {
        return context.out.json(&json!({
            "ca": files.ca, "bundle": files.bundle, "certificate": files.certificate, "domain": domain, "names": names(&domain),
        }));
    }
    // The only line of data: the file that clients have to trust.
    context.out.line(&files.ca.display().to_string())?;
    let what = if is_kept {
        "a new certificate of the same authority"
    } else {
        "a new authority and its certificate"
    };
    context.out.tell(&format!("{what}, for {}", names(&domain).join(", ")));
    // A running server has written its port; otherwise the default is used.
    let port = server_file::read(data).and_then(|note| note.tls_port).unwrap_or(7443);
    context
        .out
        .tell(&format!("HTTPS is on port {port}; a running server loads the certificate within two seconds"));
    context.out.tell(&format!("next: curl --cacert {} https://localhost:{port}/health", files.ca.display()));
    context.out.tell("      eval \"$(atoll env leap0 --with-key)\"");
    Ok(())
}

/// The existing authority, if it may sign for this domain.
fn existing(files: &TlsFiles, domain: &str) -> Result<Option<LocalCa>, Failure> {
    let (certificate, key) = match (fs::read_to_string(&files.ca), fs::read_to_string(&files.ca_key)) {
        (Ok(certificate), Ok(key)) => (certificate, key),
        (Err(e), _) | (_, Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        (Err(e), _) => return Err(unread(&files.ca, &e)),
        (_, Err(e)) => return Err(unread(&files.ca_key, &e)),
    };
    let made_for = fs::read_to_string(&files.domain).unwrap_or_default();
    if made_for.trim() != domain {
        return Err(Failure::new(
            "conflict",
            format!("the existing authority signs for {:?} only", made_for.trim()),
        )
        .hint("`atoll tls init --force` creates a new one, which clients must then trust"));
    }
    let ca = LocalCa::open(domain, &certificate, &key);
    ca.map(Some).map_err(|e| {
        Failure::new("invalid", e.to_string()).hint("`atoll tls init --force` creates a new authority")
    })
}

/// The key before the certificate: a server that reads in between keeps its current pair.
fn write_all(files: &TlsFiles, ca: &LocalCa, leaf: &Leaf, domain: &str) -> Result<(), Failure> {
    put(&files.ca_key, &ca.key(), 0o600)?;
    put(&files.ca, ca.certificate(), 0o644)?;
    put(&files.domain, domain, 0o644)?;
    put(&files.bundle, &format!("{}{}", machine_roots(), ca.certificate()), 0o644)?;
    put(&files.key, &leaf.key, 0o600)?;
    put(&files.certificate, &leaf.chain, 0o644)
}

fn machine_roots() -> String {
    let mut roots = ROOTS.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    if !roots.is_empty() && !roots.ends_with('\n') {
        roots.push('\n');
    }
    roots
}

/// Writes a file completely or not at all.
fn put(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let fresh = path.with_extension("new");
    let write = || {
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, path)
    };
    write().map_err(|cause| unwritten(path, &cause))
}

fn show(context: &CommandContext, files: &TlsFiles) -> Result<(), Failure> {
    let domain = fs::read_to_string(&files.domain).map_err(|cause| unread(&files.domain, &cause))?;
    let names = names(domain.trim());
    let expires = fs::read_to_string(&files.certificate).ok().and_then(|pem| last_day(&pem));
    if context.out.json {
        let TlsFiles { ca, bundle, certificate, .. } = files;
        return context
            .out
            .json(&json!({ "ca": ca, "bundle": bundle, "certificate": certificate, "names": names, "expires": expires }));
    }
    for (what, path) in
        [("authority", &files.ca), ("bundle", &files.bundle), ("certificate", &files.certificate)]
    {
        context.out.line(&format!("{what:12} {}", path.display()))?;
    }
    context.out.line(&format!("{:12} {}", "names", names.join(" ")))?;
    match expires {
        Some(day) => context.out.line(&format!("{:12} {day}; `atoll tls init` renews it", "expires")),
        None => Ok(()),
    }
}

/// The last day of the first certificate in a generated file: its validity consists of two times in the form
/// YYMMDDhhmmssZ.
fn last_day(pem: &str) -> Option<String> {
    let body = pem.lines().skip_while(|line| !line.starts_with("-----BEGIN")).skip(1);
    let body: String = body.take_while(|line| !line.starts_with("-----")).collect();
    let der = base64::engine::general_purpose::STANDARD.decode(body).ok()?;
    let is_validity = |bytes: &&[u8]| bytes[..4] == [0x30, 0x1e, 0x17, 0x0d] && bytes[17..19] == [0x17, 0x0d];
    let day = &der.windows(32).find(is_validity)?[19..25];
    let day = std::str::from_utf8(day).ok().filter(|day| day.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some(format!("20{}-{}-{}", &day[..2], &day[2..4], &day[4..]))
}

fn unread(path: &Path, cause: &io::Error) -> Failure {
    let failure = Failure::new("io", format!("{} cannot be read: {cause}", path.display()));
    match cause.kind() {
        io::ErrorKind::NotFound => failure.hint("`atoll tls init` creates it"),
        _ => failure.hint("use sudo, or point ATOLL_DATA at the server's folder"),
    }
}

fn unwritten(path: &Path, cause: &io::Error) -> Failure {
    Failure::new("io", format!("{} cannot be written: {cause}", path.display()))
        .hint("choose another folder with --data, or use sudo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_day_of_a_certificate_is_read_from_it() {
        let today = IssueDate { year: 2026, month: 11, day: 15 };
        let ca = LocalCa::make("localhost", today).expect("made");
        let leaf = ca.leaf(today).expect("made");
        assert_eq!(last_day(&leaf.chain).as_deref(), Some("2027-11-15"));
        assert_eq!(last_day(ca.certificate()).as_deref(), Some("2036-11-15"));
        for other in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "%"] {
            assert_eq!(last_day(other), None);
        }
    }
}

//! `atoll tls init|acme|show|ca`: the local authority in `DATA/tls`, and the certificate of this machine's server.
//!
//! ```text
//! ca.pem      the authority's certificate, for clients to trust  ca.key   its key, never shown
//! cert.pem    the server's certificate, followed by ca.pem        key.pem  its key
//! bundle.pem  the machine's own roots and ca.pem                  domain   the domain of the certificates
//! hosts.json  further names and addresses
//! ```
//!
//! Needs no server; a running one loads new files by itself. The machine's trust settings are not changed.

mod acme;

use std::{fs, io, path::Path};

use atoll_proxy::{Domain, HostName, IssueDate, Leaf, LocalCa, names};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::CommandContext;
use crate::{
    cli::tls::Tls,
    failure::Failure,
    serve::data_folder,
    server::{
        server_file,
        tls_files::{TlsFiles, put_file, validity},
    },
};

/// The usual locations of a machine's trusted roots.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) async fn tls(context: &CommandContext, command: Tls) -> Result<(), Failure> {
    let data = context.global.data_dir();
    match command {
        Tls::Init { domain, name, hosts, force } => {
            let hosts = [name, hosts].concat();
            init(context, &data_folder(&data)?, InitRequest { domain, hosts, force })
        }
        Tls::Acme(args) => acme::acme(context, &data, args).await,
        Tls::Show => show(context, &TlsFiles::of(&data)),
        Tls::Ca => {
            let ca = TlsFiles::of(&data).ca;
            context.out.bytes(&fs::read(&ca).map_err(|cause| unread(&ca, &cause))?)
        }
    }
}

struct InitRequest {
    domain: Option<Domain>,
    /// Empty: those of the last certificate.
    hosts: Vec<HostName>,
    force: bool,
}

/// The further names and addresses of the server, as they are stored.
#[derive(Default, Serialize, Deserialize)]
struct StoredHosts {
    /// What the authority may sign for.
    permitted: Vec<String>,
    /// What the certificate is for.
    certificate: Vec<String>,
}

impl StoredHosts {
    /// An authority from before there was this file has none.
    fn read(files: &TlsFiles) -> Result<Self, Failure> {
        match fs::read(&files.hosts) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| unread(&files.hosts, &e.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(unread(&files.hosts, &e)),
        }
    }

    fn parsed(texts: &[String]) -> Vec<HostName> {
        texts.iter().filter_map(|text| HostName::parse(text)).collect()
    }

    fn texts(hosts: &[HostName]) -> Vec<String> {
        hosts.iter().map(HostName::to_string).collect()
    }
}

fn init(context: &CommandContext, data: &Path, request: InitRequest) -> Result<(), Failure> {
    let said = request.domain.map(|domain| domain.as_str().to_owned());
    let served = || server_file::read(data).and_then(|note| note.domain);
    let domain = said.or_else(served).unwrap_or_else(|| "localhost".to_owned());
    let files = TlsFiles::of(data);
    if files.acme.exists() {
        return Err(Failure::new("conflict", "the certificate of this server comes from an ACME service")
            .hint("`atoll tls acme --off` ends that; then run `atoll tls init`"));
    }
    fs::create_dir_all(&files.folder).map_err(|cause| unwritten(&files.folder, &cause))?;
    let today = IssueDate::now();
    let stored = StoredHosts::read(&files)?;
    let mut hosts = request.hosts;
    if hosts.is_empty() {
        hosts = StoredHosts::parsed(&stored.certificate);
    }
    let permitted = StoredHosts::parsed(&stored.permitted);
    let kept = if request.force { None } else { existing(&files, &domain, &permitted)? };
    let is_kept = kept.is_some();
    let internal = |e: atoll_proxy::NotMade| Failure::new("internal", e.to_string());
    let (ca, permitted) = match kept {
        Some(ca) => (ca, stored.permitted),
        None => (LocalCa::make(&domain, &hosts, today).map_err(internal)?, StoredHosts::texts(&hosts)),
    };
    if let Some(other) = hosts.iter().find(|host| !ca.may_sign(host)) {
        return Err(Failure::new("conflict", format!("the existing authority may not sign for {other}"))
            .hint(
                "`atoll tls init --force` with all names creates a new one, which clients must then trust",
            ));
    }
    let leaf = ca.leaf(&hosts, today).map_err(internal)?;
    let stored = StoredHosts { permitted, certificate: StoredHosts::texts(&hosts) };
    write_all(&files, &ca, &leaf, &domain, &stored)?;
    tell(context, data, &files, &all_names(&domain, &stored), is_kept)
}

/// Every name and address of a certificate, without those of loopback.
fn all_names(domain: &str, stored: &StoredHosts) -> Vec<String> {
    let mut all = names(domain);
    all.extend(stored.certificate.iter().filter(|host| !all.contains(host)).cloned().collect::<Vec<_>>());
    all
}

fn tell(
    context: &CommandContext,
    data: &Path,
    files: &TlsFiles,
    names: &[String],
    is_kept: bool,
) -> Result<(), Failure> {
    if context.out.json {
        let domain = fs::read_to_string(&files.domain).unwrap_or_default();
        return context.out.json(&json!({
            "ca": files.ca, "bundle": files.bundle, "certificate": files.certificate, "domain": domain.trim(), "names": names,
        }));
    }
    // The only line of data: the file that clients have to trust.
    context.out.line(&files.ca.display().to_string())?;
    let what = if is_kept {
        "a new certificate of the same authority"
    } else {
        "a new authority and its certificate"
    };
    context.out.tell(&format!("{what}, for {}", names.join(", ")));
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
fn existing(files: &TlsFiles, domain: &str, hosts: &[HostName]) -> Result<Option<LocalCa>, Failure> {
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
    let ca = LocalCa::open(domain, hosts, &certificate, &key);
    ca.map(Some).map_err(|e| {
        Failure::new("invalid", e.to_string()).hint("`atoll tls init --force` creates a new authority")
    })
}

/// The key before the certificate: a server that reads in between keeps its current pair.
fn write_all(
    files: &TlsFiles,
    ca: &LocalCa,
    leaf: &Leaf,
    domain: &str,
    hosts: &StoredHosts,
) -> Result<(), Failure> {
    let hosts = serde_json::to_string(hosts).map_err(|e| unwritten(&files.hosts, &e.into()))?;
    put(&files.hosts, &hosts, 0o644)?;
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

fn put(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    put_file(path, text, mode).map_err(|cause| unwritten(path, &cause))
}

fn show(context: &CommandContext, files: &TlsFiles) -> Result<(), Failure> {
    if files.acme.exists() {
        return acme::show(context, files);
    }
    let domain = fs::read_to_string(&files.domain).map_err(|cause| unread(&files.domain, &cause))?;
    let names = all_names(domain.trim(), &StoredHosts::read(files)?);
    let expires = last_day(files);
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

/// The last day of the server's certificate.
fn last_day(files: &TlsFiles) -> Option<String> {
    let (_, end) = validity(&fs::read_to_string(&files.certificate).ok()?)?;
    Some(end.strftime("%Y-%m-%d").to_string())
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

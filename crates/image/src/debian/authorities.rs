//! The certificate authorities that the operator added to the host, for templates that are made on it: without them,
//! programs in a sandbox cannot reach a mirror or a proxy of the operator.
//!
//! They are added after the archive of a template is unpacked, because an archive is the same on every host. Only
//! certificates are copied. Java and programs with a list of their own do not see them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use sha2::{Digest, Sha256};

use crate::error::TemplateError;
use crate::host::skeleton;
use crate::tool::Tool;

/// Where an operator puts authorities, on the host and in a template.
const LOCAL: &str = "usr/local/share/ca-certificates";
/// The authorities of Debian's package.
const PACKAGED: &str = "usr/share/ca-certificates";
/// The folder that OpenSSL searches by the hash of a name.
const HASHED: &str = "etc/ssl/certs";
/// The bundle of a template.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// The bundles of hosts; the first existing one counts.
const HOST_BUNDLES: [&str; 3] = [BUNDLE, "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem"];

/// LIMIT: the bundle of all public authorities has about 220 KiB.
const FILE_MAX: u64 = 4 << 20;
/// LIMIT: an operator adds a few; a folder of thousands is not one of authorities.
const ADDED_MAX: usize = 256;
/// LIMIT: authorities with the same name, as OpenSSL counts them.
const SAME_NAME_MAX: u32 = 16;

const OPENSSL: Tool =
    Tool { name: "openssl", package: "openssl", template: super::NAME, limit: Duration::from_secs(5) };

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Certificates, each by its content without line breaks.
type Certificates = BTreeSet<String>;

/// The authorities that were added to a template.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddedAuthorities(Vec<String>);

impl AddedAuthorities {
    /// Copies what the host trusts beyond its distribution into an unpacked template. `host` is the root of the host.
    pub(super) fn install(host: &Path, rootfs: &Path) -> Result<Self, TemplateError> {
        let added = added(host, rootfs)?;
        let mut bundle = read(&rootfs.join(BUNDLE))?.unwrap_or_default();
        for (at, certificate) in added.iter().enumerate() {
            let pem = pem_of(certificate);
            let name = format!("atoll-host-{}", at + 1);
            for folder in [LOCAL, HASHED] {
                let folder = rootfs.join(folder);
                std::fs::create_dir_all(&folder).map_err(TemplateError::io("create", &folder))?;
            }
            let own = rootfs.join(LOCAL).join(format!("{name}.crt"));
            skeleton::file(&own, pem.as_bytes(), 0o644)?;
            skeleton::link(
                &Path::new("/").join(LOCAL).join(format!("{name}.crt")),
                &rootfs.join(HASHED).join(format!("{name}.pem")),
            )?;
            link_hash(&own, &name, &rootfs.join(HASHED))?;
            if !bundle.is_empty() && !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(&pem);
        }
        if !added.is_empty() {
            skeleton::file(&rootfs.join(BUNDLE), bundle.as_bytes(), 0o644)?;
        }
        Ok(Self(added))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The digest of a template whose archive has this one.
    pub(super) fn digest(&self, archive: &str) -> String {
        if self.0.is_empty() {
            return archive.to_owned();
        }
        hex::encode(Sha256::digest(format!("{archive}\n{}", self.0.join("\n"))))
    }

    /// Variables for programs that have a list of their own instead of the system's: packages of the Python registry,
    /// and Node.
    pub(super) fn set_variables(&self, env: &mut BTreeMap<String, String>) {
        if self.0.is_empty() {
            return;
        }
        for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"] {
            env.insert(name.to_owned(), format!("/{BUNDLE}"));
        }
    }
}

/// What the host trusts, without what its distribution or the template's has.
fn added(host: &Path, rootfs: &Path) -> Result<Vec<String>, TemplateError> {
    let mut known = certificates(&read(&rootfs.join(BUNDLE))?.unwrap_or_default());
    known.extend(in_folder(&host.join(PACKAGED))?);
    let mut found = in_folder(&host.join(LOCAL))?;
    for bundle in HOST_BUNDLES {
        if let Some(text) = read(&host.join(bundle))? {
            found.extend(certificates(&text));
            break;
        }
    }
    let mut added: Vec<String> = found.difference(&known).cloned().collect();
    if added.len() > ADDED_MAX {
        tracing::warn!(
            found = added.len(),
            taken = ADDED_MAX,
            "the host has too many authorities of its own"
        );
        added.truncate(ADDED_MAX);
    }
    Ok(added)
}

/// The certificates of all files below a folder.
fn in_folder(folder: &Path) -> Result<Certificates, TemplateError> {
    let mut found = Certificates::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(cause) => return Err(TemplateError::io("list", folder)(cause)),
    };
    for entry in entries {
        let entry = entry.map_err(TemplateError::io("list", folder))?;
        let path = entry.path();
        // Links may lead to a folder above; authorities are files or links to files.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(in_folder(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "crt") {
            found.extend(certificates(&read(&path)?.unwrap_or_default()));
        }
    }
    Ok(found)
}

/// The text of a file; `None` if there is none, or if it is no text of a usual size.
fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() && about.len() <= FILE_MAX => {}
        Ok(_) => return Ok(None),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(TemplateError::io("read", path)(cause)),
    }
    let bytes = std::fs::read(path).map_err(TemplateError::io("read", path))?;
    Ok(String::from_utf8(bytes).ok())
}

/// The certificates of a text in PEM; other blocks, such as private keys, are left out.
fn certificates(text: &str) -> Certificates {
    let blocks = text.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END).map(|(body, _)| body));
    let bodies = blocks.map(|body| body.chars().filter(|c| !c.is_whitespace()).collect::<String>());
    let is_base64 = |body: &String| base64::engine::general_purpose::STANDARD.decode(body).is_ok();
    bodies.filter(|body| !body.is_empty()).filter(is_base64).collect()
}

fn pem_of(certificate: &str) -> String {
    let mut pem = format!("{BEGIN}\n");
    for line in certificate.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + END + "\n"
}

/// The link by which OpenSSL finds the certificate. Without the host's openssl only the bundle has it.
fn link_hash(file: &Path, name: &str, folder: &Path) -> Result<(), TemplateError> {
    let mut command = std::process::Command::new(OPENSSL.name);
    let output = OPENSSL.output(command.args(["x509", "-noout", "-subject_hash", "-in"]).arg(file));
    let hash = match output.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()) {
        Ok(hash) if hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => hash,
        other => {
            tracing::warn!(certificate = %file.display(), ?other, "an authority of the host is only in the bundle of a template");
            return Ok(());
        }
    };
    let taken = |number: &u32| folder.join(format!("{hash}.{number}")).symlink_metadata().is_ok();
    let Some(number) = (0..SAME_NAME_MAX).find(|number| !taken(number)) else { return Ok(()) };
    skeleton::link(Path::new(&format!("{name}.pem")), &folder.join(format!("{hash}.{number}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A certificate of its own for each test name, made by openssl.
    fn certificate(folder: &Path, name: &str) -> String {
        let (key, file) = (folder.join(format!("{name}.key")), folder.join(format!("{name}.pem")));
        let tool = Tool { limit: Duration::from_secs(60), ..OPENSSL };
        let mut command = std::process::Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ]);
        command.args(["-subj", &format!("/CN={name}")]).arg("-keyout").arg(&key).arg("-out").arg(&file);
        tool.output(&mut command).unwrap();
        std::fs::read_to_string(file).unwrap()
    }

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_template_trusts_what_the_operator_added_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (host, rootfs) = (dir.path().join("host"), dir.path().join("root"));
        let [added, bundled, packaged, shared] =
            ["added", "bundled", "packaged", "shared"].map(|name| certificate(dir.path(), name));
        let key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        put(&host, "usr/local/share/ca-certificates/company/own.crt", &format!("# ours\n{added}{key}"));
        put(&host, "usr/local/share/ca-certificates/readme.txt", &packaged);
        put(&host, "usr/share/ca-certificates/mozilla/old.crt", &packaged);
        put(&host, BUNDLE, &format!("{packaged}{shared}{bundled}{added}"));
        put(&rootfs, BUNDLE, &shared);

        let found = AddedAuthorities::install(&host, &rootfs).unwrap();
        assert_eq!(found.count(), 2, "{found:?}");
        let bundle = std::fs::read_to_string(rootfs.join(BUNDLE)).unwrap();
        for (pem, is_in) in [(&added, true), (&bundled, true), (&shared, true), (&packaged, false)] {
            assert_eq!(bundle.contains(pem.trim()), is_in);
        }
        assert!(!bundle.contains("PRIVATE KEY"));
        // OpenSSL finds each by the hash of its name.
        for name in ["atoll-host-1", "atoll-host-2"] {
            let own = rootfs.join(LOCAL).join(format!("{name}.crt"));
            let output = OPENSSL
                .output(
                    std::process::Command::new("openssl")
                        .args(["x509", "-noout", "-subject_hash", "-in"])
                        .arg(&own),
                )
                .unwrap();
            let hash = String::from_utf8(output).unwrap().trim().to_owned();
            let link = std::fs::read_link(rootfs.join(HASHED).join(format!("{hash}.0"))).unwrap();
            assert_eq!(link, Path::new(&format!("{name}.pem")));
        }
        assert_ne!(found.digest("archive"), "archive");
        let mut env = BTreeMap::new();
        found.set_variables(&mut env);
        assert_eq!(env["NODE_EXTRA_CA_CERTS"], "/etc/ssl/certs/ca-certificates.crt");
    }

    #[test]
    fn a_host_without_authorities_of_its_own_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (host, rootfs) = (dir.path().join("host"), dir.path().join("root"));
        let shared = certificate(dir.path(), "shared");
        put(&host, BUNDLE, &shared);
        put(&rootfs, BUNDLE, &shared);
        let found = AddedAuthorities::install(&host, &rootfs).unwrap();
        assert_eq!((found.count(), found.digest("archive").as_str()), (0, "archive"));
        assert!(!rootfs.join(LOCAL).exists());
        let mut env = BTreeMap::new();
        found.set_variables(&mut env);
        assert!(env.is_empty());
    }
}

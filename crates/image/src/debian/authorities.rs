//! The authorities beyond the public ones, for templates that are made on this machine: those that the operator named and those that were
//! added to the host. Without them, programs in a sandbox cannot reach a mirror or a proxy of the operator.
//!
//! They are added after the archive of a template is unpacked, because an archive is the same on every host. Only
//! certificates are copied. Java and programs with a list of their own get them when a sandbox starts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use atoll_outbound::Authority;
use atoll_outbound::authorities::{LOCAL, bundle, certificates, of_host, read_usual};
use sha2::{Digest, Sha256};

use crate::error::TemplateError;
use crate::host::skeleton;
use crate::tool::Tool;

/// The folder that OpenSSL searches by the hash of a name.
const HASHED: &str = "etc/ssl/certs";
/// The bundle of a template.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// LIMIT: authorities with the same name, as OpenSSL counts them.
const SAME_NAME_MAX: u32 = 16;

const OPENSSL: Tool =
    Tool { name: "openssl", package: "openssl", template: super::NAME, limit: Duration::from_secs(5) };

/// The authorities that were added to a template.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddedAuthorities(Vec<Authority>);

impl AddedAuthorities {
    /// Copies what the host trusts beyond its distribution into an unpacked template. `host` is the root of the host.
    pub(super) fn install(host: &Path, rootfs: &Path) -> Result<Self, TemplateError> {
        let bundled = rootfs.join(BUNDLE);
        let mut text = read_usual(&bundled).map_err(TemplateError::io("read", &bundled))?.unwrap_or_default();
        let added = added(host, &text)?;
        for (at, certificate) in added.iter().enumerate() {
            let pem = certificate.pem();
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
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&pem);
        }
        if !added.is_empty() {
            skeleton::file(&bundled, text.as_bytes(), 0o644)?;
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
        hex::encode(Sha256::digest(format!("{archive}\n{}", bundle(&self.0))))
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

/// What the operator named and what the host trusts beyond its distribution, without what the template has.
fn added(host: &Path, template: &str) -> Result<Vec<Authority>, TemplateError> {
    let known = certificates(template);
    let of_host = of_host(host).map_err(TemplateError::io("read the authorities of", host))?;
    let mut added: Vec<Authority> =
        atoll_outbound::current().authorities.iter().cloned().chain(of_host).collect();
    added.sort();
    added.dedup();
    added.retain(|one| !known.contains(one));
    Ok(added)
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

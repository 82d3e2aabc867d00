//! What the network of a company needs in every sandbox: its certificate authorities where programs look for them, and its mirrors of
//! package registries. Written over the agent at every boot, so that it works with any image and follows the settings of the server.
//!
//! | for | file | variable |
//! |---|---|---|
//! | people, Node | `/etc/atoll/authorities.pem`, the added ones alone | `NODE_EXTRA_CA_CERTS` |
//! | OpenSSL, curl, Python, git | the bundle of the image with the added ones | `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE`, … |
//! | tools that rebuild the bundle | `/usr/local/share/ca-certificates/atoll-company.crt` | |
//! | Java | each `cacerts` that the image has, written anew from the bundle | |
//! | apt, pip, npm | the image's sources, `/etc/pip.conf`, `/etc/npmrc` | `NPM_CONFIG_GLOBALCONFIG` |
//!
//! `/etc/atoll/company` has the digest of what was written; a boot that finds it writes nothing. Values that the user set stand.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentError, EntryKind, RpcCode};
use atoll_model::Lease;
use atoll_outbound::authorities::{Authority, bundle, certificates};
use atoll_outbound::mirrors::{Mirrors, apt_sources};
use atoll_provider::{Capability, Provider};
use sha2::{Digest, Sha256};

mod java_keystore;

/// The added authorities alone.
const AUTHORITIES: &str = "/etc/atoll/authorities.pem";
/// The path from which Debian's tools take additions.
const LOCAL: &str = "/usr/local/share/ca-certificates/atoll-company.crt";
const MARK: &str = "/etc/atoll/company";
const NPMRC: &str = "/etc/npmrc";
const PIP_CONF: &str = "/etc/pip.conf";
/// The bundles of images; the variables name the first.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Where images with a JDK keep its authorities; more below [`JVMS`] and `$JAVA_HOME`.
const KEYSTORES: [&str; 3] =
    ["/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts", "/opt/java/openjdk/lib/security/cacerts"];
const JVMS: &str = "/usr/lib/jvm";
/// LIMIT: an image has one or two.
const JVMS_MAX: usize = 16;
/// LIMIT: lists of apt in one image.
const LISTS_MAX: usize = 64;
/// LIMIT: the bundle of all public authorities has about 220 KiB.
const FILE_MAX: u64 = 4 << 20;
/// LIMIT: some dozen small files.
const PATIENCE: Duration = Duration::from_secs(10);
const ROOT: Option<&str> = Some("root");
/// The first line of a file that may be replaced.
const OURS: &str = "# Written by Atoll from the settings of its server.";

/// The additions of a server.
#[derive(Debug, Clone, Default)]
pub struct CompanyFiles {
    authorities: Vec<Authority>,
    mirrors: Mirrors,
    digest: String,
}

impl CompanyFiles {
    /// For these authorities and mirrors.
    #[must_use]
    pub fn new(authorities: Vec<Authority>, mirrors: Mirrors) -> Self {
        let content = format!("1\n{}{mirrors:?}", bundle(&authorities));
        let digest = format!("{}\n", hex::encode(Sha256::digest(content)));
        Self { authorities, mirrors, digest }
    }

    fn is_empty(&self) -> bool {
        self.authorities.is_empty() && self.mirrors == Mirrors::default()
    }

    /// The variables of commands; values of the user have precedence.
    pub(crate) fn add_env(&self, env: &mut BTreeMap<String, String>) {
        let mut set = |name: &str, value: &str| {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        };
        if !self.authorities.is_empty() {
            for name in
                ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT"]
            {
                set(name, BUNDLES[0]);
            }
            set("NODE_EXTRA_CA_CERTS", AUTHORITIES);
        }
        if self.mirrors.npm.is_some() {
            set("NPM_CONFIG_GLOBALCONFIG", NPMRC);
        }
    }

    /// Writes the files, unless they are as they should be.
    pub(crate) async fn put(&self, agent: &AgentClient, lease: &Lease) -> Result<(), AgentError> {
        let late = || AgentError::Argument("the files of the company were not written in time");
        tokio::time::timeout(PATIENCE, self.put_now(agent, lease)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn put_now(&self, agent: &AgentClient, lease: &Lease) -> Result<(), AgentError> {
        let before = read(agent, MARK).await?;
        if before.as_deref() == Some(self.digest.as_str()) {
            return Ok(());
        }
        self.put_authorities(agent, lease).await?;
        self.put_mirrors(agent).await?;
        // This is written last: if it does not exist, the next boot writes everything again.
        write(agent, MARK, self.digest.clone()).await
    }

    async fn put_authorities(&self, agent: &AgentClient, lease: &Lease) -> Result<(), AgentError> {
        // A copy of a sandbox may have those of earlier settings.
        let before = read(agent, AUTHORITIES).await?.unwrap_or_default();
        if self.authorities.is_empty() && before.is_empty() {
            return Ok(());
        }
        let mut whole = None;
        for path in BUNDLES {
            if !is_file(agent, path).await? {
                continue;
            }
            let text = read(agent, path).await?.unwrap_or_default();
            let changed = merged(&text, &before, &self.authorities);
            if changed != text {
                write(agent, path, changed.clone()).await?;
            }
            whole.get_or_insert((path, changed));
        }
        let (first, text) = whole.unwrap_or_else(|| ("", merged("", "", &self.authorities)));
        if first != BUNDLES[0] {
            // Where the variables lead, also in an image that has its bundle elsewhere or none.
            write(agent, BUNDLES[0], text.clone()).await?;
        }
        let added = bundle(&self.authorities);
        write(agent, AUTHORITIES, added.clone()).await?;
        write(agent, LOCAL, added).await?;
        if first.is_empty() {
            // A store that is made of the added ones alone would distrust everything that the image trusts.
            return Ok(());
        }
        for path in keystores(agent, lease).await? {
            let trusted: Vec<Authority> = certificates(&text).into_iter().collect();
            agent.write_bytes(&path, ROOT, Some(0o644), java_keystore::of(&trusted)).await?;
        }
        Ok(())
    }

    async fn put_mirrors(&self, agent: &AgentClient) -> Result<(), AgentError> {
        if let Some(index) = &self.mirrors.pypi {
            let text = format!("{OURS}\n[global]\nindex-url = {index}\n");
            write_ours(agent, PIP_CONF, text).await?;
        }
        if let Some(registry) = &self.mirrors.npm {
            write_ours(agent, NPMRC, format!("{OURS}\nregistry={registry}\n")).await?;
        }
        let Some(mirror) = &self.mirrors.debian else { return Ok(()) };
        let mut lists = vec!["/etc/apt/sources.list".to_owned()];
        lists.extend(files_of(agent, "/etc/apt/sources.list.d", LISTS_MAX).await?);
        for path in lists {
            if !is_file(agent, &path).await? {
                continue;
            }
            let text = read(agent, &path).await?.unwrap_or_default();
            let changed = apt_sources(&text, mirror);
            if changed != text {
                write(agent, &path, changed).await?;
            }
        }
        Ok(())
    }
}

/// What is put into one sandbox beside its own files.
#[derive(Clone, Copy, Default)]
pub(crate) struct Inside<'a> {
    /// The company's; `None` where sandboxes have no network of this server.
    pub(crate) company: Option<&'a CompanyFiles>,
    /// The authority of a sandbox whose requests are changed.
    pub(crate) authority: Option<&'a str>,
}

impl<'a> Inside<'a> {
    /// Only where the provider enforces policies: another one's sandboxes may be processes of this machine, or at a vendor.
    pub(crate) fn of(company: &'a CompanyFiles, provider: &dyn Provider, authority: Option<&'a str>) -> Self {
        let is_ours = provider.capabilities().has(Capability::Egress) && !company.is_empty();
        Self { company: is_ours.then_some(company), authority }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.company.is_none() && self.authority.is_none()
    }

    /// Without the sandbox's own authority.
    pub(crate) fn company_alone(self) -> Self {
        Self { authority: None, ..self }
    }
}

/// A bundle without the authorities of earlier settings, and with those of now. What is there already is not added again.
fn merged(text: &str, before: &str, added: &[Authority]) -> String {
    let mut text = text.to_owned();
    let gone = certificates(before).into_iter().filter(|old| !added.contains(old));
    for pem in gone.map(|old| old.pem()) {
        text = text.replace(&pem, "");
    }
    let known = certificates(&text);
    let missing: Vec<Authority> = added.iter().filter(|one| !known.contains(*one)).cloned().collect();
    if missing.is_empty() {
        return text;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + &bundle(&missing)
}

/// The stores of all JDKs that are files of their own.
async fn keystores(agent: &AgentClient, lease: &Lease) -> Result<Vec<String>, AgentError> {
    let mut candidates: Vec<String> = KEYSTORES.iter().map(|path| (*path).to_owned()).collect();
    let home = lease.env.get("JAVA_HOME").filter(|home| home.starts_with('/')).cloned();
    let homes = files_of(agent, JVMS, JVMS_MAX).await?.into_iter().chain(home);
    candidates.extend(homes.map(|home| format!("{}/lib/security/cacerts", home.trim_end_matches('/'))));
    candidates.dedup();
    let mut found = Vec::new();
    for path in candidates {
        if is_file(agent, &path).await? {
            found.push(path);
        }
    }
    Ok(found)
}

/// The paths of the entries of a folder; none if it does not exist.
async fn files_of(agent: &AgentClient, folder: &str, most: usize) -> Result<Vec<String>, AgentError> {
    let entries = match agent.list_dir(folder, ROOT, 1).await {
        Ok((entries, _)) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.into_iter().filter_map(|entry| String::from_utf8(entry.name).ok());
    Ok(names.take(most).map(|name| format!("{folder}/{name}")).collect())
}

/// Whether it is a file, and no link to one that is written by its own name.
async fn is_file(agent: &AgentClient, path: &str) -> Result<bool, AgentError> {
    match agent.stat(path, ROOT).await {
        Ok(entry) => Ok(entry.kind == EntryKind::File),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

const fn is_absent(error: &AgentError) -> bool {
    matches!(error, AgentError::Refused { code: RpcCode::NotFound | RpcCode::InvalidArgument, .. })
}

/// `None` if the file does not exist or is no text.
async fn read(agent: &AgentClient, path: &str) -> Result<Option<String>, AgentError> {
    match agent.read_file(path, ROOT, None).await {
        Ok(file) => Ok(String::from_utf8(file.read_to_end(FILE_MAX).await?).ok()),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(agent: &AgentClient, path: &str, text: String) -> Result<(), AgentError> {
    agent.write_bytes(path, ROOT, Some(0o644), text).await
}

/// Writes a file unless the image has one of its own.
async fn write_ours(agent: &AgentClient, path: &str, text: String) -> Result<(), AgentError> {
    match read(agent, path).await? {
        Some(had) if !had.trim().is_empty() && !had.starts_with(OURS) => Ok(()),
        _ => write(agent, path, text).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(number: u8) -> Authority {
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\nAAA{}\n-----END CERTIFICATE-----\n",
            char::from(b'A' + number)
        );
        certificates(&pem).into_iter().next().expect("one")
    }

    #[test]
    fn a_bundle_has_each_authority_once_and_loses_those_of_earlier_settings() {
        let (public, old, new) = (authority(0), authority(1), authority(2));
        let base = format!("# public\n{}", public.pem().trim_end());
        let with_old = merged(&base, "", std::slice::from_ref(&old));
        assert_eq!(with_old, format!("{base}\n{}", old.pem()));
        let now = merged(&with_old, &old.pem(), &[new.clone(), public.clone()]);
        assert_eq!(now, format!("{base}\n{}", new.pem()));
        assert_eq!(merged(&now, &new.pem(), &[new.clone(), public]), now);
        assert_eq!(merged(&now, &new.pem(), &[]), format!("{base}\n"));
    }

    #[test]
    fn what_the_user_set_stands_and_no_addition_sets_nothing() {
        let company = CompanyFiles::new(vec![authority(1)], Mirrors::default());
        let mut env = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/mine".to_owned())]);
        company.add_env(&mut env);
        assert_eq!(env["SSL_CERT_FILE"], "/mine");
        assert_eq!(
            (env["PIP_CERT"].as_str(), env["NODE_EXTRA_CA_CERTS"].as_str()),
            (BUNDLES[0], AUTHORITIES)
        );
        assert!(!env.contains_key("NPM_CONFIG_GLOBALCONFIG"));
        let mut none = BTreeMap::new();
        CompanyFiles::default().add_env(&mut none);
        assert!(none.is_empty() && CompanyFiles::default().is_empty());
    }
}

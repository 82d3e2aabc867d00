//! Certificate authorities beyond the public ones: files that the operator names, and what was added to this machine.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Where an operator puts authorities on a Debian, and in a template.
pub const LOCAL: &str = "usr/local/share/ca-certificates";
/// The same in other distributions.
const ANCHORS: [&str; 2] = ["etc/pki/ca-trust/source/anchors", "etc/pki/trust/anchors"];
/// The authorities of Debian's package.
const PACKAGED: &str = "usr/share/ca-certificates";
/// The bundle of a Debian.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// LIMIT: the bundle of all public authorities has about 220 KiB.
const FILE_MAX: u64 = 4 << 20;
/// LIMIT: a company has a few; a file of thousands is not one of authorities.
pub const AUTHORITIES_MAX: usize = 256;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// One certificate, as DER.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority(Vec<u8>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({} bytes)", self.0.len())
    }
}

impl Authority {
    /// Its bytes.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.0
    }

    /// As a block of PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        let mut pem = format!("{BEGIN}\n");
        for line in STANDARD.encode(&self.0).as_bytes().chunks(64) {
            pem.extend(line.iter().map(|byte| char::from(*byte)));
            pem.push('\n');
        }
        pem + END + "\n"
    }
}

/// Why a file is not one of authorities.
#[derive(Debug, thiserror::Error)]
pub enum BadAuthorities {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    /// It is too large, or not text.
    #[error("{0}")]
    File(&'static str),
    /// A line is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong there.
        why: &'static str,
    },
}

/// Reads a file of the operator: PEM with certificates only. Everything in it is understood, or nothing is taken.
///
/// # Errors
/// With the line.
pub fn read(path: &Path) -> Result<Vec<Authority>, BadAuthorities> {
    let about = std::fs::metadata(path).map_err(BadAuthorities::Read)?;
    if !about.is_file() || about.len() > FILE_MAX {
        return Err(BadAuthorities::File("is not a file of a usual size"));
    }
    let bytes = std::fs::read(path).map_err(BadAuthorities::Read)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        BadAuthorities::File("is not text; convert it with `openssl x509 -inform der -in FILE -out FILE.pem`")
    })?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Authority>, BadAuthorities> {
    let bad = |line: usize, why| BadAuthorities::Line { line, why };
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        match (&mut open, line) {
            (None, BEGIN) => open = Some((number, String::new())),
            (None, END) => return Err(bad(number, "a certificate ends that did not begin")),
            (None, other) if other.starts_with("-----BEGIN") && other.contains("PRIVATE KEY") => {
                return Err(bad(number, "a private key does not belong here"));
            }
            (None, other) if other.starts_with("-----BEGIN") => {
                return Err(bad(number, "only blocks of BEGIN CERTIFICATE are supported"));
            }
            // Text between certificates is a comment, as everywhere.
            (None, _) => {}
            (Some((begin, body)), END) => {
                let begin = *begin;
                let der =
                    STANDARD.decode(&*body).map_err(|_| bad(begin, "this certificate is not base64"))?;
                check(&der).map_err(|()| bad(begin, "this certificate cannot be used as an authority"))?;
                found.push(Authority(der));
                open = None;
            }
            (Some(_), other) if other.starts_with("-----") => {
                return Err(bad(number, "the certificate before does not end"));
            }
            (Some((_, body)), other) => {
                let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
                if !other.bytes().all(is_base64) {
                    return Err(bad(number, "this is not base64"));
                }
                body.push_str(other);
            }
        }
    }
    match open {
        Some((begin, _)) => Err(bad(begin, "this certificate does not end")),
        None if found.is_empty() => Err(BadAuthorities::File("has no certificate")),
        None if found.len() > AUTHORITIES_MAX => Err(BadAuthorities::File("has more than 256 certificates")),
        None => Ok(found),
    }
}

/// Whether TLS libraries take it.
fn check(der: &[u8]) -> Result<(), ()> {
    rustls::RootCertStore::empty().add(der.to_vec().into()).map_err(drop)
}

/// What was added to a machine beyond its distribution. `host` is its root. Unlike a file of the operator, what cannot be used is left
/// out: it was there before this server.
///
/// # Errors
/// A file or folder that exists and cannot be read.
pub fn of_host(host: &Path) -> io::Result<Vec<Authority>> {
    let mut found = in_folder(&host.join(LOCAL))?;
    for folder in ANCHORS {
        found.extend(in_folder(&host.join(folder))?);
    }
    let packaged = in_folder(&host.join(PACKAGED))?;
    // Without a list of what the distribution has, its whole bundle would count as added.
    if !packaged.is_empty()
        && let Some(text) = read_usual(&host.join(BUNDLE))?
    {
        found.extend(certificates(&text));
    }
    let mut added: Vec<Authority> = found.difference(&packaged).cloned().collect();
    if added.len() > AUTHORITIES_MAX {
        tracing::warn!(
            found = added.len(),
            taken = AUTHORITIES_MAX,
            "this machine has too many authorities of its own"
        );
        added.truncate(AUTHORITIES_MAX);
    }
    Ok(added)
}

/// The certificates of all files below a folder.
fn in_folder(folder: &Path) -> io::Result<BTreeSet<Authority>> {
    let mut found = BTreeSet::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(cause) => return Err(named(folder, &cause)),
    };
    for entry in entries {
        let entry = entry.map_err(|cause| named(folder, &cause))?;
        let path = entry.path();
        // Links may lead to a folder above; authorities are files or links to files.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(in_folder(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "crt" || extension == "pem") {
            found.extend(certificates(&read_usual(&path)?.unwrap_or_default()));
        }
    }
    Ok(found)
}

fn named(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
}

/// The text of a file; `None` if there is none, or if it is no text of a usual size.
///
/// # Errors
/// It exists and cannot be read.
pub fn read_usual(path: &Path) -> io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() && about.len() <= FILE_MAX => {}
        Ok(_) => return Ok(None),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(named(path, &cause)),
    }
    let bytes = std::fs::read(path).map_err(|cause| named(path, &cause))?;
    Ok(String::from_utf8(bytes).ok())
}

/// The certificates of a text in PEM; other blocks, such as private keys, and what is no certificate are left out.
#[must_use]
pub fn certificates(text: &str) -> BTreeSet<Authority> {
    let blocks = text.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END).map(|(body, _)| body));
    let bodies = blocks.map(|body| body.chars().filter(|c| !c.is_whitespace()).collect::<String>());
    bodies
        .filter_map(|body| STANDARD.decode(body).ok())
        .filter(|der| !der.is_empty())
        .map(Authority)
        .collect()
}

/// All in one text, in order and once.
#[must_use]
pub fn bundle(authorities: &[Authority]) -> String {
    let mut seen = BTreeSet::new();
    authorities.iter().filter(|one| seen.insert(*one)).map(Authority::pem).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn certificate(name: &str) -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_file_of_authorities_is_read_whole_or_refused_with_its_line() {
        let (one, two) = (certificate("one"), certificate("two"));
        let both = parse(&format!("# ours\n{one}\nanother\n{two}")).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(parse(&bundle(&both)).unwrap(), both);
        let lines = one.lines().count();
        for (text, says) in [
            ("nothing".to_owned(), "has no certificate".to_owned()),
            (format!("{one}{BEGIN}\nAAAA\n"), format!("line {}: this certificate does not end", lines + 1)),
            (format!("{BEGIN}\nAAAA\n{one}"), "line 3: the certificate before does not end".to_owned()),
            (format!("\n{BEGIN}\nA*AA\n{END}\n"), "line 3: this is not base64".to_owned()),
            (format!("{BEGIN}\nAAAAA\n{END}\n"), "line 1: this certificate is not base64".to_owned()),
            (format!("{one}{BEGIN}\nAAAA\n{END}\n"), format!("line {}: this certificate cannot", lines + 1)),
            (format!("{END}\n"), "line 1: a certificate ends".to_owned()),
            (format!("{one}-----BEGIN EC PRIVATE KEY-----\n"), format!("line {}: a private key", lines + 1)),
            ("-----BEGIN X509 CRL-----\n".to_owned(), "line 1: only blocks".to_owned()),
        ] {
            let why = parse(&text).unwrap_err().to_string();
            assert!(why.starts_with(&says), "{why}, not {says}");
        }
        assert!(matches!(read(Path::new("/nowhere/at/all")), Err(BadAuthorities::Read(_))));
        assert!(matches!(read(Path::new("/etc")), Err(BadAuthorities::File(_))));
    }

    #[test]
    fn what_was_added_to_a_machine_is_found_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let [local, anchor, packaged, bundled] = ["local", "anchor", "packaged", "bundled"].map(certificate);
        let key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        put("usr/local/share/ca-certificates/company/own.crt", &format!("# ours\n{local}{key}"));
        put("usr/local/share/ca-certificates/readme.txt", &packaged);
        put("etc/pki/ca-trust/source/anchors/b.pem", &anchor);
        put(BUNDLE, &format!("{packaged}{bundled}"));
        let count = |found: &[Authority]| certificates(&bundle(found)).len();
        assert_eq!(count(&of_host(dir.path()).unwrap()), 2, "a bundle alone says nothing");
        put("usr/share/ca-certificates/mozilla/old.crt", &packaged);
        let found = of_host(dir.path()).unwrap();
        assert_eq!(count(&found), 3);
        let text = bundle(&found);
        assert!(!text.contains("PRIVATE") && !certificates(&text).contains(&parse(&packaged).unwrap()[0]));
        assert!(of_host(&dir.path().join("none")).unwrap().is_empty());
    }
}

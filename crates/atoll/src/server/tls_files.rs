//! The files of a server's certificate.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// The files of `DATA/tls`; `atoll tls init` makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) folder: PathBuf,
    pub(crate) ca: PathBuf,
    pub(crate) ca_key: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The roots of the machine and the local authority, for programs that take one file.
    pub(crate) bundle: PathBuf,
    /// The domain that the authority may sign for.
    pub(crate) domain: PathBuf,
    /// The further names and addresses of the server.
    pub(crate) hosts: PathBuf,
    /// The settings for certificates from an ACME service, its account, and how the last attempt went.
    pub(crate) acme: PathBuf,
    pub(crate) acme_account: PathBuf,
    pub(crate) acme_state: PathBuf,
}

impl TlsFiles {
    pub(crate) fn of(data: &Path) -> Self {
        let folder = data.join("tls");
        let file = |name: &str| folder.join(name);
        Self {
            ca: file("ca.pem"),
            ca_key: file("ca.key"),
            certificate: file("cert.pem"),
            key: file("key.pem"),
            bundle: file("bundle.pem"),
            domain: file("domain"),
            hosts: file("hosts.json"),
            acme: file("acme.json"),
            acme_account: file("acme-account.json"),
            acme_state: file("acme-state.json"),
            folder: folder.clone(),
        }
    }
}

/// Writes a file completely or not at all.
pub(crate) fn put_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let fresh = path.with_extension("new");
    // What a command left that was killed.
    let _ = fs::remove_file(&fresh);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

/// From when until when the first certificate of a PEM file is valid: two times in the form YYMMDDhhmmssZ, which certificates
/// have until 2049.
pub(crate) fn validity(pem: &str) -> Option<(Timestamp, Timestamp)> {
    let body = pem.lines().skip_while(|line| !line.starts_with("-----BEGIN CERTIFICATE-----")).skip(1);
    let body: String = body.take_while(|line| !line.starts_with("-----")).map(str::trim).collect();
    let der = base64::engine::general_purpose::STANDARD.decode(body).ok()?;
    let is_validity = |bytes: &&[u8]| bytes[..4] == [0x30, 0x1e, 0x17, 0x0d] && bytes[17..19] == [0x17, 0x0d];
    let times = der.windows(32).find(is_validity)?;
    Some((time(&times[4..17])?, time(&times[19..32])?))
}

fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", format!("20{text}")).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use atoll_proxy::{IssueDate, LocalCa};

    use super::*;

    #[test]
    fn the_validity_of_a_certificate_is_read_from_it() {
        let today = IssueDate { year: 2026, month: 11, day: 15 };
        let ca = LocalCa::make("localhost", &[], today).expect("made");
        let leaf = ca.leaf(&[], today).expect("made");
        let days = |pem: &str| validity(pem).map(|(from, to)| format!("{from:.0} {to:.0}"));
        assert_eq!(days(&leaf.chain).as_deref(), Some("2025-11-15T00:00:00Z 2027-11-15T00:00:00Z"));
        assert_eq!(days(ca.certificate()).as_deref(), Some("2025-11-15T00:00:00Z 2036-11-15T00:00:00Z"));
        for other in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "%"] {
            assert_eq!(validity(other), None);
        }
    }
}

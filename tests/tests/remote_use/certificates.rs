//! `atoll tls init` with several names and addresses, and certificates of an ACME service.

use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::sync::Arc;

use atoll_tests::{Value, World, json, run, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

use super::acme::AcmeService;
use super::{fed, ok, refused, text};

/// `atoll` on the server.
fn on_server(w: &World, words: &[&str]) -> Output {
    w.command().args(words).stdin(Stdio::null()).output().unwrap()
}

fn done(w: &World, words: &[&str]) -> String {
    let done = on_server(w, words);
    assert!(done.status.success(), "atoll {words:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

fn failed(w: &World, words: &[&str]) -> String {
    let done = on_server(w, words);
    assert!(!done.status.success(), "atoll {words:?}: {}", text(&done.stdout));
    text(&done.stderr)
}

/// The server's certificate, if a client that trusts this authority accepts it for this name.
async fn certificate(ca: &str, name: &str) -> Result<Vec<u8>, String> {
    let mut roots = rustls::RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(one.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let tcp = TcpStream::connect("127.0.0.1:7443").await.map_err(|e| e.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = connector.connect(name, tcp).await.map_err(|e| e.to_string())?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

async fn new_certificate(ca: &str, name: &str, old: &[u8]) -> Vec<u8> {
    until("the server uses the new certificate", async || {
        certificate(ca, name).await.ok().filter(|found| found != old)
    })
    .await
}

/// Certificates stay until the operator removes them; a world must end as it began.
fn remove_certificates(w: &World) {
    std::fs::remove_dir_all(w.data().join("tls")).unwrap();
}

#[test]
fn a_certificate_is_for_every_name_and_renewing_keeps_the_authority() {
    run(async |w| {
        let data = w.data();
        let read = |name: &str| std::fs::read_to_string(data.join("tls").join(name)).unwrap();
        done(w, &["tls", "init", "--name", "lab.example.com", "--name", "10.0.0.5", "2001:db8::5"]);
        let ca = read("ca.pem");
        let first = new_certificate(&ca, "lab.example.com", &[]).await;
        for name in ["10.0.0.5", "2001:db8::5", "localhost", "127.0.0.1", "x.atoll.localhost"] {
            assert_eq!(certificate(&ca, name).await.as_ref(), Ok(&first), "{name}");
        }
        assert!(certificate(&ca, "10.0.0.6").await.is_err());
        let shown: Value = serde_json::from_str(&done(w, &["tls", "show", "--json"])).unwrap();
        for name in ["lab.example.com", "10.0.0.5", "2001:db8::5"] {
            assert!(shown["names"].as_array().unwrap().contains(&json!(name)), "{shown}");
        }
        // Renewed without a word about names.
        done(w, &["tls", "init"]);
        assert_eq!(read("ca.pem"), ca);
        let second = new_certificate(&ca, "10.0.0.5", &first).await;
        assert_eq!(certificate(&ca, "lab.example.com").await.as_ref(), Ok(&second));
        // Fewer names are fine; others need an authority that may sign for them.
        done(w, &["tls", "init", "a.lab.example.com"]);
        let third = new_certificate(&ca, "a.lab.example.com", &second).await;
        assert!(certificate(&ca, "10.0.0.5").await.is_err());
        assert!(failed(w, &["tls", "init", "10.0.0.6"]).contains("may not sign for 10.0.0.6"));
        assert_eq!(certificate(&ca, "a.lab.example.com").await.as_ref(), Ok(&third), "nothing changed");
        assert!(failed(w, &["tls", "init", "*.example.com"]).contains("neither a host name"));
        done(w, &["tls", "init", "--force", "10.0.0.6"]);
        assert_ne!(read("ca.pem"), ca);
        new_certificate(&read("ca.pem"), "10.0.0.6", &third).await;

        // A user elsewhere trusts it by the context alone.
        let file = w.folder().join("their-ca.pem");
        std::fs::write(&file, read("ca.pem")).unwrap();
        let red = w.tenant("red").await;
        let add = [
            "context",
            "add",
            "tls",
            "https://127.0.0.1:7443",
            "--key-stdin",
            "--ca",
            file.to_str().unwrap(),
        ];
        assert!(fed(w, &add, red.key()).status.success());
        std::fs::remove_file(&file).unwrap();
        assert!(ok(w, &["--context", "tls", "whoami"]).contains("tenant   red"));
        assert!(refused(w, &["--url", "https://127.0.0.1:7443", "whoami"]).contains("not trusted"));
        remove_certificates(w);
    });
}

#[test]
fn the_server_obtains_and_renews_a_certificate_of_an_acme_service() {
    run(async |w| {
        let service = AcmeService::start().await;
        let tls = w.data().join("tls");
        let acme = |names: &[&str]| {
            let mut words =
                vec!["tls", "acme", "--json", "--accept-terms", "--email", "ops@example.com", "--directory"];
            words.push(service.directory());
            words.extend(names);
            on_server(w, &words)
        };
        assert!(failed(w, &["tls", "acme", "a.example.com"]).contains("--accept-terms"));
        let plain = ["tls", "acme", "a.example.com", "--accept-terms", "--directory", "http://192.0.2.1/dir"];
        assert!(failed(w, &plain).contains("https"));

        // Port 80 belongs to somebody else.
        let other = tokio::net::TcpListener::bind("0.0.0.0:80").await.unwrap();
        let refused = acme(&["a.example.com", "--http-listen", "0.0.0.0:80"]);
        assert!(text(&refused.stderr).contains("--http-listen"), "{}", text(&refused.stderr));
        drop(other);
        // The service does not get the proof that it wants.
        for name in ["refused.example.com", "refused-at-once.example.com"] {
            let refused = acme(&[name]);
            let why = text(&refused.stderr);
            assert!(why.contains(name) && why.contains("port 80"), "{why}");
        }

        let made = acme(&["a.example.com", "b.example.com"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let first = new_certificate(service.ca(), "a.example.com", &[]).await;
        assert_eq!(certificate(service.ca(), "b.example.com").await.as_ref(), Ok(&first));
        assert!(TcpStream::connect("127.0.0.1:80").await.is_err(), "port 80 is closed after the proof");
        for file in ["acme-account.json", "acme.json", "key.pem"] {
            let mode = std::fs::metadata(tls.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert!(failed(w, &["tls", "init"]).contains("tls acme --off"));
        let shown: Value = serde_json::from_str(&done(w, &["tls", "show", "--json"])).unwrap();
        assert_eq!(shown["error"], Value::Null, "{shown}");

        // After a restart the server renews what is due, with the same account.
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        let path = tls.join("acme-state.json");
        let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(state["next_at"].as_str().unwrap() > state["at"].as_str().unwrap(), "{state}");
        state["next_at"] = json!("2020-01-01T00:00:00Z");
        std::fs::write(&path, state.to_string()).unwrap();
        w.start_server().await;
        new_certificate(service.ca(), "a.example.com", &first).await;
        assert_eq!(service.accounts(), 1, "one account for all orders");

        done(w, &["tls", "acme", "--off"]);
        done(w, &["tls", "init"]);
        assert_eq!(service.wrong(), Vec::<String>::new());
        remove_certificates(w);
    });
}

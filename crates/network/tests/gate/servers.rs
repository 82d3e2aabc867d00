//! The internet of these tests: a name server with a table, and web servers that record every byte.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use atoll_network::netns;
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A name of the table: an address or an alias.
#[derive(Clone)]
pub(crate) enum Entry {
    Address(Ipv4Addr, u32),
    Alias(&'static str),
}

pub(crate) struct Internet {
    pub(crate) names: Mutex<HashMap<&'static str, Vec<Entry>>>,
    /// Every queried name.
    pub(crate) asked: Mutex<Vec<(String, RecordType)>>,
    /// The head of every request, with the body as the server understands it.
    pub(crate) requests: Mutex<Vec<String>>,
    pub(crate) authority_pem: String,
}

impl Internet {
    pub(crate) fn start(namespace: OwnedFd) -> Arc<Self> {
        let internet = Arc::new(Self {
            names: Mutex::default(),
            asked: Mutex::default(),
            requests: Mutex::default(),
            authority_pem: authority().0.clone(),
        });
        let any = |port| (Ipv4Addr::UNSPECIFIED, port);
        let (dns, plain, secure, asks_again, first) = netns::run_in(namespace.as_fd(), || {
            let listen = |port| TcpListener::bind(any(port)).unwrap();
            (UdpSocket::bind(any(53)).unwrap(), listen(80), listen(443), listen(444), listen(22))
        })
        .unwrap();
        let shared = Arc::clone(&internet);
        std::thread::spawn(move || shared.serve_names(&dns));
        let shared = Arc::clone(&internet);
        serve(plain, move |stream| shared.serve_web(stream));
        let groups = rustls::crypto::ring::ALL_KX_GROUPS.to_vec();
        internet.serve_secure(secure, groups);
        // No client offers a share for this group at first, so the server asks for a second hello.
        internet.serve_secure(asks_again, vec![rustls::crypto::ring::kx_group::SECP384R1]);
        serve(first, |mut stream| {
            let _ = stream.write_all(b"SSH-2.0-test\r\n");
        });
        internet
    }

    pub(crate) fn name(&self, name: &'static str, entries: &[Entry]) {
        self.names.lock().unwrap().insert(name, entries.to_vec());
    }

    fn serve_secure(
        self: &Arc<Self>,
        listener: TcpListener,
        groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
    ) {
        let (shared, config) = (Arc::clone(self), server_config(groups));
        serve(listener, move |stream| {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            shared.serve_web(rustls::StreamOwned::new(connection, stream));
        });
    }

    fn serve_names(&self, socket: &UdpSocket) {
        let mut buffer = [0u8; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let asked = Message::from_vec(&buffer[..len]).unwrap();
            let _ = socket.send_to(&self.answer(&asked), from);
        }
    }

    fn answer(&self, asked: &Message) -> Vec<u8> {
        let query = &asked.queries[0];
        let name = query.name.to_ascii().trim_end_matches('.').to_owned();
        self.asked.lock().unwrap().push((name.clone(), query.query_type));
        let mut answer = Message::response(asked.metadata.id, OpCode::Query);
        answer.add_query(query.clone());
        let names = self.names.lock().unwrap();
        let mut next = Some(name);
        while let Some(entries) = next.take().and_then(|name| Some((names.get(name.as_str())?, name))) {
            for entry in entries.0 {
                let owner = Name::from_ascii(format!("{}.", entries.1)).unwrap();
                answer.add_answer(match entry {
                    Entry::Address(address, ttl) => Record::from_rdata(owner, *ttl, RData::A(A(*address))),
                    Entry::Alias(to) => {
                        next = Some((*to).to_owned());
                        let to = CNAME(Name::from_ascii(format!("{to}.")).unwrap());
                        Record::from_rdata(owner, 60, RData::CNAME(to))
                    }
                });
            }
        }
        if answer.answers.is_empty() {
            answer.metadata.response_code = ResponseCode::NXDomain;
        }
        answer.to_vec().unwrap()
    }

    /// A web server that trusts `Content-Length` or chunks, keeps connections, and returns the head that it read.
    fn serve_web(&self, mut stream: impl Read + Write) {
        let mut bytes = Vec::new();
        while let Some(head) = read_head(&mut stream, &mut bytes) {
            self.requests.lock().unwrap().push(head.clone());
            let lower = head.to_ascii_lowercase();
            if lower.contains("upgrade: websocket") {
                let _ = stream.write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                );
                return echo(stream);
            }
            if !skip_body(&mut stream, &mut bytes, &lower) {
                return;
            }
            let answer = if head.contains("/redirect") {
                "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\n\r\n".to_owned()
            } else if head.contains("/big") {
                let body = "x".repeat(1 << 20);
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            } else {
                format!("HTTP/1.1 200 OK\r\nX-Site: 1\r\nContent-Length: {}\r\n\r\n{head}", head.len())
            };
            let end =
                if head.starts_with("HEAD ") { answer.find("\r\n\r\n").unwrap() + 4 } else { answer.len() };
            if stream.write_all(&answer.as_bytes()[..end]).is_err() || head.contains("/once") {
                return;
            }
        }
    }
}

fn echo(mut stream: impl Read + Write) {
    let mut buffer = [0u8; 16 << 10];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

fn read_head(stream: &mut impl Read, bytes: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head: Vec<u8> = bytes.drain(..end + 4).collect();
            return Some(String::from_utf8_lossy(&head).into_owned());
        }
        let mut buffer = [0u8; 4096];
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => bytes.extend_from_slice(&buffer[..len]),
            _ => return None,
        }
    }
}

fn skip_body(stream: &mut impl Read, bytes: &mut Vec<u8>, head: &str) -> bool {
    let chunked = head.contains("transfer-encoding: chunked");
    let len = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.trim().parse().ok());
    loop {
        let end = match (chunked, len) {
            (true, _) => bytes.windows(5).position(|window| window == b"0\r\n\r\n").map(|at| at + 5),
            (false, len) => Some(len.unwrap_or(0usize)).filter(|len| *len <= bytes.len()),
        };
        if let Some(end) = end {
            bytes.drain(..end);
            return true;
        }
        let mut buffer = [0u8; 4096];
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => bytes.extend_from_slice(&buffer[..len]),
            _ => return false,
        }
    }
}

fn serve(listener: TcpListener, with: impl Fn(TcpStream) + Send + Sync + 'static) {
    let with = Arc::new(with);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let with = Arc::clone(&with);
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                with(stream);
            });
        }
    });
}

/// The authority of all web servers here: its certificate, and a chain and key for their names.
fn authority() -> &'static (String, String, String) {
    static MADE: OnceLock<(String, String, String)> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut own = CertificateParams::default();
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        own.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = own.self_signed(&key).unwrap();
        let leaf_key = KeyPair::generate().unwrap();
        let leaf =
            CertificateParams::new(vec!["a.test".to_owned(), "*.a.test".to_owned(), "b.test".to_owned()])
                .unwrap();
        let leaf = leaf.signed_by(&leaf_key, &Issuer::from_params(&own, &key)).unwrap();
        (certificate.pem(), leaf.pem(), leaf_key.serialize_pem())
    })
}

fn server_config(kx_groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>) -> Arc<rustls::ServerConfig> {
    let (_, chain, key) = authority();
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = rustls::crypto::CryptoProvider { kx_groups, ..rustls::crypto::ring::default_provider() };
    let provider = Arc::new(provider);
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

pub(crate) fn client_config(roots_pem: &str) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots_pem.as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

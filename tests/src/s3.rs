//! A real S3 server on loopback, and a proxy before it that does to requests what networks and clouds do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// What the server takes.
pub const KEY: &str = "atoll-test-key";
/// Its secret.
pub const SECRET: &str = "atoll-test-secret";
/// The bucket that is there.
pub const BUCKET: &str = "archives";

/// A server with a folder behind it. Dropping it is its sudden death.
pub struct S3 {
    folder: PathBuf,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl S3 {
    /// Starts it over a folder.
    pub fn start(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join(BUCKET)).expect("a bucket");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut server = Self { folder: folder.to_path_buf(), address, runtime: None };
        server.serve(listener);
        server
    }

    fn serve(&mut self, listener: std::net::TcpListener) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let files = s3s_fs::FileSystem::new(&self.folder).expect("a folder");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        runtime.spawn(async move {
            listener.set_nonblocking(true).expect("a socket");
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        self.runtime = Some(runtime);
    }

    /// Ends it at once, with everything that is under way.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts it again at the same address.
    pub async fn revive(&mut self) {
        let address = self.address;
        let listener = crate::until("the port is free again", async || {
            let socket = tokio::net::TcpSocket::new_v4().ok()?;
            socket.set_reuseaddr(true).ok()?;
            socket.bind(address).ok()?;
            socket.listen(64).ok()?.into_std().ok()
        })
        .await;
        self.serve(listener);
    }

    /// Every object, as the server keeps it in files of its own.
    pub fn objects(&self) -> Vec<PathBuf> {
        let (mut found, mut next) = (Vec::new(), vec![self.folder.join(BUCKET)]);
        while let Some(folder) = next.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    next.push(entry.path());
                } else {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    /// Those that are manifests: one per archive that counts.
    pub fn manifests(&self) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
        self.objects().into_iter().filter(is_one).collect()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What may happen to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The answer is this status and nothing else.
    Status(u16),
    /// The connection is reset after half of what the client sends, or of its head.
    Reset,
    /// Half of the answer comes, then the end.
    Truncated,
    /// So many bytes per second in both directions.
    Slow(u32),
    /// Nothing comes, ever.
    Stuck,
}

/// Which requests are meant.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// Only to this method.
    pub method: &'static str,
    /// Only to paths with this in them.
    pub path: &'static str,
    /// So many go well before.
    pub skip: u32,
    /// So many are hit; then all is well again.
    pub times: u32,
}

impl Rule {
    /// Hits every request of a method from now on.
    pub fn always(fault: Fault, method: &'static str) -> Self {
        Self { fault, method, path: "", skip: 0, times: u32::MAX }
    }
}

/// The proxy.
pub struct Proxy {
    address: SocketAddr,
    rules: Arc<Mutex<Vec<Rule>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts it before a server.
    pub async fn start(server: &S3) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            rules: Arc::default(),
            asked: Arc::default(),
        };
        let (rules, asked, upstream) = (proxy.rules.clone(), proxy.asked.clone(), server.address);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (rules, asked) = (rules.clone(), asked.clone());
                tokio::spawn(async move {
                    let _ = pass(socket, upstream, &rules, &asked).await;
                });
            }
        });
        proxy
    }

    /// The place of archives as a server is told it.
    pub fn place(&self) -> String {
        format!("s3://{BUCKET}/some/prefix?endpoint=http://{}&region=us-east-1&allow_http=true", self.address)
    }

    /// From now on this happens, and nothing else.
    pub fn now(&self, rules: &[Rule]) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules.to_vec();
    }

    /// Requests so far that begin so, as in `PUT /`.
    pub fn count(&self, begin: &str) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter(|line| line.starts_with(begin)).count()
    }
}

/// One request per connection: what comes, what happens to it, what is answered.
async fn pass(
    mut client: TcpStream,
    upstream: SocketAddr,
    rules: &Mutex<Vec<Rule>>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let (head, mut body) = read_head(&mut client).await?;
    let line = head.lines().next().unwrap_or_default().to_owned();
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
    let fault = fault_for(&mut rules.lock().unwrap_or_else(PoisonError::into_inner), &line);
    let length = content_length(&head);
    match fault {
        Some(Fault::Stuck) => {
            std::future::pending::<()>().await;
        }
        Some(Fault::Reset) => {
            read_body(&mut client, &mut body, length / 2, None).await?;
            client.set_zero_linger()?;
            return Ok(());
        }
        _ => {}
    }
    let speed = match fault {
        Some(Fault::Slow(speed)) => Some(speed),
        _ => None,
    };
    read_body(&mut client, &mut body, length, speed).await?;
    if let Some(Fault::Status(status)) = fault {
        let broken = format!("HTTP/1.1 {status} Fault\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return client.write_all(broken.as_bytes()).await;
    }
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(closing(&head).as_bytes()).await?;
    server.write_all(&body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    let sent = if fault == Some(Fault::Truncated) { end + (answer.len() - end) / 2 } else { answer.len() };
    write_slowly(&mut client, &answer[..sent], speed).await
}

fn fault_for(rules: &mut [Rule], line: &str) -> Option<Fault> {
    let rule = rules
        .iter_mut()
        .find(|rule| line.starts_with(rule.method) && line.contains(rule.path) && rule.times > 0)?;
    if rule.skip > 0 {
        rule.skip -= 1;
        return None;
    }
    rule.times = rule.times.saturating_sub(1);
    Some(rule.fault)
}

async fn read_head(client: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16_384];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        match client.read(&mut chunk).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

fn content_length(head: &str) -> usize {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    head.lines().find_map(value).unwrap_or(0)
}

async fn read_body(
    client: &mut TcpStream,
    body: &mut Vec<u8>,
    length: usize,
    speed: Option<u32>,
) -> std::io::Result<()> {
    let mut chunk = vec![0; 16_384];
    while body.len() < length {
        let n = client.read(&mut chunk).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        body.extend_from_slice(&chunk[..n]);
        pace(n, speed).await;
    }
    Ok(())
}

async fn write_slowly(client: &mut TcpStream, bytes: &[u8], speed: Option<u32>) -> std::io::Result<()> {
    for piece in bytes.chunks(16_384) {
        client.write_all(piece).await?;
        pace(piece.len(), speed).await;
    }
    client.shutdown().await
}

async fn pace(bytes: usize, speed: Option<u32>) {
    if let Some(speed) = speed {
        tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / f64::from(speed))).await;
    }
}

/// The same head, asking the server to close afterwards; that header is not part of the signature.
fn closing(head: &str) -> String {
    let kept =
        head.trim_end().split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    format!("{}\r\nConnection: close\r\n\r\n", kept.collect::<Vec<_>>().join("\r\n"))
}

//! Name servers that say what a test scripts, true or not, and keep every question.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// Kinds of records by their numbers.
pub mod kind {
    #![allow(missing_docs, reason = "as in DNS")]
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const HTTPS: u16 = 65;
    pub const ANY: u16 = 255;
}

/// One question as a server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Which server.
    pub server: IpAddr,
    /// The name in lower case.
    pub name: String,
    /// The kind of record.
    pub kind: u16,
    /// Whether it came over TCP.
    pub tcp: bool,
}

/// What is said to a question.
#[derive(Debug, Clone, Default)]
pub struct Say {
    records: Vec<Record>,
    ttl_s: u32,
    code: u8,
    delay: Duration,
    held: Option<watch::Receiver<bool>>,
    twist: Option<Twist>,
}

/// One record; its owner is the name asked for, or what the alias before it points to.
#[derive(Debug, Clone)]
pub enum Record {
    /// An address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// An alias.
    Cname(String),
    /// A text.
    Txt(String),
    /// An address of a name that was not requested.
    Stray(String, Ipv4Addr),
}

/// How an answer lies about being one; the honest one follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// The id is another's; the address in it is this one.
    WrongId(Ipv4Addr),
    /// It answers another question with this address.
    OtherQuestion(Ipv4Addr),
    /// It is not a message at all.
    Garbage,
    /// Nothing is said.
    Silence,
    /// It does not fit: ask by TCP.
    Truncated,
}

impl Say {
    /// Addresses, for a minute.
    pub fn a(addresses: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        Self::records(addresses.into_iter().map(Record::A))
    }

    /// Records in this order, for a minute.
    pub fn records(records: impl IntoIterator<Item = Record>) -> Self {
        Self { records: records.into_iter().collect(), ttl_s: 60, ..Self::default() }
    }

    /// No such name.
    pub fn nothing() -> Self {
        Self { code: 3, ..Self::default() }
    }

    /// How long it holds.
    pub fn ttl(self, ttl_s: u32) -> Self {
        Self { ttl_s, ..self }
    }

    /// Said only after a while.
    pub fn late(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Said only when the channel says so.
    pub fn held_until(self, released: watch::Receiver<bool>) -> Self {
        Self { held: Some(released), ..self }
    }

    async fn until_due(&self) {
        tokio::time::sleep(self.delay).await;
        if let Some(mut released) = self.held.clone() {
            let _ = released.wait_for(|is| *is).await;
        }
    }

    /// A lie before it.
    pub fn twisted(self, twist: Twist) -> Self {
        Self { twist: Some(twist), ..self }
    }
}

type Script = Arc<dyn Fn(&Asked, usize) -> Say + Send + Sync>;

#[derive(Default)]
struct State {
    scripts: HashMap<String, (Script, usize)>,
    asked: Vec<Asked>,
}

/// What all its name servers say and saw.
#[derive(Clone, Default)]
pub(super) struct Zone(Arc<Mutex<State>>);

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Zone")
    }
}

impl Zone {
    pub(super) fn script(&self, name: &str, script: impl Fn(&Asked, usize) -> Say + Send + Sync + 'static) {
        self.state().scripts.insert(name.to_owned(), (Arc::new(script), 0));
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    pub(super) fn forget(&self) {
        self.state().asked.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, asked: &Asked) -> Say {
        let mut state = self.state();
        state.asked.push(asked.clone());
        let below = asked.name.split_once('.').map(|(_, rest)| format!("*.{rest}")).unwrap_or_default();
        let known = if state.scripts.contains_key(&asked.name) { asked.name.clone() } else { below };
        let Some((script, count)) = state.scripts.get_mut(&known) else { return Say::nothing() };
        let nth = *count;
        *count += 1;
        let script = script.clone();
        drop(state);
        script(asked, nth)
    }
}

/// Answers on port 53 of an address, over UDP and TCP.
pub(super) async fn serve(address: IpAddr, zone: &Zone) {
    let socket = Arc::new(UdpSocket::bind((address, 53)).await.expect("port 53"));
    let own = zone.clone();
    tokio::spawn(async move {
        let mut packet = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut packet).await {
            let (query, zone, socket) = (packet[..length].to_vec(), own.clone(), socket.clone());
            tokio::spawn(async move { answer_datagram(&zone, &socket, address, from, &query).await });
        }
    });
    let listener = TcpListener::bind((address, 53)).await.expect("port 53");
    let own = zone.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let zone = own.clone();
            tokio::spawn(async move { answer_stream(&zone, stream, address).await });
        }
    });
}

async fn answer_datagram(zone: &Zone, socket: &UdpSocket, server: IpAddr, from: SocketAddr, query: &[u8]) {
    let Some(question) = Question::read(query) else { return };
    let asked = Asked { server, name: question.name.to_lowercase(), kind: question.kind, tcp: false };
    let say = zone.say(&asked);
    say.until_due().await;
    let lie = |address| Say::a([address]);
    let first = match say.twist {
        None => None,
        Some(Twist::Silence) => return,
        Some(Twist::Garbage) => Some(vec![query[0], query[1], 0xff, 0xff, 0xff]),
        Some(Twist::WrongId(address)) => {
            let mut wrong = question.answer(&lie(address));
            wrong[0] ^= 0x55;
            Some(wrong)
        }
        Some(Twist::OtherQuestion(address)) => {
            let other = Question { name: "other-question.test".into(), ..question.clone() };
            Some(other.answer(&lie(address)))
        }
        Some(Twist::Truncated) => {
            let mut short = question.answer(&Say::default());
            short[2] |= 2;
            let _ = socket.send_to(&short, from).await;
            return;
        }
    };
    if let Some(first) = first {
        let _ = socket.send_to(&first, from).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let _ = socket.send_to(&question.answer(&say), from).await;
}

async fn answer_stream(zone: &Zone, mut stream: TcpStream, server: IpAddr) -> Option<()> {
    loop {
        let length = stream.read_u16().await.ok()?;
        let mut query = vec![0; length.into()];
        stream.read_exact(&mut query).await.ok()?;
        let question = Question::read(&query)?;
        let asked = Asked { server, name: question.name.to_lowercase(), kind: question.kind, tcp: true };
        let say = zone.say(&asked);
        say.until_due().await;
        let answer = question.answer(&say);
        stream.write_u16(u16::try_from(answer.len()).ok()?).await.ok()?;
        stream.write_all(&answer).await.ok()?;
    }
}

/// The first question of a message.
#[derive(Debug, Clone)]
struct Question {
    id: [u8; 2],
    name: String,
    kind: u16,
}

impl Question {
    fn read(query: &[u8]) -> Option<Self> {
        let id = query.get(..2)?.try_into().ok()?;
        let (mut labels, mut at) = (Vec::new(), 12);
        loop {
            let length = usize::from(*query.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(query.get(at..at + length)?).into_owned());
            at += length;
        }
        let kind = u16::from_be_bytes(query.get(at..at + 2)?.try_into().ok()?);
        Some(Self { id, name: labels.join("."), kind })
    }

    fn answer(&self, say: &Say) -> Vec<u8> {
        let (mut owner, mut records, mut count) = (self.name.clone(), Vec::new(), 0u16);
        for record in &say.records {
            let (name, kind, data) = match record {
                Record::A(address) => (owner.clone(), kind::A, address.octets().to_vec()),
                Record::Aaaa(address) => (owner.clone(), kind::AAAA, address.octets().to_vec()),
                Record::Txt(text) => {
                    let length = u8::try_from(text.len()).expect("a short text");
                    (owner.clone(), kind::TXT, [&[length], text.as_bytes()].concat())
                }
                Record::Cname(target) => {
                    let name = std::mem::replace(&mut owner, target.clone());
                    (name, kind::CNAME, encode(target))
                }
                Record::Stray(name, address) => (name.clone(), kind::A, address.octets().to_vec()),
            };
            let is_asked = [kind, kind::ANY].contains(&self.kind) || kind == kind::CNAME;
            if !is_asked {
                continue;
            }
            records.extend(encode(&name));
            records.extend(kind.to_be_bytes());
            records.extend([0, 1]);
            records.extend(say.ttl_s.to_be_bytes());
            records.extend(u16::try_from(data.len()).expect("a short record").to_be_bytes());
            records.extend(data);
            count += 1;
        }
        let mut message = self.id.to_vec();
        message.extend([0x81, 0x80 | say.code, 0, 1]);
        message.extend(count.to_be_bytes());
        message.extend([0, 0, 0, 0]);
        message.extend(encode(&self.name));
        message.extend(self.kind.to_be_bytes());
        message.extend([0, 1]);
        message.extend(records);
        message
    }
}

fn encode(name: &str) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(u8::try_from(label.len()).expect("a label"));
        wire.extend(label.as_bytes());
    }
    wire.push(0);
    wire
}

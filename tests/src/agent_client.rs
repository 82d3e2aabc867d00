//! The agent of a sandbox, reached as the server reaches it: for tests of what is composed from processes and files, below
//! every front. The token comes from the server's own records, opened with its own key.

use std::os::fd::AsFd;

use atoll_agentapi::{AGENT_PORT, AgentClient, AgentToken};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use nix::sched::{CloneFlags, setns};

use crate::World;

/// LIMIT: of the sealed form, what stands before the secret.
const NONCE: usize = 24;

/// A client of the agent of a sandbox that runs.
pub fn agent(world: &World, sandbox: &str) -> AgentClient {
    let pid = world.agent_pid(sandbox);
    let connect = move || async move {
        let dialled = tokio::task::spawn_blocking(move || std::thread::spawn(move || dial(pid)).join());
        let stream = dialled.await.expect("a thread").expect("a dial")?;
        tokio::net::TcpStream::from_std(stream)
    };
    AgentClient::new(connect, &AgentToken::new(token(world, sandbox)))
}

/// On a thread of its own, which stays in the sandbox's network namespace until it ends.
fn dial(pid: i32) -> std::io::Result<std::net::TcpStream> {
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
    let stream = std::net::TcpStream::connect(("127.0.0.1", AGENT_PORT))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn token(world: &World, sandbox: &str) -> String {
    let select = "select instance, agent_token from sandbox_instances where sandbox = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?));
    let (instance, sealed) = world.database().query_row(select, [sandbox], row).expect("an instance");
    let key = std::fs::read_to_string(world.data().join("secret.key")).expect("the server's key");
    let key = hex::decode(key.trim()).expect("hex");
    let cipher = XChaCha20Poly1305::new_from_slice(&key).expect("32 bytes");
    let (nonce, body) = sealed.split_at(NONCE);
    let payload = Payload { msg: body, aad: instance.as_bytes() };
    let plain = cipher.decrypt(XNonce::from_slice(nonce), payload).expect("the key fits");
    // The last of several is the one that the agent knows.
    let tokens = String::from_utf8(plain).expect("a token is text");
    tokens.split(' ').next_back().expect("a token").to_owned()
}

/// Pays for what a toolbox holds.
#[must_use]
pub fn account() -> atoll_budget::Account {
    atoll_budget::Budget::default().account(atoll_budget::BudgetOwner::Stranger(None))
}

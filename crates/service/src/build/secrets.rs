//! Secrets of a step: files that exist only while its command runs.
//!
//! Their content is in the sandbox's `/dev/shm`, which is memory and not part of any layer. At the path that the step
//! expects there is a link to it, which is removed before the sandbox is halted. The output of a command is searched
//! for secrets before it is written anywhere.

use std::collections::BTreeMap;

use atoll_agentapi::{AgentClient, Unpack, UnpackOwner, UnpackRules};
use atoll_image::build::SecretMount;
use atoll_model::Code;
use atoll_tar::write::Archive;
use atoll_tar::{TarEntry, TarKind};
use bytes::Bytes;

use super::ask::BuildSecret;
use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};

/// The folder of their content in the sandbox.
const FOLDER: &str = "/dev/shm/.atoll-secrets";
/// LIMIT: shorter texts occur in any output; hiding them would make the output unreadable and protect nothing.
const HIDDEN_BYTES: usize = 6;

/// LIMIT: each line of output is searched for each of them.
const HIDDEN_TEXTS: usize = 256;

/// The secrets of one step, in its sandbox.
pub(super) struct Placed {
    links: Vec<String>,
    /// The folder that was made for them, to be removed if it is empty.
    folder: Option<String>,
    /// Secrets that the step wants as variables.
    pub(super) env: BTreeMap<String, String>,
}

/// Puts them where the step wants them.
pub(super) async fn place(
    agent: &AgentClient,
    mounts: &[SecretMount],
    secrets: &BTreeMap<String, BuildSecret>,
) -> Result<Placed, ServiceError> {
    let mut placed = Placed { links: Vec::new(), folder: None, env: BTreeMap::new() };
    let (mut contents, mut links) = (Archive::new(Vec::new()), Archive::new(Vec::new()));
    for (at, mount) in mounts.iter().enumerate() {
        let Some(secret) = secrets.get(&mount.id) else {
            if mount.required {
                return Err(missing(&mount.id));
            }
            continue;
        };
        if let Some(name) = &mount.env {
            let text = String::from_utf8(secret.content().to_vec()).map_err(|_| not_text(&mount.id))?;
            placed.env.insert(name.clone(), text);
        }
        if let Some(target) = &mount.target {
            free(agent, target).await?;
            let name = at.to_string();
            put_file(&mut contents, &name, mount, &secret.content())?;
            put_link(&mut links, target, &format!("{FOLDER}/{name}"))?;
            placed.links.push(target.clone());
        }
    }
    if placed.links.is_empty() {
        return Ok(placed);
    }
    if placed.links.iter().any(|link| link.starts_with(DEFAULT))
        && agent.stat(DEFAULT, Some("root")).await.is_err()
    {
        placed.folder = Some(DEFAULT.to_owned());
    }
    send(agent, FOLDER, contents).await?;
    send(agent, "/", links).await?;
    Ok(placed)
}

/// Refuses an existing file at the target, because the link would replace it.
async fn free(agent: &AgentClient, target: &str) -> Result<(), ServiceError> {
    match agent.stat(target, Some("root")).await.map_err(|error| refusal(AgentOperation::File, error)) {
        Err(error) if error.code == Code::FileNotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            let message = format!("{target} already exists, and a secret cannot replace it");
            Err(ServiceError::new(Code::Unsupported, message).hint("mount it at an unused path"))
        }
    }
}

/// The default folder of secrets.
const DEFAULT: &str = "/run/secrets";

impl Placed {
    /// Removes the links again. Their content is removed with the sandbox.
    pub(super) async fn remove(&self, agent: &AgentClient) -> Result<(), ServiceError> {
        for path in self.links.iter().chain(&self.folder) {
            match agent.remove(path, Some("root")).await.map_err(|error| refusal(AgentOperation::File, error))
            {
                Ok(()) => {}
                // The step may have removed it itself.
                Err(error) if error.code == Code::FileNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn put_file(
    into: &mut Archive<Vec<u8>>,
    name: &str,
    mount: &SecretMount,
    content: &Bytes,
) -> Result<(), ServiceError> {
    let entry = TarEntry {
        name: name.as_bytes().to_vec(),
        mode: mount.mode,
        uid: mount.uid.into(),
        gid: mount.gid.into(),
        size: content.len() as u64,
        ..TarEntry::default()
    };
    let mut put = || {
        into.entry(&entry)?;
        into.data(content)?;
        into.pad(entry.size)
    };
    put().map_err(not_packed)
}

fn put_link(into: &mut Archive<Vec<u8>>, at: &str, to: &str) -> Result<(), ServiceError> {
    if at.split('/').any(|part| part == "..") {
        return Err(not_packed(std::io::ErrorKind::InvalidInput.into()));
    }
    let entry = TarEntry {
        name: at.trim_start_matches('/').as_bytes().to_vec(),
        kind: TarKind::Symlink,
        link: to.as_bytes().to_vec(),
        mode: 0o777,
        ..TarEntry::default()
    };
    into.entry(&entry).map_err(not_packed)
}

async fn send(agent: &AgentClient, dest: &str, tar: Archive<Vec<u8>>) -> Result<(), ServiceError> {
    let bytes = Bytes::from(tar.finish().map_err(not_packed)?.0);
    let what = Unpack { owner: UnpackOwner::Kept, rules: UnpackRules::Archive, ..Unpack::below(dest) };
    let content = futures::stream::once(async move { Ok(bytes) });
    agent.unpack(&what, Some("root"), content).await.map_err(|error| refusal(AgentOperation::File, error))?;
    Ok(())
}

fn missing(id: &str) -> ServiceError {
    ServiceError::new(Code::InvalidRequest, format!("the step needs the secret {id}, which was not passed"))
        .hint(format!("pass it with --secret id={id},src=FILE"))
}

fn not_text(id: &str) -> ServiceError {
    ServiceError::new(Code::InvalidRequest, format!("the secret {id} is not text, as a variable must be"))
}

fn not_packed(cause: std::io::Error) -> ServiceError {
    ServiceError::new(Code::InvalidRequest, "a secret cannot be placed at the path that the step names")
        .caused_by(cause)
}

/// The replacement for a secret.
const SIGN: &[u8] = b"***";

/// Finds secrets in the output of a step, and hides them.
#[derive(Clone, Default)]
pub(super) struct SecretMask {
    /// The longest first, so that a part of a text does not prevent the match of the whole.
    texts: Vec<Vec<u8>>,
}

impl SecretMask {
    pub(super) fn of(secrets: &BTreeMap<String, BuildSecret>) -> Self {
        let mut texts: Vec<Vec<u8>> = Vec::new();
        for secret in secrets.values() {
            let content = secret.content();
            for line in content.split(|byte| *byte == b'\n') {
                let line = line.trim_ascii();
                if line.len() >= HIDDEN_BYTES {
                    texts.push(line.to_vec());
                }
            }
        }
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        texts.truncate(HIDDEN_TEXTS);
        Self { texts }
    }

    pub(super) fn hide(&self, line: &mut Vec<u8>) {
        for text in &self.texts {
            let mut from = 0;
            while let Some(at) = memchr::memmem::find(&line[from..], text) {
                line.splice(from + at..from + at + text.len(), SIGN.iter().copied());
                from += at + SIGN.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_secret_holds_is_hidden_line_by_line() {
        let secrets = BTreeMap::from([
            ("key".to_owned(), BuildSecret::new("-----BEGIN\nabcdefgh\n")),
            ("long".to_owned(), BuildSecret::new("abcdefghijkl")),
            ("pin".to_owned(), BuildSecret::new("1234")),
        ]);
        let hidden = SecretMask::of(&secrets);
        let mut line = b"x abcdefghijkl abcdefgh 1234 -----BEGIN".to_vec();
        hidden.hide(&mut line);
        assert_eq!(line, b"x *** *** 1234 ***");
    }
}

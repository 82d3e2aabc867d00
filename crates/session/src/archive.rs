//! Trees as tar streams where no agent of Atoll's packs them: by the program `tar` of the sandbox.
//!
//! Only what a move between providers needs: the content of one folder, with names in a fixed order, and an unpack with the owners
//! of the archive. Both need a shell and GNU tar, and run as root where the provider has users. A user that is not root cannot give
//! files to others: all that it unpacks belongs to it. What the programs say is untrusted; a move compares the copy.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use atoll_agentapi::{ProcessEvent, RpcCode, UploadStream};
use atoll_provider::{Capability, ProcessOutput, ProcessSpec};
use bytes::Bytes;
use futures::{Stream, StreamExt};

use crate::error::SessionRefusal;
use crate::state::AdapterState;

/// LIMIT: bytes of error output that are shown.
const ERROR_MAX: usize = 400;
/// Where an archive lies while it is unpacked.
const TEMPORARY: &str = "/tmp/.atoll-archive";
const ROOT: &str = "root";
/// Packs: `$1` is the folder, the rest are options of `tar`. Files that cannot be read are found before anything is sent, because an
/// answer that has begun cannot become a refusal.
const PACK: &str = "folder=$1; shift; \
    if [ \"$(id -u)\" != 0 ]; then \
    closed=$(find \"$folder\" \\( -type f -o -type d \\) ! -readable -print -quit 2>/dev/null); \
    [ -z \"$closed\" ] || { echo \"$closed cannot be read\" >&2; exit 1; }; fi; \
    exec tar -C \"$folder\" --sort=name --numeric-owner --format=pax \"$@\" -cf - .";
/// Unpacks the archive `$1` into the folder `$2`.
const UNPACK: &str = "owner=--same-owner; [ \"$(id -u)\" = 0 ] || owner=--no-same-owner; \
    exec tar --numeric-owner \"$owner\" -xpf \"$1\" -C \"$2\"";

type PackStream = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, Box<dyn Error + Send + Sync>>> + Send>>;

impl AdapterState {
    /// The content of one folder. `ask` is the body of the request: `s` and a source or `x` and a pattern, each ended by a NUL.
    pub(crate) async fn pack(
        self: &Arc<Self>,
        layout: &str,
        ask: &[u8],
    ) -> Result<PackStream, SessionRefusal> {
        let items: Vec<&[u8]> = ask.split(|byte| *byte == 0).filter(|item| !item.is_empty()).collect();
        let of = |sign: u8| items.iter().filter_map(move |item| item.strip_prefix(&[sign]));
        let mut sources = of(b's');
        let (Some(source), None, "contents") = (sources.next(), sources.next(), layout) else {
            return Err(self.agent_only("an archive of anything but the content of one folder"));
        };
        let mut args = vec![self.path(source)?];
        for pattern in of(b'x') {
            let pattern = std::str::from_utf8(pattern)
                .map_err(|_| SessionRefusal::invalid("this provider takes patterns in UTF-8 only"))?;
            args.extend([
                "--anchored".to_owned(),
                "--no-wildcards-match-slash".to_owned(),
                format!("--exclude=./{pattern}"),
            ]);
        }
        let mut output = packed(self.start_script(PACK, args).await?).boxed();
        match output.next().await {
            Some(Err(error)) => Err(failed(&*error)),
            first => Ok(futures::stream::iter(first).chain(output).boxed()),
        }
    }

    /// Unpacks an archive over a folder, with the owners that it names if root does it. Answers the number of its bytes.
    pub(crate) async fn unpack(
        &self,
        query: &HashMap<String, String>,
        content: UploadStream,
    ) -> Result<u64, SessionRefusal> {
        let dest = query.get("dest").filter(|dest| !dest.is_empty());
        let dest = self.path(dest.ok_or_else(|| SessionRefusal::invalid("dest is missing"))?.as_bytes())?;
        let is_kept = query.get("keep").is_some_and(|keep| keep == "1");
        let is_plain =
            is_kept && !["owner", "mode", "strip"].iter().any(|option| query.contains_key(*option));
        if !is_plain {
            return Err(self.agent_only("an archive with other owners, modes or names"));
        }
        let user = self.root_user();
        self.ensure_folder(&dest, user.as_deref()).await?;
        let file = format!("{TEMPORARY}-{}.tar", self.target.sandbox);
        self.write(&file, user.as_deref(), Some(0o600), None, content).await?;
        let unpacked = async {
            let bytes = self.stat(&file, user.as_deref()).await?.size;
            let args = vec![file.clone(), dest.clone()];
            let mut output = packed(self.start_script(UNPACK, args).await?).boxed();
            while let Some(chunk) = output.next().await {
                chunk.map_err(|error| failed(&*error))?;
            }
            Ok(bytes)
        };
        let unpacked = unpacked.await;
        let removed = self.remove(&file, user.as_deref(), true).await;
        unpacked.and_then(|bytes| removed.map(|()| bytes))
    }

    async fn start_script(&self, script: &str, args: Vec<String>) -> Result<ProcessOutput, SessionRefusal> {
        let shell = ["sh", "-c", script, "sh"].map(str::to_owned);
        let what = ProcessSpec {
            argv: shell.into_iter().chain(args).collect(),
            cwd: Some("/".to_owned()),
            env: [("LC_ALL".to_owned(), "C".to_owned())].into(),
            user: self.root_user(),
            ..ProcessSpec::default()
        };
        Ok(self.session()?.start_process(&self.target, what).await?.output)
    }

    fn root_user(&self) -> Option<String> {
        self.need(Capability::User).is_ok().then(|| ROOT.to_owned())
    }
}

fn failed(error: &(dyn Error + Send + Sync)) -> SessionRefusal {
    SessionRefusal::new(RpcCode::FailedPrecondition, error.to_string())
}

/// The output of `tar`; the last item is an error if it did not end well.
fn packed(output: ProcessOutput) -> impl Stream<Item = Result<Bytes, Box<dyn Error + Send + Sync>>> + Send {
    async_stream::stream! {
        let (mut output, mut said) = (output, String::new());
        while let Some(event) = output.next().await {
            match event {
                Ok(ProcessEvent::Stdout(chunk)) => yield Ok(chunk),
                Ok(ProcessEvent::Stderr(text)) => {
                    let text = String::from_utf8_lossy(&text);
                    said.extend(text.chars().filter(|c| !c.is_control()).take(ERROR_MAX.saturating_sub(said.len())));
                }
                Ok(ProcessEvent::Pty(_)) => {}
                Ok(ProcessEvent::Dropped(bytes)) => {
                    yield Err(format!("{bytes} bytes of the archive were lost").into());
                    return;
                }
                Ok(ProcessEvent::Exit(status)) if status.shell_code() == 0 => return,
                Ok(ProcessEvent::Exit(status)) => {
                    yield Err(format!("tar ended with {}: {said}", status.shell_code()).into());
                    return;
                }
                Err(error) => {
                    yield Err(error.into());
                    return;
                }
            }
        }
        yield Err("the output of tar ended early".into());
    }
}

#[cfg(test)]
mod tests;

//! Trees as tar streams where no agent of Atoll's packs them: by the program `tar` of the sandbox.
//!
//! For a move between providers: the content of one folder, with names in a fixed order, and an unpack with the owners of the
//! archive. Both need a shell and GNU tar, and run as root where the provider has users. A user that is not root cannot give files to
//! others: all that it unpacks belongs to it. What the programs say is untrusted; a move compares the copy.
//!
//! For a copy by command: one file or folder under its own name, and an unpack below a folder. Both run as the user of the request, to
//! whom all that is unpacked belongs, and any `tar` will do.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Packs the entry `$2` of the folder `$1` under its name. A link that it is itself is followed; those below stay links.
const PACK_NAMED: &str = r#"folder=$1 name=$2 closed= links= form=
[ "$(id -u)" = 0 ] || closed=$(find -H "$folder/$name" \( -type f -o -type d \) ! -readable -print -quit 2>/dev/null)
[ -z "$closed" ] || { echo "$closed cannot be read" >&2; exit 1; }
if [ ! -d "$folder/$name" ]; then links=-h; elif [ -L "$folder/$name" ]; then name=$name/.; fi
case $(tar --version 2>/dev/null) in *GNU*) form=--format=pax ;; esac
exec tar -C "$folder" $form $links -cf - -- "$name""#;
/// Unpacks the archive `$1` below the folder `$2`. `-o`: new files belong to the user that unpacks.
const UNPACK_BELOW: &str = "exec tar -xopf \"$1\" -C \"$2\"";
/// Distinguishes archives that are unpacked at the same time.
static UNPACKED: AtomicU64 = AtomicU64::new(0);

type PackStream = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, Box<dyn Error + Send + Sync>>> + Send>>;

impl AdapterState {
    /// The content of one folder, or one entry under its name; with `is_sparse` without the holes of files. `ask` is the body of the
    /// request: `s` and a source or `x` and a pattern, each ended by a NUL. `user` reads an entry under its name.
    pub(crate) async fn pack(
        self: &Arc<Self>,
        layout: &str,
        is_sparse: bool,
        ask: &[u8],
        user: Option<String>,
    ) -> Result<PackStream, SessionRefusal> {
        let items: Vec<&[u8]> = ask.split(|byte| *byte == 0).filter(|item| !item.is_empty()).collect();
        let of = |sign: u8| items.iter().filter_map(move |item| item.strip_prefix(&[sign]));
        let mut sources = of(b's');
        let output = match (sources.next(), sources.next(), layout) {
            (Some(source), None, "contents") => {
                self.pack_contents(self.path(source)?, of(b'x'), is_sparse).await?
            }
            (Some(source), None, "named") if !is_sparse && of(b'x').next().is_none() => {
                self.pack_named(&self.path(source)?, user).await?
            }
            _ => return Err(self.agent_only("an archive of anything but one file or folder")),
        };
        let mut output = packed(output).boxed();
        match output.next().await {
            Some(Err(error)) => Err(failed(&*error)),
            first => Ok(futures::stream::iter(first).chain(output).boxed()),
        }
    }

    async fn pack_contents<'a>(
        &self,
        source: String,
        patterns: impl Iterator<Item = &'a [u8]>,
        is_sparse: bool,
    ) -> Result<ProcessOutput, SessionRefusal> {
        let mut args = vec![source];
        args.extend(is_sparse.then(|| "--sparse".to_owned()));
        for pattern in patterns {
            let pattern = std::str::from_utf8(pattern)
                .map_err(|_| SessionRefusal::invalid("this provider takes patterns in UTF-8 only"))?;
            args.extend([
                "--anchored".to_owned(),
                "--no-wildcards-match-slash".to_owned(),
                format!("--exclude=./{pattern}"),
            ]);
        }
        self.start_script(PACK, args, self.root_user()).await
    }

    async fn pack_named(&self, source: &str, user: Option<String>) -> Result<ProcessOutput, SessionRefusal> {
        let (folder, name) = source.rsplit_once('/').unwrap_or_default();
        if name.is_empty() {
            return Err(SessionRefusal::invalid("name a file or a folder below /"));
        }
        // Its refusal names what is missing.
        self.stat(source, user.as_deref()).await?;
        let folder = if folder.is_empty() { "/" } else { folder };
        self.start_script(PACK_NAMED, vec![folder.to_owned(), name.to_owned()], user).await
    }

    /// Unpacks an archive over a folder: as `user`, or with the owners that it names if root does it. Answers the number of its bytes.
    pub(crate) async fn unpack(
        &self,
        query: &HashMap<String, String>,
        user: Option<String>,
        content: UploadStream,
    ) -> Result<u64, SessionRefusal> {
        let dest = query.get("dest").filter(|dest| !dest.is_empty());
        let dest = self.path(dest.ok_or_else(|| SessionRefusal::invalid("dest is missing"))?.as_bytes())?;
        let is = |option: &str, value: &str| query.get(option).is_some_and(|found| found == value);
        if ["owner", "mode", "strip"].iter().any(|option| query.contains_key(*option)) || is("into", "any") {
            return Err(self.agent_only("an archive with other owners, modes or names"));
        }
        let (user, script) = match is("keep", "1") {
            true => (self.root_user(), UNPACK),
            false => (user, UNPACK_BELOW),
        };
        self.ensure_folder(&dest, user.as_deref()).await?;
        let number = UNPACKED.fetch_add(1, Ordering::Relaxed);
        let file = format!("{TEMPORARY}-{}-{number}.tar", self.target.sandbox);
        self.write(&file, user.as_deref(), Some(0o600), None, content).await?;
        let unpacked = async {
            let bytes = self.stat(&file, user.as_deref()).await?.size;
            let args = vec![file.clone(), dest.clone()];
            let mut output = packed(self.start_script(script, args, user.clone()).await?).boxed();
            while let Some(chunk) = output.next().await {
                chunk.map_err(|error| failed(&*error))?;
            }
            Ok(bytes)
        };
        let unpacked = unpacked.await;
        let removed = self.remove(&file, user.as_deref(), true).await;
        unpacked.and_then(|bytes| removed.map(|()| bytes))
    }

    async fn start_script(
        &self,
        script: &str,
        args: Vec<String>,
        user: Option<String>,
    ) -> Result<ProcessOutput, SessionRefusal> {
        let shell = ["sh", "-c", script, "sh"].map(str::to_owned);
        let what = ProcessSpec {
            argv: shell.into_iter().chain(args).collect(),
            cwd: Some("/".to_owned()),
            env: [("LC_ALL".to_owned(), "C".to_owned())].into(),
            user,
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

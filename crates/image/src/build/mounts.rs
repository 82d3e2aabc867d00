//! `RUN --mount=…`: secrets, scratch folders and files that exist for one run.

use super::path;
use super::step::{ScratchMount, SecretMount};

#[derive(Debug)]
pub(crate) enum RunMount {
    Secret(SecretMount),
    Scratch(ScratchMount),
    /// A cache is a scratch folder here: it is empty each time. The text is a note about that.
    Cache(ScratchMount, String),
    Bind {
        from: Option<String>,
        source: String,
        target: String,
    },
}

/// What is wrong, and a hint.
pub(crate) type MountError = (String, Option<String>);

#[derive(Debug, Default)]
struct Words {
    kind: Option<String>,
    pairs: Vec<(String, String)>,
}

impl Words {
    fn take(&mut self, names: &[&str]) -> Option<String> {
        let at = self.pairs.iter().rposition(|(name, _)| names.contains(&name.as_str()))?;
        let value = self.pairs[at].1.clone();
        self.pairs.retain(|(name, _)| !names.contains(&name.as_str()));
        Some(value)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, MountError> {
        let bad = |value: &str| (format!("{name}={value} of its mount is no number"), None);
        self.take(&[name]).map(|value| value.parse().map_err(|_| bad(&value))).transpose()
    }
}

impl RunMount {
    /// Parses the text after `--mount=`, with variables expanded.
    pub(crate) fn parse(text: &str, workdir: &str) -> Result<Self, MountError> {
        let mut words = Words::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            match name.to_ascii_lowercase().as_str() {
                "type" => words.kind = Some(value.to_ascii_lowercase()),
                name => words.pairs.push((name.to_owned(), value.trim_matches('"').to_owned())),
            }
        }
        let mount = match words.kind.as_deref().unwrap_or("bind") {
            "secret" => Self::Secret(secret(&mut words, workdir)?),
            "tmpfs" => Self::Scratch(scratch(&mut words, workdir)?),
            "cache" => {
                for unused in ["sharing", "from", "source", "src", "ro", "readonly", "mode", "uid", "gid"] {
                    words.take(&[unused]);
                }
                let id = words.take(&["id"]);
                let mount = scratch(&mut words, workdir)?;
                let name = id.unwrap_or_else(|| mount.target.clone());
                let note = format!("the cache mount {name} is an empty folder in every build");
                Self::Cache(mount, note)
            }
            "bind" => {
                for unused in ["rw", "readwrite", "ro", "readonly"] {
                    words.take(&[unused]);
                }
                Self::Bind {
                    from: words.take(&["from"]),
                    source: words.take(&["source", "src"]).unwrap_or_else(|| "/".to_owned()),
                    target: target(&mut words, workdir)?,
                }
            }
            "ssh" => {
                let hint =
                    "hand the key over as a secret: --mount=type=secret,id=key,target=/root/.ssh/id_ed25519";
                return Err(("mounts of type ssh are not supported".into(), Some(hint.into())));
            }
            other => {
                let hint = "there are secret, tmpfs, cache and bind";
                return Err((format!("{other:?} is not a mount type"), Some(hint.into())));
            }
        };
        match words.pairs.first() {
            Some((name, _)) => Err((format!("a mount of this type has no {name:?}"), None)),
            None => Ok(mount),
        }
    }
}

fn target(words: &mut Words, workdir: &str) -> Result<String, MountError> {
    let target = words.take(&["target", "dst", "destination"]);
    match target.filter(|target| !target.is_empty()) {
        Some(target) => match path::join(workdir, &target).as_str() {
            "/" => Err(("a mount cannot cover the root".into(), None)),
            target => Ok(target.to_owned()),
        },
        None => Err(("its mount has no target".into(), Some("say where with target=/path".into()))),
    }
}

fn scratch(words: &mut Words, workdir: &str) -> Result<ScratchMount, MountError> {
    let target = target(words, workdir)?;
    let size = words.number::<u64>("size")?;
    let size_mib = size.map(|bytes| u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX).max(1));
    Ok(ScratchMount { target, size_mib })
}

fn secret(words: &mut Words, workdir: &str) -> Result<SecretMount, MountError> {
    let target = words.take(&["target", "dst", "destination"]).filter(|target| !target.is_empty());
    let id = match (words.take(&["id", "source", "src"]), &target) {
        (Some(id), _) => id,
        (None, Some(target)) => path::base(target).to_owned(),
        (None, None) => return Err(("its secret has no id".into(), Some("name it with id=NAME".into()))),
    };
    // The id becomes a file name: an id with slashes would lead elsewhere.
    if id.is_empty() || id.contains('/') || id.starts_with('.') {
        return Err((format!("{id:?} is not a valid secret id"), None));
    }
    let env = words.take(&["env"]).filter(|env| !env.is_empty());
    let target = match (target, &env) {
        (Some(target), _) => Some(path::join(workdir, &target)),
        (None, Some(_)) => None,
        (None, None) => Some(format!("/run/secrets/{id}")),
    };
    let required = words.take(&["required"]).is_some_and(|value| value != "false" && value != "0");
    let mode = match words.take(&["mode"]) {
        Some(text) => u32::from_str_radix(&text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777)
            .ok_or_else(|| (format!("mode={text} of its secret is not octal"), None))?,
        None => 0o400,
    };
    let (uid, gid) = (words.number("uid")?.unwrap_or(0), words.number("gid")?.unwrap_or(0));
    Ok(SecretMount { id, target, env, mode, uid, gid, required })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_defaults() {
        let RunMount::Secret(secret) = RunMount::parse("type=secret,id=token", "/w").unwrap() else {
            panic!()
        };
        assert_eq!(
            (secret.target.as_deref(), secret.mode, secret.required),
            (Some("/run/secrets/token"), 0o400, false)
        );
        let text = "type=secret,id=t,env=TOKEN,required,uid=5,mode=0440";
        let RunMount::Secret(secret) = RunMount::parse(text, "/w").unwrap() else { panic!() };
        assert_eq!(
            (secret.target, secret.env.as_deref(), secret.uid, secret.required),
            (None, Some("TOKEN"), 5, true)
        );
        let RunMount::Cache(cache, note) =
            RunMount::parse("type=cache,target=.npm,sharing=locked", "/w").unwrap()
        else {
            panic!()
        };
        assert!(cache.target == "/w/.npm" && note.contains("/w/.npm"));
        let RunMount::Bind { from, source, target } =
            RunMount::parse("from=build,source=/out,target=/in", "/").unwrap()
        else {
            panic!()
        };
        assert_eq!((from.as_deref(), source.as_str(), target.as_str()), (Some("build"), "/out", "/in"));
        let RunMount::Scratch(scratch) = RunMount::parse("type=tmpfs,target=/t,size=3000000", "/").unwrap()
        else {
            panic!()
        };
        assert_eq!(scratch.size_mib, Some(3));
    }

    #[test]
    fn what_a_mount_cannot_be_is_refused() {
        for bad in [
            "type=ssh",
            "type=nfs,target=/x",
            "type=tmpfs",
            "type=tmpfs,target=/",
            "type=secret",
            "type=secret,id=../x",
            "type=secret,id=a,mode=9",
            "type=tmpfs,target=/x,size=big",
            "type=tmpfs,target=/x,color=red",
        ] {
            assert!(RunMount::parse(bad, "/").is_err(), "{bad}");
        }
    }

    #[test]
    fn any_mount_is_read_or_refused() {
        atoll_robustness::check("build_mount", |bytes| {
            let _ = RunMount::parse(&String::from_utf8_lossy(bytes), "/w");
        });
    }
}

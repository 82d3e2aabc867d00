//! `atoll cp`: files and directories in and out, and `-` for our own streams.
//!
//! A sandbox is hostile: names that come from inside are single plain parts of a path or they are refused, files are
//! written beside their place and moved over it, and nothing below the target is entered through a link. Links and
//! devices are left out, and the count of them is said. `atoll volume put` and `get` are the same with a volume.

mod inward;
mod outward;
mod place;

use serde_json::Value;

use super::{Context, suggest, text};
use crate::{
    cli::{sandbox::Cp, values::Place},
    failure::Failure,
    human::bytes,
};
pub(super) use place::{Home, Inside};

/// What was copied.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Copied {
    files: u64,
    bytes: u64,
    /// Links, devices and the like.
    skipped: u64,
}

pub(super) async fn cp(context: &Context, args: Cp) -> Result<(), Failure> {
    let client = context.client()?;
    let copied = match (&args.from, &args.to) {
        (Place::Inside { sandbox, path }, Place::Inside { sandbox: other, path: target }) => {
            let from = Inside::sandbox(&client, sandbox);
            let to = Inside::sandbox(&client, other);
            between(&from, path, &to, target).await
        }
        (Place::Inside { sandbox, path }, to) => {
            let from = Inside::sandbox(&client, sandbox);
            outward::copy(context, &from, path, to).await
        }
        (from, Place::Inside { sandbox, path }) => {
            let to = Inside::sandbox(&client, sandbox);
            inward::copy(context, from, &to, path).await
        }
        (Place::Here(_) | Place::Stream, Place::Here(_) | Place::Stream) => Err(Failure::usage(
            "neither side is in a sandbox",
            "write one side as NAME:PATH, such as `atoll cp file box:/tmp/file`",
        )),
    };
    context.out.status_done();
    match copied {
        Ok(copied) => {
            let to_stdout = if matches!(args.to, Place::Stream) { ToStdout::Yes } else { ToStdout::No };
            report(context, &copied, to_stdout)
        }
        Err(failure) => {
            let ident = [&args.from, &args.to].into_iter().find_map(|place| match place {
                Place::Inside { sandbox, .. } => Some(sandbox.as_str()),
                Place::Here(_) | Place::Stream => None,
            });
            Err(suggest(&client, ident.unwrap_or(""), failure).await)
        }
    }
}

/// Copies from here, or from stdin, to `path` inside.
pub(super) async fn put(context: &Context, from: &Place, to: &Inside<'_>, path: &str) -> Result<(), Failure> {
    let copied = inward::copy(context, from, to, path).await;
    context.out.status_done();
    report(context, &copied?, ToStdout::No)
}

/// Copies `path` inside to here, or to stdout.
pub(super) async fn get(context: &Context, from: &Inside<'_>, path: &str, to: &Place) -> Result<(), Failure> {
    let copied = outward::copy(context, from, path, to).await;
    context.out.status_done();
    let to_stdout = if matches!(to, Place::Stream) { ToStdout::Yes } else { ToStdout::No };
    report(context, &copied?, to_stdout)
}

/// Whether the copy itself took stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToStdout {
    Yes,
    No,
}

fn report(context: &Context, copied: &Copied, to_stdout: ToStdout) -> Result<(), Failure> {
    let out = context.out;
    if copied.skipped > 0 {
        out.say(&format!("atoll: {} links or special files were left out", copied.skipped));
    }
    // What goes to `-` has stdout to itself.
    if out.json && to_stdout == ToStdout::No {
        return out.json(copied);
    }
    out.tell(&format!("copied {} files, {}", copied.files, bytes(copied.bytes)));
    Ok(())
}

async fn between(from: &Inside<'_>, path: &str, to: &Inside<'_>, target: &str) -> Result<Copied, Failure> {
    let path = from.absolute(path).await?;
    let entry = from.stat(&path).await?;
    if text(&entry, "kind") != "file" {
        return Err(Failure::usage(
            format!("{path} is not a file"),
            "directories go from sandbox to sandbox by way of a folder here",
        ));
    }
    let target = to.target(target, last_part(&path)).await?;
    let answer = from.read(&path).await?;
    let size = answer.content_length().unwrap_or(0);
    to.write(&target, mode(&entry), reqwest::Body::wrap_stream(answer.bytes_stream())).await?;
    Ok(Copied { files: 1, bytes: size, skipped: 0 })
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or("root")
}

/// Permission bits of an entry, whichever way they are written.
fn mode(entry: &Value) -> Option<u32> {
    let bits = match &entry["mode"] {
        Value::Number(number) => u32::try_from(number.as_u64()?).ok()?,
        Value::String(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8).ok()?,
        _ => return None,
    };
    // Never the set-id bits: what comes out of a sandbox is not to run as somebody else.
    Some(bits & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn set_id_bits_do_not_travel() {
        assert_eq!(mode(&json!({"mode": 0o104_755})), Some(0o755));
        assert_eq!(mode(&json!({"mode": "4755"})), Some(0o755));
        assert_eq!(mode(&json!({})), None);
    }

    #[test]
    fn the_last_part_names_a_copy() {
        for (path, want) in [("/a/b", "b"), ("/a/b/", "b"), ("b", "b"), ("/", "root")] {
            assert_eq!(last_part(path), want);
        }
    }
}

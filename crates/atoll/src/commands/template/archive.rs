//! Exports templates to files and imports them: archives of Docker and OCI, layout folders, root file systems.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use atoll_client::templates::{ExportQuery, ImportQuery};
use atoll_model::TemplateRef;

use super::{nearest, ready};
use crate::{
    cli::template::{ExportForm, ImportForm},
    client::Client,
    commands::{CommandContext, archive_stream::Packed, build::context::pack_all, progress::Progress},
    failure::Failure,
    human::bytes,
};

pub(super) async fn export(
    context: &CommandContext,
    client: &Client,
    template: &str,
    output: &Path,
    format: ExportForm,
) -> Result<(), Failure> {
    let to_stdout = output == Path::new("-");
    if to_stdout && context.out.is_terminal() {
        return Err(Failure::usage(
            "an archive cannot be written to a terminal",
            "write it to a file: -o FILE",
        ));
    }
    let mut answer = match client.export_template(template, &ExportQuery { format: format.into() }).await {
        Ok(answer) => answer,
        Err(failure) => return Err(nearest(client, template, failure).await),
    };
    let mut progress = Progress::new(context.out, to_stdout);
    let transfer = progress.transfer("exporting", answer.content_length());
    let mut written = 0;
    if to_stdout {
        while let Some(piece) = next(&mut answer).await? {
            context.out.bytes(&piece)?;
        }
        return Ok(());
    }
    let fresh = Fresh::beside(output)?;
    let mut file = fs::File::create(&fresh.0).map_err(|e| unwritable(output, &e))?;
    while let Some(piece) = next(&mut answer).await? {
        file.write_all(&piece).map_err(|e| unwritable(output, &e))?;
        written += piece.len() as u64;
        transfer.add(piece.len() as u64);
    }
    transfer.done();
    fs::rename(&fresh.0, output).map_err(|e| unwritable(output, &e))?;
    if context.out.json {
        return context.out.json(&serde_json::json!({ "file": output, "bytes": written }));
    }
    context.out.line(&format!("{} ({})", output.display(), bytes(written)))
}

async fn next(answer: &mut reqwest::Response) -> Result<Option<bytes::Bytes>, Failure> {
    answer.chunk().await.map_err(|_| {
        Failure::new("no_server", "the server ended the export early")
            .hint("`atoll server logs` shows the cause")
    })
}

/// A partial archive must not appear complete.
struct Fresh(PathBuf);

impl Fresh {
    fn beside(path: &Path) -> Result<Self, Failure> {
        let name = path.file_name().ok_or_else(|| {
            Failure::usage(format!("{} is not a file", path.display()), "name one: -o FILE")
        })?;
        let mut fresh = std::ffi::OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".part-{}", std::process::id()));
        Ok(Self(path.with_file_name(fresh)))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn unwritable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{} cannot be written: {cause}", path.display()))
}

pub(super) async fn import(
    context: &CommandContext,
    client: &Client,
    from: &Path,
    name: &TemplateRef,
    format: Option<ImportForm>,
) -> Result<(), Failure> {
    let mut progress = Progress::new(context.out, false);
    let (packed, format) = open(from, format, &mut progress)?;
    let fault = packed.fault();
    let query = ImportQuery { name: name.to_string(), format: format.map(Into::into).unwrap_or_default() };
    let answer = client.import_template(&query, packed.body).await;
    progress.done();
    let imported = answer.map_err(|failure| fault.or(failure))?;
    ready(context, &imported, &name.to_string())
}

/// The stream to send, and its format.
fn open(
    from: &Path,
    format: Option<ImportForm>,
    progress: &mut Progress,
) -> Result<(Packed, Option<ImportForm>), Failure> {
    if from == Path::new("-") {
        let transfer = progress.transfer("importing", None);
        return Ok((
            Packed::begin(transfer, |into| copy(&mut std::io::stdin().lock(), into, "stdin")),
            format,
        ));
    }
    let unreadable =
        |e: std::io::Error| Failure::new("io", format!("{} cannot be read: {e}", from.display()));
    let about = fs::metadata(from).map_err(unreadable)?;
    if about.is_dir() {
        if format.is_some_and(|format| format != ImportForm::Oci) || !from.join("oci-layout").is_file() {
            return Err(Failure::usage(
                format!("{} is a folder without an OCI layout", from.display()),
                "pack a root file system first: tar c -C DIR . | atoll template import - NAME",
            ));
        }
        // A packed layout folder is an OCI archive.
        let (packed, _) = pack_all(from, progress.transfer("importing", None));
        return Ok((packed, Some(ImportForm::Oci)));
    }
    let mut file = fs::File::open(from).map_err(unreadable)?;
    let transfer = progress.transfer("importing", Some(about.len()));
    let shown = from.display().to_string();
    Ok((Packed::begin(transfer, move |into| copy(&mut file, into, &shown)), format))
}

fn copy(from: &mut dyn Read, into: &mut dyn Write, shown: &str) -> Result<(), Failure> {
    std::io::copy(from, into)
        .map(|_| ())
        .map_err(|e| Failure::new("io", format!("{shown} could not be sent: {e}")))
}

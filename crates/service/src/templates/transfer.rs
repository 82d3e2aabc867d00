//! Transfers of templates: import, export, push.

use std::io::Write;
use std::sync::Arc;

use atoll_image::images::{ExportAs, ImportAs};
use atoll_model::{MadeFrom, Principal, Scope};
use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::io::{StreamReader, SyncIoBridge};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Bytestream, ExportFormat, Fetch, ImportFormat, ImportTemplate, Progress, Progressed, Publish, PushImage,
    TemplateRecord, Templates,
};
use crate::ServiceError;

/// LIMIT: data in transit between a blocking thread and a slow reader: 64 pieces of 64 KiB.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 64 << 10;

impl Templates {
    /// Brings a template to a registry. Dropping the future cancels it.
    pub async fn push(
        &self,
        who: &Principal,
        template: &str,
        ask: PushImage,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        let found = self.resolve(who, template).await?;
        let (version, _hold) = self.version_of(&found.record).await?;
        let ask = Fetch {
            image: ask.image,
            auth: ask.auth,
            operator: who.scope == Scope::Admin,
            platform: None,
            known: Arc::new(|_| false),
            progress,
        };
        let image = ask.image.to_string();
        let inner = &self.inner;
        let manifest = inner.cache.sources.push(Arc::clone(&inner.images), version, ask).await?;
        tracing::info!(tenant = %who.tenant, key = %who.key, template, image, "a template was pushed");
        Ok(TemplateRecord { manifest: Some(manifest), ..found.record })
    }

    /// Makes a template from a file. Dropping the future cancels it; nothing is left then.
    pub async fn import(
        &self,
        who: &Principal,
        ask: ImportTemplate,
        file: impl AsyncRead + Send + Unpin + 'static,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        if ask.name.digest.is_some() {
            return Err(ServiceError::field("name", "a file has no digest yet"));
        }
        // This is checked before the file is sent.
        self.refuse_built_in(&ask.name, &[]).await?;
        let what = match ask.format {
            ImportFormat::Auto => ImportAs::Auto,
            ImportFormat::DockerArchive => ImportAs::DockerArchive,
            ImportFormat::OciArchive => ImportAs::OciArchive,
            ImportFormat::Rootfs => ImportAs::Rootfs,
        };
        let (images, stop) = (Arc::clone(&self.inner.images), CancellationToken::new());
        let _working = images.begin();
        let (_cancelled, own) = (stop.clone().drop_guard(), Arc::clone(&images));
        let runtime = tokio::runtime::Handle::current();
        progress(Progressed::Step("reading and unpacking".to_owned()));
        let imported = self
            .inner
            .run_blocking(move || {
                let file = SyncIoBridge::new_with_handle(file, runtime);
                let file = std::io::BufReader::with_capacity(PIECE_BYTES, file);
                Ok(own.import(file, what, &stop)?)
            })
            .await?;
        let _held = self.hold_digest(&imported.version)?;
        progress(Progressed::Step("naming it".to_owned()));
        let notes = match imported.names.as_slice() {
            [] => Vec::new(),
            names => vec![format!("its name in the file is {}", names.join(", "))],
        };
        self.publish(Publish {
            tenant: &who.tenant,
            template: &ask.name,
            tags: &[],
            version: &imported.version,
            made_from: MadeFrom::Import,
            manifest: None,
            warm: None,
            notes,
        })
        .await
    }

    /// A template as one file; the first number is about how long it is, where that is known. A failure half way ends the
    /// stream with an error.
    pub async fn export(
        &self,
        who: &Principal,
        template: &str,
        format: ExportFormat,
    ) -> Result<(Option<u64>, Bytestream), ServiceError> {
        let found = self.resolve(who, template).await?;
        let (version, hold) = self.version_of(&found.record).await?;
        let what = match format {
            ExportFormat::OciArchive => ExportAs::OciArchive,
            ExportFormat::DockerArchive => ExportAs::DockerArchive,
        };
        let tag = found.record.tag.as_deref().unwrap_or(atoll_model::DEFAULT_TAG);
        let names = vec![format!("{}:{tag}", found.record.name)];
        let (pieces, read) = mpsc::channel::<std::io::Result<Bytes>>(PIECES);
        let (images, stop) = (Arc::clone(&self.inner.images), CancellationToken::new());
        let cancelled = stop.clone().drop_guard();
        self.inner.spawn(async move {
            let work = tokio::task::spawn_blocking(move || {
                let mut to = ChunkWriter { to: pieces, piece: Vec::with_capacity(PIECE_BYTES) };
                let ended = images.export(&version, what, &names, &mut to, &stop);
                let ended = ended.map_err(std::io::Error::other).and_then(|()| to.flush());
                if let Err(error) = ended {
                    tracing::warn!(version, %error, "an export failed");
                    let _ = to.to.blocking_send(Err(error));
                }
            });
            let _ = work.await;
            drop(hold);
        });
        let stream =
            futures::stream::unfold((read, cancelled), |(mut read, cancelled): (_, DropGuard)| async {
                read.recv().await.map(|piece| (piece, (read, cancelled)))
            });
        // The packed size is smaller than that of the files, and not known in advance.
        Ok((None, Box::pin(StreamReader::new(Box::pin(stream)))))
    }
}

/// Sends written data in pieces; fails when the reader is dropped.
struct ChunkWriter {
    to: mpsc::Sender<std::io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let fits = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..fits]);
        if self.piece.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(fits)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.to
            .blocking_send(Ok(piece.into()))
            .map_err(|_| std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the reader is gone"))
    }
}

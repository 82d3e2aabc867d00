//! Pulls an image and makes a version of it.
//!
//! Dropping the future cancels the pull: the unpacking threads remove their results, and downloads stay as `.part`
//! files that the next pull continues. Layers that exist already are not requested.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::TemplateRef;
use bytes::Bytes;
use futures::StreamExt;
use oci_spec::image::ImageManifest;
use reqwest::Method;
use reqwest::header::{ACCEPT as ACCEPT_HEADER, CONTENT_TYPE};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::blob::{self, BlobFeed, BlobVerdict, Follower, PartialBlob};
use super::layer_proof::{self, KnownLayers};
use super::manifest::{ACCEPT, LayerDescriptor, RegistryManifest, TEXT_MAX, config_of, digest_of, layers_of};
use super::session::{RegistryRequest, RegistrySession, read_bounded};
use super::unzip::{Unzip, Zip, ahead};
use super::{Auth, LayerState, Platform, Progress, Progressed, Registry, RegistryError};
use crate::images::{Images, NewVersion, start_settings};
use crate::layers::{Digest, LayerError};

/// LIMIT: downloads of one pull at a time, as in Docker and Podman.
const DOWNLOADS: usize = 4;
/// LIMIT: layers of one pull under way: being downloaded, or downloaded and still being unpacked.
const UNDER_WAY: usize = 8;
/// LIMIT: nesting of indexes.
const INDEXES: usize = 2;
/// LIMIT: bytes of a layer that cannot be guessed.
const UNGUESSED: u64 = 32;
/// LIMIT: chunks between the network and the disk.
const CHUNKS: usize = 16;
/// How often a layer reports its progress.
const TELL: Duration = Duration::from_millis(100);

/// The result of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The new version, stored in [`Images`].
    pub version: String,
    /// The current target of the tag: the digest of an index or of a manifest.
    pub manifest_digest: String,
    /// The platform of the image.
    pub platform: String,
}

impl Registry {
    /// Pulls an image and makes a version of it. The caller has had all layers in the store before.
    pub async fn pull(
        &self,
        images: &Arc<Images>,
        image: &TemplateRef,
        auth: Auth,
        platform: Option<&str>,
        progress: Progress,
    ) -> Result<Pulled, RegistryError> {
        self.pull_for(Arc::new(|_| true), images, image, auth, platform, progress).await
    }

    /// Pulls an image for a caller that has had only some of the layers in the store. The registry has to send the
    /// others, to prove that it has them.
    pub async fn pull_for(
        &self,
        known: KnownLayers,
        images: &Arc<Images>,
        image: &TemplateRef,
        auth: Auth,
        platform: Option<&str>,
        progress: Progress,
    ) -> Result<Pulled, RegistryError> {
        let platform = platform.map_or_else(|| Ok(Platform::of_host()), str::parse)?;
        let limit = self.settings.limit;
        let too_slow = || RegistryError::TooSlow { image: image.to_string(), limit_s: limit.as_secs() };
        let work = async {
            let _slot = self.slot(&progress).await;
            let session = RegistrySession::open(self, image, auth, "pull").await?;
            let cancel = CancellationToken::new();
            // Dropped with the future: the unpacking threads then stop and clean up.
            let _guard = cancel.clone().drop_guard();
            let name = image.to_string();
            let pull = Pull {
                session,
                known,
                images,
                name,
                platform,
                progress,
                cancel,
                downloads: Semaphore::new(DOWNLOADS),
            };
            pull.run().await
        };
        tokio::time::timeout(limit, work).await.map_err(|_| too_slow())?
    }
}

/// One pull.
struct Pull<'a> {
    session: RegistrySession<'a>,
    known: KnownLayers,
    images: &'a Arc<Images>,
    name: String,
    platform: Platform,
    progress: Progress,
    cancel: CancellationToken,
    downloads: Semaphore,
}

impl Pull<'_> {
    async fn run(self) -> Result<Pulled, RegistryError> {
        // Entries that are found or added here are not collected until the version names them.
        let working = self.images.begin();
        self.step(format!("asking {} for {}", self.session.place.host, self.name));
        let (manifest_digest, manifest) = self.manifest().await?;
        let (config_digest, size) = config_of(&self.name, &manifest)?;
        let config = self.config(config_digest, size).await?;
        let (config, wanted) = layers_of(&self.name, &manifest, &config, &self.platform)?;
        self.layers(&wanted).await?;
        let images = Arc::clone(self.images);
        let new = NewVersion {
            base: None,
            layers: wanted.iter().map(|wanted| wanted.diff_id).collect(),
            settings: start_settings(&config),
            config,
        };
        let version = blocking(move || images.put_version(new)).await?;
        drop(working);
        self.step(format!("{} is here as {version}", self.name));
        Ok(Pulled {
            version,
            manifest_digest: manifest_digest.to_string(),
            platform: self.platform.to_string(),
        })
    }

    fn step(&self, text: String) {
        (self.progress)(Progressed::Step(text));
    }

    /// The manifest of the image for this platform, and the digest of the reference's target.
    async fn manifest(&self) -> Result<(Digest, ImageManifest), RegistryError> {
        let place = &self.session.place;
        let asked = place
            .digest
            .as_deref()
            .map(|digest| digest.parse::<Digest>().expect("references hold whole digests"));
        let mut top = None;
        let (mut reference, mut expected) = (place.reference.clone(), asked);
        for _ in 0..=INDEXES {
            let (digest, manifest) = self.fetch_manifest(&reference, expected).await?;
            let top = *top.get_or_insert(digest);
            match manifest {
                RegistryManifest::Image(manifest) => return Ok((top, *manifest)),
                RegistryManifest::Index(index) => {
                    let next = digest_of(&self.name, self.platform.choose(&self.name, &index)?)?;
                    (reference, expected) = (next.to_string(), Some(next));
                }
            }
        }
        let what = "the index".to_owned();
        Err(RegistryError::Unsupported { image: self.name.clone(), what, why: "it contains only indexes" })
    }

    async fn fetch_manifest(
        &self,
        reference: &str,
        expected: Option<Digest>,
    ) -> Result<(Digest, RegistryManifest), RegistryError> {
        let what = format!("the manifest {reference}");
        let mut ask = RegistryRequest::new(
            Method::GET,
            self.session.url(&format!("manifests/{reference}")),
            what.clone(),
        );
        ask.headers.push((ACCEPT_HEADER.as_str(), ACCEPT.to_owned()));
        let response = self.session.send(&ask).await?;
        if response.status().as_u16() != 200 {
            return Err(RegistryError::NotFound {
                host: self.session.place.host.clone(),
                image: self.name.clone(),
            });
        }
        let said =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let bytes = read_bounded(response, TEXT_MAX, &what, &ask.url).await?;
        let digest = Digest::of(&bytes);
        if let Some(expected) = expected
            && digest != expected
        {
            return Err(RegistryError::damaged(what, format!("its digest is {digest}")));
        }
        Ok((digest, RegistryManifest::read(&self.name, &bytes, said.as_deref())?))
    }

    async fn config(&self, digest: Digest, size: usize) -> Result<Bytes, RegistryError> {
        let what = format!("the config {digest}");
        let ask =
            RegistryRequest::new(Method::GET, self.session.url(&format!("blobs/{digest}")), what.clone());
        let response = self.session.send(&ask).await?;
        if !response.status().is_success() {
            return Err(RegistryError::damaged(what, "the registry does not have it"));
        }
        let bytes = read_bounded(response, size, &what, &ask.url).await?;
        match Digest::of(&bytes) {
            found if found == digest => Ok(bytes),
            found => Err(RegistryError::damaged(what, format!("its digest is {found}"))),
        }
    }

    /// Fetches all layers. The first failure stops the others, and all of them have ended when this returns.
    async fn layers(&self, wanted: &[LayerDescriptor]) -> Result<(), RegistryError> {
        let mut seen = HashSet::new();
        let fresh: Vec<LayerDescriptor> =
            wanted.iter().filter(|wanted| seen.insert(wanted.diff_id)).cloned().collect();
        let missing: u64 = fresh
            .iter()
            .filter(|wanted| !self.images.has_layer(&wanted.diff_id))
            .fold(0, |sum, wanted| wanted.size.saturating_add(sum));
        self.images.room_for(missing)?;
        for wanted in &fresh {
            self.tell(wanted, 0, LayerState::Waiting);
        }
        let mut under_way =
            futures::stream::iter(fresh).map(|wanted| self.layer(wanted)).buffer_unordered(UNDER_WAY);
        let mut failed = None;
        while let Some(done) = under_way.next().await {
            if let Err(error) = done {
                self.cancel.cancel();
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn tell(&self, wanted: &LayerDescriptor, done: u64, state: LayerState) {
        let (digest, total) = (wanted.digest.to_string(), wanted.size);
        (self.progress)(Progressed::Layer { digest, done, total, state });
    }

    /// Fetches one layer.
    async fn layer(&self, wanted: LayerDescriptor) -> Result<(), RegistryError> {
        let mut is_known = (self.known)(&wanted.diff_id);
        // A few iterations at most: a damaged blob is removed and then downloaded, and a blob that another pull has
        // added meanwhile has to be proven.
        while !self.try_layer(&wanted, &mut is_known).await? {}
        Ok(())
    }

    /// Makes the registry send a layer, or its blob, that exists already.
    async fn prove(&self, wanted: &LayerDescriptor) -> Result<ProvenBlobs, RegistryError> {
        let _permit = self.downloads.acquire().await.expect("the semaphore is never closed");
        let (send, receive) = mpsc::channel(CHUNKS);
        let tar_bytes = self.images.layer(&wanted.diff_id).ok().map(|layer| layer.tar_bytes);
        let reader = tokio::task::spawn_blocking(move || layer_proof::read(receive, tar_bytes));
        let told = ProgressThrottle::new();
        let moved = |done| {
            if told.is_due() {
                self.tell(wanted, done, LayerState::Downloading);
            }
        };
        tokio::select! {
            fetched = blob::download(&self.session, wanted, 0, &send, moved) => fetched?,
            () = self.cancel.cancelled() => return Err(LayerError::Cancelled.into()),
        }
        drop(send);
        let what = || format!("the layer {}", wanted.digest);
        let seen = reader.await.expect("the reader does not panic");
        let seen = seen
            .map_err(|cause| RegistryError::damaged(what(), format!("it cannot be decompressed: {cause}")))?;
        if seen.blob != wanted.digest {
            return Err(RegistryError::damaged(what(), format!("its digest is {}", seen.blob)));
        }
        match seen.tar {
            None => Ok(ProvenBlobs::Blob),
            Some(found) if found == wanted.diff_id.0 => Ok(ProvenBlobs::Layer),
            Some(found) => {
                let expected = wanted.diff_id.0;
                Err(name_blob(wanted, LayerError::WrongDigest { expected, found }))
            }
        }
    }

    /// Fetches one layer, or returns `false` if a damaged blob was removed.
    async fn try_layer(&self, wanted: &LayerDescriptor, is_known: &mut bool) -> Result<bool, RegistryError> {
        if self.cancel.is_cancelled() {
            return Err(LayerError::Cancelled.into());
        }
        let is_here =
            || self.images.has_layer(&wanted.diff_id) || self.images.blob_path(&wanted.digest).is_file();
        if !*is_known && is_here() {
            match self.prove(wanted).await? {
                ProvenBlobs::Layer => *is_known = true,
                // Its content is checked when it is unpacked, even if the same layer has been unpacked meanwhile.
                ProvenBlobs::Blob => return self.take_blob(wanted).await,
            }
        }
        if *is_known && self.images.has_layer(&wanted.diff_id) {
            self.tell(wanted, wanted.size, LayerState::Exists);
            return Ok(true);
        }
        let permit = self.downloads.acquire().await.expect("the semaphore is never closed");
        let taken = tokio::select! {
            taken = PartialBlob::take(self.images, wanted) => taken?,
            () = self.cancel.cancelled() => return Err(LayerError::Cancelled.into()),
        };
        let Some(mut part) = taken else {
            drop(permit);
            return if *is_known { self.take_blob(wanted).await } else { Ok(false) };
        };
        // Bytes of another download prove nothing about this registry; it has to send at least as many bytes as cannot
        // be guessed.
        if !*is_known && wanted.size - part.had < UNGUESSED {
            part.restart()?;
        }
        let resumed = part.had > 0;
        let permit = Mutex::new(Some(permit));
        let release = || drop(permit.lock().unwrap_or_else(PoisonError::into_inner).take());
        let first = self.fetch(wanted, &part, release).await;
        // The bytes of an earlier download may be wrong, for example after a power failure.
        let fetched = match first {
            Err(Failed { verdict: Some(BlobVerdict::Wrong { .. }), .. }) if resumed => {
                part.restart()?;
                self.fetch(wanted, &part, || ()).await
            }
            first => first,
        };
        match fetched {
            Ok(zip) => {
                part.publish(self.images, &wanted.digest)?;
                self.note_blob(wanted, zip).await?;
                self.tell(wanted, wanted.size, LayerState::Done);
                Ok(true)
            }
            Err(failed) => {
                if failed.is_for_good() {
                    part.discard();
                }
                Err(failed.error)
            }
        }
    }

    /// Downloads into the partial file, and unpacks the bytes at the same time.
    async fn fetch(
        &self,
        wanted: &LayerDescriptor,
        part: &PartialBlob,
        downloaded: impl FnOnce(),
    ) -> Result<Zip, Failed> {
        let flow = Arc::new(BlobFeed::default());
        let (send, receive) = mpsc::channel(CHUNKS);
        let stop = self.cancel.child_token();
        let (file, behind, had) = (part.file()?, part.file()?, part.had);
        let follower = Follower { file: behind, flow: Arc::clone(&flow), at: 0, size: wanted.size };
        let writer = {
            let (wanted, flow) = (wanted.clone(), Arc::clone(&flow));
            let space = self.images.space().map_err(RegistryError::from)?;
            tokio::task::spawn_blocking(move || blob::write(file, had, &wanted, receive, &flow, space))
        };
        let unpacker = self.unpack(wanted, follower, stop.clone());
        let fetched = {
            let told = ProgressThrottle::new();
            let moved = |done| {
                if told.is_due() {
                    self.tell(wanted, done, LayerState::Downloading);
                }
            };
            tokio::select! {
                fetched = blob::download(&self.session, wanted, had, &send, moved) => fetched,
                () = stop.cancelled() => Err(LayerError::Cancelled.into()),
            }
        };
        // The writer ends with the sender, and the unpacker with the writer.
        drop(send);
        let written = writer.await.expect("the writer does not panic");
        downloaded();
        if fetched.is_ok() {
            self.tell(wanted, wanted.size, LayerState::Unpacking);
        }
        let unpacked = unpacker.await.expect("the unpacker does not panic");
        judge(wanted, part, fetched, written, unpacked)
    }

    /// Unpacks a blob on separate threads while it arrives.
    fn unpack(
        &self,
        wanted: &LayerDescriptor,
        from: Follower,
        stop: CancellationToken,
    ) -> tokio::task::JoinHandle<Result<Zip, LayerError>> {
        let (images, diff_id) = (Arc::clone(self.images), wanted.diff_id);
        tokio::task::spawn_blocking(move || {
            let unpacked = Unzip::new(from).map_err(LayerError::Source).and_then(|from| {
                let zip = from.zip();
                ahead(from, |tar| images.add_layer(Some(&diff_id), tar, &stop)).map(|_| zip)
            });
            // Bytes that cannot be unpacked may be wrong bytes, which only the digest shows: then the whole blob must
            // arrive first.
            if let Err(LayerError::NoRoom { .. } | LayerError::TooBig { .. } | LayerError::Io { .. }) =
                &unpacked
            {
                stop.cancel();
            }
            unpacked
        })
    }

    /// Unpacks an existing blob. A damaged one is removed, and the result is `false`.
    async fn take_blob(&self, wanted: &LayerDescriptor) -> Result<bool, RegistryError> {
        let path = self.images.blob_path(&wanted.digest);
        self.tell(wanted, wanted.size, LayerState::Unpacking);
        let file = std::fs::File::open(&path).map_err(RegistryError::io("open", &path))?;
        let follower = Follower { file, flow: BlobFeed::whole(wanted.size), at: 0, size: wanted.size };
        let unpacked = self.unpack(wanted, follower, self.cancel.child_token()).await;
        match unpacked.expect("the unpacker does not panic") {
            Ok(zip) => {
                self.note_blob(wanted, zip).await?;
                self.tell(wanted, wanted.size, LayerState::Done);
                Ok(true)
            }
            Err(error @ (LayerError::NoRoom { .. } | LayerError::Cancelled)) => Err(error.into()),
            Err(error) => {
                let (checked, wanted_too) = (path.clone(), wanted.clone());
                if blocking(move || blob::is_right(&checked, &wanted_too)).await.is_ok_and(|right| right) {
                    return Err(name_blob(wanted, error));
                }
                std::fs::remove_file(&path).map_err(RegistryError::io("remove", &path))?;
                Ok(false)
            }
        }
    }

    async fn note_blob(&self, wanted: &LayerDescriptor, zip: Zip) -> Result<(), RegistryError> {
        let (images, LayerDescriptor { digest, diff_id, .. }) = (Arc::clone(self.images), wanted.clone());
        Ok(blocking(move || images.set_blob(&diff_id, &digest, zip.media_type())).await?)
    }
}

/// What a registry has proven to have.
enum ProvenBlobs {
    Layer,
    Blob,
}

/// Why a layer could not be fetched, and the writer's result.
struct Failed {
    error: RegistryError,
    verdict: Option<BlobVerdict>,
}

impl Failed {
    /// Whether another attempt with the same bytes would fail again, so that they are not worth keeping.
    fn is_for_good(&self) -> bool {
        match &self.error {
            RegistryError::Damaged { .. } | RegistryError::Unsupported { .. } => true,
            RegistryError::Layer(cause) => matches!(
                cause,
                LayerError::Refused { .. }
                    | LayerError::BadArchive { .. }
                    | LayerError::TooBig { .. }
                    | LayerError::WrongDigest { .. }
            ),
            _ => false,
        }
    }
}

impl From<RegistryError> for Failed {
    fn from(error: RegistryError) -> Self {
        Self { error, verdict: None }
    }
}

/// Decides which of the three results is the cause. Wrong bytes explain every error of unpacking.
fn judge(
    wanted: &LayerDescriptor,
    part: &PartialBlob,
    fetched: Result<(), RegistryError>,
    written: std::io::Result<BlobVerdict>,
    unpacked: Result<Zip, LayerError>,
) -> Result<Zip, Failed> {
    let verdict =
        written.map_err(|cause| RegistryError::Layer(LayerError::io("write", part.path())(cause)))?;
    match (verdict, fetched, unpacked) {
        (BlobVerdict::Proven, _, Ok(zip)) => Ok(zip),
        (BlobVerdict::Proven, _, Err(error)) => Err(name_blob(wanted, error).into()),
        (BlobVerdict::Wrong { found }, _, _) => {
            let error = RegistryError::damaged(
                format!("the layer {}", wanted.digest),
                format!("its digest is {found}"),
            );
            Err(Failed { error, verdict: Some(BlobVerdict::Wrong { found }) })
        }
        // Unpacking stopped the download.
        (
            BlobVerdict::Cut,
            Err(RegistryError::Layer(LayerError::Cancelled)),
            Err(error @ (LayerError::NoRoom { .. } | LayerError::TooBig { .. } | LayerError::Io { .. })),
        ) => Err(RegistryError::Layer(error).into()),
        (BlobVerdict::Cut, Err(error), _) => Err(error.into()),
        (BlobVerdict::Cut, Ok(()), _) => Err(RegistryError::Layer(LayerError::Cancelled).into()),
    }
}

/// Errors in the bytes of a verified blob are errors of the image, and name the blob.
fn name_blob(wanted: &LayerDescriptor, error: LayerError) -> RegistryError {
    let what = || format!("the layer {}", wanted.digest);
    match error {
        LayerError::WrongDigest { expected, found } => RegistryError::damaged(
            what(),
            format!("decompressed it has the digest {found} instead of {expected}"),
        ),
        LayerError::Source(cause) => {
            RegistryError::damaged(what(), format!("it cannot be decompressed: {cause}"))
        }
        other => other.into(),
    }
}

/// Limits how often progress is reported.
struct ProgressThrottle {
    began: Instant,
    last_ms: AtomicU64,
}

impl ProgressThrottle {
    fn new() -> Self {
        Self { began: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn is_due(&self) -> bool {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let every = u64::try_from(TELL.as_millis()).unwrap_or(u64::MAX);
        let due = now >= self.last_ms.load(Ordering::Relaxed) + every;
        if due {
            self.last_ms.store(now, Ordering::Relaxed);
        }
        due
    }
}

/// Runs blocking work on a separate thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("work on a thread of its own does not panic")
}

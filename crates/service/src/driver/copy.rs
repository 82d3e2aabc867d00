//! The copy of a stopped sandbox to another provider, and its comparison with the source.
//!
//! ```text
//! folders:  boot the source without its command, make an empty sandbox at the target
//!           source pack ─► digest ─► target unpack       target pack ─► digest ─► compare
//!           halt both
//! layer:    source pack ─► digest ─► target unpack       target pack ─► digest ─► compare
//! ```
//! No program of the sandbox runs meanwhile, so the source does not change. Everything is streamed.

mod ends;
mod sent;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_agentapi::{Pack, PackHoles, PackLayout, Unpack, UnpackInto, UnpackOwner, UnpackRules};
use atoll_model::{
    Code, InstanceId, Isolation, Lease, LeftBehind, LeftBehindKind, MoveCarried, MoveProgress, MoveReport,
    MoveStep,
};
use atoll_provider::{Packed, Target};
use futures::FutureExt;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::time::Instant;

use super::effects::{EffectJob, gone_is_fine, spec};
use super::{DriverMessage, Mail};
use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};
use crate::moving::folders::{self, CarriedFolder, CarriedFolders, Places};
use crate::moving::manifest::{Comparison, FolderDigest, Manifest};
use crate::moving::outside::outside;
use crate::moving::owners::{OwnerMapping, TargetOwners};
use crate::moving::{MoveOutcome, MovePlan};
use crate::random::entropy;
use ends::{CopyEnd, empty, exists, greeted, home_of, owner_of, settle_top};
use sent::{SentFolder, TargetRoom};

/// LIMIT: an attempt to end an instance, or to remove a copy, after a failure; the removal is repeated later.
const CLEAN_UP: Duration = Duration::from_secs(30);
const ROOT: &str = "root";
/// How often the progress is told.
const TELL_EVERY: Duration = Duration::from_millis(300);

impl EffectJob {
    /// Copies the sandbox. On an error the source is as it was and stopped; the copy is removed as far as possible.
    pub(super) async fn copy_to_other(&self) -> Result<MoveOutcome, ServiceError> {
        let Some(plan) = self.plan.clone() else {
            return Err(ServiceError::new(Code::Internal, "no plan of the move is known"));
        };
        let Ok(_turn) = self.inner.moves.acquire().await else {
            return Err(ServiceError::new(Code::Internal, "the server is shutting down"));
        };
        let (source, target) = (InstanceId::from_entropy(entropy()?), InstanceId::from_entropy(entropy()?));
        let copied = tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(ended_early()),
            () = self.inner.closing.cancelled() => Err(ended_early()),
            // A panic of a provider must not leave its instances.
            copied = AssertUnwindSafe(self.copy(&plan, &source, &target)).catch_unwind() => {
                copied.unwrap_or_else(|_| Err(panicked()))
            }
        };
        if copied.is_err() {
            self.clean_up(&plan, source).await;
        }
        copied
    }

    /// Ends what an interrupted copy may have left at both ends.
    pub(super) async fn abort_copy(&self) {
        let id = &self.lease.id;
        // After the commit the copy is the sandbox.
        let stored = self.inner.store.lease(id).await;
        if !matches!(stored, Ok(Some(lease)) if lease.is_being_copied()) {
            return;
        }
        let files = Target { sandbox: id.clone(), instance: None };
        let _ = tokio::time::timeout(CLEAN_UP, self.provider.halt(&files)).await;
        let other = self.lease.moving.as_ref().and_then(|moving| self.inner.providers.open(&moving.to));
        if let Some(other) = other {
            let _ = tokio::time::timeout(CLEAN_UP, other.destroy(&files)).await;
        }
    }

    async fn clean_up(&self, plan: &MovePlan, source: InstanceId) {
        let id = &self.lease.id;
        let target = Target { sandbox: id.clone(), instance: Some(source) };
        let halted = tokio::time::timeout(CLEAN_UP, self.provider.halt(&target)).await;
        if !halted.is_ok_and(|ended| gone_is_fine(ended).is_ok()) {
            tracing::warn!(sandbox = %id, "the instance of an interrupted move could not be ended yet");
        }
        let files = Target { sandbox: id.clone(), instance: None };
        let removed = tokio::time::timeout(CLEAN_UP, plan.target.destroy(&files)).await;
        if !removed.is_ok_and(|ended| gone_is_fine(ended).is_ok()) {
            tracing::warn!(sandbox = %id, provider = plan.target.name(), "an incomplete copy could not be removed yet");
        }
    }

    async fn copy(
        &self,
        plan: &MovePlan,
        source: &InstanceId,
        target: &InstanceId,
    ) -> Result<MoveOutcome, ServiceError> {
        let files = Target { sandbox: self.lease.id.clone(), instance: None };
        self.tell(MoveStep::Preparing, 0, 0);
        self.inner.failpoint.reach("move.begun").await;
        // An earlier attempt may have left something that could not be removed. The name of the sandbox is free after a destroy, also
        // where files are removed later.
        gone_is_fine(plan.target.destroy(&files).await)?;
        let outcome = match plan.carried {
            MoveCarried::Layer => self.copy_layer(plan, &files).await?,
            MoveCarried::Folders => self.copy_folders(plan, source, target).await?,
        };
        // The record of the move survives a loss of power, so the copy has to.
        let _ = tokio::task::spawn_blocking(rustix::fs::sync).await;
        Ok(outcome)
    }

    async fn copy_layer(&self, plan: &MovePlan, files: &Target) -> Result<MoveOutcome, ServiceError> {
        self.tell(MoveStep::Copying, 0, 0);
        let packed = self.provider.pack(files).await?;
        let read = Arc::new(Mutex::new((Sha256::new(), 0)));
        let stream = DigestReader { inner: packed, read: Arc::clone(&read) };
        plan.target.unpack(files, &plan.after.limits, Box::new(stream)).await?;
        self.inner.failpoint.reach("move.copied").await;
        let (sent, bytes) = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.tell(MoveStep::Comparing, 0, bytes);
        let copy = digest_of(plan.target.pack(files).await?).await;
        let copy = copy.map_err(|cause| {
            ServiceError::new(Code::SandboxUnavailable, "the copy could not be read back").caused_by(cause)
        })?;
        if copy != <[u8; 32]>::from(sent.finalize()) {
            return Err(different(None));
        }
        self.inner.failpoint.reach("move.compared").await;
        let Lease { user, workdir, .. } = plan.after.clone();
        Ok(MoveOutcome { report: self.report(plan, 0, bytes, plan.left_behind.clone()), user, workdir })
    }

    async fn copy_folders(
        &self,
        plan: &MovePlan,
        source: &InstanceId,
        target: &InstanceId,
    ) -> Result<MoveOutcome, ServiceError> {
        let from = self.boot_source(source).await?;
        self.inner.failpoint.reach("move.source_booted").await;
        let to = self.make_target(plan, target).await?;
        self.inner.failpoint.reach("move.target_made").await;
        let carried = self.choose(plan, &from, &to).await?;
        let owners = self.owners(plan, &from, &to);
        let copies = self.send(plan, &from, &to, owners, &carried).await?;
        self.inner.failpoint.reach("move.copied").await;
        let owners_kept = self.compare(&to, owners, &carried, &copies).await?;
        self.inner.failpoint.reach("move.compared").await;
        for (provider, instance) in [(&self.provider, source), (&plan.target, target)] {
            let ended = Target { sandbox: self.lease.id.clone(), instance: Some(instance.clone()) };
            gone_is_fine(provider.halt(&ended).await)?;
        }
        self.inner.failpoint.reach("move.halted").await;
        let mut left = plan.left_behind.clone();
        left.extend(self.changed_outside(&carried).await);
        if self.wanted_user().is_some_and(|wanted| wanted != to.user) {
            let sentence = format!("commands ran as {}, and run as {} there", self.lease.user, to.user);
            left.push(LeftBehind::one(LeftBehindKind::User, sentence));
        }
        if !owners_kept {
            left.extend(other_owners(&carried, &copies));
        }
        let (entries, bytes) =
            copies.iter().fold((0, 0), |sum, copy| (sum.0 + copy.entries, sum.1 + copy.bytes));
        let is_home = plan.after.isolation == Isolation::None && carried.workdir == to.home;
        let workdir = if is_home { plan.after.workdir.clone() } else { carried.workdir };
        let former_user = self.users_before(plan);
        let report = MoveReport { former_user, ..self.report(plan, entries, bytes, left) };
        Ok(MoveOutcome { report, user: to.user, workdir })
    }

    /// The user that a move back from a provider with one user gives to commands again.
    fn users_before(&self, plan: &MovePlan) -> Option<String> {
        let known = self.wanted_user()?;
        (!plan.target.capabilities().users).then_some(known)
    }

    /// The user that commands are to have at the target. `None`: that of the target's template, because the source has one user
    /// only.
    fn wanted_user(&self) -> Option<String> {
        if self.provider.capabilities().users {
            return Some(self.lease.user.clone());
        }
        let last = self.lease.last_move.as_ref()?;
        // A failed move leaves the sandbox, and with it the files of its former user, where they were.
        let is_at = if last.failure.is_some() { &last.from } else { &last.to };
        last.former_user.clone().filter(|_| *is_at == self.lease.provider)
    }

    /// How the owners of files change, and whether the target can have them.
    fn owners(&self, plan: &MovePlan, from: &CopyEnd, to: &CopyEnd) -> CopyOwners {
        let takes_any = plan.target.capabilities().users || to.owner.is_some_and(|owner| owner.uid == 0);
        let target = TargetOwners { user: to.owner, takes_any };
        // Without a choice of users all files belong to one, unless they were brought from elsewhere.
        let has_users = self.wanted_user().is_some();
        CopyOwners { mapping: OwnerMapping::choose(from.owner, has_users, target), takes_any }
    }

    /// The source with its agent alone: its command is not started.
    async fn boot_source(&self, instance: &InstanceId) -> Result<CopyEnd, ServiceError> {
        let lease = Lease { command: None, instance: Some(instance.clone()), ..self.lease.clone() };
        let network = crate::egress::compiled(&self.inner, &lease).await?;
        let mounts = self.inner.mounts_for(&lease).await?;
        let booted = {
            let _turn = self.inner.creates.acquire().await;
            self.provider.boot(&spec(&lease, instance.clone(), None, network, mounts)).await?
        };
        let agent = greeted(&self.provider, &lease, instance, booted.agent_token).await?;
        let home = home_of(&agent, &lease.user).await?;
        let owner = owner_of(&agent, &lease.user, self.provider.as_ref()).await;
        Ok(CopyEnd { agent, user: lease.user, home, owner })
    }

    /// An empty sandbox at the target, which runs commands as the source's user if there is one of that name.
    async fn make_target(&self, plan: &MovePlan, instance: &InstanceId) -> Result<CopyEnd, ServiceError> {
        let lease = Lease { command: None, instance: Some(instance.clone()), ..plan.after.clone() };
        let network = crate::egress::compiled(&self.inner, &lease).await?;
        let booted = {
            let _turn = self.inner.creates.acquire().await;
            plan.target.create(&spec(&lease, instance.clone(), None, network, Vec::new())).await?
        };
        let agent = greeted(&plan.target, &lease, instance, booted.agent_token).await?;
        let user = match self.wanted_user() {
            Some(wanted) if agent.stat("~", Some(&wanted)).await.is_ok() => wanted,
            Some(_) | None => lease.user,
        };
        let home = home_of(&agent, &user).await?;
        let owner = owner_of(&agent, &user, plan.target.as_ref()).await;
        Ok(CopyEnd { agent, user, home, owner })
    }

    async fn choose(
        &self,
        plan: &MovePlan,
        from: &CopyEnd,
        to: &CopyEnd,
    ) -> Result<CarriedFolders, ServiceError> {
        let workdir = if self.lease.workdir.starts_with('/') { &self.lease.workdir } else { &from.home };
        let (home, workdir, target) =
            (folders::cleaned(&from.home), folders::cleaned(workdir), folders::cleaned(&to.home));
        let keeps_paths = plan.after.isolation != Isolation::None;
        let places = Places { home: &home, workdir: &workdir };
        let carried = folders::choose(places, &target, keeps_paths);
        // A folder of the home that has the name of the working directory would be lost.
        for home in &carried.folders {
            for inside in &home.without {
                let path = format!("{}/{inside}", home.from);
                if exists(&from.agent, &path).await? {
                    return Err(collision(&path));
                }
            }
        }
        match carried.shared() {
            Some(shared) => Err(collision(shared)),
            None => Ok(carried.without_mounts(&self.lease.mounts)),
        }
    }

    async fn send(
        &self,
        plan: &MovePlan,
        from: &CopyEnd,
        to: &CopyEnd,
        owners: CopyOwners,
        carried: &CarriedFolders,
    ) -> Result<Vec<FolderDigest>, ServiceError> {
        let mut copies: Vec<FolderDigest> = Vec::with_capacity(carried.folders.len());
        for folder in &carried.folders {
            let before = copies.iter().fold((0, 0), |sum, copy| (sum.0 + copy.entries, sum.1 + copy.bytes));
            let is_inside =
                carried.folders.iter().any(|home| home.to != folder.to && is_below(&home.to, &folder.to));
            if !is_inside {
                let root = plan.target.capabilities().users.then_some(ROOT);
                empty(&to.agent, &folder.to, root).await?;
            }
            let room = TargetRoom::new(plan, &self.inner.disk, before.1);
            let teller = self.teller(MoveStep::Copying, before);
            let copy = self.send_folder((from, to), folder, owners.mapping, (teller, room)).await?;
            if let Some(top) = copy.top.filter(|_| plan.after.isolation != Isolation::None) {
                // The folder of a sandbox without isolation is closed to everyone but the server.
                let is_copied = self.lease.isolation != Isolation::None;
                let owner = match (is_copied, plan.target.capabilities().users) {
                    (_, false) => None,
                    (true, true) => Some((top.owner.uid.to_string(), Some(top.owner.gid.to_string()))),
                    (false, true) => Some((to.user.clone(), None)),
                };
                settle_top(&to.agent, &folder.to, is_copied.then_some(top), owner).await?;
            }
            copies.push(copy);
        }
        Ok(copies)
    }

    async fn send_folder(
        &self,
        ends: (&CopyEnd, &CopyEnd),
        folder: &CarriedFolder,
        mapping: OwnerMapping,
        (teller, room): (Teller, TargetRoom),
    ) -> Result<FolderDigest, ServiceError> {
        let ((from, to), failed) = (ends, |error| refusal(AgentOperation::File, error));
        let reader = from.agent.pack(&pack(&folder.from, folder), Some(&from.user)).await.map_err(failed)?;
        let sent = SentFolder::new(Manifest::of_source(mapping, from.owner), mapping, teller);
        let what = Unpack {
            dest: folder.to.clone().into_bytes(),
            into: UnpackInto::Folder,
            owner: UnpackOwner::Kept,
            mode: None,
            rules: UnpackRules::Copy,
            strip: 0,
        };
        let content = sent::stream(reader.into_stream(), &sent, room);
        let unpacked = to.agent.unpack(&what, Some(&to.user), content).await;
        let mut sent = sent::lock(&sent);
        if let Some(failure) = sent.failure() {
            return Err(failure);
        }
        unpacked.map_err(failed)?;
        sent.finish()
    }

    /// Reads every folder back. Says whether no owner was lost.
    async fn compare(
        &self,
        to: &CopyEnd,
        owners: CopyOwners,
        carried: &CarriedFolders,
        copies: &[FolderDigest],
    ) -> Result<bool, ServiceError> {
        let (mut owners_kept, mut before) = (!matches!(owners.mapping, OwnerMapping::All(_)), (0, 0));
        for (folder, sent) in carried.folders.iter().zip(copies) {
            let mut teller = self.teller(MoveStep::Comparing, before);
            let failed = |error| refusal(AgentOperation::File, error);
            let mut reader =
                to.agent.pack(&pack(&folder.to, folder), Some(&to.user)).await.map_err(failed)?;
            let mut manifest = Manifest::like(sent);
            while let Some(chunk) = reader.next().await {
                manifest.push(&chunk.map_err(failed)?).map_err(|cause| unreadable().caused_by(cause))?;
                teller.count(manifest.counts());
            }
            let copy = manifest.finish().map_err(|cause| unreadable().caused_by(cause))?;
            match sent.compare(&copy) {
                Comparison::Same => {}
                Comparison::OtherOwners if !owners.takes_any => owners_kept = false,
                Comparison::OtherOwners => {
                    return Err(different(None).hint("the owners of its files could not be kept"));
                }
                Comparison::Different(at) => return Err(different(at)),
            }
            before = (before.0 + copy.entries, before.1 + copy.bytes);
        }
        Ok(owners_kept)
    }

    /// Files that stay behind, where the provider can tell what differs from the template.
    async fn changed_outside(&self, carried: &CarriedFolders) -> Option<LeftBehind> {
        if !self.provider.capabilities().captures {
            return None;
        }
        let (lease, files) = (&self.lease, Target { sandbox: self.lease.id.clone(), instance: None });
        let changed = match self.provider.capture(&files, &lease.template, &lease.template_version).await {
            Ok(layer) => outside(layer, carried).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        changed.unwrap_or_else(|why| {
            tracing::debug!(sandbox = %lease.id, why, "files outside of the carried folders are not known");
            let folders: Vec<&str> = carried.folders.iter().map(|folder| folder.from.as_str()).collect();
            let sentence = format!(
                "everything outside {}; which files were changed there is not known for template {}",
                folders.join(", "),
                lease.template
            );
            Some(LeftBehind::one(LeftBehindKind::Files, sentence))
        })
    }

    fn report(&self, plan: &MovePlan, entries: u64, bytes: u64, left_behind: Vec<LeftBehind>) -> MoveReport {
        MoveReport {
            from: self.lease.provider.clone(),
            to: plan.target.name().to_owned(),
            ended_at: self.inner.clock.now(),
            failure: None,
            carried: plan.carried,
            entries,
            bytes,
            left_behind,
            former_user: None,
        }
    }

    fn tell(&self, step: MoveStep, entries: u64, bytes: u64) {
        self.teller(step, (0, 0)).send((entries, bytes));
    }

    fn teller(&self, step: MoveStep, before: (u64, u64)) -> Teller {
        let mailbox = self.inner.registry.get(&self.lease.id).map(|handle| handle.mailbox);
        Teller { mailbox, step, before, told_at: Instant::now() }
    }
}

/// How the owners of files change on the way.
#[derive(Debug, Clone, Copy)]
struct CopyOwners {
    mapping: OwnerMapping,
    /// Whether files at the target can belong to anyone.
    takes_any: bool,
}

/// Files of others than the user of commands, which belong to that user at the target.
fn other_owners(carried: &CarriedFolders, copies: &[FolderDigest]) -> Option<LeftBehind> {
    let mut left = LeftBehind { kind: LeftBehindKind::Owners, names: Vec::new(), count: 0 };
    for (folder, copy) in carried.folders.iter().zip(copies) {
        for name in &copy.others.names {
            left.add(format!("{}/{name}", folder.from));
        }
        left.count += copy.others.count - copy.others.names.len() as u64;
    }
    (left.count > 0).then_some(left)
}

/// Tells the driver how far the copy is, now and then. A full mailbox is no error: the next message has the newer numbers.
struct Teller {
    mailbox: Option<tokio::sync::mpsc::Sender<Mail>>,
    step: MoveStep,
    before: (u64, u64),
    told_at: Instant,
}

impl Teller {
    fn count(&mut self, counts: (u64, u64)) {
        if self.told_at.elapsed() >= TELL_EVERY {
            self.told_at = Instant::now();
            self.send(counts);
        }
    }

    fn send(&self, (entries, bytes): (u64, u64)) {
        if let Some(mailbox) = &self.mailbox {
            let progress = MoveProgress {
                step: self.step,
                entries: self.before.0 + entries,
                bytes: self.before.1 + bytes,
            };
            let _ = mailbox.try_send(DriverMessage::MoveProgress(progress).into());
        }
    }
}

fn pack(folder: &str, carried: &CarriedFolder) -> Pack {
    Pack {
        sources: vec![folder.as_bytes().to_vec()],
        globs: false,
        layout: PackLayout::Contents,
        exclude: carried.patterns(),
        holes: PackHoles::Kept,
    }
}

fn is_below(outer: &str, inner: &str) -> bool {
    folders::below(outer, inner).is_some()
}

fn ended_early() -> ServiceError {
    ServiceError::new(Code::PhaseConflict, "the move was ended early").hint("move it again")
}

fn panicked() -> ServiceError {
    ServiceError::new(Code::Internal, "the provider failed with an internal error")
}

fn unreadable() -> ServiceError {
    ServiceError::new(Code::SandboxUnavailable, "the files could not be read as an archive")
}

fn different(at: Option<String>) -> ServiceError {
    let message = match at {
        Some(at) => format!("the copy differs from the source at {at}"),
        None => "the copy differs from the source".to_owned(),
    };
    ServiceError::new(Code::Damaged, message).hint("the sandbox is where it was; move it again")
}

fn collision(path: &str) -> ServiceError {
    let message =
        format!("{path} cannot be carried: the home and the working directory would meet at the target");
    ServiceError::new(Code::InvalidRequest, message).hint("rename it, or choose another provider or template")
}

/// Digests a stream while another one reads it.
struct DigestReader {
    inner: Packed,
    read: Arc<Mutex<(Sha256, u64)>>,
}

impl AsyncRead for DigestReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let new = &buffer.filled()[before..];
        read.0.update(new);
        read.1 += new.len() as u64;
        polled
    }
}

async fn digest_of(mut stream: Packed) -> std::io::Result<[u8; 32]> {
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(digest.finalize().into()),
            count => digest.update(&buffer[..count]),
        }
    }
}

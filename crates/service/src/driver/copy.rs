//! The copy of a stopped sandbox to another provider, and its comparison with the source.
//!
//! ```text
//! folders:  boot the source without its command, make an empty sandbox at the target
//!           source pack ─► digest ─► target unpack       target pack ─► digest ─► compare
//!           halt both
//! layer:    source pack ─► digest ─► target unpack       target pack ─► digest ─► compare
//! ```
//! No program of the sandbox runs meanwhile, so the source does not change. Everything is streamed.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_agentapi::{
    AgentClient, AgentError, EntryKind, Pack, PackLayout, RpcCode, Unpack, UnpackInto, UnpackOwner,
    UnpackRules,
};
use atoll_model::{
    Code, InstanceId, Isolation, Lease, LeftBehind, LeftBehindKind, MoveCarried, MoveProgress, MoveReport,
    MoveStep,
};
use atoll_provider::{Packed, Provider, Target};
use futures::{FutureExt, StreamExt};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::time::Instant;

use super::DriverMessage;
use super::effects::{EffectJob, gone_is_fine, spec};
use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};
use crate::moving::folders::{self, CarriedFolder, CarriedFolders, Places};
use crate::moving::manifest::{Comparison, FolderDigest, Manifest, TopFolder};
use crate::moving::outside::outside;
use crate::moving::{MoveOutcome, MovePlan};
use crate::random::entropy;

/// LIMIT: an attempt to end an instance, or to remove a copy, after a failure; the removal is repeated later.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// LIMIT: rounds of emptying a folder of a new sandbox; each list is cut by the agent.
const EMPTY_ROUNDS: u32 = 64;
const ROOT: &str = "root";
/// LIMIT: bytes of a list of users.
const PASSWD_MAX: u64 = 1 << 20;
/// How often the progress is told.
const TELL_EVERY: Duration = Duration::from_millis(300);

/// One end of a copy: a running instance without programs.
struct CopyEnd {
    agent: AgentClient,
    user: String,
    home: String,
    /// The number of the user, where the provider has users and it is known.
    uid: Option<u32>,
}

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
        // An earlier attempt may have left something that could not be removed. A removal that is still under way would take the
        // new copy, which has the same name.
        gone_is_fine(plan.target.destroy(&files).await)?;
        plan.target.settle(CLEAN_UP).await?;
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
        let copies = self.send(plan, &from, &to, &carried).await?;
        self.inner.failpoint.reach("move.copied").await;
        let keeps_owners = self.keeps_owners(&from, &to);
        let owners_kept = self.compare(plan, &to, keeps_owners, &carried, &copies).await?;
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
            let sentence = format!("files belong to {} there, whose number is another one", to.user);
            left.push(LeftBehind::one(LeftBehindKind::Owners, sentence));
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
        let last = self.lease.last_move.as_ref().filter(|last| last.to == self.lease.provider);
        last.and_then(|last| last.former_user.clone())
    }

    /// Whether files keep the numbers of their owners. Otherwise all of them belong to the user of commands: files that were
    /// made at a provider with one user, and those of a user that has another number at the target.
    fn keeps_owners(&self, from: &CopyEnd, to: &CopyEnd) -> bool {
        let is_other = matches!((from.uid, to.uid), (Some(from), Some(to)) if from != to);
        self.wanted_user().is_some() && !is_other
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
        let uid = uid_of(&agent, &lease.user, self.provider.as_ref()).await;
        Ok(CopyEnd { agent, user: lease.user, home, uid })
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
        let uid = uid_of(&agent, &user, plan.target.as_ref()).await;
        Ok(CopyEnd { agent, user, home, uid })
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
        carried: &CarriedFolders,
    ) -> Result<Vec<FolderDigest>, ServiceError> {
        let keeps_owners = self.keeps_owners(from, to);
        let owner = if keeps_owners { UnpackOwner::Kept } else { UnpackOwner::Named(to.user.clone()) };
        let mut copies: Vec<FolderDigest> = Vec::with_capacity(carried.folders.len());
        for folder in &carried.folders {
            let before = copies.iter().fold((0, 0), |sum, copy| (sum.0 + copy.entries, sum.1 + copy.bytes));
            let is_inside =
                carried.folders.iter().any(|home| home.to != folder.to && is_below(&home.to, &folder.to));
            if !is_inside {
                let root = plan.target.capabilities().users.then_some(ROOT);
                empty(&to.agent, &folder.to, root).await?;
            }
            let copy = self.send_folder(from, to, folder, owner.clone(), before).await?;
            if let Some(top) = copy.top.filter(|_| plan.after.isolation != Isolation::None) {
                // The folder of a sandbox without isolation is closed to everyone but the server.
                let is_copied = self.lease.isolation != Isolation::None;
                let owner = match (keeps_owners && is_copied, plan.target.capabilities().users) {
                    (_, false) => None,
                    (true, true) => Some((top.uid.to_string(), Some(top.gid.to_string()))),
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
        from: &CopyEnd,
        to: &CopyEnd,
        folder: &CarriedFolder,
        owner: UnpackOwner,
        before: (u64, u64),
    ) -> Result<FolderDigest, ServiceError> {
        let failed = |error| refusal(AgentOperation::File, error);
        let reader = from.agent.pack(&pack(&folder.from, folder), Some(&from.user)).await.map_err(failed)?;
        let sent = Arc::new(Mutex::new((Manifest::default(), None::<ServiceError>)));
        let (shared, teller) = (Arc::clone(&sent), self.teller(MoveStep::Copying, before));
        let mut teller = teller;
        let content = reader.into_stream().map(move |chunk| {
            let mut sent = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let failure = match chunk {
                Ok(chunk) => match sent.0.push(&chunk) {
                    Ok(()) => {
                        teller.count(sent.0.counts());
                        return Ok(chunk);
                    }
                    Err(cause) => unreadable().caused_by(cause),
                },
                Err(error) => refusal(AgentOperation::File, error),
            };
            sent.1 = Some(failure);
            Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe))
        });
        let what = Unpack {
            dest: folder.to.clone().into_bytes(),
            into: UnpackInto::Folder,
            owner,
            mode: None,
            rules: UnpackRules::Copy,
            strip: 0,
        };
        let unpacked = to.agent.unpack(&what, Some(&to.user), content).await;
        let (manifest, failure) = std::mem::take(&mut *sent.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(failure) = failure {
            return Err(failure);
        }
        unpacked.map_err(failed)?;
        manifest.finish().map_err(|cause| unreadable().caused_by(cause))
    }

    /// Reads every folder back. Says whether owners are those of the source.
    async fn compare(
        &self,
        plan: &MovePlan,
        to: &CopyEnd,
        keeps_owners: bool,
        carried: &CarriedFolders,
        copies: &[FolderDigest],
    ) -> Result<bool, ServiceError> {
        let has_users =
            keeps_owners && self.provider.capabilities().users && plan.target.capabilities().users;
        let (mut owners_kept, mut before) = (true, (0, 0));
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
                Comparison::OtherOwners if !has_users => owners_kept = false,
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
        let files = Target { sandbox: self.lease.id.clone(), instance: None };
        let lease = &self.lease;
        let layer = self.provider.capture(&files, &lease.template, &lease.template_version).await.ok()?;
        outside(layer, carried).await.unwrap_or_else(|error| {
            tracing::debug!(sandbox = %lease.id, %error, "files outside of the carried folders are not known");
            None
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

/// Tells the driver how far the copy is, now and then. A full mailbox is no error: the next message has the newer numbers.
struct Teller {
    mailbox: Option<tokio::sync::mpsc::Sender<DriverMessage>>,
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
            let _ = mailbox.try_send(DriverMessage::MoveProgress(progress));
        }
    }
}

fn pack(folder: &str, carried: &CarriedFolder) -> Pack {
    Pack {
        sources: vec![folder.as_bytes().to_vec()],
        globs: false,
        layout: PackLayout::Contents,
        exclude: carried.patterns(),
    }
}

async fn greeted(
    provider: &Arc<dyn Provider>,
    lease: &Lease,
    instance: &InstanceId,
    token: Option<String>,
) -> Result<AgentClient, ServiceError> {
    let agent = crate::agent::client(provider, lease, instance, &token.unwrap_or_default());
    crate::agent::greet(&agent, lease, None).await?;
    Ok(agent.with_root_files())
}

async fn home_of(agent: &AgentClient, user: &str) -> Result<String, ServiceError> {
    let home = match agent.stat("~", Some(user)).await {
        Ok(entry) => entry.path,
        // A user without a home: nothing of it is carried.
        Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => b"/".to_vec(),
        Err(error) => return Err(refusal(AgentOperation::File, error)),
    };
    Ok(String::from_utf8(home).unwrap_or_else(|_| "/".to_owned()))
}

async fn exists(agent: &AgentClient, path: &str) -> Result<bool, ServiceError> {
    match agent.stat(path, None).await {
        Ok(_) => Ok(true),
        Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => Ok(false),
        Err(error) => Err(refusal(AgentOperation::File, error)),
    }
}

fn is_below(outer: &str, inner: &str) -> bool {
    folders::below(outer, inner).is_some()
}

/// Removes what the template has in a folder: the copy is to be the same as the source.
async fn empty(agent: &AgentClient, folder: &str, user: Option<&str>) -> Result<(), ServiceError> {
    let failed = |error| refusal(AgentOperation::File, error);
    for _ in 0..EMPTY_ROUNDS {
        let entries = match agent.list_dir(folder, user, 1).await {
            Ok((entries, _)) => entries,
            Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            debug_assert!(entry.kind != EntryKind::Directory || entry.path != folder.as_bytes());
            agent.remove(&entry.path, user).await.map_err(failed)?;
        }
    }
    Err(ServiceError::new(Code::SandboxUnavailable, format!("{folder} of the target could not be emptied")))
}

/// Gives the folder itself its mode and its owner.
async fn settle_top(
    agent: &AgentClient,
    folder: &str,
    top: Option<TopFolder>,
    owner: Option<(String, Option<String>)>,
) -> Result<(), ServiceError> {
    let (mode, (user, group)) = (top.map(|top| top.mode), owner.unzip());
    if mode.is_none() && user.is_none() {
        return Ok(());
    }
    match agent.change(folder, None, mode, user.as_deref(), group.flatten().as_deref()).await {
        // Where no agent of ours runs, the unpack has done it.
        Ok(_) | Err(AgentError::Refused { code: RpcCode::Unimplemented, .. }) => Ok(()),
        Err(error) => Err(refusal(AgentOperation::File, error)),
    }
}

/// The number of a user by the sandbox's own list. `None`: it is not known, or the provider has one user only.
async fn uid_of(agent: &AgentClient, user: &str, provider: &dyn Provider) -> Option<u32> {
    if !provider.capabilities().users {
        return None;
    }
    let list = agent.read_file("/etc/passwd", None, None).await.ok()?.read_to_end(PASSWD_MAX).await.ok()?;
    String::from_utf8_lossy(&list).lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
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

//! One sandbox with its model beside it: what it may hold, and the look that decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::calls::{Loss, Reply, Shared};
use crate::client::Answer;
use crate::state_model::{self, Dice, FOLDER, Held, Look, Memory, PROGRAM, Sight, Tree};

/// One thing that the sandbox may be.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its files.
    pub tree: Arc<Tree>,
    /// What a look sees of them.
    pub sight: Arc<Sight>,
    /// What its holder holds, where one lives.
    pub memory: Option<Memory>,
}

impl Version {
    /// Of a tree and a memory.
    pub fn new(tree: Tree, memory: Option<Memory>) -> Self {
        Self { sight: Arc::new(tree.sight()), tree: Arc::new(tree), memory }
    }

    /// The same files without processes.
    pub fn without_memory(&self) -> Self {
        Self { memory: None, ..self.clone() }
    }

    fn loosened(mut self, late: u64) -> Self {
        if let Some(memory) = &mut self.memory {
            memory.loose = true;
            memory.late = memory.late.max(late);
        }
        self
    }
}

/// A snapshot and what was true at its moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub sandbox: String,
    /// Whether it has processes.
    pub memory: bool,
    /// What it may hold.
    pub may: Vec<Version>,
}

/// A sandbox and its model.
pub struct Kept {
    /// Its id.
    pub id: String,
    /// What it may hold; more than one only after a wish was lost.
    pub may: Vec<Version>,
    /// Its phase at the last look.
    pub phase: String,
    /// Where its memory is while it is paused.
    pub held: Option<String>,
    /// Whether its disk is full.
    pub full: bool,
    /// Where the holder is, as last told.
    pub place: Option<(u64, i32)>,
    /// What was done to it.
    pub history: Vec<String>,
}

const RESTING: [&str; 5] = ["running", "paused", "stopped", "archived", "failed"];
/// LIMIT: a restart of the server, a checkpoint and a restore on a busy machine with two cores.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

impl Kept {
    /// Of a sandbox that runs.
    pub fn new(id: String, may: Vec<Version>) -> Self {
        let phase = "running".to_owned();
        Self { id, may, phase, held: None, full: false, place: None, history: Vec::new() }
    }

    /// Its path in the API, with a tail.
    pub fn path(&self, tail: &str) -> String {
        format!("/v1/sandboxes/{}{tail}", self.id)
    }

    /// Remembers what happens.
    pub fn note(&mut self, what: impl Into<String>) {
        self.history.push(what.into());
    }

    /// The new versions replace the old ones, or are added to them if the outcome is unknown.
    pub fn become_(&mut self, new: Vec<Version>, certain: bool) {
        if certain {
            self.may = new;
            return;
        }
        let old = std::mem::take(&mut self.may);
        let late = old.iter().filter_map(|version| version.memory.as_ref()).map(|memory| memory.late).max();
        self.may = old.into_iter().chain(new).map(|version| version.loosened(late.unwrap_or(0))).collect();
    }

    /// Counts of the holder may have gone on without us.
    pub fn loosen(&mut self) {
        self.become_(Vec::new(), false);
    }

    /// The answer of a probe was lost; the probe itself may still be at work inside.
    pub fn lost_look(&mut self) {
        self.loosen();
        for memory in self.may.iter_mut().filter_map(|version| version.memory.as_mut()) {
            memory.late += 1;
        }
    }

    /// Waits until it rests in one of these phases.
    pub async fn settle(&mut self, shared: &Shared, allowed: &[&str]) -> Result<Value, Loss> {
        let started = Instant::now();
        loop {
            let now = shared.insist(Method::GET, &self.path(""), None).await?;
            if now.status != 200 {
                return Err(format!("it is gone: {now}"));
            }
            let now = now.json();
            let phase = now["phase"].as_str().unwrap_or_default().to_owned();
            if RESTING.contains(&phase.as_str()) && now["intent"] == intent_of(&phase) {
                self.held = now["held"].as_str().map(str::to_owned);
                self.phase.clone_from(&phase);
                if matches!(phase.as_str(), "stopped" | "archived" | "failed") {
                    self.may = self.may.iter().map(Version::without_memory).collect();
                }
                if !allowed.contains(&phase.as_str()) {
                    return Err(format!("it is {phase}, not one of {allowed:?}: {now}"));
                }
                return Ok(now);
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("it stays {phase}: {now}"));
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Everything that can be seen of it must be one of the versions; those that it is not are forgotten.
    pub async fn verify(&mut self, shared: &Shared) -> Result<(), Loss> {
        match (self.phase.as_str(), self.held.as_deref()) {
            ("running", _) => {
                let look = self.look(shared, None).await?;
                self.judge_until_sure(shared, look).await
            }
            ("paused", Some("live")) => self.verify_frozen(shared),
            ("paused" | "stopped", _) => self.verify_layer(shared),
            ("archived", _) => self.verify_archived(shared).await,
            (phase, _) => Err(format!("nothing is known of one that is {phase}")),
        }
    }

    /// Runs the probe, with changes where there are some. A lost look is repeated; lost changes are not.
    pub async fn look(&mut self, shared: &Shared, changes: Option<&str>) -> Result<Option<Look>, Loss> {
        let verb = if changes.is_some() { "do" } else { "look" };
        let body = json!({ "argv": [PROGRAM, verb, FOLDER], "stdin": changes.unwrap_or_default() });
        for _ in 0..1_000 {
            match shared.call(Method::POST, &self.path("/exec"), Some(body.clone())).await? {
                Reply::Answer(answer) => return Ok(Some(understand(&answer)?)),
                Reply::Lost if changes.is_some() => {
                    self.lost_look();
                    return Ok(None);
                }
                Reply::Lost => self.lost_look(),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err("a look was never answered".to_owned())
    }

    /// Runs the probe once; nothing where the answer was lost.
    pub async fn look_once(&mut self, shared: &Shared) -> Result<Option<Look>, Loss> {
        let body = json!({ "argv": [PROGRAM, "look", FOLDER] });
        match shared.call(Method::POST, &self.path("/exec"), Some(body)).await? {
            Reply::Answer(answer) => Ok(Some(understand(&answer)?)),
            Reply::Lost => {
                self.lost_look();
                Ok(None)
            }
        }
    }

    /// A command of a lost wish may still be at work inside: then a look or two more decide.
    pub async fn judge_until_sure(&mut self, shared: &Shared, look: Option<Look>) -> Result<(), Loss> {
        let started = Instant::now();
        let mut look = look;
        loop {
            let Some(seen) = look else {
                look = self.look(shared, None).await?;
                continue;
            };
            let fitting = self.fitting(&seen);
            if !fitting.is_empty() {
                self.place = seen.held.as_ref().map(|held| (held.at, held.pid));
                self.may = fitting;
                return Ok(());
            }
            if self.may.len() == 1 || started.elapsed() > PATIENCE {
                return Err(self.mismatch(&seen.sight, seen.held.as_ref()));
            }
            self.loosen();
            tokio::time::sleep(Duration::from_millis(100)).await;
            look = None;
        }
    }

    /// The versions that fit what was seen, with the counter as it is now.
    fn fitting(&self, seen: &Look) -> Vec<Version> {
        let mut fitting: Vec<Version> = Vec::new();
        for version in self.may.iter().filter(|version| *version.sight == seen.sight) {
            let memory = match (&version.memory, &seen.held) {
                (None, None) => None,
                (Some(memory), Some(held)) if memory.fits(held) => {
                    Some(Memory { counter: held.counter, loose: false, ..memory.clone() })
                }
                _ => continue,
            };
            if !fitting.iter().any(|known| known.memory == memory) {
                fitting.push(Version { memory, ..version.clone() });
            }
        }
        fitting
    }

    fn mismatch(&self, sight: &Sight, held: Option<&Held>) -> Loss {
        let of = |version: &Version| {
            let files = state_model::difference(&version.sight, sight);
            format!("files: [{files}], memory wanted {:?}", version.memory)
        };
        let wanted: Vec<String> = self.may.iter().map(of).collect();
        format!("LOSS: no version fits. memory found {held:?}; versions: {wanted:#?}")
    }

    /// One that stands still in memory is read through its frozen process.
    fn verify_frozen(&mut self, shared: &Shared) -> Result<(), Loss> {
        let agent = shared.eye.find_agent(&self.id).ok_or("LOSS: a frozen sandbox has no process")?;
        let Some((at, inside)) = self.place.filter(|_| self.may.iter().any(|v| v.memory.is_some())) else {
            return self.verify_layer(shared);
        };
        let holder =
            state_model::holder_on_host(agent, inside).ok_or("LOSS: the holder is gone in its sleep")?;
        let page =
            state_model::page_from_host(holder, at).map_err(|cause| format!("LOSS: its memory: {cause}"))?;
        let root = format!("/proc/{holder}/root{FOLDER}");
        let sight = state_model::look_from_host(root.as_ref()).map_err(|cause| format!("{root}: {cause}"))?;
        let fits = |version: &Version| {
            *version.sight == sight && version.memory.as_ref().is_none_or(|memory| memory.page() == page)
        };
        self.keep_only(fits, &sight)
    }

    /// Its files on disk, as they lie there.
    fn verify_layer(&mut self, shared: &Shared) -> Result<(), Loss> {
        let folder = shared.eye.upper(&self.id).join(FOLDER.trim_start_matches('/'));
        let sight =
            state_model::look_from_host(&folder).map_err(|cause| format!("LOSS: its files: {cause}"))?;
        self.keep_only(|version| *version.sight == sight, &sight)
    }

    fn keep_only(&mut self, fits: impl Fn(&Version) -> bool, sight: &Sight) -> Result<(), Loss> {
        let fitting: Vec<Version> = self.may.iter().filter(|version| fits(version)).cloned().collect();
        if fitting.is_empty() {
            return Err(self.mismatch(sight, None));
        }
        self.may = fitting;
        Ok(())
    }

    /// Its files are in object storage only.
    async fn verify_archived(&mut self, shared: &Shared) -> Result<(), Loss> {
        let started = Instant::now();
        while shared.eye.layer(&self.id).exists() {
            if started.elapsed() > PATIENCE {
                return Err("an archived sandbox still has its layer here".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let now = shared.insist(Method::GET, &self.path(""), None).await?.json();
        if now["archive"]["key"].as_str().is_none_or(|key| !key.contains('/')) {
            return Err(format!("it is archived nowhere: {now}"));
        }
        Ok(())
    }

    /// A new one gets the folder that is watched, and a holder.
    pub async fn furnish(&mut self, shared: &Shared, seed: u64) -> Result<(), Loss> {
        self.settle(shared, &["running"]).await?;
        let body = Some(json!({ "path": FOLDER }));
        let made = shared.insist(Method::POST, &self.path("/files/mkdir"), body).await?;
        // Asked again because the server died over the first answer, it may be there already.
        if made.status >= 300 && made.json()["code"] != "already_exists" {
            return Err(format!("no folder: {made}"));
        }
        self.ensure_holder(shared, seed).await
    }

    /// A sandbox for a test, with files and memory that are known.
    pub async fn create(shared: &Shared, spec: Value, seed: u64) -> Self {
        let mut body = spec;
        body["template"] = json!(shared.template);
        let id = shared.client.create(body).await;
        let mut kept = Self::new(id, vec![Version::new(Tree::default(), None)]);
        kept.furnish(shared, seed).await.expect("it takes a holder");
        kept.change(shared, &mut Dice::new(seed)).await;
        kept
    }

    /// A few changes of its files and a new filling of its memory.
    pub async fn change(&mut self, shared: &Shared, dice: &mut Dice) {
        let [old] = self.may.as_slice() else { panic!("only one that is known is changed") };
        let (mut tree, mut lines) = ((*old.tree).clone(), String::new());
        for _ in 0..6 {
            let change = tree.random_change(dice);
            tree = tree.after(&change);
            lines.push_str(&format!("{change}\n"));
        }
        let seed = dice.roll() | 1;
        lines.push_str(&format!("stir {seed}\n"));
        let stir = |memory: &Memory| Memory { counter: memory.counter + 1, ..memory.stirred(seed) };
        let memory = old.memory.as_ref().map(stir);
        self.may = vec![Version::new(tree, memory)];
        let look = self.look(shared, Some(&lines)).await.expect("changes are taken");
        self.judge_until_sure(shared, look).await.expect("changes are seen");
    }

    /// Fails the test unless it rests in `phase` and all that can be seen of it is as it must be.
    pub async fn is_intact(&mut self, shared: &Shared, phase: &str) -> Value {
        let settled = self.settle(shared, &[phase]).await;
        let now = settled.unwrap_or_else(|loss| panic!("{}: {loss}", self.id));
        let verified = self.verify(shared).await;
        verified.unwrap_or_else(|loss| panic!("{}: {loss}", self.id));
        now
    }

    /// A sandbox that runs without a holder gets one.
    pub async fn ensure_holder(&mut self, shared: &Shared, seed: u64) -> Result<(), Loss> {
        if self.phase != "running" || self.may.iter().any(|version| version.memory.is_some()) {
            return Ok(());
        }
        let started = Instant::now();
        loop {
            let body = json!({ "argv": [PROGRAM, "hold", seed.to_string()], "detach": true });
            let asked = shared.call(Method::POST, &self.path("/exec"), Some(body)).await?;
            if let Reply::Answer(answer) = &asked
                && answer.status >= 300
            {
                return Err(format!("no holder: {answer}"));
            }
            // A second one that comes after a lost answer finds its port taken and ends.
            for _ in 0..50 {
                let look = self.look(shared, None).await?.ok_or("a look without changes has an answer")?;
                if look.held.is_none() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                let with = |version: &Version| Version { memory: Some(Memory::new(seed)), ..version.clone() };
                self.may = self.may.iter().map(with).collect();
                return self.judge_until_sure(shared, Some(look)).await;
            }
            if started.elapsed() > PATIENCE {
                return Err("the holder does not answer".to_owned());
            }
        }
    }
}

fn understand(answer: &Answer) -> Result<Look, Loss> {
    if answer.status != 200 {
        return Err(format!("no look: {answer}"));
    }
    let ran = crate::client::ran(answer);
    if ran.code != 0 {
        return Err(format!("the look ended with {}: {ran:?}", ran.code));
    }
    let look = Look::parse(&ran.stdout)?;
    if look.wrong.is_empty() { Ok(look) } else { Err(format!("changes failed: {:?}", look.wrong)) }
}

fn intent_of(phase: &str) -> &'static str {
    match phase {
        "paused" => "pause",
        "stopped" => "stop",
        "archived" => "archive",
        _ => "run",
    }
}

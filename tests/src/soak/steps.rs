//! The steps: one wish each, what it does to the model, and the look after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::calls::{Loss, Reply, Shared, refusal};
use super::kept::{Kept, Moment, PATIENCE, Version};
use crate::client::Answer;
use crate::state_model::{Dice, FILL, FOLDER, Tree};

/// One sandbox at a time, its snapshots, and the dice.
pub(super) struct Actor {
    /// For unique names.
    number: u64,
    dice: Dice,
    made: u64,
    kept: Kept,
    moments: Vec<Moment>,
}

/// LIMIT: snapshots that one actor keeps.
const MOMENTS: usize = 3;

/// A wish that changes the phase.
struct Wish {
    name: &'static str,
    tail: &'static str,
    body: Option<Value>,
    /// Where it leads.
    to: &'static [&'static str],
    /// Whether processes live through it.
    keeps_memory: bool,
}

impl Actor {
    /// Makes its first sandbox.
    pub(super) async fn begin(shared: &Shared, number: u64, seed: u64) -> Result<Self, Loss> {
        let mut dice = Dice::new(seed.wrapping_add(number.wrapping_mul(7_919)));
        let kept = create(shared, &mut dice, &format!("soak-{seed}-{number}-0")).await?;
        Ok(Self { number, dice, made: 1, kept, moments: Vec::new() })
    }

    /// What was done to the sandbox at hand.
    pub(super) fn history(&self) -> String {
        let from = self.kept.history.len().saturating_sub(60);
        format!(
            "actor {}, sandbox {}:\n  {}",
            self.number,
            self.kept.id,
            self.kept.history[from..].join("\n  ")
        )
    }

    /// One step and the look after it.
    pub(super) async fn step(&mut self, shared: &Shared) -> Result<(), Loss> {
        let name = self.act(shared).await?;
        shared.count(name);
        self.kept.verify(shared).await?;
        if self.kept.full && self.kept.phase == "running" && self.kept.may.iter().all(|v| v.memory.is_none())
        {
            self.make_room(shared).await?;
        }
        let seed = self.dice.roll();
        self.kept.ensure_holder(shared, seed).await
    }

    /// After a refusal it is as it was, whole: anything else is a loss.
    pub(super) async fn after_refusal(&mut self, shared: &Shared) -> Result<(), Loss> {
        self.kept.note("refused");
        self.kept.loosen();
        self.kept.settle(shared, &["running", "paused", "stopped", "archived"]).await?;
        self.kept.verify(shared).await?;
        let seed = self.dice.roll();
        self.kept.ensure_holder(shared, seed).await
    }

    /// Wakes it, looks a last time and removes what there is.
    pub(super) async fn end(mut self, shared: &Shared) -> Result<(), (Loss, String)> {
        let ended = async {
            self.wish(shared, &START).await?;
            self.kept.verify(shared).await?;
            for moment in std::mem::take(&mut self.moments) {
                remove_snapshot(shared, &moment.id).await?;
            }
            remove(shared, &self.kept.id).await
        };
        let ended = ended.await;
        ended.map_err(|loss: Loss| (loss, self.history()))
    }

    async fn act(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let roll = self.dice.below(100);
        match (self.kept.phase.clone().as_str(), self.kept.held.clone().as_deref()) {
            ("running", _) => self.act_running(shared, roll).await,
            ("paused", held) => match roll {
                0..45 => self.wish(shared, &RESUME).await,
                45..60 if held == Some("live") && shared.memory => self.wish(shared, &checkpoint()).await,
                45..65 => self.wake(shared).await,
                65..72 => self.snapshot(shared).await,
                72..80 => self.fork(shared).await,
                80..87 => self.rollback(shared).await,
                87..92 => self.wish(shared, &STOP).await,
                92..95 => self.archive(shared).await,
                95..98 => self.refused(shared).await,
                _ => self.replace(shared).await,
            },
            ("stopped", _) => match roll {
                0..40 => self.wish(shared, &START).await,
                40..55 => self.wake(shared).await,
                55..70 => self.archive(shared).await,
                70..76 => self.snapshot(shared).await,
                76..84 => self.fork(shared).await,
                84..92 => self.rollback(shared).await,
                92..97 => self.refused(shared).await,
                _ => self.replace(shared).await,
            },
            ("archived", _) => match roll {
                0..35 => self.wish(shared, &START).await,
                35..60 => self.wish(shared, &RESTORE).await,
                60..80 => self.wake(shared).await,
                80..95 => self.refused(shared).await,
                _ => self.replace(shared).await,
            },
            (phase, _) => Err(format!("nothing to do with one that is {phase}")),
        }
    }

    async fn act_running(&mut self, shared: &Shared, roll: u64) -> Result<&'static str, Loss> {
        match roll {
            0..30 if self.kept.full => self.make_room(shared).await,
            0..30 if !self.kept.full => self.write(shared).await,
            30..36 if !self.kept.full => self.put(shared).await,
            0..52 => self.wish(shared, &pause()).await,
            52..60 if shared.memory => self.wish(shared, &checkpoint()).await,
            52..60 => self.write(shared).await,
            60..67 => self.snapshot(shared).await,
            67..73 => self.fork(shared).await,
            73..78 => self.make_from_snapshot(shared).await,
            78..83 => self.rollback(shared).await,
            83..88 => self.wish(shared, &STOP).await,
            88..90 => self.wish(shared, &RESTART).await,
            90..92 => self.archive(shared).await,
            92..94 => self.update(shared).await,
            94..96 => self.fill(shared).await,
            96..99 => self.refused(shared).await,
            _ => self.replace(shared).await,
        }
    }

    /// Sends a wish that changes the phase, and follows it to its end.
    async fn wish(&mut self, shared: &Shared, wish: &Wish) -> Result<&'static str, Loss> {
        let (from, asked) = (self.kept.phase.clone(), Instant::now());
        let reply = shared.call(Method::POST, &self.kept.path(wish.tail), wish.body.clone()).await?;
        self.kept.note(format!("{} ({from}) → {}", wish.name, said(&reply)));
        let after: Vec<Version> = self
            .kept
            .may
            .iter()
            .map(|v| if wish.keeps_memory { v.clone() } else { v.without_memory() })
            .collect();
        let certain = self.follow(&reply, after, &["archive_unavailable"])?;
        let boots = wish.to.contains(&"running");
        let mut allowed: Vec<&str> = wish.to.to_vec();
        if !certain {
            allowed.extend([from.as_str(), "stopped", "archived", "paused", "running"]);
        }
        if !certain && (boots || shared.was_hurt_since(asked)) {
            allowed.push("failed");
        }
        self.kept.settle(shared, &allowed).await?;
        self.revive(shared).await?;
        Ok(wish.name)
    }

    /// One whose boot was cut short by the death of a launcher is started again.
    async fn revive(&mut self, shared: &Shared) -> Result<(), Loss> {
        for _ in 0..20 {
            if self.kept.phase != "failed" {
                return Ok(());
            }
            shared.call(Method::POST, &self.kept.path("/start"), None).await?;
            self.kept.settle(shared, &["running", "failed"]).await?;
        }
        Err("it fails again and again".to_owned())
    }

    /// Takes the answer into the model; whether it is known what happened.
    fn follow(&mut self, reply: &Reply, after: Vec<Version>, fair: &[&str]) -> Result<bool, Loss> {
        match reply {
            Reply::Answer(answer) if answer.status < 300 => self.kept.become_(after, true),
            Reply::Answer(answer) if !fair.contains(&answer.code().as_str()) => {
                return Err(refusal(answer));
            }
            Reply::Answer(_) | Reply::Lost => {
                self.kept.become_(after, false);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A few changes of files and perhaps of the memory, by the probe.
    async fn write(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let [old] = self.kept.may.as_slice() else { return self.wish(shared, &pause()).await };
        if self.kept.full {
            return self.make_room(shared).await;
        }
        let (mut tree, mut lines) = ((*old.tree).clone(), String::new());
        for _ in 0..=self.dice.below(4) {
            let change = tree.random_change(&mut self.dice);
            tree = tree.after(&change);
            lines.push_str(&format!("{change}\n"));
        }
        let mut memory = old.memory.clone();
        if let Some(memory) = &mut memory
            && self.dice.percent(40)
        {
            let seed = self.dice.roll() | 1;
            lines.push_str(&format!("stir {seed}\n"));
            *memory = memory.stirred(seed);
            // The stirring is answered too.
            memory.counter += 1;
        }
        self.kept.note(format!("do {}", lines.replace('\n', "; ")));
        let after = Version::new(tree, memory);
        let look = self.kept.look(shared, Some(&lines)).await?;
        if look.is_none() {
            self.kept.note("lost");
        }
        // A command whose caller lost the connection continues inside; the versions between old and new have its single
        // lines.
        let steps = if look.is_none() { between(&self.kept.may[0], &lines) } else { Vec::new() };
        self.kept.become_(steps.into_iter().chain([after]).collect(), look.is_some());
        self.kept.judge_until_sure(shared, look).await?;
        Ok("write")
    }

    /// A file through the API.
    async fn put(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let [old] = self.kept.may.as_slice() else { return self.wish(shared, &pause()).await };
        let (name, seed, size) =
            (format!("p{}", self.dice.below(1_000)), self.dice.roll(), 1 + self.dice.below(50_000));
        if let Some(crate::state_model::Seen::Link(_)) = old.tree.sight().get(&name) {
            // It would be written to where the link leads, which may be nowhere.
            return self.wish(shared, &pause()).await;
        }
        // An upload takes the place of what had its name: another name of that file keeps the old content.
        let named = old.tree.after(&crate::state_model::Change::Unlink(name.clone()));
        let change = crate::state_model::Change::Write(name.clone(), seed, size);
        let after = Version::new(named.after(&change), old.memory.clone());
        let path = self.kept.path(&format!("/files?path={FOLDER}/{name}"));
        let bytes = crate::state_model::make(seed, usize::try_from(size).expect("small"));
        let reply = shared.put(&path, bytes).await?;
        self.kept.note(format!("put {name} {seed} {size} → {}", said(&reply)));
        self.follow(&reply, vec![after], &[])?;
        Ok("put")
    }

    /// A request wakes it; one that is cut short may leave it asleep, or failed where its boot was cut short.
    async fn wake(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let from = self.kept.phase.clone();
        let look = self.kept.look_once(shared).await?;
        self.kept.note(format!("look ({from}) → {}", if look.is_some() { "seen" } else { "lost" }));
        if look.is_some() {
            self.kept.settle(shared, &["running"]).await?;
            self.kept.judge_until_sure(shared, look).await?;
        } else {
            self.kept.loosen();
            self.kept.settle(shared, &["running", "paused", "stopped", "archived", "failed"]).await?;
            self.revive(shared).await?;
        }
        Ok("wake")
    }

    async fn snapshot(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        if self.moments.len() >= MOMENTS {
            let oldest = self.moments.remove(0);
            remove_snapshot(shared, &oldest.id).await?;
        }
        let memory = shared.memory && self.kept.phase != "stopped" && self.dice.percent(40);
        let reply = shared
            .call(Method::POST, &self.kept.path("/snapshots"), Some(json!({ "memory": memory })))
            .await?;
        self.kept.note(format!("snapshot memory={memory} ({}) → {}", self.kept.phase, said(&reply)));
        match reply {
            Reply::Lost => self.forget_unknown_snapshots(shared).await?,
            Reply::Answer(answer) if answer.status != 201 => return Err(refusal(&answer)),
            Reply::Answer(answer) => {
                let made = answer.json();
                if made["memory"] != memory || made["state"] != "ready" {
                    return Err(format!("not what was asked for: {made}"));
                }
                let of = |v: &Version| if memory { v.clone() } else { v.without_memory() };
                self.moments.push(Moment {
                    id: made["id"].as_str().unwrap_or_default().to_owned(),
                    sandbox: self.kept.id.clone(),
                    memory,
                    may: self.kept.may.iter().map(of).collect(),
                });
            }
        }
        let phase = self.kept.phase.clone();
        self.kept.settle(shared, &[&phase]).await?;
        Ok(if memory { "snapshot memory" } else { "snapshot files" })
    }

    /// A snapshot whose answer was lost may be there, whole, or not at all.
    async fn forget_unknown_snapshots(&mut self, shared: &Shared) -> Result<(), Loss> {
        let path = format!("/v1/snapshots?sandbox={}", self.kept.id);
        let page = shared.insist(Method::GET, &path, None).await?.json();
        for found in page["items"].as_array().into_iter().flatten() {
            let id = found["id"].as_str().unwrap_or_default();
            if self.moments.iter().any(|moment| moment.id == id) {
                continue;
            }
            if found["state"] != "ready" {
                return Err(format!("a half snapshot is listed: {found}"));
            }
            remove_snapshot(shared, id).await?;
        }
        Ok(())
    }

    async fn fork(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let memory = shared.memory && self.kept.phase != "stopped" && self.dice.percent(40);
        let count = 1 + self.dice.below(2);
        let (body, asked) = (json!({ "count": count, "memory": memory }), Instant::now());
        let reply = shared.call(Method::POST, &self.kept.path("/fork"), Some(body)).await?;
        self.kept.note(format!("fork {count} memory={memory} ({}) → {}", self.kept.phase, said(&reply)));
        let of = |v: &Version| if memory { v.clone() } else { v.without_memory() };
        let may: Vec<Version> = self.kept.may.iter().map(of).collect();
        match reply {
            Reply::Lost => self.check_lost_children(shared).await?,
            Reply::Answer(answer) => {
                // A launcher that dies in the middle of it may leave the files only, and the answer says so.
                let granted = memory && !(shared.was_hurt_since(asked) && answer.json()["memory"] == false);
                let children = children_of(&answer, granted, count)?;
                let of = |v: &Version| if granted { v.clone() } else { v.without_memory() };
                let may = may.iter().map(of).collect();
                self.adopt(shared, children, may).await?;
            }
        }
        let phase = self.kept.phase.clone();
        self.kept.settle(shared, &[&phase]).await?;
        Ok(if memory { "fork memory" } else { "fork files" })
    }

    /// Looks at new sandboxes; one of them may take the place of the one at hand, the rest is deleted.
    async fn adopt(&mut self, shared: &Shared, ids: Vec<String>, may: Vec<Version>) -> Result<(), Loss> {
        let mut keep = self.dice.percent(50);
        for id in ids {
            let mut child = Kept::new(id, may.clone());
            child.full = self.kept.full;
            child.history.clone_from(&self.kept.history);
            child.note(format!("is a child of {}", self.kept.id));
            child.settle(shared, &["running"]).await.map_err(|loss| format!("a child: {loss}"))?;
            child.verify(shared).await.map_err(|loss| format!("a child {}: {loss}", child.id))?;
            let gone = if keep { std::mem::replace(&mut self.kept, child) } else { child };
            keep = false;
            remove(shared, &gone.id).await?;
        }
        Ok(())
    }

    /// Children of a fork whose answer was lost run, or are gone, or have failed: never half.
    async fn check_lost_children(&mut self, shared: &Shared) -> Result<(), Loss> {
        let lineage = shared.insist(Method::GET, &self.kept.path("/lineage"), None).await?.json();
        for id in lineage["children"].as_array().into_iter().flatten() {
            remove(shared, id.as_str().unwrap_or_default()).await?;
        }
        Ok(())
    }

    async fn make_from_snapshot(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        if self.moments.is_empty() {
            return self.snapshot(shared).await;
        }
        let moment = self.dice.pick(&self.moments).clone();
        let memory = moment.memory && self.dice.percent(70);
        self.kept.note(format!("create from {} of {} memory={memory}", moment.id, moment.sandbox));
        let body = json!({ "snapshot": moment.id, "memory": memory });
        let made = self.create_keyed(shared, body).await?;
        let of = |v: &Version| if memory { v.clone() } else { v.without_memory() };
        let was_full = std::mem::replace(&mut self.kept.full, true);
        self.adopt(shared, vec![made.clone()], moment.may.iter().map(of).collect()).await?;
        if self.kept.id != made {
            self.kept.full = was_full;
        }
        Ok("from snapshot")
    }

    async fn create_keyed(&mut self, shared: &Shared, body: Value) -> Result<String, Loss> {
        self.made += 1;
        let key = format!("soak-{}-{}-{}", self.number, self.made, self.dice.roll());
        create_with(shared, body, &key).await
    }

    async fn rollback(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let own: Vec<Moment> = self.moments.iter().filter(|m| m.sandbox == self.kept.id).cloned().collect();
        if own.is_empty() {
            return self.snapshot(shared).await;
        }
        let moment = self.dice.pick(&own).clone();
        let from = self.kept.phase.clone();
        let body = json!({ "snapshot": moment.id });
        let reply = shared.call(Method::POST, &self.kept.path("/rollback"), Some(body)).await?;
        self.kept.note(format!(
            "rollback to {} memory={} ({from}) → {}",
            moment.id,
            moment.memory,
            said(&reply)
        ));
        let mut after = moment.may.clone();
        if !matches!(reply, Reply::Answer(_)) {
            after.extend(moment.may.iter().map(Version::without_memory));
            after.extend(self.kept.may.iter().map(Version::without_memory));
        }
        let certain = self.follow(&reply, after, &[])?;
        let to = if from == "stopped" { "stopped" } else { "running" };
        let anything = [from.as_str(), "running", "stopped", "paused", "failed"];
        self.kept.settle(shared, if certain { std::slice::from_ref(&to) } else { &anything }).await?;
        // It is unknown whether the disk was full at that moment; removing a missing file is harmless.
        self.kept.full = true;
        self.revive(shared).await?;
        Ok(if moment.memory { "rollback memory" } else { "rollback files" })
    }

    async fn archive(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        self.wish(shared, &ARCHIVE).await
    }

    /// Fills the disk; what was there stays.
    async fn fill(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        if self.kept.full {
            return self.make_room(shared).await;
        }
        self.kept.note("fill the disk");
        self.kept.full = true;
        let lines = format!("fill {FILL} {}\n", self.dice.below(99));
        let look = self.kept.look(shared, Some(&lines)).await?;
        if look.is_none() {
            self.kept.loosen();
        }
        self.kept.judge_until_sure(shared, look).await?;
        Ok("disk full")
    }

    /// What a snapshot holds is on its sandbox's account, so the snapshots go too; their blocks are freed behind the answer.
    async fn make_room(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        for moment in std::mem::take(&mut self.moments) {
            remove_snapshot(shared, &moment.id).await?;
        }
        let path = self.kept.path(&format!("/files?path={FOLDER}/{FILL}"));
        let started = Instant::now();
        loop {
            let answer = shared.insist(Method::DELETE, &path, None).await?;
            if answer.status >= 300 && answer.code() != "file_not_found" {
                return Err(format!("no room can be made: {answer}"));
            }
            let reply = shared.put(&path, vec![1; 2_000_000]).await?;
            match reply {
                Reply::Answer(answer) if answer.status < 300 => break,
                Reply::Answer(answer) if answer.code() != "disk_full" => {
                    return Err(format!("no room: {answer}"));
                }
                _ if started.elapsed() > PATIENCE => {
                    return Err(format!("LOSS: the disk stays full: {}", said(&reply)));
                }
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        shared.insist(Method::DELETE, &path, None).await?;
        self.kept.note(format!("make room in {:?}", started.elapsed()));
        self.kept.full = false;
        Ok("make room")
    }

    /// Limits, holds and lifetimes change, and nothing else.
    async fn update(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let (method, tail, body) = match self.dice.below(5) {
            0 => (Method::POST, "/hold", Some(json!({ "for_s": 60, "reason": "soak" }))),
            1 => (Method::DELETE, "/hold", None),
            2 => (Method::POST, "/extend", Some(json!({ "seconds": 3_600 }))),
            3 => (Method::PATCH, "", Some(json!({ "disk_mib": 64 + self.dice.below(16) }))),
            _ => (Method::PATCH, "", Some(json!({ "memory_mib": 96 + self.dice.below(128), "cpu": 1.0 }))),
        };
        let reply = shared.call(method, &self.kept.path(tail), body.clone()).await?;
        self.kept.note(format!("update {tail} {body:?} → {}", said(&reply)));
        match &reply {
            Reply::Answer(answer) if answer.status >= 300 && answer.code() != "below_use" => {
                return Err(refusal(answer));
            }
            Reply::Answer(_) => {}
            Reply::Lost => self.kept.loosen(),
        }
        Ok("update")
    }

    /// What makes no sense in this phase is refused by name, and nothing changes.
    async fn refused(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        let nowhere = Some(json!({ "snapshot": "abcdefghijklmnopqrst" }));
        let (tail, body, codes): (_, _, &[&str]) = match (self.kept.phase.as_str(), self.dice.percent(50)) {
            (_, true) => ("/rollback", nowhere, &["snapshot_not_found", "phase_conflict"]),
            ("running" | "paused", _) => ("/restore", None, &["phase_conflict"]),
            ("stopped", _) => ("/pause", None, &["phase_conflict"]),
            _ => ("/snapshots", Some(json!({})), &["phase_conflict"]),
        };
        let reply = shared.call(Method::POST, &self.kept.path(tail), body).await?;
        self.kept.note(format!("{tail} without sense ({}) → {}", self.kept.phase, said(&reply)));
        match &reply {
            Reply::Answer(answer) if !codes.contains(&answer.code().as_str()) => {
                Err(format!("expected one of {codes:?}: {answer}"))
            }
            _ => Ok("refused"),
        }
    }

    /// Deletes it and makes a new one.
    async fn replace(&mut self, shared: &Shared) -> Result<&'static str, Loss> {
        remove(shared, &self.kept.id).await?;
        self.made += 1;
        let key = format!("soak-{}-{}-{}", self.number, self.made, self.dice.roll());
        self.kept = create(shared, &mut self.dice, &key).await?;
        Ok("delete and create")
    }
}

const fn plain(name: &'static str, tail: &'static str, to: &'static [&'static str], keeps: bool) -> Wish {
    Wish { name, tail, body: None, to, keeps_memory: keeps }
}

const START: Wish = plain("start", "/start", &["running"], true);
const RESUME: Wish = plain("resume", "/resume", &["running"], true);
const STOP: Wish = plain("stop", "/stop", &["stopped"], false);
const RESTART: Wish = plain("restart", "/restart", &["running"], false);
const ARCHIVE: Wish = plain("archive", "/archive", &["archived"], false);
const RESTORE: Wish = plain("restore", "/restore", &["stopped"], true);

fn pause() -> Wish {
    plain("pause", "/pause", &["paused"], true)
}

fn checkpoint() -> Wish {
    Wish {
        name: "checkpoint",
        tail: "/pause",
        body: Some(json!({ "memory": "disk" })),
        to: &["paused"],
        keeps_memory: true,
    }
}

/// Every version between the old one and the one after all lines.
fn between(old: &Version, lines: &str) -> Vec<Version> {
    let mut found = Vec::new();
    let (mut tree, mut memory): (Tree, _) = ((*old.tree).clone(), old.memory.clone());
    for line in lines.lines() {
        match crate::state_model::Change::parse(line) {
            Some(change) => tree = tree.after(&change),
            None => {
                let seed = line.strip_prefix("stir ").and_then(|seed| seed.parse().ok());
                memory = memory.zip(seed).map(|(memory, seed)| memory.stirred(seed));
            }
        }
        found.push(Version {
            sight: Arc::new(tree.sight()),
            tree: Arc::new(tree.clone()),
            memory: memory.clone(),
        });
    }
    found
}

async fn create(shared: &Shared, dice: &mut Dice, key: &str) -> Result<Kept, Loss> {
    let body = json!({ "template": shared.template, "memory_mib": 128, "disk_mib": 64, "pids": 64, "network": "deny-all" });
    let id = create_with(shared, body, key).await?;
    let mut kept = Kept::new(id, vec![Version::new(Tree::default(), None)]);
    kept.note("created");
    kept.furnish(shared, dice.roll()).await?;
    Ok(kept)
}

/// Creates until it is answered; the key makes that one sandbox.
async fn create_with(shared: &Shared, body: Value, key: &str) -> Result<String, Loss> {
    for round in 0..200 {
        // One whose boot was cut short by the death of a launcher has failed for good, and its key says so again and again.
        let key = format!("{key}-{}", round / 5);
        let asked = shared.call_keyed(Method::POST, "/v1/sandboxes", Some(body.clone()), Some(&key)).await?;
        let Reply::Answer(answer) = asked else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let found = answer.json();
        let Some(id) = found["id"].as_str().filter(|_| answer.status < 300) else {
            return Err(refusal(&answer));
        };
        let mut kept = Kept::new(id.to_owned(), Vec::new());
        kept.settle(shared, &["running", "failed"]).await?;
        if kept.phase == "failed" {
            shared.insist(Method::POST, &kept.path("/start"), None).await?;
            kept.settle(shared, &["running"]).await?;
        }
        return Ok(kept.id);
    }
    Err("a create was never answered".to_owned())
}

/// The children that an answer names, if it grants what was asked.
fn children_of(answer: &Answer, memory: bool, count: u64) -> Result<Vec<String>, Loss> {
    if answer.status != 201 {
        return Err(refusal(answer));
    }
    let forked = answer.json();
    let children: Vec<String> = forked["sandboxes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|child| child["id"].as_str().map(str::to_owned))
        .collect();
    if forked["memory"] != memory {
        // Files alone, and the answer says why.
        return Err(refusal(answer));
    }
    if children.len() as u64 != count {
        return Err(format!("not what was asked for: {forked}"));
    }
    Ok(children)
}

async fn remove(shared: &Shared, id: &str) -> Result<(), Loss> {
    let answer = shared.insist(Method::DELETE, &format!("/v1/sandboxes/{id}"), None).await?;
    if answer.status < 300 { Ok(()) } else { Err(format!("not deleted: {answer}")) }
}

async fn remove_snapshot(shared: &Shared, id: &str) -> Result<(), Loss> {
    let answer = shared.insist(Method::DELETE, &format!("/v1/snapshots/{id}"), None).await?;
    let fair = answer.status < 300 || answer.code() == "snapshot_not_found";
    if fair { Ok(()) } else { Err(format!("the snapshot stays: {answer}")) }
}

fn said(reply: &Reply) -> String {
    match reply {
        Reply::Lost => "lost".to_owned(),
        Reply::Answer(answer) => format!("{} {}", answer.status, answer.code()),
    }
}

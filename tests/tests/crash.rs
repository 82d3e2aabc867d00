//! The server dies at every named place of every transition, and at random moments of the long ones: afterwards the sandbox
//! is as it was or as it was to be, its files and its memory are whole, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "which places were reached is part of the result")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use atoll_container::FailPoint;
use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::{Kept, Version};
use atoll_tests::state_model::Dice;
use atoll_tests::{Answer, Client, Value, World, criu, json, run, until};
use nix::sys::signal::Signal;
use reqwest::Method;

/// A request during which the server may die.
async fn attempt(client: &Client, method: Method, path: &str, body: Option<Value>) -> Option<Answer> {
    let mut request = client.raw(method.clone(), path);
    if let Some(body) = &body {
        request = request.json(body);
    }
    client.try_judged(request, &method, path, body.as_ref()).await.ok()
}

/// What is asked at the moment of the crash, on a sandbox in a state that fits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Pause,
    Checkpoint,
    Thaw,
    Restore,
    Snapshot,
    DeleteSnapshot,
    Fork,
    Archive,
    FromArchive,
    RollbackFiles,
    RollbackMemory,
    Stop,
    Start,
}

impl Ask {
    /// Where the sandbox is before, by verbs that lead there.
    fn before(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Thaw => &[("pause", "live")],
            Self::Restore => &[("pause", "disk")],
            Self::Start => &[("stop", "")],
            Self::FromArchive => &[("archive", "")],
            _ => &[],
        }
    }

    fn request(self, id: &str, snapshot: &str) -> (Method, String, Option<Value>) {
        let path = |tail: &str| format!("/v1/sandboxes/{id}/{tail}");
        let post = |tail: &str, body: Option<Value>| (Method::POST, path(tail), body);
        match self {
            Self::Pause => post("pause", None),
            Self::Checkpoint => post("pause", Some(json!({ "memory": "disk" }))),
            Self::Thaw | Self::Restore => post("resume", None),
            Self::Snapshot => post("snapshots", Some(json!({ "memory": true }))),
            Self::DeleteSnapshot => (Method::DELETE, format!("/v1/snapshots/{snapshot}"), None),
            Self::Fork => post("fork", Some(json!({ "count": 2, "memory": true }))),
            Self::Archive => post("archive", None),
            Self::FromArchive | Self::Start => post("start", None),
            Self::RollbackFiles | Self::RollbackMemory => {
                post("rollback", Some(json!({ "snapshot": snapshot })))
            }
            Self::Stop => post("stop", None),
        }
    }

    /// Where the sandbox may be afterwards.
    fn after(self) -> &'static [&'static str] {
        match self {
            Self::Pause | Self::Checkpoint | Self::Thaw | Self::Restore => &["running", "paused"],
            Self::Snapshot | Self::DeleteSnapshot | Self::Fork => &["running"],
            Self::Archive => &["running", "stopped", "archived"],
            Self::FromArchive => &["archived", "stopped", "running"],
            Self::RollbackFiles | Self::RollbackMemory => &["running", "stopped", "paused"],
            Self::Stop | Self::Start => &["running", "stopped"],
        }
    }

    fn ends_processes(self) -> bool {
        matches!(self, Self::Archive | Self::Stop | Self::RollbackFiles)
    }
}

/// Every place and what leads there. Places that every transition passes are met by a few of them.
const PLACES: &[(&str, &[Ask])] = &[
    ("pause.before", &[Ask::Pause]),
    ("pause.frozen", &[Ask::Pause, Ask::Checkpoint]),
    ("checkpoint.before", &[Ask::Checkpoint]),
    ("checkpoint.after", &[Ask::Checkpoint]),
    ("resume.before", &[Ask::Thaw]),
    ("resume.after", &[Ask::Thaw]),
    ("restore.before", &[Ask::Restore]),
    ("restore.made", &[Ask::Restore]),
    ("snapshot.row", &[Ask::Snapshot]),
    ("snapshot.made", &[Ask::Snapshot]),
    ("snapshot.ready", &[Ask::Snapshot]),
    ("snapshot.deleting", &[Ask::DeleteSnapshot]),
    ("snapshot.removed", &[Ask::DeleteSnapshot]),
    ("fork.snapshot", &[Ask::Fork]),
    ("fork.child", &[Ask::Fork]),
    ("fork.made", &[Ask::Fork]),
    ("fork.done", &[Ask::Fork]),
    ("archive.before", &[Ask::Archive]),
    ("archive.packed", &[Ask::Archive]),
    ("archive.uploaded", &[Ask::Archive]),
    ("archive.written", &[Ask::Archive]),
    ("archive.local_removed", &[Ask::Archive]),
    ("restore.fetch", &[Ask::FromArchive]),
    ("restore.unpacked", &[Ask::FromArchive]),
    ("restore.objects_removed", &[Ask::FromArchive]),
    ("rollback.before", &[Ask::RollbackFiles, Ask::RollbackMemory]),
    ("rollback.after", &[Ask::RollbackFiles, Ask::RollbackMemory]),
    ("effect.before", &[Ask::Checkpoint, Ask::Restore]),
    ("effect.after", &[Ask::Pause, Ask::Stop]),
    ("advance.before", &[Ask::Checkpoint, Ask::RollbackMemory, Ask::FromArchive]),
    ("advance.after", &[Ask::Restore, Ask::Archive, Ask::Start]),
];

/// The steps of the engine: at every place between two of them the server dies. `FailPoint::PLACES` lists them all.
const STEPS: &[(Ask, &[&str])] = &[
    (Ask::Start, &["start.prepared", "start.spawned", "start.connected"]),
    (
        Ask::Checkpoint,
        &[
            "checkpoint.frozen",
            "checkpoint.drafted",
            "dump.begin",
            "dump.started",
            "dump.written",
            "dump.frozen",
            "dump.sealed",
            "checkpoint.dumped",
            "commit.cleared",
            "commit.synced",
            "commit.renamed",
            "checkpoint.committed",
            "end.killed",
            "checkpoint.killed",
            "checkpoint.dead",
            "checkpoint.detached",
        ],
    ),
    (
        Ask::Restore,
        &[
            "restore.verified",
            "restore.prepared",
            "restore.started",
            "restore.connected",
            "restore.frozen",
            "restore.standing",
            "restore.closed",
            "restore.open",
            "restore.limited",
            "spend.noted",
            "spend.renamed",
            "restore.spent",
            "restore.thawed",
            "restore.watched",
            "restore.freed",
        ],
    ),
    (
        Ask::Fork,
        &[
            "snapshot.folder",
            "snapshot.frozen",
            "dump.started",
            "snapshot.dumped",
            "snapshot.copied",
            "snapshot.thawed",
            "snapshot.synced",
            "snapshot.sealed",
            "fork.checked",
            "fork.copied",
            "fork.named",
            "restore.started",
            "restore.frozen",
            "restore.limited",
            "restore.thawed",
        ],
    ),
    (
        Ask::RollbackMemory,
        &[
            "rollback.checked",
            "rollback.prepared",
            "end.killed",
            "rollback.ended",
            "rollback.forgotten",
            "rollback.swapped",
            "rollback.drafted",
            "rollback.filled",
            "commit.synced",
            "commit.renamed",
            "rollback.placed",
            "restore.frozen",
            "restore.spent",
        ],
    ),
];

/// LIMIT: how long after an answer work behind it may take on a busy machine to come to its place.
const BEHIND_THE_ANSWER: Duration = Duration::from_secs(10);
/// LIMIT: what is taken up after a restart is done by then. Less than it takes to give up an agent that does not answer.
const TAKEN_UP_WITHIN: Duration = Duration::from_secs(8);

struct Stage {
    shared: Shared,
    kept: Kept,
    files: (String, Vec<Version>),
    memory: (String, Vec<Version>),
    dice: Dice,
}

impl Stage {
    async fn new(w: &World) -> Self {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let kept = Kept::create(&shared, json!({ "memory_mib": 128, "disk_mib": 128 }), 3).await;
        let nothing = (String::new(), Vec::new());
        Self { shared, kept, files: nothing.clone(), memory: nothing, dice: Dice::new(9) }
    }

    async fn snapshot(&self, memory: bool) -> (String, Vec<Version>) {
        let path = self.kept.path("/snapshots");
        let made = self.shared.client.post(&path, json!({ "memory": memory })).await.ok();
        let of = |version: &Version| if memory { version.clone() } else { version.without_memory() };
        (made["id"].as_str().unwrap().to_owned(), self.kept.may.iter().map(of).collect())
    }

    /// Brings the sandbox where the wish makes sense, with changes since the last snapshot.
    async fn prepare(&mut self, ask: Ask) {
        let wants_snapshot = matches!(ask, Ask::RollbackFiles | Ask::RollbackMemory | Ask::DeleteSnapshot);
        if wants_snapshot {
            self.files = self.snapshot(false).await;
            self.memory = self.snapshot(true).await;
        }
        self.kept.change(&self.shared, &mut self.dice).await;
        for (verb, memory) in ask.before() {
            let body = if memory.is_empty() { json!(null) } else { json!({ "memory": memory }) };
            let path = self.kept.path(&format!("/{verb}"));
            let body = Some(body).filter(|body| !body.is_null());
            self.shared.client.send(Method::POST, &path, body.as_ref()).await.ok();
        }
        let phase = match ask {
            Ask::Thaw | Ask::Restore => "paused",
            Ask::Start => "stopped",
            Ask::FromArchive => "archived",
            _ => "running",
        };
        self.kept.is_intact(&self.shared, phase).await;
    }

    /// What the sandbox may be when the wish was cut short.
    fn expect(&mut self, ask: Ask) {
        let mut new: Vec<Version> = self.kept.may.clone();
        match ask {
            Ask::RollbackFiles => new.extend(self.files.1.clone()),
            Ask::RollbackMemory => {
                new.extend(self.memory.1.clone());
                // A restore that failed ends with the files alone.
                new.extend(self.memory.1.iter().map(Version::without_memory));
            }
            _ => {}
        }
        if ask.ends_processes() {
            new.extend(self.kept.may.iter().map(Version::without_memory));
        }
        self.kept.become_(new, false);
    }

    fn request(&self, ask: Ask) -> (Method, String, Option<Value>) {
        let snapshot = if ask == Ask::RollbackFiles { &self.files.0 } else { &self.memory.0 };
        ask.request(&self.kept.id, snapshot)
    }

    /// After the restart: old or new, whole, and nothing else lives.
    async fn judge(&mut self, ask: Ask, place: &str) {
        let started = Instant::now();
        let settled = self.kept.settle(&self.shared, ask.after()).await;
        settled.unwrap_or_else(|loss| panic!("{place}, {ask:?}: {loss}"));
        assert!(started.elapsed() < TAKEN_UP_WITHIN, "{place}, {ask:?}: it took {:?}", started.elapsed());
        let verified = self.kept.verify(&self.shared).await;
        verified.unwrap_or_else(|loss| panic!("{place}, {ask:?}: {loss}"));
        self.no_half_snapshots(place).await;
        self.no_half_children(place).await;
        // And it can be used again.
        self.shared.client.act(&self.kept.id, "start").await.ok();
        self.kept.settle(&self.shared, &["running"]).await.unwrap();
        let verified = self.kept.verify(&self.shared).await;
        verified.unwrap_or_else(|loss| panic!("{place}, {ask:?}, after a start: {loss}"));
        let seed = self.dice.roll();
        self.kept.ensure_holder(&self.shared, seed).await.unwrap();
    }

    async fn no_half_snapshots(&self, place: &str) {
        let page = self.shared.client.get("/v1/snapshots?limit=100").await.ok();
        for found in page["items"].as_array().unwrap() {
            assert_eq!(found["state"], "ready", "{place}: {found}");
            let id = found["id"].as_str().unwrap();
            self.shared.client.post_empty(&format!("/v1/snapshots/{id}/verify")).await.ok();
            self.shared.client.delete(&format!("/v1/snapshots/{id}")).await.ok();
        }
    }

    /// All children of a fork or none of them.
    async fn no_half_children(&self, place: &str) {
        let children = until("children run or are gone", async || {
            let page = self.shared.client.get("/v1/sandboxes?limit=100").await.ok();
            let others: Vec<Value> = page["items"].as_array().unwrap().to_vec();
            let others: Vec<Value> =
                others.into_iter().filter(|s| s["id"] != self.kept.id.as_str()).collect();
            others.iter().all(|s| s["phase"] == "running").then_some(others)
        })
        .await;
        assert!(matches!(children.len(), 0 | 2), "{place}: {} children of two", children.len());
        for child in children {
            self.shared.client.remove(child["id"].as_str().unwrap()).await;
        }
    }
}

/// One after the other the server dies at each of the places, while what leads there is asked. Answers places that were not
/// reached.
async fn die_at_each(w: &World, stage: &mut Stage, cases: &[(&str, Ask)]) -> Vec<String> {
    let fail_at = w.folder().join("fail-at");
    w.crash_server_with(&[("ATOLL_FAIL_AT", &format!("@{}", fail_at.display()))]).await;
    let mut missed = Vec::new();
    for (place, ask) in cases {
        stage.prepare(*ask).await;
        stage.expect(*ask);
        let (method, path, body) = stage.request(*ask);
        std::fs::write(&fail_at, place).unwrap();
        let answer = attempt(&stage.shared.client, method, &path, body).await;
        if let Some(answer) = &answer {
            assert!(answer.status < 300, "{place}, {ask:?}: {answer}");
            // Some places come after the answer.
            let asked = Instant::now();
            while w.server_exit().is_none() && asked.elapsed() < BEHIND_THE_ANSWER {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if answer.is_some() && w.server_exit().is_none() {
            missed.push(format!("{place} by {ask:?}"));
            std::fs::remove_file(&fail_at).unwrap();
            w.crash_server().await;
        } else {
            until("the abort is over", async || w.server_exit()).await;
            w.forget_server();
            w.start_server().await;
        }
        stage.judge(*ask, place).await;
    }
    eprintln!("crash: not reached: {missed:?}");
    missed
}

#[test]
fn a_crash_at_every_named_place_ends_in_the_old_or_the_new_state() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let mut stage = Stage::new(w).await;
        let cases: Vec<_> =
            PLACES.iter().flat_map(|(place, asks)| asks.iter().map(|ask| (*place, *ask))).collect();
        let missed = die_at_each(w, &mut stage, &cases).await;
        assert!(missed.len() <= 2, "places that were not reached: {missed:?}");
        w.delete_all().await;
        w.leak_check().await;
    });
}

#[test]
fn every_place_of_the_engine_is_in_the_table() {
    let listed: BTreeSet<&str> = FailPoint::PLACES.iter().copied().collect();
    let tried: BTreeSet<&str> = STEPS.iter().flat_map(|(_, places)| places.iter().copied()).collect();
    assert_eq!(tried, listed);
}

/// All cases of the table whose number leaves this remainder: two tests, so that two servers share the work.
fn die_between_steps(remainder: usize) {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let mut stage = Stage::new(w).await;
        let cases = STEPS.iter().flat_map(|(ask, places)| places.iter().map(|place| (*place, *ask)));
        let cases: Vec<_> =
            cases.enumerate().filter(|(n, _)| n % 2 == remainder).map(|(_, case)| case).collect();
        let missed = die_at_each(w, &mut stage, &cases).await;
        assert!(missed.is_empty(), "places that were not reached: {missed:?}");
        w.delete_all().await;
        w.leak_check().await;
    });
}

#[test]
fn a_crash_between_two_steps_of_the_engine_loses_nothing_even() {
    die_between_steps(0);
}

#[test]
fn a_crash_between_two_steps_of_the_engine_loses_nothing_odd() {
    die_between_steps(1);
}

/// Issue 12, C1: the tree stood, its checkpoint was spent, and the server died before it let the tree run.
#[test]
fn what_was_restored_and_never_thawed_runs_with_its_memory() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let mut stage = Stage::new(w).await;
        let cases = [("spend.renamed", Ask::Restore), ("restore.spent", Ask::Restore)];
        assert_eq!(die_at_each(w, &mut stage, &cases).await, Vec::<String>::new());
        w.delete_all().await;
        w.leak_check().await;
    });
}

#[test]
fn kill_9_in_the_middle_of_restores_leaves_no_criu_behind() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let mut stage = Stage::new(w).await;
        for round in 0..8_u64 {
            stage.prepare(Ask::Restore).await;
            stage.expect(Ask::Restore);
            let (method, path, body) = stage.request(Ask::Restore);
            let after = Duration::from_millis(15 + round * 12);
            let killer = async {
                tokio::time::sleep(after).await;
                w.stop_server(Signal::SIGKILL).await;
            };
            let client = stage.shared.client.clone();
            let _ = futures::join!(attempt(&client, method, &path, body), killer);
            let started = Instant::now();
            w.start_server().await;
            assert!(started.elapsed() < Duration::from_secs(8), "the start took {:?}", started.elapsed());
            stage.judge(Ask::Restore, &format!("restore, after {after:?}")).await;
        }
        w.delete_all().await;
        w.leak_check().await;
    });
}

#[test]
fn kill_9_at_random_moments_of_long_transitions_loses_nothing() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let mut stage = Stage::new(w).await;
        let asks = [
            Ask::Checkpoint,
            Ask::Restore,
            Ask::Snapshot,
            Ask::Fork,
            Ask::Archive,
            Ask::FromArchive,
            Ask::RollbackFiles,
            Ask::RollbackMemory,
        ];
        for round in 0..40_usize {
            let ask = asks[round % asks.len()];
            stage.prepare(ask).await;
            stage.expect(ask);
            let (method, path, body) = stage.request(ask);
            let after =
                Duration::from_micros(stage.dice.below(if round % 3 == 0 { 20_000 } else { 200_000 }));
            let killer = async {
                tokio::time::sleep(after).await;
                w.stop_server(Signal::SIGKILL).await;
            };
            let client = stage.shared.client.clone();
            let _ = futures::join!(attempt(&client, method, &path, body), killer);
            w.start_server().await;
            stage.judge(ask, &format!("round {round}, after {after:?}")).await;
        }
        w.delete_all().await;
        w.leak_check().await;
    });
}

//! The soak: many sandboxes live random lives while server and launcher die beside them; a model says what each must hold.
//!
//! After every step every file and the held memory are compared with the model: inside by the probe while it runs, from the
//! host while it stands still. A wish whose answer was lost with the server may have been done or not; the next look decides,
//! and anything else is a loss.

pub mod calls;
pub mod kept;
mod steps;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_container::FailPoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::state_model::{self, Dice};
use crate::world::World;
use crate::{probe, template, until};
use calls::Shared;
use steps::Actor;

/// How long, how wide, and with which dice.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The dice.
    pub seed: u64,
    /// How long at most.
    pub time: Duration,
    /// After how many steps it ends earlier.
    pub cycles: Option<u64>,
    /// Sandboxes at once.
    pub actors: u64,
}

impl Plan {
    /// From `SOAK_SEED`, `SOAK_S`, `SOAK_CYCLES` and `SOAK_ACTORS`, or 45 seconds with dice of the day.
    pub fn of_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let cycles = number("SOAK_CYCLES");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        Self {
            seed: number("SOAK_SEED").unwrap_or(now.as_secs()),
            // LIMIT: a soak that counts cycles takes an hour or two on two cores.
            time: Duration::from_secs(number("SOAK_S").unwrap_or(if cycles.is_some() {
                6 * 3_600
            } else {
                45
            })),
            cycles,
            actors: number("SOAK_ACTORS").unwrap_or(6),
        }
    }
}

/// What came of it.
pub struct Report {
    /// For people and for the bench.
    pub summary: Value,
    /// Each with the history of its sandbox.
    pub losses: Vec<String>,
    /// What the server refused though it should not have. Nothing was lost by it.
    pub refusals: Vec<String>,
}

/// The template with the probe inside.
pub fn keeper_template(w: &World) -> String {
    let name = "keeper";
    if !w.templates().join(name).exists() {
        template::variant(&w.templates(), name, |rootfs, _| {
            std::fs::copy(
                probe::compiled("keeper"),
                rootfs.join(state_model::PROGRAM.trim_start_matches('/')),
            )
            .expect("the probe");
        });
    }
    name.to_owned()
}

/// Runs the soak in a world.
pub async fn soak(w: &World, plan: Plan) -> Report {
    let (tell_up, up) = watch::channel(true);
    let mut shared = Shared::new(w, w.tenant("soak").await, up);
    shared.memory = std::env::var("SOAK_MEMORY").as_deref() != Ok("0") && crate::criu::at_hand().is_some();
    let shared = Arc::new(shared);
    eprintln!("soak: {plan:?}");
    w.crash_server_with(&[("ATOLL_FAIL_AT", &format!("@{}", fail_at(w).display()))]).await;
    let started = Instant::now();
    let actors: Vec<_> = (0..plan.actors).map(|n| tokio::spawn(live(shared.clone(), n, plan.seed))).collect();
    let deaths = disasters(w, &shared, &tell_up, plan, started).await;
    shared.over.store(true, Ordering::SeqCst);
    let seconds = started.elapsed().as_secs_f64();
    let mut losses = Vec::new();
    for actor in actors {
        match actor.await {
            Ok(Ok(())) => {}
            Ok(Err(loss)) => losses.push(loss),
            Err(panic) => losses.push(format!("an actor panicked: {panic}")),
        }
    }
    let refusals = shared.refusals.lock().expect("no panic holds it").clone();
    let summary = json!({
        "seed": plan.seed,
        "seconds": (seconds * 10.0).round() / 10.0,
        "sandboxes": plan.actors,
        "cycles": shared.cycles(),
        "kills": deaths.by_kind.values().sum::<u64>(),
        "refusals": refusals.len(),
        "losses": losses.len(),
        "steps": *shared.tally.lock().expect("no panic holds it"),
        "deaths": deaths.by_kind,
        "died_at": deaths.at,
    });
    Report { summary, losses, refusals }
}

/// The file that names the place at which the server dies next.
fn fail_at(w: &World) -> PathBuf {
    w.folder().join("fail-at")
}

/// The life of one actor, until it is over or something was lost.
async fn live(shared: Arc<Shared>, number: u64, seed: u64) -> Result<(), String> {
    let mut actor = Actor::begin(&shared, number, seed).await?;
    while !shared.over.load(Ordering::SeqCst) {
        let Err(mut loss) = actor.step(&shared).await else { continue };
        if calls::is_refusal(&loss) {
            let refused = format!("{loss}\n{}", actor.history());
            eprintln!("soak: {refused}");
            shared.refusals.lock().expect("no panic holds it").push(refused);
            match actor.after_refusal(&shared).await {
                Ok(()) => continue,
                Err(after) => loss = format!("{after}\nafter {loss}"),
            }
        }
        // The first loss ends the soak: what comes after it proves nothing more.
        shared.over.store(true, Ordering::SeqCst);
        return Err(format!("{loss}\n{}", actor.history()));
    }
    actor.end(&shared).await.map_err(|(loss, history)| format!("{loss}\n{history}"))
}

/// What died how often.
#[derive(Default)]
struct Deaths {
    by_kind: BTreeMap<&'static str, u64>,
    /// Places at which the server died.
    at: BTreeMap<&'static str, u64>,
}

/// LIMIT: how long a place is waited for; some are passed seldom.
const ARMED_FOR: Duration = Duration::from_secs(4);

/// Tells the server to die at a place, and starts it again. Whether it came there in time.
async fn die_at(w: &World, shared: &Shared, tell_up: &watch::Sender<bool>, place: &str) -> bool {
    shared.armed.store(true, Ordering::SeqCst);
    std::fs::write(fail_at(w), place).expect("a file");
    let armed = Instant::now();
    while w.server_exit().is_none() && armed.elapsed() < ARMED_FOR {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The process that removes the file decides; if the server was first, it is about to abort.
    if std::fs::remove_file(fail_at(w)).is_ok() && w.server_exit().is_none() {
        shared.armed.store(false, Ordering::SeqCst);
        return false;
    }
    while w.server_exit().is_none() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tell_up.send_replace(false);
    shared.ends.fetch_add(1, Ordering::SeqCst);
    shared.armed.store(false, Ordering::SeqCst);
    w.forget_server();
    w.start_server().await;
    tell_up.send_replace(true);
    true
}

/// Server and launcher die until the time is over.
async fn disasters(
    w: &World,
    shared: &Shared,
    tell_up: &watch::Sender<bool>,
    plan: Plan,
    started: Instant,
) -> Deaths {
    let mut dice = Dice::new(plan.seed ^ 0xdead);
    let mut deaths = Deaths::default();
    let enough = || plan.cycles.is_some_and(|cycles| shared.cycles() >= cycles);
    while started.elapsed() < plan.time && !enough() && !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(700 + dice.below(3_500))).await;
        let what = match dice.below(100) {
            0..25 => {
                // One that was killed before may still be on its way back.
                let launcher = until("the server has a launcher", async || w.find_launcher()).await;
                *shared.hurt_at.lock().expect("no panic holds it") = Some(Instant::now());
                let _ = kill(Pid::from_raw(launcher), Signal::SIGKILL);
                "launcher kill -9"
            }
            25..50 => {
                let place = *dice.pick(FailPoint::PLACES);
                if !die_at(w, shared, tell_up, place).await {
                    continue;
                }
                *deaths.at.entry(place).or_insert(0) += 1;
                "server at a named place"
            }
            roll => {
                let (signal, what) = if roll < 85 {
                    (Signal::SIGKILL, "server kill -9")
                } else {
                    (Signal::SIGTERM, "server restart")
                };
                tell_up.send_replace(false);
                shared.ends.fetch_add(1, Ordering::SeqCst);
                w.stop_server(signal).await;
                w.start_server().await;
                tell_up.send_replace(true);
                what
            }
        };
        *deaths.by_kind.entry(what).or_insert(0) += 1;
        w.reap();
    }
    deaths
}

//! The soak: many sandboxes live random lives while server and launcher die beside them; a model says what each must hold.
//!
//! After every step every file and the held memory are compared with the model: inside by the probe while it runs, from the
//! host while it stands still. A wish whose answer was lost with the server may have been done or not; the next look decides,
//! and anything else is a loss.

pub mod calls;
pub mod kept;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::keeper::{self, Dice};
use crate::world::World;
use crate::{probe, template};
use calls::Shared;
use steps::Actor;

/// How long, how wide, and with which dice.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The dice.
    pub seed: u64,
    /// How long.
    pub time: Duration,
    /// Sandboxes at once.
    pub actors: u64,
}

impl Plan {
    /// From `SOAK_SEED`, `SOAK_S` and `SOAK_ACTORS`, or two minutes with dice of the day.
    pub fn of_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        Self {
            seed: number("SOAK_SEED").unwrap_or(now.as_secs()),
            time: Duration::from_secs(number("SOAK_S").unwrap_or(120)),
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
}

/// The template with the probe inside.
pub fn keeper_template(w: &World) -> String {
    let name = "keeper";
    if !w.templates().join(name).exists() {
        template::variant(&w.templates(), name, |rootfs, _| {
            std::fs::copy(probe::compiled("keeper"), rootfs.join(keeper::PROGRAM.trim_start_matches('/')))
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
    eprintln!("soak: seed {}, {} sandboxes, {:?}", plan.seed, plan.actors, plan.time);
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
    let tally = shared.tally.lock().expect("no panic holds it").clone();
    Report { summary: summary(plan, seconds, &tally, &deaths, losses.len()), losses }
}

fn summary(
    plan: Plan,
    seconds: f64,
    tally: &BTreeMap<&'static str, u64>,
    deaths: &BTreeMap<&'static str, u64>,
    losses: usize,
) -> Value {
    let cycles: u64 = tally.values().sum();
    json!({
        "seed": plan.seed,
        "seconds": (seconds * 10.0).round() / 10.0,
        "sandboxes": plan.actors,
        "cycles": cycles,
        "losses": losses,
        "steps": tally,
        "deaths": deaths,
    })
}

/// The life of one actor, until it is over or something was lost.
async fn live(shared: Arc<Shared>, number: u64, seed: u64) -> Result<(), String> {
    let mut actor = Actor::begin(&shared, number, seed).await?;
    while !shared.over.load(Ordering::SeqCst) {
        if let Err(loss) = actor.step(&shared).await {
            // The first loss ends the soak: what comes after it proves nothing more.
            shared.over.store(true, Ordering::SeqCst);
            return Err(format!("{loss}\n{}", actor.history()));
        }
    }
    actor.end(&shared).await.map_err(|(loss, history)| format!("{loss}\n{history}"))
}

/// Server and launcher die until the time is over.
async fn disasters(
    w: &World,
    shared: &Shared,
    tell_up: &watch::Sender<bool>,
    plan: Plan,
    started: Instant,
) -> BTreeMap<&'static str, u64> {
    let mut dice = Dice::new(plan.seed ^ 0xdead);
    let mut deaths = BTreeMap::new();
    while started.elapsed() < plan.time && !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(700 + dice.below(3_500))).await;
        let what = match dice.below(100) {
            0..25 => {
                *shared.hurt_at.lock().expect("no panic holds it") = Some(Instant::now());
                let _ = kill(Pid::from_raw(w.launcher_pid()), Signal::SIGKILL);
                "launcher kill -9"
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
        *deaths.entry(what).or_insert(0) += 1;
        w.reap();
    }
    deaths
}

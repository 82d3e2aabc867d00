//! A neighbour that must not notice: a sandbox of another tenant with a heart-beat of commands.
//!
//! A control run just before the attack tells what is normal on this machine now. During the attack no gap between two
//! beats may pass three seconds, and the 90th percentile stays below three times that of the control run. A thread of the test
//! that does a little work at the same pace tells how much slower the machine itself became since then: other tests run beside
//! this one, and that is not the attack's doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::client::Client;

const BEAT: Duration = Duration::from_millis(20);
const CONTROL: Duration = Duration::from_millis(600);
/// LIMIT: below this, the scheduler of a shared machine with two cores adds more than the thing that is measured.
const NOISE: Duration = Duration::from_millis(50);
/// LIMIT: of fewer beats a percentile says nothing; an attack that short is judged by the gap alone.
const ENOUGH_BEATS: usize = 30;
/// LIMIT: a neighbour that is held up by an attack stands still until the attack ends, which is longer.
const GAP_MAX: Duration = Duration::from_secs(3);
/// LIMIT: no more than this is put down to the machine.
const SLOWDOWN_MAX: f64 = 5.0;
/// LIMIT: about a millisecond of work without optimisation.
const WORK: u64 = 60_000;

/// The neighbour and its heart.
pub struct NeighbourMonitor {
    client: Client,
    id: String,
    control: Control,
    stop: Arc<AtomicBool>,
    heart: JoinHandle<Beats>,
    machine: std::thread::JoinHandle<Vec<Duration>>,
}

/// What was normal just before the attack.
struct Control {
    beat_p90: Duration,
    machine_p90: Duration,
}

#[derive(Default)]
struct Beats {
    took: Vec<Duration>,
    gap_max: Duration,
    wrong: Vec<String>,
}

impl NeighbourMonitor {
    /// Makes the neighbour, takes the control run and starts the heart-beat.
    pub async fn start(client: Client, template: &str) -> Self {
        let id = client.create(json!({ "template": template, "network": "deny-all" })).await;
        let enough = Arc::new(AtomicBool::new(false));
        let machine = measure_machine(&enough);
        let control = tokio::spawn(beat(client.clone(), id.clone(), enough.clone()));
        tokio::time::sleep(CONTROL).await;
        enough.store(true, Ordering::Relaxed);
        let control = control.await.expect("the control run");
        assert!(control.wrong.is_empty(), "the witness is ill before the attack: {:?}", control.wrong);
        let machine_p90 = p90(machine.join().expect("the thread"));
        let control = Control { beat_p90: p90(control.took), machine_p90 };
        let stop = Arc::new(AtomicBool::new(false));
        let machine = measure_machine(&stop);
        let heart = tokio::spawn(beat(client.clone(), id.clone(), stop.clone()));
        Self { client, id, control, stop, heart, machine }
    }

    /// Its sandbox.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Ends the heart-beat, judges it and deletes the neighbour.
    pub async fn verify(self) {
        // The attack may have been shorter than a beat.
        tokio::time::sleep(BEAT * 3).await;
        self.stop.store(true, Ordering::Relaxed);
        let beats = self.heart.await.expect("the heart");
        assert!(beats.wrong.is_empty(), "the witness was hurt: {:?}", beats.wrong);
        assert!(!beats.took.is_empty(), "the witness never beat");
        assert!(beats.gap_max <= GAP_MAX, "the witness stood still for {:?}", beats.gap_max);
        let machine = p90(self.machine.join().expect("the thread"));
        let slowdown = machine.as_secs_f64() / self.control.machine_p90.as_secs_f64().max(f64::EPSILON);
        let bound = (self.control.beat_p90 * 3).max(NOISE).mul_f64(slowdown.clamp(1.0, SLOWDOWN_MAX));
        let (count, now) = (beats.took.len(), p90(beats.took));
        assert!(
            count < ENOUGH_BEATS || now < bound,
            "the witness was slowed: p90 {now:?} of {count} beats, control {:?}, the machine itself {slowdown:.1} times slower",
            self.control.beat_p90
        );
        self.client.remove(&self.id).await;
    }
}

async fn beat(client: Client, id: String, stop: Arc<AtomicBool>) -> Beats {
    let mut beats = Beats::default();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let answer = client.try_exec(&id, json!({ "argv": ["/bin/echo", "beat"] })).await;
        let took = started.elapsed();
        if answer.status != 200 || answer.json()["stdout"] != "beat\n" {
            beats.wrong.push(answer.to_string());
        }
        beats.gap_max = beats.gap_max.max(last.elapsed());
        last = Instant::now();
        beats.took.push(took);
        tokio::time::sleep(BEAT).await;
    }
    beats
}

/// Works for a moment in every beat, on a thread of its own; how long each moment took, its wait for a processor included.
fn measure_machine(stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<Vec<Duration>> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut took = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            std::thread::sleep(BEAT);
            std::hint::black_box((0..WORK).fold(1_u64, |sum, n| sum.wrapping_mul(31).wrapping_add(n)));
            took.push(begun.elapsed().saturating_sub(BEAT));
        }
        took
    })
}

fn p90(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() * 9 / 10).copied().unwrap_or_default()
}

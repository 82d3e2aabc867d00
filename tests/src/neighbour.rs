//! A neighbour that must not notice: a sandbox of another tenant with a heart-beat of commands.
//!
//! A control run just before the attack tells what is normal on this machine now. During the attack no gap between two
//! beats may pass one second, and the 90th percentile stays below three times that of the control run.

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
const GAP_MAX: Duration = Duration::from_secs(1);

/// The neighbour and its heart.
pub struct NeighbourMonitor {
    client: Client,
    id: String,
    control_p90: Duration,
    stop: Arc<AtomicBool>,
    heart: JoinHandle<Beats>,
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
        let control = tokio::spawn(beat(client.clone(), id.clone(), enough.clone()));
        tokio::time::sleep(CONTROL).await;
        enough.store(true, Ordering::Relaxed);
        let control = control.await.expect("the control run");
        assert!(control.wrong.is_empty(), "the witness is ill before the attack: {:?}", control.wrong);
        let control_p90 = p90(control.took);
        let stop = Arc::new(AtomicBool::new(false));
        let heart = tokio::spawn(beat(client.clone(), id.clone(), stop.clone()));
        Self { client, id, control_p90, stop, heart }
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
        let (count, now, bound) = (beats.took.len(), p90(beats.took), (self.control_p90 * 3).max(NOISE));
        assert!(
            count < ENOUGH_BEATS || now < bound,
            "the witness was slowed: p90 {now:?} of {count} beats, control {:?}",
            self.control_p90
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

fn p90(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() * 9 / 10).copied().unwrap_or_default()
}

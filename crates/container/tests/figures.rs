//! Prints the duration of a cold start, alone and with more mounts. It asserts nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::snapshot_helpers::{legacy, plain};
use crate::common::{World, in_world};
use atoll_container::EngineConfig;
use atoll_model::VolumeId;
use atoll_provider::support::*;
use atoll_provider::{InstanceMount, InstanceSpec, MountSource};

const STARTS: usize = 60;

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

async fn starts(world: &World, what: &str, make: impl Fn() -> InstanceSpec) {
    let mut totals = Vec::new();
    let mut steps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..STARTS {
        let spec = make();
        let begun = Instant::now();
        world.create(&spec).await;
        totals.push(begun.elapsed().as_secs_f64() * 1e3);
        for (step, us) in world.engine.timings() {
            steps.entry(step).or_default().push(f64::from(us) / 1e3);
        }
        world.destroy(&spec).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let least = totals.iter().copied().fold(f64::MAX, f64::min);
    let steps: Vec<String> =
        steps.into_iter().map(|(step, of)| format!("{step} {:.2}", median(of))).collect();
    eprintln!("{what}: min {least:.2} med {:.2} ms; {}", median(totals), steps.join(", "));
}

fn figures(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        for round in 0..3 {
            starts(&world, &format!("cold {round}"), || world.spec()).await;
        }
        for count in [1, 8, 31] {
            let spec = world.many_layers(count);
            let make = || InstanceSpec {
                template: spec.template.clone(),
                template_version: spec.template_version.clone(),
                ..world.spec()
            };
            starts(&world, &format!("cold, {count} layers over busybox"), make).await;
        }
        let volumes: Vec<VolumeId> = (0..16).map(|n| VolumeId::from_entropy([n; 20])).collect();
        for volume in &volumes {
            world.engine.create_volume(volume, Some(64)).await.unwrap();
        }
        for count in [1, 4, 16] {
            let mount = |volume: &VolumeId| InstanceMount {
                source: MountSource::Volume { volume: volume.clone(), sub_path: None },
                path: format!("/mnt/{volume}"),
                read_only: false,
            };
            let mounts: Vec<InstanceMount> = volumes.iter().take(count).map(mount).collect();
            let make = || InstanceSpec { mounts: mounts.clone(), ..world.spec() };
            starts(&world, &format!("cold, {count} volumes"), make).await;
        }
        world
    });
}

#[test]
#[ignore = "prints figures; run alone with --ignored --nocapture"]
fn figures_of_cold_starts() {
    figures(plain);
}

#[test]
#[ignore = "prints figures; run alone with --ignored --nocapture"]
fn figures_of_cold_starts_by_the_paths_for_old_kernels() {
    figures(legacy);
}

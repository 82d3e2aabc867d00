//! What a create costs above the provider: two commits and one greeting. Run by hand:
//! `cargo test -p atoll-service --test cost -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

mod world;

use std::time::Instant;

use world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn create_and_first_command_over_the_fake() {
    let world = World::new().await;
    let mut times = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..300 {
        let begun = Instant::now();
        let lease = world.create().await;
        times.0.push(begun.elapsed());
        let exec =
            atoll_service::Exec { argv: vec!["echo".to_owned(), "x".to_owned()], ..Default::default() };
        let begun = Instant::now();
        world.service.exec(&world.admin, lease.id.as_str(), exec).await.unwrap();
        times.1.push(begun.elapsed());
        let begun = Instant::now();
        world.service.delete(&world.admin, lease.id.as_str(), true).await.unwrap();
        times.2.push(begun.elapsed());
    }
    for (name, times) in [("create", &mut times.0), ("exec", &mut times.1), ("delete", &mut times.2)] {
        times.sort();
        println!("{name}: p50 {:?} p99 {:?}", times[150], times[296]);
    }
    let begun = Instant::now();
    let creates = (0..100).map(|_| {
        let (service, who) = (world.service.clone(), world.admin.clone());
        tokio::spawn(async move { service.create(&who, Default::default(), true).await.unwrap() })
    });
    for create in creates.collect::<Vec<_>>() {
        create.await.unwrap();
    }
    println!("100 at once: {:?}", begun.elapsed());
}

//! Checkpoints when something goes wrong beside them: a CRIU that fails for a moment, connections that a kill has cut, and a
//! checkpoint that lies where another one belongs.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "how many kills were met is part of the result")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::Kept;
use atoll_tests::{Answer, World, criu, json, proc, run, template};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What CRIU says when a connection changes between two of its questions.
const CUT: &str = "(00.1) Error (soccr/soccr.c:319): recv failed (0, want 29): Success\n\
    (00.1) Error (criu/sk-tcp.c:153): libsoccr_save() failed with -6\n";

/// A CRIU that fails as many dumps as a file says, in that way, and works then.
struct Flaky {
    program: PathBuf,
    left: PathBuf,
}

impl Flaky {
    fn make(w: &World, real: &Path) -> Self {
        let folder = w.folder().join("flaky");
        std::fs::create_dir(&folder).unwrap();
        let (program, left, log) = (folder.join("criu"), folder.join("left"), folder.join("log"));
        std::fs::write(&log, CUT).unwrap();
        let (left_at, log_at, real) = (left.display(), log.display(), real.display());
        let script = format!(
            "#!/bin/sh\n\
             if [ \"$1\" = dump ]; then\n\
               read -r left <{left_at}\n\
               if [ \"$left\" -gt 0 ]; then\n\
                 echo $((left - 1)) >{left_at}\n\
                 while read -r line; do echo \"$line\"; done <{log_at} >/tmp/criu.log\n\
                 exit 1\n\
               fi\n\
             fi\n\
             exec {real} \"$@\"\n"
        );
        std::fs::write(&program, script).unwrap();
        template::set_mode(&program, 0o755);
        let flaky = Self { program, left };
        flaky.fail_next(0);
        flaky
    }

    fn fail_next(&self, dumps: u32) {
        std::fs::write(&self.left, format!("{dumps}\n")).unwrap();
    }

    fn left(&self) -> String {
        std::fs::read_to_string(&self.left).unwrap().trim().to_owned()
    }
}

async fn pause_to_disk(shared: &Shared, kept: &Kept) -> Answer {
    shared.client.post(&kept.path("/pause"), json!({ "memory": "disk" })).await
}

#[test]
fn a_dump_that_fails_is_tried_once_more_and_its_failure_may_be_repeated() {
    let Some(real) = criu::at_hand() else { return };
    run(async |w| {
        let flaky = Flaky::make(w, &real);
        w.crash_server_with(&[("ATOLL_CRIU", flaky.program.to_str().unwrap())]).await;
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let mut kept = Kept::create(&shared, json!({ "memory_mib": 128 }), 5).await;
        // A single failure is not visible to the caller.
        flaky.fail_next(1);
        pause_to_disk(&shared, &kept).await.ok();
        assert_eq!(flaky.left(), "0", "the failure was met");
        kept.is_intact(&shared, "paused").await;
        shared.client.act(&kept.id, "resume").await.ok();
        kept.is_intact(&shared, "running").await;
        // Twice: an error that says to try again, and the sandbox runs on.
        flaky.fail_next(2);
        let refused = pause_to_disk(&shared, &kept).await;
        let envelope = refused.refused(503, "sandbox_unavailable");
        assert!(refused.headers.contains_key("retry-after"), "{refused}");
        assert!(envelope["message"].as_str().unwrap().contains("recv failed"), "{envelope}");
        assert_eq!(flaky.left(), "0", "it was tried twice and no more");
        kept.is_intact(&shared, "running").await;
        // A snapshot with memory is made by the same dump.
        flaky.fail_next(1);
        shared.client.post(&kept.path("/snapshots"), json!({ "memory": true })).await.ok();
        assert_eq!(flaky.left(), "0");
        pause_to_disk(&shared, &kept).await.ok();
        kept.is_intact(&shared, "paused").await;
        shared.client.act(&kept.id, "resume").await.ok();
        kept.is_intact(&shared, "running").await;
    });
}

/// The server dies over commands that talk, while the sandbox is frozen: the agent cannot close what the kill has cut.
#[test]
fn connections_that_a_kill_has_cut_do_not_hold_up_a_checkpoint() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let mut kept = Kept::create(&shared, json!({ "memory_mib": 128 }), 6).await;
        for _ in 0..3 {
            let line = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); echo $i; done";
            let talks = json!({ "argv": ["/bin/sh", "-c", line] });
            let talking = (0..4).map(|_| {
                let (client, path, talks) = (shared.client.clone(), kept.path("/exec/stream"), talks.clone());
                tokio::spawn(async move {
                    // The client does not read, so that the agent's data stays in the server's own connections.
                    let _unread = client.raw(reqwest::Method::POST, &path).json(&talks).send().await;
                    std::future::pending::<()>().await
                })
            });
            let talking: Vec<_> = talking.collect();
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            shared.client.post(&kept.path("/pause"), json!({ "memory": "live" })).await.ok();
            w.stop_server(Signal::SIGKILL).await;
            w.start_server().await;
            pause_to_disk(&shared, &kept).await.ok();
            shared.client.act(&kept.id, "resume").await.ok();
            for one in talking {
                one.abort();
            }
            kept.is_intact(&shared, "running").await;
        }
    });
}

/// Issue 12, C7: each checkpoint says whose it is.
#[test]
fn a_checkpoint_in_the_place_of_another_is_refused_by_its_manifest() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let mut one = Kept::create(&shared, json!({ "memory_mib": 128 }), 7).await;
        let mut two = Kept::create(&shared, json!({ "memory_mib": 128 }), 8).await;
        pause_to_disk(&shared, &one).await.ok();
        pause_to_disk(&shared, &two).await.ok();
        let folder = w.data().join("pool/checkpoints");
        let swap = || {
            let (a, b, aside) = (folder.join(&one.id), folder.join(&two.id), folder.join("aside"));
            std::fs::rename(&a, &aside).unwrap();
            std::fs::rename(&b, &a).unwrap();
            std::fs::rename(&aside, &b).unwrap();
        };
        swap();
        for (own, other) in [(&one, &two), (&two, &one)] {
            let refused = shared.client.act(&own.id, "resume").await;
            let envelope = refused.refused(409, "damaged");
            let message = envelope["message"].as_str().unwrap();
            assert!(message.contains(&other.id), "it says whose it is: {message}");
        }
        swap();
        for kept in [&mut one, &mut two] {
            kept.is_intact(&shared, "paused").await;
            shared.client.act(&kept.id, "resume").await.ok();
            kept.is_intact(&shared, "running").await;
        }
    });
}

/// The run of CRIU that the server has begun, once its own program runs: the fetched one is started by a script.
fn run_of_criu(w: &World, what: &str) -> Option<i32> {
    let is_it = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.contains(&what.as_bytes()) && !words.iter().any(|word| word.ends_with(b"sh"))
    };
    let below = proc::descendants(w.launcher_pid());
    below.iter().map(|process| process.pid).find(|pid| is_it(*pid))
}

/// Waits for the answer to `request` and meanwhile ends a run of CRIU of that kind, `after` it began; answers whether one was met.
async fn while_criu_is_killed(
    w: &World,
    what: &str,
    after: Duration,
    request: impl Future<Output = Answer>,
) -> (Answer, bool) {
    let answered = AtomicBool::new(false);
    let request = async {
        let answer = request.await;
        answered.store(true, Ordering::SeqCst);
        answer
    };
    tokio::join!(request, kill_criu(w, what, after, &answered))
}

async fn kill_criu(w: &World, what: &str, after: Duration, answered: &AtomicBool) -> bool {
    while !answered.load(Ordering::SeqCst) {
        if let Some(pid) = run_of_criu(w, what) {
            tokio::time::sleep(after).await;
            return kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// CRIU is killed at varied moments of a dump. What it leaves in the processes is removed, so the second try or a later pause
/// works. What is lost all the same is counted, see docs/decisions/0008-checkpoint.md.
#[test]
fn a_killed_dump_leaves_a_sandbox_that_can_be_paused() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let (mut met, mut ended, mut changed) = (0, 0, 0);
        for round in 0..6_u64 {
            let mut kept = Kept::create(&shared, json!({ "memory_mib": 128 }), 20 + round).await;
            let after = Duration::from_millis(8 + 17 * round);
            let (paused, killed) =
                while_criu_is_killed(w, "dump", after, pause_to_disk(&shared, &kept)).await;
            met += u32::from(killed);
            let is_paused = paused.status < 300;
            if is_paused {
                shared.client.act(&kept.id, "resume").await;
            }
            if kept.settle(&shared, &["running"]).await.is_err() {
                eprintln!("ended by a kill after {after:?}: {paused}");
                ended += 1;
                continue;
            }
            if !is_paused {
                paused.refused(503, "sandbox_unavailable");
            }
            changed += u32::from(kept.verify(&shared).await.is_err());
            pause_to_disk(&shared, &kept).await.ok();
            shared.client.delete(&kept.path("")).await.ok();
        }
        eprintln!(
            "{met} dumps were killed: {ended} sandboxes ended, {changed} lost a process or a connection"
        );
        assert!(met >= 2, "{met} kills met a dump");
        // Measured with an earlier build of the repair: 3 of 54 tries ended. Before the repair 6 of 40 could not be paused any more.
        assert!(ended <= 2, "{ended} of {met}");
    });
}

#[test]
fn a_killed_restore_is_tried_once_more_and_keeps_the_memory() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let mut kept = Kept::create(&shared, json!({ "memory_mib": 128 }), 30).await;
        let mut met = 0;
        for round in 0..3_u64 {
            pause_to_disk(&shared, &kept).await.ok();
            let after = Duration::from_millis(5 + 25 * round);
            let resume = shared.client.act(&kept.id, "resume");
            let (resumed, killed) = while_criu_is_killed(w, "restore", after, resume).await;
            met += u32::from(killed);
            resumed.ok();
            kept.is_intact(&shared, "running").await;
        }
        assert!(met >= 1, "no kill met a restore");
    });
}

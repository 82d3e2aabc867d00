//! The agent under resource pressure: a fork bomb at the pids limit, exhausted descriptors, many orphans.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{TOKEN, TestAgent, command, sh};
use atoll_agentapi::InitRequest;
use atoll_model::ErrorKind;
use tokio::io::AsyncWriteExt;

/// A pids cgroup of this test, removed at the end.
struct PidsLimit(PathBuf);

impl PidsLimit {
    fn new(max: u32) -> Self {
        let v1 = PathBuf::from("/sys/fs/cgroup/pids");
        let top = if v1.is_dir() { v1 } else { PathBuf::from("/sys/fs/cgroup") };
        let dir = top.join(format!("atoll-agent-test-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("pids.max"), max.to_string()).unwrap();
        Self(dir)
    }
}

impl Drop for PidsLimit {
    fn drop(&mut self) {
        let begun = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn a_fork_bomb_at_the_limit_leaves_an_agent_that_answers_and_can_end_it() {
    let limit = PidsLimit::new(60);
    let agent = TestAgent::start_after(&format!("echo $$ > {}/cgroup.procs", limit.0.display()));
    agent.client.init(&InitRequest::default()).await.unwrap();
    // A bomb that does not stop when a fork fails, as a shell's would.
    let script = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let bomb = command(&["python3", "-c", script]);
    let (bombs, _stream) = agent.client.start(bomb).await.unwrap();
    let (mut asked, mut refused, first) = (0, 0, Instant::now());
    while asked < 50 || refused == 0 {
        asked += 1;
        assert!(first.elapsed() < Duration::from_secs(120), "the bomb never met the limit");
        let begun = Instant::now();
        match agent.client.run(command(&["/bin/true"]), 10).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                refused += 1;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "an answer takes too long");
    }
    // File operations need no new process, and the bomb can be ended.
    assert!(agent.client.stat("/etc/passwd", None).await.is_ok());
    let begun = Instant::now();
    while agent.client.run(command(&["/bin/true"]), 10).await.is_err() {
        let _ = agent.client.signal(bombs.pid, libc::SIGKILL).await;
        assert!(begun.elapsed() < Duration::from_secs(60), "the bomb cannot be ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(agent);
}

#[tokio::test]
async fn an_agent_out_of_descriptors_refuses_and_recovers() {
    // Which step reaches the limit depends on the descriptors that the agent inherited from the test runner; a process
    // and its connection hold three, so these values cover all steps.
    for limit in 64..70 {
        let agent = TestAgent::start_after(&format!("ulimit -n {limit}"));
        agent.client.init(&InitRequest::default()).await.unwrap();
        let mut held = Vec::new();
        let error = loop {
            match agent.client.start(command(&["sleep", "60"])).await {
                Ok(started) => held.push(started),
                Err(error) => break error,
            }
            assert!(held.len() < 64, "no limit was met");
        };
        assert!(matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Unavailable), "{limit}: {error}");
        let pids: Vec<u32> = held.iter().map(|(started, _)| started.pid).collect();
        drop(held);
        let begun = Instant::now();
        for pid in pids {
            while let Err(error) = agent.client.signal(pid, libc::SIGKILL).await {
                if error.kind() == ErrorKind::NotFound {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
            }
        }
        assert_eq!(agent.sh("echo back").await.stdout, b"back\n");
    }
}

#[tokio::test]
async fn with_any_number_of_descriptors_left_the_agent_does_all_or_says_what_is_short() {
    const LIMIT: usize = 64;
    let agent = TestAgent::start_after(&format!("ulimit -n {LIMIT}"));
    agent.client.init(&InitRequest::default()).await.unwrap();
    let link = agent.path("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    let folder = agent.path("");
    // Unauthenticated connections take all descriptors, one by one. The client continues with its connection.
    let mut strangers = Vec::new();
    let (mut done, mut refused) = (0, 0);
    while strangers.len() < LIMIT {
        let mut whoami = command(&["id", "-un"]);
        whoami.user = Some("nobody".into());
        let started =
            agent.client.run(whoami, 100).await.map(|output| assert_eq!(output.stdout, b"nobody\n"));
        let seen = agent.client.stat(&link, None).await.map(|entry| assert_eq!(entry.owner, "root"));
        let listed =
            agent.client.list_dir(&folder, None, 1).await.map(|(entries, _)| assert_eq!(entries.len(), 1));
        for answer in [started, seen, listed] {
            match answer {
                Ok(()) => done += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Exhausted, "after {}: {error}", strangers.len());
                    refused += 1;
                }
            }
        }
        strangers.push(tokio::net::TcpStream::connect(agent.address).await.unwrap());
    }
    assert!(done > 0 && refused >= 3, "{done} done, {refused} refused");
    drop(strangers);
    let begun = Instant::now();
    while let Err(error) = agent.client.run(command(&["/bin/true"]), 0).await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_storm_of_orphans_is_reaped_while_commands_go_on() {
    let agent = TestAgent::start_as_pid_1();
    let storm = sh("i=0; while [ $i -lt 1500 ]; do (true &); i=$((i+1)); done");
    let (_, mut stream) = agent.client.start(storm).await.unwrap();
    for n in 0..20 {
        let output = agent.client.run(sh(&format!("exit {n}")), 10).await.unwrap();
        assert_eq!(output.status.code, Some(n));
    }
    while stream.next().await.is_some() {}
    // The last orphans may still be exiting; no process may stay a zombie.
    agent.sh_until("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l", "0\n").await;
}

/// A download whose client never reads.
async fn non_reader(agent: &TestAgent, target: &str) -> tokio::net::TcpStream {
    let mut stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let request = format!("{target} HTTP/1.1\r\nHost: a\r\nX-Access-Token: {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads a file to its end. A client that finds no place tries again.
async fn read_whole(agent: &TestAgent, path: &str) -> usize {
    let begun = Instant::now();
    loop {
        match agent.client.read_file(path, None, None).await {
            Ok(reader) => return reader.read_to_end(64 << 20).await.unwrap().len(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no place became free");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The agent's own memory in KiB.
fn memory_kib(agent: &TestAgent) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn clients_that_do_not_read_downloads_cost_little_and_others_go_on() {
    /// LIMIT: what all downloads together may take.
    const MOST_KIB: u64 = 24 * 1024;
    let agent = TestAgent::start().with(InitRequest::default()).await;
    let big = agent.path("big");
    std::fs::write(&big, vec![7; 20 << 20]).unwrap();
    let idle = memory_kib(&agent);
    let file = format!("GET /files?path={big}");
    let mut silent = Vec::new();
    for number in 0..600 {
        silent.push(non_reader(&agent, &file).await);
        if number % 50 == 0 {
            // A new client finds no place only as long as all others may still be reading.
            assert_eq!(agent.sh("echo works").await.stdout, b"works\n");
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = memory_kib(&agent).saturating_sub(idle);
    eprintln!("600 clients that do not read: {held} KiB over {idle} KiB");
    assert!(held < MOST_KIB, "{held} KiB");
    assert_eq!(read_whole(&agent, &big).await, 20 << 20);
    // Forty clients that read come to their end meanwhile.
    let forty = futures::future::join_all((0..40).map(|_| read_whole(&agent, &big))).await;
    assert!(forty.iter().all(|bytes| *bytes == 20 << 20), "{forty:?}");
    drop(silent);
}

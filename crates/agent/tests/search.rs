//! Search, copies and changes of mode and owner through the real agent: permissions, limits, hostile trees.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use crate::common::TestAgent;
use atoll_agentapi::{InitRequest, Search};
use atoll_model::ErrorKind;

fn search(path: impl AsRef<str>, pattern: &str) -> Search {
    Search {
        path: path.as_ref().as_bytes().to_vec(),
        pattern: pattern.as_bytes().to_vec(),
        limit: Duration::from_secs(20),
        ..Default::default()
    }
}

async fn lines(agent: &TestAgent, what: Search, user: Option<&str>) -> Vec<(String, u64)> {
    let found = agent.client.search(what, user).await.unwrap();
    let name = |path: &[u8]| String::from_utf8_lossy(path).rsplit('/').next().unwrap().to_owned();
    found.matches.iter().map(|found| (name(&found.path), found.line)).collect()
}

#[tokio::test]
async fn search_sees_what_its_user_may_see() {
    let agent = TestAgent::start();
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(agent.path("open"), "needle\n").unwrap();
    std::fs::write(agent.path("closed"), "hay\nneedle\n").unwrap();
    std::fs::set_permissions(agent.path("closed"), PermissionsExt::from_mode(0o600)).unwrap();
    let dir = agent.dir.path().display().to_string();
    assert_eq!(
        lines(&agent, search(&dir, "needle"), Some("root")).await,
        [("closed".to_owned(), 2), ("open".to_owned(), 1)]
    );
    assert_eq!(lines(&agent, search(&dir, "needle"), Some("nobody")).await, [("open".to_owned(), 1)]);
    // A single file as the path is refused like any unreadable file.
    let refused = agent.client.search(search(agent.path("closed"), "needle"), Some("nobody")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Forbidden);
    let missing = agent.client.search(search(agent.path("nowhere"), "x"), None).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let bad = agent.client.search(search(&dir, "("), None).await.unwrap_err();
    assert!(bad.kind() == ErrorKind::Invalid && bad.to_string().contains("pattern"), "{bad}");
}

#[tokio::test]
async fn pipes_devices_loops_and_endless_files_do_not_hold_a_search() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display().to_string();
    agent.sh(&format!("cd {dir} && mkfifo pipe && ln -s . loop && mkdir sub && ln -s .. sub/up")).await;
    agent.sh(&format!("cd {dir} && truncate -s 4G sub/holes && echo needle > sub/real")).await;
    let began = std::time::Instant::now();
    assert_eq!(lines(&agent, search(&dir, "needle"), None).await, [("real".to_owned(), 1)]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_search_ends_at_its_bounds_and_says_so() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display().to_string();
    std::fs::write(agent.path("many"), "x\n".repeat(100_000)).unwrap();
    let found = agent.client.search(Search { max: 10, ..search(&dir, "x") }, None).await.unwrap();
    assert!(found.truncated && found.matches.len() == 10);
    let found = agent.client.search(search(&dir, "x"), None).await.unwrap();
    assert!(found.truncated && found.matches.len() == 20_000, "{}", found.matches.len());
    let one = "y".repeat(1 << 20);
    std::fs::write(agent.path("long"), &one).unwrap();
    let found = agent.client.search(search(&dir, "y+"), None).await.unwrap();
    assert!(found.matches[0].content.len() <= 4096);
}

#[tokio::test]
async fn copies_belong_to_whoever_copied_and_keep_the_rules() {
    let agent = TestAgent::start();
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::create_dir_all(agent.path("a/b")).unwrap();
    std::fs::write(agent.path("a/b/f"), "one").unwrap();
    std::fs::set_permissions(agent.path("a/b/f"), PermissionsExt::from_mode(0o4755)).unwrap();
    std::os::unix::fs::symlink("b/f", agent.path("a/l")).unwrap();
    let (a, c) = (agent.path("a"), agent.path("c"));
    let copy = async |from: &str, to: &str, recursive, overwrite, user| {
        agent.client.copy(from, to, user, recursive, overwrite).await.map_err(|error| error.kind())
    };
    assert_eq!(copy(&a, &c, false, false, None).await.unwrap_err(), ErrorKind::Invalid);
    copy(&a, &c, true, false, Some("nobody")).await.unwrap();
    let copied = std::fs::metadata(agent.path("c/b/f")).unwrap();
    assert_eq!((copied.uid(), copied.mode() & 0o7777), (65_534, 0o755));
    assert_eq!(std::fs::read_link(agent.path("c/l")).unwrap().to_str(), Some("b/f"));
    assert_eq!(copy(&a, &c, true, false, None).await.unwrap_err(), ErrorKind::Exists);
    std::fs::write(agent.path("a/b/f"), "two").unwrap();
    copy(&a, &c, true, true, None).await.unwrap();
    assert_eq!(std::fs::read_to_string(agent.path("c/b/f")).unwrap(), "two");
    // Into itself, onto itself, and a file in place of a directory.
    for (from, to) in [("a", "a/b/deep"), ("a", "a"), ("a/b/f", "a/b/f"), ("a/b/f", "a/b")] {
        let refused = copy(&agent.path(from), &agent.path(to), true, true, None).await;
        assert_eq!(refused.unwrap_err(), ErrorKind::Invalid, "{from} to {to}");
    }
    assert_eq!(std::fs::read_to_string(agent.path("a/b/f")).unwrap(), "two");
    let left = std::fs::read_dir(agent.path("a/b")).unwrap().count();
    assert_eq!(left, 1, "no temporary file stays");
}

#[tokio::test]
async fn a_move_that_keeps_takes_no_ones_place() {
    let agent = TestAgent::start();
    std::fs::write(agent.path("a"), "a").unwrap();
    std::fs::write(agent.path("b"), "b").unwrap();
    let moved = agent.client.move_new(agent.path("a"), agent.path("b"), None).await;
    assert_eq!(moved.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(std::fs::read_to_string(agent.path("b")).unwrap(), "b");
    agent.client.move_new(agent.path("a"), agent.path("new/c"), None).await.unwrap();
    assert_eq!(std::fs::read_to_string(agent.path("new/c")).unwrap(), "a");
}

#[tokio::test]
async fn modes_and_owners_change_with_the_rights_of_the_caller() {
    let agent = TestAgent::start().with(InitRequest::default()).await;
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(agent.path("f"), "x").unwrap();
    let change = async |user: Option<&str>, mode, owner, group| {
        agent.client.change(agent.path("f"), user, mode, owner, group).await.map_err(|error| error.kind())
    };
    let changed = change(None, Some(0o600), Some("nobody"), Some("nogroup")).await.unwrap();
    assert_eq!((changed.mode, changed.uid, changed.gid), (0o600, 65_534, 65_534));
    assert_eq!(change(Some("nobody"), Some(0o640), None, None).await.unwrap().mode, 0o640);
    assert_eq!(change(Some("nobody"), None, Some("root"), None).await.unwrap_err(), ErrorKind::Forbidden);
    assert_eq!(change(None, None, Some("stranger"), None).await.unwrap_err(), ErrorKind::Invalid);
    assert_eq!(change(None, None, Some("1234"), None).await.unwrap().uid, 1234);
    std::os::unix::fs::symlink("/dev/null", agent.path("null")).unwrap();
    let device = agent.client.change(agent.path("null"), None, Some(0o777), None, None).await;
    assert_eq!(device.unwrap_err().kind(), ErrorKind::Invalid);
}

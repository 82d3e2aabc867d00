//! Git and files, composed from processes and files of real sandboxes, with and without the programs that others need.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_model::{Code, ErrorKind};
use atoll_tests::agent_client::{account, agent};
use atoll_tests::{Client, Options, World, json, run, run_with, until};
use atoll_toolbox::{
    BranchQuery, BranchScope, CloneFrom, ConfigScope, CopyHow, Credentials, DiffOf, Edit, FileChange,
    FilePart, Grep, ListOptions, LogQuery, MakeDir, NewCommit, PermissionChange, Pull, Push, Remote, Reset,
    ResetMode, Toolbox,
};

async fn toolbox(w: &World, client: &Client) -> (String, Toolbox) {
    let id = client.create(json!({})).await;
    let toolbox = Toolbox::new(agent(w, &id), account());
    (id, toolbox)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn by_ada(message: &str) -> NewCommit {
    NewCommit {
        message: message.into(),
        author: Some("Ada".into()),
        email: Some("ada@example.com".into()),
        allow_empty: false,
    }
}

#[test]
fn git_goes_from_an_empty_folder_to_a_shared_branch() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        client.sh(&id, "git init -q --bare -b main /home/user/shared.git").await.text();
        let git = toolbox.git("~/one");
        let clone = CloneFrom { url: "/home/user/shared.git".into(), ..Default::default() };
        assert_eq!(git.clone_from(&clone).await.unwrap().exit_code, 0);
        let fresh = git.read_status().await.unwrap();
        assert_eq!((fresh.branch.as_deref(), fresh.commit), (Some("main"), None));
        assert!(git.history(&LogQuery::default()).await.unwrap().is_empty());

        toolbox.files().write("/home/user/one/a file", None, "one\n").await.unwrap();
        let status = git.read_status().await.unwrap();
        assert_eq!(
            (status.files[0].path.as_str(), status.files[0].staged),
            ("a file", FileChange::Untracked)
        );
        git.add(&words(&["a file"])).await.unwrap().checked().unwrap();
        assert_eq!(git.read_status().await.unwrap().files[0].staged, FileChange::Added);
        let made = git.commit(&by_ada("first\n\nwith 'quotes' and \"more\"")).await.unwrap();
        let sha = made.sha.unwrap();
        assert!(sha.len() == 40 && made.output.exit_code == 0);
        let nothing = git.commit(&by_ada("nothing")).await.unwrap();
        assert!(nothing.sha.is_none() && nothing.output.exit_code == 1, "{nothing:?}");

        let pushed = git.push(&Push { set_upstream: true, ..Default::default() }).await.unwrap();
        assert_eq!(pushed.exit_code, 0, "{}", pushed.output());
        let other = toolbox.git("/home/user/two");
        other.clone_from(&clone).await.unwrap().checked().unwrap();
        let history = other.history(&LogQuery { max: Some(5), ..Default::default() }).await.unwrap();
        assert_eq!((history[0].hash.as_str(), history[0].author.as_str()), (sha.as_str(), "Ada"));
        assert_eq!(history[0].message, "first\n\nwith 'quotes' and \"more\"");
        let future = LogQuery { since: Some("2099-01-01".into()), ..Default::default() };
        assert!(other.history(&future).await.unwrap().is_empty());

        toolbox.files().write("/home/user/two/a file", None, "one\ntwo\n").await.unwrap();
        let diff = other.diff(&DiffOf::Unstaged, None).await.unwrap().stdout;
        assert!(diff.contains("+two") && diff.contains(" one"), "{diff}");
        assert!(!other.diff(&DiffOf::Unstaged, Some(0)).await.unwrap().stdout.contains("\n one"));
        other.add(&words(&["."])).await.unwrap().checked().unwrap();
        assert!(other.diff(&DiffOf::Staged, None).await.unwrap().stdout.contains("+two"));
        other.commit(&by_ada("second")).await.unwrap().sha.unwrap();
        other.push(&Push::default()).await.unwrap().checked().unwrap();
        git.pull(&Pull::default()).await.unwrap().checked().unwrap();
        let read = toolbox.files().read_bytes("/home/user/one/a file", FilePart::Whole, 100).await.unwrap();
        assert_eq!(read, b"one\ntwo\n");
        assert!(git.diff(&DiffOf::Target("HEAD~1".into()), None).await.unwrap().stdout.contains("+two"));
        assert!(git.show("HEAD").await.unwrap().stdout.contains("second"));
        let status = git.read_status().await.unwrap();
        assert_eq!((status.upstream.as_deref(), status.ahead_behind), (Some("origin/main"), Some((0, 0))));

        // A commit that the remote does not have yet makes the other's push a conflict.
        other.commit(&NewCommit { allow_empty: true, ..by_ada("third") }).await.unwrap().sha.unwrap();
        other.push(&Push::default()).await.unwrap().checked().unwrap();
        git.commit(&NewCommit { allow_empty: true, ..by_ada("mine") }).await.unwrap().sha.unwrap();
        let rejected = git.push(&Push::default()).await.unwrap().checked().unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::Conflict, "{rejected}");
        let pull = Pull { rebase: true, ..Default::default() };
        git.config_set("user.name", "Ada", ConfigScope::Local).await.unwrap().checked().unwrap();
        git.config_set("user.email", "ada@example.com", ConfigScope::Local).await.unwrap().checked().unwrap();
        git.pull(&pull).await.unwrap().checked().unwrap();
        git.push(&Push::default()).await.unwrap().checked().unwrap();
        assert_eq!(git.config_get("user.name", ConfigScope::Local).await.unwrap().as_deref(), Some("Ada"));
    });
}

#[test]
fn branches_are_made_listed_left_and_deleted() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let (_, toolbox) = toolbox(w, &client).await;
        let git = toolbox.git("repo");
        git.init(false, Some("main")).await.unwrap().checked().unwrap();
        git.commit(&NewCommit { allow_empty: true, ..by_ada("root") }).await.unwrap().sha.unwrap();
        git.create_branch("feature/x", None, true).await.unwrap().checked().unwrap();
        git.commit(&NewCommit { allow_empty: true, ..by_ada("on x") }).await.unwrap().sha.unwrap();
        let branches = git.list_branches().await.unwrap();
        assert_eq!(branches.names, ["feature/x", "main"]);
        assert_eq!(branches.current.as_deref(), Some("feature/x"));
        git.checkout("main", false).await.unwrap().checked().unwrap();
        let holds = BranchQuery { contains: Some("feature/x".into()), ..Default::default() };
        assert_eq!(git.branches(&holds).await.unwrap().stdout.trim(), "feature/x");
        let lacks = BranchQuery {
            scope: BranchScope::All,
            not_contains: Some("feature/x".into()),
            ..Default::default()
        };
        assert_eq!(git.branches(&lacks).await.unwrap().stdout.trim(), "* main");
        let kept = git.delete_branch("feature/x", false).await.unwrap().checked().unwrap_err();
        assert_eq!(kept.kind(), ErrorKind::Conflict, "{kept}");
        git.delete_branch("feature/x", true).await.unwrap().checked().unwrap();
        git.checkout("new", true).await.unwrap().checked().unwrap();
        let taken = git.create_branch("main", None, false).await.unwrap().checked().unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Exists);
        let missing = git.checkout("nowhere", false).await.unwrap().checked().unwrap_err();
        assert!(matches!(missing.kind(), ErrorKind::NotFound | ErrorKind::Invalid), "{missing}");

        toolbox.files().write("repo/f", None, "x").await.unwrap();
        git.add(&words(&["f"])).await.unwrap().checked().unwrap();
        git.reset(&Reset { files: words(&["f"]), ..Default::default() }).await.unwrap().checked().unwrap();
        assert_eq!(git.read_status().await.unwrap().files[0].staged, FileChange::Untracked);
        git.add(&words(&["f"])).await.unwrap().checked().unwrap();
        let hard = Reset { mode: ResetMode::Hard, ..Default::default() };
        git.reset(&hard).await.unwrap().checked().unwrap();
        assert!(!toolbox.files().exists("repo/f").await.unwrap());
        let remote = Remote { name: "up".into(), url: "https://me:secret@example.com/x.git".into() };
        git.add_remote(&remote, false, false).await.unwrap().checked().unwrap();
        assert_eq!(git.remotes().await.unwrap()[0].url, "https://example.com/x.git", "no secret is kept");
    });
}

#[test]
fn what_looks_like_an_option_never_becomes_one() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        let git = toolbox.git("repo");
        git.init(false, Some("main")).await.unwrap().checked().unwrap();
        git.commit(&NewCommit { allow_empty: true, ..by_ada("root") }).await.unwrap().sha.unwrap();
        for evil in ["--output=/tmp/owned", "-c", "--upload-pack=touch /tmp/owned", "", "a\nb"] {
            assert!(git.show(evil).await.is_err(), "{evil:?}");
            assert!(git.checkout(evil, false).await.is_err());
            assert!(git.create_branch(evil, None, false).await.is_err());
            assert!(git.diff(&DiffOf::Target(evil.into()), None).await.is_err());
            assert!(git.push(&Push { remote: Some(evil.into()), ..Default::default() }).await.is_err());
            let clone = CloneFrom { url: evil.into(), ..Default::default() };
            assert!(toolbox.git("other").clone_from(&clone).await.is_err());
        }
        // Files may be called anything.
        toolbox.files().write("repo/--force", None, "x").await.unwrap();
        git.add(&words(&["--force"])).await.unwrap().checked().unwrap();
        assert_eq!(git.read_status().await.unwrap().files[0].path, "--force");
        let dashed = toolbox.git("-C");
        dashed.init(false, None).await.unwrap().checked().unwrap();
        assert!(toolbox.files().exists("-C/.git").await.unwrap());
        assert_eq!(client.sh(&id, "ls /tmp/owned").await.code, 2, "nothing was run");
    });
}

/// A git server over HTTP that asks for a name and a password, inside the sandbox. Only for reading.
const GUARDED: &str = r#"
import base64, http.server, os, sys
WANT = "Basic " + base64.b64encode(b"me:s3cr't w\xc3\xb6rd").decode()
class Guard(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        open("/tmp/seen", "a").write(str(self.headers.get("Authorization")) + "\n")
        if self.headers.get("Authorization") != WANT:
            self.send_response(401); self.send_header("WWW-Authenticate", 'Basic realm="x"'); self.end_headers(); return
        super().do_GET()
    def log_message(self, *words): pass
os.chdir("/home/user/www")
http.server.ThreadingHTTPServer(("127.0.0.1", 8099), Guard).serve_forever()
"#;

#[test]
fn credentials_open_a_repository_and_stay_nowhere() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        let make = "mkdir -p www && git init -q -b main src && cd src && git -c user.name=a -c user.email=a@b commit -q \
                    --allow-empty -m one && cd .. && git clone -q --bare src www/x.git && cd www/x.git && git update-server-info";
        client.sh(&id, make).await.text();
        toolbox.files().write("/home/user/guard.py", None, GUARDED).await.unwrap();
        client.exec(&id, json!({ "argv": ["python3", "/home/user/guard.py"], "detach": true })).await;
        until("the git server answers", async || {
            let asked = client.sh(&id, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8099/").await;
            (asked.stdout == "401").then_some(())
        })
        .await;
        let clone = CloneFrom { url: "http://127.0.0.1:8099/x.git".into(), ..Default::default() };
        let without = toolbox.git("a").clone_from(&clone).await.unwrap();
        assert_eq!(without.clone().checked().unwrap_err().kind(), ErrorKind::Unauthenticated, "{without:?}");
        let credentials = Credentials { username: "me".into(), password: "s3cr't wörd".into() };
        let clone = CloneFrom { credentials: Some(credentials.clone()), ..clone };
        let done = toolbox.git("a").clone_from(&clone).await.unwrap();
        assert_eq!(done.exit_code, 0, "{}", done.output());
        let in_address = CloneFrom {
            url: "http://me:s3cr%27t%20w%C3%B6rd@127.0.0.1:8099/x.git".into(),
            ..Default::default()
        };
        toolbox.git("b").clone_from(&in_address).await.unwrap().checked().unwrap();
        toolbox
            .git("a")
            .pull(&Pull { credentials: Some(credentials), ..Default::default() })
            .await
            .unwrap()
            .checked()
            .unwrap();
        let wrong = Credentials { username: "me".into(), password: "no".into() };
        let wrong = toolbox
            .git("c")
            .clone_from(&CloneFrom { credentials: Some(wrong), ..clone.clone() })
            .await
            .unwrap();
        assert_eq!(wrong.checked().unwrap_err().kind(), ErrorKind::Unauthenticated);
        let left =
            client.sh(&id, "grep -rl \"s3cr\" a b ~/.git* ~/.config 2>/dev/null | grep -v guard.py").await;
        assert_eq!(left.stdout, "", "credentials stay nowhere");
        let config = client.sh(&id, "cat a/.git/config b/.git/config").await.stdout;
        assert!(
            config.contains("url = http://127.0.0.1:8099/x.git") && !config.contains("helper"),
            "{config}"
        );
    });
}

#[test]
fn a_clone_by_git_daemon_takes_a_branch_a_commit_and_a_depth() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        let make = "git init -q -b main src && cd src && git config user.name a && git config user.email a@b && \
                    for n in 1 2 3; do echo $n > n && git add n && git commit -qm c$n; done && git branch old HEAD~1 && \
                    git config uploadpack.allowAnySHA1InWant true && git rev-parse HEAD~2";
        let first = client.sh(&id, make).await.text().to_owned();
        let daemon = json!({ "argv": ["git", "daemon", "--export-all", "--base-path=/home/user", "--port=9418", "--listen=127.0.0.1"], "detach": true });
        client.exec(&id, daemon).await;
        until("the daemon answers", async || {
            (client.sh(&id, "git ls-remote git://127.0.0.1/src").await.code == 0).then_some(())
        })
        .await;
        let clone = CloneFrom { url: "git://127.0.0.1/src".into(), ..Default::default() };
        let by_branch = CloneFrom { branch: Some("old".into()), depth: Some(1), ..clone.clone() };
        toolbox.git("by-branch").clone_from(&by_branch).await.unwrap().checked().unwrap();
        assert_eq!(
            client.sh(&id, "cat by-branch/n; git -C by-branch rev-list --count HEAD").await.text(),
            "2\n1"
        );
        for depth in [None, Some(1)] {
            let folder = format!("by-commit-{}", depth.unwrap_or(0));
            let by_commit = CloneFrom { commit: Some(first.clone()), depth, ..clone.clone() };
            toolbox.git(&folder).clone_from(&by_commit).await.unwrap().checked().unwrap();
            assert_eq!(client.sh(&id, &format!("cat {folder}/n")).await.text(), "1");
            assert!(toolbox.git(&folder).read_status().await.unwrap().is_detached());
        }
        let missing = CloneFrom { url: "git://127.0.0.1/nothing".into(), ..Default::default() };
        assert_ne!(toolbox.git("m").clone_from(&missing).await.unwrap().exit_code, 0);
        let slow = toolbox.git("t").within(std::time::Duration::from_millis(300));
        client.exec(&id, json!({ "command": "nc -l -p 9999 >/dev/null || python3 -c 'import socket,time; s=socket.create_server((\"127.0.0.1\",9999)); time.sleep(60)'", "detach": true })).await;
        until("somebody listens and never answers", async || {
            (client.sh(&id, "grep -q :270F /proc/net/tcp").await.code == 0).then_some(())
        })
        .await;
        let silent = CloneFrom { url: "git://127.0.0.1:9999/x".into(), ..Default::default() };
        let ended = slow.clone_from(&silent).await.unwrap_err();
        assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
    });
}

#[test]
fn a_sandbox_without_git_says_what_is_missing() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (_, toolbox) = toolbox(w, &client).await;
        let error = toolbox.git("x").porcelain_status().await.unwrap_err();
        assert_eq!(error.code(), Code::ToolMissing, "{error}");
        assert!(error.hint().unwrap().contains("git"));
    });
}

#[test]
fn files_are_searched_edited_and_copied_without_any_program_inside() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        let files = toolbox.files();
        for (path, text) in [
            ("p/src/main.rs", "fn main() {\n    todo();\n}\n"),
            ("p/src/lib.rs", "// TODO later\n"),
            ("p/node_modules/x.js", "TODO\n"),
            ("p/readme.md", "hello TODO\n"),
        ] {
            files.write(path, None, text).await.unwrap();
        }
        files.write("p/data.bin", None, &b"TODO\0\x01"[..]).await.unwrap();
        // Programs of the sandbox are not needed: they are taken away.
        client.sh_root(&id, "rm -rf /bin/grep /bin/find /usr/bin/find /usr/bin/grep").await;
        let grep =
            Grep { pattern: "TODO|todo\\(".into(), exclude: words(&["node_modules"]), ..Default::default() };
        let found = files.grep("p", &grep).await.unwrap();
        let lines: Vec<_> = found
            .items
            .iter()
            .map(|m| (m.path.rsplit('/').next().unwrap(), m.line, m.content.as_str()))
            .collect();
        let expected =
            [("readme.md", 1, "hello TODO"), ("lib.rs", 1, "// TODO later"), ("main.rs", 2, "    todo();")];
        assert_eq!(lines, expected);
        let rust = Grep {
            literal: true,
            ignore_case: true,
            include: words(&["*.rs"]),
            pattern: "todo(".into(),
            ..Default::default()
        };
        assert_eq!(files.grep("p", &rust).await.unwrap().items.len(), 1);
        let bad = files.grep("p", &Grep { pattern: "(".into(), ..Default::default() }).await.unwrap_err();
        assert_eq!(bad.code(), Code::InvalidArgument);
        let globbed = files.glob("p", "**/*.rs", &[]).await.unwrap().items;
        assert_eq!(globbed, ["/home/user/p/src/lib.rs", "/home/user/p/src/main.rs"]);
        assert_eq!(files.find("p", "*.md").await.unwrap().items, ["/home/user/p/readme.md"]);

        let query = ListOptions { depth: Some(1), exclude: words(&["node_modules"]) };
        let names = |listing: &atoll_toolbox::Listing| {
            listing.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&files.list("p", &query).await.unwrap()), ["data.bin", "readme.md", "src"]);
        let all = files.list("p", &ListOptions::default()).await.unwrap();
        assert_eq!(names(&all).len(), 7);
        let tree = files.tree("p", Some(2), &words(&["node_modules"])).await.unwrap();
        let src = tree.nodes.iter().find(|node| node.name == "src").unwrap();
        assert_eq!(src.children.as_ref().unwrap().len(), 2);
        let shallow = files.tree("p", Some(1), &[]).await.unwrap();
        assert!(shallow.nodes.iter().all(|node| node.children.is_none()));

        let edits = [Edit { find: "todo()".into(), replace: "done()".into(), unique: false }];
        let edited = files.edit("p/src/main.rs", &edits).await.unwrap();
        assert_eq!(edited.replacements, 1);
        assert!(edited.diff.contains("-    todo();\n+    done();"), "{}", edited.diff);
        assert_eq!(files.edit("p/src/main.rs", &edits).await.unwrap_err().code(), Code::InvalidArgument);
        let many = words(&["p/readme.md", "p/src/lib.rs", "p/nowhere", "p/data.bin"]);
        let replaced = files.replace(&many, "TODO", "x").await;
        let counts: Vec<_> = replaced.iter().map(|r| r.outcome.as_ref().map_err(|e| e.code())).collect();
        assert_eq!(counts, [Ok(&1), Ok(&1), Err(Code::FileNotFound), Ok(&1)]);
    });
}

#[test]
fn files_are_read_in_parts_moved_and_given_away() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (id, toolbox) = toolbox(w, &client).await;
        let files = toolbox.files();
        let text: String = (1..=1000).map(|n| format!("line {n}\n")).collect();
        files.write("f", Some(0o640), text.clone()).await.unwrap();
        let read =
            async |part| String::from_utf8(files.read_bytes("f", part, 1 << 20).await.unwrap()).unwrap();
        assert_eq!(read(FilePart::Whole).await, text);
        assert_eq!(read(FilePart::Bytes { offset: 5, limit: Some(3) }).await, "1\nl");
        assert_eq!(read(FilePart::Bytes { offset: 1 << 30, limit: None }).await, "");
        assert_eq!(read(FilePart::Head(2)).await, "line 1\nline 2\n");
        assert_eq!(read(FilePart::Tail(2)).await, "line 999\nline 1000\n");
        assert_eq!(read(FilePart::Tail(5000)).await, text);
        let dir = files.read("/home", FilePart::Whole).await.unwrap_err();
        assert!(dir.to_string().contains("is a directory"), "{dir}");
        assert_eq!(files.read("nowhere", FilePart::Head(1)).await.unwrap_err().code(), Code::FileNotFound);

        let deep = MakeDir { parents: false, mode: None };
        assert_eq!(files.make_dir("a/b", deep).await.unwrap_err().code(), Code::FileNotFound);
        files.make_dir("a/b", MakeDir { parents: true, mode: Some(0o700) }).await.unwrap();
        files.make_dir("a/b", MakeDir { parents: true, mode: None }).await.unwrap();
        assert_eq!(files.make_dir("a/b", deep).await.unwrap_err().code(), Code::AlreadyExists);
        files.copy("f", "a/b/f", CopyHow::default()).await.unwrap();
        assert_eq!(
            files.copy("f", "a/b/f", CopyHow::default()).await.unwrap_err().code(),
            Code::AlreadyExists
        );
        assert_eq!(files.copy("a", "c", CopyHow::default()).await.unwrap_err().code(), Code::InvalidArgument);
        files.copy("a", "c", CopyHow { recursive: true, overwrite: false }).await.unwrap();
        assert_eq!(files.stat("c/b/f").await.unwrap().mode, 0o640);
        assert_eq!(files.move_to("f", "c/b/f", false).await.unwrap_err().code(), Code::AlreadyExists);
        files.move_to("f", "c/b/f", true).await.unwrap();
        assert!(!files.exists("f").await.unwrap() && files.exists("c/b/f").await.unwrap());
        assert!(!files.exists("c/b/f/below/a/file").await.unwrap());
        assert_eq!(files.remove("c", false).await.unwrap_err().code(), Code::InvalidArgument);
        files.remove("c", true).await.unwrap();
        assert_eq!(files.remove("c", true).await.unwrap_err().code(), Code::FileNotFound);

        let mode = |mode| PermissionChange { mode: Some(mode), ..Default::default() };
        assert_eq!(files.change("a/b/f", &mode(0o600)).await.unwrap().mode, 0o600);
        let root = PermissionChange { owner: Some("root".into()), ..Default::default() };
        assert_eq!(files.change("a/b/f", &root).await.unwrap_err().kind(), ErrorKind::Forbidden);
        let as_root = Toolbox::new(agent(w, &id), account()).as_user(Some("root".into()));
        assert_eq!(as_root.files().change("/home/user/a/b/f", &root).await.unwrap().owner, "root");
    });
}

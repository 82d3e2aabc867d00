//! A checkpoint of a real sandbox with CRIU: its agent holds a terminal, a watcher and a pipe, and goes on after the restore.
//!
//! The engine does not checkpoint yet. This keeps true what it will stand on: the agent and everything it holds can be dumped
//! with overlay root, id maps, seccomp and cgroups in place, and comes back with its files, processes and open descriptors.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a test that does not run says so")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_agentapi::{AgentClient, AgentToken, ProcessEvent, StartProcess, TerminalSize};
use atoll_store::{SqliteStore, Store};
use atoll_tests::poll::PATIENCE;
use atoll_tests::{Options, Value, World, json, probe, proc, run, run_with, template, until};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// CRIU as `scripts/get-criu` gives it; `None` where it cannot be had, which on CI is a failure.
fn criu() -> Option<PathBuf> {
    let script = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../scripts/get-criu");
    let got = Command::new(script).output().unwrap();
    if got.status.success() {
        return Some(String::from_utf8(got.stdout).unwrap().trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "CRIU cannot be had: {said}");
    eprintln!("not run: CRIU cannot be had: {said}");
    None
}

/// A connection to the agent in the network namespace of a process.
fn dial(pid: i32) -> std::io::Result<TcpStream> {
    // A thread of its own: one that has entered a namespace does nothing else afterwards.
    let dialing = std::thread::spawn(move || {
        setns(std::fs::File::open(format!("/proc/{pid}/ns/net"))?, CloneFlags::CLONE_NEWNET)?;
        TcpStream::connect(("127.0.0.1", 49_983))
    });
    dialing.join().unwrap()
}

/// A client of the agent in the network namespace of a process.
fn agent_at(pid: i32, token: &str) -> AgentClient {
    let connect = move || async move {
        let stream = tokio::task::spawn_blocking(move || dial(pid)).await.unwrap()?;
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    };
    AgentClient::new(connect, &AgentToken::new(token))
}

/// Asks the agent's file service in JSON, as any client of envd's protocol would.
async fn ask(pid: i32, token: &str, method: &str, body: Value) -> Value {
    let (token, method) = (token.to_owned(), method.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = dial(pid)?;
        let body = body.to_string();
        write!(
            stream,
            "POST /filesystem.Filesystem/{method} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nX-Access-Token: {token}\r\nAuthorization: Basic dXNlcjo=\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    let answer = asked.await.unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    // The body may come in one chunk, with its length before and a zero behind it.
    let object = body.find('{').and_then(|begin| body.get(begin..=body.rfind('}')?));
    serde_json::from_str(object.unwrap_or("{}")).unwrap_or_else(|_| panic!("{answer}"))
}

/// Mounts of the sandbox that come from outside, as (mount point, what stands in for it at the restore).
fn external_mounts(pid: i32) -> Vec<(String, &'static str)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let of = |line: &str| {
        let (head, tail) = line.split_once(" - ")?;
        let fields: Vec<&str> = head.split(' ').collect();
        let (root, target, kind) = (*fields.get(3)?, *fields.get(4)?, tail.split(' ').next()?);
        let stand_in = match (target, kind, root) {
            ("/.atoll", _, _) => "agent",
            ("/dev", _, _) => "dev",
            // A file of its own for every sandbox.
            ("/proc/sys/kernel/random/boot_id", _, _) => "dev/null",
            (_, "tmpfs", root) if root.ends_with("/null") => "dev/null",
            (target, "tmpfs", _) if target.starts_with("/proc/") || target.starts_with("/sys/") => "empty",
            _ => return None,
        };
        Some((target.to_owned(), stand_in))
    };
    text.lines().filter_map(of).collect()
}

/// What is loaded into CRIU, as the server carries it: see `crates/preload`. The agent is named for a dump.
fn preload(w: &World, agent: Option<i32>, owner: u32) -> String {
    let carried = std::fs::read_dir(w.data().join("criu")).unwrap().flatten().next().unwrap().path();
    let root = agent.map_or(String::new(), |agent| format!("ATOLL_CRIU_ROOT=/proc/{agent}/root "));
    let owner = if has_cap_sys_resource() { String::new() } else { format!("ATOLL_CRIU_OWNER={owner} ") };
    format!("env {owner}{root}LD_PRELOAD={} ", carried.display())
}

/// Runs CRIU with a private `/run` on tmpfs, where it keeps what it learnt of the kernel.
fn run_criu(criu: &Path, cgroups: &[PathBuf], preload: &str, arguments: &[String]) {
    let enter: String =
        cgroups.iter().map(|folder| format!("echo 0 > {}/tasks; ", folder.display())).collect();
    let line = format!("{enter}mount -t tmpfs none /run && exec {preload}\"$0\" \"$@\"");
    let done =
        Command::new("unshare").args(["-m", "sh", "-ec", &line]).arg(criu).args(arguments).output().unwrap();
    let log = arguments
        .iter()
        .find_map(|a| a.strip_prefix("--log-file="))
        .map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let errors: Vec<String> = log
        .unwrap_or_default()
        .lines()
        .filter(|l| l.contains("Error") || l.contains("Warn"))
        .map(str::to_owned)
        .collect();
    assert!(
        done.status.success(),
        "criu {arguments:?}: {}\n{}",
        String::from_utf8_lossy(&done.stderr),
        errors.join("\n")
    );
}

/// CRIU reads the limits of other processes. Each sandbox's user namespace has an owner of its own, so the host's root needs
/// this right for it; root of the reference machine has not got it.
fn has_cap_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let own = i32::try_from(std::process::id()).unwrap();
    let effective = u64::from_str_radix(&proc::status_text(own, "CapEff").unwrap(), 16).unwrap();
    effective & CAP_SYS_RESOURCE != 0
}

const WATCHED: &str = "/home/user";

struct Dumped {
    first_id: u32,
    cgroups: Vec<PathBuf>,
    external: Vec<(String, &'static str)>,
    images: PathBuf,
}

fn dump(w: &World, criu: &Path, agent: i32) -> Dumped {
    let first_id: u32 =
        proc::status_text(agent, "Uid").unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let own = |folder: &PathBuf| folder.display().to_string().contains("/atoll-");
    let mut cgroups: Vec<PathBuf> = proc::cgroups(agent).into_values().filter(own).collect();
    cgroups.dedup();
    let external = external_mounts(agent);
    // Each its own: a second dump must not find the files of the first.
    let images = w.folder().join(format!("images-{agent}"));
    std::fs::create_dir(&images).unwrap();
    std::os::unix::fs::chown(&images, Some(first_id), Some(first_id)).unwrap();
    // The images are opened as the sandbox's root, who must be able to walk there.
    std::fs::set_permissions(w.folder(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let mut arguments: Vec<String> = vec!["dump".into(), "--tree".into(), agent.to_string()];
    arguments.extend(common(&images, "dump"));
    arguments.extend(["--root".into(), "/".into()]);
    // An overlay's file handles cannot be opened, so what is watched is looked for by path.
    arguments.extend(["--force-irmap".into(), "--irmap-scan-path".into(), WATCHED.into()]);
    for (target, _) in &external {
        arguments.extend(["--external".into(), format!("mnt[{target}]:{}", key(target))]);
    }
    run_criu(criu, &[], &preload(w, Some(agent), first_id), &arguments);
    Dumped { first_id, cgroups, external, images }
}

fn key(target: &str) -> String {
    target.replace('/', "_")
}

fn common(images: &Path, what: &str) -> Vec<String> {
    let log = images.join(format!("{what}.log"));
    [
        format!("--images-dir={}", images.display()),
        format!("--log-file={}", log.display()),
        "-v4".into(),
        "--manage-cgroups=soft".into(),
        "--empty-ns=net".into(),
        "--tcp-established".into(),
        "--file-locks".into(),
    ]
    .into()
}

fn restore(w: &World, criu: &Path, dumped: &Dumped, sandbox: &str, template: &str) -> i32 {
    let stage = w.folder().join("stage");
    let layer = w.data().join("pool/layers").join(sandbox);
    let agent = std::fs::read_dir(w.data().join("agent"))
        .unwrap()
        .flatten()
        .find(|e| e.path().is_dir())
        .unwrap()
        .path();
    let rebuilt = Command::new(probe::compiled("rebuild"))
        .arg(dumped.first_id.to_string())
        .args([&stage, &layer, &agent, &template::shared(template).join("rootfs")])
        .output()
        .unwrap();
    assert!(rebuilt.status.success(), "{}", String::from_utf8_lossy(&rebuilt.stderr));
    let script = w.folder().join("action");
    // Without a loopback device that is up, a connected socket fails the whole restore.
    let text = "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = setup-namespaces ] || exit 0\nexec nsenter -t \"$CRTOOLS_INIT_PID\" -n ip link set lo up\n";
    std::fs::write(&script, text).unwrap();
    template::set_mode(&script, 0o755);
    let pid_file = dumped.images.join("restored.pid");
    let mut arguments: Vec<String> = vec!["restore".into(), "--restore-detached".into()];
    arguments.extend(common(&dumped.images, "restore"));
    arguments.extend([
        format!("--pidfile={}", pid_file.display()),
        format!("--action-script={}", script.display()),
    ]);
    arguments.extend(["--root".into(), stage.join("root").display().to_string()]);
    for (target, stand_in) in &dumped.external {
        arguments.extend([
            "--external".into(),
            format!("mnt[{}]:{}", key(target), stage.join(stand_in).display()),
        ]);
    }
    run_criu(criu, &dumped.cgroups, &preload(w, None, dumped.first_id), &arguments);
    std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap()
}

/// A shell with job control in a terminal of that width.
async fn open_terminal(agent: &AgentClient, shell: &str, cols: u16) -> u32 {
    let shell = StartProcess {
        cmd: shell.into(),
        args: vec!["-i".into()],
        pty: Some(TerminalSize { cols, rows: 30 }),
        ..StartProcess::default()
    };
    let (terminal, mut screen) = agent.start(shell).await.unwrap();
    // It takes its terminal before it prompts.
    let prompted = async {
        loop {
            if let Some(Ok(ProcessEvent::Pty(_))) = screen.next().await {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, prompted).await.expect("a prompt");
    terminal.pid
}

/// Types a line into a terminal and waits for what it is to show.
async fn types(agent: &AgentClient, terminal: u32, line: &str, shows: &str) {
    let mut screen = agent.attach(terminal, false).await.unwrap();
    agent.send_stdin(terminal, format!("{line}\n")).await.unwrap();
    let mut seen = String::new();
    let shown = async {
        while !seen.contains(shows) {
            if let Some(Ok(ProcessEvent::Pty(bytes))) = screen.next().await {
                seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    };
    let shown = tokio::time::timeout(PATIENCE, shown).await;
    assert!(shown.is_ok(), "after {line:?} the terminal shows {seen:?}");
}

/// Presses a key in a terminal whose foreground command is `command`, and waits until the command has that state (`None`: until it
/// has ended). The key is pressed only when the shell has handed the terminal over: before that a signal key makes the
/// kernel drop the typed line that the shell has not read yet, and the command never starts.
async fn press(
    agent: &AgentClient,
    terminal: u32,
    key: &str,
    (ancestor, command): (i32, &str),
    state: Option<char>,
) {
    until(&format!("{command} has the terminal"), async || {
        find_command(ancestor, command)?.in_foreground().then_some(())
    })
    .await;
    agent.send_stdin(terminal, key.to_owned()).await.unwrap();
    until(&format!("the key reaches {command}"), async || {
        (state_of(ancestor, command) == state).then_some(())
    })
    .await;
}

/// The descendant of the agent that runs `command`.
fn find_command(agent: i32, command: &str) -> Option<proc::Process> {
    let runs_it = |process: &proc::Process| {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        String::from_utf8_lossy(&arguments).trim_end_matches('\0').replace('\0', " ") == command
    };
    proc::descendants(agent).into_iter().find(runs_it)
}

/// The state of the command that a descendant of the agent runs, as `/proc` gives it; `None` when none runs it.
fn state_of(agent: i32, command: &str) -> Option<char> {
    find_command(agent, command).map(|process| process.state)
}

/// What the server shows its agent.
async fn token(w: &World, id: &str) -> String {
    let store = SqliteStore::open(&w.data()).unwrap();
    let live = store.live().await.unwrap();
    store.close().await;
    let row = live.into_iter().find_map(|(lease, row)| (lease.id.as_str() == id).then_some(row?));
    row.unwrap().agent_token
}

async fn gone(w: &World, pid: i32) {
    until("it ends", async || {
        w.reap();
        proc::Process::read(pid).is_none_or(|p| p.state == 'Z').then_some(())
    })
    .await;
}

/// Ends a restored sandbox, which no server knows.
async fn end(w: &World, restored: i32) {
    kill(Pid::from_raw(restored), Signal::SIGKILL).unwrap();
    gone(w, restored).await;
    atoll_tests::leaks::unmount_below(&w.folder().join("stage"));
}

#[test]
fn an_agent_with_a_terminal_a_watcher_and_a_pipe_is_dumped_and_restored() {
    let Some(criu) = criu() else { return };
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "deny-all" })).await;
        // The server is away meanwhile; sandboxes live on.
        w.stop_server(Signal::SIGTERM).await;
        let agent = w.agent_pid(&id);
        let token = token(w, &id).await;
        let before = agent_at(agent, &token);
        let terminal = open_terminal(&before, "/bin/sh", 90).await;
        before.send_stdin(terminal, "cd /tmp; MARK=kept; sleep 777 & echo in > /tmp/typed\n").await.unwrap();
        // Another one, with a job in the foreground, and one that is gone, but not what it started.
        let busy = open_terminal(&before, "/bin/sh", 70).await;
        before.send_stdin(busy, "sleep 778 && echo never\n").await.unwrap();
        until("it runs", async || state_of(agent, "sleep 778")).await;
        let closed = open_terminal(&before, "/bin/sh", 60).await;
        before.send_stdin(closed, "(trap '' HUP; exec 9</dev/tty sleep 779) & exit\n").await.unwrap();
        let line = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done | while read n; do echo $n > /tmp/count; done";
        let counter = StartProcess {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), line.into()],
            logged: true,
            detached: true,
            ..StartProcess::default()
        };
        let (counter, _) = before.start(counter).await.unwrap();
        // A stream ends with its connection; this kind of watcher is the agent's own.
        let watcher =
            ask(agent, &token, "CreateWatcher", json!({ "path": WATCHED, "recursive": true })).await;
        let watcher = json!({ "watcherId": watcher["watcherId"].as_str().unwrap() });
        let count = async |agent: &AgentClient| -> u64 {
            let file = agent.read_file("/tmp/count", None, None).await;
            let Ok(file) = file else { return 0 };
            String::from_utf8(file.read_to_end(64).await.unwrap()).unwrap().trim().parse().unwrap_or(0)
        };
        until("the counter counts", async || (count(&before).await > 5).then_some(())).await;
        let held = |pid: i32| {
            let held = proc::descriptors(pid);
            let has = |part: &str| held.iter().any(|target| target.contains(part));
            (has("/ptmx") || has("/dev/pts"), has("inotify"), has("socket:"))
        };
        assert_eq!(held(agent), (true, true, true), "{:?}", proc::descriptors(agent));

        let dumped = dump(w, &criu, agent);
        gone(w, agent).await;
        let restored = restore(w, &criu, &dumped, &id, "busybox");

        assert_eq!(held(restored), (true, true, true), "{:?}", proc::descriptors(restored));
        assert_eq!(proc::status_text(restored, "Seccomp").as_deref(), Some("2"));
        let mut now: Vec<PathBuf> = proc::cgroups(restored)
            .into_values()
            .filter(|f| f.display().to_string().contains("/atoll-"))
            .collect();
        now.dedup();
        assert_eq!(now, dumped.cgroups, "its limits hold again");
        let after = agent_at(restored, &token);
        until("the agent answers", async || after.health().await.ok()).await;
        let listed = after.list().await.unwrap();
        assert!(
            listed.iter().any(|p| p.pid == terminal) && listed.iter().any(|p| p.pid == counter.pid),
            "{listed:?}"
        );
        after.write_bytes(format!("{WATCHED}/seen"), None, None, "x").await.unwrap();
        until("the watcher still watches", async || {
            let events = ask(restored, &token, "GetWatcherEvents", watcher.clone()).await;
            events["events"].to_string().contains("seen").then_some(())
        })
        .await;
        let was = count(&after).await;
        until("the pipe still carries", async || (count(&after).await > was + 3).then_some(())).await;
        types(
            &after,
            terminal,
            "echo at=$(pwd) mark=$MARK size=$(stty size)",
            "at=/tmp mark=kept size=30 90",
        )
        .await;
        types(&after, terminal, "jobs; kill %1; wait; echo jobs=$?", "sleep 777").await;
        press(&after, busy, "\x03", (restored, "sleep 778"), None).await;
        types(&after, busy, "echo size=$(stty size) < /dev/tty", "size=30 70").await;
        let echo =
            StartProcess { cmd: "/bin/echo".into(), args: vec!["new".into()], ..StartProcess::default() };
        let ran = after.run(echo, 1024).await.unwrap();
        assert_eq!(ran.stdout, b"new\n", "new commands run");

        end(w, restored).await;
        w.start_server().await;
        let lost = client.sandbox(&id).await;
        assert_eq!(lost["phase"], "failed", "the server knows the first instance only: {lost}");
    });
}

#[test]
fn shells_of_debian_keep_their_jobs_and_terminals() {
    let Some(criu) = criu() else { return };
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "template": "debian", "network": "deny-all" })).await;
        w.stop_server(Signal::SIGTERM).await;
        let (agent, token) = (w.agent_pid(&id), token(w, &id).await);
        let before = agent_at(agent, &token);
        let bash = open_terminal(&before, "/bin/bash", 90).await;
        types(&before, bash, "sleep 777 & exec 9<>/dev/tty; echo $((40+2))", "42").await;
        let dash = open_terminal(&before, "/bin/dash", 70).await;
        types(&before, dash, "(while :; do sleep 0.1; done) & sleep 778 & echo $((40+2))", "42").await;
        // Jobs that were stopped: by a key, and for want of the terminal.
        let stopped = open_terminal(&before, "/bin/bash", 50).await;
        types(&before, stopped, "sleep 779", "779").await;
        press(&before, stopped, "\x1a", (agent, "sleep 779"), Some('T')).await;
        types(&before, stopped, "cat /dev/tty &", "cat").await;
        until("its reader stops", async || (state_of(agent, "cat /dev/tty")? == 'T').then_some(())).await;
        types(&before, stopped, "jobs -l", "tty input").await;
        // A program that took the terminal for itself: raw, in the foreground, with its keys from /dev/tty.
        let pager = open_terminal(&before, "/bin/bash", 60).await;
        types(&before, pager, "seq 1 500 > /tmp/n; python3 -c \"import tty,sys; t=open('/dev/tty','rb',0); tty.setraw(t); print('rea'+'dy',flush=True); [print('key',t.read(1),flush=True) for _ in range(3)]\"; stty sane; echo d''one", "ready").await;

        // Twice: what was restored lives in a time namespace of its own and holds other files where /dev/tty was.
        let mut restored = agent;
        for _ in 0..2 {
            let dumped = dump(w, &criu, restored);
            gone(w, restored).await;
            let stage = w.folder().join("stage");
            atoll_tests::leaks::unmount_below(&stage);
            let work = w.data().join("pool/layers").join(&id).join("work-restored");
            for old in [stage, work] {
                let _ = std::fs::remove_dir_all(old);
            }
            restored = restore(w, &criu, &dumped, &id, "debian");
        }

        let after = agent_at(restored, &token);
        until("the agent answers", async || after.health().await.ok()).await;
        types(&after, bash, "jobs; echo size=$(stty size)", "size=30 90").await;
        types(&after, bash, "fg %1", "sleep 777").await;
        press(&after, bash, "\x1a", (restored, "sleep 777"), Some('T')).await;
        types(&after, bash, "jobs", "Stopped").await;
        types(&after, bash, "echo to-the-descriptor >&9", "to-the-descriptor").await;
        types(&after, dash, "jobs; echo size=$(stty size)", "size=30 70").await;
        types(&after, dash, "fg %2", "sleep 778").await;
        press(&after, dash, "\x03", (restored, "sleep 778"), None).await;
        types(&after, dash, "echo $((40+3))", "43").await;
        types(&after, stopped, "jobs", "sleep 779").await;
        types(&after, stopped, "fg %1", "sleep 779").await;
        press(&after, stopped, "\x03", (restored, "sleep 779"), None).await;
        types(&after, stopped, "fg %2", "cat /dev/tty").await;
        types(&after, stopped, "heard", "heard\r\nheard").await;
        types(&after, pager, "abc", "done").await;
        types(&after, pager, "echo size=$(stty size)", "size=30 60").await;
        end(w, restored).await;
        w.start_server().await;
    });
}

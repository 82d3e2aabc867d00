//! Processes through the real agent: output, exits, input, signals, terminals, readers, limits.

#![allow(clippy::unwrap_used)]

use crate::common;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, TestAgent, command, sh};
use atoll_agentapi::{
    AgentClient, AgentToken, ExitStatus, ProcessEvent, ProcessStream, StartProcess, TerminalSize,
};
use atoll_model::ErrorKind;

async fn collect(stream: &mut ProcessStream) -> (Vec<u8>, Vec<u8>, u64, ExitStatus) {
    let (mut out, mut err, mut dropped) = (Vec::new(), Vec::new(), 0);
    loop {
        match stream.next().await.unwrap().unwrap() {
            ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => out.extend(data),
            ProcessEvent::Stderr(data) => err.extend(data),
            ProcessEvent::Dropped(n) => dropped += n,
            ProcessEvent::Exit(status) => return (out, err, dropped, status),
        }
    }
}

#[tokio::test]
async fn stdout_and_stderr_stay_apart_and_the_exit_code_comes_through() {
    let agent = TestAgent::start();
    let output = agent.sh("echo out; echo err >&2; exit 7").await;
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.status.code, output.status.shell_code()), (Some(7), 7));
}

#[tokio::test]
async fn two_thousand_short_children_all_report_their_own_exit() {
    let agent = TestAgent::start();
    for round in 0..40 {
        let runs =
            (0..50).map(|n| {
                let client = agent.client.clone();
                async move {
                    (n, client.run(command(&["/bin/sh", "-c", &format!("exit {n}")]), 1024).await.unwrap())
                }
            });
        for (n, output) in futures::future::join_all(runs).await {
            assert_eq!(output.status.code, Some(n), "round {round}");
        }
    }
    assert!(agent.client.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn fifty_megabytes_arrive_whole_at_a_reader_that_reads() {
    let agent = TestAgent::start();
    let (_, mut stream) = agent.client.start(sh("head -c 52428800 /dev/zero")).await.unwrap();
    let (out, _, dropped, _) = collect(&mut stream).await;
    assert_eq!((out.len(), dropped), (52_428_800, 0));
}

#[tokio::test]
async fn a_reader_that_stops_reading_blocks_neither_the_process_nor_others() {
    let agent = TestAgent::start();
    let done = agent.path("done");
    let (started, _stalled) =
        agent.client.start(sh(&format!("head -c 30000000 /dev/zero; touch {done}"))).await.unwrap();
    let begun = Instant::now();
    while !std::path::Path::new(&done).exists() {
        assert!(begun.elapsed() < PATIENCE, "the process is blocked by its dead reader");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(agent.sh("echo ok").await.stdout, b"ok\n");
    }
    let mut late = agent.client.attach(started.pid, true).await.unwrap();
    let (out, ..) = collect(&mut late).await;
    assert!(out.len() <= 1 << 20 && !out.is_empty());
}

#[tokio::test]
async fn a_reader_that_goes_away_frees_the_process_soon() {
    let agent = TestAgent::start();
    let done = agent.path("done");
    let (_, stream) =
        agent.client.start(sh(&format!("head -c 30000000 /dev/zero; touch {done}"))).await.unwrap();
    drop(stream);
    let begun = Instant::now();
    while !std::path::Path::new(&done).exists() {
        // Less than what a reader gets that is still there.
        assert!(begun.elapsed() < Duration::from_secs(9));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A reader whose connection breaks repeatedly, as in checkpoints, and that continues at its position.
#[tokio::test]
async fn a_reader_that_comes_back_misses_nothing_and_gets_nothing_twice() {
    let agent = TestAgent::start();
    let address = agent.address;
    // Bytes in the reader's own receive buffer are lost too when the connection breaks, so it is kept small.
    let connect = move || async move {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(64 * 1024)?;
        socket.connect(address).await
    };
    let client = AgentClient::new(connect, &AgentToken::new(common::TOKEN));
    let lines = 400_000u64;
    let (started, mut stream) =
        client.start(sh(&format!("seq {lines}; echo done >&2; exit 5"))).await.unwrap();
    assert_eq!(stream.position(), Some(0));
    let (mut out, mut breaks) = (Vec::new(), 0);
    let status = loop {
        match stream.next().await.unwrap().unwrap() {
            ProcessEvent::Stdout(data) => out.extend(data),
            ProcessEvent::Stderr(data) => assert_eq!(data, "done\n"),
            ProcessEvent::Exit(status) => break status,
            other => panic!("{other:?} after {} bytes and {breaks} breaks", out.len()),
        }
        if out.len() > (breaks + 1) * 300_000 && breaks < 6 {
            breaks += 1;
            let from = stream.position().unwrap();
            drop(stream);
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream = client.attach_from(started.pid, from).await.unwrap();
            assert_eq!(stream.position(), Some(from));
        }
    };
    let expected: String = (1..=lines).map(|n| format!("{n}\n")).collect();
    assert!(out == expected.as_bytes(), "{} bytes of {}", out.len(), expected.len());
    assert_eq!((status.code, breaks), (Some(5), 6));
    // After its end too; a reader that is ahead of a restored process is at the end of its output.
    let all = expected.len() as u64 + 5;
    let mut late = agent.client.attach_from(started.pid, all - 3).await.unwrap();
    // The two streams are read in parallel: either may have come last.
    let (out, err, ..) = collect(&mut late).await;
    assert_eq!(out.len() + err.len(), 3);
    assert!(expected.as_bytes().ends_with(&out) && b"done\n".ends_with(&err), "{out:?} {err:?}");
    let mut ahead = agent.client.attach_from(started.pid, all + 100).await.unwrap();
    assert_eq!(ahead.position(), Some(all));
    assert_eq!(collect(&mut ahead).await.0, b"");
    let mut early = agent.client.attach_from(started.pid, 0).await.unwrap();
    let (out, err, dropped, _) = collect(&mut early).await;
    assert_eq!((out.len() + err.len()) as u64 + dropped, all);
}

#[tokio::test]
async fn attaching_again_gets_the_tail_and_then_what_comes() {
    let agent = TestAgent::start();
    let what = StartProcess { stdin: true, ..sh("echo first; read x; echo $x; exit 3") };
    let (started, mut stream) = agent.client.start(what).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), ProcessEvent::Stdout("first\n".into()));
    drop(stream);
    let mut again = agent.client.attach(started.pid, true).await.unwrap();
    agent.client.send_stdin(started.pid, "second\n").await.unwrap();
    let (out, _, _, status) = collect(&mut again).await;
    assert_eq!((out.as_slice(), status.code), (&b"first\nsecond\n"[..], Some(3)));
    let mut late = agent.client.attach(started.pid, false).await.unwrap();
    assert_eq!(collect(&mut late).await.3.code, Some(3));
    assert_eq!(agent.client.attach(999_999, true).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_timeout_kills_the_whole_group_and_says_so() {
    let agent = TestAgent::start();
    let what = StartProcess { timeout: Some(Duration::from_secs(2)), ..sh("sleep 600 & echo $!; wait") };
    let begun = Instant::now();
    let output = agent.client.run(what, 1024).await.unwrap();
    assert!(output.status.timed_out && output.status.shell_code() == 124);
    assert!(begun.elapsed() < PATIENCE);
    let sleeper = String::from_utf8(output.stdout).unwrap();
    assert_ne!(sleeper, "", "it has started");
    agent.sh_until(&format!("kill -0 {} 2>/dev/null || echo gone", sleeper.trim()), "gone\n").await;
}

#[tokio::test]
async fn any_signal_reaches_the_group_and_the_exit_names_it() {
    let agent = TestAgent::start();
    let (started, mut stream) = agent
        .client
        .start(sh("trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done"))
        .await
        .unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), ProcessEvent::Stdout("ready\n".into()));
    agent.client.signal(started.pid, libc::SIGUSR1).await.unwrap();
    let (out, _, _, status) = collect(&mut stream).await;
    // `sleep` is also ended by the group's USR1; the shell's trap still decides the exit.
    assert!(String::from_utf8_lossy(&out).contains("got"));
    assert_eq!(status.code, Some(5));

    let (started, mut stream) = agent.client.start(command(&["sleep", "60"])).await.unwrap();
    agent.client.signal(started.pid, libc::SIGKILL).await.unwrap();
    assert_eq!(collect(&mut stream).await.3.signal, Some(libc::SIGKILL));
    assert_eq!(agent.client.signal(started.pid, 9).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(agent.client.signal(1, 99).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_hundred_kills_race_one_exit_without_harm() {
    let agent = TestAgent::start();
    let (started, mut stream) = agent.client.start(command(&["sleep", "60"])).await.unwrap();
    let kills = (0..100).map(|_| agent.client.signal(started.pid, libc::SIGKILL));
    for result in futures::future::join_all(kills).await {
        assert!(result.is_ok() || result.unwrap_err().kind() == ErrorKind::NotFound);
    }
    assert_eq!(collect(&mut stream).await.3.signal, Some(libc::SIGKILL));
}

#[tokio::test]
async fn what_cannot_be_executed_is_a_typed_refusal_and_the_agent_goes_on() {
    let agent = TestAgent::start();
    let plain = agent.path("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let noexec = agent.path("noexec");
    std::fs::write(&noexec, "\x7fELFbroken").unwrap();
    std::fs::set_permissions(&noexec, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let kind = |what| async { agent.client.start(what).await.unwrap_err().kind() };
    assert_eq!(kind(command(&["no-such-program"])).await, ErrorKind::NotFound);
    assert_eq!(kind(command(&["/no/such/program"])).await, ErrorKind::NotFound);
    assert_eq!(kind(command(&[&plain])).await, ErrorKind::Forbidden);
    assert_eq!(kind(command(&[&noexec])).await, ErrorKind::Invalid);
    assert_eq!(kind(command(&["/etc"])).await, ErrorKind::Forbidden);
    assert_eq!(kind(command(&[""])).await, ErrorKind::Invalid);
    assert_eq!(kind(command(&["echo", "a\0b"])).await, ErrorKind::Invalid);
    assert_eq!(kind(command(&["echo", &"x".repeat(1 << 20)])).await, ErrorKind::Invalid);
    assert_eq!(
        kind(StartProcess { cwd: "/no/such/dir".into(), ..command(&["true"]) }).await,
        ErrorKind::Invalid
    );
    assert_eq!(
        kind(StartProcess { cwd: "/etc/passwd".into(), ..command(&["true"]) }).await,
        ErrorKind::Invalid
    );
    assert_eq!(
        kind(StartProcess { cwd: "/proc/self/root".into(), ..command(&["true"]) }).await,
        ErrorKind::Forbidden
    );
    assert_eq!(
        kind(StartProcess { user: Some("nobody-here".into()), ..command(&["true"]) }).await,
        ErrorKind::Unauthenticated
    );
    let error = agent
        .client
        .start(StartProcess { cwd: "/no/such/dir".into(), ..command(&["true"]) })
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "cwd '/no/such/dir' does not exist");
    assert_eq!(agent.sh("echo fine").await.stdout, b"fine\n");
    assert!(agent.client.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn ten_thousand_variables_and_a_preload_reach_the_child_and_not_the_agent() {
    let agent = TestAgent::start();
    let mut what = sh("env | grep -c ^V; echo $LD_PRELOAD; echo ${SECRET_OF_HOST:-clean}");
    what.envs = (0..10_000).map(|n| (format!("V{n}"), "x".into())).collect();
    what.envs.insert("LD_PRELOAD".into(), String::new());
    let output = agent.client.run(what, 1 << 20).await.unwrap();
    assert_eq!(output.stdout, b"10000\n\nclean\n");
}

/// Hides programs of /usr/bin in the agent's own mount namespace.
async fn hide(agent: &TestAgent, names: &[&str]) {
    let layer = agent.path("whiteouts");
    let nodes: Vec<String> = names.iter().map(|name| format!("mknod {layer}/{name} c 0 0")).collect();
    let script = format!(
        "set -e; mkdir {layer}; {}; mount -t overlay overlay -o lowerdir={layer}:/usr/bin /usr/bin",
        nodes.join("; ")
    );
    let output = agent.sh(&script).await;
    assert_eq!(output.status.code, Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_missing_bash_is_answered_by_sh_and_no_shell_by_a_refusal() {
    let agent = TestAgent::start_as_pid_1();
    hide(&agent, &["bash"]).await;
    let output = agent.client.run(command(&["/bin/bash", "-c", "echo by $0"]), 1024).await.unwrap();
    assert_eq!(output.stdout, b"by /bin/sh\n");
    let agent = TestAgent::start_as_pid_1();
    hide(&agent, &["bash", "sh", "dash"]).await;
    let error = agent.client.run(command(&["/bin/bash", "-c", "echo"]), 1024).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "command not found: '/bin/bash'");
}

#[tokio::test]
async fn a_terminal_has_a_size_that_can_be_any_number() {
    let agent = TestAgent::start();
    let what = StartProcess {
        pty: Some(TerminalSize { cols: 100, rows: 40 }),
        ..sh("stty size; read a; stty size; read b; stty size; tty")
    };
    let (started, mut stream) = agent.client.start(what).await.unwrap();
    let mut rest = String::new();
    for (cols, rows) in [(100, 40), (0, 0), (u16::MAX, u16::MAX)] {
        if cols != 100 {
            agent.client.resize(started.pid, TerminalSize { cols, rows }).await.unwrap();
            agent.client.send_stdin(started.pid, "\n").await.unwrap();
        }
        let mut seen = String::new();
        while !seen.contains(&format!("{rows} {cols}\r\n")) {
            match stream.next().await.unwrap().unwrap() {
                ProcessEvent::Pty(data) => seen.push_str(&String::from_utf8_lossy(&data)),
                other => panic!("{other:?} before the size; saw {seen}"),
            }
        }
        rest = seen;
    }
    let (out, _, _, status) = collect(&mut stream).await;
    rest.push_str(&String::from_utf8_lossy(&out));
    assert!(rest.contains("/dev/pts/"), "{rest}");
    assert_eq!(status.code, Some(0));
    let (plain, _keep) = agent.client.start(command(&["sleep", "5"])).await.unwrap();
    assert_eq!(
        agent.client.resize(plain.pid, TerminalSize { cols: 1, rows: 1 }).await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    agent.client.signal(plain.pid, 9).await.unwrap();
}

#[tokio::test]
async fn a_terminal_closed_in_the_middle_of_a_flood_ends_cleanly() {
    let agent = TestAgent::start();
    let what = StartProcess { pty: Some(TerminalSize { cols: 80, rows: 24 }), ..sh("cat /dev/urandom") };
    let (started, mut stream) = agent.client.start(what).await.unwrap();
    for _ in 0..20 {
        stream.next().await.unwrap().unwrap();
    }
    drop(stream);
    agent.client.signal(started.pid, 9).await.unwrap();
    assert_eq!(agent.sh("echo ok").await.stdout, b"ok\n");
}

#[tokio::test]
async fn stdin_is_carried_closed_and_bounded() {
    let agent = TestAgent::start();
    let (started, mut stream) =
        agent.client.start(StartProcess { stdin: true, ..sh("cat; echo end") }).await.unwrap();
    agent.client.send_stdin(started.pid, "hello\n").await.unwrap();
    agent.client.close_stdin(started.pid).await.unwrap();
    agent.client.close_stdin(started.pid).await.unwrap();
    assert_eq!(collect(&mut stream).await.0, b"hello\nend\n");

    let (deaf, _stream) =
        agent.client.start(StartProcess { stdin: true, ..command(&["sleep", "600"]) }).await.unwrap();
    let begun = Instant::now();
    let error = agent.client.send_stdin(deaf.pid, vec![b'x'; 1 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(begun.elapsed() < PATIENCE);
    agent.client.signal(deaf.pid, 9).await.unwrap();

    let (none, _stream) = agent.client.start(command(&["sleep", "30"])).await.unwrap();
    assert!(agent.client.send_stdin(none.pid, "x").await.is_err());
    agent.client.signal(none.pid, 9).await.unwrap();
}

#[tokio::test]
async fn a_background_grandchild_delays_the_exit_only_by_the_grace_and_is_never_blocked() {
    let agent = TestAgent::start();
    let done = agent.path("done");
    let begun = Instant::now();
    let output =
        agent.sh(&format!("(sleep 6; head -c 1000000 /dev/zero; touch {done}) & echo started")).await;
    assert_eq!(output.stdout, b"started\n");
    assert!(begun.elapsed() < Duration::from_millis(5_900), "{:?}", begun.elapsed());
    while !std::path::Path::new(&done).exists() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn logged_processes_appear_in_the_logs() {
    let agent = TestAgent::start();
    agent.client.run(StartProcess { logged: true, ..sh("echo one; echo two >&2") }, 100).await.unwrap();
    agent.sh("echo not logged").await;
    let mut tail = agent.client.logs(false, None).await.unwrap();
    let mut text = Vec::new();
    while let Some(line) = tail.next().await {
        text.extend(line.unwrap().data);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("one") && text.contains("two") && !text.contains("not"), "{text}");

    let mut follow = agent.client.logs(true, Some(4)).await.unwrap();
    let kept = follow.next().await.unwrap().unwrap();
    assert!(kept.data.len() <= 4);
    let (_, _stream) =
        agent.client.start(StartProcess { logged: true, detached: true, ..sh("echo live") }).await.unwrap();
    assert_eq!(follow.next().await.unwrap().unwrap().data, "live\n");
}

#[tokio::test]
async fn a_command_runs_as_another_user_with_their_rights_and_no_more() {
    let agent = TestAgent::start();
    let what = |script: &str| StartProcess { user: Some("nobody".into()), cwd: "/".into(), ..sh(script) };
    let output = agent.client.run(what("id -un; echo $USER $LOGNAME; grep -E '^Cap(Eff|Prm|Inh|Amb)' /proc/self/status; cat /etc/shadow || true"), 4096).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("nobody\nnobody nobody\n"), "{text}");
    assert_eq!(text.matches("0000000000000000").count(), 4, "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ermission denied"));
}

#[tokio::test]
async fn children_start_with_a_raised_oom_score_and_clean_signals() {
    let agent = TestAgent::start();
    let output = agent.sh("cat /proc/self/oom_score_adj; grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l; ulimit -c").await;
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "500");
    assert!(lines[1].ends_with("0000000000000000") && lines[2].ends_with("0000000000000000"), "{text}");
    assert_eq!((lines[3], lines[4]), ("4", "0"), "no descriptor leaks into children: {text}");
}

#[tokio::test]
async fn as_pid_1_it_reaps_orphans_and_survives_a_fork_bomb_at_the_limit() {
    let agent = TestAgent::start_as_pid_1();
    assert_eq!(agent.sh("cat /proc/1/comm").await.stdout, b"atoll-agent\n");
    agent.sh("for i in $(seq 300); do (sleep 0.01 &) ; done").await;
    agent.sh_until("grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l", "0\n").await;
    agent.sh_until("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l", "0\n").await;
    assert_eq!(agent.sh("kill -9 1; kill -TERM 1; echo alive").await.stdout, b"alive\n");
}

#[tokio::test]
async fn the_agent_hides_its_memory_from_users_inside() {
    let agent = TestAgent::start_as_pid_1();
    let what = StartProcess {
        user: Some("nobody".into()),
        ..sh("cat /proc/1/environ /proc/1/maps; ls /proc/1/fd; true")
    };
    let output = agent.client.run(what, 1 << 20).await.unwrap();
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[tokio::test]
async fn a_pause_does_not_use_up_a_deadline() {
    let agent = TestAgent::start();
    let what = StartProcess { timeout: Some(Duration::from_secs(4)), ..sh("exec sleep 600") };
    let (_, mut stream) = agent.client.start(what).await.unwrap();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let signal = |name: &str| {
        let done = std::process::Command::new("kill").args([name, &agent.child.id().to_string()]).status();
        assert!(done.unwrap().success());
    };
    // For a stopped agent, as for a frozen one, time jumps.
    signal("-STOP");
    let frozen = Duration::from_secs(6);
    tokio::time::sleep(frozen).await;
    signal("-CONT");
    assert_eq!(agent.client.list().await.unwrap().len(), 1, "it has time left");
    let (.., status) = collect(&mut stream).await;
    let ran = begun.elapsed() - frozen;
    assert!(status.timed_out && ran > Duration::from_millis(2500), "{ran:?}");
}

//! The scripts, run by the shells of this machine as the toolbox runs them.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::process::WINDOW;

/// How a toolbox may run a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Bash,
    /// The line is the standard input of bash.
    BashInput,
    Sh,
    Busybox,
}

const RUNNERS: [Runner; 4] = [Runner::Bash, Runner::BashInput, Runner::Sh, Runner::Busybox];

/// A sandbox that is a folder.
struct Sandbox {
    runner: Runner,
    folder: tempfile::TempDir,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for (token, ..) in self.listed() {
            self.run(SIGNAL, &[&token, "9"]);
        }
    }
}

impl Sandbox {
    /// One for each shell that this machine has.
    fn all() -> Vec<Self> {
        let is_here = |runner: &Runner| match runner {
            Runner::Bash | Runner::BashInput => Path::new("/bin/bash").exists(),
            Runner::Sh => true,
            Runner::Busybox => Path::new("/bin/busybox").exists(),
        };
        let here = RUNNERS.into_iter().filter(is_here);
        here.map(|runner| Self { runner, folder: tempfile::tempdir().unwrap() }).collect()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn execute(&self, line: &str) -> String {
        let mut line = line.replace(FOLDER, &self.path("atoll"));
        if self.runner == Runner::Busybox {
            line = line.replace("/bin/sh -c", "/bin/busybox sh -c");
        }
        let (shell, input) = match self.runner {
            Runner::Bash => (vec!["/bin/bash", "-c", &line], None),
            Runner::BashInput => (vec!["/bin/bash"], Some(&line)),
            Runner::Sh => (vec!["/bin/sh", "-c", &line], None),
            Runner::Busybox => (vec!["/bin/busybox", "sh", "-c", &line], None),
        };
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).current_dir("/").stdout(Stdio::piped()).stderr(Stdio::inherit());
        // As the toolbox: the sandbox's variables have names that a script could use.
        command.env("D", "kept").env("PATH", "/usr/local/bin:/usr/bin:/bin").stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.map(String::as_bytes).unwrap_or_default()).unwrap();
        drop(stdin);
        String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
    }

    fn run(&self, script: &str, arguments: &[&str]) -> String {
        self.execute(&line(script, arguments.iter().copied()))
    }

    fn report(&self, text: &str) -> Report {
        Report::parse(text).unwrap_or_else(|| panic!("{:?} printed {text:?}", self.runner))
    }

    fn start(&self, spec: &CommandStart<'_>) -> Report {
        self.report(&self.execute(&self.start_line(spec)))
    }

    fn start_line(&self, spec: &CommandStart<'_>) -> String {
        let path = spec.env.iter().find(|(name, _)| *name == "PATH").map_or("", |(_, value)| value);
        let env = spec.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let argv: Vec<String> = spec.argv.iter().map(|word| (*word).to_owned()).collect();
        let command = with_environment(&env, &argv);
        let folder = spec.folder.map_or_else(|| self.path(""), str::to_owned);
        let input = if spec.input { "i" } else { "-" };
        let arguments = [spec.token, &folder, input, spec.limit, "bWV0YQ==", spec.forget, spec.argv[0], path];
        let command = command.iter().map(String::as_str);
        start_line(arguments.into_iter().chain(command))
    }

    fn sh(&self, token: &str, line: &str) -> Report {
        self.start(&CommandStart { token, argv: &["/bin/sh", "-c", line], ..CommandStart::default() })
    }

    /// All output from a position on, and the exit.
    fn read(&self, token: &str, mut report: Report) -> Report {
        if report.out.len() >= WINDOW || report.err.len() >= WINDOW {
            report.exit = None;
        }
        let began = Instant::now();
        while report.exit.is_none() {
            let (out, err) = (report.out.len().to_string(), report.err.len().to_string());
            let next = self.report(&self.run(READ, &[token, &out, &err, &WINDOW.to_string(), "20"]));
            assert_eq!((next.missing, next.is_lost), (None, false), "{:?}", self.runner);
            let is_all = next.out.len() < WINDOW && next.err.len() < WINDOW;
            report.out = [report.out, next.out].concat().into();
            report.err = [report.err, next.err].concat().into();
            // As the provider: a full window is not the end.
            report.exit = next.exit.filter(|_| is_all);
            assert!(began.elapsed() < Duration::from_secs(60), "{:?} does not end", self.runner);
        }
        report
    }

    /// Once a process has wholly ended, the process that waited for its time limit is gone.
    fn assert_no_timer_after_end(&self, token: &str) {
        self.wait_for(&format!("atoll/{token}.end"));
        let timer = std::fs::read_to_string(self.path(&format!("atoll/{token}.timer"))).unwrap();
        assert!(!Path::new(&format!("/proc/{}/exe", timer.trim())).exists(), "{:?}", self.runner);
    }

    /// Waits until a file of the sandbox exists.
    fn wait_for(&self, name: &str) {
        let began = Instant::now();
        while !Path::new(&self.path(name)).exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "no {name} by {:?}", self.runner);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn listed(&self) -> Vec<(String, u32, String)> {
        let printed = self.run(LIST, &[]);
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let lines = printed.lines().map(words);
        lines.map(|line| (line[0].clone(), line[1].parse().unwrap(), line[2].clone())).collect()
    }
}

/// A command to start.
struct CommandStart<'a> {
    token: &'a str,
    argv: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
    folder: Option<&'a str>,
    input: bool,
    limit: &'a str,
    forget: &'a str,
}

impl Default for CommandStart<'_> {
    fn default() -> Self {
        Self { token: "a", argv: &["true"], env: &[], folder: None, input: false, limit: "-", forget: "" }
    }
}

const fn exit(status: i32, is_late: bool, signal: i32) -> Option<NotedExit> {
    Some(NotedExit { status, is_late, signal })
}

#[test]
fn a_short_command_needs_one_call_and_is_never_run_twice() {
    for sandbox in Sandbox::all() {
        let line = "echo out; echo err >/dev/stderr; echo again >/dev/stderr; echo >>count; exit 3";
        let first = sandbox.sh("a", line);
        let again = sandbox.sh("a", line);
        for report in [sandbox.read("a", first), sandbox.read("a", again)] {
            assert_eq!((&report.out[..], &report.err[..]), (&b"out\n"[..], &b"err\nagain\n"[..]));
            assert_eq!(report.exit, exit(3, false, 0), "{:?}", sandbox.runner);
        }
        assert_eq!(std::fs::read(sandbox.path("count")).unwrap(), b"\n", "{:?}", sandbox.runner);
        assert_eq!(sandbox.listed(), [], "{:?}", sandbox.runner);
    }
}

#[test]
fn output_has_the_bytes_of_the_program() {
    for sandbox in Sandbox::all() {
        for (token, bytes) in [
            ("text", "no end of a line \u{1}\u{7f}é\\n\r".as_bytes().to_vec()),
            ("all", (0..=255).collect()),
            ("invalid", (128..=255).cycle().take(5_000).collect()),
            ("newlines", b"\n\nend\nx 0 0 0\n\n".to_vec()),
            ("long", b"0123456789".repeat(70_000)),
        ] {
            std::fs::write(sandbox.path("bytes"), &bytes).unwrap();
            let started = sandbox.sh(token, "cat bytes; cat bytes >&2");
            let report = sandbox.read(token, started);
            assert!(report.out == bytes && report.err == bytes, "{token} by {:?}", sandbox.runner);
            assert_eq!(report.exit, exit(0, false, 0));
        }
    }
}

#[test]
fn variables_reach_the_program_and_nothing_else() {
    let env = [
        ("A B", "name with a space"),
        ("B", "b"),
        ("BASH_ENV", "/no/such/file"),
        ("BASH_VERSION", "1"),
        ("D", "it's \"quoted\" $HOME `x` \\"),
        ("ENV", "/no/such/file"),
        ("IFS", "/:a"),
        ("LC_ALL", "xx_XX"),
        ("LD_PRELOAD", ""),
        ("OPTIND", "no number"),
        ("PATH", "/no/such/folder"),
        ("PPID", "one"),
        ("PS4", "$(touch hijacked)"),
        ("S", "line\nline\n\n"),
        ("SHELLOPTS", "xtrace"),
        ("T", ""),
        ("UID", "none"),
        ("W", "*"),
        ("atoll_d", "x"),
        ("atoll_base", "/"),
        ("i", "-n"),
        ("s", "é"),
        ("w", "1"),
    ];
    for sandbox in Sandbox::all() {
        let argv = ["/usr/bin/env", "-0"];
        let started = sandbox.start(&CommandStart { argv: &argv, env: &env, ..CommandStart::default() });
        let report = sandbox.read("a", started);
        let printed = String::from_utf8(report.out.to_vec()).unwrap();
        let got: BTreeMap<&str, &str> =
            printed.split_terminator('\0').map(|pair| pair.split_once('=').unwrap()).collect();
        for (name, value) in env {
            assert_eq!(got.get(name), Some(&value), "{name} by {:?}", sandbox.runner);
        }
        let own = got.keys().filter(|name| name.starts_with("atoll_")).count();
        assert_eq!((own, report.exit), (2, exit(0, false, 0)), "{got:?} by {:?}", sandbox.runner);
        // The sandbox's own variables do not change.
        let plain = sandbox.sh("b", "echo $D; echo $PATH");
        let plain = sandbox.read("b", plain);
        assert_eq!(plain.out, "kept\n/usr/local/bin:/usr/bin:/bin\n", "{:?}", sandbox.runner);
        assert!(!Path::new(&sandbox.path("hijacked")).exists());
        // A program is looked for where the caller says.
        let missing = sandbox.start(&CommandStart { token: "c", env: &env, ..CommandStart::default() });
        assert_eq!(missing.missing, Some(MissingPart::Program), "{:?}", sandbox.runner);
    }
}

#[test]
fn what_is_not_there_is_told_and_can_be_started_later() {
    for sandbox in Sandbox::all() {
        let start = |token, argv: &[&str], folder| {
            sandbox.start(&CommandStart { token, argv, folder, ..CommandStart::default() }).missing
        };
        for word in ["no-such-program", "cd", "if", "/etc/passwd", "/etc", "./none", ""] {
            assert_eq!(start("a", &[word], None), Some(MissingPart::Program), "{word:?}");
        }
        assert_eq!(start("a", &["true"], Some("/no/such/folder")), Some(MissingPart::Folder));
        assert_eq!(start("a", &["true"], Some("/etc/passwd")), Some(MissingPart::Folder));
        assert_eq!(start("a", &["true"], None), None, "{:?}", sandbox.runner);
        std::fs::write(sandbox.path("a=b"), "#!/bin/sh\necho $X $1\n").unwrap();
        std::fs::set_permissions(sandbox.path("a=b"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let argv = ["./a=b", "one"];
        let odd = sandbox.start(&CommandStart {
            token: "b",
            argv: &argv,
            env: &[("X", "x")],
            ..CommandStart::default()
        });
        assert_eq!(sandbox.read("b", odd).out, "x one\n", "{:?}", sandbox.runner);
    }
}

fn status_line(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn a_program_has_its_own_group_and_ends_by_the_signals_that_it_gets() {
    for sandbox in Sandbox::all() {
        let line = "trap 'exit 7' USR1; echo first; echo >trapped; while :; do sleep 0.05; done";
        let started = sandbox.sh("a", line);
        assert_eq!(started.exit, None, "{:?}", sandbox.runner);
        // On a busy machine the start is answered before the program has begun.
        sandbox.wait_for("trapped");
        let pid = started.pid.unwrap();
        assert_eq!(sandbox.listed(), [("a".to_owned(), pid, "bWV0YQ==".to_owned())]);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let group = stat.rsplit_once(") ").unwrap().1.split(' ').nth(2).unwrap();
        assert_eq!(group, pid.to_string(), "{:?}", sandbox.runner);
        // A stop is no end.
        for signal in ["19", "18"] {
            assert_eq!(sandbox.run(SIGNAL, &["a", signal]), "ok\n");
        }
        assert_eq!(sandbox.listed().len(), 1);
        sandbox.run(SIGNAL, &["a", "10"]);
        let report = sandbox.read("a", started);
        assert_eq!(
            (&report.out[..], report.exit),
            (&b"first\n"[..], exit(7, false, 10)),
            "{:?}",
            sandbox.runner
        );
        assert_eq!(sandbox.run(SIGNAL, &["a", "10"]), "n\n");
        for (signal, status) in [("2", 130), ("3", 131), ("15", 143), ("9", 137)] {
            let token = format!("s{signal}");
            let argv = ["sleep", "600"];
            let started =
                sandbox.start(&CommandStart { token: &token, argv: &argv, ..CommandStart::default() });
            let ignored = status_line(started.pid.unwrap(), "SigIgn:");
            assert_eq!(ignored & 0b110, 0, "SIGINT and SIGQUIT by {:?}", sandbox.runner);
            assert_eq!(sandbox.run(SIGNAL, &[&token, signal]), "ok\n");
            let ended = sandbox.read(&token, started).exit;
            assert_eq!(ended, exit(status, false, signal.parse().unwrap()), "{:?}", sandbox.runner);
        }
    }
}

#[test]
fn a_program_has_no_descriptors_of_the_scripts() {
    let list = "cd /proc/self/fd; exec ls";
    let plain = Command::new("/bin/sh").args(["-c", list]).stdin(Stdio::null()).output().unwrap();
    for sandbox in Sandbox::all() {
        let started = sandbox.sh("a", list);
        assert_eq!(sandbox.read("a", started).out, plain.stdout, "{:?}", sandbox.runner);
    }
}

#[test]
fn a_child_that_keeps_the_streams_does_not_keep_the_exit() {
    for sandbox in Sandbox::all() {
        let started = sandbox.sh("a", "sleep 600 & echo $! >child; echo first; exit 4");
        let report = sandbox.read("a", started);
        assert_eq!((&report.out[..], report.exit), (&b"first\n"[..], exit(4, false, 0)));
        let child: i32 = std::fs::read_to_string(sandbox.path("child")).unwrap().trim().parse().unwrap();
        let end = Command::new("/bin/kill").args(["-9", &child.to_string()]).status().unwrap();
        assert!(end.success(), "the child lives on: {:?}", sandbox.runner);
    }
}

#[test]
fn input_is_passed_on_and_ends() {
    for sandbox in Sandbox::all() {
        let started = sandbox.start(&CommandStart { argv: &["cat"], input: true, ..CommandStart::default() });
        assert_eq!(started.exit, None);
        assert_eq!(sandbox.run(INPUT, &["a", "b25lIA=="]), "ok\n", "{:?}", sandbox.runner);
        assert_eq!(sandbox.run(INPUT, &["a", "dHdv"]), "ok\n");
        assert_eq!(sandbox.run(CLOSE_INPUT, &["a"]), "ok\n");
        let report = sandbox.read("a", started);
        assert_eq!(
            (&report.out[..], report.exit),
            (&b"one two"[..], exit(0, false, 0)),
            "{:?}",
            sandbox.runner
        );
        assert_eq!(sandbox.run(INPUT, &["a", "dHdv"]), "n\n");
        assert_eq!(sandbox.run(CLOSE_INPUT, &["a"]), "ok\n", "idempotent");
    }
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_its_children() {
    for sandbox in Sandbox::all() {
        let argv = ["/bin/sh", "-c", "echo first; sleep 600; echo second"];
        let late = sandbox.start(&CommandStart { argv: &argv, limit: "0.3", ..CommandStart::default() });
        let late = sandbox.read("a", late);
        assert!(late.exit.unwrap().is_late, "{:?} {late:?}", sandbox.runner);
        assert_eq!(late.out, "first\n");
        let quick = sandbox.start(&CommandStart { token: "b", limit: "600", ..CommandStart::default() });
        let quick = sandbox.read("b", quick);
        assert_eq!(quick.exit, exit(0, false, 0), "{:?}", sandbox.runner);
        sandbox.assert_no_timer_after_end("b");
    }
}

#[test]
fn a_timer_that_starts_after_the_program_ended_does_not_stay() {
    let sleep = r#"sleep "$atoll_limit" &"#;
    for sandbox in Sandbox::all() {
        let line = sandbox.start_line(&CommandStart { limit: "600", ..CommandStart::default() });
        let slow = line.replace(sleep, &format!("sleep 1; {sleep}"));
        assert_ne!(line, slow);
        let started = sandbox.report(&sandbox.execute(&slow));
        assert_eq!(sandbox.read("a", started).exit, exit(0, false, 0), "{:?}", sandbox.runner);
        sandbox.assert_no_timer_after_end("a");
    }
}

#[test]
fn a_timer_that_starts_after_the_end_was_read_does_not_stay() {
    let sleep = r#"sleep "$atoll_limit" &"#;
    for sandbox in Sandbox::all() {
        let line = sandbox.start_line(&CommandStart { limit: "600", ..CommandStart::default() });
        let wait = format!("until [ -e {FOLDER}/go ]; do sleep 0.02; done; {sleep}");
        let started = sandbox.report(&sandbox.execute(&line.replace(sleep, &wait)));
        assert_eq!(sandbox.read("a", started).exit, exit(0, false, 0), "{:?}", sandbox.runner);
        let next = sandbox.start(&CommandStart { token: "b", forget: "a.*", ..CommandStart::default() });
        sandbox.read("b", next);
        std::fs::write(sandbox.path("atoll/go"), "").unwrap();
        sandbox.assert_no_timer_after_end("a");
    }
}

#[test]
fn files_of_processes_whose_end_was_read_are_removed() {
    for sandbox in Sandbox::all() {
        for token in ["a", "b"] {
            let started = sandbox.sh(token, "echo x");
            sandbox.read(token, started);
        }
        let last =
            sandbox.start(&CommandStart { token: "c", forget: "a.[!ms]* b.*", ..CommandStart::default() });
        sandbox.read("c", last);
        let mut names: Vec<String> = std::fs::read_dir(sandbox.path("atoll"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("c."))
            .collect();
        names.sort();
        // The same call again must find that it was made.
        assert_eq!(names, ["a.meta", "a.start", "a.sup"], "{:?}", sandbox.runner);
        assert_eq!(
            sandbox.report(&sandbox.run(READ, &["a", "0", "0", "9", "1"])).missing,
            Some(MissingPart::Process)
        );
    }
}

#[test]
fn a_file_is_moved_once_and_links_stay() {
    for sandbox in Sandbox::all() {
        let path = |name: &str| sandbox.path(name);
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        std::fs::create_dir_all(path("atoll")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let odd = "it's\n$HOME *";
        write("old", "old");
        std::os::unix::fs::symlink("old", path("link")).unwrap();
        std::os::unix::fs::symlink("folder", path("to-folder")).unwrap();
        for _ in 0..2 {
            write("new", "new");
            let said = sandbox.run(REPLACE, &[&path("new"), &path("link"), "640", "once"]);
            assert_eq!(said, "ok\n", "{:?}", sandbox.runner);
            assert_eq!(read("old"), "new");
        }
        assert!(std::fs::symlink_metadata(path("link")).unwrap().is_symlink());
        assert_eq!(sandbox.run(LINK_TARGET, &[&path("link")]), "3 640\n");
        assert_eq!(sandbox.run(LINK_TARGET, &[&path("to-folder")]), "d\n");
        assert_eq!(sandbox.run(LINK_TARGET, &["/dev/null"]), "o\n");
        assert_eq!(sandbox.run(LINK_TARGET, &[&path("none")]), "n\n");
        assert_eq!(sandbox.run(REPLACE, &[&path("new"), &path("folder"), "-", "b"]), "d\n");
        write("file", "");
        let said = sandbox.run(REPLACE, &[&path("none"), &path("file"), "-", "c"]);
        assert!(said.to_lowercase().contains("no such file"), "{said:?}");
        for _ in 0..2 {
            assert_eq!(sandbox.run(RENAME, &[&path("old"), &path(odd), "d"]), "ok\n", "{:?}", sandbox.runner);
            assert_eq!(read(odd), "new");
        }
        assert_eq!(sandbox.run(RENAME, &[&path("old"), &path("b"), "e"]), "n\n");
        assert_eq!(sandbox.run(RENAME, &[&path(odd), &path("folder"), "f"]), "d\n");
        assert_eq!(sandbox.run(RENAME, &[&path(odd), &path("to-folder"), "g"]), "ok\n");
        assert_eq!(read("to-folder"), "new", "the link was replaced");
        let said = sandbox.run(RENAME, &[&path("to-folder"), &path("file/below"), "h"]);
        assert!(said.contains("mkdir:"), "{said:?}");
    }
}

#[test]
fn the_first_answer_has_a_whole_window() {
    assert!(START.contains(&format!("head -c {WINDOW} ")));
}

#[test]
fn words_are_the_same_behind_a_shell() {
    assert_eq!(quoted("it's"), r"'it'\''s'");
    assert_eq!(line("echo", ["a b", ""]), "exec /bin/sh -c 'echo' atoll 'a b' ''");
}

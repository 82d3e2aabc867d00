//! Build plans, compared with Docker's results for the same Dockerfiles, with reviewed snapshots, and with bad input.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_image::build::{
    BadDockerfile, Base, BuildContext, BuildStep, Copy, CopyFrom, DeclaredBuild, DeclaredStep, Dockerfile,
    Plan, StepKind, cache_key,
};
use atoll_model::TenantId;
use oci_spec::image::ImageConfiguration;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// The base of the Dockerfiles that Docker built.
fn base() -> ImageConfiguration {
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": [] },
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "BASE=yes"],
            "Cmd": ["/bin/sh"], "Labels": { "of": "base" },
        },
    });
    serde_json::from_value(config).unwrap()
}

fn pack(folder: &Path, to: &Path) {
    let mut tar = tar::Builder::new(fs::File::create(to).unwrap());
    tar.follow_symlinks(false);
    tar.append_dir_all(".", folder).unwrap();
    tar.into_inner().unwrap();
}

fn context_of(files: &[(&str, &str)]) -> (TempDir, BuildContext) {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(fs::File::create(dir.path().join("context.tar")).unwrap());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_mtime(1);
        match content.strip_prefix("-> ") {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                tar.append_link(&mut header, path, target).unwrap();
            }
            None => {
                header.set_size(content.len() as u64);
                tar.append_data(&mut header, path, content.as_bytes()).unwrap();
            }
        }
    }
    tar.into_inner().unwrap();
    let context = BuildContext::open(&dir.path().join("context.tar"), &CancellationToken::new()).unwrap();
    (dir, context)
}

/// Every step of every stage that is built, and the final settings.
fn walk(
    plan: &Plan,
    context: &BuildContext,
) -> Result<(Vec<(usize, BuildStep)>, ImageConfiguration), BadDockerfile> {
    let (mut steps, mut configs) = (Vec::new(), BTreeMap::new());
    for number in plan.order() {
        let stage = plan.stage(number);
        let config = match &stage.base {
            Base::Template(_) => base(),
            Base::Stage(below) => configs.get(below).cloned().unwrap(),
            Base::Scratch => ImageConfiguration::default(),
        };
        let mut walk = stage.walk(config);
        while let Some(step) = walk.next(context)? {
            steps.push((number, step));
        }
        configs.insert(number, walk.into_config());
    }
    let last = *plan.order().last().unwrap();
    Ok((steps, configs.remove(&last).unwrap()))
}

fn plan(
    text: &str,
    args: &[(&str, &str)],
    target: Option<&str>,
    context: &BuildContext,
) -> Result<Plan, BadDockerfile> {
    let args = args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Plan::of(&Dockerfile::parse(text)?, &args, target, context)
}

fn steps(text: &str, context: &BuildContext) -> Vec<BuildStep> {
    let plan = plan(text, &[], None, context).unwrap();
    walk(&plan, context).unwrap().0.into_iter().map(|(_, step)| step).collect()
}

fn copies(text: &str, context: &BuildContext) -> Vec<Copy> {
    let copy = |step: BuildStep| match step.kind {
        StepKind::Copy(copy) => Some(copy),
        _ => None,
    };
    steps(text, context).into_iter().filter_map(copy).collect()
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../tests/dockerfiles");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| case.join("context").is_dir());
    cases.sort();
    cases
}

/// The staged context of the case.
fn staged(case: &Path) -> (TempDir, BuildContext) {
    let dir = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-a").arg(case.join("context")).arg(dir.path()).status().unwrap();
    assert!(copied.success());
    let folder = dir.path().join("context");
    if case.join("prepare").exists() {
        let done = Command::new("sh").arg(case.join("prepare")).current_dir(&folder).status().unwrap();
        assert!(done.success(), "{}", case.display());
    }
    pack(&folder, &dir.path().join("context.tar"));
    let context = BuildContext::open(&dir.path().join("context.tar"), &CancellationToken::new()).unwrap();
    (dir, context)
}

/// Drops Docker's fields that OCI's settings do not have.
fn comparable(config: &Value) -> Value {
    let mut config = config.as_object().cloned().unwrap_or_default();
    for name in ["Healthcheck", "Shell", "OnBuild"] {
        config.remove(name);
    }
    config.retain(|_, value| !value.is_null() && value != &json!("") && value != &json!({}));
    Value::Object(config)
}

#[test]
fn settings_are_those_that_docker_makes_of_the_same_dockerfiles() {
    let mut compared = 0;
    for case in cases() {
        let asked: Value = fs::read(case.join("case.json"))
            .map_or(json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
        let (_dir, context) = staged(&case);
        let name = asked["dockerfile"].as_str().unwrap_or("Dockerfile");
        let text = context.read_text(name, 1 << 20).unwrap().unwrap();
        let args: Vec<(&str, &str)> = asked["args"].as_object().map_or(Vec::new(), |args| {
            args.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect()
        });
        let done =
            plan(&text, &args, asked["target"].as_str(), &context).and_then(|plan| walk(&plan, &context));
        if let Some(fails) = asked.get("fails") {
            // A step that fails only when it runs can be planned.
            if let Err(error) = done {
                assert_eq!(error.line as u64, fails["line"].as_u64().unwrap(), "{}: {error}", case.display());
                assert!(error.to_string().contains(fails["names"].as_str().unwrap()), "{error}");
                compared += 1;
            }
            continue;
        }
        let (_, config) = done.unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        let expected: Value = serde_json::from_slice(&fs::read(case.join("expected.json")).unwrap()).unwrap();
        let ours = serde_json::to_value(config).unwrap();
        assert_eq!(comparable(&ours["config"]), comparable(&expected["config"]), "{}", case.display());
        compared += 1;
    }
    assert!(compared >= 30, "{compared}");
}

/// A plan as text for review.
fn shown(
    title: &str,
    text: &str,
    args: &[(&str, &str)],
    target: Option<&str>,
    context: &BuildContext,
) -> String {
    let mut out = format!("=== {title}\n{}\n---\n", text.trim_end());
    let planned = plan(text, args, target, context).and_then(|plan| Ok((walk(&plan, context)?, plan)));
    match planned {
        Err(error) => {
            let hint = error.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
            writeln!(out, "refused: {error}{hint}").unwrap();
        }
        Ok(((steps, config), plan)) => {
            for note in &plan.notes {
                writeln!(out, "note: {note}").unwrap();
            }
            for (stage, step) in &steps {
                writeln!(
                    out,
                    "{}/{} stage {stage} line {}: {}",
                    step.number,
                    plan.steps(),
                    step.line,
                    step.text
                )
                .unwrap();
                out.push_str(&shown_kind(&step.kind));
            }
            let config = serde_json::to_value(config).unwrap();
            writeln!(out, "config: {}", sorted(&config["config"])).unwrap();
        }
    }
    out.push('\n');
    out
}

fn sorted(config: &Value) -> String {
    let map: BTreeMap<String, Value> = serde_json::from_value(config.clone()).unwrap_or_default();
    serde_json::to_string(&map).unwrap()
}

fn shown_kind(kind: &StepKind) -> String {
    let mut out = String::new();
    match kind {
        StepKind::Config => {}
        StepKind::Workdir(path) => writeln!(out, "    makes {path}").unwrap(),
        StepKind::Run(run) => {
            let env: Vec<String> =
                run.env.iter().filter(|(name, _)| *name != "PATH").map(|(n, v)| format!("{n}={v}")).collect();
            writeln!(
                out,
                "    argv {:?}\n    user {:?} workdir {:?} network {} env {env:?}",
                run.argv, run.user, run.workdir, run.network
            )
            .unwrap();
            if let Some(script) = &run.script {
                writeln!(out, "    script {} {:?}", script.path, String::from_utf8_lossy(&script.content))
                    .unwrap();
            }
            run.secrets.iter().for_each(|secret| writeln!(out, "    {secret:?}").unwrap());
            run.scratch.iter().for_each(|scratch| writeln!(out, "    {scratch:?}").unwrap());
            run.binds.iter().for_each(|bind| out.push_str(&shown_copy(bind)));
        }
        StepKind::Copy(copy) => out.push_str(&shown_copy(copy)),
    }
    out
}

fn shown_copy(copy: &Copy) -> String {
    let mut out = String::new();
    let folder = if copy.into_folder { " (a folder)" } else { "" };
    writeln!(out, "    from {:?} {:?} to {}{folder}", copy.from, copy.sources, copy.dest).unwrap();
    if copy.chown.is_some() || copy.chmod.is_some() || copy.parents || !copy.exclude.is_empty() {
        writeln!(
            out,
            "    chown {:?} chmod {:?} parents {} exclude {:?}",
            copy.chown, copy.chmod, copy.parents, copy.exclude
        )
        .unwrap();
    }
    copy.entries.iter().for_each(|entry| writeln!(out, "      {} <- {:?}", entry.name, entry.path).unwrap());
    for file in &copy.inline {
        writeln!(out, "      {} <- {:?}", file.name, String::from_utf8_lossy(&file.content)).unwrap();
    }
    copy.extract.iter().for_each(|path| writeln!(out, "      extracts {path}").unwrap());
    out
}

#[test]
fn plans_are_as_they_were_reviewed() {
    let files = [
        ("app/main.py", "print(1)"),
        ("app/lib/a.py", "a"),
        ("app/lib/b.pyc", "b"),
        ("package.json", "{}"),
        ("package-lock.json", "{}"),
        ("README.md", "readme"),
        ("docs/guide.md", "guide"),
        ("docs/img/a.png", "png"),
        ("link", "-> app/main.py"),
        ("folder-link", "-> docs"),
        (".dockerignore", "**/*.pyc\nsecret*\n"),
        ("secret.txt", "no"),
        ("a b.txt", "space"),
    ];
    let (_dir, context) = context_of(&files);
    let folder =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("tests/plans");
    let text = fs::read_to_string(folder.join("dockerfiles.txt")).unwrap();
    let mut out = String::new();
    for case in text.split("=== ").skip(1) {
        let (head, dockerfile) = case.split_once('\n').unwrap();
        // `title [name=value …] [target:stage]`
        let (mut args, mut target) = (Vec::new(), None);
        for word in head.split_whitespace() {
            if let Some(stage) = word.strip_prefix("target:") {
                target = Some(stage);
            } else if let Some(pair) = word.split_once('=') {
                args.push(pair);
            }
        }
        out.push_str(&shown(head, dockerfile, &args, target, &context));
    }
    let reviewed = folder.join("reviewed.txt");
    if std::env::var_os("ATOLL_REVIEW").is_some() {
        fs::write(&reviewed, &out).unwrap();
    }
    let expected = fs::read_to_string(&reviewed).unwrap_or_default();
    for (ours, theirs) in out.split("=== ").zip(expected.split("=== ")) {
        assert_eq!(ours, theirs, "run with ATOLL_REVIEW=1 and review the difference");
    }
    assert_eq!(out.len(), expected.len());
}

#[test]
fn sub_tars_hold_exactly_what_is_copied_under_its_new_name() {
    let (_dir, context) =
        context_of(&[("app/x", "one"), ("app/sub/y", "two"), ("link", "-> app/x"), ("z", "three")]);
    let listed = |text: &str| -> Vec<(String, String)> {
        let copy = copies(text, &context).remove(0);
        let mut bytes = Vec::new();
        context.write_tar(&copy, &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = String::new();
            std::io::Read::read_to_string(&mut entry, &mut content).unwrap();
            (path, content)
        });
        entries.collect()
    };
    let own = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(listed("FROM a\nCOPY z /w"), own(&[("z", "three")]));
    assert_eq!(listed("FROM a\nCOPY link /w"), own(&[("link", "one")]));
    assert_eq!(
        listed("FROM a\nCOPY app /w"),
        own(&[("./", ""), ("sub/", ""), ("sub/y", "two"), ("x", "one")])
    );
    assert_eq!(listed("FROM a\nCOPY --parents app/sub /w/"), own(&[("app/sub/", ""), ("app/sub/y", "two")]));
    assert_eq!(listed("FROM a\nCOPY --parents app/./sub /w/"), own(&[("sub/", ""), ("sub/y", "two")]));
    assert_eq!(listed("FROM a\nCOPY --exclude=sub app /w/"), own(&[("./", ""), ("x", "one")]));
    assert_eq!(listed("FROM a\nCOPY <<f /w\nx\nf\n"), own(&[("f", "x\n")]));
}

#[test]
fn archives_are_told_by_their_content_and_decompressed() {
    let case = cases().into_iter().find(|case| case.ends_with("15-add-archives")).unwrap();
    let (_dir, context) = staged(&case);
    let text = context.read_text("Dockerfile", 1 << 20).unwrap().unwrap();
    let extracts: Vec<(Vec<String>, bool)> =
        copies(&text, &context).iter().map(|copy| (copy.extract.clone(), copy.has_plain())).collect();
    let one = |name: &str| (vec![name.to_owned()], false);
    assert_eq!(
        extracts[..4],
        [one("plain.tar"), one("packed.tar.gz"), one("packed.tar.xz"), one("packed.tar.bz2")]
    );
    assert_eq!(extracts[4..6], [(vec![], true), (vec![], true)]);
    assert_eq!(extracts[6], (vec!["plain.tar".to_owned()], true));
    assert_eq!(extracts[7], (vec![], true));
    for name in ["plain.tar", "packed.tar.gz", "packed.tar.xz", "packed.tar.bz2"] {
        let mut bytes = Vec::new();
        context.write_archive(name, &mut bytes).unwrap();
        assert!(tar::Archive::new(&bytes[..]).entries().unwrap().count() > 0, "{name}");
    }
}

#[test]
fn a_key_changes_with_what_a_step_sees_and_with_nothing_else() {
    let tenant = TenantId::from_entropy([1; _]);
    let key = |text: &str, args: &[(&str, &str)], files: &[(&str, &str)]| {
        let (_dir, context) = context_of(files);
        let plan = plan(text, args, None, &context).unwrap();
        let (steps, _) = walk(&plan, &context).unwrap();
        let step = &steps.last().unwrap().1;
        cache_key("sha256:1", step, &context.hash_of(step), &tenant)
    };
    let run = key("FROM a\nARG V\nRUN x", &[], &[]);
    assert_eq!(run, key("FROM a\n# other lines\nARG V\n\nRUN   x", &[], &[]));
    assert_ne!(run, key("FROM a\nARG V\nRUN x", &[("V", "1")], &[]));
    assert_eq!(run, key("FROM a\nARG V\nRUN x", &[("W", "1")], &[]));
    assert_eq!(run, key("FROM a\nARG V\nRUN x", &[("HTTP_PROXY", "http://p")], &[]));
    assert_ne!(run, key("FROM a\nARG V\nUSER u\nRUN x", &[], &[]));
    assert_ne!(run, key("FROM a\nARG V\nRUN --mount=type=secret,id=s x", &[], &[]));
    assert_ne!(run, key("FROM a\nARG V\nRUN [\"x\"]", &[], &[]));
    let copy = key("FROM a\nCOPY f /", &[], &[("f", "1")]);
    assert_eq!(copy, key("FROM a\nCOPY ./f /", &[], &[("other", "x"), ("f", "1")]));
    for other in [
        key("FROM a\nCOPY f /", &[], &[("f", "2")]),
        key("FROM a\nCOPY f /g", &[], &[("f", "1")]),
        key("FROM a\nCOPY --chown=1 f /", &[], &[("f", "1")]),
        key("FROM a\nCOPY --chmod=600 f /", &[], &[("f", "1")]),
        key("FROM a\nCOPY f /", &[], &[("f", "-> g"), ("g", "2")]),
    ] {
        assert_ne!(copy, other);
    }
    let (_dir, context) = context_of(&[]);
    let step = &steps("FROM a\nRUN x", &context)[0];
    let other = TenantId::from_entropy([2; _]);
    assert_ne!(cache_key("v", step, "", &tenant), cache_key("v", step, "", &other));
    assert_ne!(cache_key("v", step, "", &tenant), cache_key("w", step, "", &tenant));
}

#[test]
fn declared_builds_of_e2b_become_the_same_steps() {
    let (_dir, context) = context_of(&[("abc123/src/app.py", "1"), ("abc123/src/b.py", "2")]);
    let step = |kind: &str, args: &[&str]| DeclaredStep {
        kind: kind.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
        files: (kind == "COPY").then(|| "abc123".into()),
        force: false,
    };
    let build = DeclaredBuild {
        base: "e2bdev/base".parse().unwrap(),
        prepare: vec![step("RUN", &["true", "root"])],
        steps: vec![
            step("RUN", &["apt-get update", "root"]),
            step("WORKDIR", &["/home/user"]),
            step("USER", &["user"]),
            step("ENV", &["A", "1", "PATH", "$PATH:/x", "Q", "it's \"quoted\""]),
            step("COPY", &["src", "app/", "user", "0640"]),
            step("RUN", &["echo '$A'"]),
        ],
        shell: vec!["/bin/bash".into(), "-l".into(), "-c".into()],
    };
    let plan = Plan::declared(&build, &context).unwrap();
    assert_eq!((plan.steps(), plan.bases().len()), (6, 1));
    let (steps, config) = walk(&plan, &context).unwrap();
    assert_eq!((steps[0].1.number, steps[1].1.number, steps[6].1.number), (0, 1, 6));
    let steps = &steps[1..];
    let StepKind::Run(first) = &steps[0].1.kind else { panic!() };
    assert_eq!(
        (first.argv.join(" ").as_str(), first.user.as_str()),
        ("/bin/bash -l -c apt-get update", "root")
    );
    let StepKind::Run(folder) = &steps[1].1.kind else { panic!() };
    assert_eq!(
        (folder.user.as_str(), &folder.argv[4..]),
        ("root", &["/home/user".to_owned(), String::new()][..])
    );
    let StepKind::Run(user) = &steps[2].1.kind else { panic!() };
    assert_eq!((user.user.as_str(), &user.argv[4..]), ("root", &["user".to_owned()][..]));
    let StepKind::Run(last) = &steps[5].1.kind else { panic!() };
    assert_eq!(
        (last.argv[3].as_str(), last.user.as_str(), last.workdir.as_str()),
        ("echo '$A'", "user", "/home/user")
    );
    assert_eq!((last.env["Q"].as_str(), last.env["PATH"].ends_with(":/x")), ("it's \"quoted\"", true));
    let StepKind::Copy(copy) = &steps[4].1.kind else { panic!() };
    assert_eq!(
        (copy.dest.as_str(), copy.chown.as_deref(), copy.chmod),
        ("/home/user/app", Some("user"), Some(0o640))
    );
    assert_eq!(
        copy.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
        ["./", "app.py", "b.py"]
    );
    assert_eq!(config.config().as_ref().unwrap().user().as_deref(), Some("user"));
    assert!(!build.forces(0) && !build.forces(6) && !build.forces(7));
    let bad = DeclaredBuild { steps: vec![step("ENV", &["A"]), step("RUN", &[])], ..build };
    assert_eq!(Plan::declared(&bad, &context).unwrap_err().line, 1);
}

#[test]
fn stages_that_nobody_needs_are_left_out() {
    let context = BuildContext::empty();
    let text = "FROM a AS one\nRUN 1\nFROM b AS two\nRUN 2\nFROM one AS three\nCOPY --from=TWO /x /y\nFROM c\nRUN 4\n";
    assert_eq!(plan(text, &[], None, &context).unwrap().order(), [3]);
    let three = plan(text, &[], Some("three"), &context).unwrap();
    assert_eq!((three.order(), three.steps()), (vec![0, 1, 2], 3));
    assert_eq!(plan(text, &[], Some("0"), &context).unwrap().order(), [0]);
    let (steps, _) = walk(&three, &context).unwrap();
    let StepKind::Copy(copy) = &steps[2].1.kind else { panic!() };
    assert_eq!((&copy.from, steps[2].1.number), (&CopyFrom::Stage(1), 3));
}

#[test]
fn hostile_contexts_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.tar");
    let open = |name: &[u8], kind: tar::EntryType, link: &str| {
        let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        tar.append(&header, &b""[..]).unwrap();
        tar.into_inner().unwrap();
        BuildContext::open(&path, &CancellationToken::new())
    };
    use tar::EntryType::{Char, Link, Regular};
    for (name, kind, link) in [
        (&b"../up"[..], Regular, ""),
        (b"a/../../b", Regular, ""),
        (b"h", Link, "../x"),
        (b"\xff", Regular, ""),
    ] {
        let error = open(name, kind, link).unwrap_err();
        assert!(error.to_string().contains("build context"), "{error}");
    }
    assert!(open(b"null", Char, "").is_ok());
    fs::write(&path, b"not a tar at all".repeat(100)).unwrap();
    assert!(BuildContext::open(&path, &CancellationToken::new()).is_err());
    let cancel = CancellationToken::new();
    cancel.cancel();
    let (held, _) = context_of(&[("a", "1")]);
    assert!(BuildContext::open(&held.path().join("context.tar"), &cancel).is_err());
}

#[test]
fn text_that_doubles_or_counts_without_end_is_refused_quickly() {
    let context = BuildContext::empty();
    let doubling = format!("FROM a\nENV A=xxxxxxxxxxxxxxxx\n{}", "ENV A=$A$A\n".repeat(900));
    let many = format!(
        "FROM a\n{}",
        (0..900).map(|n| format!("ENV A{n}={}\n", "x".repeat(1000))).collect::<String>()
    );
    let ports = format!("FROM a\n{}", "EXPOSE 1-65535\n".repeat(50));
    let began = cpu_time();
    for (text, refused) in [(doubling, true), (many, false), (ports, false)] {
        let done = plan(&text, &[], None, &context).and_then(|plan| walk(&plan, &context));
        assert_eq!(done.is_err(), refused);
    }
    let took = cpu_time() - began;
    assert!(took.as_secs() < 20, "{took:?}");
}

/// What this thread has run, which other programs of the machine do not lengthen.
fn cpu_time() -> std::time::Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    std::time::Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

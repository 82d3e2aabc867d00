//! The same Dockerfiles, built by Docker and by us, make the same files and the same configuration.
//!
//! Docker's side is committed (`expected.json`), made by `scripts/dockerfiles-oracle`; what Debian 12's builder does not know is
//! written by hand. Both sides are read from an exported archive by a reader of our own.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "what differs is the report")]

use atoll_tests::docker::Docker;
use atoll_tests::dockerfiles::{self, BASE, Case, compare, outcome};
use atoll_tests::{Client, Value, World, image, json, namespaces, run};

/// Differences that are meant, with the reason; `docs/templates.md` says the same.
const MEANT: &[(&str, &str, &str)] = &[
    (
        "24-shell",
        "config Shell",
        "OCI's configuration has no place for it; RUN and CMD of the build itself do follow it",
    ),
    ("33-healthcheck", "config Healthcheck", "nothing runs it: ready checks of templates take its place"),
];

/// Builds one by Docker.
fn by_docker(docker: &Docker, case: &Case, folder: &std::path::Path) -> Result<Value, String> {
    let context = case.context(folder);
    let name = format!("case-{}", case.name);
    let built = docker
        .command()
        .env("DOCKER_BUILDKIT", if case.wants_buildkit() { "1" } else { "0" })
        .args(["build", "--network=none", "--force-rm", "-t", &name])
        .args(case.arguments())
        .arg(&context)
        .output()
        .unwrap();
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let mut outcome = outcome(&docker.ok(["save", &name]));
    outcome["by"] = json!(format!("docker {}", docker.version()));
    Ok(outcome)
}

/// With `ATOLL_ORACLE=write` writes down what Docker builds; else compares it with what is written.
#[test]
#[ignore = "needs docker.io: scripts/dockerfiles-oracle"]
fn what_is_expected_is_what_docker_builds() {
    let writes = std::env::var("ATOLL_ORACLE").is_ok_and(|word| word == "write");
    namespaces::in_own_namespaces(|_internet| {
        let folder = tempfile::Builder::new().prefix("atoll-oracle-").tempdir_in("/var/tmp").unwrap();
        let docker = Docker::start(folder.path());
        let base = folder.path().join("base.tar");
        std::fs::write(&base, image::busybox().docker_archive(BASE)).unwrap();
        docker.ok(["load", "-i", base.to_str().unwrap()]);
        let mut wrong = Vec::new();
        for case in dockerfiles::all().iter().filter(|case| !case.is_by_hand() && case.fails().is_none()) {
            match by_docker(&docker, case, folder.path()) {
                Err(why) => wrong.push(format!("{}: docker refuses: {why}", case.name)),
                Ok(found) if writes => case.write_expected(&found),
                Ok(found) => {
                    let differs = compare(&case.expected(), &found);
                    wrong.extend(differs.into_iter().map(|line| format!("{}: {line}", case.name)));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// Builds one by us, with the command that people use: it packs the folder and says what the server says.
async fn by_us(w: &World, client: &Client, case: &Case) -> Result<Value, String> {
    let context = case.context(w.folder());
    let name = format!("case-{}", case.name);
    let mut command = w.command();
    command.args(["template", "build", "--disk", "512m", "-t", &name]).args(case.arguments()).arg(&context);
    let built = w.output(command).await;
    let said =
        format!("{}{}", String::from_utf8_lossy(&built.stdout), String::from_utf8_lossy(&built.stderr));
    if !built.status.success() {
        return Err(said);
    }
    let oci = outcome(&client.export(&name, "oci").await);
    let docker = outcome(&client.export(&name, "docker").await);
    assert_eq!(compare(&oci, &docker), Vec::<String>::new(), "{}: the two forms differ", case.name);
    Ok(oci)
}

#[test]
fn what_we_build_is_what_docker_builds() {
    run(async |w: &World| {
        let client = w.admin();
        client.import(BASE, image::busybox().docker_archive(BASE)).await.ok();
        let mut wrong = Vec::new();
        for case in dockerfiles::all() {
            let found = by_us(w, &client, &case).await;
            match (case.fails(), found) {
                (None, Err(why)) => wrong.push(format!("{}: refused: {why}", case.name)),
                (None, Ok(found)) => {
                    let meant = |line: &String| {
                        MEANT.iter().any(|(name, begin, _)| *name == case.name && line.starts_with(begin))
                    };
                    let differs = compare(&case.expected(), &found).into_iter().filter(|line| !meant(line));
                    wrong.extend(differs.map(|line| format!("{}: {line}", case.name)));
                }
                (Some(_), Ok(_)) => wrong.push(format!("{}: was built", case.name)),
                (Some((line, word)), Err(said))
                    if !(said.contains(word)
                        && (said.contains(&format!("line {line}")) || said.contains("step "))) =>
                {
                    wrong.push(format!(
                        "{}: names neither line {line} nor the step, or not {word}: {said}",
                        case.name
                    ));
                }
                (Some(_), Err(_)) => {}
            }
        }
        assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    });
}

#[test]
fn the_second_build_of_the_same_does_nothing() {
    run(async |w: &World| {
        let client = w.admin();
        client.import(BASE, image::busybox().docker_archive(BASE)).await.ok();
        for name in ["28-multi-stage", "08-copy"] {
            let case = dockerfiles::all().into_iter().find(|case| case.name == name).unwrap();
            let context = case.context(w.folder());
            let build = async |tag: &str| {
                let mut command = w.command();
                command
                    .args(["template", "build", "--disk", "512m", "-t", &format!("twice:{tag}")])
                    .arg(&context);
                let done = w.output(command).await;
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                client.template(&format!("twice:{tag}")).await.ok()["version"].clone()
            };
            let first = build("one").await;
            let sandboxes = w.log().matches("a sandbox was requested").count();
            // Times of files are no content.
            let touched =
                std::process::Command::new("touch").arg(context.join("Dockerfile")).status().unwrap();
            assert!(touched.success());
            assert_eq!(build("two").await, first, "{name}");
            assert_eq!(
                w.log().matches("a sandbox was requested").count(),
                sandboxes,
                "{name}: a step ran again"
            );
        }
    });
}

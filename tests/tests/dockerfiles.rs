//! The same Dockerfiles, built by Docker and by us, make the same files and the same configuration.
//!
//! Docker's side is committed (`expected.json`), made by `scripts/dockerfiles-oracle`; what Debian 12's builder does not know is
//! written by hand. Both sides are read from an exported archive by a reader of our own.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "what differs is the report")]

use atoll_tests::docker::Docker;
use atoll_tests::dockerfiles::{self, BASE, Case, compare, outcome};
use atoll_tests::{Value, ground, image, json};

/// Builds one by Docker.
fn by_docker(docker: &Docker, case: &Case, folder: &std::path::Path) -> Result<Value, String> {
    let context = case.context(folder);
    let name = format!("case-{}", case.name);
    let built = docker
        .command()
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
    ground::on_own_ground(|_internet| {
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

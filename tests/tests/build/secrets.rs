//! Secrets are there while a step runs, and nowhere else at any time.

use std::io::Read;
use std::path::Path;

use atoll_tests::world;
use serde_json::json;

use crate::build::ask::{Ask, log};

const VALUE: &str = "hunter2-7c1f0b9e5d3a";

/// Files below a folder whose bytes hold the value; the pool of sandboxes is one of them.
fn holding(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            holding(&entry.path(), found);
        } else if kind.is_file() && holds(&entry.path()) {
            found.push(entry.path().display().to_string());
        }
    }
}

fn holds(path: &Path) -> bool {
    let Ok(mut file) = std::fs::File::open(path) else { return false };
    let finder = memchr::memmem::Finder::new(VALUE);
    let mut buffer = vec![0; 1 << 20];
    let mut kept = 0;
    loop {
        let Ok(read) = file.read(&mut buffer[kept..]) else { return false };
        if read == 0 {
            return false;
        }
        let end = kept + read;
        if finder.find(&buffer[..end]).is_some() {
            return true;
        }
        let tail = end.min(VALUE.len() - 1);
        buffer.copy_within(end - tail..end, 0);
        kept = tail;
    }
}

#[test]
fn a_secret_is_a_file_of_its_step_and_in_nothing_that_stays() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            RUN --mount=type=secret,id=key grep -q '^hunter2' /run/secrets/key && wc -c < /run/secrets/key > /len\n\
            RUN --mount=type=secret,id=key,target=/etc/token cat /etc/token; echo seen\n\
            RUN --mount=type=secret,id=key,env=TOKEN test -n \"$TOKEN\"\n\
            RUN ls /run/secrets /etc/token /dev/shm/.atoll-secrets 2>&1 | grep -c 'No such'\n";
        let secrets = json!([{ "id": "key", "value": VALUE }]);
        let build = Ask::new("sealed", dockerfile).with("secrets", secrets.clone()).build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        assert!(said.contains("seen") && said.contains("***") && !said.contains(VALUE), "{said}");
        let sandbox = me.create(json!({ "template": "sealed" })).await;
        assert_eq!(
            me.sh_root(&sandbox, "cat /len; ls /run/secrets /etc/token 2>/dev/null").await.stdout.trim(),
            "20"
        );
        me.remove(&sandbox).await;
        let mut found = Vec::new();
        holding(&world.data(), &mut found);
        assert_eq!(found, Vec::<String>::new());
        assert!(!world.log().contains(VALUE));
        // Another value does not change what is cached: it was never part of it.
        let other = json!([{ "id": "key", "value": "hunter2-another-value" }]);
        let again = Ask::new("sealed", dockerfile).with("secrets", other).build(&me).await;
        assert_eq!(again["cached_steps"], 4, "{again:#}");
    });
}

#[test]
fn a_secret_that_is_not_given_is_missed_only_where_it_is_required() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let may = "FROM busybox\nRUN --mount=type=secret,id=key ls /run/secrets/key 2>&1 | grep 'No such'\n";
        Ask::new("may", may).build(&me).await;
        let must = "FROM busybox\nRUN --mount=type=secret,id=key,required=true true\n";
        let build = Ask::new("must", must).fail(&me).await;
        assert!(build["failure"]["message"].as_str().unwrap().contains("key"), "{build:#}");
        let odd = Ask::new("odd", may).with("secrets", json!([{ "id": "../x", "value": "y" }]));
        odd.send(&me).await.refused(400, "invalid_request");
    });
}

#[test]
fn a_file_of_the_image_is_not_lost_where_a_secret_is_wanted() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\nRUN echo own > /srv-file\n\
            RUN --mount=type=secret,id=key,target=/srv-file cat /srv-file\n";
        let build = Ask::new("lost", dockerfile).with("secrets", json!([{ "id": "key", "value": VALUE }]));
        let build = build.fail(&me).await;
        let message = build["failure"]["message"].as_str().unwrap();
        assert!(message.contains("/srv-file already exists"), "{build:#}");
    });
}

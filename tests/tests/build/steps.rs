//! What steps do.

use atoll_tests::world;
use serde_json::json;

use crate::build::ask::{Ask, lines, log};

#[test]
fn a_dockerfile_becomes_a_template_that_sandboxes_start_from() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            ARG WHO=nobody\n\
            ENV GREETING=hello\n\
            WORKDIR /srv/app\n\
            COPY app/ .\n\
            RUN echo \"$GREETING $WHO\" > said && chmod 600 said\n\
            RUN [\"/bin/sh\", \"-c\", \"id -u > /who\"]\n\
            USER 1234\n\
            RUN id -u >> /tmp/who-later\n\
            EXPOSE 8080\n\
            LABEL team=blue\n";
        let ask = Ask::new("app:v1", dockerfile)
            .with("args", json!({ "WHO": "world" }))
            .file("app/main.sh", "#!/bin/sh\necho main\n")
            .file_as("app/bin/tool", "#!/bin/sh\necho tool\n", 0o755)
            .file("left-out", "x");
        let build = ask.build(&me).await;
        assert!(build["version"].as_str().unwrap().starts_with("sha256:"), "{build}");
        let sandbox = me.create(json!({ "template": "app:v1" })).await;
        assert_eq!(me.sh(&sandbox, "pwd; id -u; echo $GREETING").await.text(), "/srv/app\n1234\nhello");
        assert_eq!(me.sh_root(&sandbox, "cat said; stat -c '%a %u' said").await.text(), "hello world\n600 0");
        assert_eq!(me.sh(&sandbox, "sh main.sh; bin/tool").await.text(), "main\ntool");
        assert_eq!(me.sh_root(&sandbox, "cat /who /tmp/who-later").await.text(), "0\n1234");
        assert_ne!(me.sh(&sandbox, "ls /srv/app/left-out").await.code, 0);
        me.remove(&sandbox).await;
        // Only its own tenant has it.
        let other = world.tenant("other").await;
        other.post("/v1/sandboxes", json!({ "template": "app:v1" })).await.refused(404, "template_not_found");
        me.delete("/v1/templates/app:v1").await.ok();
    });
}

#[test]
fn stages_give_files_to_each_other_and_only_what_is_needed_is_built() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox AS tools\n\
            RUN mkdir /out && echo tool > /out/tool && echo junk > /junk\n\
            FROM busybox AS never\n\
            RUN exit 7\n\
            FROM busybox\n\
            COPY --from=tools /out/ /opt/\n\
            COPY --from=tools --chown=7:8 /out/tool /named\n";
        let build = Ask::new("staged", dockerfile).build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        assert!(!said.contains("exit 7"), "{said}");
        let sandbox = me.create(json!({ "template": "staged" })).await;
        let seen = me.sh_root(&sandbox, "cat /opt/tool; stat -c '%u:%g' /named; ls /junk 2>&1").await;
        assert!(seen.stdout.starts_with("tool\n7:8\n"), "{seen:?}");
        assert!(seen.stdout.contains("No such file"), "{seen:?}");
        // What was built is a base for the next.
        Ask::new("on-top", "FROM staged\nRUN cat /opt/tool > /copied\n").build(&me).await;
        me.remove(&sandbox).await;
    });
}

#[test]
fn what_is_wrong_with_a_dockerfile_is_said_with_its_line() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let build = Ask::new("bad", "FROM busybox\nRUN true\nFROMAGE x\n").fail(&me).await;
        let failure = &build["failure"];
        assert_eq!(failure["code"], "invalid_request", "{build:#}");
        assert!(failure["message"].as_str().unwrap().contains('3'), "{build:#}");
        let build = Ask::new("bad", "FROM busybox\nCOPY nothing /x\n").file("a", "b").fail(&me).await;
        let message = build["failure"]["message"].as_str().unwrap();
        assert!(message.contains("line 2") && message.contains("nothing"), "{build:#}");
        let build = Ask::new("bad", "FROM no-such-template-anywhere\n").fail(&me).await;
        let code = build["failure"]["code"].as_str().unwrap();
        assert!(
            ["template_not_found", "image_not_found", "registry_unavailable"].contains(&code),
            "{build:#}"
        );
    });
}

#[test]
fn a_command_that_fails_says_its_step_its_code_and_its_last_words() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\nRUN echo fine\nRUN echo first words; echo last words >&2; exit 42\n";
        let build = Ask::new("bad", dockerfile).fail(&me).await;
        let failure = &build["failure"];
        assert_eq!((&failure["step"], &failure["exit_code"]), (&json!(2), &json!(42)), "{build:#}");
        // Two pipes have no order between them.
        let mut tail: Vec<&str> =
            failure["tail"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        tail.sort_unstable();
        assert_eq!(tail, ["first words", "last words"], "{build:#}");
        let lines = lines(&me, build["id"].as_str().unwrap()).await;
        let of = |level: &str, text: &str| {
            lines.iter().any(|line| line["level"] == level && line["text"] == text && line["step"] == 2)
        };
        assert!(of("stdout", "first words") && of("stderr", "last words"), "{lines:#?}");
        let seqs: Vec<u64> = lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, (1..=lines.len() as u64).collect::<Vec<u64>>());
        me.post("/v1/sandboxes", json!({ "template": "bad" })).await.refused(404, "template_not_found");
    });
}

#[test]
fn sandboxes_of_steps_are_in_no_list_and_gone_with_the_build() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let id = Ask::new("slow", "FROM busybox\nRUN sleep 2\n").begin(&me).await;
        crate::build::ask::at_step(&me, &id, 1).await;
        for client in [&me, &world.admin()] {
            let page = client.get("/v1/sandboxes").await.ok();
            assert_eq!(page["items"], json!([]), "{page:#}");
        }
        crate::build::ask::ended(&me, &id).await;
    });
}

//! What is there only while a command runs: `RUN --mount`, here-documents, and what they leave.

use atoll_tests::json;
use atoll_tests::run;

use crate::build::ask::{Ask, log};

#[test]
fn mounts_are_there_for_one_command_and_leave_nothing() {
    run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            RUN mkdir -p /full && echo kept > /full/kept\n\
            RUN --mount=type=tmpfs,target=/scratch touch /scratch/a && ls /scratch\n\
            RUN --mount=type=cache,target=/full ls -A /full | wc -l > /seen && echo junk > /full/junk\n\
            RUN --mount=type=bind,source=given,target=/given cat /given/one > /copied && cat /given/two >> /copied\n\
            RUN --mount=type=bind,source=given,target=/full cat /full/one >> /copied; ls /full | wc -l >> /seen\n\
            RUN test ! -e /given && test ! -e /scratch/a && test ! -e /full/junk && test ! -e /full/one\n";
        let ask = Ask::new("mounts", dockerfile).file("given/one", "one\n").file("given/two", "two\n");
        ask.build(&me).await;
        let sandbox = me.create(json!({ "template": "mounts" })).await;
        let seen = me.sh(&sandbox, "cat /copied /seen /full/*").await;
        assert_eq!(
            seen.text().split_whitespace().collect::<Vec<_>>(),
            ["one", "two", "one", "0", "2", "kept"]
        );
        me.remove(&sandbox).await;
        // What a mount brings decides about the cache.
        let other = Ask::new("mounts", dockerfile).file("given/one", "1\n").file("given/two", "two\n");
        let build = other.build(&me).await;
        assert_eq!(build["cached_steps"], 3, "{build:#}");
    });
}

#[test]
fn here_documents_are_commands_and_files() {
    run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            RUN <<EOF\n\
            echo first > /said\n\
            echo second >> /said\n\
            EOF\n\
            RUN <<EOF\n\
            #!/bin/sh\n\
            echo \"third $0\" | cut -c1-5 >> /said\n\
            EOF\n\
            COPY <<greeting <<'plain' /etc/texts/\n\
            hello $PATH\n\
            greeting\n\
            keeps $PATH\n\
            plain\n";
        let build = Ask::new("heredocs", dockerfile).build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        assert!(!said.contains("No such file"), "{said}");
        let sandbox = me.create(json!({ "template": "heredocs" })).await;
        assert_eq!(me.sh(&sandbox, "cat /said").await.text(), "first\nsecond\nthird");
        let texts = me.sh(&sandbox, "cat /etc/texts/greeting; cat /etc/texts/plain").await;
        assert!(texts.text().starts_with("hello /"), "{texts:?}");
        assert!(texts.text().ends_with("keeps $PATH"), "{texts:?}");
        assert_ne!(me.sh(&sandbox, "ls /dev/shm/.atoll-run").await.code, 0);
        me.remove(&sandbox).await;
    });
}

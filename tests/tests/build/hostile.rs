//! Steps that mean harm.

use atoll_tests::world::{self, Options};
use serde_json::json;

use crate::build::ask::{Ask, lines, log};

/// Attack A18.
#[test]
fn a_step_sees_nothing_of_the_host_and_of_others() {
    let options = Options::default().env("ATOLL_TEST_CANARY", "canary-of-the-host");
    world::run_with(options, async |world| {
        let (me, other) = (world.tenant("builder").await, world.tenant("other").await);
        Ask::new("secret-of-other", "FROM busybox\nRUN echo canary-of-other > /canary\n").build(&other).await;
        let dockerfile = "FROM busybox\n\
            RUN env; cat /proc/1/environ /proc/self/environ | tr '\\0' '\\n'; true\n\
            RUN cat /proc/mounts; ls -la / /run /var/run /dev 2>&1; true\n\
            RUN find / -xdev -name '*canary*' 2>/dev/null; ls /root/.docker /root/.atoll 2>&1; true\n\
            RUN cat /proc/1/cmdline | tr '\\0' ' '; id; cat /proc/self/status | grep Cap; true\n";
        let build = Ask::new("nosy", dockerfile).build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        assert!(!said.contains("canary-of"), "{said}");
        assert!(!said.contains("ATOLL_"), "{said}");
        assert!(!said.contains(world.data().to_str().unwrap()), "{said}");
        for forbidden in
            ["FROM secret-of-other\n", "FROM busybox\nCOPY --from=secret-of-other /canary /canary\n"]
        {
            let build = Ask::new("nosy", forbidden).fail(&me).await;
            let code = build["failure"]["code"].as_str().unwrap();
            assert!(
                ["template_not_found", "image_not_found", "registry_unavailable"].contains(&code),
                "{build:#}"
            );
        }
    });
}

#[test]
fn what_a_step_writes_is_bounded_and_obeyed_by_nobody() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            RUN printf '\\033[2J\\033]0;title\\007 done\\r\\n'\n\
            RUN yes 0123456789 | head -c 20000000\n\
            RUN head -c 10000000 /dev/zero\n";
        let build = Ask::new("noisy", dockerfile).build(&me).await;
        let lines = lines(&me, build["id"].as_str().unwrap()).await;
        let text = |step: u64| {
            let of = lines.iter().filter(|line| line["step"] == step);
            of.map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(lines.iter().all(|line| !line["text"].as_str().unwrap().contains('\u{1b}')));
        assert!(
            text(1).iter().any(|line| line.contains("\\u{1b}[2J") && line.ends_with("done")),
            "{:?}",
            text(1)
        );
        let kept: usize = text(2).iter().map(String::len).sum();
        assert!((1_000_000..3_000_000).contains(&kept), "{kept}");
        assert!(text(2).iter().any(|line| line.contains("more bytes")), "no note");
        // What follows is small again: one step does not take the room of the next.
        let zeros: usize = text(3).iter().map(String::len).sum();
        assert!(zeros < 20_000_000, "{zeros}");
    });
}

#[test]
fn limits_and_the_network_policy_hold_for_steps() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let full = "FROM busybox\nRUN dd if=/dev/zero of=/big bs=1M count=64\n";
        let build = Ask::new("full", full).with("disk_mib", json!(16)).fail(&me).await;
        assert!(build["failure"]["exit_code"].as_i64().is_some_and(|code| code != 0), "{build:#}");
        let poor = world.tenant_with("poor", json!({ "memory_mib": 64 })).await;
        let build = Ask::new("poor", "FROM busybox\nRUN true\n").fail(&poor).await;
        assert_eq!(build["failure"]["code"], "quota_exceeded", "{build:#}");
        Ask::new("poor", "FROM busybox\nRUN true\n").with("memory_mib", json!(32)).build(&poor).await;
        let nowhere =
            "FROM busybox\nRUN ip route 2>&1; wget -T 2 -q -O- http://198.51.100.1/ && exit 9; true\n";
        Ask::new("offline", nowhere).with("network", json!("deny-all")).build(&me).await;
    });
}

#[test]
fn a_context_that_is_no_tar_and_one_that_slips_are_refused() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\nCOPY . /all\n";
        let mut bad = tar::Header::new_gnu();
        bad.set_size(1);
        bad.set_mode(0o644);
        let name = b"../../etc/cron.d/evil";
        bad.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        bad.set_cksum();
        let mut slip = bad.as_bytes().to_vec();
        slip.extend([b'x'; 512]);
        slip.extend([0; 1_024]);
        for context in [b"this is no tar at all".repeat(100), slip] {
            let build = crate::build::ask::with_context(&me, "slips", dockerfile, context).await;
            assert_eq!(build["status"], "failed", "{build:#}");
            assert_eq!(build["failure"]["code"], "invalid_request", "{build:#}");
        }
    });
}

//! Requests about a sandbox.

use std::collections::{BTreeMap, BTreeSet};

use atoll_client::sandbox_requests::CreateBody;
use atoll_front_kit::ApiError;
use atoll_model::{CreateSandbox, LimitsAsk, Origin, QueueAsk, TimersAsk};

pub(super) fn spec(body: CreateBody, idempotency_key: Option<String>) -> Result<CreateSandbox, ApiError> {
    if body.queue_timeout_s.is_some() && !body.queue {
        return Err(ApiError::invalid("queue_timeout_s needs queue: true"));
    }
    Ok(CreateSandbox {
        queue: body.queue.then_some(QueueAsk { timeout_s: body.queue_timeout_s }),
        from: origin(&body.image, &body.template, body.snapshot, body.memory, body.archive)?,
        template: body.template,
        provider: body.provider,
        name: body.name,
        labels: body.labels,
        env: body.env,
        private_env: body.private_env,
        limits: LimitsAsk {
            cpu: body.cpu,
            memory_mib: body.memory_mib,
            disk_mib: body.disk_mib,
            pids: body.pids,
        },
        default_limits: LimitsAsk::default(),
        network: body.network.map(Into::into),
        storage: body.storage.map(Into::into).unwrap_or_default(),
        user: body.user,
        workdir: None,
        command: body.command,
        timeout_s: body.timeout_s,
        on_timeout: body.on_timeout.map(Into::into).unwrap_or_default(),
        timeout_counts: Default::default(),
        entrypoint: false,
        timers: TimersAsk {
            auto_stop_s: body.auto_stop_s,
            auto_pause_s: body.auto_pause_s,
            checkpoint_after_s: body.checkpoint_after_s,
            auto_archive_s: body.auto_archive_s,
            auto_delete_s: body.auto_delete_s,
        },
        on_exit: body.on_exit.map(Into::into),
        thread: body.thread,
        wake: body.wake.map(Into::into).unwrap_or_default(),
        idempotency_key,
        image: body.image,
        mounts: body.mounts.into_iter().map(Into::into).collect(),
        build: None,
        public: body.public,
        mask_host: None,
        https_ports: BTreeSet::new(),
        annotations: BTreeMap::new(),
        secrets: BTreeMap::new(),
    })
}

/// The fields that name a source exclude each other, because no precedence among them would be obvious.
fn origin(
    image: &Option<String>,
    template: &Option<String>,
    snapshot: Option<String>,
    memory: bool,
    archive: Option<String>,
) -> Result<Origin, ApiError> {
    let others =
        [("template", template.is_some()), ("snapshot", snapshot.is_some()), ("archive", archive.is_some())];
    if let (Some(_), Some((other, _))) = (image, others.iter().find(|(_, said)| *said)) {
        return Err(ApiError::invalid(format!("image and {other} cannot be combined")));
    }
    match (template, snapshot, archive) {
        (None, Some(snapshot), None) => Ok(Origin::Snapshot { snapshot, memory }),
        (_, Some(_), Some(_)) => Err(ApiError::invalid("snapshot and archive cannot be combined")),
        (Some(_), Some(_), None) => Err(ApiError::invalid("template and snapshot cannot be combined")
            .hint("a snapshot keeps the template of its sandbox")),
        (Some(_), None, Some(_)) => Err(ApiError::invalid("template and archive cannot be combined")
            .hint("an archive keeps the template of its sandbox")),
        (_, None, _) if memory => Err(ApiError::invalid("memory needs a snapshot")
            .hint("the memory limit is memory_mib; memory restores the processes of a snapshot")),
        (None, None, Some(key)) => Ok(Origin::Archive { key }),
        (_, None, None) => Ok(Origin::Template),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_client::sandbox_requests::UpdateBody;
    use atoll_front_kit::parse_json;
    use atoll_model::UpdateSandbox;

    #[test]
    fn a_timeout_of_null_is_told_from_none() {
        let change = |text: &str| UpdateSandbox::from(parse_json::<UpdateBody>(text.as_bytes()).unwrap());
        assert_eq!(change("{}").timeout_s, None);
        assert_eq!(change("{\"timeout_s\":null}").timeout_s, Some(None));
        assert_eq!(change("{\"timeout_s\":9}").timeout_s, Some(Some(9)));
        assert!(parse_json::<UpdateBody>(b"{\"timeout_s\":0}").unwrap_err().message.contains("timeout_s"));
    }

    #[test]
    fn numbers_that_fit_nowhere_name_their_field() {
        let error = parse_json::<CreateBody>(b"{\"memory_mib\":1e300}").unwrap_err();
        assert!(error.message.starts_with("memory_mib"), "{error:?}");
        let error = parse_json::<CreateBody>(b"{\"labels\":{\"a\":1}}").unwrap_err();
        assert!(error.message.starts_with("labels.a"), "{error:?}");
    }

    #[test]
    fn a_queue_timeout_needs_a_queue() {
        let queue = |text: &str| {
            spec(parse_json::<CreateBody>(text.as_bytes()).unwrap(), None).map(|spec| spec.queue)
        };
        assert_eq!(queue("{}").unwrap(), None);
        assert_eq!(queue("{\"queue\":true}").unwrap(), Some(QueueAsk { timeout_s: None }));
        let asked = queue("{\"queue\":true,\"queue_timeout_s\":5}").unwrap();
        assert_eq!(asked, Some(QueueAsk { timeout_s: Some(5) }));
        assert!(queue("{\"queue_timeout_s\":5}").unwrap_err().message.contains("queue_timeout_s"));
    }

    #[test]
    fn a_sandbox_begins_as_one_thing() {
        let from =
            |text: &str| spec(parse_json::<CreateBody>(text.as_bytes()).unwrap(), None).map(|spec| spec.from);
        assert_eq!(from("{}").unwrap(), Origin::Template);
        assert_eq!(
            from("{\"snapshot\":\"s\",\"memory\":true}").unwrap(),
            Origin::Snapshot { snapshot: "s".to_owned(), memory: true }
        );
        assert_eq!(from("{\"archive\":\"k\"}").unwrap(), Origin::Archive { key: "k".to_owned() });
        for bad in [
            "{\"memory\":true}",
            "{\"archive\":\"k\",\"memory\":true}",
            "{\"snapshot\":\"s\",\"archive\":\"k\"}",
            "{\"snapshot\":\"s\",\"template\":\"t\"}",
            "{\"archive\":\"k\",\"template\":\"t\"}",
            "{\"image\":\"i\",\"template\":\"t\"}",
            "{\"image\":\"i\",\"snapshot\":\"s\"}",
            "{\"image\":\"i\",\"archive\":\"k\"}",
        ] {
            assert!(from(bad).is_err(), "{bad}");
        }
    }
}

//! What a provider lacks is refused before anything is done, with the name of the capability.

use atoll_model::VolumeId;

use super::*;

fn refused<T>(outcome: Result<T, ProviderError>, capability: Capability) {
    let refusal = outcome.err().unwrap_or_else(|| panic!("{capability} is said to be missing"));
    assert!(is_missing(&refusal, capability), "{refusal}");
}

pub(super) async fn what_is_missing_is_refused_by_its_name(fixture: Fixture) {
    let able = fixture.provider.capabilities();
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    for capability in Capability::ALL {
        if !able.has(capability) {
            refuses_live(&fixture, &spec, &live, capability).await;
        }
    }
    assert_eq!(fixture.inside.read(&live, "/tmp/none").await, None, "it runs as before");
    fixture.provider.halt(&live.target).await.expect("halted");
    for capability in Capability::ALL {
        if !able.has(capability) {
            refuses_files(&fixture, &spec, capability).await;
        }
    }
    fixture.destroy(&spec).await;
}

/// Calls for a live instance.
async fn refuses_live(fixture: &Fixture, spec: &InstanceSpec, live: &Live<'_>, capability: Capability) {
    let (provider, able) = (&fixture.provider, fixture.provider.capabilities());
    let shot = SnapshotId::from_entropy(random());
    match capability {
        Capability::Dial => refused(provider.dial(&live.target, AGENT_PORT).await, capability),
        Capability::Resize => refused(provider.resize(&live.target, &spec.limits).await, capability),
        Capability::Egress => {
            refused(provider.set_network(&live.target, Arc::new(Egress::open())).await, capability);
            assert!(provider.egress().is_none());
        }
        Capability::Pause => {
            refused(provider.pause(&live.target).await, capability);
            refused(provider.resume(&live.target).await, capability);
        }
        Capability::Checkpoint => {
            if able.pauses {
                fixture.pause(live).await;
            }
            refused(provider.checkpoint(&live.target).await, capability);
            if able.pauses {
                fixture.pause(live).await;
                provider.resume(&live.target).await.expect("resumed");
            }
            if able.snapshots {
                refused(provider.snapshot(&live.target, &shot, true).await, capability);
            }
        }
        Capability::Snapshot => refused(provider.snapshot(&live.target, &shot, false).await, capability),
        Capability::Pool => assert_eq!(provider.pooled(&spec.template, &spec.template_version), 0),
        Capability::KeepFiles
        | Capability::DiskLimit
        | Capability::Archive
        | Capability::Capture
        | Capability::Volume => {}
        // Its own template is a copy of its own.
        Capability::Layers => {
            let has = |template: &'static str| provider.has_template(template, &spec.template_version);
            assert!(provider.has_template(&spec.template, &spec.template_version).await.expect("asked"));
            assert!(!has("no-such-template").await.expect("asked"));
        }
    }
}

/// Calls for a halted sandbox, and for volumes.
async fn refuses_files(fixture: &Fixture, spec: &InstanceSpec, capability: Capability) {
    let provider = &fixture.provider;
    match capability {
        Capability::KeepFiles => {
            assert!(is_gone(provider.boot(&again(spec)).await), "files that are not kept are gone");
        }
        Capability::Archive => refused(provider.pack(&files_only(spec)).await, capability),
        Capability::Capture => {
            let (files, version) = (files_only(spec), &spec.template_version);
            refused(provider.capture(&files, &spec.template, version).await, capability);
        }
        Capability::Volume => {
            let volume = VolumeId::from_entropy(random());
            refused(provider.create_volume(&volume, None).await, capability);
            refused(provider.volume_files(&volume).await, capability);
        }
        Capability::Dial
        | Capability::DiskLimit
        | Capability::Resize
        | Capability::Egress
        | Capability::Pause
        | Capability::Checkpoint
        | Capability::Snapshot
        | Capability::Pool
        | Capability::Layers => {}
    }
}

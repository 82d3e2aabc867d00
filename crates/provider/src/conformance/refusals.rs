//! What a provider lacks is refused before anything is done, with the name of the capability.

use atoll_agentapi::TerminalSize;
use atoll_model::VolumeId;

use super::*;
use crate::SessionSupport;

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
        Capability::Session => refused(provider.session_support().map(|_| ()), capability),
        Capability::Stdin | Capability::Signal | Capability::Terminal => {
            if let Ok(session) = provider.session_support() {
                refuses_in_session(session, &live.target, capability).await;
            }
        }
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
        // Whoever needs one of these asks for the capability.
        Capability::DialStream | Capability::Agent | Capability::User => {}
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

/// Calls of a session, for a process that need not be there.
async fn refuses_in_session(session: &dyn SessionSupport, target: &Target, capability: Capability) {
    let size = TerminalSize { cols: 80, rows: 24 };
    match capability {
        Capability::Signal => refused(session.signal(target, "1", 15).await, capability),
        Capability::Terminal => refused(session.resize_terminal(target, "1", size).await, capability),
        _ => {
            refused(session.write_stdin(target, "1", "text".into()).await, capability);
            refused(session.close_stdin(target, "1").await, capability);
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
        | Capability::DialStream
        | Capability::Agent
        | Capability::Session
        | Capability::Stdin
        | Capability::Signal
        | Capability::Terminal
        | Capability::User
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

//! Cases of captures: the changes of a sandbox as an image layer.

use std::collections::BTreeMap;

use super::*;
use tokio::io::AsyncReadExt;

/// The files of a capture with their content; folders and whiteouts have none.
async fn captured(fixture: &Fixture, spec: &InstanceSpec) -> BTreeMap<String, Vec<u8>> {
    let mut layer = Vec::new();
    let stream = fixture
        .provider
        .capture(&files_only(spec), &spec.template, &spec.template_version)
        .await
        .expect("captured");
    { stream }.read_to_end(&mut layer).await.expect("a whole layer");
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(layer.as_slice()).entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let path = String::from_utf8(entry.path_bytes().into_owned()).expect("text");
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("content");
        files.insert(path, content);
    }
    files
}

pub(super) async fn a_capture_holds_what_was_changed_and_nothing_else(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let refused = fixture.provider.capture(&live.target, &spec.template, &spec.template_version).await;
    assert!(refused.is_err(), "one that lives can't be captured");
    fixture.provider.halt(&live.target).await.expect("halted");
    assert_eq!(captured(&fixture, &spec).await, BTreeMap::new(), "the sandbox changed nothing");
    let spec = again(&spec);
    let live = fixture.boot(&spec).await;
    fixture.inside.write(&live, "/tmp/new", b"new").await;
    fixture.provider.halt(&live.target).await.expect("halted");
    let files = captured(&fixture, &spec).await;
    assert_eq!(files.get("tmp/new").map(Vec::as_slice), Some(&b"new"[..]), "{files:?}");
    assert!(files.iter().all(|(path, _)| path.starts_with("tmp/")), "{files:?}");
    assert_eq!(captured(&fixture, &spec).await, files, "again");
    // The capture changed nothing.
    let spec = again(&spec);
    let live = fixture.boot(&spec).await;
    assert_eq!(fixture.inside.read(&live, "/tmp/new").await.as_deref(), Some(&b"new"[..]));
    fixture.destroy(&spec).await;
    let gone = fixture.provider.capture(&files_only(&spec), &spec.template, &spec.template_version).await;
    assert!(is_gone(gone));
}

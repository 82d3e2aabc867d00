//! Cases of packing files for object storage and unpacking them.

use super::*;
use crate::Packed;
use tokio::io::AsyncReadExt;

/// A halted sandbox with a small and a larger file, the content of the larger one, and its pack.
async fn packed(fixture: &Fixture, spec: &InstanceSpec) -> (Vec<u8>, Vec<u8>) {
    let live = fixture.create(spec).await;
    let large = (0..60).map(|_| page()).collect::<String>().into_bytes();
    fixture.inside.write(&live, "/tmp/small", b"small").await;
    fixture.inside.write(&live, "/tmp/large", &large).await;
    fixture.provider.halt(&live.target).await.expect("halted");
    let mut pack = Vec::new();
    let mut stream = fixture.provider.pack(&files_only(spec)).await.expect("packed");
    stream.read_to_end(&mut pack).await.expect("a whole pack");
    (large, pack)
}

fn stream(pack: &[u8]) -> Packed {
    Box::new(std::io::Cursor::new(pack.to_vec()))
}

async fn assert_files(fixture: &Fixture, spec: &InstanceSpec, large: &[u8]) {
    let live = fixture.boot(spec).await;
    assert_eq!(fixture.inside.read(&live, "/tmp/small").await.as_deref(), Some(&b"small"[..]));
    assert!(fixture.inside.read(&live, "/tmp/large").await.as_deref() == Some(large), "the larger file");
    fixture.inside.write(&live, "/tmp/after", b"after").await;
    assert_eq!(fixture.inside.read(&live, "/tmp/after").await.as_deref(), Some(&b"after"[..]));
}

pub(super) async fn a_pack_becomes_the_same_files_here_and_elsewhere(fixture: Fixture) {
    let spec = fixture.spec();
    let (large, pack) = packed(&fixture, &spec).await;
    fixture.destroy(&spec).await;
    let elsewhere = fixture.spec();
    for spec in [again(&spec), elsewhere] {
        let limits = spec.limits;
        fixture.provider.unpack(&files_only(&spec), &limits, stream(&pack)).await.expect("unpacked");
        assert_files(&fixture, &spec, &large).await;
        fixture.destroy(&spec).await;
    }
}

pub(super) async fn a_pack_that_breaks_off_leaves_nothing(fixture: Fixture) {
    let spec = fixture.spec();
    let (large, pack) = packed(&fixture, &spec).await;
    fixture.destroy(&spec).await;
    let spec = again(&spec);
    let at = files_only(&spec);
    for kept in [0, 1, pack.len() / 2, pack.len() - 1] {
        // One stream ends too early, the other fails.
        let short = stream(&pack[..kept]);
        let broken: Packed = Box::new(std::io::Cursor::new(pack[..kept].to_vec()).chain(FailingStream));
        for files in [short, broken] {
            assert!(fixture.provider.unpack(&at, &spec.limits, files).await.is_err(), "{kept} bytes");
            assert!(is_gone(fixture.provider.boot(&again(&spec)).await), "{kept} bytes left something");
        }
    }
    // The call is dropped before the rest arrives.
    let (near, far) = tokio::io::duplex(1 << 16);
    let never = fixture.provider.unpack(&at, &spec.limits, Box::new(near));
    assert!(tokio::time::timeout(Duration::from_millis(50), never).await.is_err());
    drop(far);
    fixture.provider.unpack(&at, &spec.limits, stream(&pack)).await.expect("unpacked");
    // Existing files are not replaced.
    assert!(fixture.provider.unpack(&at, &spec.limits, stream(&[])).await.is_err());
    assert!(fixture.provider.unpack(&at, &spec.limits, stream(&pack)).await.is_err());
    assert_files(&fixture, &spec, &large).await;
    fixture.destroy(&spec).await;
}

pub(super) async fn a_pack_that_nobody_reads_to_its_end_changes_nothing(fixture: Fixture) {
    let spec = fixture.spec();
    let (large, pack) = packed(&fixture, &spec).await;
    for _ in 0..2 {
        let mut some = [0u8; 100];
        let mut stream = fixture.provider.pack(&files_only(&spec)).await.expect("packed");
        stream.read_exact(&mut some).await.expect("the beginning of it");
    }
    let next = again(&spec);
    assert_files(&fixture, &next, &large).await;
    assert!(!pack.is_empty());
    fixture.destroy(&next).await;
}

/// A stream that fails.
struct FailingStream;

impl tokio::io::AsyncRead for FailingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()))
    }
}

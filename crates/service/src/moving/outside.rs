//! Names of files that a sandbox changed outside the carried folders, read from the layer of its changes.

use atoll_model::{LeftBehind, LeftBehindKind};
use atoll_provider::Packed;
use atoll_tar::stream::{Receiver, StreamError, StreamReader};
use atoll_tar::{TarEntry, TarKind};
use tokio::io::AsyncReadExt;

use super::folders::CarriedFolders;

/// Files that every boot writes.
const BOOT_FILES: &[&str] = &["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/mtab"];
/// The sign of a removed file in a layer.
const REMOVED: &str = ".wh.";

struct Outside<'a> {
    carried: &'a CarriedFolders,
    left: LeftBehind,
}

/// The changed files outside of the carried folders; `None`: there are none.
pub(crate) async fn outside(
    mut layer: Packed,
    carried: &CarriedFolders,
) -> std::io::Result<Option<LeftBehind>> {
    let left = LeftBehind { kind: LeftBehindKind::Files, names: Vec::new(), count: 0 };
    let (mut reader, mut outside) = (StreamReader::default(), Outside { carried, left });
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = layer.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        reader.push(&buffer[..count], &mut outside).map_err(std::io::Error::other)?;
    }
    Ok((outside.left.count > 0).then_some(outside.left))
}

impl Outside<'_> {
    fn look(&mut self, entry: &TarEntry) {
        let name = String::from_utf8_lossy(&entry.name);
        let name = name.trim_start_matches("./").trim_start_matches('/');
        let is_file = entry.kind != TarKind::Folder;
        if !is_file || BOOT_FILES.contains(&name) || self.carried.carry(name) {
            return;
        }
        let shown: String =
            name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect();
        let text = match shown.rsplit_once('/') {
            Some((folder, last)) if last.starts_with(REMOVED) => {
                format!("/{folder}/{} (removed)", last.trim_start_matches(REMOVED))
            }
            _ => format!("/{shown}"),
        };
        self.left.add(text);
    }
}

impl Receiver for Outside<'_> {
    type Error = StreamError;

    fn begin(&mut self, entry: TarEntry) -> Result<(), StreamError> {
        self.look(&entry);
        Ok(())
    }

    fn sparse(&mut self, entry: &TarEntry) -> Result<(), StreamError> {
        self.look(entry);
        Ok(())
    }

    fn content(&mut self, _bytes: &[u8]) -> Result<(), StreamError> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), StreamError> {
        Ok(())
    }
}

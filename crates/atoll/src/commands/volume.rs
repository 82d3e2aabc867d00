//! `atoll volume`: create, list, show, resize, copy, remove, and files without a sandbox.

use std::path::{Path, PathBuf};

use atoll_client::{
    client::{Answer, Listing},
    files::EntryKind,
    sandbox_requests::MountBody,
    volume_files::{EntriesQuery, VolumeEntry, VolumePathQuery},
    volumes::{CopyVolumeBody, UpdateVolumeBody, Volume as VolumeAnswer, VolumeBody},
};
use jiff::Timestamp;

use super::{
    CommandContext,
    cp::{self, EndpointKind, SandboxEnd},
    list::or_dash,
    moment, pretty,
};
use crate::{
    cli::{
        values::{CopyEndpoint, Mebibytes, VolumeMount},
        volume::{Create, Put, Volume},
    },
    client::{Client, similar_names},
    failure::Failure,
    human::{Table, age, bytes},
};

pub(super) async fn volume(context: &CommandContext, command: Volume) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Volume::Create(args) => create(context, &client, args).await,
        Volume::Ls { quiet } => ls(context, &client, quiet).await,
        Volume::Show { volumes } => show(context, &client, &volumes).await,
        Volume::Resize { volume, size } => {
            let answer = client.update_volume(&volume, &size_change(size)).await;
            changed(context, &client, &volume, answer).await
        }
        Volume::Cp { from, name } => {
            let answer = client.copy_volume(&from, &CopyVolumeBody { name }).await;
            changed(context, &client, &from, answer).await
        }
        Volume::Rm { volumes, force } => rm(context, &client, &volumes, force).await,
        Volume::Put(args) => put(context, &client, args).await,
        Volume::Get { volume, path, to } => get(context, &client, &volume, &path, to).await,
        Volume::Files { volume, path: at, rm: true, .. } => {
            match client.remove_volume_file(&volume, &VolumePathQuery { path: at.clone() }).await {
                Ok(()) => context.out.named("path", &at),
                Err(failure) => Err(nearest_to(&client, &volume, failure).await),
            }
        }
        Volume::Files { volume, path, recursive, .. } => {
            files(context, &client, &volume, &path, recursive).await
        }
    }
}

fn size_change(size: Mebibytes) -> UpdateVolumeBody {
    UpdateVolumeBody { size_mib: Some(as_size(size)), read_only: None }
}

/// The server refuses sizes that are too large.
fn as_size(size: Mebibytes) -> u32 {
    u32::try_from(size.0).unwrap_or(u32::MAX)
}

/// Mounts in the form of create.
pub(super) fn mounts(mounts: &[VolumeMount]) -> Vec<MountBody> {
    let one = |mount: &VolumeMount| MountBody {
        volume: mount.volume.clone(),
        path: mount.path.clone(),
        sub_path: mount.sub_path.clone(),
        read_only: mount.read_only,
    };
    mounts.iter().map(one).collect()
}

async fn create(context: &CommandContext, client: &Client, args: Create) -> Result<(), Failure> {
    let body = VolumeBody {
        name: args.name,
        provider: args.provider,
        size_mib: args.size.map(as_size),
        folder: args.folder,
        read_only: args.read_only,
    };
    let made = client.create_volume(&body).await?;
    if context.out.json {
        return context.out.json(&made);
    }
    let name = &made.name;
    context.out.line(name)?;
    context.out.tell(&format!("next: atoll run --volume {name}:/data -- ls -la /data"));
    Ok(())
}

async fn changed(
    context: &CommandContext,
    client: &Client,
    volume: &str,
    answer: Result<Answer<VolumeAnswer>, Failure>,
) -> Result<(), Failure> {
    match answer {
        Ok(now) if context.out.json => context.out.json(&now),
        Ok(now) => context.out.line(&now.name),
        Err(failure) => Err(nearest_to(client, volume, failure).await),
    }
}

async fn ls(context: &CommandContext, client: &Client, quiet: bool) -> Result<(), Failure> {
    let found = client.volumes().await?;
    let out = context.out;
    if quiet && out.json {
        return out.json(&found.items.iter().map(|volume| &volume.name).collect::<Vec<_>>());
    }
    if quiet {
        return found.items.iter().try_for_each(|volume| out.line(&volume.name));
    }
    if out.json {
        return out.json(&found);
    }
    table(&found.items, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))?;
    if found.items.is_empty() {
        out.tell("there are no volumes; `atoll volume create NAME` creates one");
    }
    Ok(())
}

fn table(volumes: &[VolumeAnswer], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "NAME", "SIZE", "MODE", "STATE", "AGE", "FOLDER"]);
    for volume in volumes {
        let size = volume.size_mib.map_or_else(|| "-".to_owned(), |mib| bytes(u64::from(mib) << 20));
        table.row(vec![
            volume.id.clone(),
            volume.name.clone(),
            size,
            if volume.read_only { "ro" } else { "rw" }.to_owned(),
            volume.state.as_str().to_owned(),
            age(moment(volume.created_at.as_str()), now),
            or_dash(volume.folder.as_deref().unwrap_or("")),
        ]);
    }
    table
}

async fn show(context: &CommandContext, client: &Client, volumes: &[String]) -> Result<(), Failure> {
    for volume in volumes {
        match client.volume(volume).await {
            Ok(found) if context.out.json => context.out.json(&found)?,
            Ok(found) => context.out.line(&pretty(&found))?,
            Err(failure) => return Err(nearest_to(client, volume, failure).await),
        }
    }
    Ok(())
}

/// Continues after a failure; the exit status reports it.
async fn rm(
    context: &CommandContext,
    client: &Client,
    volumes: &[String],
    force: bool,
) -> Result<(), Failure> {
    let out = context.out;
    if !force && out.talks() && !out.ask(&format!("Remove {} with all files?", volumes.join(", "))) {
        return Err(Failure::usage("nothing was removed", "add --force to remove without confirmation"));
    }
    let mut failed = false;
    for volume in volumes {
        match client.delete_volume(volume).await {
            Ok(()) => out.named("volume", volume)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) if force && failure.is("volume_not_found") => {}
            Err(failure) => {
                failed = true;
                nearest_to(client, volume, failure).await.report(out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

async fn put(context: &CommandContext, client: &Client, args: Put) -> Result<(), Failure> {
    let home = EndpointKind::Volume { name: &args.volume, uid: args.uid, gid: args.gid };
    let to = SandboxEnd { client, home };
    let from = if args.from == Path::new("-") { CopyEndpoint::Stream } else { CopyEndpoint::Here(args.from) };
    let target = match (&args.path, &from) {
        (Some(path), CopyEndpoint::Stream) if path.ends_with('/') => {
            return Err(Failure::usage(format!("{path} is a folder"), "stdin needs the name of a file"));
        }
        (None, CopyEndpoint::Stream) => {
            return Err(Failure::usage("a file from stdin has no name", "atoll volume put VOLUME - /PATH"));
        }
        (Some(path), _) => path.clone(),
        (None, _) => "/".to_owned(),
    };
    match cp::put(context, &from, &to, &target).await {
        Ok(()) => Ok(()),
        Err(failure) => Err(nearest_to(client, &args.volume, failure).await),
    }
}

async fn get(
    context: &CommandContext,
    client: &Client,
    volume: &str,
    path: &str,
    to: Option<PathBuf>,
) -> Result<(), Failure> {
    let from = SandboxEnd { client, home: EndpointKind::Volume { name: volume, uid: None, gid: None } };
    let to = match to {
        Some(to) if to == Path::new("-") => CopyEndpoint::Stream,
        Some(to) => CopyEndpoint::Here(to),
        None => CopyEndpoint::Here(".".into()),
    };
    match cp::get(context, &from, path, &to).await {
        Ok(()) => Ok(()),
        Err(failure) => Err(nearest_to(client, volume, failure).await),
    }
}

/// LIMIT: the depth of one answer; deeper trees are listed folder by folder.
const DEPTH_MAX: u32 = 64;

async fn files(
    context: &CommandContext,
    client: &Client,
    volume: &str,
    at: &str,
    recursive: bool,
) -> Result<(), Failure> {
    let depth = if recursive { DEPTH_MAX } else { 1 };
    let query = EntriesQuery { path: Some(at.to_owned()), depth: Some(depth) };
    let answer = match client.volume_entries(volume, &query).await {
        Ok(answer) => answer,
        Err(failure) => return Err(nearest_to(client, volume, failure).await),
    };
    let truncated = answer.truncated;
    let entries = Listing::of(answer);
    if context.out.json {
        return context.out.json(&entries);
    }
    entry_table(&entries.items).lines().iter().try_for_each(|line| context.out.line(line))?;
    if truncated {
        context.out.say("atoll: the list is not complete; list a folder below");
    }
    Ok(())
}

fn entry_table(entries: &[VolumeEntry]) -> Table {
    let mut table = Table::new(&["MODE", "OWNER", "SIZE", "PATH"]);
    for entry in entries {
        let kind = match entry.kind {
            EntryKind::Directory => "d",
            EntryKind::Symlink => "l",
            EntryKind::File => "-",
            EntryKind::Other => "?",
        };
        let leads = entry.symlink_target.as_ref().map_or_else(String::new, |to| format!(" -> {to}"));
        table.row(vec![
            format!("{kind}{}", entry.mode),
            format!("{}:{}", entry.uid, entry.gid),
            bytes(entry.size),
            format!("{}{leads}", entry.path),
        ]);
    }
    table
}

async fn nearest_to(client: &Client, wanted: &str, failure: Failure) -> Failure {
    nearest(client, &[wanted], failure).await
}

/// Adds the most similar name as a hint to an unknown volume.
pub(super) async fn nearest(client: &Client, wanted: &[&str], failure: Failure) -> Failure {
    if !failure.is("volume_not_found") {
        return failure;
    }
    let Ok(known) = client.volumes().await else { return failure };
    let names: Vec<&str> = known.items.iter().map(|volume| volume.name.as_str()).collect();
    let mut absent = wanted.iter().filter(|wanted| !names.contains(wanted));
    match absent.find_map(|wanted| similar_names::nearest(wanted, names.iter().copied())) {
        Some(name) => failure.hint(format!("did you mean {name}? `atoll volume ls` shows every volume")),
        None => failure.hint("`atoll volume ls` shows every volume, `atoll volume create NAME` makes one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values::mount;
    use atoll_client::volumes::VolumeState;
    use serde_json::json;

    #[test]
    fn mounts_are_sent_as_the_server_takes_them() {
        let said = [mount("data:/d").expect("valid"), mount("code/src:/s:ro").expect("valid")];
        assert_eq!(
            serde_json::to_value(mounts(&said)).expect("JSON"),
            json!([{"volume": "data", "path": "/d"},
                {"volume": "code", "sub_path": "src", "path": "/s", "read_only": true}])
        );
    }

    #[test]
    fn the_tables_are_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let volume = |id: &str, name: &str, size_mib, folder: Option<&str>, read_only| VolumeAnswer {
            id: id.to_owned(),
            name: name.to_owned(),
            provider: "container".to_owned(),
            tenant: "t".to_owned(),
            node: "n".to_owned(),
            size_mib,
            used_bytes: None,
            folder: folder.map(str::to_owned),
            read_only,
            parent: None,
            state: VolumeState::Ready,
            mounted_by: 0,
            created_at: "2026-01-01T00:00:00Z".to_owned(),
        };
        let volumes = [
            volume("vbcdefghijklmnopqrst", "data", Some(10_240), None, false),
            volume("vbcdefghijklmnopqrsu", "code", None, Some("/srv/code"), true),
        ];
        insta::assert_snapshot!(table(&volumes, now).lines().join("\n"), @r"
        ID                    NAME  SIZE    MODE  STATE  AGE  FOLDER
        vbcdefghijklmnopqrst  data  10 GiB  rw    ready  1h   -
        vbcdefghijklmnopqrsu  code  -       ro    ready  1h   /srv/code
        ");
        let entry = |kind, mode: &str, id, size, path: &str, target: Option<&str>| VolumeEntry {
            name: path.trim_start_matches('/').to_owned(),
            path: path.to_owned(),
            kind,
            size,
            mode: mode.to_owned(),
            uid: id,
            gid: id,
            accessed_at: String::new(),
            modified_at: String::new(),
            changed_at: String::new(),
            symlink_target: target.map(str::to_owned),
        };
        let entries = [
            entry(EntryKind::Directory, "0755", 0, 0, "/a", None),
            entry(EntryKind::Symlink, "0777", 1_000, 3, "/l", Some("a")),
        ];
        insta::assert_snapshot!(entry_table(&entries).lines().join("\n"), @r"
        MODE   OWNER      SIZE  PATH
        d0755  0:0        0 B   /a
        l0777  1000:1000  3 B   /l -> a
        ");
    }
}

//! `atoll volume`: create, list, show, resize, copy, remove, and files without a sandbox.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    CommandContext,
    cp::{self, EndpointKind, SandboxEnd},
    items,
    list::or_dash,
    moment, pretty, text,
};
use crate::{
    cli::{
        values::{CopyEndpoint, VolumeMount},
        volume::{Create, Put, Volume},
    },
    client::{Client, segment, similar_names},
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
            let answer = client.patch(&path(&volume, ""), &json!({ "size_mib": size.0 })).await;
            changed(context, &client, &volume, answer).await
        }
        Volume::Cp { from, name } => {
            let answer = client.post(&path(&from, "/copy"), &json!({ "name": name })).await;
            changed(context, &client, &from, answer).await
        }
        Volume::Rm { volumes, force } => rm(context, &client, &volumes, force).await,
        Volume::Put(args) => put(context, &client, args).await,
        Volume::Get { volume, path, to } => get(context, &client, &volume, &path, to).await,
        Volume::Files { volume, path: at, rm: true, .. } => {
            let request = client.request(Method::DELETE, &path(&volume, "/files")).query(&[("path", &at)]);
            match client.json(request).await {
                Ok(_) => context.out.named("path", &at),
                Err(failure) => Err(nearest_to(&client, &volume, failure).await),
            }
        }
        Volume::Files { volume, path, recursive, .. } => {
            files(context, &client, &volume, &path, recursive).await
        }
    }
}

fn path(volume: &str, below: &str) -> String {
    format!("/v1/volumes/{}{below}", segment(volume))
}

/// Mounts as create takes them; nothing said is nothing sent.
pub(super) fn mounts(mounts: &[VolumeMount]) -> Option<Value> {
    let one = |mount: &VolumeMount| {
        let mut fields = Map::new();
        fields.insert("volume".to_owned(), json!(mount.volume));
        fields.insert("path".to_owned(), json!(mount.path));
        fields.extend(mount.sub_path.as_ref().map(|sub| ("sub_path".to_owned(), json!(sub))));
        fields.extend(mount.read_only.then(|| ("read_only".to_owned(), json!(true))));
        Value::Object(fields)
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(one).collect())
}

async fn create(context: &CommandContext, client: &Client, args: Create) -> Result<(), Failure> {
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(args.name));
    body.extend(args.size.map(|size| ("size_mib".to_owned(), json!(size.0))));
    body.extend(args.folder.map(|folder| ("folder".to_owned(), json!(folder))));
    body.extend(args.read_only.then(|| ("read_only".to_owned(), json!(true))));
    let made = client.post("/v1/volumes", &body).await?;
    if context.out.json {
        return context.out.json(&made);
    }
    let name = text(&made, "name");
    context.out.line(name)?;
    context.out.tell(&format!("next: atoll run --volume {name}:/data -- ls -la /data"));
    Ok(())
}

async fn changed(
    context: &CommandContext,
    client: &Client,
    volume: &str,
    answer: Result<Value, Failure>,
) -> Result<(), Failure> {
    match answer {
        Ok(now) if context.out.json => context.out.json(&now),
        Ok(now) => context.out.line(text(&now, "name")),
        Err(failure) => Err(nearest_to(client, volume, failure).await),
    }
}

async fn ls(context: &CommandContext, client: &Client, quiet: bool) -> Result<(), Failure> {
    let found = items(client.get("/v1/volumes").await?);
    let out = context.out;
    if quiet && out.json {
        return out.json(&found.iter().map(|volume| text(volume, "name")).collect::<Vec<_>>());
    }
    if quiet {
        return found.iter().try_for_each(|volume| out.line(text(volume, "name")));
    }
    if out.json {
        return out.json(&found);
    }
    table(&found, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))?;
    if found.is_empty() {
        out.tell("there is none; `atoll volume create NAME` makes one");
    }
    Ok(())
}

fn table(volumes: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "NAME", "SIZE", "MODE", "STATE", "AGE", "FOLDER"]);
    for volume in volumes {
        let size = volume["size_mib"].as_u64().map_or_else(|| "-".to_owned(), |mib| bytes(mib << 20));
        table.row(vec![
            text(volume, "id").to_owned(),
            text(volume, "name").to_owned(),
            size,
            if volume["read_only"] == true { "ro" } else { "rw" }.to_owned(),
            text(volume, "state").to_owned(),
            age(moment(volume, "created_at"), now),
            or_dash(text(volume, "folder")),
        ]);
    }
    table
}

async fn show(context: &CommandContext, client: &Client, volumes: &[String]) -> Result<(), Failure> {
    for volume in volumes {
        match client.get(&path(volume, "")).await {
            Ok(found) if context.out.json => context.out.json(&found)?,
            Ok(found) => context.out.line(&pretty(&found))?,
            Err(failure) => return Err(nearest_to(client, volume, failure).await),
        }
    }
    Ok(())
}

/// Goes on past a failure; the status tells.
async fn rm(
    context: &CommandContext,
    client: &Client,
    volumes: &[String],
    force: bool,
) -> Result<(), Failure> {
    let out = context.out;
    if !force && out.talks() && !out.ask(&format!("Remove {} with all files?", volumes.join(", "))) {
        return Err(Failure::usage("nothing was removed", "add --force to remove without a question"));
    }
    let mut failed = false;
    for volume in volumes {
        match client.delete(&path(volume, "")).await {
            Ok(_) => out.named("volume", volume)?,
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
            return Err(Failure::usage(
                "what comes from stdin has no name",
                "atoll volume put VOLUME - /PATH",
            ));
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

/// LIMIT: what one answer may hold; deeper trees are listed folder by folder.
const DEPTH_MAX: &str = "64";

async fn files(
    context: &CommandContext,
    client: &Client,
    volume: &str,
    at: &str,
    recursive: bool,
) -> Result<(), Failure> {
    let depth = if recursive { DEPTH_MAX } else { "1" };
    let query = [("path", at.to_owned()), ("depth", depth.to_owned())];
    let answer = match client.get_query(&path(volume, "/entries"), &query).await {
        Ok(answer) => answer,
        Err(failure) => return Err(nearest_to(client, volume, failure).await),
    };
    let truncated = answer["truncated"] == true;
    let entries = items(answer);
    if context.out.json {
        return context.out.json(&entries);
    }
    entry_table(&entries).lines().iter().try_for_each(|line| context.out.line(line))?;
    if truncated {
        context.out.say("atoll: there is more than is listed; name a folder below");
    }
    Ok(())
}

fn entry_table(entries: &[Value]) -> Table {
    let mut table = Table::new(&["MODE", "OWNER", "SIZE", "PATH"]);
    for entry in entries {
        let kind = match text(entry, "kind") {
            "directory" => "d",
            "symlink" => "l",
            "file" => "-",
            _ => "?",
        };
        let leads = entry["symlink_target"].as_str().map_or_else(String::new, |to| format!(" -> {to}"));
        table.row(vec![
            format!("{kind}{}", text(entry, "mode")),
            format!("{}:{}", entry["uid"], entry["gid"]),
            bytes(entry["size"].as_u64().unwrap_or(0)),
            format!("{}{leads}", text(entry, "path")),
        ]);
    }
    table
}

async fn nearest_to(client: &Client, wanted: &str, failure: Failure) -> Failure {
    nearest(client, &json!([{ "volume": wanted }]), failure).await
}

/// An unknown volume gets the nearest name as a hint.
pub(super) async fn nearest(client: &Client, mounts: &Value, failure: Failure) -> Failure {
    if !failure.is("volume_not_found") {
        return failure;
    }
    let Ok(answer) = client.get("/v1/volumes").await else { return failure };
    let known = items(answer);
    let names: Vec<&str> = known.iter().map(|volume| text(volume, "name")).collect();
    let wanted = mounts.as_array().into_iter().flatten().map(|mount| text(mount, "volume"));
    let absent = wanted.filter(|wanted| !names.contains(wanted));
    match absent.filter_map(|wanted| similar_names::nearest(wanted, names.iter().copied())).next() {
        Some(name) => failure.hint(format!("did you mean {name}? `atoll volume ls` shows every volume")),
        None => failure.hint("`atoll volume ls` shows every volume, `atoll volume create NAME` makes one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values::mount;

    #[test]
    fn mounts_are_sent_as_the_server_takes_them() {
        let said = [mount("data:/d").expect("valid"), mount("code/src:/s:ro").expect("valid")];
        assert_eq!(
            mounts(&said),
            Some(json!([{"volume": "data", "path": "/d"},
                {"volume": "code", "sub_path": "src", "path": "/s", "read_only": true}]))
        );
        assert_eq!(mounts(&[]), None);
    }

    #[test]
    fn the_tables_are_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let volumes = [
            json!({"id": "vbcdefghijklmnopqrst", "name": "data", "size_mib": 10_240, "folder": null, "read_only": false,
                "state": "ready", "created_at": "2026-01-01T00:00:00Z"}),
            json!({"id": "vbcdefghijklmnopqrsu", "name": "code", "size_mib": null, "folder": "/srv/code",
                "read_only": true, "state": "ready", "created_at": "2026-01-01T00:00:00Z"}),
        ];
        insta::assert_snapshot!(table(&volumes, now).lines().join("\n"), @r"
        ID                    NAME  SIZE    MODE  STATE  AGE  FOLDER
        vbcdefghijklmnopqrst  data  10 GiB  rw    ready  1h   -
        vbcdefghijklmnopqrsu  code  -       ro    ready  1h   /srv/code
        ");
        let entries = [
            json!({"kind": "directory", "mode": "0755", "uid": 0, "gid": 0, "size": 0, "path": "/a"}),
            json!({"kind": "symlink", "mode": "0777", "uid": 1000, "gid": 1000, "size": 3, "path": "/l", "symlink_target": "a"}),
        ];
        insta::assert_snapshot!(entry_table(&entries).lines().join("\n"), @r"
        MODE   OWNER      SIZE  PATH
        d0755  0:0        0 B   /a
        l0777  1000:1000  3 B   /l -> a
        ");
    }
}

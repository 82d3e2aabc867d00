//! A real server whose sandboxes are containers of Debian's Docker: from create to delete, over a crash of the server, and as
//! the default provider of the vendors' fronts.
#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::docker::Docker;
use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Options, Value, World, image, json, run_with, until};
use reqwest::Method;

const IMAGE: &str = "atoll-test/busybox:latest";
const SERVER: &str = "127.0.0.1:7070";

/// A server without a leak check: what the daemon starts would count as a leak.
pub(crate) fn options() -> Options {
    Options { audit: false, ..Options::default() }
}

/// Starts a daemon in the namespaces of the world, with one image, and writes the provider's settings.
pub(crate) async fn docker(world: &World) -> Docker {
    let folder = world.folder().join("docker");
    std::fs::create_dir(&folder).unwrap();
    let docker = Docker::start(&folder);
    let archive = folder.join("image.tar");
    std::fs::write(&archive, image::busybox().docker_archive("atoll-test/busybox")).unwrap();
    docker.ok(["load", "-i", archive.to_str().unwrap()]);
    let settings = json!({ "provider": "docker", "on_exit": "pause", "docker": {
        "image": IMAGE, "mount_path": "/workspace", "host": format!("unix://{}/docker.sock", folder.display()),
        "network": "none", "pull": "never" } });
    let files = world.data().join("sandboxes");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(".docker.json"), settings.to_string()).unwrap();
    std::fs::rename(files.join(".docker.json"), files.join("docker.json")).unwrap();
    let admin = world.admin();
    until("the server notices the settings", async || {
        let listed = admin.get("/v1/providers").await.ok();
        let names = listed["items"].as_array().unwrap().iter().any(|item| item["name"] == "docker");
        names.then_some(())
    })
    .await;
    docker
}

pub(crate) fn containers(docker: &Docker) -> Vec<String> {
    let text = String::from_utf8(docker.ok(["ps", "-a", "--format", "{{.Names}}"])).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn is_paused(docker: &Docker, sandbox: &str) -> bool {
    let name = containers(docker).into_iter().find(|name| name.contains(sandbox)).unwrap();
    docker.ok(["inspect", "--format", "{{.State.Paused}}", &name]).starts_with(b"true")
}

async fn preview(client: &Client, id: &str) -> (u16, String) {
    let host = format!("8080-{id}.localhost:7070");
    let request = reqwest::Client::new().get(format!("http://{SERVER}/")).header("host", host);
    let answer = request.bearer_auth(client.key()).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[test]
fn a_sandbox_in_docker_is_used_paused_adopted_and_deleted() {
    run_with(options(), async |w| {
        let docker = docker(w).await;
        let client = w.first_tenant().await;
        let mut create = w.command();
        create.args(["create", "--provider", "docker", "--image", IMAGE, "--name", "box"]);
        let made = w.output(create).await;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let about = client.sandbox("box").await;
        let id = about["id"].as_str().unwrap().to_owned();
        assert_eq!((&about["provider"], &about["template"]), (&json!("docker"), &json!(IMAGE)), "{about}");
        assert_eq!(containers(&docker).len(), 1);

        assert_eq!(client.sh(&id, "pwd; id -un").await.text(), "/workspace\nroot");
        client.write_file(&id, "/workspace/a", "text of a file").await.ok();
        assert_eq!(client.sh(&id, "cat a").await.text(), "text of a file");
        let body = json!({ "thread": "t", "cols": 80, "rows": 24 });
        let terminal = client.post(&format!("/v1/sandboxes/{id}/terminals"), body).await.ok();
        let terminal = terminal["id"].as_str().unwrap().to_owned();
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("cd /tmp; export MARK=kept; echo re''ady\n").await;
        screen.wait_for("ready").await;
        drop(screen);
        client
            .sh(&id, "mkdir /tmp/www; echo page >/tmp/www/index.html; httpd -p 127.0.0.1:8080 -h /tmp/www")
            .await;
        assert_eq!(preview(&client, &id).await, (200, "page\n".to_owned()));

        let measured = client.session(Method::GET, &format!("{id}/metrics")).await;
        let disk = &measured["metrics"]["disk_used_gb"];
        assert!(disk.is_number(), "the daemon measures the files of a container: {measured}");

        client.act(&id, "pause").await.ok();
        assert!(is_paused(&docker, &id));
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
        client.act(&id, "resume").await.ok();
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "running");
        assert_eq!(client.sh(&id, "cat /workspace/a").await.text(), "text of a file");
        assert_eq!(preview(&client, &id).await, (200, "page\n".to_owned()), "its processes are the same");
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("echo at=$(pwd) mark=$MARK\n").await;
        screen.wait_for("at=/tmp mark=kept").await;
        drop(screen);

        client.act(&id, "stop").await.ok();
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, "cat /workspace/a").await.text(), "text of a file");
        client.remove(&id).await;
        assert_eq!(containers(&docker), Vec::<String>::new());
        let left = std::fs::read_dir(w.data().join("providers/docker/sandboxes")).unwrap().count();
        assert_eq!(left, 0, "folders of deleted sandboxes");
        refusals(&client).await;
        a_new_working_directory_is_the_users(w, &docker, &client).await;
        assert_eq!(containers(&docker), Vec::<String>::new());

        let test = async || w.admin().post_empty("/v1/providers/docker/test").await.ok();
        assert_eq!(test().await["problem"], Value::Null);
        drop(docker);
        let told = test().await;
        let problem = told["problem"].as_str().unwrap();
        assert!(problem.contains("docker.sock") && problem.contains("start it"), "{problem}");
    });
}

/// The user of an image can write to the working directory that the image lacks.
async fn a_new_working_directory_is_the_users(w: &World, docker: &Docker, client: &Client) {
    let archive = w.folder().join("docker/user.tar");
    let image = image::busybox().config(json!({ "User": "1234:1234" }));
    std::fs::write(&archive, image.docker_archive("atoll-test/user")).unwrap();
    docker.ok(["load", "-i", archive.to_str().unwrap()]);
    let id = client.create(json!({ "provider": "docker", "image": "atoll-test/user:latest" })).await;
    assert_eq!(
        client.sh(&id, "id -u; pwd; echo mine >own; stat -c %u . own").await.text(),
        "1234\n/workspace\n1234\n1234"
    );
    client.remove(&id).await;
}

/// Requests that Docker cannot meet name what is missing.
async fn refusals(client: &Client) {
    let ask = |more: Value| {
        let mut body = json!({ "provider": "docker" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        async move { client.post("/v1/sandboxes", body).await }
    };
    let rules = json!({ "network": { "mode": "custom", "allow_domains": ["pypi.org"] } });
    let refused = ask(rules).await.refused(501, "unsupported");
    assert!(refused["message"].as_str().unwrap().contains("egress"), "{refused}");
    let missing = ask(json!({ "image": "no-such/image:9" })).await.refused(404, "template_not_found");
    assert!(missing["hint"].as_str().unwrap().contains("docker pull"), "{missing}");
    ask(json!({ "storage": "memory" })).await.refused(501, "unsupported");
}

#[test]
fn the_fronts_serve_a_server_whose_default_is_docker() {
    run_with(options(), async |w| {
        let docker = docker(w).await;
        let shared = w.folder().canonicalize().unwrap().join("shared");
        std::fs::create_dir(&shared).unwrap();
        // In the mount namespace of this test. The provider accepts no other folder to write to.
        let flags = nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV;
        nix::mount::mount(Some("none"), &shared, Some("tmpfs"), flags, None::<&str>).unwrap();
        let roots = shared.to_str().unwrap();
        w.crash_server_with(&[("ATOLL_PROVIDER", "docker"), ("ATOLL_VOLUME_ROOTS", roots)]).await;
        let client = w.tenant("acme").await;

        let call = async |method: Method, path: &str, body: Value| -> (u16, Value) {
            let request = client.raw(method, path).header("x-api-key", client.key()).json(&body);
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
        };
        let body = json!({ "templateID": "base", "timeout": 300 });
        let (status, made) = call(Method::POST, "/e2b/v2/sandboxes", body).await;
        assert_eq!(status, 201, "{made}");
        let id = made["sandboxID"].as_str().unwrap().to_owned();
        let about = client.sandbox(&id).await;
        assert_eq!((&about["provider"], &about["template"]), (&json!("docker"), &json!(IMAGE)), "{about}");
        // The data plane is the agent's own.
        let files = format!("http://{SERVER}/files?path=/tmp/of-e2b&username=user");
        let part = reqwest::multipart::Part::bytes(b"by the data plane".to_vec()).file_name("of-e2b");
        let form = reqwest::multipart::Form::new().part("file", part);
        let plane = |request: reqwest::RequestBuilder| {
            let token = made["envdAccessToken"].as_str().unwrap();
            request
                .header("e2b-sandbox-id", &id)
                .header("e2b-sandbox-port", "49983")
                .header("x-access-token", token)
        };
        let http = reqwest::Client::new();
        let written = plane(http.post(&files).multipart(form)).send().await.unwrap();
        assert_eq!(written.status(), 200, "{}", written.text().await.unwrap());
        assert_eq!(
            client.sh(&id, "cat /tmp/of-e2b; stat -c %U /tmp/of-e2b").await.text(),
            "by the data planeuser"
        );
        assert_eq!(call(Method::POST, &format!("/e2b/sandboxes/{id}/pause"), json!({})).await.0, 204);
        assert!(is_paused(&docker, &id));
        assert_eq!(call(Method::DELETE, &format!("/e2b/sandboxes/{id}"), json!({})).await.0, 204);

        let (status, made) = call(Method::POST, "/daytona/api/sandbox", json!({})).await;
        assert!(status < 300, "{status} {made}");
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(client.sandbox(&id).await["provider"], "docker");
        let path = format!("/daytona/api/toolbox/{id}/toolbox/process/execute");
        let (status, ran) = call(Method::POST, &path, json!({ "command": "echo of-daytona" })).await;
        assert_eq!((status, ran["result"].as_str().map(str::trim)), (200, Some("of-daytona")), "{ran}");
        client.remove(&id).await;
        let (status, made) = call(Method::POST, "/leap0/v1/sandbox", json!({})).await;
        assert!(status < 300, "{status} {made}");
        let id = made["id"].as_str().unwrap().to_owned();
        assert_eq!(client.sandbox(&id).await["provider"], "docker");
        client.remove(&id).await;

        // A folder of the operator.
        let admin = w.admin();
        admin.post("/v1/volumes", json!({ "name": "shared", "folder": roots })).await.ok();
        let id = admin.create(json!({ "mounts": [{ "volume": "shared", "path": "/data" }] })).await;
        admin.sh(&id, "echo of-a-sandbox >/data/note").await;
        assert_eq!(std::fs::read_to_string(shared.join("note")).unwrap(), "of-a-sandbox\n");
        admin.remove(&id).await;
        until("the containers are removed", async || containers(&docker).is_empty().then_some(())).await;
        nix::mount::umount(&shared).unwrap();
    });
}

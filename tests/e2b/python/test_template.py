"""`Template`: what is built is what sandboxes have; caches, tags, failures and the helpers that are commands underneath.

E2B_TEST_IMAGE names an image in a registry of the test's own.
"""

import json
import os
import tempfile
import time
import uuid
from pathlib import Path

from e2b import (
    BuildException,
    Sandbox,
    SandboxException,
    Template,
    TemplateBuildStatus,
    default_build_logger,
    wait_for_file,
    wait_for_port,
    wait_for_process,
    wait_for_timeout,
    wait_for_url,
)
from world import Case, until


GATEWAY = """#!/bin/sh
mkdir -p /etc/mcp-gateway
printf %s "$GATEWAY_ACCESS_TOKEN" > /etc/mcp-gateway/.token
chmod 600 /etc/mcp-gateway/.token
echo "$@" >> /tmp/gateway
"""


def name(prefix="t"):
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def gone(word):
    """Deletes a template with all its tags, where it was made."""
    Sandbox.delete_snapshot(word.split(":")[0])


class Building(Case):
    def build(self, template, word=None, **more):
        word = word or name()
        # What was made first is deleted last; a name only once, when no sandbox is left of it.
        if word not in self.names:
            self.names.add(word)
            self.addCleanup(gone, word)
        return Template.build(template, word, **more)

    def setUp(self):
        self.names = set()

    def context(self, **files):
        folder = Path(tempfile.mkdtemp(prefix="e2b-context-"))
        self.addCleanup(lambda: __import__("shutil").rmtree(folder))
        for path, text in files.items():
            at = folder / path.replace("__", "/")
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)
        return folder


class Steps(Building):
    weight = 9

    def test_every_step_leaves_its_trace(self):
        context = self.context(app__main="print('app')", app__deep__data="data", one="1", two="2", secret="never")
        template = (
            Template(file_context_path=context, file_ignore_patterns=["secret"])
            .from_template("base")
            .set_envs({"STAGE": "build", "TWO": "a b"})
            .run_cmd("echo $STAGE > /home/user/stage; id -un > /home/user/who")
            .set_workdir("/opt/work")
            .run_cmd(["pwd > /tmp/where", "chmod 644 /tmp/where"], user="root")
            .copy("app", "/srv/app")
            .copy(["one", "two"], "/srv/", user="root", mode=0o600)
            .copy_items([{"src": "one", "dest": "/srv/renamed", "mode": 0o755}])
            .make_dir(["/srv/made", "/srv/other"], mode=0o700, user="root")
            .rename("/srv/other", "/srv/moved", user="root")
            .make_symlink("/srv/app/main", "/srv/link", user="root")
            .remove("/srv/made", recursive=True, user="root")
            .set_user("root")
            .run_cmd("id -un > /srv/last-user")
            .set_user("user")
        )
        logs = []
        info = self.build(template, on_build_logs=logs.append, cpu_count=1, memory_mb=512)
        self.assertTrue(info.build_id and info.template_id)
        self.assertTrue(any("main" in entry.message or "COPY" in entry.message for entry in logs), [str(e) for e in logs][:30])
        box = self.sandbox(info.name)
        said = box.commands.run(
            "cat /home/user/stage /home/user/who /tmp/where /srv/last-user; cat /srv/app/main /srv/app/deep/data /srv/link; echo;"
            "stat -c '%a %U %n' /srv/renamed; sudo stat -c '%a %U %n' /srv/one /srv/two; ls -d /srv/made 2>&1; ls -d /srv/moved; pwd"
        ).stdout
        for line in (
            "build\nuser\n/opt/work\nroot\n",
            "print('app')data",
            "755 user /srv/renamed",
            "600 root /srv/one\n600 root /srv/two",
            "cannot access '/srv/made'",
            "/srv/moved",
        ):
            self.assertIn(line, said)
        self.assertEqual(box.commands.run("pwd").stdout, "/opt/work\n")
        self.assertFalse(box.files.exists("/srv/secret"))
        self.assertLessEqual(box.get_info().memory_mb, 512)

    def test_a_second_build_takes_what_is_unchanged_from_the_cache(self):
        context = self.context(data="one")
        slow = lambda: Template(file_context_path=context).from_template("base").run_cmd("date +%s%N > /tmp/when; sleep 0.5").copy("data", "/tmp/data")
        word = name()
        self.build(slow(), word)
        first = self.sandbox(word).files.read("/tmp/when")
        (context / "data").write_text("two")
        self.build(slow(), word)
        box = self.sandbox(word)
        self.assertEqual((box.files.read("/tmp/when"), box.files.read("/tmp/data")), (first, "two"))
        self.build(slow(), word, skip_cache=True)
        self.assertNotEqual(self.sandbox(word).files.read("/tmp/when"), first)
        partly = Template(file_context_path=context).from_template("base").skip_cache().run_cmd("date +%s%N > /tmp/when; sleep 0.5")
        self.build(partly, name())

    def test_a_step_that_fails_says_which_and_why(self):
        template = Template().from_template("base").run_cmd("echo fine").run_cmd("echo about-to-fail >&2; exit 3")
        logs, word = [], name()
        with self.assertRaises(BuildException) as caught:
            Template.build(template, word, on_build_logs=lambda entry: logs.append(entry.message))
        self.assertIn("3", str(caught.exception))
        self.assertTrue(any("about-to-fail" in line for line in logs), logs)
        with self.assertRaises(Exception):
            self.sandbox(word)

    def test_a_step_of_an_unknown_user_names_the_command_and_the_user(self):
        template = Template().from_template("base").run_cmd("whoami", user="root123")
        with self.assertRaises(BuildException) as caught:
            Template.build(template, name())
        said = str(caught.exception)
        self.assertTrue("command 'whoami'" in said and "username: 'root123'" in said, said)

    def test_a_file_that_is_not_there_stops_the_build(self):
        word, context = name(), self.context(x="x")
        with self.assertRaises(Exception) as caught:
            Template.build(Template(file_context_path=context).from_template("base").copy("missing", "/tmp/"), word)
        self.assertIn("missing", str(caught.exception))
        # What was announced and never begun is in nobody's way.
        self.build(Template(file_context_path=context).from_template("base").copy("x", "/tmp/"), word)
        self.assertEqual(self.sandbox(word).files.read("/tmp/x"), "x")

    def test_an_image_of_a_registry_is_a_base(self):
        template = Template().from_image(os.environ["E2B_TEST_IMAGE"]).run_cmd("echo built > /built", user="root")
        info = self.build(template)
        box = self.sandbox(info.name)
        self.assertEqual(box.files.read("/built"), "built\n")
        self.assertEqual(box.commands.run("cat /built /etc/of-the-image").stdout, "built\nimage\n")

    def test_an_image_that_nobody_has_stops_the_build(self):
        with self.assertRaises(BuildException):
            Template.build(Template().from_image(os.environ["E2B_TEST_IMAGE"] + "-missing").run_cmd("true"), name())

    def test_a_dockerfile_is_a_template(self):
        dockerfile = "FROM e2bdev/base\nENV COLOUR=blue\nWORKDIR /opt/there\nUSER root\nRUN echo $COLOUR > colour\nCOPY file /opt/there/\n"
        context = self.context(file="copied")
        template = Template(file_context_path=context).from_dockerfile(dockerfile)
        info = self.build(template)
        box = self.sandbox(info.name)
        self.assertEqual(box.files.read("/opt/there/colour"), "blue\n")
        self.assertEqual(box.files.read("/opt/there/file"), "copied")

    def test_helpers_are_the_commands_they_say(self):
        fake = "install -m 666 /dev/null /tmp/called; for p in apt-get npm bun pip; do printf '#!/bin/sh\\necho \"$(id -un) %s $*\" >> /tmp/called\\n' $p > /usr/local/bin/$p; chmod 755 /usr/local/bin/$p; done"
        template = (
            Template()
            .from_base_image()
            .run_cmd(fake, user="root")
            .apt_install(["vim", "jq"], no_install_recommends=True)
            .npm_install("typescript", g=True)
            .bun_install(["left", "right"], dev=True)
            .pip_install("numpy")
            .pip_install("requests", g=False)
            .run_cmd("git init -q /tmp/src && git -C /tmp/src -c user.name=x -c user.email=x@x commit -q --allow-empty -m first")
            .git_clone("file:///tmp/src", "/home/user/cloned", depth=1)
        )
        box = self.sandbox(self.build(template).name)
        called = box.files.read("/tmp/called").split("\n")
        self.assertEqual(called[0], "root apt-get update")
        self.assertTrue(called[1].startswith("root apt-get install -y --no-install-recommends") and called[1].endswith("vim jq"), called)
        self.assertEqual(called[2:6], ["root npm install -g typescript", "user bun install --dev left right", "root pip install numpy", "user pip install --user requests"])
        self.assertEqual(box.commands.run("git -C /home/user/cloned log --format=%s").stdout, "first\n")


class Starting(Building):
    weight = 8

    def test_a_server_of_the_template_runs_in_every_sandbox(self):
        start = "echo $$ > /tmp/pid; exec python3 -m http.server 8123 -d /srv/www"
        template = (
            Template().from_template("base").run_cmd("mkdir -p /srv/www && echo served > /srv/www/index.html", user="root")
        )
        info = self.build(template.set_start_cmd(start, wait_for_port(8123)))
        for _ in range(2):
            box = self.sandbox(info.name)
            self.assertEqual(box.commands.run("curl -s http://127.0.0.1:8123/").stdout, "served\n")

    def test_every_condition_for_being_ready_is_waited_for(self):
        start = "sleep 0.3; touch /tmp/ready; exec python3 -m http.server 8124"
        for ready in (wait_for_file("/tmp/ready"), wait_for_url("http://127.0.0.1:8124/"), wait_for_process("python3")):
            info = self.build(Template().from_template("base").set_start_cmd(start, ready))
            self.assertTrue(self.sandbox(info.name).files.exists("/tmp/ready"), ready.get_cmd())

    def test_a_ready_command_takes_the_time_it_needs(self):
        begun = time.monotonic()
        start = "sleep 1; touch /tmp/started; sleep 1000"
        template, logs = Template().from_template("base").set_start_cmd(start, wait_for_timeout(7_000)), []
        info = self.build(template, on_build_logs=lambda entry: logs.append(entry.message))
        built = time.monotonic()
        self.assertGreater(built - begun, 7)
        self.assertTrue(self.sandbox(info.name).files.exists("/tmp/started"))
        # Where processes are kept, they were ready when they were.
        if any("start with the processes" in line for line in logs):
            self.assertLess(time.monotonic() - built, 7)

    def test_ready_alone_needs_no_start(self):
        info = self.build(Template().from_template("base").run_cmd("touch /tmp/x").set_ready_cmd(wait_for_timeout(1)))
        self.assertTrue(self.sandbox(info.name).files.exists("/tmp/x"))

    def test_mcp_is_a_command_of_its_template(self):
        context = self.context(gateway=GATEWAY)
        template = Template(file_context_path=context).from_template("base").copy("gateway", "/usr/local/bin/mcp-gateway", mode=0o755)
        self.build(template, "mcp-gateway")
        more = Template().from_template("mcp-gateway").add_mcp_server(["exa", "brave"])
        self.assertEqual(self.sandbox(self.build(more).name).files.read("/tmp/gateway", user="root"), "pull exa brave\n")
        box = Sandbox.create(mcp={"exa": {"apiKey": "k"}})
        self.addCleanup(box.kill)
        self.assertEqual(box.files.read("/etc/mcp-gateway/.token", user="root"), box.get_mcp_token())
        self.assertIn('--config {"exa": {"apiKey": "k"}}', box.files.read("/tmp/gateway", user="root"))
        again = Sandbox.connect(box.sandbox_id)
        self.assertEqual(again.get_mcp_token(), box.get_mcp_token())


    def test_what_only_the_vendors_own_templates_have_is_refused_with_what_to_use(self):
        with self.assertRaises(SandboxException) as refused:
            Sandbox.create(mcp={"exa": {"apiKey": "k"}}, api_key=os.environ["E2B_OTHER_KEY"])
        self.assertIn("501", str(refused.exception))
        self.assertIn("/mcp instead", str(refused.exception))
        for template, instead in (
            (Template().from_template("devcontainer").beta_dev_container_prebuild("/project"), "from_dockerfile"),
            (Template().from_template("mcp-gateway").add_mcp_server("exa"), "/mcp instead"),
        ):
            with self.assertRaises(BuildException) as refused:
                Template.build(template, name(), api_key=os.environ["E2B_OTHER_KEY"])
            self.assertIn(instead, str(refused.exception))

    def test_an_unknown_template_names_calls_of_this_sdk(self):
        with self.assertRaises(SandboxException) as refused:
            Sandbox.create("no-such-template")
        self.assertIn("Template.exists()", str(refused.exception))
        self.assertNotIn("atoll", str(refused.exception))


class Names(Building):
    weight = 7

    def test_tags_lead_to_their_builds(self):
        word = name()
        one = self.build(Template().from_template("base").run_cmd("echo one > /tmp/v"), f"{word}:v1")
        two = self.build(Template().from_template("base").run_cmd("echo two > /tmp/v"), word, tags=["v2", "latest-two"])
        version = lambda tag: self.sandbox(f"{word}:{tag}").files.read("/tmp/v")
        self.assertEqual((version("v1"), version("v2"), version("latest-two")), ("one\n", "two\n", "two\n"))
        assigned = Template.assign_tags(f"{word}:v1", ["stable", "old"])
        self.assertEqual(sorted(assigned.tags), ["old", "stable"])
        self.assertEqual(version("stable"), "one\n")
        tags = {tag.tag: tag.build_id for tag in Template.get_tags(word)}
        self.assertTrue({"v1", "v2", "stable", "old"} <= set(tags), tags)
        self.assertEqual(tags["stable"], tags["v1"])
        self.assertNotEqual(tags["v1"], tags["v2"])
        Template.remove_tags(word, ["stable", "old"])
        self.assertNotIn("stable", [tag.tag for tag in Template.get_tags(word)])
        with self.assertRaises(Exception):
            self.sandbox(f"{word}:stable")
        self.assertTrue(one.build_id != two.build_id)

    def test_existence_is_told(self):
        word = name()
        self.assertFalse(Template.exists(word))
        self.build(Template().from_template("base").run_cmd("true"), word)
        self.assertTrue(Template.exists(word))
        self.assertTrue(Template.alias_exists(word))
        self.assertTrue(Template.exists("base"))
        self.assertFalse(Template.exists(word, api_key=os.environ["E2B_OTHER_KEY"]))

    def test_a_build_may_go_on_behind_the_scenes(self):
        word = name()
        info = Template.build_in_background(Template().from_template("base").run_cmd("echo in-the-log; sleep 0.5"), word)
        self.addCleanup(Sandbox.delete_snapshot, word)
        seen = set()

        def ready():
            status = Template.get_build_status(info, logs_offset=0)
            seen.add(status.status)
            return status if status.status in (TemplateBuildStatus.READY, TemplateBuildStatus.ERROR) else None

        last = until("it is built", ready, within=120, every=0.1)
        self.assertEqual(last.status, TemplateBuildStatus.READY)
        self.assertIn("in-the-log", " ".join(entry.message for entry in last.log_entries))
        offset = len(last.log_entries)
        self.assertEqual(Template.get_build_status(info, logs_offset=offset).log_entries, [])

    def test_templates_build_on_templates(self):
        below = self.build(Template().from_template("base").run_cmd("echo below > /tmp/below"))
        above = self.build(Template().from_template(below.name).run_cmd("cat /tmp/below > /tmp/above"), on_build_logs=default_build_logger())
        self.assertEqual(self.sandbox(above.name).files.read("/tmp/above"), "below\n")


class Words(Case):
    """What the SDK itself makes of a template, before a server sees it."""

    def test_every_base_has_its_image(self):
        bases = {
            "debian:stable": Template().from_debian_image(),
            "ubuntu:24.04": Template().from_ubuntu_image("24.04"),
            "fedora:44": Template().from_fedora_image(),
            "alpine:3.24": Template().from_alpine_image(),
            "archlinux:latest": Template().from_arch_image(),
            "python:3": Template().from_python_image(),
            "node:lts": Template().from_node_image(),
            "oven/bun:latest": Template().from_bun_image(),
            "e2bdev/base": Template().from_base_image(),
            "r.test/i:1": Template().from_image("r.test/i:1", username="u", password="p"),
            "r.test/aws:1": Template().from_aws_registry("r.test/aws:1", "id", "key", "eu"),
            "r.test/gcp:1": Template().from_gcp_registry("r.test/gcp:1", {"type": "service_account"}),
        }
        for image, template in bases.items():
            said = json.loads(Template.to_json(template.run_cmd("true")))
            self.assertTrue(said["fromImage"].endswith(image.split("/")[-1]), said)
        self.assertIn("RUN true", Template.to_dockerfile(Template().from_debian_image().run_cmd("true")))
        self.assertTrue(json.loads(Template.to_json(Template().skip_cache().from_debian_image().run_cmd("x")))["steps"][0]["force"])

    def test_helpers_of_other_bases_are_refused_elsewhere(self):
        for call in (
            lambda: Template().from_base_image().add_mcp_server("exa"),
            lambda: Template().from_base_image().beta_dev_container_prebuild("/x"),
            lambda: Template().from_base_image().beta_set_dev_container_start("/x"),
        ):
            with self.assertRaises(BuildException):
                call()
        said = json.loads(Template.to_json(Template().from_template("devcontainer").beta_dev_container_prebuild("/x").beta_set_dev_container_start("/x")))
        self.assertIn("devcontainer up", said["startCmd"])

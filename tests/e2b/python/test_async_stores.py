"""By `async`: templates, volumes, secrets."""

import json
import tempfile
import uuid
from pathlib import Path

from e2b import (
    AsyncSandbox,
    AsyncSecret,
    AsyncTemplate,
    AsyncVolume,
    BuildException,
    SecretNotFoundException,
    TemplateBuildStatus,
    VolumeNotFoundException,
    VolumePathNotFoundException,
    wait_for_port,
)
from world import AsyncCase, until_async


class Templates(AsyncCase):
    weight = 7
    kind = AsyncSandbox

    def name(self):
        made = "at-" + uuid.uuid4().hex[:10]
        self.addAsyncCleanup(AsyncSandbox.delete_snapshot, made)
        return made

    async def test_a_build_with_files_and_a_server(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "index.html").write_text("served by async")
            template = AsyncTemplate(file_context_path=folder).from_template("base").copy("index.html", "/srv/")
            word = self.name()
            info = await AsyncTemplate.build(template.set_start_cmd("python3 -m http.server 8125 -d /srv", wait_for_port(8125)), word)
        box = await self.sandbox(info.name)
        self.assertEqual((await box.commands.run("curl -s http://127.0.0.1:8125/")).stdout, "served by async")
        self.assertTrue(await AsyncTemplate.exists(word))
        self.assertTrue(await AsyncTemplate.alias_exists(word))
        await AsyncTemplate.assign_tags(f"{word}:default", "blue")
        self.assertIn("blue", [tag.tag for tag in await AsyncTemplate.get_tags(word)])
        await AsyncTemplate.remove_tags(word, "blue")
        self.assertNotIn("blue", [tag.tag for tag in await AsyncTemplate.get_tags(word)])

    async def test_a_build_behind_the_scenes_and_one_that_fails(self):
        word = self.name()
        info = await AsyncTemplate.build_in_background(AsyncTemplate().from_template("base").run_cmd("echo hi > /tmp/hi"), word)

        async def ready():
            status = await AsyncTemplate.get_build_status(info)
            return status.status == TemplateBuildStatus.READY

        await until_async("it is built", ready, within=120, every=0.1)
        self.assertEqual(await (await self.sandbox(word)).files.read("/tmp/hi"), "hi\n")
        with self.assertRaises(BuildException):
            await AsyncTemplate.build(AsyncTemplate().from_template("base").run_cmd("exit 9"), self.name())

    async def test_every_base_has_its_image(self):
        make = AsyncTemplate
        bases = [
            make().from_debian_image(), make().from_ubuntu_image(), make().from_fedora_image(), make().from_alpine_image(),
            make().from_arch_image(), make().from_python_image(), make().from_node_image(), make().from_bun_image(),
            make().from_base_image(), make().from_image("r.test/i"), make().from_dockerfile("FROM debian:12\nRUN true\n"),
            make().from_aws_registry("r.test/i", "a", "b", "c"), make().from_gcp_registry("r.test/i", {}),
        ]
        for template in bases:
            self.assertTrue(json.loads(make.to_json(template.run_cmd("true")))["fromImage"])
        self.assertIn("FROM", make.to_dockerfile(make().skip_cache().from_debian_image().run_cmd("true")))


class Volumes(AsyncCase):
    kind = AsyncSandbox

    async def test_content_is_shared_by_its_api_and_a_sandbox(self):
        volume = await AsyncVolume.create("av-" + uuid.uuid4().hex[:10])
        self.addAsyncCleanup(AsyncVolume.destroy, volume.volume_id)
        self.assertIn(volume.volume_id, [info.volume_id for info in await AsyncVolume.list()])
        self.assertEqual((await AsyncVolume.get_info(volume.volume_id)).name, volume.name)
        volume = await AsyncVolume.connect(volume.volume_id)
        self.assertTrue(volume.token and volume.name)
        await volume.make_dir("/d")
        await volume.write_file("/d/f", "text", uid=1000, gid=1000)
        self.assertEqual([entry.path for entry in await volume.list("/d")], ["/d/f"])
        box = await self.sandbox(volume_mounts={"/mnt/v": volume})
        self.assertEqual(await box.files.read("/mnt/v/d/f"), "text")
        await box.commands.run("echo more >> /mnt/v/d/f")
        self.assertEqual(await volume.read_file("/d/f"), "textmore\n")
        await volume.update_metadata("/d/f", mode=0o600)
        self.assertEqual((await volume.get_info("/d/f")).mode & 0o777, 0o600)
        await volume.remove("/d/f")
        self.assertFalse(await volume.exists("/d/f"))
        with self.assertRaises(VolumePathNotFoundException):
            await volume.read_file("/d/f")
        await box.kill()
        self.assertTrue(await AsyncVolume.destroy(volume.volume_id))
        with self.assertRaises(VolumeNotFoundException):
            await AsyncVolume.get_info(volume.volume_id)


class Secrets(AsyncCase):
    async def test_a_secret_from_its_making_to_its_end(self):
        name = "as-" + uuid.uuid4().hex[:10]
        made = await AsyncSecret.create(name, "v1", metadata={"a": "b"})
        self.addAsyncCleanup(AsyncSecret.destroy, name)
        self.assertEqual((await AsyncSecret.get_info(name)).metadata, {"a": "b"})
        newer = await AsyncSecret.update(name, "v2")
        self.assertNotEqual(newer.version, made.version)
        pages, seen = AsyncSecret.list(limit=50), []
        while pages.has_next:
            seen += [info.name for info in await pages.next_items()]
        self.assertIn(name, seen)
        self.assertFalse(pages.next_token)
        self.assertTrue(await AsyncSecret.exists(name))
        self.assertTrue(await AsyncSecret.destroy(name))
        with self.assertRaises(SecretNotFoundException):
            await AsyncSecret.get_info(name)
        self.assertIn(name, AsyncSecret.fill(name))
        self.assertEqual(AsyncSecret.iam_token(audience="x", token_type="JWT-SVID")["audience"], "x")

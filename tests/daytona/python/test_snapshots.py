"""Snapshots: from images and Dockerfiles, of sandboxes; their life, and what sandboxes of them have."""

import asyncio

from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    DaytonaBadRequestError,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaNotFoundError,
    Image,
    Resources,
)

from world import Case, client, name, refused, stranger, until


class Snapshots(Case):
    def make(self, image, word=None, **more):
        word = word or name("snap")
        logs = []
        made = client().snapshot.create(CreateSnapshotParams(name=word, image=image, **more), on_logs=logs.append, timeout=120)
        self.addCleanup(self.forget, word)
        return made, "".join(logs)

    @staticmethod
    def forget(word):
        try:
            client().snapshot.delete(word)
        except DaytonaNotFoundError:
            pass

    def test_steps_that_are_declared_are_in_the_sandbox(self):
        image = (Image.base("debian").run_commands("echo built > /built", ["cp", "/built", "/copied"])
                 .env({"STAGE": "x y"}).workdir("/srv"))
        made, logs = self.make(image, resources=Resources(cpu=1, memory=1, disk=3))
        self.assertEqual((str(made.state.value if hasattr(made.state, "value") else made.state), made.mem), ("active", 1))
        self.assertIn("echo built", logs)
        box = self.create(snapshot=made.name)
        self.assertEqual(self.sh('cat /built /copied; echo "$STAGE"; pwd', box=box), "built\nbuilt\nx y\n/srv\n")

    def test_a_build_that_fails_says_where(self):
        with self.assertRaises(DaytonaError) as failed:
            self.make(Image.base("debian").run_commands("echo about-to-fail; exit 9"))
        self.assertIn("9", str(failed.exception))

    def test_a_sandbox_straight_from_an_image(self):
        logs = []
        image = Image.base("debian").run_commands("echo direct > /direct")
        box = client().create(CreateSandboxFromImageParams(image=image, resources=Resources(cpu=1, memory=1, disk=2), labels={"k": "v"}),
                              timeout=120, on_snapshot_create_logs=logs.append)
        self.addCleanup(self._remove, box.id)
        self.assertEqual(self.sh("cat /direct", box=box), "direct\n")
        self.assertEqual((box.cpu, box.memory, box.disk, box.labels["k"]), (1, 1, 2, "v"))

    def test_a_sandbox_from_an_image_whose_build_fails(self):
        image = Image.base("debian").run_commands("echo no-good; exit 3")
        with self.assertRaises(DaytonaError) as failed:
            client().create(CreateSandboxFromImageParams(image=image), timeout=120)
        self.assertIn("3", str(failed.exception))

    def test_an_image_by_name(self):
        box = client().create(CreateSandboxFromImageParams(image="debian"), timeout=120)
        self.addCleanup(self._remove, box.id)
        self.assertIn("Debian", self.sh("cat /etc/os-release", box=box))

    def test_the_entrypoint_runs_at_every_start(self):
        script = "#!/bin/sh\\necho up >> /tmp/starts\\necho said\\nwhile [ ! -e /tmp/end ]; do sleep 0.05; done\\necho last\\n"
        image = Image.base("debian").run_commands(f"printf '{script}' > /go; chmod +x /go")
        made, _ = self.make(image, entrypoint=["/go"])
        self.assertEqual(made.entrypoint, ["/go"])
        box = self.create(snapshot=made.name)
        until("it started", lambda: box.process.exec("cat /tmp/starts").result == "up\n")
        until("its words are in the log", lambda: "said" in (box.process.get_entrypoint_logs().output or ""))
        told = []

        async def follow():
            following = asyncio.create_task(box.process.get_entrypoint_logs_async(told.append, told.append))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(box.fs.upload_file, b"", "/tmp/end")
            await asyncio.wait_for(following, 60)

        asyncio.run(follow())
        self.assertEqual("".join(told).split(), ["said", "last"])
        self.sh("rm /tmp/end", box=box)
        box.stop()
        box.start()
        until("it started again", lambda: box.process.exec("cat /tmp/starts").result == "up\nup\n")

    def test_a_snapshot_of_a_sandbox_is_a_beginning_for_others(self):
        box = self.create()
        self.sh("echo moment > ~/f", box=box)
        word = name("moment")
        box.create_snapshot(word)
        self.addCleanup(self.forget, word)
        self.sh("echo later > ~/f", box=box)
        one, two = self.create(snapshot=word), self.create(snapshot=word)
        self.assertEqual(self.sh("cat ~/f; echo mine > ~/f", box=one), "moment\n")
        self.assertEqual(self.sh("cat ~/f", box=two), "moment\n")
        self.assertEqual(client().snapshot.get(word).name, word)
        self.assertIn(word, [s.name for s in client().snapshot.list(source_sandbox_id=box.id).items])

    def test_snapshots_are_listed_in_pages(self):
        image = Image.base("debian").env({"A": "1"})
        words = {self.make(image, name(f"page{n}"))[0].name for n in range(3)}
        found, page = set(), 1
        while True:
            got = client().snapshot.list(page=page, limit=2)
            self.assertLessEqual(len(got.items), 2)
            self.assertEqual(got.page, page)
            found |= {s.name for s in got.items}
            if page >= got.total_pages:
                break
            page += 1
        self.assertLessEqual(words, found)
        self.assertTrue(any(s.general for s in client().snapshot.list(limit=100).items), "the ones for everybody are in the list")

    def test_get_delete_and_what_is_gone(self):
        made, _ = self.make(Image.base("debian").env({"B": "1"}))
        self.assertEqual(client().snapshot.get(made.id).name, made.name)
        client().snapshot.delete(made.name)
        with self.assertRaises(DaytonaNotFoundError):
            client().snapshot.get(made.name)
        with self.assertRaises(DaytonaNotFoundError):
            client().snapshot.delete(made.name)
        with self.assertRaises(DaytonaError):
            self.create(snapshot=made.name)

    def test_an_active_one_is_not_activated_again(self):
        made, _ = self.make(Image.base("debian").env({"C": "1"}))
        with refused(400):
            client().snapshot.activate(made)

    def test_the_ones_for_everybody_stay(self):
        general = next(s for s in client().snapshot.list(limit=100).items if s.general)
        with self.assertRaises((DaytonaForbiddenError, DaytonaBadRequestError)):
            client().snapshot.delete(general)

    def test_a_name_is_taken_once_and_others_tenants_see_nothing(self):
        made, _ = self.make(Image.base("debian").env({"D": "1"}))
        with self.assertRaises(DaytonaError):
            self.make(Image.base("debian"), made.name)
        with self.assertRaises(DaytonaNotFoundError):
            stranger().snapshot.get(made.name)
        with self.assertRaises(DaytonaError):
            stranger().create(CreateSandboxFromSnapshotParams(snapshot=made.name))

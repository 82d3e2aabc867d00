"""Volumes and secrets."""

from daytona import (
    CreateSandboxFromSnapshotParams,
    CreateSecretParams,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    UpdateSecretParams,
    VolumeMount,
)

from world import Case, client, name, refused, stranger


class Volumes(Case):
    def volume(self):
        made = client().volume.create(name("vol"))
        self.addCleanup(self.drop, made.name)
        return made

    @staticmethod
    def drop(word):
        try:
            client().volume.delete(client().volume.get(word))
        except DaytonaNotFoundError:
            pass

    def test_files_outlive_the_sandbox_and_are_shared(self):
        volume = self.volume()
        mount = [VolumeMount(volume_id=volume.id, mount_path="/data")]
        one, two = self.create(volumes=mount), self.create(volumes=mount)
        self.sh("echo from one > /data/f", box=one)
        self.assertEqual(self.sh("cat /data/f", box=two), "from one\n")
        one.delete(wait=True)
        two.delete(wait=True)
        three = self.create(volumes=mount)
        self.assertEqual(self.sh("cat /data/f", box=three), "from one\n")
        self.assertEqual([(v.volume_id, v.mount_path) for v in three.volumes], [(volume.id, "/data")])

    def test_a_part_of_a_volume(self):
        volume = self.volume()
        whole = self.create(volumes=[VolumeMount(volume_id=volume.name, mount_path="/all")])
        self.sh("mkdir -p /all/a /all/b; echo in a > /all/a/f", box=whole)
        part = self.create(volumes=[VolumeMount(volume_id=volume.id, mount_path="/mine", subpath="a")])
        self.assertEqual(self.sh("ls /mine; cat /mine/f", box=part), "f\nin a\n")

    def test_they_are_made_found_and_removed(self):
        volume = self.volume()
        self.assertEqual(client().volume.get(volume.name).id, volume.id)
        self.assertIn(volume.id, [v.id for v in client().volume.list()])
        with self.assertRaises(DaytonaError):
            client().volume.create(volume.name)
        client().volume.delete(volume)
        with self.assertRaises(DaytonaNotFoundError):
            client().volume.get(volume.name)
        word = name("made")
        self.addCleanup(self.drop, word)
        self.assertEqual(client().volume.get(word, create=True).name, word)

    def test_one_in_use_stays(self):
        volume = self.volume()
        self.create(volumes=[VolumeMount(volume_id=volume.id, mount_path="/data")])
        with self.assertRaises(DaytonaConflictError):
            client().volume.delete(volume)

    def test_what_cannot_be_mounted_is_refused(self):
        volume = self.volume()
        for mount in (
            VolumeMount(volume_id="no-such-volume", mount_path="/data"),
            VolumeMount(volume_id=volume.id, mount_path="relative"),
            VolumeMount(volume_id=volume.id, mount_path="/"),
            VolumeMount(volume_id=volume.id, mount_path="/data", subpath="../../etc"),
        ):
            with self.assertRaises(DaytonaError, msg=str(mount)):
                self.create(volumes=[mount])

    def test_another_tenants_volume_is_not_there(self):
        volume = self.volume()
        other = stranger()
        with self.assertRaises(DaytonaNotFoundError):
            other.volume.get(volume.name)
        self.assertEqual([v.id for v in other.volume.list() if v.id == volume.id], [])
        with self.assertRaises(DaytonaError):
            other.create(CreateSandboxFromSnapshotParams(volumes=[VolumeMount(volume_id=volume.id, mount_path="/d")]))


class Secrets(Case):
    def secret(self, **more):
        made = client().secret.create(CreateSecretParams(name=name("SECRET").replace("-", "_").upper(), value="s3cr3t-canary", **more))
        self.addCleanup(self.drop, made.id)
        return made

    @staticmethod
    def drop(ident):
        try:
            client().secret.delete(ident)
        except Exception as gone:  # noqa: BLE001 - see world.refused
            if getattr(gone, "status", 404) != 404:
                raise

    def test_a_secret_is_kept_and_never_shown(self):
        made = self.secret(description="for tests", hosts=["api.example.com"])
        for seen in (made, client().secret.get(made.id)):
            self.assertEqual((seen.name, seen.description, seen.hosts), (made.name, "for tests", ["api.example.com"]))
            self.assertNotIn("s3cr3t-canary", seen.to_json() if hasattr(seen, "to_json") else str(seen))

    def test_it_is_changed_listed_and_removed(self):
        made = self.secret()
        changed = client().secret.update(made.id, UpdateSecretParams(value="other", description="new words"))
        self.assertEqual((changed.id, changed.description), (made.id, "new words"))
        found = client().secret.list(name=made.name)
        self.assertEqual([s.id for s in found.items], [made.id])
        client().secret.delete(made.id)
        with refused(404):
            client().secret.get(made.id)

    def test_pages(self):
        made = {self.secret().id for _ in range(3)}
        found, cursor = set(), None
        while True:
            page = client().secret.list(cursor=cursor, limit=1)
            found |= {s.id for s in page.items}
            cursor = page.next_cursor
            if not cursor:
                break
        self.assertLessEqual(made, found)

    def test_a_name_is_taken_once_and_bad_ones_never(self):
        made = self.secret()
        with refused(409):
            client().secret.create(CreateSecretParams(name=made.name, value="x"))
        with refused(404):
            stranger().secret.get(made.id)

"""`Volume`: content by its own API and inside sandboxes, shared, and outliving them."""

import io
import os
import uuid

from e2b import Sandbox, Volume, VolumeFileType, VolumeNotFoundException, VolumePathNotFoundException
from world import Case, until


class Volumes(Case):
    def volume(self):
        made = Volume.create("vol-" + uuid.uuid4().hex[:10])
        self.addCleanup(Volume.destroy, made.volume_id)
        return made

    def test_a_volume_is_found_and_destroyed(self):
        made = self.volume()
        self.assertIn((made.volume_id, made.name), [(info.volume_id, info.name) for info in Volume.list()])
        info = Volume.get_info(made.volume_id)
        self.assertEqual((info.name, bool(info.token)), (made.name, True))
        self.assertEqual(Volume.connect(made.volume_id).name, made.name)
        self.assertTrue(Volume.destroy(made.volume_id))
        self.assertFalse(Volume.destroy(made.volume_id))
        with self.assertRaises(VolumeNotFoundException):
            Volume.get_info(made.volume_id)
        with self.assertRaises(VolumeNotFoundException):
            Volume.connect(made.volume_id)

    def test_files_are_read_as_they_were_written(self):
        volume = self.volume()
        every = bytes(range(256)) * 1000
        stat = volume.write_file("/a/ü.bin", every, uid=1000, gid=1000, mode=0o640, force=True)
        self.assertEqual((stat.name, stat.path, stat.size, stat.mode & 0o777, stat.uid), ("ü.bin", "/a/ü.bin", len(every), 0o640, 1000))
        self.assertEqual(bytes(volume.read_file("/a/ü.bin", format="bytes")), every)
        volume.write_file("/text", "línea", force=True)
        self.assertEqual(volume.read_file("/text"), "línea")
        volume.write_file("/io", io.BytesIO(b"x" * 3_000_000))
        self.assertEqual(sum(len(piece) for piece in volume.read_file("/io", format="stream")), 3_000_000)
        volume.write_file("/empty", "")
        self.assertEqual((volume.read_file("/empty"), volume.get_info("/empty").size), ("", 0))

    def test_folders_are_made_listed_changed_and_removed(self):
        volume = self.volume()
        made = volume.make_dir("/d/e", mode=0o750, force=True)
        self.assertEqual((made.type, made.mode & 0o777), (VolumeFileType.DIRECTORY, 0o750))
        volume.write_file("/d/e/f", "x")
        self.assertEqual([entry.path for entry in volume.list("/d")], ["/d/e"])
        self.assertEqual(sorted(entry.path for entry in volume.list("/", depth=3)), ["/d", "/d/e", "/d/e/f"])
        changed = volume.update_metadata("/d/e/f", mode=0o600, uid=1000, gid=1000)
        self.assertEqual((changed.mode & 0o777, changed.uid, changed.gid), (0o600, 1000, 1000))
        self.assertTrue(volume.exists("/d/e/f"))
        volume.remove("/d/e/f")
        self.assertFalse(volume.exists("/d/e/f"))

    def test_what_is_missing_is_not_found(self):
        volume = self.volume()
        for call in (
            lambda: volume.read_file("/missing"),
            lambda: volume.list("/missing"),
            lambda: volume.get_info("/missing"),
            lambda: volume.update_metadata("/missing", mode=0o600),
            lambda: volume.remove("/missing"),
        ):
            with self.assertRaises(VolumePathNotFoundException):
                call()

    def test_two_sandboxes_share_one_and_it_outlives_them(self):
        volume = self.volume()
        volume.write_file("/from-outside", "outside", uid=1000, gid=1000)
        one = self.sandbox(volume_mounts={"/mnt/data": volume})
        two = self.sandbox(volume_mounts={"/data": volume.name})
        self.assertEqual(one.files.read("/mnt/data/from-outside"), "outside")
        one.commands.run("echo one > /mnt/data/by-one")
        self.assertEqual(two.commands.run("cat /data/by-one").stdout, "one\n")
        two.commands.run("echo two >> /data/by-one && mkdir /data/d && ln -s by-one /data/link")
        self.assertEqual(volume.read_file("/by-one"), "one\ntwo\n")
        self.assertEqual(volume.get_info("/link").type, VolumeFileType.SYMLINK)
        self.assertEqual(one.get_info().volume_mounts, [{"name": volume.name, "path": "/mnt/data"}])
        one.kill()
        two.kill()
        self.assertEqual(volume.read_file("/by-one"), "one\ntwo\n")
        self.assertEqual(self.sandbox(volume_mounts={"/again": volume}).files.read("/again/by-one"), "one\ntwo\n")

    def test_a_mount_survives_a_pause(self):
        volume = self.volume()
        box = self.sandbox(volume_mounts={"/mnt/data": volume})
        box.pause()
        volume.write_file("/while-asleep", "news")
        again = box.connect()
        until("the news is there", lambda: again.files.exists("/mnt/data/while-asleep"))
        again.commands.run("echo back > /mnt/data/back")
        self.assertEqual(volume.read_file("/back"), "back\n")

    def test_a_volume_that_is_not_there_is_not_mounted(self):
        with self.assertRaises(Exception):
            self.sandbox(volume_mounts={"/mnt/data": "no-such-volume-" + uuid.uuid4().hex[:6]})

    def test_the_token_of_another_volume_opens_nothing(self):
        mine, other = self.volume(), self.volume()
        mine.write_file("/secret", "mine")
        with self.assertRaises(Exception) as caught:
            mine.read_file("/secret", token=other.token)
        self.assertNotIsInstance(caught.exception, AssertionError)
        with self.assertRaises(Exception):
            mine.write_file("/secret", "theirs", token="nonsense")
        self.assertEqual(mine.read_file("/secret"), "mine")
        self.assertNotIn(mine.volume_id, [info.volume_id for info in Volume.list(api_key=os.environ["E2B_OTHER_KEY"])])

    def test_a_path_never_leads_out_of_the_volume(self):
        volume = self.volume()
        box = self.sandbox(volume_mounts={"/mnt/data": volume})
        box.commands.run("ln -s /etc/passwd /mnt/data/out && ln -s / /mnt/data/root", user="root")
        for path in ("/out", "/root/etc/passwd", "/../../../etc/passwd", "../../etc/passwd"):
            with self.assertRaises(Exception, msg=path):
                said = volume.read_file(path)
                self.assertNotIn("root:", said)
                raise ValueError("it gave something else")

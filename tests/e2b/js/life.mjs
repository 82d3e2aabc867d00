// Sleep and copies.

import { SandboxError, SandboxNotFoundError } from 'e2b'
import { assert, count, counted, describe, later, PlainSandbox, preview, rejects, sandbox, serve, test, until, word } from './world.mjs'

export default () => {
  describe('lives', { concurrency: 3 }, () => {
    test('processes stand still and go on', async (t) => {
      const box = await sandbox(t)
      const [pid] = await count(box)
      assert.deepEqual([await box.pause(), await box.pause()], [true, false])
      assert.equal(await box.isRunning(), false)
      assert.equal((await box.getInfo()).state, 'paused')
      await rejects(box.commands.run('true'), SandboxNotFoundError)
      const again = await PlainSandbox.connect(box.sandboxId)
      const first = await counted(again)
      assert.equal(first[0], pid)
      await until('it counts on', async () => (await counted(again))[1] > first[1])
      await again.betaPause()
      assert.equal((await PlainSandbox.getInfo(box.sandboxId)).state, 'paused')
      await box.connect()
      await PlainSandbox.betaPause(box.sandboxId)
      assert.equal((await box.getInfo()).state, 'paused')
    })

    test('a pause of files alone begins anew with them', async (t) => {
      const box = await sandbox(t)
      await count(box)
      await box.files.write('/home/user/kept', 'kept')
      await PlainSandbox.pause(box.sandboxId, { keepMemory: false })
      const again = await box.connect()
      assert.equal(await again.files.read('/home/user/kept'), 'kept')
      assert.equal((await again.commands.run("ps -eo args | grep -c '[c]ounter.py' || true")).stdout.trim(), '0')
    })

    test('at its end it is paused, and traffic wakes it', async (t) => {
      const box = await sandbox(t, { timeoutMs: 3000, lifecycle: { onTimeout: 'pause', autoResume: true } })
      await box.files.write('/tmp/www/index.html', 'woken')
      await serve(box, 8000, '/tmp/www')
      await until('it is paused', async () => (await box.getInfo()).state === 'paused')
      assert.deepEqual(await preview(box, 8000), { status: 200, body: 'woken' })
      assert.equal((await box.getInfo()).state, 'running')
    })

    test('copies of a snapshot go their own ways', async (t) => {
      const box = await sandbox(t)
      const [pid] = await count(box)
      await box.files.write('/tmp/state', 'common')
      const name = word('snap')
      const made = await box.createSnapshot({ name })
      const other = await PlainSandbox.createSnapshot(box.sandboxId)
      await box.files.write('/tmp/state', 'changed')
      const [one, two] = await Promise.all([sandbox(t, made.snapshotId), sandbox(t, made.snapshotId)])
      await one.files.write('/tmp/state', 'of one')
      assert.equal(await two.files.read('/tmp/state'), 'common')
      assert.equal((await counted(two))[0], pid)
      const pages = box.listSnapshots({ limit: 1 })
      const seen = []
      while (pages.hasNext) seen.push(...(await pages.nextItems()).map((info) => info.snapshotId))
      assert.deepEqual(seen.sort(), [made.snapshotId, other.snapshotId].sort())
      const named = await PlainSandbox.listSnapshots({ name }).nextItems()
      assert.deepEqual(named.map((info) => info.snapshotId), [made.snapshotId])
      for (const { snapshotId } of [made, other]) {
        assert.equal(await PlainSandbox.deleteSnapshot(snapshotId), true)
        assert.equal(await PlainSandbox.deleteSnapshot(snapshotId), false)
      }
      await rejects(PlainSandbox.create(made.snapshotId), SandboxError)
    })

    test('forks have the memory and their own lives', async (t) => {
      const box = await sandbox(t)
      const [pid] = await count(box)
      await box.files.write('/tmp/state', 'common')
      const forks = [...(await box.fork({ count: 2 })), ...(await PlainSandbox.fork(box.sandboxId))]
      for (const fork of forks) {
        assert.ok(fork instanceof PlainSandbox, String(fork))
        later(t, () => fork.kill())
        assert.equal((await counted(fork))[0], pid)
      }
      await forks[0].files.write('/tmp/state', 'of the first')
      assert.deepEqual([await box.files.read('/tmp/state'), await forks[1].files.read('/tmp/state')], ['common', 'common'])
    })
  })
}

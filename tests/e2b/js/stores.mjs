// Volumes and secrets.

import { Secret, SecretError, SecretNotFoundError, Volume, VolumeFileType, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'
import { assert, describe, later, rejects, sandbox, test, word } from './world.mjs'

async function volume(t) {
  const made = await Volume.create(word('jv'))
  later(t, () => Volume.destroy(made.volumeId))
  return made
}

export default () => {
  describe('stores', { concurrency: 2 }, () => {
    test('a volume is found and destroyed', async (t) => {
      const made = await volume(t)
      assert.ok((await Volume.list()).some((info) => info.volumeId === made.volumeId && info.name === made.name))
      assert.equal((await Volume.getInfo(made.volumeId)).name, made.name)
      assert.equal((await Volume.connect(made.volumeId)).name, made.name)
      assert.deepEqual([await Volume.destroy(made.volumeId), await Volume.destroy(made.volumeId)], [true, false])
      await rejects(Volume.getInfo(made.volumeId), VolumeNotFoundError)
    })

    test('content is written, listed, changed and removed', async (t) => {
      const made = await volume(t)
      const folder = await made.makeDir('/d/e', { mode: 0o750, force: true })
      assert.deepEqual([folder.type, folder.mode & 0o777], [VolumeFileType.DIRECTORY, 0o750])
      await made.writeFile('/d/e/ü', 'línea', { uid: 1000, gid: 1000, mode: 0o640 })
      assert.equal(await made.readFile('/d/e/ü'), 'línea')
      assert.equal((await made.readFile('/d/e/ü', { format: 'bytes' })).length, 6)
      let size = 0
      for await (const piece of await made.readFile('/d/e/ü', { format: 'stream' })) size += piece.length
      assert.equal(size, 6)
      assert.deepEqual((await made.list('/', { depth: 3 })).map((entry) => entry.path).sort(), ['/d', '/d/e', '/d/e/ü'])
      assert.equal((await made.updateMetadata('/d/e/ü', { mode: 0o600 })).mode & 0o777, 0o600)
      assert.equal((await made.getInfo('/d/e/ü')).uid, 1000)
      await made.remove('/d/e/ü')
      assert.equal(await made.exists('/d/e/ü'), false)
      await rejects(made.readFile('/d/e/ü'), VolumePathNotFoundError)
    })

    test('two sandboxes share one', async (t) => {
      const made = await volume(t)
      const one = await sandbox(t, { volumeMounts: { '/mnt/data': made } })
      const two = await sandbox(t, { volumeMounts: { '/data': made.name } })
      await one.commands.run('echo one > /mnt/data/x')
      await two.commands.run('echo two >> /data/x')
      assert.equal(await made.readFile('/x'), 'one\ntwo\n')
      await Promise.all([one.kill(), two.kill()])
      assert.equal(await made.readFile('/x'), 'one\ntwo\n')
    })

    test('a secret from its making to its end', async (t) => {
      const name = word('js')
      const made = await Secret.create(name, 'canary-of-a-value', { metadata: { a: 'b' } })
      later(t, () => Secret.destroy(name))
      assert.deepEqual((await Secret.getInfo(name)).metadata, { a: 'b' })
      await rejects(Secret.create(name, 'again'), SecretError)
      assert.ok((await Secret.update(name, 'v2')).version !== made.version)
      const pages = Secret.list({ limit: 50 })
      const seen = []
      while (pages.hasNext) seen.push(...(await pages.nextItems()).map((info) => info.name))
      assert.ok(seen.includes(name))
      assert.equal(await Secret.exists(name), true)
      assert.deepEqual([await Secret.destroy(name), await Secret.destroy(name)], [true, false])
      await rejects(Secret.getInfo(name), SecretNotFoundError)
      assert.equal(Secret.iamToken({ audience: 'x', tokenType: 'JWT-SVID' }).audience, 'x')
    })
  })
}

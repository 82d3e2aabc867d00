// Files, folders, watches.

import { createHash } from 'node:crypto'
import { AuthenticationError, FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError, SandboxError } from 'e2b'
import { assert, PlainSandbox, rejects, shared, sleep, test, until } from './world.mjs'

const sha = (data) => createHash('sha256').update(data).digest('hex')

export default () => {
  shared('files', PlainSandbox, (box) => {
    const files = () => box().files
    const sh = async (line) => (await box().commands.run(line)).stdout

    test('text is read as it was written', async () => {
      const info = await files().write('/tmp/a/b.txt', 'línea\r\n日本')
      assert.deepEqual([info.name, info.path, info.type], ['b.txt', '/tmp/a/b.txt', FileType.FILE])
      assert.equal(await files().read('/tmp/a/b.txt'), 'línea\r\n日本')
      assert.equal(await sh("stat -c '%U %a' /tmp/a/b.txt"), 'user 644\n')
    })

    test('files are written and read anywhere and are the user\'s', async () => {
      await files().write('/opt/js/tool', 'x')
      assert.equal(await sh('stat -c %U:%G /opt/js /opt/js/tool'), 'user:user\nuser:user\n')
      await box().commands.run('umask 077; printf secret > /root/secret', { user: 'root' })
      assert.equal(await files().read('/root/secret'), 'secret')
      await files().rename('/root/secret', '/opt/js/secret')
      assert.equal((await files().getInfo('/opt/js/secret')).owner, 'root')
      await files().remove('/opt/js')
      assert.equal(await sh('test -e /opt/js || id -un'), 'user\n')
    })

    test('every byte survives in every form', async () => {
      const every = Uint8Array.from({ length: 65536 }, (_, n) => n % 256)
      await files().write('/tmp/bytes', every.buffer)
      assert.deepEqual(Buffer.from(await files().read('/tmp/bytes', { format: 'bytes' })), Buffer.from(every))
      assert.equal((await files().read('/tmp/bytes', { format: 'blob' })).size, 65536)
      await files().write('/tmp/blob', new Blob([every]))
      assert.match(await sh('sha256sum /tmp/blob'), new RegExp(sha(every)))
      const pieces = []
      for await (const piece of await files().read('/tmp/bytes', { format: 'stream' })) pieces.push(piece)
      assert.equal(sha(Buffer.concat(pieces)), sha(every))
    })

    test('an empty file is a file', async () => {
      await files().write('/tmp/empty', '')
      assert.equal(await files().read('/tmp/empty'), '')
      assert.equal((await files().read('/tmp/empty', { format: 'bytes' })).length, 0)
      assert.equal((await files().getInfo('/tmp/empty')).size, 0)
    })

    test('names of every script are names', async () => {
      for (const name of ['ein Name', '日本語 🎉', 'a\'b"c', '100%&+?#=']) {
        await files().write(`/tmp/names/${name}`, name)
        assert.equal(await files().read(`/tmp/names/${name}`), name)
      }
      assert.equal((await files().list('/tmp/names')).length, 4)
    })

    test('a hundred megabytes go in and come out as a stream', async () => {
      const piece = new Uint8Array(1 << 20).fill(7)
      let sent = 0
      const stream = new ReadableStream({
        pull(controller) {
          if (sent++ < 100) controller.enqueue(piece)
          else controller.close()
        },
      })
      await files().write('/tmp/large', stream, { useOctetStream: true })
      assert.equal((await sh('stat -c %s /tmp/large')).trim(), String(100 << 20))
      let size = 0
      for await (const got of await files().read('/tmp/large', { format: 'stream' })) size += got.length
      assert.equal(size, 100 << 20)
      await files().remove('/tmp/large')
    })

    test('a thousand files are written and listed', async () => {
      const entries = Array.from({ length: 1000 }, (_, n) => ({ path: `/tmp/many/${n}`, data: `content ${n}` }))
      assert.equal((await files().write(entries)).length, 1000)
      assert.equal((await files().writeFiles(entries.slice(0, 3))).length, 3)
      assert.equal((await files().list('/tmp/many')).length, 1000)
      assert.equal((await sh('cat /tmp/many/* | wc -c')).trim(), String(entries.reduce((sum, e) => sum + e.data.length, 0)))
    })

    test('compression and metadata on the way', async () => {
      const text = 'again and again '.repeat(20_000)
      const info = await files().write('/tmp/zipped', text, { gzip: true, metadata: { Author: 'me' } })
      assert.deepEqual(info.metadata, { author: 'me' })
      assert.equal(await files().read('/tmp/zipped', { gzip: true }), text)
      assert.deepEqual((await files().getInfo('/tmp/zipped')).metadata, { author: 'me' })
    })

    test('folders are made, listed, moved and removed', async () => {
      assert.deepEqual([await files().makeDir('/tmp/d/e'), await files().makeDir('/tmp/d/e')], [true, false])
      await files().write('/tmp/d/e/f', '12345')
      const deep = await files().list('/tmp/d', { depth: 2 })
      assert.deepEqual(deep.map((entry) => entry.path).sort(), ['/tmp/d/e', '/tmp/d/e/f'])
      const moved = await files().rename('/tmp/d/e', '/tmp/d/g/h')
      assert.deepEqual([moved.path, moved.type], ['/tmp/d/g/h', FileType.DIR])
      assert.deepEqual([await files().exists('/tmp/d/g/h/f'), await files().exists('/tmp/d/e')], [true, false])
      await files().remove('/tmp/d')
      assert.equal(await files().exists('/tmp/d'), false)
    })

    test('what is missing or of the wrong kind is refused', async () => {
      await files().write('/tmp/plain', 'x')
      await rejects(files().read('/tmp/missing'), FileNotFoundError)
      await rejects(files().list('/tmp/missing'), FileNotFoundError)
      await rejects(files().getInfo('/tmp/missing'), FileNotFoundError)
      await rejects(files().rename('/tmp/missing', '/tmp/x'), FileNotFoundError)
      await rejects(files().watchDir('/tmp/missing', () => {}), FileNotFoundError)
      await rejects(files().makeDir('/tmp/plain'), InvalidArgumentError)
      await rejects(files().read('/tmp'), SandboxError)
      await rejects(files().write('/tmp/whose', 'x', { user: 'nobody-of-that-name' }), AuthenticationError)
      assert.equal(await files().exists('/tmp/whose'), false)
    })

    test('events are told under load, and not after the end', async () => {
      await files().makeDir('/tmp/watched')
      const events = []
      const handle = await files().watchDir('/tmp/watched', (event) => void events.push(event), { recursive: true, includeEntry: true })
      await box().commands.run('for i in $(seq 1 500); do : > f$i; done; mkdir d; sleep 0.2; echo x > d/deep; rm f1', { cwd: '/tmp/watched' })
      const created = () => new Set(events.filter((e) => e.type === FilesystemEventType.CREATE).map((e) => e.name))
      await until('all are told', () => created().size >= 502 && created().has('d/deep'))
      await until('the end of one', () => events.some((e) => e.name === 'f1' && e.type === FilesystemEventType.REMOVE))
      assert.ok(events.some((e) => e.entry?.path === '/tmp/watched/f2'))
      await handle.stop()
      const told = events.length
      await files().write('/tmp/watched/after', 'x')
      await sleep(300)
      assert.equal(events.length, told)
    })
  })
}

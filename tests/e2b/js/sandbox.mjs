// Making, finding, ending, tokens and links.

import { getSignature, AuthenticationError, E2B, NotFoundError, SandboxError, SandboxNotFoundError, TimeoutError } from 'e2b'
import { assert, CodeSandbox, describe, later, PlainSandbox, preview, raw, rejects, sandbox, serve, shared, test, until, word } from './world.mjs'

const left = async (box) => ((await box.getInfo()).endAt - Date.now()) / 1000

export default () => {
  describe('sandboxes', { concurrency: 2 }, () => {
    test('a sandbox runs as the user with its environment', async (t) => {
      const box = await sandbox(t, { envs: { COLOUR: 'grün' } })
      assert.equal(await box.isRunning(), true)
      const { stdout } = await box.commands.run('echo "$(whoami)|$PWD|$COLOUR|$E2B_SANDBOX|$E2B_SANDBOX_ID"')
      assert.equal(stdout.trim(), `user|/home/user|grün|true|${box.sandboxId}`)
    })

    test('metadata is shown and found whatever it holds', async (t) => {
      const metadata = { 'a b&c=': 'ü%20+/?#', mark: word('m') }
      const box = await sandbox(t, { metadata })
      assert.deepEqual((await box.getInfo()).metadata, metadata)
      const found = await PlainSandbox.list({ query: { metadata } }).nextItems()
      assert.deepEqual(found.map((info) => info.sandboxId), [box.sandboxId])
    })

    test('kill ends it once, and all calls say so', async (t) => {
      const box = await sandbox(t)
      assert.deepEqual([await box.kill(), await box.kill(), await PlainSandbox.kill(box.sandboxId)], [true, false, false])
      assert.equal(await box.isRunning(), false)
      await rejects(box.commands.run('true'), SandboxNotFoundError)
      await rejects(box.files.read('/etc/hostname'), TimeoutError)
      await rejects(box.getInfo(), SandboxNotFoundError)
      await rejects(PlainSandbox.connect(box.sandboxId), SandboxNotFoundError)
      await rejects(PlainSandbox.setTimeout(box.sandboxId, 1000), SandboxNotFoundError)
      await rejects(PlainSandbox.getInfo(box.sandboxId), SandboxNotFoundError)
      await rejects(PlainSandbox.pause(box.sandboxId), SandboxNotFoundError)
      await rejects(PlainSandbox.getMetrics(box.sandboxId), SandboxNotFoundError)
    })

    test('a template that nobody made and a key that nobody has', async () => {
      await rejects(PlainSandbox.create('no-such-template-here'), SandboxError)
      await rejects(PlainSandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
    })

    test('lifetimes are set, lengthened by a connect and never shortened by one', async (t) => {
      const box = await sandbox(t, { timeoutMs: 300_000 })
      assert.ok(Math.abs((await left(box)) - 300) < 30)
      await box.setTimeout(1_000_000)
      assert.ok(Math.abs((await left(box)) - 1000) < 30)
      await box.connect({ timeoutMs: 10_000 })
      assert.ok(Math.abs((await left(box)) - 1000) < 30)
      await PlainSandbox.setTimeout(box.sandboxId, 60_000)
      assert.ok(Math.abs((await left(box)) - 60) < 30)
      const again = await PlainSandbox.connect(box.sandboxId, { timeoutMs: 500_000 })
      assert.ok(Math.abs((await left(again)) - 500) < 30)
    })

    test('a lifetime that is over ends it', async (t) => {
      const box = await sandbox(t, { timeoutMs: 1000 })
      await until('it is gone', async () => !(await box.isRunning()))
    })

    test('pages hold everything once, newest first', async (t) => {
      const metadata = { page: word('p') }
      const made = []
      for (let n = 0; n < 5; n++) made.push((await sandbox(t, { metadata })).sandboxId)
      const pages = PlainSandbox.list({ query: { metadata, state: ['running', 'paused'] }, limit: 2 })
      const seen = []
      while (pages.hasNext) seen.push(...(await pages.nextItems()).map((info) => info.sandboxId))
      assert.deepEqual(seen, [...made].reverse())
      const upward = await PlainSandbox.list({ query: { metadata }, order: 'asc', limit: 3 }).nextItems()
      assert.deepEqual(upward.map((info) => info.sandboxId), made.slice(0, 3))
    })

    test('killing in the middle of a command is told at once', async (t) => {
      const box = await sandbox(t)
      const handle = await box.commands.run('sleep 600', { background: true })
      const began = Date.now()
      await box.kill()
      await rejects(handle.wait(), TimeoutError)
      assert.ok(Date.now() - began < 40_000)
    })

    test('a client object needs no environment, and another tenant sees nothing', async (t) => {
      const mine = await sandbox(t)
      const client = new E2B({ apiKey: process.env.E2B_OTHER_KEY, apiUrl: process.env.E2B_API_URL, sandboxUrl: process.env.E2B_SANDBOX_URL })
      const theirs = await client.Sandbox.create()
      later(t, () => theirs.kill())
      assert.equal((await theirs.commands.run('echo bound')).stdout, 'bound\n')
      await rejects(client.Sandbox.connect(mine.sandboxId), SandboxNotFoundError)
      assert.equal(await client.Sandbox.kill(mine.sandboxId), false)
      assert.equal(await mine.isRunning(), true)
    })

    test('ports may be closed to the public', async (t) => {
      const box = await sandbox(t, CodeSandbox, { network: { allowPublicTraffic: false } })
      await box.files.write('/tmp/www/index.html', 'private')
      await serve(box, 8000, '/tmp/www')
      assert.equal((await preview(box, 8000)).status, 403)
      const said = await preview(box, 8000, '/', { 'e2b-traffic-access-token': box.trafficAccessToken })
      assert.deepEqual(said, { status: 200, body: 'private' })
      assert.equal((await box.runCode('40 + 2')).text, '42')
    })
  })

  shared('hosts and links', PlainSandbox, (box) => {
    test('a server inside is reached by its host, a closed port says so', async () => {
      await box().files.write('/tmp/www/index.html', 'served')
      await serve(box(), 8000, '/tmp/www')
      assert.deepEqual(await preview(box(), 8000), { status: 200, body: 'served' })
      const closed = await preview(box(), 7999)
      assert.equal(closed.status, 502)
      assert.match(closed.body, /port is not open/)
      assert.equal(box().getMcpUrl(), `https://${box().getHost(50005)}/mcp`)
    })

    test('a signed link reads its file until it is too old', async () => {
      await box().files.write('/tmp/ü link', 'linked')
      const link = await box().downloadUrl('/tmp/ü link', { useSignatureExpiration: 5 })
      assert.equal((await raw('GET', link)).body, 'linked')
      const old = await until('it is too old', async () => {
        const said = await raw('GET', link)
        return said.status !== 200 && said
      })
      assert.equal(old.status, 401)
      assert.match(old.body, /signature is already expired/)
      const made = await getSignature({ path: '/tmp/ü link', operation: 'read', user: 'root', envdAccessToken: 'wrong' })
      assert.equal((await raw('GET', `${process.env.E2B_SANDBOX_URL}/files?path=x&signature=${encodeURIComponent(made.signature)}`)).status, 401)
    })

    test('a signed upload writes there', async () => {
      const link = await box().uploadUrl('/tmp/up/loaded')
      const form = '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nuploaded\r\n--b--\r\n'
      assert.equal((await raw('POST', link, { 'content-type': 'multipart/form-data; boundary=b' }, form)).status, 200)
      assert.equal(await box().files.read('/tmp/up/loaded'), 'uploaded')
    })

    test('metrics come within seconds', async () => {
      const found = await until('there are metrics', async () => {
        const metrics = await box().getMetrics()
        return metrics.length > 0 && metrics
      })
      const last = found.at(-1)
      assert.ok(last.memUsed > 0 && last.memTotal >= last.memUsed && last.diskTotal > 0)
      assert.equal(last.cpuCount, (await PlainSandbox.getInfo(box().sandboxId)).cpuCount)
      const hour = 3_600_000
      assert.deepEqual(await PlainSandbox.getMetrics(box().sandboxId, { start: new Date(Date.now() + hour), end: new Date(Date.now() + 2 * hour) }), [])
    })

    test('a token of mcp is a file of root', async () => {
      await box().files.write('/etc/mcp-gateway/.token', 'the-token', { user: 'root' })
      assert.equal(await box().getMcpToken(), 'the-token')
    })
  })
}

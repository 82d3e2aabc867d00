// The life of a sandbox, snapshots, volumes, secrets, previews.
import assert from 'node:assert/strict'
import { mkdtemp, mkdir, rm, writeFile } from 'node:fs/promises'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { client, create, name, refused, sdk, sh, sleep, until } from './world.mjs'

const stranger = () => new sdk.Daytona({ apiKey: process.env.DAYTONA_OTHER_KEY, apiUrl: process.env.DAYTONA_API_URL })

// Node does not resolve names below localhost everywhere: ask the server itself.
const fetchAs = (url, headers = {}) =>
  new Promise((done, fail) => {
    const [to, api] = [new URL(url), new URL(process.env.DAYTONA_API_URL)]
    const ask = http.get({ host: api.hostname, port: api.port, path: to.pathname + to.search, headers: { ...headers, host: to.host } }, (answer) => {
      let body = ''
      answer.on('data', (d) => (body += d)).on('end', () => done({ status: answer.statusCode, body }))
    })
    ask.on('error', fail)
  })

test('a fresh sandbox runs with the vendor’s defaults', async () => {
  const box = await create({ labels: { team: 'ünï' }, envVars: { G: 'hello $USER' } })
  assert.deepEqual([box.state, box.autoStopInterval, box.autoArchiveInterval, box.autoDeleteInterval, box.user], ['started', 15, 10080, -1, 'daytona'])
  assert.equal(await sh(box, 'echo "$G"'), 'hello $USER\n')
  assert.equal((await client().get(box.name)).id, box.id)
})

test('stop keeps files, start brings them back', async () => {
  const box = await create()
  await sh(box, 'echo kept > ~/f')
  await box.stop()
  assert.equal(box.state, 'stopped')
  await refused(box.process.executeCommand('true'))
  await refused(box.stop(), sdk.DaytonaBadRequestError)
  await box.start()
  assert.equal(await sh(box, 'cat ~/f'), 'kept\n')
})

test('pause keeps processes', async () => {
  const box = await create()
  await sh(box, "nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.05; done' >/dev/null 2>&1 &")
  await until('it counts', async () => (await box.process.executeCommand('cat /tmp/n')).exitCode === 0)
  await box.pause()
  assert.equal(box.state, 'paused')
  await box.start()
  const before = Number(await sh(box, 'cat /tmp/n'))
  await until('it counts on', async () => Number(await sh(box, 'cat /tmp/n')) > before)
})

test('archive and back', async () => {
  const box = await create()
  await sh(box, 'echo far > ~/f')
  await refused(box.archive(), sdk.DaytonaBadRequestError)
  await box.stop()
  await box.archive()
  await until('it is archived', async () => (await client().get(box.id)).state === 'archived')
  await box.start()
  assert.equal(await sh(box, 'cat ~/f'), 'far\n')
})

test('delete is the end', async () => {
  const box = await create()
  await box.delete(60, true)
  await refused(client().get(box.id), sdk.DaytonaNotFoundError)
})

test('settings are set and seen', async () => {
  const box = await create({ autoStopInterval: 30, ephemeral: false })
  await box.setAutostopInterval(0)
  await box.setAutoArchiveInterval(90)
  await box.setAutoDeleteInterval(45)
  await box.setLabels({ b: '2' })
  await box.setTtl(60)
  await box.refreshActivity()
  await box.refreshData()
  assert.deepEqual([box.autoStopInterval, box.autoArchiveInterval, box.autoDeleteInterval, box.labels.b], [0, 90, 45, '2'])
  assert.ok(box.autoDestroyAt)
  await box.setAutoPauseInterval(10)
  await box.refreshData()
  assert.equal(box.autoPauseInterval, 10)
})

test('a resize gives more', async () => {
  const box = await create()
  const { cpu, memory } = box
  await box.resize({ cpu: cpu + 1, memory: memory + 1 })
  assert.deepEqual([(await client().get(box.id)).cpu, (await client().get(box.id)).memory], [cpu + 1, memory + 1])
  await refused(box.resize({ cpu }), sdk.DaytonaBadRequestError)
})

test('a fork goes its own way', async () => {
  const box = await create()
  await sh(box, 'echo before > ~/f')
  const fork = await box.fork({ name: name('fork') })
  assert.equal(await sh(fork, 'cat ~/f; echo mine > ~/f'), 'before\n')
  assert.equal(await sh(box, 'cat ~/f'), 'before\n')
  await fork.delete()
})

test('environment is changed while it runs', async () => {
  const box = await create({ envVars: { OLD: '1' } })
  await box.updateEnv({ NEW: 'n' }, { unset: ['OLD'] })
  assert.equal(await sh(box, 'echo "$NEW[$OLD]"'), 'n[]\n')
})

test('lists by label and state, all pages', async () => {
  const mark = name('m')
  const boxes = await Promise.all([0, 1, 2].map((n) => create({ labels: { mark, n: String(n) } })))
  await boxes[0].stop()
  const ids = async (query) => {
    const found = []
    for await (const box of client().list({ labels: { mark }, ...query })) found.push(box.id)
    return found.sort()
  }
  assert.deepEqual(await ids({ limit: 1 }), boxes.map((b) => b.id).sort())
  assert.deepEqual(await ids({ states: ['stopped'] }), [boxes[0].id])
  const other = []
  for await (const box of stranger().list({ labels: { mark } })) other.push(box.id)
  assert.deepEqual(other, [])
  await refused(stranger().get(boxes[1].id), sdk.DaytonaNotFoundError)
})

test('a snapshot from declared steps and from local files', async () => {
  const here = await mkdtemp(join(tmpdir(), 'atoll-'))
  try {
    await mkdir(join(here, 'app'))
    await writeFile(join(here, 'app', 'one.txt'), 'first file')
    await writeFile(join(here, 'two.txt'), 'second file')
    const image = sdk.Image.base('debian')
      .addLocalDir(join(here, 'app'), '/srv/app')
      .addLocalFile(join(here, 'two.txt'), '/srv/two.txt')
      .runCommands('echo begun; sleep 2.5; cat /srv/app/one.txt > /built') // the SDK looks once a second
      .env({ STAGE: 'x y' })
    const word = name('snap')
    let logs = ''
    const made = await client().snapshot.create({ name: word, image, resources: { cpu: 1, memory: 1, disk: 3 } }, { onLogs: (text) => (logs += text) })
    assert.equal(made.state, 'active')
    assert.match(logs, /begun/)
    const box = await create({ snapshot: word })
    assert.equal(await sh(box, 'cat /built /srv/two.txt; echo "$STAGE"'), 'first filesecond filex y\n')
    assert.equal((await client().snapshot.get(word)).name, word)
    assert.ok((await client().snapshot.list(1, 100)).items.some((s) => s.name === word))
    await refused(client().snapshot.activate(made), sdk.DaytonaBadRequestError)
    await client().snapshot.delete(made)
    await refused(client().snapshot.get(word), sdk.DaytonaNotFoundError)
  } finally {
    await rm(here, { recursive: true })
  }
})

test('a build that fails says where', async () => {
  const image = sdk.Image.base('debian').runCommands('echo no; exit 9')
  await assert.rejects(client().snapshot.create({ name: name('bad'), image }), /9/)
})

test('a sandbox straight from an image', async () => {
  const box = await create({ image: sdk.Image.base('debian').runCommands('echo direct > /direct') }, { timeout: 120 })
  assert.equal(await sh(box, 'cat /direct'), 'direct\n')
})

test('a snapshot of a sandbox', async () => {
  const box = await create()
  await sh(box, 'echo moment > ~/f')
  const word = name('moment')
  await box.createSnapshot(word)
  const made = await create({ snapshot: word })
  assert.equal(await sh(made, 'cat ~/f'), 'moment\n')
  await client().snapshot.delete(await client().snapshot.get(word))
})

test('a volume outlives its sandboxes', async () => {
  const volume = await client().volume.create(name('vol'))
  const mount = { volumes: [{ volumeId: volume.id, mountPath: '/data' }] }
  const one = await create(mount)
  await sh(one, 'echo v > /data/f')
  await refused(client().volume.delete(volume), sdk.DaytonaConflictError)
  await one.delete(60, true)
  const two = await create(mount)
  assert.equal(await sh(two, 'cat /data/f'), 'v\n')
  await two.delete(60, true)
  assert.equal((await client().volume.get(volume.name)).id, volume.id)
  await client().volume.delete(volume)
  assert.ok(!(await client().volume.list()).some((v) => v.id === volume.id))
  const made = await client().volume.get(name('made'), true)
  await client().volume.delete(made)
})

test('a preview by token, by signed link, in public', async () => {
  const box = await create()
  await box.fs.uploadFile(Buffer.from('inside'), '/tmp/w/index.html')
  await sh(box, 'cd /tmp/w && (nohup python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)')
  await until('it listens', async () => (await box.process.executeCommand('curl -s http://127.0.0.1:8000/')).result === 'inside')
  const link = await box.getPreviewLink(8000)
  assert.deepEqual(await fetchAs(link.url, { 'x-daytona-preview-token': link.token }), { status: 200, body: 'inside' })
  assert.ok([401, 403].includes((await fetchAs(link.url)).status))
  const signed = await box.getSignedPreviewUrl(8000, 60)
  assert.equal((await fetchAs(signed.url)).body, 'inside')
  await box.expireSignedPreviewUrl(8000, signed.token)
  assert.notEqual((await fetchAs(signed.url)).status, 200)
})

test('the network is closed and opened', async () => {
  const box = await create({ networkBlockAll: true })
  const code = async () => (await box.process.executeCommand(`curl -s -o /dev/null -m 30 -w '%{http_code}' ${process.env.DAYTONA_SITE}`)).result
  assert.equal(await code(), '000')
  await box.updateNetworkSettings({ networkBlockAll: false })
  assert.equal(await code(), '200')
})

test('a gpu that is not there, a snapshot that is not there, a key that is none', async () => {
  await refused(client().create({ image: 'debian', resources: { gpu: 1 }, ephemeral: true }), sdk.DaytonaBadRequestError)
  await assert.rejects(client().create({ snapshot: 'no-such-snapshot' }), /no-such-snapshot/)
  await refused(new sdk.Daytona({ apiKey: `dtn_${'0'.repeat(40)}` }).get('x'), sdk.DaytonaAuthenticationError)
})

test('a wait ends with the event', async () => {
  const box = await create()
  await box.stop()
  const other = new sdk.Daytona()
  const seen = await other.get(box.id)
  await sleep(300)
  const late = []
  for (let n = 0; n < 6; n++) {
    const wait = seen.waitUntilStarted(60).then(() => Date.now())
    await sleep(100)
    await box.start()
    const at = Date.now()
    late.push((await wait) - at)
    // A busy machine may be late once or twice.
    if (late.at(-1) < 400) break
    await box.stop()
    await seen.refreshData()
  }
  assert.ok(Math.min(...late) < 400, `waits ended ${late} ms after the change`)
})

test('secrets are kept and never shown', async () => {
  const made = await client().secret.create({ name: name('S').replaceAll('-', '_'), value: 's3cr3t-canary', hosts: ['api.example.com'] })
  const seen = await client().secret.get(made.id)
  assert.deepEqual(seen.hosts, ['api.example.com'])
  assert.ok(!JSON.stringify([made, seen]).includes('s3cr3t-canary'))
  await client().secret.delete(made.id)
  await refused(client().secret.get(made.id), sdk.DaytonaNotFoundError)
})

test('numbers about now', async () => {
  const now = await (await create()).getMetricsLatest()
  assert.ok(now.memTotal > 0 && now.diskTotal > 0 && now.cpuCount > 0, JSON.stringify(now))
})

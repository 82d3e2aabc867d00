// Templates.

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { BuildError, defaultBuildLogger, SandboxError, Template, waitForFile, waitForPort, waitForProcess, waitForTimeout, waitForURL } from 'e2b'
import { assert, describe, later, PlainSandbox, rejects, sandbox, test, until, word } from './world.mjs'

async function context(t, files) {
  const folder = await mkdtemp(join(tmpdir(), 'e2b-context-'))
  later(t, () => rm(folder, { recursive: true }))
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text)
  return folder
}

const named = new Set()

async function build(t, template, name = word('jt'), options = {}) {
  // A name is deleted once, with all its tags, when no sandbox is left of it.
  const [bare] = name.split(':')
  if (!named.has(bare)) later(t, () => PlainSandbox.deleteSnapshot(bare))
  named.add(bare)
  return Template.build(template, name, options)
}

export default () => {
  describe('templates', { concurrency: 2 }, () => {
    test('every step leaves its trace', async (t) => {
      const folder = await context(t, { one: '1', two: '2', secret: 'never' })
      const template = Template({ fileContextPath: folder, fileIgnorePatterns: ['secret'] })
        .fromTemplate('base')
        .setEnvs({ STAGE: 'build' })
        .runCmd('echo $STAGE > /home/user/stage')
        .setWorkdir('/opt/work')
        .runCmd(['pwd > /tmp/where', 'chmod 644 /tmp/where'], { user: 'root' })
        .copy(['one', 'two'], '/srv/', { user: 'root', mode: 0o640 })
        .copyItems([{ src: 'one', dest: '/srv/renamed', mode: 0o755 }])
        .makeDir('/srv/made', { mode: 0o700, user: 'root' })
        .rename('/srv/made', '/srv/moved', { user: 'root' })
        .makeSymlink('/srv/renamed', '/srv/link', { user: 'root' })
        .remove('/srv/moved', { recursive: true, user: 'root' })
        .setUser('root')
        .runCmd('id -un > /srv/last-user')
        .setUser('user')
      const logs = []
      const { name } = await build(t, template, word('jt'), { onBuildLogs: (entry) => logs.push(entry.message), cpuCount: 1, memoryMB: 512 })
      assert.ok(logs.length > 3, logs.join('\n'))
      const box = await sandbox(t, name)
      const { stdout } = await box.commands.run(
        "cat /home/user/stage /tmp/where /srv/last-user /srv/link; echo; stat -c '%a %U' /srv/one; ls -d /srv/moved 2>&1; pwd",
      )
      assert.match(stdout, /^build\n\/opt\/work\nroot\n1\n640 root\n/)
      assert.match(stdout, /cannot access '\/srv\/moved'[^\n]*\n\/opt\/work\n$/)
      assert.equal(await box.files.exists('/srv/secret'), false)
    })

    test('the cache keeps what is unchanged', async (t) => {
      const make = () => Template().fromTemplate('base').runCmd('date +%s%N > /tmp/when')
      const name = word('jt')
      const when = async () => (await sandbox(t, name)).files.read('/tmp/when')
      await build(t, make(), name)
      const first = await when()
      await build(t, make().runCmd('touch /tmp/more'), name)
      assert.equal(await when(), first)
      await build(t, make(), name, { skipCache: true })
      assert.notEqual(await when(), first)
      await build(t, Template().fromTemplate('base').skipCache().runCmd('true'))
    })

    test('a step that fails says so', async () => {
      const logs = []
      const failing = Template().fromTemplate('base').runCmd('echo about-to-fail >&2; exit 3')
      await rejects(Template.build(failing, word('jt'), { onBuildLogs: (entry) => logs.push(entry.message) }), BuildError)
      assert.match(logs.join('\n'), /about-to-fail/)
    })

    test('a server of the template runs in every sandbox', async (t) => {
      const start = 'touch /tmp/ready; exec python3 -m http.server 8123 -d /etc'
      const ready = [waitForPort(8123), waitForFile('/tmp/ready'), waitForURL('http://127.0.0.1:8123/'), waitForProcess('python3')]
      const all = ready.map((each) => each.getCmd()).join(' && ')
      const { name } = await build(t, Template().fromTemplate('base').setStartCmd(start, all))
      const box = await sandbox(t, name)
      assert.match((await box.commands.run('curl -s http://127.0.0.1:8123/passwd')).stdout, /root:/)
      await build(t, Template().fromTemplate('base').runCmd('true').setReadyCmd(waitForTimeout(1000)))
    })

    test('tags and names lead to their builds', async (t) => {
      const name = word('jt')
      assert.equal(await Template.exists(name), false)
      await build(t, Template().fromTemplate('base').runCmd('echo one > /tmp/v'), `${name}:v1`)
      await build(t, Template().fromTemplate('base').runCmd('echo two > /tmp/v'), name, { tags: ['v2'] })
      assert.deepEqual([await Template.exists(name), await Template.aliasExists(name)], [true, true])
      await Template.assignTags(`${name}:v1`, ['stable'])
      const of = async (tag) => (await sandbox(t, `${name}:${tag}`)).files.read('/tmp/v')
      assert.deepEqual([await of('stable'), await of('v2')], ['one\n', 'two\n'])
      const tags = Object.fromEntries((await Template.getTags(name)).map((tag) => [tag.tag, tag.buildId]))
      assert.equal(tags.stable, tags.v1)
      await Template.removeTags(name, 'stable')
      await rejects(PlainSandbox.create(`${name}:stable`), SandboxError)
    })

    test('a build behind the scenes, of an image of a registry', async (t) => {
      const name = word('jt')
      const template = Template().fromImage(process.env.E2B_TEST_IMAGE).runCmd('echo built > /built', { user: 'root' })
      const info = await Template.buildInBackground(template, name)
      later(t, () => PlainSandbox.deleteSnapshot(name))
      const last = await until('it is built', async () => {
        const status = await Template.getBuildStatus(info)
        return ['ready', 'error'].includes(status.status) && status
      }, 40_000)
      assert.equal(last.status, 'ready')
      const box = await sandbox(t, name)
      assert.equal((await box.commands.run('cat /built /etc/of-the-image')).stdout, 'built\nimage\n')
    })

    test('helpers are the commands they say', async (t) => {
      const fake =
        "install -m 666 /dev/null /tmp/called; for p in apt-get npm bun pip; do printf '#!/bin/sh\\necho \"$(id -un) %s $*\" >> /tmp/called\\n' $p > /usr/local/bin/$p; chmod 755 /usr/local/bin/$p; done"
      const template = Template()
        .fromBaseImage()
        .runCmd(fake, { user: 'root' })
        .aptInstall(['vim'])
        .npmInstall('typescript', { g: true })
        .bunInstall('left')
        .pipInstall('numpy')
        .runCmd('git init -q /tmp/src && git -C /tmp/src -c user.name=x -c user.email=x@x commit -q --allow-empty -m first')
        .gitClone('file:///tmp/src', '/home/user/cloned')
      const { name } = await build(t, template, word('jt'), { onBuildLogs: defaultBuildLogger() })
      const box = await sandbox(t, name)
      const called = (await box.files.read('/tmp/called')).trim().split('\n')
      assert.deepEqual(called.slice(2), ['root npm install -g typescript', 'user bun install left', 'root pip install numpy'])
      assert.match(called[1], /^root apt-get install -y .*vim$/)
      assert.equal((await box.commands.run('git -C /home/user/cloned log --format=%s')).stdout, 'first\n')
    })

    test('every base has its image', async () => {
      const bases = [
        Template().fromDebianImage(), Template().fromUbuntuImage(), Template().fromFedoraImage(), Template().fromAlpineImage(),
        Template().fromArchImage(), Template().fromPythonImage(), Template().fromNodeImage(), Template().fromBunImage(),
        Template().fromDockerfile('FROM debian:12\nRUN true\n'),
        Template().fromAWSRegistry('r.test/i', { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' }),
        Template().fromGCPRegistry('r.test/i', { serviceAccountJSON: {} }),
      ]
      for (const base of bases) assert.ok(JSON.parse(await Template.toJSON(base.runCmd('true'))).fromImage)
      assert.match(Template.toDockerfile(Template().fromDebianImage().runCmd('true')), /RUN true/)
      const dev = Template().fromTemplate('devcontainer').betaDevContainerPrebuild('/x').betaSetDevContainerStart('/x')
      assert.match(JSON.parse(await Template.toJSON(dev)).startCmd, /devcontainer up/)
      const mcp = Template().fromTemplate('mcp-gateway').addMcpServer('exa')
      assert.match(await Template.toJSON(mcp), /mcp-gateway pull exa/)
      assert.throws(() => Template().fromBaseImage().addMcpServer('exa'), BuildError)
    })
  })
}

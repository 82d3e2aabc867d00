// Files and git.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { name, refused, sdk, sh, shared, until } from './world.mjs'

const one = shared()
const dir = async () => {
  const box = await one()
  const path = `/tmp/${name('d')}`
  await box.fs.createFolder(path, '755')
  return { box, fs: box.fs, git: box.git, path, at: (word) => `${path}/${word}` }
}
const sha = (data) => createHash('sha256').update(data).digest('hex')

test('bytes go in and out as they are', async () => {
  const { box, fs, at } = await dir()
  const data = randomBytes(100_000)
  await fs.uploadFile(data, at('a/b/c.bin'))
  assert.equal((await sh(box, `sha256sum < ${at('a/b/c.bin')}`)).split(' ')[0], sha(data))
  assert.deepEqual(await fs.downloadFile(at('a/b/c.bin')), data)
})

test('files of this machine go up and down', async () => {
  const { fs, at } = await dir()
  const here = await mkdtemp(join(tmpdir(), 'atoll-'))
  try {
    await writeFile(join(here, 'up'), 'local words')
    await fs.uploadFile(join(here, 'up'), at('f'))
    await fs.downloadFile(at('f'), join(here, 'down'))
    assert.equal(await readFile(join(here, 'down'), 'utf8'), 'local words')
  } finally {
    await rm(here, { recursive: true })
  }
})

test('many files in one call, and those that are missing by name', async () => {
  const { fs, at } = await dir()
  const files = [...Array(100).keys()].map((n) => ({ source: Buffer.from(`c${n}`), destination: at(`m/${n}`) }))
  await fs.uploadFiles(files)
  const got = await fs.downloadFiles([...files.map((f) => ({ source: f.destination })), { source: at('none') }])
  assert.deepEqual(got.slice(0, -1).map((g) => g.result.toString()), files.map((f) => f.source.toString()))
  assert.equal(got.at(-1).errorDetails.code, 'FILE_NOT_FOUND')
})

test('fifty megabytes as a stream, up and down', async () => {
  const { fs, at } = await dir()
  const piece = randomBytes(1 << 20)
  const whole = createHash('sha256')
  for (let n = 0; n < 50; n++) whole.update(piece)
  let sent = 0
  await fs.uploadFileStream(Readable.from((function* () { for (let n = 0; n < 50; n++) yield piece })()), at('large'), { onProgress: (p) => (sent = p.bytesSent) })
  assert.equal(sent, 50 << 20)
  const got = createHash('sha256')
  for await (const chunk of await fs.downloadFileStream(at('large'))) got.update(chunk)
  assert.equal(got.digest('hex'), whole.digest('hex'))
  await fs.deleteFile(at('large'))
})

test('a missing file is an error of its own', async () => {
  const { fs, at } = await dir()
  await refused(fs.downloadFile(at('none')), sdk.DaytonaFileNotFoundError)
  await refused(fs.getFileDetails(at('none')), sdk.DaytonaNotFoundError)
  await refused(fs.listFiles(at('none')), sdk.DaytonaNotFoundError)
  await refused(fs.deleteFile(at('none')), sdk.DaytonaNotFoundError)
})

test('listings tell what each is, as deep as they are told', async () => {
  const { box, fs, path, at } = await dir()
  await sh(box, `cd ${path} && mkdir -p d/e && printf 12345 > f && chmod 640 f && touch d/e/g`)
  const found = Object.fromEntries((await fs.listFiles(path)).map((f) => [f.name, f]))
  assert.deepEqual([found.d.isDir, found.f.isDir, found.f.size, found.f.permissions], [true, false, 5, '0640'])
  assert.ok((await fs.listFiles(path, { depth: 3 })).some((f) => (f.path ?? f.name).endsWith('d/e/g')))
  assert.equal((await fs.getFileDetails(at('f'))).owner, box.user)
})

test('odd names are names', async () => {
  const { fs, path, at } = await dir()
  const odd = `ünï 'q' "d" #?%41 漢字`
  await fs.uploadFile(Buffer.from('odd'), at(odd))
  assert.deepEqual((await fs.listFiles(path)).map((f) => f.name), [odd])
  assert.equal((await fs.downloadFile(at(odd))).toString(), 'odd')
})

test('move, permissions, delete', async () => {
  const { box, fs, at, path } = await dir()
  await fs.uploadFile(Buffer.from('#!/bin/sh\necho ran\n'), at('a'))
  await fs.moveFiles(at('a'), at('b'))
  await fs.setFilePermissions(at('b'), { mode: '755' })
  assert.equal(await sh(box, at('b')), 'ran\n')
  await fs.createFolder(at('full'), '755')
  await fs.uploadFile(Buffer.from('x'), at('full/x'))
  await refused(fs.deleteFile(at('full')), sdk.DaytonaBadRequestError)
  await fs.deleteFile(at('full'), true)
  assert.deepEqual((await fs.listFiles(path)).map((f) => f.name), ['b'])
})

test('text is found and replaced, files are found by name', async () => {
  const { fs, path, at } = await dir()
  await fs.uploadFile(Buffer.from('one\na.b two\n'), at('x/y.py'))
  assert.deepEqual((await fs.findFiles(path, 'a.b')).map((m) => [m.file, m.line]), [[at('x/y.py'), 2]])
  assert.equal((await fs.searchFiles(path, '*.py')).files.length, 1)
  const [done] = await fs.replaceInFiles([at('x/y.py')], 'a.b', '$&')
  assert.equal(done.success, true)
  assert.equal((await fs.downloadFile(at('x/y.py'))).toString(), 'one\n$& two\n')
})

test('a link needs no key until it is revoked', async () => {
  const { box, fs, at } = await dir()
  await fs.uploadFile(Buffer.from('shared'), at('s'))
  const link = await box.downloadUrl(at('s'))
  assert.equal(await (await fetch(link)).text(), 'shared')
  await box.rotateSigningKey()
  await until('it is revoked', async () => (await fetch(link)).status === 401)
  const form = new FormData()
  form.append('file', new Blob(['from outside']), 'x')
  assert.equal((await fetch(await box.uploadUrl(at('u')), { method: 'POST', body: form })).status, 200)
  assert.equal((await fs.downloadFile(at('u'))).toString(), 'from outside')
})

test('a repository from its first commit to a push and back', async () => {
  const { box, fs, git, at } = await dir()
  await git.init(at('origin.git'), true, 'main')
  await git.init(at('w'), false, 'main')
  await fs.uploadFile(Buffer.from('x'), at('w/f'))
  assert.deepEqual((await git.status(at('w'))).fileStatus.map((f) => [f.name, f.worktree]), [['f', 'Untracked']])
  await git.add(at('w'), ['f'])
  const { sha: made } = await git.commit(at('w'), 'first', 'Ada', 'ada@example.com')
  assert.equal((await sh(box, `git -C ${at('w')} rev-parse HEAD`)).trim(), made)
  await git.remoteAdd(at('w'), 'origin', `file://${at('origin.git')}`)
  await git.push(at('w'), undefined, undefined, 'main', 'origin', true)
  await git.clone(`file://${at('origin.git')}`, at('c'))
  assert.equal((await fs.downloadFile(at('c/f'))).toString(), 'x')
  await git.commit(at('w'), 'second', 'Ada', 'ada@example.com', true)
  await git.push(at('w'))
  await git.pull(at('c'))
  assert.equal((await sh(box, `git -C ${at('c')} log --format=%s`)).trim(), 'second\nfirst')
})

test('branches, remotes, settings', async () => {
  const { fs, git, at } = await dir()
  await git.init(at('w'), false, 'main')
  await fs.uploadFile(Buffer.from('x'), at('w/f'))
  await git.add(at('w'), ['.'])
  await git.configureUser('Grace', 'g@example.com', 'local', at('w'))
  await git.commit(at('w'), 'm', 'A', 'a@x')
  await git.createBranch(at('w'), 'topic')
  await refused(git.createBranch(at('w'), 'topic'), sdk.DaytonaConflictError)
  await git.checkoutBranch(at('w'), 'topic')
  assert.equal((await git.status(at('w'))).currentBranch, 'topic')
  await git.checkoutBranch(at('w'), 'main')
  await git.deleteBranch(at('w'), 'topic')
  assert.deepEqual((await git.branches(at('w'))).branches, ['main'])
  await refused(git.checkoutBranch(at('w'), 'none'), sdk.DaytonaNotFoundError)
  await git.remoteAdd(at('w'), 'up', 'http://elsewhere/')
  assert.equal(await git.remoteGet(at('w'), 'up'), 'http://elsewhere/')
  assert.equal((await git.remotes(at('w'))).remotes.length, 1)
  await git.setConfig('alias.st', 'status', 'local', at('w'))
  assert.equal(await git.getConfig('alias.st', 'local', at('w')), 'status')
  await fs.uploadFile(Buffer.from('y'), at('w/f'))
  await git.restore(at('w'), ['f'])
  assert.equal((await fs.downloadFile(at('w/f'))).toString(), 'x')
  await git.reset(at('w'), 'hard')
  assert.deepEqual((await git.status(at('w'))).fileStatus, [])
})

test('what git refuses has its kind', async () => {
  const { git, at } = await dir()
  await refused(git.clone('http://127.0.0.1:9/none.git', at('x')))
  await refused(git.clone('--upload-pack=touch /tmp/owned', at('y')))
  await refused(git.status(at('none')), sdk.DaytonaNotFoundError)
  await git.dangerouslyAuthenticate('ada', 'pw', 'nowhere.example', 'http')
})

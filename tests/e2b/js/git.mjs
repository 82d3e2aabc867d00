// The helpers for git, which are commands underneath.

import { GitUpstreamError } from 'e2b'
import { assert, PlainSandbox, rejects, shared, test } from './world.mjs'

export default () => {
  shared('git', PlainSandbox, (box) => {
    test('a whole history by the helpers', async () => {
      const { git, files } = box()
      const path = '/home/user/repo'
      await git.configureUser('A', 'a@example.test')
      await git.init(path, { initialBranch: 'main' })
      await git.init('/home/user/hub.git', { bare: true, initialBranch: 'main' })
      await files.write(`${path}/a`, 'one')
      await git.add(path)
      await git.commit(path, "it's first", { authorName: 'Än Other', authorEmail: 'o@example.test' })
      assert.equal((await box().commands.run(`git -C ${path} log --format='%an|%s'`)).stdout, "Än Other|it's first\n")
      await git.createBranch(path, 'topic')
      await git.checkoutBranch(path, 'main')
      assert.deepEqual((await git.branches(path)).branches.sort(), ['main', 'topic'])
      await git.deleteBranch(path, 'topic', { force: true })
      await rejects(git.pull(path), GitUpstreamError)
      await git.remoteAdd(path, 'origin', '/home/user/hub.git')
      assert.equal(await git.remoteGet(path, 'origin'), '/home/user/hub.git')
      await git.push(path, { remote: 'origin', branch: 'main' })
      await git.clone('/home/user/hub.git', { path: '/home/user/cloned' })
      await files.write(`${path}/a`, 'two')
      assert.deepEqual((await git.status(path)).fileStatus.map((file) => file.name), ['a'])
      await git.restore(path, { paths: ['a'] })
      assert.equal(await files.read(`${path}/a`), 'one')
      await files.write(`${path}/a`, 'three')
      await git.add(path, { files: ['a'] })
      await git.commit(path, 'third')
      await git.push(path)
      await git.pull('/home/user/cloned')
      assert.equal(await files.read('/home/user/cloned/a'), 'three')
      await git.reset(path, { mode: 'hard', target: 'HEAD~1' })
      assert.equal(await files.read(`${path}/a`), 'one')
      await git.setConfig('x.y', 'z')
      assert.equal(await git.getConfig('x.y'), 'z')
      await git.dangerouslyAuthenticate({ username: 'u', password: 'p', host: 'h.test' })
      assert.match((await box().commands.run('cat ~/.git-credentials')).stdout, /h\.test/)
    })
  })
}

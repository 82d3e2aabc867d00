// What a sandbox reaches; see tests/e2b/python/test_network.py for the internet that it is on.

import { ALL_TRAFFIC, Secret } from 'e2b'
import { assert, describe, later, PlainSandbox, sandbox, test, word } from './world.mjs'

const fetched = async (box, url, more = '') => (await box.commands.run(`curl -sS -m 4 ${more} ${url} 2>&1 || true`)).stdout
const reaches = async (box, url, more) => assert.match(await fetched(box, url, more), /hello from the internet/)
const reachesNot = async (box, url, more) => assert.doesNotMatch(await fetched(box, url, more), /hello from the internet/)

export default () => {
  describe('networks', { concurrency: 2 }, () => {
    test('without internet nothing is reached', async (t) => {
      const box = await sandbox(t, { allowInternetAccess: false })
      await reachesNot(box, 'http://good.test/e2b-never')
      assert.equal((await box.getInfo()).allowInternetAccess, false)
    })

    test('names on the list are reached and no others, until it changes', async (t) => {
      const box = await sandbox(t, { network: { allowOut: ['good.test'], denyOut: [ALL_TRAFFIC] } })
      await reaches(box, 'http://good.test/listed')
      await reachesNot(box, 'http://other.test/e2b-never')
      await box.updateNetwork({ allowOut: ['other.test'], denyOut: ({ allTraffic }) => [allTraffic] })
      await reaches(box, 'http://other.test/listed')
      await reachesNot(box, 'http://good.test/e2b-never')
      await PlainSandbox.updateNetwork(box.sandboxId, { denyOut: ['198.51.100.20'] })
      await reaches(box, 'http://good.test/again')
      await reachesNot(box, 'http://198.51.100.20/e2b-never')
    })

    test('a rule puts a header on, a secret is filled in outside', async (t) => {
      const name = word('key')
      await Secret.create(name, 'canary-of-a-secret')
      later(t, () => Secret.destroy(name))
      const rule = (headers) => ({ network: { rules: { 'good.test': [{ transform: { headers } }] } } })
      const trust = '--cacert /etc/ssl/certs/ca-certificates.crt'
      const ruled = await sandbox(t, rule({ 'X-Injected': 'by the rule' }))
      await reaches(ruled, 'https://good.test/e2b-ruled', trust)
      const filled = await sandbox(t, rule({ Authorization: `Bearer ${Secret.fill(name)}` }))
      await reaches(filled, 'https://good.test/e2b-secret', trust)
      assert.doesNotMatch(JSON.stringify(await filled.getInfo()), /canary-of-a-secret/)
    })
  })
}

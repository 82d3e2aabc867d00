// The key that created a sandbox, its tenant, the mark of a hold, and its traffic over time.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { ADMIN_KEY, Browser, KEY, accessible, api, create, go, until } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

test('the list and the overview name the key that created a sandbox, also after it is deleted', async () => {
  const key = await api('POST', '/v1/keys', { name: 'ci-runner' })
  const made = await create({ name: 'by-ci' }, key.secret)
  const mine = await create({ name: 'by-me' })
  await api('POST', `/v1/sandboxes/${mine.id}/hold`, { for_s: 600, reason: 'a demo' })
  await api('DELETE', `/v1/keys/${key.id}`)
  const page = await browser.page()
  const row = (id) => page.locator(`[data-id="${id}"]`)
  await row(made.id).getByText('ci-runner').waitFor()
  await row(mine.id).getByRole('img', { name: /^Held until .*not paused or stopped for being idle \(a demo\)$/ }).waitFor()
  assert.equal(await row(made.id).getByRole('img', { name: /^Held/ }).count(), 0)
  await page.getByLabel('Created by key').selectOption({ label: 'key: ci-runner' })
  await page.waitForURL((url) => url.href.endsWith(`key=${key.id}`))
  await until('one row', async () => (await page.locator('[data-id]').count()) === 1)
  await go(page, `#/resources?q=ci-runner`)
  await until('the text filter finds it', async () => (await page.locator('[data-id]').count()) === 1)
  await accessible(page, 'resources with keys')
  await go(page, `#/sandboxes/${made.id}/overview`)
  await page.getByText('Created by the key').waitFor()
  await page.getByText(key.id).waitFor()
  assert(!(await page.content()).includes(key.secret) && !(await page.content()).includes(KEY))
  // A hint names what the page has, not a command.
  await go(page, '#/sandboxes/nowhere/overview')
  await page.getByRole('alert').getByText('Resources shows every sandbox of this key').waitFor()
  for (const { id } of [made, mine]) await api('DELETE', `/v1/sandboxes/${id}`)
  await page.context().close()
  browser.check()
})

test('traffic is plotted over time', async () => {
  const { id } = await create({ name: 'busy' })
  const load = "import time, urllib.request as u\nwhile True:\n  u.urlopen('http://good.test/bytes/200000').read()\n  time.sleep(0.2)"
  await api('POST', `/v1/sandboxes/${id}/exec`, { argv: ['python3', '-c', load], detach: true })
  const page = await browser.page({ hash: `#/sandboxes/${id}/metrics` })
  const card = page.locator('.card').filter({ has: page.getByRole('heading', { name: 'Network' }) })
  // The server takes a sample every ten seconds, and a rate needs two.
  await card.getByText(/Received \d[\d.]* (KiB|MiB)\/s, Sent \d/).waitFor({ timeout: 60_000 })
  await card.getByRole('img', { name: 'Network over time' }).waitFor()
  const { items } = await api('GET', `/v1/sandboxes/${id}/metrics/history`)
  assert(items.at(-1).received_bytes > 200_000 && items.at(-1).sent_bytes > 0, JSON.stringify(items.at(-1)))
  await accessible(page, 'metrics')
  await api('DELETE', `/v1/sandboxes/${id}`)
  await page.context().close()
  browser.check()
})

test('the tenant is a column for a key that sees several, by its name', async () => {
  const other = process.env.ATOLL_OTHER_KEY
  const [mine, theirs] = await Promise.all([create({ name: 'of-web' }), create({ name: 'of-other' }, other)])
  const admin = await browser.page({ key: ADMIN_KEY })
  await admin.getByRole('columnheader', { name: 'Tenant' }).waitFor()
  for (const [id, tenant] of [[mine.id, 'web'], [theirs.id, 'other']]) {
    await admin.locator(`[data-id="${id}"]`).getByRole('cell', { name: tenant, exact: true }).waitFor()
  }
  await accessible(admin, 'a list with tenants')
  const page = await browser.page()
  await page.locator(`[data-id="${mine.id}"]`).waitFor()
  assert.equal(await page.getByRole('columnheader', { name: 'Tenant' }).count(), 0)
  await Promise.all([[mine, KEY], [theirs, other]].map(([one, key]) => api('DELETE', `/v1/sandboxes/${one.id}`, undefined, key)))
  await admin.context().close()
  await page.context().close()
  browser.check()
})

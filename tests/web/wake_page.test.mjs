// What a browser sees in place of an app: while its sandbox wakes, when nothing listens, and when it is refused.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Browser, URL, accessible, api, create, exec, holdServer } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

const previewUrl = (id, port) => {
  const { protocol, port: own } = new globalThis.URL(URL)
  return `${protocol}//${port}-${id}.localhost:${own}/`
}

test('a preview says why there is no app, in both themes, and becomes the app', async () => {
  const { id } = await create({ name: 'previewed' })
  const page = await browser.page({ key: null })
  page.on('framenavigated', () => {})
  // Refused: the page says how to get access, and does not reload itself.
  const refused = await page.goto(previewUrl(id, 8080))
  assert.equal(refused.status(), 401)
  await page.getByRole('heading', { name: 'This preview is private' }).waitFor()
  await page.getByText(`atoll preview ${id} 8080`).waitFor()
  assert.equal(await page.locator('meta[http-equiv="refresh"]').count(), 0)
  const colours = []
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme })
    await accessible(page, `refused, ${colorScheme}`)
    colours.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor))
  }
  assert.notEqual(colours[0], colours[1])
  await page.setViewportSize({ width: 360, height: 700 })
  assert((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0)

  // A link opens it. Nothing listens yet; the page reloads itself until the app answers.
  const { url } = await api('POST', `/v1/sandboxes/${id}/previews`, { port: 8080, expires_s: 600 })
  const token = new globalThis.URL(url).search
  const closed = await page.goto(previewUrl(id, 8080) + token)
  assert.equal(closed.status(), 503)
  assert.match(closed.headers()['content-security-policy'], /default-src 'none'.*form-action 'none'/)
  assert.equal(await page.evaluate(() => document.scripts.length), 0)
  await page.getByRole('heading', { name: 'Nothing answers on this port yet' }).waitFor()
  await exec(id, "mkdir -p /tmp/site && echo 'the app itself' > /tmp/site/index.html")
  await api('POST', `/v1/sandboxes/${id}/exec`, { command: 'python3 -m http.server 8080 --directory /tmp/site', detach: true })
  await page.getByText('the app itself').waitFor()

  // A paused one that only its owner wakes says so, and goes on after a resume.
  await api('PATCH', `/v1/sandboxes/${id}`, { wake: 'explicit' })
  await api('POST', `/v1/sandboxes/${id}/pause`)
  const asleep = await page.reload()
  assert.equal(asleep.status(), 409)
  await page.getByRole('heading', { name: 'The sandbox is asleep' }).waitFor()
  await accessible(page, 'asleep')
  await api('POST', `/v1/sandboxes/${id}/resume`)
  await page.getByRole('link', { name: 'Try again' }).click()
  await page.getByText('the app itself').waitFor()

  // One that any visit wakes is back after a pause, whether the wake took longer than the page waits or not.
  await api('PATCH', `/v1/sandboxes/${id}`, { wake: 'any' })
  await api('POST', `/v1/sandboxes/${id}/pause`)
  await page.reload()
  await page.getByText('the app itself').waitFor()

  // A wake that takes long has a page of its own, which reloads itself and becomes the app.
  await api('POST', `/v1/sandboxes/${id}/pause`)
  const release = holdServer('resume.before')
  const waking = await page.reload()
  assert.equal(waking.status(), 503)
  assert.equal(waking.headers()['retry-after'], '1')
  await page.getByRole('heading', { name: 'The sandbox is waking up' }).waitFor()
  assert.equal(await page.locator('meta[http-equiv="refresh"]').getAttribute('content'), '1')
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme })
    // The page has no script, so it reloads by its head; it says so, and nobody is in the middle of reading it.
    await accessible(page, `waking, ${colorScheme}`, { 'meta-refresh': { enabled: false } })
  }
  const again = await page.waitForResponse((response) => response.url() === page.url())
  assert.equal(again.status(), 503, 'it reloads itself while the sandbox wakes')
  release()
  await page.getByText('the app itself').waitFor()
  await api('DELETE', `/v1/sandboxes/${id}`)
  await page.reload()
  await page.getByRole('heading', { name: /no such sandbox|no access|private/ }).waitFor()
  // Programs get what they always got.
  const program = await fetch(`${URL}/p/${id}/8080/`)
  assert.equal(program.headers.get('content-type'), 'application/json')
  await page.context().close()
  browser.check()
})

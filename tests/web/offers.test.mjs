// What the page offers and says: for a stopped sandbox, for a provider that cannot do everything, while something is read.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { ADMIN_KEY, Browser, accessible, api, create, exec, go, until } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

const heightOf = async (button) => (await button.boundingBox()).height

test('the tabs of a stopped sandbox say why they need it to run, and start it', async () => {
  const { id } = await create({ name: 'resting' })
  await api('POST', `/v1/sandboxes/${id}/stop`)
  const page = await browser.page({ hash: `#/sandboxes/${id}/terminal` })
  const body = page.locator('section.body')
  const start = body.getByRole('button', { name: 'Start' })
  for (const [tab, why] of [
    ['terminal', 'A terminal is a shell in the running sandbox.'],
    ['files', 'Files can be read and changed while the sandbox runs.'],
    ['run', 'Code runs in the running sandbox.'],
    ['processes', 'Processes and previews exist while the sandbox runs.'],
  ]) {
    await go(page, `#/sandboxes/${id}/${tab}`)
    await body.getByText(why, { exact: true }).waitFor()
    await body.getByRole('heading', { name: 'The sandbox is stopped' }).waitFor()
    const height = await heightOf(start)
    assert(height <= 40, `the button of ${tab} is ${height} px high`)
  }
  await accessible(page, 'a stopped sandbox')
  await go(page, `#/sandboxes/${id}/files`)
  await start.click()
  await page.getByRole('tree', { name: 'Files' }).waitFor()
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('a connection shows its name and its address apart', async () => {
  const { id } = await create({ name: 'caller', network: { mode: 'custom', allow_domains: ['good.test'] } })
  const page = await browser.page({ hash: `#/sandboxes/${id}/egress` })
  await exec(id, "python3 -c \"import urllib.request as u; u.urlopen('http://good.test/bytes/10').read()\"")
  const cell = page.getByRole('cell').filter({ hasText: /good\.test:80/ }).first()
  await cell.waitFor()
  const lines = (await cell.innerText()).trim().split(/\s*\n\s*/)
  assert.equal(lines[0], 'good.test:80')
  assert.match(lines[1], /^[\d.]+$/)
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('a click on a card or a row opens the sandbox, a click on a control does not', async () => {
  const { id } = await create({ name: 'clicked' })
  for (const [view, part] of [['grid', '.c-use'], ['table', '.c-age']]) {
    const page = await browser.page({ hash: view === 'grid' ? '#/resources?view=grid' : '#/resources' })
    const card = page.locator(`[data-id="${id}"]`)
    await card.getByRole('checkbox').click()
    await page.getByText('1 selected').waitFor()
    await card.getByRole('button', { name: 'Actions for clicked' }).click()
    await page.getByRole('link', { name: 'Files' }).waitFor()
    await page.keyboard.press('Escape')
    assert.match(page.url(), /#\/resources/)
    await card.locator(part).click()
    await page.waitForURL((url) => url.hash === `#/sandboxes/${id}/overview`)
    await page.getByRole('heading', { name: 'clicked' }).waitFor()
    await page.context().close()
  }
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

/** The actions that a menu of the list offers. */
async function offered(page, name) {
  await page.getByRole('button', { name: `Actions for ${name}` }).click()
  const menu = page.locator('[popover]:popover-open')
  await menu.getByRole('button', { name: 'Delete', exact: true }).waitFor()
  const actions = await menu.locator('button.menu-item').allInnerTexts()
  await page.keyboard.press('Escape')
  return actions.map((text) => text.trim())
}

test('only what the provider of a sandbox can do is offered', async () => {
  const local = await create({ name: 'at-local', provider: 'local' }, ADMIN_KEY)
  const here = await create({ name: 'at-container' }, ADMIN_KEY)
  const able = (await api('GET', '/v1/providers', undefined, ADMIN_KEY)).items.find((one) => one.name === 'local').capabilities
  for (const capability of ['archive', 'snapshot', 'egress', 'checkpoint']) assert(!able.includes(capability), `local has ${capability}`)

  const page = await browser.page({ key: ADMIN_KEY })
  await page.locator(`[data-id="${local.id}"]`).waitFor()
  await until('the menu lacks what the provider lacks', async () => !(await offered(page, 'at-local')).includes('Archive'))
  assert((await offered(page, 'at-container')).includes('Archive'))

  await go(page, `#/sandboxes/${local.id}/snapshots`)
  await page.getByText('The provider local cannot take snapshots or fork.').waitFor()
  assert.equal(await page.getByRole('button', { name: /Take a snapshot|^Fork$/ }).count(), 0)
  await go(page, `#/sandboxes/${local.id}/egress`)
  await page.getByText('The provider local neither enforces a network policy nor records connections.').waitFor()
  assert.equal(await page.getByRole('button', { name: 'Change', exact: true }).count(), 0)
  const { workdir } = await api('GET', `/v1/sandboxes/${local.id}`, undefined, ADMIN_KEY)
  assert(workdir.endsWith(`/local/${local.id}/workspace`), workdir)
  await go(page, `#/sandboxes/${local.id}/files`)
  assert.equal(await page.getByLabel('Folder', { exact: true }).inputValue(), workdir, 'files open at the workspace')
  await go(page, `#/sandboxes/${local.id}/settings`)
  await page.getByLabel('Delete when stopped for').waitFor()
  assert.equal(await page.getByLabel('Archive when stopped for').count(), 0)
  await accessible(page, 'settings of a sandbox of local')
  await go(page, `#/sandboxes/${here.id}/settings`)
  await page.getByLabel('Archive when stopped for').waitFor()
  await page.context().close()

  await api('DELETE', `/v1/sandboxes/${local.id}`, undefined, ADMIN_KEY)
  await api('DELETE', `/v1/sandboxes/${here.id}`, undefined, ADMIN_KEY)
  browser.check()
})

test('a provider that loses files and cannot pause offers neither Stop nor Pause', async () => {
  const { id } = await create({ name: 'ephemeral' })
  const page = await browser.page({ hash: '#/settings/keys' })
  await page.route('**/v1/providers', async (route) => {
    const { items } = await (await route.fetch()).json()
    const lacking = ['keep_files', 'pause', 'terminal']
    await route.fulfill({ json: { items: items.map((one) => ({ ...one, capabilities: one.capabilities.filter((able) => !lacking.includes(able)) })) } })
  })
  await page.goto(page.url().replace(/#.*/, `#/sandboxes/${id}/terminal`))
  await page.reload()
  await page.getByText('The provider container has no terminals.').waitFor()
  for (const action of ['Pause', 'Stop']) assert.equal(await page.getByRole('button', { name: action, exact: true }).count(), 0, action)
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('what is being read is not called empty', async () => {
  const { id } = await create({ name: 'slow' })
  const page = await browser.page({ hash: '#/settings/keys' })
  await page.getByRole('heading', { name: 'API keys' }).waitFor()
  let answer
  const held = new Promise((resolve) => { answer = resolve })
  for (const path of ['**/v1/builds?*', '**/processes', '**/v1/events?sandbox=*']) await page.route(path, async (route) => { await held; await route.continue() })
  const empty = [['#/settings/templates', 'No builds.'], [`#/sandboxes/${id}/processes`, 'No process was started through Atoll.'], [`#/sandboxes/${id}/events`, 'No events are stored.']]
  for (const [hash, text] of empty) {
    await go(page, hash)
    await page.getByText('Loading…', { exact: true }).first().waitFor()
    await page.locator('.card').first().waitFor()
    assert.equal(await page.getByText(text).count(), 0, text)
  }
  answer()
  await page.getByText('creating → running').waitFor()
  await go(page, '#/settings/templates')
  await page.getByText('No builds.').waitFor()
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

test('the page says that a sandbox can be moved, and does not promise volumes without a limit', async () => {
  const page = await browser.page({ hash: '#/settings/sandbox' })
  await page.getByText('A sandbox stays at its provider until atoll move brings it to another one.').waitFor()
  await go(page, '#/settings/volumes')
  const size = page.getByLabel('Size, MiB')
  assert.equal(await size.getAttribute('placeholder'), "server's default")
  const made = await api('POST', '/v1/volumes', { name: 'limited' })
  assert(made.size_mib > 0, 'the server has a default')
  await api('DELETE', '/v1/volumes/limited')
  await page.context().close()
  browser.check()
})

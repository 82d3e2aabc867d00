// Settings → Sandbox and threads, in a real browser.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { ADMIN_KEY, Browser, accessible, api, go, until } from './world.mjs'

let browser
before(async () => { browser = await Browser.start() })
after(async () => { await browser?.browser.close() })

const settings = (name) => api('GET', `/v1/providers/${name}/settings`, undefined, ADMIN_KEY)

test('a provider is added, tested, switched off and removed, and its key is never shown', async () => {
  const page = await browser.page({ key: ADMIN_KEY, hash: '#/settings/sandbox' })
  const card = (name) => page.locator(`[data-provider="${name}"]`)
  await card('container').getByText('a shared kernel').waitFor()
  await card('container').getByRole('button', { name: 'Test' }).click()
  await card('container').getByText('It works').waitFor()
  await accessible(page, 'providers')

  await page.getByRole('button', { name: 'Set up Daytona' }).click()
  const dialog = page.getByRole('dialog', { name: 'Add a provider' })
  await dialog.getByRole('textbox', { name: /^Name/ }).fill('vendor')
  assert.equal(await dialog.getByLabel('API URL').count(), 0, 'the cloud has no address of its own')
  await dialog.getByLabel('Self-hosted').check()
  await dialog.getByLabel('API URL').fill('http://127.0.0.1:9/api')
  await dialog.getByLabel('API key').fill('canary-of-a-provider')
  await accessible(page, 'a new provider')
  await dialog.getByRole('button', { name: 'Add' }).click()
  await card('vendor').getByText('Key source').waitFor()
  assert.equal((await settings('vendor')).sources.api_key, 'file')
  assert.equal(await card('vendor').getByLabel('API key').inputValue(), '')
  await card('vendor').getByRole('button', { name: 'Test' }).click()
  const sentence = card('vendor').getByRole('status')
  await sentence.waitFor()
  assert(!(await sentence.textContent()).includes('It works'))

  // A new address does not get the old key.
  await card('vendor').getByLabel('API URL').fill('http://127.0.0.1:10/api')
  await card('vendor').getByText('Type it again').waitFor()
  await card('vendor').getByLabel('API key').fill('canary-of-a-provider')
  await card('vendor').getByLabel('On exit').selectOption('destroy')
  await card('vendor').getByRole('button', { name: 'Save' }).click()
  await until('the settings are saved', async () => (await settings('vendor')).settings.on_exit === 'destroy')
  await card('vendor').getByRole('switch').click()
  await until('it is switched off', async () => (await settings('vendor')).settings.enabled === false)
  await until('the switch shows it', async () => !(await card('vendor').getByRole('switch').isChecked()))
  await card('vendor').getByRole('button', { name: /as code/ }).click()
  await page.getByRole('button', { name: 'Python', exact: true }).click()
  await page.getByText('client.providers.set_settings(').waitFor()
  assert(!(await page.content()).includes('canary-of-a-provider'))
  await page.keyboard.press('Escape')
  await card('vendor').getByRole('button', { name: 'Remove', exact: true }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click()
  await until('the card is gone', async () => (await card('vendor').count()) === 0)
  await page.context().close()
  browser.check()
})

test('a key of a tenant sees providers and no settings', async () => {
  const page = await browser.page({ hash: '#/settings/sandbox' })
  const card = page.locator('[data-provider="container"]')
  await card.getByText('Best for').waitFor()
  await until('the answer to the first question', async () => (await card.getByRole('button').count()) === 0)
  assert.equal(await card.getByRole('switch').count(), 0)
  await page.context().close()
  browser.check()
})

test('a new thread runs its first command and keeps its provider', async () => {
  const page = await browser.page({ hash: '#/threads' })
  await page.getByText('No threads yet').waitFor()
  await page.getByRole('button', { name: 'New thread' }).first().click()
  const dialog = page.getByRole('dialog', { name: 'New thread' })
  await dialog.getByLabel('Name').fill('talk-7')
  await dialog.getByLabel('Provider').selectOption('container')
  await dialog.getByLabel('First command').fill("echo first-$((40 + 2)) '<img src=x onerror=alert(1)>'")
  await accessible(page, 'new thread')
  await dialog.getByRole('button', { name: 'Create', exact: true }).click()
  await page.getByRole('heading', { name: 'talk-7' }).waitFor()
  await page.getByRole('log').getByText('first-42 <img src=x').waitFor()
  assert.equal(await page.locator('[data-locked]').textContent().then((text) => text.trim()), 'container')
  await accessible(page, 'a thread')
  await page.getByLabel('Command', { exact: true }).fill('exit 3')
  await page.keyboard.press('Enter')
  await page.getByText('exit 3', { exact: true }).last().waitFor()

  // The same name leads to the same sandbox, and the provider cannot be chosen again.
  const before = await api('GET', '/v1/threads/talk-7')
  await go(page, '#/threads')
  await page.locator('[data-thread="talk-7"]').waitFor()
  await accessible(page, 'threads')
  await page.getByRole('button', { name: 'New thread' }).click()
  await dialog.getByLabel('Name').fill('talk-7')
  await dialog.getByLabel('Name').press('Tab')
  await dialog.getByText('locked to container').waitFor()
  assert(await dialog.getByLabel('Provider').isDisabled())
  await dialog.getByRole('button', { name: 'Create', exact: true }).click()
  await page.getByRole('heading', { name: 'talk-7' }).waitFor()
  assert.equal((await api('GET', '/v1/threads/talk-7')).sandbox, before.sandbox)

  // The list finds it by its thread.
  await go(page, '#/resources?thread=talk-7')
  await until('one row', async () => (await page.locator('[data-id]').count()) === 1)
  await page.getByRole('link', { name: 'talk-7' }).click()
  await page.getByRole('heading', { name: 'talk-7' }).waitFor()
  await api('DELETE', `/v1/sandboxes/${before.sandbox}`)
  await page.getByText('The thread has no sandbox').waitFor()
  await page.getByRole('button', { name: 'End the thread' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'End' }).click()
  await page.getByText('No threads yet').waitFor()
  await page.context().close()
  browser.check()
})

test('the first terminal in a sandbox of a thread is stored with that thread', async () => {
  const { id } = await api('POST', '/v1/sandboxes', { thread: 'talk-8' })
  const stored = async () => (await api('GET', `/v1/sandboxes/${id}/terminals`)).items.map((one) => one.thread).sort()
  const page = await browser.page({ hash: `#/sandboxes/${id}/terminal` })
  await until('a terminal is open', async () => (await stored()).length === 1)
  assert.deepEqual(await stored(), ['talk-8'])
  await page.getByRole('button', { name: 'New terminal' }).first().click()
  await until('two terminals are open', async () => (await stored()).length === 2)
  assert.deepEqual(await stored(), ['talk-8', 'web-1'])
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  await api('DELETE', '/v1/threads/talk-8')
  browser.check()
})

test('an action is copied as a command, curl, Python or TypeScript', async () => {
  const { id } = await api('POST', '/v1/sandboxes', { name: 'copied' })
  const page = await browser.page({ hash: '#/resources' })
  await page.getByRole('button', { name: 'Actions for copied' }).click()
  await page.getByRole('button', { name: 'Copy Pause as code' }).click()
  const code = page.getByLabel('Code', { exact: true })
  for (const [language, expected] of [
    ['Shell', 'atoll pause copied'],
    ['curl', `/v1/sandboxes/${id}/pause`],
    ['Python', `sandbox = client.sandboxes.get("${id}")\nsandbox.pause()`],
    ['TypeScript', `const sandbox = await client.sandboxes.get("${id}");\nawait sandbox.pause();`],
  ]) {
    await page.getByRole('button', { name: language, exact: true }).click()
    assert((await code.textContent()).includes(expected), `${language}: ${await code.textContent()}`)
  }
  await page.context().close()
  await api('DELETE', `/v1/sandboxes/${id}`)
  browser.check()
})

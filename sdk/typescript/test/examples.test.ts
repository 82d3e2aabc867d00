// The examples run, and print what the documentation shows.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { test } from 'node:test';
import { apiKey, repository, url } from './world.js';

const folder = join(repository, 'examples/typescript');
const page = readFileSync(join(repository, 'docs/sdk/typescript.md'), 'utf8');
const names = readdirSync(folder).flatMap((file) => (file.endsWith('.ts') ? [file.slice(0, -'.ts'.length)] : []));

test('there are four examples of at most 80 lines', () => {
  assert.deepEqual(names.sort(), ['chat_backend', 'coding_agent', 'data_analysis', 'web_app']);
  for (const name of names) {
    assert.ok(readFileSync(join(folder, `${name}.ts`), 'utf8').trimEnd().split('\n').length <= 80, name);
  }
});

for (const name of names) {
  test(`${name} prints what the documentation shows`, async () => {
    const program = fileURLToPath(new URL(`../examples/${name}.js`, import.meta.url));
    const env = { ...process.env, ATOLL_URL: url, ATOLL_API_KEY: apiKey };
    const { stdout } = await promisify(execFile)(process.execPath, [program], { env, cwd: mkdtempSync(join(tmpdir(), 'atoll-example-')) });
    assert.equal(stdout, shown(name));
  });
}

/** The block of output below the name of an example in the documentation. */
function shown(name: string): string {
  const start = page.indexOf(`examples/typescript/${name}.ts`);
  const found = start < 0 ? null : page.slice(start).match(/```text\n([\s\S]*?)```/);
  assert.ok(found, `docs/sdk/typescript.md shows the output of ${name}`);
  return found[1]!;
}

// Templates: base is the default, and an id of your own is taken as it is. The server makes its own data-science at its first use,
// which takes minutes; this one has a tag of the test's.
import assert from 'node:assert/strict';
import { AtollSandboxToolkit, E2BSandboxToolkit } from 'atoll-sandbox';

const baseURL = `${process.env['ATOLL_URL']}/e2b`;

const base = new E2BSandboxToolkit({ baseURL, template: 'base' });
const versions = await base.getSandbox().shell('python3 --version && node --version && git --version');
assert.equal(versions.exitCode, 0, versions.output);
assert.ok(Number(/^v(\d+)\./m.exec(versions.output)?.[1]) >= 20, versions.output);
await base.close();

const science = new E2BSandboxToolkit({ baseURL, template: 'data-science:mine' });
const mean = await science.getSandbox().run('import numpy, matplotlib\nprint(numpy.array([1, 2, 3]).mean())');
assert.deepEqual(mean, { output: '2.0\n', exitCode: 0 });
await science.close();

const own = new AtollSandboxToolkit({ template: 'my-template' });
assert.equal((await own.getSandbox().shell('cat /etc/of-mine')).output, 'mine\n');
await own.close();

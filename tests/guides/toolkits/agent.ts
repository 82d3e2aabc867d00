// An agent whose workspace is a CloudSandbox: files stay from turn to turn. Both toolkits may serve one agent.
import assert from 'node:assert/strict';
import { type AgentModel, DaytonaSandboxToolkit, E2BSandboxToolkit, SandboxAgent } from 'atoll-sandbox';

const url = process.env['ATOLL_URL'];

/** A model that makes the calls of a script, each in a turn of its own. */
function scripted(...script: { name: string; arguments: Record<string, unknown> }[]): AgentModel {
  return async ({ messages }) => {
    if (messages.at(-1)!.role === 'tool') return { text: 'done' };
    return { toolCalls: [{ id: `call-${messages.length}`, ...script.shift()! }] };
  };
}

const workspace = new E2BSandboxToolkit({ baseURL: `${url}/e2b` }).getSandbox();
const agent = new SandboxAgent({
  sandbox: workspace,
  model: scripted({ name: 'sandbox_e2b_write_file', arguments: { path: '/tmp/notes', contents: 'turn one' } }, { name: 'sandbox_e2b_read_file', arguments: { path: '/tmp/notes' } }),
});
await agent.run('Write a note.');
assert.equal((await agent.run('What did you write?')).calls[0]!.answer, 'turn one');
await agent.close();

const both = new SandboxAgent({
  toolkits: [new E2BSandboxToolkit({ baseURL: `${url}/e2b` }), new DaytonaSandboxToolkit({ baseURL: `${url}/daytona/api` })],
  model: scripted({ name: 'sandbox_e2b_shell', arguments: { command: 'echo e2b' } }, { name: 'sandbox_daytona_shell', arguments: { command: 'echo daytona' } }),
});
const answers = [];
for (const question of ['first', 'second']) answers.push(JSON.parse((await both.run(question)).calls[0]!.answer).output);
assert.deepEqual(answers, ['e2b\n', 'daytona\n']);
await both.close();

// The tools in the AI SDK of Vercel, as docs/sdk/typescript.md shows, with a model that follows a script.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { generateText, jsonSchema, stepCountIs, tool } from 'ai';
import { MockLanguageModelV3 } from 'ai/test';
import { AtollSandboxToolkit } from 'atoll-sandbox';
import { apiKey, url } from './world.js';

type Generate = NonNullable<ConstructorParameters<typeof MockLanguageModelV3>[0]>['doGenerate'];
type Answer = Exclude<Generate, undefined | unknown[] | ((...args: never[]) => unknown)>;

const answer = (content: Answer['content'], unified: Answer['finishReason']['unified']): Answer => ({
  content,
  finishReason: { unified, raw: undefined },
  usage: { inputTokens: { total: 1 }, outputTokens: { total: 1 } } as Answer['usage'],
  warnings: [],
});

test('the tools serve the AI SDK of Vercel', async () => {
  await using toolkit = new AtollSandboxToolkit({ apiKey, baseURL: url });
  const tools = Object.fromEntries(
    toolkit.getTools().map(({ name, description, parameters, execute }) => [
      name,
      tool({ description, inputSchema: jsonSchema<Record<string, unknown>>(parameters as never), execute }),
    ]),
  );
  const model = new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      if (prompt.at(-1)!.role === 'tool') return answer([{ type: 'text', text: 'It is 42.' }], 'stop');
      const input = JSON.stringify({ code: 'print(6 * 7)' });
      return answer([{ type: 'tool-call', toolCallId: 'c1', toolName: 'sandbox_atoll_run', input }], 'tool-calls');
    },
  });
  const result = await generateText({ model, tools, stopWhen: stepCountIs(5), prompt: 'What is six times seven?' });
  assert.equal(result.text, 'It is 42.');
  assert.deepEqual(result.steps[0]!.toolResults.map(({ output }) => output), ['{"output":"42\\n","exitCode":0}']);
});

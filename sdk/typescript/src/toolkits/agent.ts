/** A small agent whose workspace is a sandbox: files and installed programs stay from turn to turn. */
import type { CloudSandbox } from './cloud_sandbox.js';
import { SandboxToolkit } from './toolkit.js';
import type { SandboxTool } from './tools.js';

export interface ToolCall {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

export type AgentMessage =
  | { role: 'system' | 'user'; content: string }
  | { role: 'assistant'; content: string; toolCalls: ToolCall[] }
  | { role: 'tool'; toolCallId: string; name: string; content: string };

/** What a model answers: text, calls of tools, or both. A turn without calls ends the loop. */
export interface ModelAnswer {
  text?: string;
  toolCalls?: ToolCall[];
}

/** A model of any vendor, as a function. */
export type AgentModel = (request: { messages: readonly AgentMessage[]; tools: readonly SandboxTool[] }) => Promise<ModelAnswer>;

export interface SandboxAgentOptions {
  model: AgentModel;
  /** The workspace. The agent closes it. */
  sandbox?: CloudSandbox;
  /** Toolkits, whose sandboxes the agent closes; several may serve one agent. */
  toolkits?: SandboxToolkit[];
  /** More tools. */
  tools?: SandboxTool[];
  instructions?: string;
  /** LIMIT: answers of the model in one turn. Default: 20. */
  maxSteps?: number;
}

export interface TurnResult {
  text: string;
  /** The calls of this turn with their answers. */
  calls: { name: string; arguments: Record<string, unknown>; answer: string }[];
}

const MAX_STEPS = 20;

export class SandboxAgent implements AsyncDisposable {
  /** The conversation so far. */
  readonly messages: AgentMessage[] = [];
  readonly tools: readonly SandboxTool[];
  private readonly toolkits: readonly SandboxToolkit[];

  constructor(private readonly options: SandboxAgentOptions) {
    const own = options.sandbox ? [new SandboxToolkit(options.sandbox)] : [];
    this.toolkits = [...own, ...(options.toolkits ?? [])];
    this.tools = [...this.toolkits.flatMap((toolkit) => toolkit.getTools()), ...(options.tools ?? [])];
    const twice = this.tools.find((tool, index) => this.tools.findIndex((other) => other.name === tool.name) < index);
    if (twice) throw new Error(`two tools are named ${twice.name}`);
    if (options.instructions) this.messages.push({ role: 'system', content: options.instructions });
  }

  /** One turn: the model works with the tools until it answers without calling one. */
  async run(input: string): Promise<TurnResult> {
    this.messages.push({ role: 'user', content: input });
    const calls: TurnResult['calls'] = [];
    for (let step = 0; step < (this.options.maxSteps ?? MAX_STEPS); step++) {
      const answer = await this.options.model({ messages: this.messages, tools: this.tools });
      const toolCalls = answer.toolCalls ?? [];
      this.messages.push({ role: 'assistant', content: answer.text ?? '', toolCalls });
      if (toolCalls.length === 0) return { text: answer.text ?? '', calls };
      for (const call of toolCalls) {
        const content = await this.call(call);
        calls.push({ name: call.name, arguments: call.arguments, answer: content });
        this.messages.push({ role: 'tool', toolCallId: call.id, name: call.name, content });
      }
    }
    throw new Error(`the model did not finish within ${this.options.maxSteps ?? MAX_STEPS} steps`);
  }

  /** Ends the sandboxes. */
  async close(): Promise<void> {
    const closed = await Promise.allSettled(this.toolkits.map((toolkit) => toolkit.close()));
    const failed = closed.find((result) => result.status === 'rejected');
    if (failed) throw failed.reason;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async call(call: ToolCall): Promise<string> {
    const tool = this.tools.find(({ name }) => name === call.name);
    if (!tool) return `error: there is no tool ${call.name}; there are ${this.tools.map(({ name }) => name).join(', ')}`;
    return tool.execute(call.arguments);
  }
}

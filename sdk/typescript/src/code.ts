/** Code that keeps its state between executions: variables, imports, figures. */
import { camelFields, snakeFields } from './case.js';
import { cutStream } from './errors.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { CodeContext, CodeException, CodeLanguage, CodeOutput, Schemas } from './types.js';

export interface CodeOptions extends RequestOptions {
  /** Default: `python`. Not together with `context`. */
  language?: CodeLanguage;
  /** The context to run in. Default: the default context of the language. */
  context?: CodeContext | string;
  env?: Record<string, string>;
  /** The code is interrupted after this many seconds. */
  timeoutS?: number;
}

/** What an execution gave. */
export interface Execution {
  /** The value of the last expression as text. */
  text: string | undefined;
  stdout: string;
  stderr: string;
  /** Values and images, in the order in which they came. */
  results: CodeOutput[];
  /** The exception that ended the code. */
  error: CodeException | undefined;
  timedOut: boolean;
  truncated: boolean;
  context: string;
  executionCount: number | undefined;
}

export type CodeEvent =
  | { type: 'start'; context: string; executionCount: number }
  | { type: 'stdout' | 'stderr'; data: string }
  | ({ type: 'result' } & CodeOutput)
  | ({ type: 'exception' } & CodeException)
  | { type: 'dropped'; bytes: number }
  | { type: 'end'; timedOut: boolean };

export class Code {
  readonly contexts: CodeContexts;

  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {
    this.contexts = new CodeContexts(transport, `${path}/contexts`);
  }

  /** Runs code and returns when it has ended. An exception of the code is in `error`. */
  async run(code: string, options: CodeOptions = {}): Promise<Execution> {
    const execution = newExecution();
    // A stream has no limit for the time until the answer begins.
    let last: CodeEvent['type'] | undefined;
    for await (const event of this.stream(code, options)) {
      collect(execution, event);
      last = event.type;
    }
    if (last !== 'end') throw cutStream();
    execution.text = execution.results.find((output) => output.isMain)?.text;
    return execution;
  }

  /** Runs code and yields its output and results as they come. Leaving the loop interrupts the code. */
  async *stream(code: string, options: CodeOptions = {}): AsyncGenerator<CodeEvent> {
    const [request, { context, ...rest }] = splitOptions(options);
    const json = { ...snakeFields(rest), code, context: typeof context === 'object' ? context.id : context };
    const call = { method: 'POST', path: `${this.path}/stream`, json, options: request };
    for await (const { name, data } of this.transport.events(call)) {
      yield { type: name, ...(camelFields(data) as object) } as CodeEvent;
    }
  }
}

function newExecution(): Execution {
  const none = { text: undefined, error: undefined, executionCount: undefined };
  return { ...none, stdout: '', stderr: '', results: [], timedOut: false, truncated: false, context: '' };
}

function collect(execution: Execution, event: CodeEvent): void {
  switch (event.type) {
    case 'start':
      execution.context = event.context;
      execution.executionCount = event.executionCount;
      break;
    case 'stdout':
    case 'stderr':
      execution[event.type] += event.data;
      break;
    case 'result': {
      const { type: _, ...output } = event;
      execution.results.push(output);
      break;
    }
    case 'exception':
      execution.error = { name: event.name, value: event.value, traceback: event.traceback };
      break;
    case 'dropped':
      execution.truncated = true;
      break;
    case 'end':
      execution.timedOut = event.timedOut;
      break;
  }
}

/** Contexts: interpreters with a state of their own. */
export class CodeContexts {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  async create(options: RequestOptions & { language?: CodeLanguage; cwd?: string } = {}): Promise<CodeContext> {
    const [request, json] = splitOptions(options);
    return this.transport.json<Schemas['CodeContext']>({ method: 'POST', path: this.path, json, options: request });
  }

  async list(options?: RequestOptions): Promise<CodeContext[]> {
    return (await this.transport.json<Schemas['CodeContextList']>({ method: 'GET', path: this.path, options })).items;
  }

  async get(id: string, options?: RequestOptions): Promise<CodeContext> {
    return this.transport.json<Schemas['CodeContext']>({ method: 'GET', path: this.one(id), options });
  }

  async delete(context: CodeContext | string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: this.one(context), options });
  }

  /** Starts it again with nothing defined. */
  async restart(context: CodeContext | string, options?: RequestOptions): Promise<CodeContext> {
    return this.transport.json<Schemas['CodeContext']>({ method: 'POST', path: `${this.one(context)}/restart`, options });
  }

  /** Interrupts the code that runs; what was defined is kept. */
  async interrupt(context: CodeContext | string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'POST', path: `${this.one(context)}/interrupt`, options });
  }

  private one(context: CodeContext | string): string {
    return at(this.path, typeof context === 'string' ? context : context.id);
  }
}

/** Commands of a sandbox: run one, follow its output, or start it and talk to it. */
import { bodyOf, fromBase64, textOf, toBase64 } from './bytes.js';
import { snakeFields } from './case.js';
import { cutStream } from './errors.js';
import type { ServerEvent } from './event_stream.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { CommandResult, ProcessInfo, Schemas } from './types.js';

/** A shell command, or a program with its arguments. */
export type Command = string | readonly string[];

export interface CommandOptions extends RequestOptions {
  /** Working directory. Default: the sandbox's. */
  cwd?: string;
  /** Variables in addition to the sandbox's environment. */
  env?: Record<string, string>;
  /** Default: the sandbox's user. */
  user?: string;
  /** The command is killed after this many seconds: `exitCode` 124, `timedOut` true. */
  timeoutS?: number;
  /** Standard input, which is then closed. */
  stdin?: string | Uint8Array;
  /** A name in the list of processes. */
  tag?: string;
}

/** Output of a command. `bytes` is set if it is not text. */
export interface OutputEvent {
  type: 'stdout' | 'stderr' | 'terminal';
  data: string;
  bytes?: Uint8Array;
}

export type CommandEvent =
  | { type: 'start'; pid: number }
  | OutputEvent
  /** Output that was lost because the program reads too slowly. */
  | { type: 'dropped'; bytes: number }
  | { type: 'exit'; exitCode: number; signal: number | null; timedOut: boolean };

/** How a started process ended. */
export interface ProcessResult {
  stdout: string;
  stderr: string;
  exitCode: number;
  signal: number | null;
  timedOut: boolean;
}

/** LIMIT: fetch of Node gives up if an answer does not begin within 300 seconds; longer commands are followed as a stream. */
const LONGEST_PLAIN_S = 240;
/** The server ends a command at its time limit; its answer may take this much longer. */
const GRACE_S = 30;

export class Commands {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  /** Runs a command and returns when it has ended. A code other than 0 is a result, not an error. */
  async run(command: Command, options: CommandOptions = {}): Promise<CommandResult> {
    if (options.timeoutS === undefined || options.timeoutS > LONGEST_PLAIN_S) return this.runStreamed(command, options);
    const [request, json] = execBody(command, options);
    const limitS = options.timeoutS + GRACE_S;
    const path = `${this.path}/exec`;
    return this.transport.json<Schemas['ExecResult']>({ method: 'POST', path, json, options: request, limitS });
  }

  /** Runs a command and yields its output as it comes. Leaving the loop does not end the command. */
  async *stream(command: Command, options: CommandOptions = {}): AsyncGenerator<CommandEvent> {
    const [request, json] = execBody(command, options);
    const path = `${this.path}/exec/stream`;
    yield* commandEvents(this.transport.events({ method: 'POST', path, json, options: request }));
  }

  /** Starts a command that runs on its own. Its stdin is open, unless `stdin` is given. */
  async start(command: Command, options: CommandOptions = {}): Promise<Process> {
    const [request, body] = execBody(command, options);
    const json = { ...body, detach: true };
    const path = `${this.path}/exec`;
    const { pid } = await this.transport.json<Schemas['Detached']>({ method: 'POST', path, json, options: request });
    return this.connect(pid);
  }

  /** A process that was started before, by its pid. */
  connect(pid: number): Process {
    return new Process(this.transport, at(`${this.path}/processes`, pid), pid);
  }

  /** The running processes that were started through the API. */
  async list(options?: RequestOptions): Promise<ProcessInfo[]> {
    const path = `${this.path}/processes`;
    return (await this.transport.json<Schemas['ProcessList']>({ method: 'GET', path, options })).items;
  }

  private async runStreamed(command: Command, options: CommandOptions): Promise<CommandResult> {
    const began = Date.now();
    const output = new Collector();
    let pid = 0;
    for await (const event of this.stream(command, options)) {
      if (event.type === 'start') pid = event.pid;
      output.add(event);
    }
    return { ...output.result(), truncated: output.truncated, pid, durationMs: Date.now() - began };
  }
}

/** A process in a sandbox. It goes on when this program ends. */
export class Process {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
    readonly pid: number,
  ) {}

  /** Output from the beginning, as far as it is kept, then as it comes; the last event is `exit`. */
  async *output(options?: RequestOptions): AsyncGenerator<CommandEvent> {
    const call = { method: 'GET', path: `${this.path}/attach`, query: { tail: true }, options };
    yield* commandEvents(this.transport.events(call));
  }

  /** Waits for the end. */
  async wait(options?: RequestOptions): Promise<ProcessResult> {
    const output = new Collector();
    for await (const event of this.output(options)) output.add(event);
    return output.result();
  }

  /** Sends a signal, by name or number. */
  async kill(signal: string | number = 'KILL', options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'POST', path: `${this.path}/signal`, json: { signal }, options });
  }

  async sendStdin(data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    const headers = { 'content-type': 'application/octet-stream' };
    await this.transport.done({ method: 'POST', path: `${this.path}/stdin`, body: bodyOf(data), headers, options });
  }

  async closeStdin(options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: `${this.path}/stdin`, options });
  }
}

/** Collects the output of a command. */
class Collector {
  truncated = false;
  private readonly stdout: string[] = [];
  private readonly stderr: string[] = [];
  private exit: { exitCode: number; signal: number | null; timedOut: boolean } | undefined;

  add(event: CommandEvent): void {
    switch (event.type) {
      case 'stdout':
      case 'terminal':
        this.stdout.push(event.data);
        break;
      case 'stderr':
        this.stderr.push(event.data);
        break;
      case 'dropped':
        this.truncated = true;
        break;
      case 'exit':
        this.exit = { exitCode: event.exitCode, signal: event.signal, timedOut: event.timedOut };
        break;
      case 'start':
        break;
    }
  }

  result(): ProcessResult {
    if (!this.exit) throw cutStream();
    return { stdout: this.stdout.join(''), stderr: this.stderr.join(''), ...this.exit };
  }
}

function execBody(command: Command, options: CommandOptions): [RequestOptions, Record<string, unknown>] {
  const [request, { stdin, ...rest }] = splitOptions(options);
  const what = typeof command === 'string' ? { command } : { argv: command };
  const input = stdin instanceof Uint8Array ? { stdin_base64: toBase64(stdin) } : { stdin };
  return [request, { ...snakeFields(rest), ...what, ...input }];
}

/** The events of a command, as they come over the wire. */
export async function* commandEvents(events: AsyncIterable<ServerEvent>): AsyncGenerator<CommandEvent> {
  for await (const { name, data } of events) {
    const event = commandEvent(name, data as WireData);
    if (event) yield event;
  }
}

/** The fields of all events; each event has some of them. */
interface WireData {
  pid: number;
  bytes: number;
  exit_code: number;
  signal: number | null;
  timed_out?: boolean;
  data?: string;
  data_base64?: string;
}

/** An event of the wire; nothing for one of a newer server. */
function commandEvent(name: string, data: WireData): CommandEvent | undefined {
  switch (name) {
    case 'start':
      return { type: 'start', pid: data.pid };
    case 'stdout':
    case 'stderr':
    case 'terminal':
      return outputEvent(name, data);
    case 'dropped':
      return { type: 'dropped', bytes: data.bytes };
    case 'exit':
      return { type: 'exit', exitCode: data.exit_code, signal: data.signal, timedOut: data.timed_out ?? false };
    default:
      return undefined;
  }
}

/** Output as text, or bytes where it is not text. */
export function outputEvent(type: OutputEvent['type'], data: { data?: string; data_base64?: string }): OutputEvent {
  if (data.data !== undefined) return { type, data: data.data };
  const bytes = fromBase64(data.data_base64 ?? '');
  return { type, data: textOf(bytes), bytes };
}

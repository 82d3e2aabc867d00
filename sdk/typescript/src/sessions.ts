/** Sessions: shells that keep their working directory, variables and functions between commands. */
import { bodyOf } from './bytes.js';
import { type CommandEvent, commandEvents } from './commands.js';
import { at, type RequestOptions, splitOptions, type Transport } from './transport.js';
import type { Schemas, Session, SessionCommand, SessionDetails, SessionOutput, SessionResult } from './types.js';

/** The wait for a command ends at its limit on the server; the answer may take this much longer. */
const GRACE_S = 30;
const BINARY = { 'content-type': 'application/octet-stream' };

export class Sessions {
  constructor(
    private readonly transport: Transport,
    private readonly path: string,
  ) {}

  async create(name: string, options: RequestOptions & { cwd?: string } = {}): Promise<Session> {
    const [request, rest] = splitOptions(options);
    return this.transport.json<Schemas['Session']>({ method: 'POST', path: this.path, json: { name, ...rest }, options: request });
  }

  async list(options?: RequestOptions): Promise<Session[]> {
    return (await this.transport.json<Schemas['SessionList']>({ method: 'GET', path: this.path, options })).items;
  }

  async get(name: string, options?: RequestOptions): Promise<SessionDetails> {
    return this.transport.json<Schemas['SessionDetails']>({ method: 'GET', path: at(this.path, name), options });
  }

  /** Ends a session with its processes. */
  async delete(name: string, options?: RequestOptions): Promise<void> {
    await this.transport.done({ method: 'DELETE', path: at(this.path, name), options });
  }

  /** Runs a command and waits for its end. After `timeoutS` the wait ends with an error; the command goes on. */
  async run(name: string, command: string, options: RequestOptions & { timeoutS?: number } = {}): Promise<SessionResult> {
    const [request, { timeoutS }] = splitOptions(options);
    const limitS = timeoutS === undefined ? 0 : timeoutS + GRACE_S;
    const json = { command, timeout_s: timeoutS };
    return this.transport.json<Schemas['SessionResult']>({ method: 'POST', path: at(this.path, name, 'exec'), json, options: request, limitS });
  }

  /** Hands a command to the shell and returns its id. */
  async start(name: string, command: string, options?: RequestOptions): Promise<string> {
    const json = { command, detach: true };
    return (await this.transport.json<Schemas['SessionStarted']>({ method: 'POST', path: at(this.path, name, 'exec'), json, options })).id;
  }

  /** A command; it has an `exitCode` when it has ended. */
  async command(name: string, command: string, options?: RequestOptions): Promise<SessionCommand> {
    return this.transport.json<Schemas['SessionCommand']>({ method: 'GET', path: this.one(name, command), options });
  }

  /** The output so far. */
  async logs(name: string, command: string, options?: RequestOptions): Promise<SessionOutput> {
    return this.transport.json<Schemas['SessionOutput']>({ method: 'GET', path: `${this.one(name, command)}/logs`, options });
  }

  /** The output from its beginning, as it comes. */
  async *follow(name: string, command: string, options?: RequestOptions): AsyncGenerator<CommandEvent> {
    yield* commandEvents(this.transport.events({ method: 'GET', path: `${this.one(name, command)}/logs/stream`, options }));
  }

  async sendStdin(name: string, command: string, data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    const call = { method: 'POST', path: `${this.one(name, command)}/stdin`, body: bodyOf(data), headers: BINARY, options };
    await this.transport.done(call);
  }

  private one(name: string, command: string): string {
    return at(this.path, name, 'commands', command);
  }
}

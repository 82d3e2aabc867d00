/** The interface that every back end of the toolkits has, and the code that they share. */
import { fromBase64, textOf, toBase64 } from '../bytes.js';

/** Languages of `run`. `javascript` and `js` are `node`; `bash` and `sh` are `shell`. */
export const SANDBOX_LANGUAGES = ['python', 'node', 'javascript', 'js', 'shell', 'bash', 'sh'] as const;
export type SandboxLanguage = (typeof SANDBOX_LANGUAGES)[number];
export type FileEncoding = 'utf8' | 'base64';

export interface RunOptions {
  /** Default: `python`. */
  language?: SandboxLanguage;
  /** Default: 30, or `defaultTimeoutSeconds` of the toolkit. */
  timeoutSeconds?: number;
  env?: Record<string, string>;
}

export interface ShellOptions {
  timeoutSeconds?: number;
}

export interface SandboxResult {
  /** stdout and stderr in the order in which they were written. */
  output: string;
  exitCode?: number;
  /** Set if the time limit ended it; `exitCode` is then 124. */
  timedOut?: boolean;
}

/** A sandbox that is created when it is first used. Back ends are interchangeable. */
export interface CloudSandbox {
  readonly providerId: string;
  /** The object of the package that drives the sandbox, such as the `Sandbox` of `e2b`. Undefined until the sandbox is created. */
  readonly vendor?: object | undefined;
  /** Creates the sandbox now; otherwise the first call does. */
  start(): Promise<void>;
  /** Runs code in a new process. Rejects if the sandbox cannot be reached. */
  run(code: string, options?: RunOptions): Promise<SandboxResult>;
  shell(command: string, options?: ShellOptions): Promise<SandboxResult>;
  writeFile(path: string, contents: string | Uint8Array, encoding?: FileEncoding): Promise<void>;
  /** The content, or null if there is no such file. */
  readFile(path: string, encoding?: FileEncoding): Promise<string | null>;
  /** Ends the sandbox. It cannot be used afterwards. */
  close(): Promise<void>;
}

/** What a back end does for a sandbox that runs. */
export interface Backend {
  /** The object of the package that drives the sandbox. */
  readonly vendor: object;
  /** Runs a shell command with both streams as one. */
  exec(command: string, timeoutSeconds: number, env: Record<string, string>): Promise<SandboxResult>;
  write(path: string, data: Uint8Array): Promise<void>;
  /** Null if there is no such file. */
  read(path: string): Promise<Uint8Array | null>;
  close(): Promise<void>;
  /** Whether an error says that the sandbox does not exist any more. */
  isGone(error: unknown): boolean;
}

export const DEFAULT_TIMEOUT_SECONDS = 30;

/** A CloudSandbox over a back end that is opened at the first call. */
export class LazySandbox implements CloudSandbox {
  private opening: Promise<Backend> | undefined;
  private opened: Backend | undefined;
  private closed = false;

  constructor(
    readonly providerId: string,
    private readonly open: () => Promise<Backend>,
    private readonly defaultTimeoutSeconds = DEFAULT_TIMEOUT_SECONDS,
  ) {}

  get vendor(): object | undefined {
    return this.opened?.vendor;
  }

  async start(): Promise<void> {
    await this.backend();
  }

  async run(code: string, options: RunOptions = {}): Promise<SandboxResult> {
    const language = options.language ?? 'python';
    const program = PROGRAMS[language];
    if (!program) throw new Error(`unknown language ${JSON.stringify(language)}; there are ${SANDBOX_LANGUAGES.join(', ')}`);
    const limit = this.limit(options.timeoutSeconds);
    const file = `/tmp/.sandbox-run-${crypto.randomUUID()}${program.extension(code)}`;
    const command = `${program.command} ${file}; code=$?; rm -f ${file}; exit $code`;
    return this.use(async (backend) => {
      await backend.write(file, new TextEncoder().encode(code));
      const done = await backend.exec(command, limit, options.env ?? {});
      // What ends a command at its time limit also ends the shell that removes the file.
      if (done.timedOut) await backend.exec(`rm -f ${file}`, DEFAULT_TIMEOUT_SECONDS, {});
      return done;
    });
  }

  async shell(command: string, options: ShellOptions = {}): Promise<SandboxResult> {
    return this.use((backend) => backend.exec(command, this.limit(options.timeoutSeconds), {}));
  }

  async writeFile(path: string, contents: string | Uint8Array, encoding: FileEncoding = 'utf8'): Promise<void> {
    await this.use((backend) => backend.write(path, bytesOf(contents, encoding)));
  }

  async readFile(path: string, encoding: FileEncoding = 'utf8'): Promise<string | null> {
    const data = await this.use((backend) => backend.read(path));
    if (data === null) return null;
    return encoding === 'base64' ? toBase64(data) : textOf(data);
  }

  async close(): Promise<void> {
    this.closed = true;
    const opening = this.opening;
    this.forget();
    // A create that failed has nothing to end.
    const backend = await opening?.catch(() => undefined);
    try {
      await backend?.close();
    } catch (error) {
      if (!backend?.isGone(error)) throw error;
    }
  }

  private limit(seconds: number | undefined): number {
    const limit = seconds ?? this.defaultTimeoutSeconds;
    if (!(limit > 0)) throw new Error(`timeoutSeconds must be above 0, not ${limit}`);
    return limit;
  }

  private backend(): Promise<Backend> {
    if (this.closed) return Promise.reject(new Error('the sandbox is closed'));
    this.opening ??= this.open().then(
      (backend) => {
        if (!this.closed) this.opened = backend;
        return backend;
      },
      (error: unknown) => {
        // The next call tries again.
        this.forget();
        throw error;
      },
    );
    return this.opening;
  }

  private forget(): void {
    this.opening = undefined;
    this.opened = undefined;
  }

  private async use<T>(action: (backend: Backend) => Promise<T>): Promise<T> {
    const opening = this.backend();
    const backend = await opening;
    try {
      return await action(backend);
    } catch (error) {
      if (!backend.isGone(error)) throw error;
      if (this.opening === opening) this.forget();
      const text = 'the sandbox has ended, for example after its idle time; its files are lost, and the next call starts a new one';
      throw new Error(text, { cause: error });
    }
  }
}

interface Program {
  command: string;
  extension(code: string): string;
}

const NODE: Program = { command: 'node', extension: (code) => (isModule(code) ? '.mjs' : '.cjs') };
const SHELL: Program = { command: '$(command -v bash || echo sh)', extension: () => '.sh' };

const PROGRAMS: Readonly<Record<SandboxLanguage, Program>> = {
  python: { command: 'python3 -u', extension: () => '.py' },
  node: NODE,
  javascript: NODE,
  js: NODE,
  shell: SHELL,
  bash: SHELL,
  sh: SHELL,
};

/** Whether JavaScript has to run as a module: it imports, or waits at the top level. */
function isModule(code: string): boolean {
  if (/^\s*(import|export)\b/m.test(code)) return true;
  return /\bawait\b/.test(code) && !/\brequire\(/.test(code);
}

function bytesOf(contents: string | Uint8Array, encoding: FileEncoding): Uint8Array {
  if (typeof contents !== 'string') return contents;
  return encoding === 'base64' ? fromBase64(contents) : new TextEncoder().encode(contents);
}

// Commands that were run on the page of a thread, by sandbox, until the page is reloaded.
import { ApiFailure, sandboxPath, stream } from './api';

/** LIMIT: characters of output that are kept of one command. */
const OUTPUT_MOST = 200_000;
/** LIMIT: commands that are kept of one sandbox. */
const COMMANDS_MOST = 50;

export interface RunCommand {
  id: number;
  command: string;
  output: string;
  state: 'running' | 'done' | 'failed';
  exitCode: number | undefined;
  failure: unknown;
}

let next = 1;

class Commands {
  bySandbox = $state<Record<string, RunCommand[]>>({});

  of(sandbox: string): RunCommand[] {
    return this.bySandbox[sandbox] ?? [];
  }

  /** Runs a shell command and follows its output. */
  async run(sandbox: string, command: string): Promise<void> {
    this.bySandbox[sandbox] = [
      ...this.of(sandbox).slice(1 - COMMANDS_MOST),
      { id: next++, command, output: '', state: 'running', exitCode: undefined, failure: undefined },
    ];
    const mine = this.bySandbox[sandbox]!.at(-1)!;
    try {
      for await (const event of stream(sandboxPath(sandbox, 'exec', 'stream'), { method: 'POST', body: { command } })) take(mine, event.name, event.data);
      if (mine.state === 'running') mine.state = 'done';
    } catch (error) {
      mine.failure = error;
      mine.state = 'failed';
    }
  }
}

function take(run: RunCommand, name: string, data: unknown): void {
  if (name === 'stdout' || name === 'stderr') {
    const { data: text, data_base64: encoded } = data as { data?: string; data_base64?: string };
    run.output = (run.output + (text ?? (encoded ? atob(encoded) : ''))).slice(-OUTPUT_MOST);
  } else if (name === 'exit') {
    run.exitCode = (data as { exit_code: number }).exit_code;
    run.state = 'done';
  } else if (name === 'error') {
    const error = data as { code: string; message: string; hint?: string };
    run.failure = new ApiFailure(0, error.code, error.message, error.hint);
    run.state = 'failed';
  }
}

export const commands = new Commands();

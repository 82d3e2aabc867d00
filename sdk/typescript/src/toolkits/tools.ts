/** The four tools of a sandbox, in a form that every agent framework can take: a name, a JSON schema, a function. */
import { type CloudSandbox, type FileEncoding, SANDBOX_LANGUAGES, type SandboxLanguage, type SandboxResult } from './cloud_sandbox.js';

export interface SandboxTool {
  readonly name: string;
  readonly description: string;
  /** JSON schema of the arguments. */
  readonly parameters: JsonSchema;
  /** The answer for the model. A failure is an answer too: its text begins with `error: `. */
  execute(args: Record<string, unknown>): Promise<string>;
}

export interface JsonSchema {
  type: 'object';
  properties: Record<string, { type: string; description: string; enum?: string[] }>;
  required: string[];
  additionalProperties: false;
}

export interface ToolSettings {
  /** LIMIT: characters of output that a model gets; of a longer one, the beginning and the end. Default: 50,000. */
  maxOutputChars?: number;
}

type Property = JsonSchema['properties'][string];

const MAX_OUTPUT_CHARS = 50_000;
const TIMEOUT: Property = { type: 'number', description: 'Time limit in seconds.' };
const PATH: Property = { type: 'string', description: 'Path of the file in the sandbox.' };
const ENCODING: Property = { type: 'string', description: 'Default: utf8.', enum: ['utf8', 'base64'] };
const LANGUAGE: Property = { type: 'string', description: 'Default: python.', enum: [...SANDBOX_LANGUAGES] };

/** `sandbox_<provider>_run`, `_shell`, `_write_file` and `_read_file`. */
export function sandboxTools(sandbox: CloudSandbox, settings: ToolSettings = {}): SandboxTool[] {
  const prefix = `sandbox_${sandbox.providerId}`;
  const most = settings.maxOutputChars ?? MAX_OUTPUT_CHARS;
  const said = (result: SandboxResult) => JSON.stringify({ ...result, output: shorten(result.output, most) });
  return [
    tool(
      `${prefix}_run`,
      'Runs code in an isolated sandbox, in a new process. Files stay for later calls. Returns JSON with output and exitCode.',
      { code: { type: 'string', description: 'The code to run.' }, language: LANGUAGE, timeoutSeconds: TIMEOUT },
      ['code'],
      async ({ code, language, timeoutSeconds }) =>
        said(await sandbox.run(code as string, options({ language: language as SandboxLanguage, timeoutSeconds: timeoutSeconds as number }))),
    ),
    tool(
      `${prefix}_shell`,
      'Runs a shell command in an isolated sandbox. Returns JSON with output and exitCode.',
      { command: { type: 'string', description: 'The command.' }, timeoutSeconds: TIMEOUT },
      ['command'],
      async ({ command, timeoutSeconds }) =>
        said(await sandbox.shell(command as string, options({ timeoutSeconds: timeoutSeconds as number }))),
    ),
    tool(
      `${prefix}_write_file`,
      'Writes a file in the sandbox. Returns ok.',
      { path: PATH, contents: { type: 'string', description: 'The whole content.' }, encoding: ENCODING },
      ['path', 'contents'],
      async ({ path, contents, encoding }) => {
        await sandbox.writeFile(path as string, contents as string, encoding as FileEncoding);
        return 'ok';
      },
    ),
    tool(
      `${prefix}_read_file`,
      'Reads a file of the sandbox. Returns its content, or [file not found].',
      { path: PATH, encoding: ENCODING },
      ['path'],
      async ({ path, encoding }) => {
        const content = await sandbox.readFile(path as string, encoding as FileEncoding);
        return content === null ? '[file not found]' : shorten(content, most);
      },
    ),
  ];
}

function tool(
  name: string,
  description: string,
  properties: JsonSchema['properties'],
  required: string[],
  execute: (args: Record<string, unknown>) => Promise<string>,
): SandboxTool {
  const parameters: JsonSchema = { type: 'object', properties, required, additionalProperties: false };
  return {
    name,
    description,
    parameters,
    execute: async (args) => {
      try {
        checkArguments(parameters, args);
        return await execute(args);
      } catch (error) {
        return `error: ${errorText(error)}`;
      }
    },
  };
}

/** The message with its cause: packages often say only "fetch failed". */
function errorText(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause instanceof Error ? error.cause.message || (error.cause as { code?: string }).code : undefined;
  return cause && !error.message.includes(cause) ? `${error.message} (${cause})` : error.message;
}

/** Models make mistakes; the text tells them which. A null is an argument that was left out. */
function checkArguments(schema: JsonSchema, args: Record<string, unknown>): void {
  for (const name of schema.required) {
    if (args?.[name] === undefined || args[name] === null) throw new Error(`the argument ${name} is missing`);
  }
  for (const [name, value] of Object.entries(args)) {
    const property = schema.properties[name];
    if (!property) throw new Error(`there is no argument ${name}; there are ${Object.keys(schema.properties).join(', ')}`);
    if (value === undefined || value === null) continue;
    if (typeof value !== property.type) throw new Error(`${name} must be a ${property.type}`);
    if (property.enum && !property.enum.includes(value as string)) throw new Error(`${name} must be one of ${property.enum.join(', ')}`);
  }
}

/** Without the fields that a model left out. */
function options<T extends object>(values: T): T {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== null)) as T;
}

function shorten(text: string, most: number): string {
  if (text.length <= most) return text;
  const half = Math.floor(most / 2);
  return `${text.slice(0, half)}\n[… ${text.length - 2 * half} characters left out …]\n${text.slice(-half)}`;
}

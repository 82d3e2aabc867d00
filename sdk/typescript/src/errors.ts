/** Errors. Every failed call throws an `AtollError`; the subclass says which kind of failure it is. */
import { ERROR_STATUS } from './generated/error_codes.js';

/** What an error is made from: the envelope of the server, and the status of its answer. */
export interface ErrorDetails {
  /** HTTP status; 0 if there was no answer. */
  status: number;
  /** A code of the table in docs/errors.md, such as `sandbox_not_found`. */
  code: string;
  message: string;
  /** What to try. */
  hint?: string | undefined;
  /** The field of the request that is wrong. */
  field?: string | undefined;
  /** The id of the request in the server's log. */
  requestId?: string | undefined;
  /** Seconds after which a new attempt makes sense. */
  retryAfterS?: number | undefined;
  cause?: unknown;
}

export class AtollError extends Error {
  readonly status: number;
  readonly code: string;
  readonly hint: string | undefined;
  readonly field: string | undefined;
  readonly requestId: string | undefined;
  readonly retryAfterS: number | undefined;

  constructor(details: ErrorDetails) {
    super(details.message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.status = details.status;
    this.code = details.code;
    this.hint = details.hint;
    this.field = details.field;
    this.requestId = details.requestId;
    this.retryAfterS = details.retryAfterS;
  }

  /** The message with the hint and the request id. */
  override toString(): string {
    const hint = this.hint ? `\nhint: ${this.hint}` : '';
    const request = this.requestId ? `\nrequest: ${this.requestId}` : '';
    return `${this.name}: ${this.message} (${this.code})${hint}${request}`;
  }
}

/** A field of the request is wrong. */
export class InvalidError extends AtollError {}
/** There is no key, or an invalid one. */
export class AuthenticationError extends AtollError {}
/** The key may not do this. */
export class ForbiddenError extends AtollError {}
/** The object does not exist, or belongs to another tenant. */
export class NotFoundError extends AtollError {}
/** The object exists already, or its state does not allow this. */
export class ConflictError extends AtollError {}
/** A quota or a limit is reached. */
export class ExhaustedError extends AtollError {}
/** Temporarily not possible. */
export class UnavailableError extends AtollError {}
/** The server, its provider or this program cannot do this. */
export class UnsupportedError extends AtollError {}
/** An error in the server. */
export class InternalError extends AtollError {}

/** No answer within the time limit of the request. The server may have carried it out. */
export class RequestTimeoutError extends AtollError {
  constructor(what: string, seconds: number) {
    super({
      status: 0,
      code: 'request_timeout',
      message: `${what}: no answer within ${seconds} seconds`,
      hint: 'set a longer timeoutS in new Atoll({...}), or requestTimeoutS for this call',
    });
  }
}

/** The server could not be reached, or the connection broke. */
export class ConnectionFailedError extends AtollError {
  constructor(what: string, cause: unknown) {
    super({
      status: 0,
      code: 'connection_failed',
      message: `${what}: ${reasonOf(cause)}`,
      hint: 'check that the server runs and that ATOLL_URL is its address',
      cause,
    });
  }
}

// fetch says only "fetch failed"; the reason is in its cause, or in the errors of the addresses that were tried.
function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const inner = cause.cause as { message?: string; code?: string; errors?: unknown[] } | undefined;
  const tried = inner?.errors?.[0];
  if (tried instanceof Error) return tried.message;
  return inner?.message || inner?.code || cause.message;
}

const CLASSES: Readonly<Record<number, new (details: ErrorDetails) => AtollError>> = {
  400: InvalidError,
  401: AuthenticationError,
  403: ForbiddenError,
  404: NotFoundError,
  405: InvalidError,
  408: UnavailableError,
  409: ConflictError,
  413: ExhaustedError,
  415: InvalidError,
  416: InvalidError,
  421: ConflictError,
  429: ExhaustedError,
  500: InternalError,
  501: UnsupportedError,
  502: UnavailableError,
  503: UnavailableError,
  504: UnavailableError,
  507: ExhaustedError,
  508: ExhaustedError,
};

/** An error of the class that fits its status. */
export function errorOf(details: ErrorDetails): AtollError {
  const known = CLASSES[details.status];
  return new (known ?? (details.status >= 500 ? InternalError : InvalidError))(details);
}

/** An error that a stream reports as its last event: it has a code, but no status. */
export function streamError(data: { code: string; message: string; hint?: string }): AtollError {
  return errorOf({ ...data, status: ERROR_STATUS[data.code] ?? 500 });
}

/** A stream that ended before its last event. */
export function cutStream(): AtollError {
  const message = 'the stream ended early: the server was stopped';
  return new UnavailableError({ status: 0, code: 'stream_cut', message, hint: 'connect again when the server runs' });
}

/** The error in an answer that is not a success. */
export async function answerError(response: Response): Promise<AtollError> {
  const header = (name: string) => response.headers.get(name) ?? undefined;
  const retryAfter = Number(header('retry-after'));
  const base = {
    status: response.status,
    requestId: header('x-request-id'),
    retryAfterS: Number.isFinite(retryAfter) && header('retry-after') ? retryAfter : undefined,
  };
  const text = await response.text().catch(() => '');
  try {
    const body = JSON.parse(text) as { code?: string; message?: string; hint?: string; field?: string; request_id?: string };
    if (typeof body.code === 'string' && typeof body.message === 'string') {
      const { code, message, hint, field } = body;
      return errorOf({ ...base, code, message, hint, field, requestId: body.request_id ?? base.requestId });
    }
  } catch {
    // Not from Atoll: a proxy, or another program at this address.
  }
  const hint = 'the answer is not from Atoll: check the address of the server';
  return errorOf({ ...base, code: 'unknown', message: `the server answered ${response.status}`, hint });
}

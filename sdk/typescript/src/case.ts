/** Names of fields: the API has snake_case, TypeScript has camelCase. */
import { OPAQUE_FIELDS } from './generated/opaque_fields.js';

type CamelName<S extends string> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<CamelName<Tail>>}` : S;

/** A type of the API with camelCase names. Maps with keys of the user keep them. */
export type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? string extends keyof T
      ? T
      : { [Name in keyof T as Name extends string ? CamelName<Name> : Name]: Camel<T[Name]> }
    : T;

/** `timeout_s` becomes `timeoutS`. */
export function camelName(name: string): string {
  return name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** `timeoutS` becomes `timeout_s`. */
export function snakeName(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Renames the fields of an answer of the API. */
export function camelFields<T>(value: T): Camel<T> {
  return rename(value, (name) => name, camelName) as Camel<T>;
}

/** Renames the fields of options into those of a request. Fields that are undefined are left out. */
export function snakeFields(value: object): Record<string, unknown> {
  return rename(value, snakeName, snakeName) as Record<string, unknown>;
}

function rename(value: unknown, wireName: (name: string) => string, newName: (name: string) => string): unknown {
  if (Array.isArray(value)) return value.map((item) => rename(item, wireName, newName));
  if (value === null || typeof value !== 'object') return value;
  const fields: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    if (field === undefined) continue;
    fields[newName(name)] = OPAQUE_FIELDS.has(wireName(name)) ? field : rename(field, wireName, newName);
  }
  return fields;
}

/** Bytes and text, with what every platform has. */

/** What can be sent as the content of a file. */
export type FileData = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array>;

/** What `fetch` sends; the name of this type differs between platforms. */
export type RequestBody = NonNullable<RequestInit['body']>;

export function bodyOf(data: FileData): RequestBody {
  return data as RequestBody;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = '';
  // LIMIT: the number of arguments of one call.
  for (let start = 0; start < bytes.length; start += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(binary);
}

export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

export const textOf = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

const MAGIC: [string, number, number[]][] = [
  ['image/png', 0, [0x89, 0x50, 0x4e, 0x47]],
  ['image/jpeg', 0, [0xff, 0xd8, 0xff]],
  ['image/gif', 0, [0x47, 0x49, 0x46, 0x38]],
  ['image/webp', 8, [0x57, 0x45, 0x42, 0x50]],
  ['image/bmp', 0, [0x42, 0x4d]],
];

/** The type of a raster image by its first bytes. */
export function rasterType(bytes: Uint8Array): string | undefined {
  return MAGIC.find(([, from, magic]) => magic.every((byte, index) => bytes[from + index] === byte))?.[0];
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  try {
    const raw = atob(text.replace(/\s/g, ''));
    const bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
    return bytes;
  } catch {
    return new Uint8Array();
  }
}

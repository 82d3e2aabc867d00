import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { gzipSync } from 'node:zlib';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

/** The folder that `crates/fronts/ui` embeds. */
const EMBEDDED = join(import.meta.dirname, '../crates/fronts/ui/dist');

/** Writes every file of the build, compressed, where the Rust crate embeds it. */
function embed(): Plugin {
  let from = '';
  return {
    name: 'atoll-embed',
    apply: 'build',
    configResolved(config) {
      from = join(config.root, config.build.outDir);
    },
    closeBundle() {
      for (const name of readdirSync(EMBEDDED)) {
        if (name !== '.gitignore') rmSync(join(EMBEDDED, name), { recursive: true });
      }
      const all = createHash('sha256');
      let bytes = 0;
      for (const entry of readdirSync(from, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile()) continue;
        const path = join(entry.parentPath, entry.name);
        const target = join(EMBEDDED, `${relative(from, path)}.gz`);
        const compressed = gzipSync(readFileSync(path), { level: 9 });
        mkdirSync(join(target, '..'), { recursive: true });
        writeFileSync(target, compressed);
        all.update(compressed);
        bytes += compressed.length;
      }
      console.log(`web: ${Math.round(bytes / 1024)} KiB compressed, ${all.digest('hex').slice(0, 12)}`);
    },
  };
}

const server = process.env['ATOLL_URL'] ?? 'http://127.0.0.1:7070';

export default defineConfig({
  base: '/ui/',
  plugins: [svelte(), embed()],
  build: {
    outDir: 'dist',
    target: 'es2022',
    modulePreload: { polyfill: false },
    // A data: URL would need a wider content security policy.
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
  },
  server: {
    proxy: {
      '/v1': { target: server, changeOrigin: false, ws: true },
      '/docs': server,
      '/health': server,
    },
  },
});

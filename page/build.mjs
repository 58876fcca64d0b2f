// Bundles the script of the page into the Python package, with the licences of what is in it.
import { build } from "esbuild";
//
//     node build.mjs [FOLDER]
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const assets = process.argv[2] ?? "../torchprof_hooks/documents/render/assets";

const result = await build({
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "ascii",
  legalComments: "none",
  metafile: true,
  write: false,
});

const [bundle] = result.outputFiles;
if (/<\/script|<!--/i.test(bundle.text)) {
  throw new Error("the bundle would end the <script> that it is in");
}
writeFileSync(join(assets, "page.js"), bundle.text);

const packages = Object.keys(result.metafile.inputs)
  .map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1])
  .filter(Boolean);
const licences = [...new Set(packages)].sort().map((name) => {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const text = readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
  return `${name} ${version}\n\n${text}\n`;
});
const head = "page.js contains the packages below, each under its own licence.\n";
writeFileSync(join(assets, "LICENSES.txt"), [head, ...licences].join("\n" + "-".repeat(72) + "\n\n"));

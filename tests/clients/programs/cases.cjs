// Runs one case of a program: `node PROGRAM.cjs CASE BUCKET`. The server is that of the TW_* variables.

"use strict";

const crypto = require("node:crypto");

const endpoint = new URL(process.env.TW_ENDPOINT);

const server = {
  endpoint,
  region: process.env.TW_REGION || "us-east-1",
  accessKey: process.env.TW_ACCESS_KEY,
  secretKey: process.env.TW_SECRET_KEY,
};

// Incompressible bytes; the same for the same size and seed.
function payload(size, seed = 0) {
  const cipher = crypto.createCipheriv("aes-128-ctr", Buffer.alloc(16, seed), Buffer.alloc(16));
  return cipher.update(Buffer.alloc(size));
}

async function listed(stream) {
  const entries = [];
  for await (const entry of stream) entries.push(entry);
  return entries;
}

async function collect(stream) {
  return Buffer.concat(await listed(stream));
}

async function bodyOf(url, options = {}) {
  const response = await fetch(url, options);
  return { status: response.status, body: Buffer.from(await response.arrayBuffer()) };
}

function main(cases) {
  const [name, bucket] = process.argv.slice(2);
  if (!cases[name]) throw new Error(`no case ${name}; there are ${Object.keys(cases).join(", ")}`);
  cases[name](bucket).then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { bodyOf, collect, listed, main, payload, server };

// The AWS SDK for JavaScript with its default settings: presigned URLs, uploads of streams, copies, listings.

"use strict";

const assert = require("node:assert");
const { Readable } = require("node:stream");
const s3 = require("@aws-sdk/client-s3");
const { Upload } = require("@aws-sdk/lib-storage");
const { getSignedUrl } = require("@aws-sdk/s3-request-presigner");
const { bodyOf, collect, listed, main, payload, server } = require("./cases.cjs");

const MIB = 1 << 20;

const client = new s3.S3Client({
  endpoint: server.endpoint.href,
  region: server.region,
  credentials: { accessKeyId: server.accessKey, secretAccessKey: server.secretKey },
  forcePathStyle: true,
  maxAttempts: 1,
});

const send = (name, input) => client.send(new s3[`${name}Command`](input));
const presigned = (name, input) => getSignedUrl(client, new s3[`${name}Command`](input), { expiresIn: 60 });

async function stored(bucket, key, options = {}) {
  const { Body } = await send("GetObject", { Bucket: bucket, Key: key, ...options });
  return collect(Body);
}

async function rejected(promise, name, status) {
  await assert.rejects(promise, (error) => {
    assert.strictEqual(error.name, name, error);
    assert.strictEqual(error.$metadata.httpStatusCode, status, error);
    return true;
  });
}

main({
  async presigned_put_and_get(bucket) {
    const url = await presigned("PutObject", { Bucket: bucket, Key: "by URL+é" });
    // What the client adds by default: the checksum of an empty body, which is not the body that will be sent.
    assert.match(url, /x-amz-checksum-crc32=AAAAAA%3D%3D/);
    for (const body of ["first body", "", "second"]) {
      const put = await bodyOf(url, { method: "PUT", body });
      assert.strictEqual(put.status, 200, put.body.toString());
      const get = await bodyOf(await presigned("GetObject", { Bucket: bucket, Key: "by URL+é" }));
      assert.deepStrictEqual([get.status, get.body.toString()], [200, body]);
    }
    const head = await fetch(await presigned("HeadObject", { Bucket: bucket, Key: "by URL+é" }), { method: "HEAD" });
    assert.deepStrictEqual([head.status, head.headers.get("content-length")], [200, "6"]);
    const gone = await bodyOf(await presigned("DeleteObject", { Bucket: bucket, Key: "by URL+é" }), { method: "DELETE" });
    assert.strictEqual(gone.status, 204);
  },

  async presigned_put_with_headers(bucket) {
    const input = { Bucket: bucket, Key: "typed", ContentType: "text/x-test", Metadata: { colour: "blue" } };
    const url = await presigned("PutObject", input);
    const put = await bodyOf(url, { method: "PUT", body: "typed", headers: { "content-type": "text/x-test" } });
    assert.strictEqual(put.status, 200, put.body.toString());
    const head = await send("HeadObject", { Bucket: bucket, Key: "typed" });
    assert.deepStrictEqual([head.ContentType, head.Metadata], ["text/x-test", { colour: "blue" }]);
  },

  async presigned_parts(bucket) {
    const name = { Bucket: bucket, Key: "in parts by URL" };
    const { UploadId } = await send("CreateMultipartUpload", name);
    const parts = [payload(5 * MIB), payload(1000, 1)];
    const Parts = [];
    for (const [index, body] of parts.entries()) {
      const url = await presigned("UploadPart", { ...name, UploadId, PartNumber: index + 1 });
      const response = await fetch(url, { method: "PUT", body });
      assert.strictEqual(response.status, 200, await response.text());
      Parts.push({ PartNumber: index + 1, ETag: response.headers.get("etag") });
    }
    await send("CompleteMultipartUpload", { ...name, UploadId, MultipartUpload: { Parts } });
    assert((await stored(bucket, name.Key)).equals(Buffer.concat(parts)));
  },

  async default_checksums_are_stored(bucket) {
    const put = await send("PutObject", { Bucket: bucket, Key: "sum", Body: "123456789" });
    assert.strictEqual(put.ChecksumCRC32, "y/Q5Jg==");
    const get = await send("GetObject", { Bucket: bucket, Key: "sum", ChecksumMode: "ENABLED" });
    assert.strictEqual(get.ChecksumCRC32, "y/Q5Jg==");
    assert.strictEqual((await collect(get.Body)).toString(), "123456789");
    for (const ChecksumAlgorithm of ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]) {
      const Body = Readable.from([Buffer.from("1234"), Buffer.from("56789")], { objectMode: false });
      const streamed = await send("PutObject", { Bucket: bucket, Key: "sum", Body, ContentLength: 9, ChecksumAlgorithm });
      assert(streamed[`Checksum${ChecksumAlgorithm}`], ChecksumAlgorithm);
    }
    await rejected(send("PutObject", { Bucket: bucket, Key: "sum", Body: "x", ChecksumCRC32: "AAAAAA==" }), "BadDigest", 400);
  },

  async streamed_upload(bucket) {
    for (const size of [3, 5 * MIB, 12 * MIB + 1]) {
      const data = payload(size);
      const pieces = Array.from({ length: Math.ceil(size / 70000) }, (_, n) => data.subarray(n * 70000, (n + 1) * 70000));
      const params = { Bucket: bucket, Key: `stream-${size}`, Body: Readable.from(pieces, { objectMode: false }) };
      await new Upload({ client, params, partSize: 5 * MIB, queueSize: 3 }).done();
      assert((await stored(bucket, `stream-${size}`)).equals(data), `${size}`);
    }
  },

  async aborted_upload(bucket) {
    const body = Readable.from((async function* () {
      yield payload(6 * MIB);
      throw new Error("the source failed");
    })(), { objectMode: false });
    const upload = new Upload({ client, params: { Bucket: bucket, Key: "aborted", Body: body }, partSize: 5 * MIB });
    await assert.rejects(upload.done(), /the source failed/);
    const { Uploads = [] } = await send("ListMultipartUploads", { Bucket: bucket, Prefix: "aborted" });
    assert.deepStrictEqual(Uploads, []);
    await rejected(send("HeadObject", { Bucket: bucket, Key: "aborted" }), "NotFound", 404);
  },

  async copies_of_odd_keys(bucket) {
    for (const key of ["copy/a b", "copy/a+b", "copy/a%20b", "copy/ü?#&=", "copy/日本"]) {
      await send("PutObject", { Bucket: bucket, Key: key, Body: key, Metadata: { n: "1" } });
    }
    for (const key of ["copy/a b", "copy/a+b", "copy/a%20b", "copy/ü?#&=", "copy/日本"]) {
      await send("CopyObject", { Bucket: bucket, Key: `to/${key}`, CopySource: `${bucket}/${encodeURIComponent(key)}` });
      assert.strictEqual((await stored(bucket, `to/${key}`)).toString(), key);
      assert.deepStrictEqual((await send("HeadObject", { Bucket: bucket, Key: `to/${key}` })).Metadata, { n: "1" });
    }
    const copy = send("CopyObject", { Bucket: bucket, Key: "to/x", CopySource: `${bucket}/not%20there` });
    await rejected(copy, "NoSuchKey", 404);
  },

  async pages_of_listings(bucket) {
    const keys = Array.from({ length: 25 }, (_, n) => `list/${n % 5}/${String(n).padStart(4, "0")} é`).sort();
    await Promise.all(keys.map((Key) => send("PutObject", { Bucket: bucket, Key, Body: "x" })));
    const pages = await listed(s3.paginateListObjectsV2({ client, pageSize: 7 }, { Bucket: bucket, Prefix: "list/" }));
    assert.deepStrictEqual(pages.flatMap((page) => page.Contents.map((object) => object.Key)), keys);
    const folders = await send("ListObjectsV2", { Bucket: bucket, Prefix: "list/", Delimiter: "/" });
    assert.strictEqual(folders.CommonPrefixes.length, 5);
    const deleted = await send("DeleteObjects", { Bucket: bucket, Delete: { Objects: keys.map((Key) => ({ Key })) } });
    assert.strictEqual(deleted.Deleted.length, keys.length);
    assert.strictEqual((await send("ListObjectsV2", { Bucket: bucket, Prefix: "list/" })).KeyCount, 0);
  },

  async conditional_writes(bucket) {
    const name = { Bucket: bucket, Key: "once" };
    const { ETag } = await send("PutObject", { ...name, Body: "1", IfNoneMatch: "*" });
    await rejected(send("PutObject", { ...name, Body: "2", IfNoneMatch: "*" }), "PreconditionFailed", 412);
    await send("PutObject", { ...name, Body: "3", IfMatch: ETag });
    await rejected(send("PutObject", { ...name, Body: "4", IfMatch: ETag }), "PreconditionFailed", 412);
    assert.strictEqual((await stored(bucket, "once")).toString(), "3");
    await rejected(send("GetObject", { ...name, IfMatch: ETag }), "PreconditionFailed", 412);
  },

  async versions(bucket) {
    await send("PutBucketVersioning", { Bucket: bucket, VersioningConfiguration: { Status: "Enabled" } });
    const name = { Bucket: bucket, Key: "versioned" };
    const first = await send("PutObject", { ...name, Body: "first" });
    await new Upload({ client, params: { ...name, Body: payload(6 * MIB) }, partSize: 5 * MIB }).done();
    assert.strictEqual((await stored(bucket, "versioned", { VersionId: first.VersionId })).toString(), "first");
    const { DeleteMarker } = await send("DeleteObject", name);
    assert.strictEqual(DeleteMarker, true);
    const { Versions, DeleteMarkers } = await send("ListObjectVersions", { Bucket: bucket, Prefix: "versioned" });
    assert.deepStrictEqual([Versions.length, DeleteMarkers.length, DeleteMarkers[0].IsLatest], [2, 1, true]);
    const url = await presigned("GetObject", { ...name, VersionId: first.VersionId });
    assert.strictEqual((await bodyOf(url)).body.toString(), "first");
    await send("DeleteObject", { ...name, VersionId: DeleteMarkers[0].VersionId });
    assert.strictEqual((await stored(bucket, "versioned")).length, 6 * MIB);
    const CopySource = `${bucket}/versioned?versionId=${first.VersionId}`;
    await send("CopyObject", { ...name, CopySource });
    assert.strictEqual((await stored(bucket, "versioned")).toString(), "first");
  },
});

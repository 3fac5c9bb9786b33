// minio-js against the server: multipart uploads, their resumption, listings, removals, presigned URLs.

"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const minio = require("minio");
const { bodyOf, collect, listed, main, payload, server } = require("./cases.cjs");

const MIB = 1 << 20;

const client = new minio.Client({
  endPoint: server.endpoint.hostname,
  port: Number(server.endpoint.port) || (server.endpoint.protocol === "https:" ? 443 : 80),
  useSSL: server.endpoint.protocol === "https:",
  accessKey: server.accessKey,
  secretKey: server.secretKey,
  region: server.region,
  partSize: 5 * MIB,
});

async function withFile(data, use) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "minio-js-"));
  try {
    const file = path.join(directory, "file");
    fs.writeFileSync(file, data);
    return await use(file, directory);
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
}

// Sends parts 1 to `count` of an upload that is then left unfinished, as an interrupted fPutObject does.
async function leaveUnfinished(bucket, key, data, count) {
  const uploadId = await client.initiateNewMultipartUpload(bucket, key, {});
  for (let partNumber = 1; partNumber <= count; partNumber++) {
    const body = data.subarray((partNumber - 1) * 5 * MIB, partNumber * 5 * MIB);
    await client.uploadPart({ bucketName: bucket, objectName: key, uploadID: uploadId, partNumber, headers: {} }, body);
  }
  return uploadId;
}

main({
  async multipart_uploads(bucket) {
    const data = payload(11 * MIB);
    // Several, because the ids of the first uploads in a store once looked like numbers, which the client's parser rounds.
    await withFile(data, async (file) => {
      for (let n = 0; n < 4; n++) {
        const { etag } = await client.fPutObject(bucket, `large-${n}`, file, { "Content-Type": "video/mp4", "X-Amz-Meta-N": `${n}` });
        assert.match(etag, /-3$/);
        const stat = await client.statObject(bucket, `large-${n}`);
        assert.strictEqual(stat.size, data.length);
        assert.strictEqual(stat.metaData["content-type"], "video/mp4");
        assert.strictEqual(stat.metaData.n, `${n}`);
      }
      await client.fGetObject(bucket, "large-3", `${file}-back`);
      assert(data.equals(fs.readFileSync(`${file}-back`)));
    });
    const tail = await collect(await client.getPartialObject(bucket, "large-0", data.length - 10, 10));
    assert(tail.equals(data.subarray(-10)));
  },

  async upload_ids_stay_strings(bucket) {
    for (let n = 0; n < 40; n++) {
      const uploadId = await client.initiateNewMultipartUpload(bucket, `upload-${n}`, {});
      assert.strictEqual(typeof uploadId, "string");
      const found = await client.findUploadId(bucket, `upload-${n}`);
      assert.strictEqual(found, uploadId);
      await client.abortMultipartUpload(bucket, `upload-${n}`, uploadId);
    }
    assert.deepStrictEqual(await listed(client.listIncompleteUploads(bucket, "upload-", true)), []);
  },

  async resumed_upload(bucket) {
    const data = payload(13 * MIB);
    const uploadId = await leaveUnfinished(bucket, "resumed", data, 2);
    assert.strictEqual(await client.findUploadId(bucket, "resumed"), uploadId);
    await withFile(data, (file) => client.fPutObject(bucket, "resumed", file, {}));
    assert((await collect(await client.getObject(bucket, "resumed"))).equals(data));
    // The upload was resumed, not replaced: none is left.
    assert.deepStrictEqual(await listed(client.listIncompleteUploads(bucket, "resumed", true)), []);
  },

  async removed_upload(bucket) {
    await leaveUnfinished(bucket, "left/over", payload(5 * MIB), 1);
    const left = await listed(client.listIncompleteUploads(bucket, "left/", true));
    assert.deepStrictEqual(left.map((upload) => [upload.key, upload.size]), [["left/over", 5 * MIB]]);
    await client.removeIncompleteUpload(bucket, "left/over");
    assert.deepStrictEqual(await listed(client.listIncompleteUploads(bucket, "left/", true)), []);
  },

  async streams_of_unknown_length(bucket) {
    const data = payload(6 * MIB, 1);
    const { Readable } = require("node:stream");
    await client.putObject(bucket, "stream", Readable.from([data.subarray(0, MIB), data.subarray(MIB)], { objectMode: false }));
    assert((await collect(await client.getObject(bucket, "stream"))).equals(data));
  },

  async odd_keys_listed_copied_removed(bucket) {
    const keys = ["odd/a b", "odd/a+b", "odd/a&b", "odd/ä/日本", "odd/1", "odd/0005", "odd/true", "odd/a%20b", "odd/'q'"].sort();
    for (const key of keys) await client.putObject(bucket, key, key);
    const entries = await listed(client.listObjectsV2(bucket, "odd/", true));
    assert.deepStrictEqual(entries.map((object) => object.name).sort(), keys);
    const listedByFirstVersion = await listed(client.listObjects(bucket, "odd/", true));
    assert.deepStrictEqual(listedByFirstVersion.map((object) => object.name).sort(), keys);
    const folders = await listed(client.listObjectsV2(bucket, "odd/", false));
    assert.deepStrictEqual(folders.filter((entry) => entry.prefix).map((entry) => entry.prefix), ["odd/ä/"]);
    for (const key of keys) {
      await client.copyObject(bucket, `copy/${key}`, `/${bucket}/${key}`, new minio.CopyConditions());
      assert.strictEqual((await collect(await client.getObject(bucket, `copy/${key}`))).toString(), key);
    }
    await client.removeObjects(bucket, keys);
    assert.deepStrictEqual(await listed(client.listObjectsV2(bucket, "odd/", true)), []);
    await client.removeObject(bucket, "copy/odd/1");
    await assert.rejects(client.statObject(bucket, "copy/odd/1"), { code: "NotFound" });
  },

  async presigned_urls(bucket) {
    const put = await client.presignedPutObject(bucket, "pre signed+é", 60);
    assert.strictEqual((await bodyOf(put, { method: "PUT", body: "by URL" })).status, 200);
    const get = await client.presignedGetObject(bucket, "pre signed+é", 60, { "response-content-type": "text/x-test" });
    const { status, body } = await bodyOf(get);
    assert.deepStrictEqual([status, body.toString()], [200, "by URL"]);
    assert.strictEqual((await bodyOf(get.replace("x-test", "x-other"))).status, 403);
  },

  async tags(bucket) {
    await client.putObject(bucket, "tagged", "x");
    await client.setObjectTagging(bucket, "tagged", { colour: "blue + green", n: "1" });
    const tags = await client.getObjectTagging(bucket, "tagged");
    assert.deepStrictEqual(tags.map((tag) => `${tag.Key}=${tag.Value}`).sort(), ["colour=blue + green", "n=1"]);
    await client.removeObjectTagging(bucket, "tagged");
  },

  async versions(bucket) {
    await client.setBucketVersioning(bucket, { Status: "Enabled" });
    assert.strictEqual((await client.getBucketVersioning(bucket)).Status, "Enabled");
    const first = await client.putObject(bucket, "versioned", "first");
    const second = await client.putObject(bucket, "versioned", "second");
    assert(first.versionId && second.versionId && first.versionId !== second.versionId);
    const old = await client.getObject(bucket, "versioned", { versionId: first.versionId });
    assert.strictEqual((await collect(old)).toString(), "first");
    await client.removeObject(bucket, "versioned");
    const entries = await listed(client.listObjects(bucket, "versioned", true, { IncludeVersion: true }));
    assert.strictEqual(entries.length, 3);
    const stored = entries.filter((entry) => !entry.isDeleteMarker);
    assert.deepStrictEqual(stored.map((entry) => entry.versionId), [second.versionId, first.versionId]);
    for (const { versionId } of entries) await client.removeObject(bucket, "versioned", { versionId });
    assert.deepStrictEqual(await listed(client.listObjects(bucket, "versioned", true, { IncludeVersion: true })), []);
  },

  async missing_things(bucket) {
    await assert.rejects(client.getObject(bucket, "not there"), { code: "NoSuchKey" });
    await assert.rejects(client.statObject(bucket, "not there"), { code: "NotFound" });
    assert.strictEqual(await client.bucketExists(`${bucket}-not-there`), false);
    await assert.rejects(client.removeBucket(`${bucket}-not-there`), { code: "NoSuchBucket" });
    await assert.rejects(client.putObject(`${bucket}-not-there`, "key", "x"), { code: "NoSuchBucket" });
    // In us-east-1, S3 reports success to the owner of a bucket that exists.
    await client.makeBucket(bucket, server.region);
  },

  async bucket_settings_never_set(bucket) {
    await assert.rejects(client.getBucketPolicy(bucket), { code: "NoSuchBucketPolicy" });
    await assert.rejects(client.getBucketTagging(bucket), { code: "NoSuchTagSet" });
    await assert.rejects(client.getBucketLifecycle(bucket), { code: "NoSuchLifecycleConfiguration" });
    await assert.rejects(client.getBucketEncryption(bucket), { code: "ServerSideEncryptionConfigurationNotFoundError" });
    await assert.rejects(client.getObjectLockConfig(bucket), { code: "ObjectLockConfigurationNotFoundError" });
    assert(await client.getBucketNotification(bucket));
  },
});

// Deeds of the AWS SDK for JavaScript, each with a client of its own: a line of JSON on the standard input names one.
// Keys are put into the environment. The answer is a line: what was signed, and what was refused, by its code.
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import {
  AbortMultipartUploadCommand,
  CopyObjectCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const expect = (holds, what) => {
  if (!holds) throw new Error(what);
};

const deedsOf = ({ endpoint, bucket, prefix, file }, answer) => {
  const options = { endpoint, region: "us-east-1", forcePathStyle: true };
  const s3 = new S3Client(options);

  const at = (name) => ({ Bucket: bucket, Key: prefix + name });
  const put = (name, body, more = {}) => s3.send(new PutObjectCommand({ ...at(name), Body: body, ...more }));
  const upload = (name, body) =>
    new Upload({ client: s3, params: { ...at(name), Body: body }, partSize: 8 * 1024 ** 2 }).done();
  const remove = async (...names) => {
    const objects = { Objects: names.map((name) => ({ Key: prefix + name })) };
    const { Errors: errors = [] } = await s3.send(new DeleteObjectsCommand({ Bucket: bucket, Delete: objects }));
    answer.refused.push(...errors.map(({ Code: code }) => code));
  };

  return {
    async everything() {
      const { ETag: etag } = await put("a b+c.txt", "hello", { IfNoneMatch: "*" });
      const part = await s3.send(new GetObjectCommand({ ...at("a b+c.txt"), Range: "bytes=1-3" }));
      expect((await part.Body.transformToString()) === "ell", "a range");
      await put("a b+c.txt", "changed", { IfMatch: etag });
      await upload("stream", createReadStream(file));
      const whole = await s3.send(new GetObjectCommand(at("stream")));
      expect(Buffer.compare(await whole.Body.transformToByteArray(), await readFile(file)) === 0, "what was uploaded");
      await s3.send(new CopyObjectCommand({ ...at("copy"), CopySource: `${bucket}/${prefix}stream` }));
      const { Contents: listed } = await s3.send(new ListObjectsV2Command({ Bucket: bucket, Prefix: prefix }));
      expect(listed.map(({ Key: key }) => key.slice(prefix.length)).join() === "a b+c.txt,copy,stream", "a listing");
      const begun = await s3.send(new CreateMultipartUploadCommand(at("begun")));
      await s3.send(new AbortMultipartUploadCommand({ ...at("begun"), UploadId: begun.UploadId }));
      await s3.send(new DeleteObjectCommand(at("copy")));
      await remove("a b+c.txt", "stream");
    },
    presign: async () => {
      for (const command of [PutObjectCommand, GetObjectCommand, DeleteObjectCommand])
        answer.urls.push(await getSignedUrl(s3, new command(at("k")), { expiresIn: 600 }));
    },
    put: () => put("there", "zombie"),
    putOnCondition: () => put("new", "zombie", { IfNoneMatch: "*" }),
    uploadInParts: () => upload("there", createReadStream(file)),
    uploadSmall: () => upload("there", "zombie"),
    copy: () => s3.send(new CopyObjectCommand({ ...at("there"), CopySource: `${bucket}/${prefix}source` })),
    delete: () => s3.send(new DeleteObjectCommand(at("there"))),
    deleteMany: () => remove("there", "source"),
  };
};

for await (const line of createInterface({ input: process.stdin })) {
  const { deed, keys, ...where } = JSON.parse(line);
  Object.assign(process.env, keys);
  const answer = { urls: [], refused: [], error: "" };
  try {
    await deedsOf(where, answer)[deed]();
  } catch (error) {
    answer.refused.push(error.name);
    answer.error = error.stack;
  }
  console.log(JSON.stringify(answer));
}

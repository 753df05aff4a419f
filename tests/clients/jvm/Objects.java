// Deeds of the AWS SDK for Java and of Hadoop's S3A file system: a line of JSON on the standard input names one.
// The answer is a line: what the deed found, and the text of the refusal. The classpath is the folder lib.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.s3a.s3guard.S3GuardTool;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.JobStatus;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitterFactory;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.ResponseBytes;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.Delete;
import software.amazon.awssdk.services.s3.model.DeleteObjectsResponse;
import software.amazon.awssdk.services.s3.model.GetObjectResponse;
import software.amazon.awssdk.services.s3.model.ObjectIdentifier;
import software.amazon.awssdk.services.s3.model.S3Exception;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;
import software.amazon.awssdk.transfer.s3.S3TransferManager;

public class Objects {
  static final ObjectMapper JSON = new ObjectMapper();
  static final Map<String, Job> JOBS = new java.util.HashMap<>();

  public static void main(String[] arguments) throws Exception {
    PrintWriter answers = new PrintWriter(System.out, true);
    System.setOut(System.err); // tools of Hadoop print there
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      JsonNode asked = JSON.readTree(line);
      List<String> found = new ArrayList<>();
      String error = "";
      try {
        switch (asked.get("client").asText()) {
          case "sdk" -> new Sdk(asked, found).perform(asked.get("deed").asText());
          case "s3a" -> new Hadoop(asked).perform(asked.get("deed").asText());
          default -> Job.of(asked).perform(asked.get("deed").asText(), found);
        }
      } catch (Throwable failure) {
        StringWriter trace = new StringWriter();
        failure.printStackTrace(new PrintWriter(trace));
        error = trace.toString();
        for (Throwable cause = failure; cause != null; cause = cause.getCause())
          if (cause instanceof S3Exception refused) {
            found.add(refused.awsErrorDetails().errorCode());
            break;
          }
      }
      answers.println(JSON.writeValueAsString(Map.of("found", found, "error", error)));
    }
  }

  static void expect(boolean holds, String what) {
    if (!holds) throw new IllegalStateException(what);
  }

  static String text(JsonNode asked, String name) {
    return asked.get(name).asText();
  }

  /** The client, its asynchronous form with the transfer manager, and the presigner. */
  static class Sdk implements AutoCloseable {
    final String bucket, prefix;
    final Path file;
    final List<String> found;
    final URI endpoint;
    final StaticCredentialsProvider keys;
    final S3Client s3;

    Sdk(JsonNode asked, List<String> found) {
      this.found = found;
      bucket = text(asked, "bucket");
      prefix = text(asked, "prefix");
      file = Path.of(text(asked, "file"));
      endpoint = URI.create(text(asked, "endpoint"));
      String token = text(asked, "token"), key = text(asked, "key"), secret = text(asked, "secret");
      keys = StaticCredentialsProvider.create(
          token.isEmpty() ? AwsBasicCredentials.create(key, secret) : AwsSessionCredentials.create(key, secret, token));
      s3 = S3Client.builder().endpointOverride(endpoint).region(Region.US_EAST_1).forcePathStyle(true)
          .credentialsProvider(keys)
          .overrideConfiguration(b -> {
            if (!text(asked, "header").isEmpty()) b.putHeader("Fencing-Token", text(asked, "header"));
          }).build();
    }

    public void close() {
      s3.close();
    }

    void put(String name, String body) {
      s3.putObject(b -> b.bucket(bucket).key(prefix + name), RequestBody.fromString(body));
    }

    /** Neither is closed, because Netty takes two seconds for that. */
    void upload(String name) {
      S3AsyncClient parts = S3AsyncClient.builder().endpointOverride(endpoint).region(Region.US_EAST_1)
          .forcePathStyle(true).credentialsProvider(keys).multipartEnabled(true).build();
      S3TransferManager.builder().s3Client(parts).build()
          .uploadFile(b -> b.source(file).putObjectRequest(p -> p.bucket(bucket).key(prefix + name)))
          .completionFuture().join();
    }

    void remove(String... names) {
      List<ObjectIdentifier> all =
          Stream.of(names).map(name -> ObjectIdentifier.builder().key(prefix + name).build()).toList();
      DeleteObjectsResponse answer =
          s3.deleteObjects(b -> b.bucket(bucket).delete(Delete.builder().objects(all).build()));
      answer.errors().forEach(one -> found.add(one.code()));
    }

    void everything() throws IOException {
      String etag = s3.putObject(
          b -> b.bucket(bucket).key(prefix + "a b+c/ü.txt").ifNoneMatch("*"), RequestBody.fromString("hello")).eTag();
      ResponseBytes<GetObjectResponse> range =
          s3.getObjectAsBytes(b -> b.bucket(bucket).key(prefix + "a b+c/ü.txt").range("bytes=1-3"));
      expect(range.asUtf8String().equals("ell"), "a range");
      s3.putObject(b -> b.bucket(bucket).key(prefix + "a b+c/ü.txt").ifMatch(etag), RequestBody.fromString("changed"));
      upload("stream");
      byte[] whole = s3.getObjectAsBytes(b -> b.bucket(bucket).key(prefix + "stream")).asByteArray();
      expect(Arrays.equals(whole, Files.readAllBytes(file)), "what was uploaded");
      s3.copyObject(b -> b.sourceBucket(bucket).sourceKey(prefix + "stream")
          .destinationBucket(bucket).destinationKey(prefix + "copy"));
      List<String> listed = s3.listObjectsV2Paginator(b -> b.bucket(bucket).prefix(prefix).maxKeys(2))
          .contents().stream().map(one -> one.key().substring(prefix.length())).toList();
      expect(listed.equals(List.of("a b+c/ü.txt", "copy", "stream")), "a listing: " + listed);
      String begun = s3.createMultipartUpload(b -> b.bucket(bucket).key(prefix + "begun")).uploadId();
      s3.abortMultipartUpload(b -> b.bucket(bucket).key(prefix + "begun").uploadId(begun));
      s3.deleteObject(b -> b.bucket(bucket).key(prefix + "copy"));
      remove("a b+c/ü.txt", "stream");
    }

    void presign() {
      try (S3Presigner signer = S3Presigner.builder().endpointOverride(endpoint).region(Region.US_EAST_1)
          .serviceConfiguration(S3Configuration.builder().pathStyleAccessEnabled(true).build()).credentialsProvider(keys).build()) {
        Duration time = Duration.ofMinutes(10);
        found.add(signer.presignPutObject(b -> b.signatureDuration(time)
            .putObjectRequest(p -> p.bucket(bucket).key(prefix + "k"))).url().toString());
        found.add(signer.presignGetObject(b -> b.signatureDuration(time)
            .getObjectRequest(p -> p.bucket(bucket).key(prefix + "k"))).url().toString());
        found.add(signer.presignDeleteObject(b -> b.signatureDuration(time)
            .deleteObjectRequest(p -> p.bucket(bucket).key(prefix + "k"))).url().toString());
      }
    }

    void perform(String deed) throws IOException {
      try (this) {
        switch (deed) {
          case "everything" -> everything();
          case "presign" -> presign();
          case "put" -> put("there", "zombie");
          case "putOnCondition" -> s3.putObject(
              b -> b.bucket(bucket).key(prefix + "new").ifNoneMatch("*"), RequestBody.fromString("zombie"));
          case "uploadInParts" -> upload("there");
          case "copy" -> s3.copyObject(b -> b.sourceBucket(bucket).sourceKey(prefix + "source")
              .destinationBucket(bucket).destinationKey(prefix + "there"));
          case "delete" -> s3.deleteObject(b -> b.bucket(bucket).key(prefix + "there"));
          case "deleteMany" -> remove("there", "source");
          default -> throw new IllegalArgumentException(deed);
        }
      }
    }
  }

  static Configuration configuration(JsonNode asked) {
    Configuration conf = new Configuration();
    conf.set("fs.s3a.endpoint", text(asked, "endpoint"));
    conf.set("fs.s3a.access.key", text(asked, "key"));
    conf.set("fs.s3a.secret.key", text(asked, "secret"));
    conf.set("fs.s3a.session.token", text(asked, "token"));
    conf.set("fs.s3a.impl.disable.cache", "true");
    conf.set("fs.s3a.multipart.size", "8M");
    conf.set("hadoop.tmp.dir", System.getProperty("user.dir"));
    conf.set("fs.s3a.committer.staging.tmp.path", "file://" + System.getProperty("user.dir") + "/staging");
    asked.get("settings").fields().forEachRemaining(one -> conf.set(one.getKey(), one.getValue().asText()));
    return conf;
  }

  static org.apache.hadoop.fs.Path place(JsonNode asked) {
    return new org.apache.hadoop.fs.Path("s3a://" + text(asked, "bucket") + "/" + text(asked, "prefix"));
  }

  static void write(FileSystem files, org.apache.hadoop.fs.Path path, byte[] body) throws IOException {
    try (FSDataOutputStream out = files.create(path, true)) {
      out.write(body);
    }
  }

  /** Files and directories, as programs on Hadoop handle them. */
  static class Hadoop {
    final FileSystem files;
    final org.apache.hadoop.fs.Path root, name;
    final Configuration conf;
    final byte[] large;

    Hadoop(JsonNode asked) throws IOException {
      conf = configuration(asked);
      root = place(asked);
      name = at(text(asked, "name"));
      files = root.getFileSystem(conf);
      large = Files.readAllBytes(Path.of(text(asked, "file")));
    }

    org.apache.hadoop.fs.Path at(String name) {
      return new org.apache.hadoop.fs.Path(root, name);
    }

    void everything() throws Exception {
      expect(!files.exists(at("out/d/e")), "nothing is there");
      files.mkdirs(at("out/d/e"));
      expect(files.getFileStatus(at("out/d/e")).isDirectory(), "a directory");
      write(files, at("out/d/small ü+"), "hello".getBytes());
      write(files, at("out/d/large"), large);
      try (FSDataInputStream in = files.open(at("out/d/large"))) {
        in.seek(3 << 20);
        expect(in.read() == 3, "a seek");
        in.seek(0);
        expect(Arrays.equals(in.readAllBytes(), large), "what was written");
      }
      write(files, at("out/d/small ü+"), "changed".getBytes());
      expect(names(at("out/d")).equals(List.of("out/d/e", "out/d/large", "out/d/small ü+")), "a listing " + names(at("out/d")));
      expect(files.getContentSummary(at("out/d")).getFileCount() == 2, "a summary");
      expect(files.rename(at("out/d/small ü+"), at("out/d/e/moved")), "a file is renamed");
      expect(files.rename(at("out/d"), at("out/f")), "a directory is renamed");
      expect(!files.exists(at("out/d")) && files.exists(at("out/f/e/moved")), "after the renaming");
      files.createFile(at("out/f/once")).overwrite(false).build().close();
      try {
        files.create(at("out/f/once"), false).close();
        expect(false, "a file is created once");
      } catch (org.apache.hadoop.fs.FileAlreadyExistsException expected) {
        // as it has to be
      }
      createOnce(at("out/f/atomic"));
      expect(files.delete(at("out/f/once"), false), "a file is deleted");
      expect(files.delete(at("out/f"), true), "a directory is deleted");
      expect(files.delete(at("out"), true), "all is deleted");
    }

    void createOnce(org.apache.hadoop.fs.Path path) throws IOException {
      FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
      builder.opt("fs.option.create.conditional.overwrite", true);
      builder.build().close();
    }

    List<String> names(org.apache.hadoop.fs.Path path) throws IOException {
      TreeSet<String> all = new TreeSet<>();
      for (FileStatus one : files.listStatus(path))
        all.add(root.toUri().relativize(one.getPath().toUri()).getPath());
      return List.copyOf(all);
    }

    void perform(String deed) throws Exception {
      try (files) {
        switch (deed) {
          case "everything" -> everything();
          case "create" -> write(files, name, "zombie".getBytes());
          case "createInParts" -> write(files, name, large);
          case "createOnce" -> createOnce(at("new"));
          case "mkdirs" -> files.mkdirs(at("out/directory"));
          case "rename" -> files.rename(name, at("moved"));
          case "delete" -> files.delete(name, true);
          case "abortUploads" -> expect(
              S3GuardTool.run(conf, "uploads", "-abort", "-force", name.toString()) == 0, "uploads are aborted");
          default -> throw new IllegalArgumentException(deed);
        }
      }
    }
  }

  /** One job of Spark or MapReduce with one task, by the committer that the settings name. It stays between its steps. */
  static class Job {
    final TaskAttemptContext task;
    final PathOutputCommitter committer;
    final org.apache.hadoop.fs.Path root;
    final String content;

    Job(JsonNode asked) throws IOException {
      Configuration conf = configuration(asked);
      content = text(asked, "name");
      root = new org.apache.hadoop.fs.Path(place(asked), "table");
      JobID id = new JobID(content, 1);
      TaskAttemptID attempt = new TaskAttemptID(new TaskID(id, TaskType.MAP, 0), 0);
      conf.set("mapreduce.job.id", id.toString());
      conf.set("mapreduce.task.attempt.id", attempt.toString());
      conf.set("mapreduce.output.fileoutputformat.outputdir", root.toString());
      conf.set("fs.s3a.committer.uuid", content);
      task = new TaskAttemptContextImpl(conf, attempt);
      committer = PathOutputCommitterFactory.getCommitterFactory(root, conf).createOutputCommitter(root, task);
    }

    static Job of(JsonNode asked) throws IOException {
      String name = text(asked, "prefix") + text(asked, "name");
      if (!JOBS.containsKey(name)) JOBS.put(name, new Job(asked));
      return JOBS.get(name);
    }

    void perform(String deed, List<String> found) throws IOException {
      switch (deed) {
        case "task" -> {
          committer.setupJob(task);
          committer.setupTask(task);
          org.apache.hadoop.fs.Path file = new org.apache.hadoop.fs.Path(committer.getWorkPath(), "part-0");
          write(file.getFileSystem(task.getConfiguration()), file, content.getBytes());
          expect(committer.needsTaskCommit(task), "the task has something to commit");
          committer.commitTask(task);
          found.add(committer.getClass().getSimpleName());
        }
        case "job" -> committer.commitJob(task);
        case "abort" -> committer.abortJob(task, JobStatus.State.FAILED);
        default -> throw new IllegalArgumentException(deed);
      }
    }
  }
}

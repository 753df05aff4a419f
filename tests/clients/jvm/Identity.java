// Writes an object with nothing but the variables of a pod: its identity token, a role, and the gateway's addresses.
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;

public class Identity {
  public static void main(String[] arguments) {
    try (S3Client s3 = S3Client.builder().forcePathStyle(true).build()) {
      s3.putObject(b -> b.bucket("bucket").key(arguments[0]), RequestBody.fromString("hello"));
      System.out.println(s3.getObjectAsBytes(b -> b.bucket("bucket").key(arguments[0])).asUtf8String());
    }
  }
}

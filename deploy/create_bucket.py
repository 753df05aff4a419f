"""Create the bucket of docker-compose.yml in the store, because the gateway creates none by itself."""

import sys
from pathlib import Path

import boto3

from gateway.config import load

BUCKET = "reports"

store = load(Path(sys.argv[1])).s3
assert store is not None
client = boto3.client(
    "s3",
    endpoint_url=store.endpoint,
    region_name=store.region,
    aws_access_key_id=store.access_key_id,
    aws_secret_access_key=store.secret_access_key[0].get_secret_value(),
)
if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
    client.create_bucket(Bucket=BUCKET)

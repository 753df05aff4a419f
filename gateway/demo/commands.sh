# ── curl: a row of a table ───────────────────────────────────────────────────
# The holder of token @first@ writes.
curl -sS -w '\n' -i -X PATCH '@url@/v1/tables/accounts?id=eq.3' \
  -H 'Fencing-Token: @first@' -H 'Fencing-Holder: first holder' \
  -H 'Content-Type: application/json' -d '{"balance": 110, "note": "first holder"}'

# The lock went to another writer, which got token @second@, and writes too.
curl -sS -w '\n' -i -X PATCH '@url@/v1/tables/accounts?id=eq.3' \
  -H 'Fencing-Token: @second@' -H 'Fencing-Holder: second holder' \
  -H 'Content-Type: application/json' -d '{"balance": 120, "note": "second holder"}'

# The first holder has not noticed: 412, nothing is written.
curl -sS -w '\n' -i -X PATCH '@url@/v1/tables/accounts?id=eq.3' \
  -H 'Fencing-Token: @first@' -H 'Fencing-Holder: first holder' \
  -H 'Content-Type: application/json' -d '{"balance": 999, "note": "zombie"}'
curl -sS -w '\n' '@url@/v1/tables/accounts?id=eq.3'

# A new holder raises the fence before it reads: from here on nothing older is written.
curl -sS -w '\n' -i -X POST '@url@/v1/fences/public.accounts/3/barrier' \
  -H 'Content-Type: application/json' -d '{"token": "@third@", "holder": "third holder"}'
curl -sS -w '\n' '@url@/v1/fences/public.accounts/3'

# The refused writer, the refused write, and the writer that had taken over.
curl -sS -w '\n' '@url@/v1/rejections?limit=5'

# ── aws: an object ───────────────────────────────────────────────────────────
printf 'balance: 110\n' > /tmp/2024.txt

AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_DEFAULT_REGION=us-east-1 AWS_PAGER= \
  @aws@ --endpoint-url @url@ s3api put-object --bucket reports --key 2024.txt \
  --body /tmp/2024.txt --metadata fencing-token=@first@

AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_DEFAULT_REGION=us-east-1 AWS_PAGER= \
  @aws@ --endpoint-url @url@ s3api put-object --bucket reports --key 2024.txt \
  --body /tmp/2024.txt --metadata fencing-token=@second@

# Refused: StaleFencingToken.
AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_DEFAULT_REGION=us-east-1 AWS_PAGER= \
  @aws@ --endpoint-url @url@ s3api put-object --bucket reports --key 2024.txt \
  --body /tmp/2024.txt --metadata fencing-token=@first@

AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_DEFAULT_REGION=us-east-1 AWS_PAGER= \
  @aws@ --endpoint-url @url@ s3 cp s3://reports/2024.txt -

# ── psql: a guarded table, past the gateway ──────────────────────────────────
# With a lock: UPDATE 1. psql knows nothing of it.
GATEWAY_URL=@url@ GATEWAY_API_KEY=demo-key GATEWAY_POSTGRES=@database@ \
  @gateway@ run --lock order/5 -- @psql@ -c "UPDATE orders SET state = 'sent' WHERE id = 5"

# Without a lock: refused by the guard.
@psql@ @database@ -c "UPDATE orders SET state = 'sent twice' WHERE id = 5"

# A guard's refusals are on record like all others, within a second.
sleep 1; @gateway@ audit search --url @url@ --kind rejection --rule public.orders --reason token-required

# ── Python: both, with one more header ───────────────────────────────────────
@python@ - <<'END'
import boto3

s3 = boto3.client("s3", endpoint_url="@url@", region_name="us-east-1",
                  aws_access_key_id="demo", aws_secret_access_key="demo-secret")

def present(token):
    def add_header(request, **_):
        request.headers["Fencing-Token"] = str(token)
    s3.meta.events.register("before-sign.s3.*", add_header, unique_id="fencing")

for token in (@first@, @second@, @first@):
    s3.meta.events.unregister("before-sign.s3.*", unique_id="fencing")
    present(token)
    try:
        s3.put_object(Bucket="reports", Key="2025.txt", Body=f"written with {token}".encode())
        print("token", token, "accepted")
    except s3.exceptions.ClientError as error:
        print("token", token, "refused:", error.response["Error"]["Code"])
END
@note@
@python@ - <<'END'
from postgrest import APIError, SyncPostgrestClient

for token in (@first@, @second@, @first@):
    tables = SyncPostgrestClient("@url@/v1/tables", headers={"Fencing-Token": str(token)})
    try:
        rows = tables.from_("accounts").update({"note": f"written with {token}"}).eq("id", 2).execute().data
        print("token", token, "accepted:", rows)
    except APIError as error:
        print("token", token, "refused:", error.code, error.message)
END

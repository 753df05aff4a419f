"""The old job: write the invoice of an order. It knows nothing of locks and tokens, and stays as it is.

libpq and boto3 take their addresses and keys from the environment.
"""

import os
import sys
import time

import boto3
import psycopg


def bill(order: int) -> None:
    with psycopg.connect("", autocommit=True) as database:
        [(customer, amount)] = database.execute(
            "SELECT customer, amount FROM orders WHERE id = %s", (order,)
        ).fetchall()
        print(f"{os.getpid()}: order {order} costs {amount}", flush=True)
        time.sleep(float(os.environ.get("WORK", "0")))  # This stands for a slow renderer.
        text = f"Invoice for {customer}: {amount}\n".encode()
        boto3.client("s3").put_object(Bucket="documents", Key=f"invoices/{order}/invoice.txt", Body=text)
        with database.transaction():
            database.execute(
                "INSERT INTO invoices VALUES (%s, %s) ON CONFLICT (order_id) DO UPDATE SET amount = excluded.amount",
                (order, amount),
            )
            database.execute("INSERT INTO shipments (order_id) VALUES (%s) ON CONFLICT DO NOTHING", (order,))
            database.execute("UPDATE orders SET state = 'billed' WHERE id = %s", (order,))


if __name__ == "__main__":
    bill(int(sys.argv[1]))

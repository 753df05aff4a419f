"""The object plane: S3, with a fence around every write.

A store has no transactions, and a request that was sent may arrive late. So a write has three steps. It is announced in
PostgreSQL as an *intent*, under its claim. It is sent with a condition: the ETag that the key has, or absence. Then its
intent is forgotten. A newer holder *settles* the intents of older ones before it is acknowledged: it makes each late
request unable to take effect.

- A conditional write is settled by another ETag. The one that it waits for is forbidden, and a *bump* puts the same
  bytes in another form. A deleted key gets a *tombstone* with bytes of its own.
- A completion is settled by aborting its upload.
- A write without a condition is settled by waiting until its signature has expired, by the store's clock.

``pipeline`` has the stages of a request. ``protocol`` decides about intents, ``s3`` reads and writes S3's texts,
``store`` talks to the store. A bucket is probed before its first write, because a store may ignore conditions.

Assembly imports ``pipeline``. The journal, the doctor and changes of names use ``store``. This folder and ``tables``
never import each other.
"""

"""An answer that is kept under a key says what its write has claimed, so that giving it again can raise those fences.

Answers that are there already claim nothing: given again they raise no fence, as before.
"""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    # Resources, each with the number of the write of a list that has claimed it; a JSON array of pairs.
    op.get_bind().exec_driver_sql("ALTER TABLE fencing.idempotency ADD COLUMN claimed text NOT NULL DEFAULT '[]'")

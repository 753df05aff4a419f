"""A guard checks the rows of a statement together, from ``r0010_quicker_guard.sql``."""

from pathlib import Path

from alembic import op
from sqlalchemy.engine import AdaptedConnection

revision = "r0010"
down_revision = "r0009"


def upgrade() -> None:
    """Run the statements of the file beside this one, all in one round trip."""
    script = Path(__file__).with_suffix(".sql").read_text()
    session = op.get_bind().connection.dbapi_connection
    assert isinstance(session, AdaptedConnection)
    session.run_async(lambda driver: driver.execute(script))

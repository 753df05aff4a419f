"""Former keys: a configuration that has one starts, and tells what to write instead."""

from pathlib import Path

import pytest

from gateway.config import former_keys, load
from tests.processes import called, started

DSN = '[postgres]\ndsn = "postgresql://gateway@db/app"\n'
BOTH = (
    '[[databases]]\nname = "north"\ndefault = true\ndsn = "postgresql://north"\n'
    '[[databases]]\nname = "south"\nschemas = ["south"]\ndsn = "postgresql://south"\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def warnings(file: Path, text: str) -> list[str]:
    """Load a configuration that works, and return its warnings."""
    file.write_text(text)
    load(file)
    return former_keys(file)


def test_a_key_that_has_no_effect_is_a_warning(file: Path) -> None:
    (line,) = warnings(file, DSN + "connect_timeout = 7\n")
    assert line.startswith(f"{file}, line 3: [postgres], connect_timeout: is a former key.")
    assert line.endswith("It has no effect: the value is 5 seconds; remove it.")


def test_entries_of_several_databases_have_the_same_former_keys(file: Path) -> None:
    (line,) = warnings(file, BOTH + "listen = false\n")
    assert '[[databases]] "south", listen: is a former key' in line


def test_variables_have_the_same_former_keys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_POSTGRES__MAX_BODY", "10")
    (line,) = warnings(file, DSN)
    assert line.startswith("the environment, GATEWAY_POSTGRES__MAX_BODY: [postgres], max_body: is a former key.")


def test_the_check_and_the_log_tell(dsn: str, file: Path) -> None:
    file.write_text(f'[server]\nlisten = "127.0.0.1:0"\nrest_v1 = false\n[postgres]\ndsn = "{dsn}"\n')
    told = "[server], rest_v1: is a former key. It has no effect"
    checked = called("config", "check", "--config", str(file))
    assert (checked.returncode, told in checked.stderr) == (0, True), checked.stderr
    with started("serve", "--config", str(file)) as gateway:
        gateway.wait_for(lambda: '"listening"' in gateway.errors.read_text())
        assert told in gateway.errors.read_text()

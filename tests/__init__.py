"""The tests, a folder a subject of the gateway: tests/README.md."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The folder of the project."""

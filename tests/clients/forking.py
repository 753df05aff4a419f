"""Runs programs in Python, each in a process of its own, which is forked when the libraries are imported already.

A program sees the arguments, environment, directory and files that it would have seen. Only its start is not repeated
each time: it is most of the AWS CLI's work for a small file. Asked as ``Conversation`` of ``commands.py`` asks:

    python -m tests.clients.forking LIBRARY…
"""

import json
import os
import runpy
import sys
from importlib import import_module
from typing import Any


def main(libraries: list[str]) -> None:
    for library in libraries:
        import_module(library)
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _become(asked: dict[str, Any]) -> None:
    """Be the program. If it raises, or exits, this process ends as its own would have."""
    for descriptor, path, mode in ((0, os.devnull, os.O_RDONLY), (1, asked["out"], None), (2, asked["error"], None)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if mode is None else mode)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    if "code" in asked:
        sys.argv = ["-c"]
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = asked["command"]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])

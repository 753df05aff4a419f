"""``python -m gateway`` and the command ``gateway``."""

import signal

# Until a command handles SIGINT itself, the kernel's default ends the process. Python would raise an exception instead.
# An exception in a callback of the import machinery or of a collected object is lost, and the command would run on.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from gateway.cli import main

if __name__ == "__main__":
    main()

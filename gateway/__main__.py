"""``python -m gateway`` and the command ``gateway``."""

import signal

# Until a command listens to SIGINT itself, it ends the process as the kernel does. Python's own answer is an exception,
# and one that arrives in a callback of the import machinery or of a collected object is lost: the command would run on.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from gateway.cli import main

if __name__ == "__main__":
    main()

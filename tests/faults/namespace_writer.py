"""Writes to a store's log from a thread with a chosen id, and keeps the transaction open until told.

`python namespace_writer.py LOG THREAD_ID NAME`; as root in a pid namespace of its own. It prints what it does.
"""

import os
import sys
import threading
from pathlib import Path

from turnlog.store.log.environment import open_environment


def main() -> None:
    log, wanted, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    env = open_environment(log, readonly=False, create=False, tables=64)

    def write() -> None:
        assert threading.get_native_id() == wanted
        print("waits", flush=True)
        with env.write():
            # One write each: the order in this file is the order of things.
            os.write(1, f"{name} in\n".encode())
            sys.stdin.readline()
            os.write(1, f"{name} out\n".encode())

    # The next thread or process of this namespace gets the number behind this.
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1))
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


main()

"""When a worker without a supervisor is the last of its mount."""

from __future__ import annotations

import os

from lodefs.mount.process.serving.worker_main import is_mount_over


def test_the_last_worker() -> None:
    """It is if the connection, or what the mount lives for, is over; else its colleagues serve."""
    reading, connection = os.pipe()  # one whose other end is closed polls as a lost connection
    life, living = os.pipe()  # readable at its end, as a pidfd
    try:
        assert not is_mount_over(connection, -1)
        assert not is_mount_over(connection, life)
        os.close(living)
        assert is_mount_over(connection, life)
        assert not is_mount_over(connection, -1)
        os.close(reading)
        assert is_mount_over(connection, -1)
    finally:
        os.close(connection)
        os.close(life)

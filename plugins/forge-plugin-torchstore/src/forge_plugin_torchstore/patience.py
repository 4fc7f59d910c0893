"""A process that sends messages for TorchStore lives on when another is killed before it has acknowledged one.

outlive_others()                                  # in a publisher, a reader, and the process that started them
"""

from __future__ import annotations


def outlive_others() -> None:
    """Let Monarch in this process wait longer for acknowledgements.

    After `message_delivery_timeout`, 30 s by default, a message that is not acknowledged goes back to its sender. Where
    that is gone as well (the store of a publisher that has closed), Monarch ends the process that forwarded it: the one
    whose host the store was started on. It is not for ever, because the same time is the last resort by which a dead
    process on another host is noticed.
    """
    from monarch.config import configure

    configure(message_delivery_timeout="10m")

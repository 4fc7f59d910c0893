"""What third-party code raised, as one phrase for a record: `ValueError: text (rewards.py:12)`."""

from __future__ import annotations

import traceback
from pathlib import Path


def describe_failure(error: BaseException) -> str:
    """Type and text on one line, with the file and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}" if message else f"{type(error).__name__}{place}"
